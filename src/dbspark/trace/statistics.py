"""What has been seen of a spine: nothing but time depends on it.

All versions of a spine share it. Kernels count the keys that they look for (`kernels.lookup.bloom_filter`) at an
address.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from dbspark.columnar import Batch
from dbspark.columnar.memory import allocate

WALK = 128
"""Rows here for each row of a usual delta up to which deltas are looked up by walking along both sides."""
SEARCH = 512
"""The same from which on they are searched for again. Both cost the same at about 250; `benchmarks.circuit.lookups`."""
_RISING = 0.05
"""By how much of what is more the keys that are looked for rise."""
_COUNTERS = Struct("2q")


def counters() -> Any:
    counts = allocate(_COUNTERS.size)
    _COUNTERS.pack_into(counts, 0, 0, 0)
    return counts


@dataclass(slots=True)
class SpineStats:
    """What a spine's inserts and merges did, shared by all its versions."""

    inserts: int = 0
    merges: int = 0
    rows_in: int = 0
    rows_out: int = 0
    seconds: float = 0.0
    reduction: float = 0.0
    """EWMA of the share of rows that vanish in a merge."""
    removals: float = 0.0
    """EWMA of the share of inserted rows that take something away: what merging will save."""
    looked_up: float = 0.0
    """EWMA of the rows of the deltas that are looked up here."""
    arriving: float = 0.0
    """EWMA of the rows of an insert."""
    sought: float = 0.0
    """EWMA of the keys that are looked for in all batches between two inserts, by whomever. It rises slowly: a single
    tick that looks for many should not have everything merged."""
    asked: float = 0.0
    """EWMA of the keys that are looked for, and of those among them that a sieve held back."""
    held: float = 0.0
    counts: Any = field(default_factory=counters)
    """The same since the last insert: what kernels count."""
    unsieved: int = 0
    """Rows up to which there shall be no sieve: one was tried that held back too little."""
    walking: bool = False
    """Whether such deltas are looked up by walking, the last time it was decided."""

    def inserted(self, batch: Batch) -> None:
        self.inserts += 1
        self.removals += 0.3 * (batch.negative / batch.rows - self.removals)
        self.arriving += 0.3 * (batch.rows - self.arriving)
        asked, held = _COUNTERS.unpack_from(self.counts)
        more = asked - held - self.sought
        self.sought += (0.3 if more < 0 else _RISING) * more
        self.asked += 0.3 * (asked - self.asked)
        self.held += 0.3 * (held - self.held)
        _COUNTERS.pack_into(self.counts, 0, 0, 0)

    def seek(self, keys: int) -> None:
        """So many keys are looked for by a kernel that does not count them."""
        asked, held = _COUNTERS.unpack_from(self.counts)
        _COUNTERS.pack_into(self.counts, 0, asked + keys, held)

    def walks(self, delta: int, rows: int) -> bool:
        """Whether to look up a delta in so many rows by walking along both, rather than by searching for each row.

        By the EWMA of the sizes of deltas, with hysteresis; a single small delta among large ones is searched for.
        Both ways find the same, so nothing but time depends on what is remembered here.
        """
        self.looked_up += (0.3 if self.looked_up else 1.0) * (delta - self.looked_up)
        self.walking = self.looked_up * (SEARCH if self.walking else WALK) >= rows
        return self.walking and delta * SEARCH >= rows

    def merged(self, before: int, after: int) -> None:
        self.merges += 1
        self.rows_in += before
        self.rows_out += after
        self.reduction += 0.3 * ((before - after) / max(before, 1) - self.reduction)
