"""The objects that a pipeline gives to users: transactions, tables, views and subscriptions."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import pyarrow as pa

from dbspark.columnar import Batch
from dbspark.columnar.user_data import prepare
from dbspark.connectors import sinks
from dbspark.errors import DbsparkError, SchemaError
from dbspark.pipeline.readings import Readings
from dbspark.pipeline.settings import check_tick
from dbspark.runtime.runtime import ReadableTable, Runtime, StateReader
from dbspark.runtime.switch_interval import SHORT_TURNS
from dbspark.runtime.tables import OperationKind
from dbspark.sql.explain import Explanation
from dbspark.sql.names import sql_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("dbspark")

Kind = Literal["table", "view"]
Phase = Literal["made", "open", "applied", "dropped"]
_PHASES: dict[Phase, str] = {
    "made": "has not been entered, so nothing of it would be applied",
    "open": "has been entered already",
    "applied": "has been applied",
    "dropped": "has ended without being applied, because its block raised or it was never entered",
}
"""The state of a transaction, in the words of error messages."""
_BEGIN_ANOTHER = "write `with pipe.transaction() as tx:`, and change tables inside the block"


def key_prefix(name: str) -> str:
    """How the keys of a view's sinks, or of a table's streams, begin; no other table or view has the same prefix."""
    return f"{sql_name(name)}."


class PipelineCore(Protocol):
    """What handles ask of their pipeline. A protocol, so that handles know no pipeline and the imports go one way."""

    _lock: threading.RLock
    _runtime: Runtime
    _state_reader: StateReader
    _subscribers: tuple[Subscription, ...]
    tick: int

    def explain(self, query: str | DataFrame) -> Explanation: ...

    def _spark(self) -> SparkSession: ...

    def _resolve(self, name: str, kind: Kind) -> str: ...

    def _time_zone(self) -> str: ...

    def _check_writable(self, what: str) -> None: ...

    def _commit(self, operations: Mapping[str, list[Any]], offset: tuple[str, Any] | None = None) -> int: ...

    def _readable(self, name: str) -> ReadableTable: ...

    def _rows(self, name: str, tick: int | None) -> pa.Table: ...

    def _df(self, name: str, tick: int) -> DataFrame: ...

    def _feed(self, view: str, key: str, deliver: Callable[[pa.Table, int], None], since: int | None) -> sinks.Feed: ...

    def _forget_feed(self, view: str, key: str) -> None: ...


class Transaction:
    """Changes of several tables that are applied together, as one tick."""

    def __init__(self, pipe: PipelineCore, phase: Phase = "made") -> None:
        self._pipe = pipe
        self._runtime = pipe._runtime
        self._phase: Phase = phase
        self._operations: dict[str, list[Any]] = {}
        self.tick: int | None = None
        """The tick of the transaction, once it is applied."""

    def __enter__(self) -> Self:
        if self._phase != "made":
            raise DbsparkError(f"the transaction {_PHASES[self._phase]}; {_BEGIN_ANOTHER}")
        self._phase = "open"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._phase = "dropped"
        if kind is None:
            self._apply()
            self._phase = "applied"

    def __del__(self) -> None:
        if getattr(self, "_phase", "") == "made":
            warnings.warn(
                f"a transaction was made and never entered, so it has done nothing; {_BEGIN_ANOTHER}",
                RuntimeWarning,
                stacklevel=2,
            )

    def insert(self, table: str, data: Any) -> None:
        """Insert rows."""
        self._add(table, "insert", data)

    def delete(self, table: str, data: Any) -> None:
        """Delete rows; each of them must be in the table."""
        self._add(table, "delete", data)

    def upsert(self, table: str, data: Any) -> None:
        """Insert rows, replacing rows with the same primary key."""
        self._add(table, "upsert", data)

    def delete_keys(self, table: str, keys: Any) -> None:
        """Delete the rows of some primary keys; keys without a row are ignored."""
        self._add(table, "delete keys", keys)

    def apply(self, table: str, data: Any, weight: str | None = None) -> None:
        """Apply a Z-set: rows with their weights in the column `weight`, or a mapping of rows to weights."""
        self._add(table, "apply", data, weight)

    def _add(self, table: str, kind: OperationKind, data: Any, weight: str | None = None) -> None:
        if self._phase != "open":
            self._refuse_change()
        if type(table) is not str or table not in self._runtime.tables:
            table = self._pipe._resolve(table, "table")
        pipe = self._pipe
        with SHORT_TURNS:
            definition = self._runtime.tables[table]
            schema = definition.schema
            if kind == "delete keys" and definition.primary_key:
                schema = schema.select([schema.index(column) for column in definition.primary_key])
            try:
                data = prepare(data, schema, pipe._time_zone, weight)
            except SchemaError as error:
                raise SchemaError(f"table {table!r}: {error}") from None
            operation = self._runtime.operation(table, kind, data, weight)
        self._operations.setdefault(table, []).append(operation)

    def _refuse_change(self) -> None:
        phase, self._phase = self._phase, "dropped" if self._phase == "made" else self._phase
        raise DbsparkError(f"the transaction {_PHASES[phase]}; {_BEGIN_ANOTHER}")

    def _apply(self, offset: tuple[str, Any] | None = None) -> None:
        self.tick = self._pipe._commit(self._operations, offset)


class _Readable(Readings):
    """The common part of tables and views: reading."""

    def __init__(self, pipe: PipelineCore, name: str, tick: int | None = None) -> None:
        self._pipe = pipe
        self.name = name
        self._tick = tick

    @property
    def tick(self) -> int:
        """The tick that it reads."""
        return self._pipe.tick if self._tick is None else self._tick

    @property
    def schema(self) -> pa.Schema:
        return self._pipe._state_reader.readable(self.name, self._pipe.tick).schema  # of a closed pipeline as well

    def to_arrow(self) -> pa.Table:
        """The rows; a row of weight 2 appears twice."""
        return self._pipe._rows(self.name, self._tick)

    def _batch(self) -> Batch:
        pipe = self._pipe
        with pipe._lock:
            return pipe._readable(self.name).at(self._tick, pipe.tick)

    def df(self) -> DataFrame:
        """The rows as a Spark DataFrame."""
        return self._pipe._df(self.name, self.tick)

    def as_of(self, tick: int) -> Self:
        """The same table or view at an earlier tick."""
        check_tick("as_of", tick)
        return type(self)(self._pipe, self.name, tick)

    def changes(self, since: int, upto: int | None = None) -> pa.Table:
        """The changes of the ticks after `since`, up to `upto`: rows with `_tick` and `_weight`."""
        check_tick("changes", since)
        pipe = self._pipe
        with pipe._lock:
            return pipe._readable(self.name).changes(since, self.tick if upto is None else upto, pipe.tick)

    def __repr__(self) -> str:
        fields = ", ".join(f"{f.name}: {f.type}" for f in self.schema)
        at = "" if self._tick is None else f", as of tick {self._tick}"
        return f"{type(self).__name__}({self.name!r}, {fields}{at})"


class Table(_Readable):
    """A table of a pipeline."""

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The columns of the primary key; empty without one."""
        return self._pipe._state_reader.tables[self.name].primary_key


class View(_Readable):
    """A view of a pipeline."""

    def explain(self) -> Explanation:
        """How the view is maintained, operator by operator."""
        return self._pipe.explain(self.name)

    def subscribe(self, function: Callable[[pa.Table, int], None]) -> Subscription:
        """Call a function with the changes (rows with `_weight`) and the tick, whenever a tick changes the view."""
        return Subscription(self._pipe, self.name, function)

    def write_stream(
        self,
        function: Callable[[DataFrame, int], None] | None = None,
        *,
        format: str | None = None,
        path: str | None = None,
        name: str | None = None,
        since: int | None = None,
        **options: Any,
    ) -> sinks.Feed:
        """Feed a sink with the changes of every tick, in order; after a restart, continue after the last delivered one.

        `function(changes, tick)` gets a DataFrame: the view's columns, `_change_type`, `_commit_version`,
        `_commit_timestamp` and `_weight`. It is called at least once: again if the process dies between its return and
        the next commit. `format` and `path` write the changes of a tick to the folder `tick=N` instead, exactly once. A
        new sink begins with the present rows of the view, as inserts, or after the tick `since`. Its position is stored
        under `name`; two sinks of a view need two names.

        The history of the view is kept for as long as a sink has not read it, whether the sink runs or not, until it is
        forgotten (`forget_stream`).
        """
        pipe, view = self._pipe, self.name
        if since is not None:
            check_tick("write_stream", since)
        deliver = sinks.make_sink(pipe._spark, function, format, path, options)
        return pipe._feed(view, f"{key_prefix(view)}{name or 'sink'}", deliver, since)

    def forget_stream(self, name: str | None = None) -> None:
        """Stop a sink and forget its position; no history is kept for it any more. What it has written stays."""
        self._pipe._forget_feed(self.name, f"{key_prefix(self.name)}{name or 'sink'}")


class Subscription:
    """A function that is called for every change of a view, until it is cancelled."""

    def __init__(self, pipe: PipelineCore, view: str, function: Callable[[pa.Table, int], None]) -> None:
        self._pipe = pipe
        self.view = view
        if not callable(function):
            raise DbsparkError(f"subscribe takes a function of (changes, tick), not {function!r:.80}")
        self._function = function
        pipe._check_writable("subscribe")
        pipe._subscribers = (*pipe._subscribers, self)

    def _deliver(self, changes: Mapping[str, Batch], tick: int) -> None:
        batch = changes.get(self.view)
        if batch is None or not batch.rows:
            return
        table = batch.to_arrow(weights="_weight")
        try:
            self._function(table, tick)
        except Exception:
            # The tick is committed; an error of one subscriber concerns neither it nor other subscribers.
            _log.exception("a subscriber of view %s failed at tick %d", self.view, tick)

    def cancel(self) -> None:
        """Stop calling."""
        self._pipe._subscribers = tuple(s for s in self._pipe._subscribers if s is not self)
