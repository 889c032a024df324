"""`Lazy`: a property that is computed at its first use and then stored in the `__dict__` of its instance.

Like `functools.cached_property`, without the lock that it takes in Python 3.11. Values derive from attributes that
never change, so two threads that compute one at once compute the same, and a lock would cost more than most of what it
guards. The value that is stored first wins, and both threads return that object: kernels may have its address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class Lazy(Generic[T]):
    """A decorator for methods without arguments: a property that is computed once for each instance."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.name = function.__name__
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Lazy[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Lazy[T] | T:
        if instance is None:
            return self
        value: T = instance.__dict__.setdefault(self.name, self.function(instance))
        return value
