"""`HandleMapping`: the tables or the views of a pipeline by name, as a mapping that cannot be changed.

It is a view of the pipeline, as `dict.keys()` is of a dict: what is created or dropped later is seen. Names are found
as SQL finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Generic, TypeVar

from dbspark.errors import DbsparkError

Handle = TypeVar("Handle", covariant=True)


class UnknownNameError(DbsparkError, KeyError):
    """There is no table or view of this name; the message says which there are."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would show the quoted text


class HandleMapping(Mapping[str, Handle], Generic[Handle]):
    """Handles by name."""

    def __init__(self, names: Callable[[], Collection[str]], handle: Callable[[str], Handle]) -> None:
        """`names`: those that there are, in the order of their creation. `handle`: what to return for a name; raises
        `DbsparkError` where there is none."""
        self._names, self._handle = names, handle

    def __getitem__(self, name: str) -> Handle:
        try:
            return self._handle(name)
        except DbsparkError as error:
            raise UnknownNameError(str(error)) from None

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and self._handle(name) is not None
        except DbsparkError:
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._names()))

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self._names()))

    def __len__(self) -> int:
        return len(self._names())

    def __repr__(self) -> str:
        lines = [f"{name!r}: {self[name]!r}" for name in self]
        return "{" + ",\n ".join(lines) + "}"


__all__ = ["HandleMapping", "UnknownNameError"]
