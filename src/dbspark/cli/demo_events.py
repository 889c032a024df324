"""The events that the process which runs the demo's pipeline sends to the process that displays it.

Events are JSON, one a line. They come in order, and what has been written before a process is killed can still be read.
So after a kill the reader knows exactly which ticks were acknowledged by a `Ticked`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Final, TypeAlias


@dataclass(frozen=True, slots=True)
class Began:
    """Some work has begun."""

    what: str


@dataclass(frozen=True, slots=True)
class Progressed:
    """The progress of long work, in a line; empty when the work has ended."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The work that began last has ended."""

    result: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Held:
    """The number of rows of views, by name."""

    rows: dict[str, int]


@dataclass(frozen=True, slots=True)
class Running:
    """A transaction is running; it will be committed as this tick."""

    tick: int


@dataclass(frozen=True, slots=True)
class Ticked:
    """A tick has been committed."""

    tick: int
    table: str
    rows: int
    ms: float
    """Milliseconds of the transaction, its commit included."""
    at: float
    """Wall-clock time."""
    changed: dict[str, int] = field(default_factory=dict)
    """By view, the rows that were inserted or deleted."""
    grown: dict[str, int] = field(default_factory=dict)
    """By view, the rows that were inserted less those that were deleted."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Spark has begun to compute the views anew."""

    tick: int


@dataclass(frozen=True, slots=True)
class Compared:
    """Spark has computed the views as of a tick, and they were compared."""

    tick: int
    seconds: float
    views: int
    problems: list[str]


@dataclass(frozen=True, slots=True)
class Showed:
    """A feature of the engine has been shown and its result checked."""

    what: str
    result: str
    right: bool


@dataclass(frozen=True, slots=True)
class Vulnerable:
    """From now on the process may be killed while a transaction runs (`Running`)."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The process ends with an error: the name of its class and its message."""

    kind: str
    message: str


Event: TypeAlias = (
    Began | Progressed | Ended | Held | Running | Ticked | Asked | Compared | Showed | Vulnerable | Failed
)  # fmt: skip
Emit: TypeAlias = Callable[[Event], None]

_KINDS: Final = {
    kind.__name__: kind
    for kind in (Began, Progressed, Ended, Held, Running, Ticked, Asked, Compared, Showed, Vulnerable, Failed)
}


def encode_event(event: Event) -> bytes:
    """An event as a line."""
    return json.dumps({"event": type(event).__name__, **asdict(event)}).encode() + b"\n"


def decode_event(line: bytes) -> Event:
    """The event of a line."""
    fields = json.loads(line)
    made: Event = _KINDS[fields.pop("event")](**fields)
    return made


__all__ = [
    "Asked", "Began", "Compared", "Emit", "Ended", "Event", "Failed", "Held", "Progressed", "Running", "Showed",
    "Ticked", "Vulnerable", "decode_event", "encode_event",
]  # fmt: skip
