"""The data source `dbspark`: views and tables of a pipeline in any Spark job, from the files at its location.

    spark.read.format("dbspark").option("location", L).option("view", V).load()
    spark.readStream.format("dbspark").option("location", L).option("view", V).option("changes", "true").load()

Options: `location`; `view` or `table`, a name; `asOf`, a tick to read instead of the last one; `changes`, for the
change feed (`dbspark.connectors.feed`) instead of the rows; `since`, the tick after which the feed begins (without it,
it begins with what there is, as inserts); `maxTicksPerTrigger`, how much of the feed is one micro-batch; `partitions`.

A stream is always the change feed. It has to be asked for with `changes` nevertheless: Spark asks a source for its
columns before it says whether it reads it as a stream.

The driver decides which tick is read, and every task opens the location and reads its range of key hashes from the
files. Ticks that are no longer the last one are read from the history that the view keeps.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from dbspark.connectors.feed import as_feed, as_inserts, feed_schema
from dbspark.errors import ConfigError, StoreError, TimeError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from dbspark.batch import Batch
    from dbspark.pipeline.history import History
    from dbspark.storage.store import Store
    from dbspark.trace.spine import Spine

ROWS_PER_PARTITION = 500_000
MOST_PARTITIONS = 64
NOTHING = -1
"""As a tick: before there was anything."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a user has asked for; travels with the reader to the tasks."""

    location: str
    kind: str
    name: str
    as_of: int | None
    changes: bool
    since: int
    most_ticks: int | None
    partitions: int | None

    @staticmethod
    def of(given: Any) -> Options:
        location = given.get("location") or given.get("path")
        if not location:
            raise ConfigError("format dbspark: give .option('location', …), the location of a pipeline")
        location = str(location) if "://" in str(location) else os.path.abspath(str(location))  # tasks run elsewhere
        kinds = [k for k in ("view", "table") if given.get(k)]
        if len(kinds) != 1:
            raise ConfigError("format dbspark: give .option('view', …) or .option('table', …), one of them")
        most = _number(given, "maxTicksPerTrigger", 1)
        since = _number(given, "since", 0)
        changes = str(given.get("changes", "false")).lower()
        if changes not in ("true", "false"):
            raise ConfigError(f"format dbspark: option 'changes' is {changes!r}; it can be 'true' or 'false'")
        if since is not None and changes == "false":
            raise ConfigError("format dbspark: option 'since' is for the change feed; add .option('changes', 'true')")
        return Options(
            location, kinds[0], str(given[kinds[0]]), _number(given, "asOf", 0), changes == "true",
            NOTHING if since is None else since, most, _number(given, "partitions", 1),
        )  # fmt: skip

    # ------------------------------------------------------------------ reading

    @contextmanager
    def opened(self, tick: int | None = None) -> Iterator[tuple[Store, Spine, int]]:
        """The location, the rows with their history, and the tick up to which they go."""
        from dbspark.storage.store import Store

        with Store.open(self.location, write=False, tick=tick) as store:
            found = store.load()
            state = found.states.get(f"{self.kind} {self.name}")
            if state is None:
                names = sorted(n.split(" ", 1)[1] for n in found.states if n.startswith(f"{self.kind} "))
                there = ", ".join(names) or "none"
                raise StoreError(f"no {self.kind} {self.name!r} at {self.location}; the {self.kind}s are {there}")
            yield store, state[0], found.tick

    def arrow_schema(self) -> pa.Schema:
        with self.opened() as (_, spine, _tick):
            schema = spine.arrangement.schema.arrow
        return feed_schema(schema) if self.changes else schema

    def latest(self) -> int:
        from dbspark.storage.store import Store

        with Store.open(self.location, write=False) as store:
            assert store.tick is not None
            return store.tick

    def planned(self, since: int, upto: int | None) -> list[Part]:
        """The parts that together are the rows, or the changes after `since`, at a tick."""
        with self.opened() as (_, spine, now):
            rows = spine.rows
        tick = now if upto is None else upto
        if tick > now:
            raise TimeError(f"tick {tick} has not happened yet at {self.location}; the last one is {now}")
        number = self.partitions or min(MOST_PARTITIONS, 1 + rows // ROWS_PER_PARTITION)
        return [Part(since, tick, i, number) for i in range(number)]

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        try:
            with self.opened() as (store, spine, now):
                table = self._table(part, store, spine, now)
        except TimeError:
            # The history is shorter than that; the tick itself may still be there.
            if self.changes and part.since != NOTHING:
                raise
            try:
                with self.opened(part.tick) as (store, spine, now):
                    table = self._table(part, store, spine, now)
            except StoreError:
                table = None
            if table is None:
                raise
        yield from table.to_batches(max_chunksize=1 << 16)

    def _table(self, part: Part, store: Store, spine: Spine, now: int) -> pa.Table:
        from dbspark.pipeline.history import plain_rows

        history = _history(part.sliced(spine), now)
        if self.changes and part.since != NOTHING:
            if not spine.batches or part.tick <= part.since:
                return feed_schema(spine.arrangement.schema.arrow).empty_table()
            times = commit_times(store, range(part.since + 1, part.tick + 1))
            return as_feed(history.changes(part.since, part.tick, now), times)
        rows = plain_rows(history.at(part.tick if spine.batches else now, now))
        return as_inserts(rows, part.tick, commit_times(store, [part.tick])) if self.changes else rows


@dataclass(frozen=True, slots=True)
class Range:
    """A range of key hashes: the `number`-th of `of` equal ones."""

    number: int
    of: int

    def slice(self, batch: Batch) -> Batch:
        from dbspark.kernels import nodes as nd

        bounds = [(self.number << 64) // self.of, (self.number + 1 << 64) // self.of]
        ends = [0, batch.rows]
        for i, bound in enumerate(bounds):
            if 0 < bound < 1 << 64:
                ends[i] = sum(int(np.searchsorted(c.lane(nd.KEY), np.uint64(bound))) for c in batch.chunks)
        return batch.slice(ends[0], ends[1] - ends[0]).described(batch.description)


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, since: int, tick: int, number: int, of: int) -> None:
        super().__init__((since, tick, number, of))
        self.since, self.tick = since, tick
        self.range = Range(number, of)

    def sliced(self, spine: Spine) -> Spine:
        from dbspark.trace.spine import Spine

        if self.range.of == 1:
            return spine
        return Spine(spine.arrangement, tuple(self.range.slice(b) for b in spine.batches))


class DbsparkSource(DataSource):
    """See the module's preface."""

    @classmethod
    def name(cls) -> str:
        return "dbspark"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(Options.of(self.options).arrow_schema())

    def reader(self, schema: StructType) -> Reader:
        return Reader(Options.of(self.options))

    def streamReader(self, schema: StructType) -> StreamReader:
        options = Options.of(self.options)
        if not options.changes:
            raise ConfigError(
                "format dbspark: a stream is the change feed; add .option('changes', 'true'), so that Spark knows its "
                "columns"
            )
        if options.as_of is not None:
            raise ConfigError("format dbspark: 'asOf' is for spark.read; a stream begins after 'since' and goes on")
        return StreamReader(options)


class Reader(DataSourceReader):
    """Rows at a tick, or the changes up to it."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        return self.options.planned(self.options.since, self.options.as_of)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Part)
        return self.options.read(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The change feed; an offset is the tick up to which it has been read."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._until: int | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"tick": self.options.since}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        latest = self.options.latest() if self._until is None else self._until
        after, most = start["tick"], self.options.most_ticks
        if most is not None and after != NOTHING:
            latest = min(latest, after + most)
        return {"tick": max(latest, after)}

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self.options.latest()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self.options.planned(start["tick"], end["tick"])

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Part)
        return self.options.read(partition)


def commit_times(store: Store, ticks: Container[int] | None = None) -> dict[int, float]:
    """When ticks, or all ticks, were committed, of which the store still has the manifest."""
    from dbspark.errors import CorruptFileError
    from dbspark.storage import manifest as mf

    out: dict[int, float] = {}
    for version in sorted(v for name in store.files.names() if (v := mf.version_of(name)) is not None):
        if version[0] not in out and (
            ticks is None or version[0] in ticks
        ):  # later revisions of a tick change the program, not the rows
            try:
                out[version[0]] = store._manifest(version).time
            except (CorruptFileError, OSError):
                continue
    return out


def _history(spine: Spine, now: int) -> History:
    from dbspark.pipeline.history import History

    return History(spine.arrangement, 0, now, spine)


def _number(given: Any, name: str, least: int) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise ConfigError(f"format dbspark: option {name!r} is {text!r}; give a whole number from {least} on")
    return number


__all__ = ["DbsparkSource", "Options", "commit_times"]
