"""A cursor: keys, values and times of a trace, one by one, as Python values.

It is for debugging, tests and rare paths; operators use `lookup.probe`. Keys come in the order of their hashes, the
rows of a key in the order of the sort key. A cursor reads one version of the trace, one key at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.merge_batches import MergePlan, run_merge
from dbspark.columnar.row_times import time_bounds, times_at
from dbspark.columnar.rows import Row, decode_arrays, row_normaliser
from dbspark.kernels.memory import layout as nd
from dbspark.trace.lookup import Keys, key_columns
from dbspark.trace.time import Time

_Updates = list[tuple[Time, int]]
_TOP = (1 << 64) - 1


class Cursor:
    """A position at a key and at one of its values, or beyond the last key or value."""

    def __init__(self, batches: Sequence[Batch], sort_key: SortKey, width: int, since: Sequence[int]) -> None:
        self._batches = [b for b in batches if b.rows]
        self._sort_key = sort_key
        self._width = width
        self._bounds = time_bounds(since=since)
        self._columns = key_columns(sort_key)
        self._normalise_key = row_normaliser(sort_key.schema.select(self._columns))
        self.rewind_keys()

    # ------------------------------------------------------------------ keys

    @property
    def key_valid(self) -> bool:
        return self._key < len(self._groups)

    @property
    def key(self) -> Row | None:
        """The current key, None beyond the last."""
        return self._groups[self._key][0] if self.key_valid else None

    def step_key(self) -> None:
        """Move to the next key."""
        self._key += 1
        self._val = 0
        while not self.key_valid and self._hash is not None:
            self._load(None if self._hash == _TOP else self._hash + 1)

    def seek_key(self, key: Any) -> bool:
        """Move to a key, or to the next one in order if it is absent; returns whether it is there."""
        target = self._normalise_key(key if isinstance(key, tuple | list) else (key,))
        self._load(int(Keys.of(self._sort_key, [target]).hashes[0]))
        for i, (found, _) in enumerate(self._groups):
            if found == target:
                self._key = i
                return True
        self._key = len(self._groups) - 1
        self.step_key()
        return False

    def rewind_keys(self) -> None:
        """Move to the first key."""
        self._load(0)

    # ------------------------------------------------------------------ values

    @property
    def val_valid(self) -> bool:
        return self.key_valid and self._val < len(self._groups[self._key][1])

    @property
    def val(self) -> Row | None:
        """The current row, key columns included; None beyond the last row of the key."""
        return self._groups[self._key][1][self._val][0] if self.val_valid else None

    def step_val(self) -> None:
        """Move to the next row of the key."""
        self._val += 1

    def seek_val(self, val: Row) -> bool:
        """Move to a row of the key, or beyond its last row if it is absent; returns whether it is there."""
        target = row_normaliser(self._sort_key.schema)(val)
        rows = self._groups[self._key][1] if self.key_valid else []
        self._val = next((i for i, (row, _) in enumerate(rows) if row == target), len(rows))
        return self._val < len(rows)

    def rewind_vals(self) -> None:
        self._val = 0

    def map_times(self, function: Callable[[Time, int], None]) -> None:
        """Call a function with every time and weight of the current row."""
        for time, weight in self.times():
            function(time, weight)

    def times(self) -> _Updates:
        """Every time and weight of the current row."""
        return list(self._groups[self._key][1][self._val][1]) if self.val_valid else []

    def __iter__(self) -> Iterator[tuple[Row, Row, Time, int]]:
        """All updates from the current key on: (key, row, time, weight)."""
        while self.key_valid:
            key, rows = self._groups[self._key]
            for row, history in rows[self._val :]:
                for time, weight in history:
                    yield key, row, time, weight
            self.step_key()

    # ------------------------------------------------------------------ loading

    def _load(self, hash_from: int | None) -> None:
        """Load the rows of the first key hash at or above the given one that has any rows left."""
        self._key, self._val = 0, 0
        while True:
            self._groups: list[tuple[Row, list[tuple[Row, _Updates]]]] = []
            self._hash: int | None = None if hash_from is None else self._next_hash(hash_from)
            if self._hash is None:
                return
            self._groups = self._grouped(self._hash)
            if self._groups or self._hash == _TOP:
                return
            hash_from = self._hash + 1

    def _next_hash(self, at_least: int) -> int | None:
        if not self._batches:
            return None
        plan = MergePlan(self._batches, within=self._bounds)
        found: list[int] = []
        for s, (chunk, row) in enumerate(plan.split(at_least).tolist()):
            batch = plan.batches[s]
            chunk -= plan.starts[s]
            if row >= batch.chunks[chunk].rows:
                chunk, row = chunk + 1, 0
            if chunk < len(batch.chunks):
                found.append(int(batch.chunks[chunk].lane(nd.KEY)[row]))
        return min(found, default=None)

    def _grouped(self, key_hash: int) -> list[tuple[Row, list[tuple[Row, _Updates]]]]:
        plan = MergePlan(self._batches, within=self._bounds)
        low = plan.split(key_hash)
        plan.restrict(low, None if key_hash == _TOP else plan.split(key_hash + 1))
        groups: dict[Row, dict[Row, _Updates]] = {}
        for chunk in run_merge(plan):
            rows = decode_arrays(self._sort_key.schema, chunk.arrays())
            tables = np.array((chunk.table,), np.int64)
            times = times_at(tables, np.arange(chunk.rows, dtype=np.int64))[: self._width].T.tolist()
            for row, time, weight in zip(rows, times, chunk.lane(nd.WEIGHT).tolist(), strict=True):
                key = tuple(row[c] for c in self._columns)
                groups.setdefault(key, {}).setdefault(row, []).append((Time(time), weight))
        return [(key, list(rows.items())) for key, rows in groups.items()]
