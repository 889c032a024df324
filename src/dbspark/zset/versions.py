"""Immutable values over a mutable store.

A hash table is fast because it changes in place; a Z-set value must never change. Both hold here (the technique is
Baker's for persistent arrays): the newest version reads the store as it is. When it is advanced, the store changes
and the version that was newest keeps the delta that leads away from it. Reading an old version costs a copy of the
store from which those deltas are taken back, once; using versions one after the other costs nothing. An old version
that nobody holds takes its delta with it: versions point forward only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, Self, TypeVar


class VersionedStore(Protocol):
    """What can be versioned. Deltas are whatever `apply` takes; factor is 1 or -1."""

    lock: threading.RLock
    head: VersionNode | None

    def apply(self, delta: Any, factor: int) -> None:
        """Change the store, or raise and leave it as it was."""

    def copy(self) -> Self: ...


S = TypeVar("S", bound=VersionedStore)
R = TypeVar("R")


class VersionNode:
    """A point in the history of a store: the next one, and the delta that leads there. The newest has neither."""

    __slots__ = ("delta", "next")

    delta: Any
    next: VersionNode


class Version(Generic[S]):
    """One value of a store."""

    __slots__ = ("node", "store")

    def __init__(self, store: S, node: VersionNode | None = None) -> None:
        self.store = store
        if node is None:
            node = VersionNode()
            store.head = node
        self.node = node

    def with_delta(self, delta: Any) -> Version[S]:
        """The version after a delta."""
        while True:
            store = self.store
            with store.lock:
                if store.head is self.node:
                    store.apply(delta, 1)
                    return self.after_delta(delta)
                if self.store is store:
                    self._detach()

    def after_delta(self, delta: Any) -> Version[S]:
        """The version after a delta that is in the store already; this one was the newest, and the store is locked."""
        node = VersionNode()
        self.node.delta = delta
        self.node.next = node
        self.store.head = node
        version: Version[S] = object.__new__(Version)
        version.store = self.store
        version.node = node
        return version

    def read(self, fn: Callable[[S], R]) -> R:
        """fn of the store in the state of this version; nobody changes it meanwhile."""
        while True:
            store = self.store
            with store.lock:
                if store.head is self.node:
                    return fn(store)
                if self.store is store:
                    self._detach()

    def _detach(self) -> None:
        """Give this version a store of its own."""
        store = self.store.copy()
        deltas = []
        node = self.node
        while (after := getattr(node, "next", None)) is not None:
            deltas.append(node.delta)
            node = after
        for delta in reversed(deltas):
            store.apply(delta, -1)
        fresh = VersionNode()
        store.head = fresh
        self.node = fresh
        self.store = store
