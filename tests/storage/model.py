"""What the tests of stores share: states as plain dicts, small spines that merge all the time, disks that fail.

`FaultyFiles` is a directory that fails at one call to the system: before it, after it, or in the middle of a write; or
whose machine loses power there, and with it everything that was not fsynced.
"""

import errno
import random
from typing import Any

import pyarrow as pa

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.kernels.memory import layout as nd
from dbspark.storage.files import LocalFiles
from dbspark.trace import Spine, SpineConfig
from tests.columnar.model import rows

SMALL = SpineConfig(max_inline_merge_rows=6, merge_step_rows=8, merge_rows_per_row=2, min_indexed_rows=8)
"""Merges are in progress most of the time."""
PAIRS = Schema.parse("k BIGINT, v STRING")
BY_KEY = SortKey(PAIRS, [0])

Contents = dict[Any, int]


def batch_of(pairs: list[tuple[Any, int]], sort_key: SortKey = BY_KEY) -> Batch:
    """A batch of rows and weights."""
    columns = zip(*(row for row, _ in pairs), strict=True) if pairs else [()] * sort_key.schema.columns
    table = pa.table([pa.array(list(c), t) for c, t in zip(columns, sort_key.schema.types, strict=True)],
                     schema=sort_key.schema.arrow)  # fmt: skip
    return Batch.from_arrow(table, sort_key, [w for _, w in pairs])


def numbered(begin: int, count: int, weight: int = 1) -> Batch:
    return batch_of([((i, f"value {i % 7}"), weight) for i in range(begin, begin + count)])


def contents(spine: Spine) -> Contents:
    """Rows with their times, and weights, added up over the batches one by one."""
    out: Contents = {}
    for batch in spine.batches:
        times = [[int(t) for c in batch.chunks for t in c.lane(nd.TIME + i)] for i in range(nd.TIMES)]
        for row, weight, *time in zip(rows(batch.to_arrow()), batch.weights().tolist(), *times, strict=True):
            key = row, tuple(time)
            out[key] = out.get(key, 0) + weight
    return {key: weight for key, weight in out.items() if weight}


def everything(states: Any) -> dict[str, list[Contents]]:
    return {node: [contents(s) for s in spines] for node, spines in states.items()}


def small(states: Any) -> dict[str, tuple[Spine, ...]]:
    """The same spines with merges in small steps."""
    return {
        node: tuple(Spine(s.sort_key, s.entries, SMALL, compaction=s.compaction) for s in spines)
        for node, spines in states.items()
    }


class Crash(BaseException):
    """The process or the machine stops here."""


class FaultyFiles(LocalFiles):
    """A directory whose `at`-th call to the system, counted from when it is armed, goes wrong in the way of `kind`."""

    KINDS = ("before", "after", "partial", "crash before", "crash after", "power")

    def __init__(self, directory: Any, seed: int = 0) -> None:
        super().__init__(directory)
        self.at = -1
        self.kind = "before"
        self.calls = 0
        self.names_called: list[str] = []
        self._random = random.Random(seed)
        self._unsynced: set[str] = set()
        self._unsettled: list[str] = []

    def arm(self, at: int, kind: str) -> None:
        self.at, self.kind, self.calls, self.names_called = at, kind, 0, []

    def _go(self, what: str, call: Any, *args: Any) -> Any:
        here = self.calls == self.at
        self.calls += 1
        self.names_called.append(what)
        if not here:
            return call(*args)
        failing = OSError(errno.EIO, "made to fail", what)
        if self.kind == "before":
            raise failing
        if self.kind == "crash before":
            raise Crash
        if self.kind == "power":
            if self._random.random() < 0.5:
                call(*args)
            self._lose_power()
            raise Crash
        call(*args)
        if self.kind == "partial" and what in ("write", "write_batch"):
            path = self.directory / args[0]
            content = path.read_bytes()
            path.write_bytes(content[: self._random.randrange(len(content))])
        if self.kind == "crash after":
            raise Crash
        raise failing

    def _lose_power(self) -> None:
        """Of what was not fsynced some is there and some is not."""
        for name in self._unsettled:
            if self._random.random() < 0.5:
                (self.directory / name).unlink(missing_ok=True)
        for name in self._unsynced:
            path = self.directory / name
            if path.exists():
                content = path.read_bytes()
                path.write_bytes(content[: self._random.randrange(len(content) + 1)])

    def _write(self, name: str, parts: Any) -> None:
        self._unsynced.add(name)
        self._unsettled.append(name)
        self._go("write", super()._write, name, parts)

    def _write_batch(self, name: str, batch: Batch) -> int:
        self._unsettled.append(name)
        return self._go("write_batch", super()._write_batch, name, batch)

    def _sync(self, name: str) -> None:
        self._go("sync", super()._sync, name)
        self._unsynced.discard(name)

    def _link(self, aside: str, name: str) -> None:
        self._unsettled.append(name)
        self._go("link", super()._link, aside, name)
        if aside in self._unsynced:
            self._unsynced.add(name)

    def _unlink(self, name: str) -> None:
        self._go("unlink", super()._unlink, name)

    def _sync_directory(self) -> None:
        self._go("sync_directory", super()._sync_directory)
        self._unsettled.clear()

    def _map(self, name: str) -> Any:
        return self._go("map", super()._map, name)

    def _list(self) -> list[str]:
        return self._go("list", super()._list)
