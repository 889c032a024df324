"""`Pipeline`: tables, views over them, and transactions that move all of them together.

    pipe = dbspark.Pipeline("shop", location="state/shop")
    pipe.create_table("orders", "id BIGINT, region STRING, amount DECIMAL(12, 2)", primary_key=["id"])
    pipe.create_view("revenue", "SELECT region, sum(amount) AS total FROM orders GROUP BY region")
    with pipe.transaction() as tx:
        tx.insert("orders", [(1, "north", Decimal("3.50"))])
    pipe.view("revenue").to_arrow()

A transaction is one tick of the circuit. It is computed beside what is there, made durable, and only then shown, so
whatever fails leaves everything as it was. The state of a pipeline is spines by name: those of the circuit's nodes, and
the histories of tables and views. A new view is filled from the tables' histories; nodes that other views have already
keep their state, and are not computed again for anybody else.
"""

from __future__ import annotations

import base64
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from dbspark.batch import Arrangement, Batch
from dbspark.batch.schema import Schema, SchemaLike
from dbspark.circuit.executor import Circuit
from dbspark.circuit.graph import Graph
from dbspark.connectors import register, sinks, streams
from dbspark.errors import ConfigError, DbsparkError, SchemaError
from dbspark.operators.delta import Delta
from dbspark.pipeline.changes import Kind, Operation, TableState
from dbspark.pipeline.history import History, plain_rows
from dbspark.pipeline.state import restore, state_of
from dbspark.pipeline.statements import execute
from dbspark.pipeline.store import Store
from dbspark.sql.program import Maintenance, Program

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from dbspark.spark import SessionHandle

_log = logging.getLogger("dbspark")

DEFAULTS = {"history": 1000}
"""Settings: `history` is how many ticks back tables and views can be read."""


class Pipeline:
    """See the module's preface. `location=None` keeps everything in memory."""

    def __init__(
        self,
        name: str,
        *,
        location: str | None = None,
        spark: SparkSession | None = None,
        shards: int | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.location = location
        self.config = {**DEFAULTS, **_checked(config or {})}
        if shards is not None:
            raise ConfigError("shards: only shards=None, the embedded runtime, is there yet")
        self._given = spark
        self._session: SessionHandle | None = None
        self._program = Program(self._spark)
        self._tables: dict[str, TableState] = {}
        self._views: dict[str, History] = {}
        self._definitions: dict[str, dict[str, Any]] = {}
        self._circuit = Circuit(Graph())
        self._lock = threading.RLock()
        self._subscribers: list[Subscription] = []
        self._feeds: dict[str, sinks.Feed] = {}
        self._streams = streams.Streams(None if location is None else f"{location}/streams")
        self._offsets: dict[str, Any] = {}
        self._positions: dict[str, Any] = {}
        """How far sinks are; replaced, never changed, so that a commit has them as of one moment."""
        self._stored_positions = self._positions
        self._closed = False
        self.tick = 0
        """Transactions that have been committed."""
        self.last_progress: dict[str, Any] | None = None
        """What the last transaction did, and how long it took."""
        self._totals = {"transactions": 0, "rows": 0, "seconds": 0.0}
        self._store = None if location is None else Store.open(location)
        if self._store is not None:
            try:
                self._recover(self._store)
            except BaseException:
                self._store.close()
                raise

    # ------------------------------------------------------------------ definitions

    def create_table(self, name: str, schema: SchemaLike, primary_key: Sequence[str] = ()) -> Table:
        """A table that transactions change. `schema` is DDL or a StructType."""
        with self._lock:
            self._check_open()
            _check_name(name)
            given = Schema.of(schema)
            key = (primary_key,) if isinstance(primary_key, str) else tuple(primary_key)
            for column in key:
                given.index(column)
            self._program.table(name, given)
            self._add_table(name, given, key, None)
            try:
                self._circuit = self._rebuilt(self._states())
                self._commit_definitions()
            except BaseException:
                del self._tables[name]
                self._program.drop(name)
                raise
            return Table(self, name)

    def create_view(
        self,
        name: str,
        query: str | DataFrame,
        *,
        maintenance: Maintenance = "auto",
        recursive: SchemaLike | None = None,
    ) -> View:
        """A view by SQL or by a DataFrame; filled with what its query gives now before this returns."""
        with self._lock:
            self._check_open()
            _check_name(name)
            begun = time.perf_counter()
            self._program.view(name, query, maintenance=maintenance, recursive=recursive)
            try:
                self._definitions[name] = self._definition(query, maintenance, recursive)
                self._fill([name])
                self._commit_definitions()
            except BaseException:
                self._program.drop(name)
                self._views.pop(name, None)
                self._definitions.pop(name, None)
                raise
            _log.info("view %s: %.0f ms", name, 1e3 * (time.perf_counter() - begun))
            return View(self, name)

    def drop_view(self, name: str) -> None:
        """Forget a view and whatever only it needs."""
        with self._lock:
            self._check_open()
            if name not in self._views:
                raise DbsparkError(f"no view {name!r}; the views are {', '.join(self._views) or 'none'}")
            self._program.drop(name)
            del self._views[name], self._definitions[name]
            self._circuit = self._rebuilt(self._states())
            self._commit_definitions()

    def drop_table(self, name: str) -> None:
        """Forget a table; views that read it have to go first."""
        with self._lock:
            self._check_open()
            if name not in self._tables:
                raise DbsparkError(f"no table {name!r}; the tables are {', '.join(self._tables) or 'none'}")
            self._program.drop(name)
            del self._tables[name]
            self._circuit = self._rebuilt(self._states())
            self._commit_definitions()

    def table(self, name: str) -> Table:
        """A table that is there."""
        if name not in self._tables:
            raise DbsparkError(f"no table {name!r}; the tables are {', '.join(self._tables) or 'none'}")
        return Table(self, name)

    def view(self, name: str) -> View:
        """A view that is there."""
        if name not in self._views:
            raise DbsparkError(f"no view {name!r}; the views are {', '.join(self._views) or 'none'}")
        return View(self, name)

    @property
    def tables(self) -> list[str]:
        return list(self._tables)

    @property
    def views(self) -> list[str]:
        return list(self._views)

    def frame(self, name: str) -> DataFrame:
        """A DataFrame that stands for a table or view in definitions of views; it has no rows of its own."""
        return self._program.frame(name)

    def explain(self, query: str | DataFrame) -> str:
        """How a view, or a query that is not a view yet, is or would be kept, part by part."""
        return self._program.explain(query)

    # ------------------------------------------------------------------ transactions

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Changes that are applied together when the block ends, or not at all if it raises."""
        self._check_open()
        tx = Transaction(self)
        yield tx
        tx._apply()

    def _commit(self, operations: Mapping[str, list[Operation]], offset: tuple[str, Any] | None = None) -> int:
        with self._lock:
            self._check_open()
            begun = time.perf_counter()
            changes = {name: self._tables[name].change(ops) for name, ops in operations.items()}
            checked = time.perf_counter()
            before = self._circuit.snapshot()
            try:
                out = self._circuit.step({name: Delta.of(c) for name, c in changes.items() if c.rows})
                view_changes = {name: out[name].arranged(history.arrangement) for name, history in self._views.items()}
            except BaseException:
                self._circuit.reset(before)
                raise
            computed = time.perf_counter()
            tick = self.tick + 1
            offsets = self._offsets if offset is None else {**self._offsets, offset[0]: offset[1]}
            # In memory first, which cannot fail; a store that fails refuses to go on, and says so.
            for name, change in (*changes.items(), *view_changes.items()):
                if change.rows:
                    self._history(name).append(change, tick)
            self.tick, self._offsets = tick, offsets
            if self._store is not None:
                self._store.commit(tick, self._states(), self._described(), offsets, self._positions)
                self._stored_positions = self._positions
            done = time.perf_counter()
            rows = sum(c.rows for c in changes.values())
            self._note_progress(rows, view_changes, (begun, checked, computed, done))
            for subscription in list(self._subscribers):
                subscription._deliver(view_changes, tick)
            for feed in self._feeds.values():
                feed.committed(tick)
            return tick

    def ingest(
        self,
        table: str,
        stream: DataFrame,
        mode: streams.Mode = "append",
        *,
        trigger: Mapping[str, Any] | str | None = None,
        name: str | None = None,
        checkpoint: str | None = None,
    ) -> StreamingQuery:
        """Apply every micro-batch of a stream as one transaction, exactly once across restarts.

        `mode`: "append" inserts the rows; "upsert" replaces those of the same primary key, the last of a micro-batch
        in the order in which Spark gives its rows; "changes" takes rows with `_change_type` (insert, delete,
        update_preimage, update_postimage) or an integer `_weight`. `trigger` is what Spark's `trigger()` takes, such as
        {"availableNow": True}. The checkpoint is kept at the pipeline's location under `name`, or that of the table.
        """
        self._check_open()
        self.table(table)

        def apply(kind: streams.Kind, rows: pa.Table, weight: str | None, offset: tuple[str, int] | None) -> None:
            tx = Transaction(self)
            tx._add(table, kind, rows, weight)
            if offset is not None:
                tx._apply(offset)

        return self._streams.start(
            stream, table, mode, apply, lambda key: self._offsets.get(key),
            trigger=trigger, name=name, checkpoint=checkpoint,
        )  # fmt: skip

    def _note_progress(self, rows: int, views: Mapping[str, Batch], at: tuple[float, float, float, float]) -> None:
        begun, checked, computed, done = at
        self._totals["transactions"] += 1
        self._totals["rows"] += rows
        self._totals["seconds"] += done - begun
        self.last_progress = {
            "name": self.name,
            "tick": self.tick,
            "numInputRows": rows,
            "numOutputRows": {name: batch.rows for name, batch in views.items()},
            "durationMs": {
                "check": round(1e3 * (checked - begun), 3),
                "compute": round(1e3 * (computed - checked), 3),
                "commit": round(1e3 * (done - computed), 3),
                "transaction": round(1e3 * (done - begun), 3),
            },
        }

    def metrics(self) -> dict[str, Any]:
        """Figures since the pipeline was opened, and the size of what it keeps."""
        rows = {name: t.history.spine.rows for name, t in self._tables.items()}
        rows |= {name: h.spine.rows for name, h in self._views.items()}
        return {**self._totals, "tick": self.tick, "rows_by_name": rows, "state_rows": self._circuit.state_rows()}

    # ------------------------------------------------------------------ reading

    def query(self, sql: str) -> DataFrame:
        """A Spark query over tables and views as they are now."""
        spark = self._spark()
        named = {n for n in (*self._tables, *self._views) if re.search(rf"\b{re.escape(n)}\b", sql, re.IGNORECASE)}
        with self._program.names_for({n: spark.createDataFrame(self._rows(n, None)) for n in named}):
            return spark.sql(sql)

    def sql(self, script: str) -> None:
        """Run CREATE TABLE, CREATE VIEW, DROP, INSERT and DELETE statements, each a transaction of its own."""
        execute(self, script)

    def _history(self, name: str) -> History:
        return self._tables[name].history if name in self._tables else self._views[name]

    def _rows(self, name: str, tick: int | None) -> pa.Table:
        with self._lock:
            batch = self._history(name).at(tick, self.tick)
        return plain_rows(batch)

    # ------------------------------------------------------------------ life

    def close(self) -> None:
        """Let go of the location, and of the Spark session if the pipeline started it."""
        if self._closed:
            return
        self._streams.close()
        for feed in list(self._feeds.values()):
            feed.stop()
        self._closed = True
        try:
            with self._lock:
                if self._positions is not self._stored_positions:
                    self._commit_definitions()
        finally:
            if self._store is not None:
                self._store.close()
            if self._session is not None:
                self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "in memory" if self.location is None else self.location
        return (
            f"Pipeline({self.name!r}, {where}: {len(self._tables)} tables, {len(self._views)} views, tick {self.tick})"
        )

    # ------------------------------------------------------------------ inside

    def _spark(self) -> SparkSession:
        if self._given is None and self._session is None:
            from dbspark.spark import get_session

            self._session = get_session(app_name=f"dbspark {self.name}")
        spark = self._given if self._session is None else self._session.spark
        assert spark is not None
        register(spark)
        return spark

    def _check_open(self) -> None:
        if self._closed:
            raise DbsparkError(f"pipeline {self.name!r} is closed; open it again")

    def _add_table(self, name: str, schema: Schema, key: tuple[str, ...], spine: Any) -> None:
        arrangement = TableState.arrangement_of(schema, key)
        history = History(arrangement, int(self.config["history"]), self.tick, spine)
        self._tables[name] = TableState(name, schema, key, history)

    def _states(self) -> dict[str, Any]:
        """Everything that is kept, by name."""
        states: dict[str, Any] = dict(state_of(self._circuit))
        states |= {f"table {n}": (t.history.spine,) for n, t in self._tables.items()}
        states |= {f"view {n}": (h.spine,) for n, h in self._views.items()}
        return states

    def _rebuilt(self, states: Mapping[str, Any]) -> Circuit:
        """The circuit of the present program, with the state that there is for its nodes."""
        circuit = self._program.circuit()
        missing = restore(circuit, states, self.tick)
        if missing:
            fresh = self._computed(list(self._program.views))
            restore_missing = {**states, **{n: s for n, s in state_of(fresh).items() if n in set(missing)}}
            circuit = self._program.circuit()
            restore(circuit, restore_missing, self.tick)
        return circuit

    def _computed(self, views: Sequence[str]) -> Circuit:
        """A circuit of some views, fed with everything that the tables hold."""
        graph = self._program.builder.graph
        part = Graph()
        part.nodes = graph.nodes
        part.outputs = {name: graph.outputs[name] for name in views}
        circuit = Circuit(part)
        now = {n: Delta.of(t.history.trace.scan()) for n, t in self._tables.items()}
        self._filled = circuit.step({n: d for n, d in now.items() if d.rows})
        return circuit

    def _fill(self, names: Sequence[str]) -> None:
        """Compute new views from the tables; nodes that are known already keep their state."""
        fresh = self._computed(names)
        states = {**state_of(fresh), **self._states()}
        circuit = self._program.circuit()
        restore(circuit, states, self.tick)
        for name in names:
            schema = self._program.views[name].schema
            # The rows belong to the tick that is past: a view has no history before it was made.
            history = History(Arrangement(schema), int(self.config["history"]), self.tick - 1, known=False)
            history.append(self._filled[name].arranged(history.arrangement), self.tick)
            self._views[name] = history
        self._circuit = circuit

    def _definition(self, query: str | DataFrame, maintenance: str, recursive: Any) -> dict[str, Any]:
        if not isinstance(query, str):
            if self._store is not None:
                raise ConfigError(
                    "a view by a DataFrame cannot be found again when the location is reopened; give the query as SQL"
                )
            return {"query": None}
        declared = None if recursive is None else _schema_text(Schema.of(recursive))
        return {"query": query, "maintenance": maintenance, "recursive": declared}

    def _described(self) -> dict[str, Any]:
        """The program, as it is kept beside the state."""
        tables = [
            {"name": n, "schema": _schema_text(t.schema), "key": list(t.primary_key)} for n, t in self._tables.items()
        ]
        views = [{"name": n, **given} for n, given in self._definitions.items()]
        return {"name": self.name, "tables": tables, "views": views}

    def _feed(self, view: str, key: str, deliver: Callable[[pa.Table, int], None], since: int | None) -> sinks.Feed:
        """A sink of a view that goes on from where it was, or begins."""
        with self._lock:
            self._check_open()
            running = self._feeds.get(key)
            if running is not None and running.isActive:
                raise ConfigError(f"the sink {key!r} runs already; stop it, or give this one another name=…")
            if key not in self._positions:
                begin = {"tick": self.tick, "snapshot": True} if since is None else {"tick": since}
                self._positions = {**self._positions, key: begin}
                self._commit_definitions()

            def save(position: sinks.Position) -> None:
                with self._lock:
                    self._positions = {**self._positions, key: position}

            origin = sinks.Origin(
                lambda since, upto: self.view(view).changes(since, upto),
                lambda tick: self.view(view).as_of(tick).to_arrow(),
                self._commit_times,
                save,
            )
            self._feeds[key] = sinks.Feed(key, origin, deliver, self._positions[key], self.tick)
            return self._feeds[key]

    def _commit_times(self) -> dict[int, float]:
        if self._store is None:
            return {}
        from dbspark.connectors.source import commit_times

        return commit_times(self._store)

    def _commit_definitions(self) -> None:
        if self._store is not None:
            self._store.commit(self.tick, self._states(), self._described(), self._offsets, self._positions)
            self._stored_positions = self._positions

    def _recover(self, store: Store) -> None:
        found = store.load()
        if not found.program:
            return
        self.tick = found.tick
        self._offsets = dict(found.offsets)
        self._positions = self._stored_positions = dict(found.positions)
        for given in found.program["tables"]:
            name = given["name"]
            schema = _schema_of(given["schema"])
            self._program.table(name, schema)
            spine = found.states[f"table {name}"][0]
            self._add_table(name, schema, tuple(given["key"]), spine)
        for given in found.program["views"]:
            name = given["name"]
            declared = None if given["recursive"] is None else _schema_of(given["recursive"])
            self._program.view(name, given["query"], maintenance=given["maintenance"], recursive=declared)
            self._definitions[name] = {k: v for k, v in given.items() if k != "name"}
            spine = found.states[f"view {name}"][0]
            self._views[name] = History(
                Arrangement(self._program.views[name].schema), int(self.config["history"]), self.tick, spine
            )
        self._circuit = self._rebuilt(found.states)


class Transaction:
    """Changes of several tables that become one tick."""

    def __init__(self, pipe: Pipeline) -> None:
        self._pipe = pipe
        self._operations: dict[str, list[Operation]] = {}
        self.tick: int | None = None
        """The tick that it became, once it is applied."""

    def insert(self, table: str, data: Any) -> None:
        """Rows that come in."""
        self._add(table, "insert", data)

    def delete(self, table: str, data: Any) -> None:
        """Rows that go; each has to be there."""
        self._add(table, "delete", data)

    def upsert(self, table: str, data: Any) -> None:
        """Rows that come in and replace those of the same primary key."""
        self._add(table, "upsert", data)

    def delete_keys(self, table: str, keys: Any) -> None:
        """The rows of some primary keys go; keys that are not there are passed over."""
        self._add(table, "delete keys", keys)

    def apply(self, table: str, data: Any, weight: str | None = None) -> None:
        """A Z-set: rows with weights, in a column of that name, or as a mapping of rows to weights."""
        self._add(table, "apply", data, weight)

    def _add(self, table: str, kind: Kind, data: Any, weight: str | None = None) -> None:
        if self.tick is not None:
            raise DbsparkError("the transaction has been applied; begin another one")
        state = self._pipe.table(table).state
        self._operations.setdefault(table, []).append(state.operation(kind, data, weight))

    def _apply(self, offset: tuple[str, Any] | None = None) -> None:
        self.tick = self._pipe._commit(self._operations, offset)


class _Readable:
    """What tables and views have in common."""

    def __init__(self, pipe: Pipeline, name: str, tick: int | None = None) -> None:
        self._pipe = pipe
        self.name = name
        self._tick = tick

    @property
    def tick(self) -> int:
        """The tick that it shows."""
        return self._pipe.tick if self._tick is None else self._tick

    @property
    def schema(self) -> pa.Schema:
        return self._pipe._history(self.name).arrangement.schema.arrow

    def to_arrow(self) -> pa.Table:
        """The rows; a row of weight 2 appears twice."""
        return self._pipe._rows(self.name, self._tick)

    def df(self) -> DataFrame:
        """The rows as a Spark DataFrame."""
        return self._pipe._spark().createDataFrame(self.to_arrow())

    def as_of(self, tick: int) -> Self:
        """The same at an earlier tick."""
        return type(self)(self._pipe, self.name, tick)

    def changes(self, since: int, upto: int | None = None) -> pa.Table:
        """What the ticks after `since` changed: rows with `_tick` and `_weight`."""
        pipe = self._pipe
        with pipe._lock:
            return pipe._history(self.name).changes(since, self.tick if upto is None else upto, pipe.tick)

    def __repr__(self) -> str:
        fields = ", ".join(f"{f.name}: {f.type}" for f in self.schema)
        return f"{type(self).__name__}({self.name!r}, {fields})"


class Table(_Readable):
    """A table of a pipeline."""

    @property
    def state(self) -> TableState:
        return self._pipe._tables[self.name]


class View(_Readable):
    """A view of a pipeline."""

    def explain(self) -> str:
        """How it is kept, part by part."""
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
        """Feed a sink with the changes of every tick, in order, and go on after the last one when reopened.

        `function(changes, tick)` gets a DataFrame: the view's columns, `_change_type`, `_commit_version`,
        `_commit_timestamp` and `_weight`. It is called at least once: again if the process dies between its return and
        the next commit. `format` and `path` write the changes of a tick to the folder `tick=N` instead, exactly once.
        A new sink begins with what the view holds now, as inserts, or after the tick `since`. Its position is kept
        under `name`; two sinks of a view need two names.
        """
        pipe, view = self._pipe, self.name
        deliver = sinks.sink_of(pipe._spark, function, format, path, options)
        return pipe._feed(view, f"{view}.{name or 'sink'}", deliver, since)


class Subscription:
    """A function that is called for every change of a view, until it is cancelled."""

    def __init__(self, pipe: Pipeline, view: str, function: Callable[[pa.Table, int], None]) -> None:
        self._pipe = pipe
        self._view = view
        self._function = function
        pipe._subscribers.append(self)

    def _deliver(self, changes: Mapping[str, Batch], tick: int) -> None:
        batch = changes.get(self._view)
        if batch is None or not batch.rows:
            return
        table = batch.to_arrow().append_column("_weight", pa.array(batch.weights(), pa.int64()))
        try:
            self._function(table, tick)
        except Exception:
            # The tick has happened; one listener's trouble is not that of the others.
            _log.exception("a subscriber of view %s failed at tick %d", self._view, tick)

    def cancel(self) -> None:
        """Stop calling."""
        if self in self._pipe._subscribers:
            self._pipe._subscribers.remove(self)


def _checked(config: Mapping[str, Any]) -> Mapping[str, Any]:
    unknown = sorted(set(config) - set(DEFAULTS))
    if unknown:
        raise ConfigError(f"no setting {', '.join(unknown)}; there are {', '.join(DEFAULTS)}")
    if int(config.get("history", 0)) < 0:
        raise ConfigError(f"history: {config['history']} is not a number of ticks; give 0 or more")
    return config


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise SchemaError(f"{name!r} is not a name; use letters, digits and underscores, and begin with a letter")


def _schema_text(schema: Schema) -> str:
    return base64.b64encode(schema.arrow.serialize().to_pybytes()).decode()


def _schema_of(text: str) -> Schema:
    return Schema(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))))
