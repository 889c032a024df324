"""The data source `dbspark`: views and tables of a pipeline in any Spark job, from the files at its location.

    spark.read.format("dbspark").option("location", L).option("view", V).load()
    spark.readStream.format("dbspark").option("location", L).option("view", V).load()

Options: `location`; `view` or `table`, a name; `asOf`, a tick to read instead of the last one; `changes`, for the
change feed (`dbspark.connectors.feed`) instead of the rows; `since`, the tick after which the feed begins (without it,
it begins with what there is, as inserts); `maxTicksPerTrigger`, how much of the feed is one micro-batch; `partitions`;
`monthsAsInt`, to read year-month intervals, which PySpark's data sources do not have, as INT.

A stream is always the change feed. Spark asks a source for its columns before it says whether it reads it as a stream,
so `spark.readStream.format("dbspark")` has to set the option `changes` itself: `register_when_read` wraps `format` of
Spark's readers for that. A program that does neither `register` nor open a pipeline sets the option by hand.

The driver chooses the tick, and every task reads its range of key hashes. The rows come from a `SourceTable`;
`dbspark.connectors.stored_tables` implements it over the files of a location.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql import DataFrameReader
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.streaming.readwriter import DataStreamReader

from dbspark.columnar.frames import as_pyspark_has_it, in_months, struct_of
from dbspark.connectors.feed import feed_schema, to_feed, to_inserts
from dbspark.errors import ConfigError, TimeError
from dbspark.sql.names import nearest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

ROWS_PER_PARTITION = 500_000
"""Rows of a partition, unless the option `partitions` asks for another number of partitions."""
MAX_PARTITIONS = 64
"""Partitions, unless the option `partitions` asks for another number."""
OPTIONS = ("location", "view", "table", "asOf", "changes", "since", "maxTicksPerTrigger", "partitions", "monthsAsInt")
"""What a read can be told; names ignore case."""
OPTIONS_OF_SPARK = ("path",)
"""What Spark itself adds: the argument of `load`, which stands for `location`."""
BEFORE_FIRST_TICK = -1
"""The tick before the first one: a feed from here begins with the rows of the view as inserts."""

_REGISTERED: weakref.WeakSet[SparkSession] = weakref.WeakSet()
CommitTimes = Mapping[int, float]
"""By tick, the time of its commit in seconds, as far as it is stored."""


@dataclass(frozen=True, slots=True)
class HashRange:
    """A range of key hashes: number `number` of `of` equal ranges."""

    number: int = 0
    of: int = 1


@dataclass(frozen=True, slots=True)
class SourceTable(ABC):
    """A view or table at a location; pickled with the reader, so it is opened anew on the driver and in every task."""

    location: str
    kind: str
    """`view` or `table`."""
    name: str

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Its columns."""

    @abstractmethod
    def extent(self) -> tuple[int, int]:
        """The last tick, and an upper bound of the rows to read."""

    @abstractmethod
    def rows(self, tick: int, part: HashRange) -> tuple[pa.Table, CommitTimes]:
        """The rows at a tick."""

    @abstractmethod
    def changes(self, since: int, upto: int, part: HashRange) -> tuple[pa.Table, CommitTimes]:
        """The changes of the ticks in (since, upto], with `_tick` and `_weight`."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read; pickled with the reader."""

    table: SourceTable
    as_of: int | None
    changes: bool
    since: int
    most_ticks: int | None
    partitions: int | None
    months_as_int: bool

    @staticmethod
    def of(given: Any, origin: type[SourceTable]) -> ReadOptions:
        known = [*OPTIONS, *OPTIONS_OF_SPARK]
        unknown = [n for n in given if n.lower() not in {k.lower() for k in known}]  # Spark has them in lower case
        if unknown:
            hint = nearest(unknown[0].replace("_", ""), OPTIONS)
            raise ConfigError(f"format dbspark: no option {unknown[0]!r}{hint}; there are {', '.join(OPTIONS)}")
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
        return ReadOptions(
            origin(location, kinds[0], str(given[kinds[0]])), _number(given, "asOf", 0), changes == "true",
            BEFORE_FIRST_TICK if since is None else since, most, _number(given, "partitions", 1),
            str(given.get("monthsAsInt", "false")).lower() == "true",
        )  # fmt: skip

    def schema(self) -> StructType:
        """The columns, as Spark types.

        PySpark's data sources cannot return year-month intervals, and return day-time intervals and times only in the
        widest form of their type, so the columns are declared in that form.
        """
        schema = self.table.schema()
        found = struct_of(feed_schema(schema) if self.changes else schema)
        plain: StructType = in_months(found)
        if plain != found and not self.months_as_int:
            wrong = [f.name for f, p in zip(found.fields, plain.fields, strict=True) if f != p]
            raise ConfigError(
                f"format dbspark: column(s) {', '.join(wrong)} hold year-month intervals, which PySpark's data sources "
                "cannot give; set the option 'monthsAsInt' to 'true' to read them as numbers of months, or read with "
                "df() of the view"
            )
        wide: StructType = in_months(found, wide=True)
        return wide

    def plan_partitions(self, since: int, upto: int | None) -> list[ReadPartition]:
        """Partitions that together have the rows at a tick, or the changes after `since`."""
        now, rows = self.table.extent()
        tick = now if upto is None else upto
        if tick > now:
            raise TimeError(f"tick {tick} has not happened yet at {self.table.location}; the last one is {now}")
        number = self.partitions or min(MAX_PARTITIONS, 1 + rows // ROWS_PER_PARTITION)
        return [ReadPartition(since, tick, HashRange(i, number)) for i in range(number)]

    def read(self, part: ReadPartition) -> Iterator[pa.RecordBatch]:
        """The rows or the changes of one partition."""
        if self.changes and part.since != BEFORE_FIRST_TICK:
            table = to_feed(*self.table.changes(part.since, max(part.tick, part.since), part.range))
        else:
            table, times = self.table.rows(part.tick, part.range)
            if self.changes:
                table = to_inserts(table, part.tick, times)
        table = as_pyspark_has_it(table, in_months(struct_of(table.schema)))
        yield from table.to_batches(max_chunksize=1 << 16)


class ReadPartition(InputPartition):
    """The partition that one task reads."""

    def __init__(self, since: int, tick: int, range: HashRange) -> None:
        super().__init__((since, tick, range.number, range.of))
        self.since, self.tick, self.range = since, tick, range


class DbsparkSource(DataSource):
    """The data source; a subclass says which `SourceTable` it reads."""

    origin: ClassVar[type[SourceTable]]

    @classmethod
    def name(cls) -> str:
        return "dbspark"

    def schema(self) -> StructType:
        return self._options().schema()

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(self._options())

    def streamReader(self, schema: StructType) -> FeedReader:
        options = self._options()
        if not options.changes:
            raise ConfigError(
                "format dbspark: a stream is the change feed; leave the option 'changes' at 'true', so that Spark "
                "knows its columns"
            )
        if options.as_of is not None:
            raise ConfigError("format dbspark: 'asOf' is for spark.read; a stream begins after 'since' and goes on")
        return FeedReader(options)

    def _options(self) -> ReadOptions:
        return ReadOptions.of(self.options, self.origin)


class BatchReader(DataSourceReader):
    """Reads the rows at a tick, or the changes up to it."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        return self.options.plan_partitions(self.options.since, self.options.as_of)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, ReadPartition)
        return self.options.read(partition)


class FeedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the change feed as a stream; its offset is the last tick that has been read."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._until: int | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"tick": self.options.since}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        latest = self.options.table.extent()[0] if self._until is None else self._until
        after, most = start["tick"], self.options.most_ticks
        if most is not None and after != BEFORE_FIRST_TICK:
            latest = min(latest, after + most)
        return {"tick": max(latest, after)}

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self.options.table.extent()[0]

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self.options.plan_partitions(start["tick"], end["tick"])

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, ReadPartition)
        return self.options.read(partition)


def register(spark: SparkSession, source: type[DbsparkSource]) -> None:
    """Make the data source known to a session. Doing it again does nothing."""
    if spark not in _REGISTERED:
        spark.dataSource.register(source)
        _REGISTERED.add(spark)
    register_when_read(source)


def register_when_read(made: type[DbsparkSource]) -> None:
    """Make the data source known to each session when it is first asked for a reader of it.

    To register a source Spark starts a Python process that looks for sources in all packages. That takes more than a
    second, and few programs read their location through Spark.
    """
    if DataFrameReader.format is not _FORMAT:
        return

    def format_of_rows(self: DataFrameReader, source: str) -> DataFrameReader:
        if source.lower() == DbsparkSource.name():
            register(self._spark, made)
        return _FORMAT(self, source)

    def format_of_changes(self: DataStreamReader, source: str) -> DataStreamReader:
        if source.lower() != DbsparkSource.name():
            return _STREAM_FORMAT(self, source)
        register(self._spark, made)
        return _STREAM_FORMAT(self, source).option("changes", "true")

    format_of_rows.__doc__, format_of_changes.__doc__ = _FORMAT.__doc__, _STREAM_FORMAT.__doc__
    DataFrameReader.format = format_of_rows  # type: ignore[method-assign]
    DataStreamReader.format = format_of_changes  # type: ignore[method-assign]


_FORMAT = DataFrameReader.format
_STREAM_FORMAT = DataStreamReader.format


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


__all__ = [
    "CommitTimes",
    "DbsparkSource",
    "HashRange",
    "ReadOptions",
    "ReadPartition",
    "SourceTable",
    "register",
    "register_when_read",
]
