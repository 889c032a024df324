"""What the process that runs a pipeline tells the one that shows it: an event for each thing that happens.

Events are JSON, one a line. They come in order, and what has been written before a process is killed can still be read:
so a tick that was acknowledged by a `Ticked` is known for certain.
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
    """How far the work is that takes a while; empty when it has ended."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The work that began last has ended."""

    result: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Held:
    """The rows of views, by name."""

    rows: dict[str, int]


@dataclass(frozen=True, slots=True)
class Running:
    """A transaction is running, and will be this tick."""

    tick: int


@dataclass(frozen=True, slots=True)
class Ticked:
    """A tick has been committed."""

    tick: int
    table: str
    rows: int
    ms: float
    """The transaction, its commit included."""
    at: float
    """Wall-clock time."""
    changed: dict[str, int] = field(default_factory=dict)
    """Rows that came to each view or went."""
    grown: dict[str, int] = field(default_factory=dict)
    """By how many rows each view has more."""


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
    """Something that the engine can do has been done and checked."""

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
