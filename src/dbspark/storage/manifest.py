"""The manifest of a tick: everything that is the state then, by name.

It lists for every trace (a node of the circuit, and which of its spines) the batches in order, where each is and how
many rows it has, and the frontiers; beside them the program, the source offsets and the sink positions, of which it
knows nothing but that they are JSON. A file that no manifest names does not exist, whatever is on disk.

The file of a tick is: magic, the extents of small batches, the manifest as JSON with sorted keys, and a trailer with
its length, checksum and format. So a manifest is read from the end, and a file that is cut short or altered in what is
read is refused by name. What changes rarely (the program and the arrangements of the traces: the *shape*) is an extent
of its own, which later manifests name again.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa

from dbspark.errors import CorruptFileError, StoreError
from dbspark.trace.config import Compaction
from dbspark.trace.time import Antichain, Description

FORMAT = 1
MAGIC = b"dbspark tick\n" + bytes(51)
"""The first bytes of the file of a tick; as long as the alignment of extents."""
_TRAILER = struct.Struct("<QII16s")
"""Length and checksum of the manifest, format, and `_END`."""
_END = b"dbspark manifest"
_PREFIX = "tick-"
PART_PREFIX = "part-"
"""Files of a tick beside its manifest: what one task has written."""


@dataclass(eq=False, slots=True)
class Place:
    """Where some bytes are stored: a whole batch file, or an extent in the file of a tick.

    Batches carry their place with them. It belongs to one opening of one store (`owner`) and means nothing to others.
    A store may move the bytes to another file: it changes the place itself, so every holder sees the new file.
    """

    owner: object
    file: str
    at: int
    size: int
    check: str
    rows: int = 0

    def to_json(self) -> list[Any]:
        return [self.file, self.at, self.size, self.check, self.rows]


@dataclass(frozen=True, slots=True)
class Entry:
    """A batch of a trace; without rows it has no place."""

    place: Place | None
    description: Description | None

    def to_json(self) -> list[Any]:
        return [
            None if self.place is None else self.place.to_json(),
            None if self.description is None else self.description.to_json(),
        ]


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One trace: its batches from oldest to newest."""

    sort_key: int
    """The number of its sort key in the shape."""
    entries: tuple[Entry, ...]
    compaction: Compaction | None = None

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"sort_key": self.sort_key, "entries": [e.to_json() for e in self.entries]}
        if self.compaction is not None:
            out["logical"] = [list(t) for t in self.compaction.logical]
            out["physical"] = [list(t) for t in self.compaction.physical]
        return out


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of one tick and revision."""

    tick: int
    revision: int
    """The latest revision of a tick counts: the program may change without a tick."""
    time: float
    """When it was committed, in seconds since 1970."""
    oldest: int
    """The oldest tick that was kept then."""
    shape: Place
    traces: Mapping[str, tuple[TraceRecord, ...]]
    offsets: Any = field(default_factory=dict)
    positions: Any = field(default_factory=dict)

    def places(self) -> Iterator[Place]:
        """Everything it names."""
        yield self.shape
        for records in self.traces.values():
            for record in records:
                for entry in record.entries:
                    if entry.place is not None:
                        yield entry.place

    def files(self) -> set[str]:
        """The files it needs, its own included."""
        return {name_of(self.tick, self.revision), *(place.file for place in self.places())}

    def sealed(self) -> bytes:
        """The manifest and its trailer, as they end the file."""
        text = canonical_json({
            "tick": self.tick,
            "revision": self.revision,
            "time": self.time,
            "oldest": self.oldest,
            "shape": self.shape.to_json(),
            "traces": {node: [r.to_json() for r in records] for node, records in self.traces.items()},
            "offsets": self.offsets,
            "positions": self.positions,
        })  # fmt: skip
        return text + _TRAILER.pack(len(text), zlib.crc32(text), FORMAT, _END)


def canonical_json(value: Any) -> bytes:
    """JSON that is the same for the same value."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"the program, offsets and positions that are committed with a tick have to be JSON: {error}. Nothing was "
            "committed"
        ) from None


def name_of(tick: int, revision: int) -> str:
    """The name of a tick's file. Names sort as ticks do."""
    return f"{_PREFIX}{tick:016d}-{revision:04d}"


@lru_cache(maxsize=4096)  # every commit asks for every batch
def version_of(name: str) -> tuple[int, int] | None:
    """(tick, revision) if this is the name of a tick's file."""
    digits = name[len(_PREFIX) :].split("-")
    if not name.startswith(_PREFIX) or [len(d) for d in digits] != [16, 4] or not all(d.isdecimal() for d in digits):
        return None
    return int(digits[0]), int(digits[1])


def has_extents(name: str) -> bool:
    """Whether a file holds extents: the file of a tick, or a part of one."""
    return name.startswith(PART_PREFIX) or version_of(name) is not None


def parse_manifest(whole: pa.Buffer, where: str, owner: object) -> Manifest:
    """The manifest at the end of a file; `where` is the file's name for the error."""
    try:
        if whole.size < len(MAGIC) + _TRAILER.size or whole.slice(0, len(MAGIC)).to_pybytes() != MAGIC:
            raise ValueError("it does not begin as one")
        end = whole.size - _TRAILER.size
        length, crc, version, mark = _TRAILER.unpack(whole.slice(end).to_pybytes())
        if mark != _END:
            raise ValueError("it is cut short")
        if version > FORMAT:
            raise CorruptFileError(
                f"{where} was written by a newer dbspark, in format {version}; this one reads up to {FORMAT}. "
                "Upgrade dbspark to open it"
            )
        if version != FORMAT or length > end - len(MAGIC):
            raise ValueError("its trailer has been altered")
        text = whole.slice(end - length, length).to_pybytes()
        if zlib.crc32(text) != crc:
            raise ValueError("it has been altered")
        return _from_json(json.loads(text), owner)
    except (KeyError, IndexError, TypeError, ValueError, struct.error) as error:
        raise CorruptFileError(f"{where} is not a whole manifest: {error or type(error).__name__}") from None


def record_from_json(given: dict[str, Any], owner: object) -> TraceRecord:
    """A record as `TraceRecord.to_json` gives it; its places belong to `owner`."""
    entries = tuple(
        Entry(
            None if place is None else Place(owner, *place),
            None if description is None else Description.from_json(description),
        )
        for place, description in given["entries"]
    )
    compaction = None
    if "logical" in given:
        logical, physical = (Antichain(tuple(t) for t in given[name]) for name in ("logical", "physical"))
        compaction = Compaction(logical, physical)
    return TraceRecord(given["sort_key"], entries, compaction)


def _from_json(data: dict[str, Any], owner: object) -> Manifest:
    return Manifest(
        data["tick"],
        data["revision"],
        data["time"],
        data["oldest"],
        Place(owner, *data["shape"]),
        {node: tuple(record_from_json(r, owner) for r in records) for node, records in data["traces"].items()},
        data["offsets"],
        data["positions"],
    )


__all__ = [
    "FORMAT", "MAGIC", "PART_PREFIX", "Entry", "Manifest", "Place", "TraceRecord", "canonical_json", "has_extents",
    "name_of", "parse_manifest", "record_from_json", "version_of",
]  # fmt: skip
