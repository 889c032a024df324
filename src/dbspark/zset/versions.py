"""Immutable versions of a mutable store: persistence by rerooting (Baker, as for persistent arrays).

A hash table is fast because it changes in place, but a Z-set value must never change. So versions form a list of nodes
that points from older to newer; each node but the last holds the delta that leads to the next. Invariants:

1. The newest version reads the store as it is; adding a delta to it changes the store in place, in O(delta).
2. An older version copies the store, once, and undoes the deltas between it and the newest; it then owns that copy.
3. Nodes point forward only, so the delta of a version that nobody refers to is freed with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, Self, TypeVar


class VersionedStore(Protocol):
    """A store that `Version` can version. A delta is whatever `apply` takes; with factor -1 it is undone."""

    lock: threading.RLock
    head: VersionNode | None

    def apply(self, delta: Any, factor: int) -> None:
        """Add a delta times 1 or -1, or raise and leave the store as it was."""

    def copy(self) -> Self: ...


S = TypeVar("S", bound=VersionedStore)
R = TypeVar("R")


class VersionNode:
    """A point in the history of a store: the next point, and the delta that leads there. The newest has neither."""

    __slots__ = ("delta", "next")

    delta: Any
    next: VersionNode


class Version(Generic[S]):
    """One immutable value of a store."""

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
        """The version after a delta that the caller, with the lock, has applied to the store; for the newest only."""
        node = VersionNode()
        self.node.delta = delta
        self.node.next = node
        self.store.head = node
        version: Version[S] = object.__new__(Version)
        version.store = self.store
        version.node = node
        return version

    def read(self, fn: Callable[[S], R]) -> R:
        """The result of `fn` on the store in the state of this version, called under the lock of the store."""
        while True:
            store = self.store
            with store.lock:
                if store.head is self.node:
                    return fn(store)
                if self.store is store:
                    self._detach()

    def _detach(self) -> None:
        """Give this version a copy of the store without the deltas that came after it."""
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
