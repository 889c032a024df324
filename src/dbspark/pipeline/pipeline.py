"""`Pipeline`: tables, views over them, and transactions that move all of them together.

    pipe = dbspark.Pipeline("shop", location="state/shop")
    pipe.create_table("orders", "id BIGINT, region STRING, amount DECIMAL(12, 2)", primary_key=["id"])
    pipe.create_view("revenue", "SELECT region, sum(amount) AS total FROM orders GROUP BY region")
    with pipe.transaction() as tx:
        tx.insert("orders", [(1, "north", Decimal("3.50"))])
    pipe.view("revenue").to_arrow()

A transaction is one tick of the circuit. Invariants:

1. A tick is computed, then committed to the store, then visible: whatever fails before the commit leaves everything as
   it was, and nothing after the commit can fail the transaction.
2. The state of a pipeline is spines by name: those of the circuit's nodes, and the histories of tables and views.
   Offsets of streams and positions of sinks are committed in the same manifest.
3. All reads and changes hold one lock; threads of streams and sinks are stopped without it, because they need it to
   end.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import pyarrow as pa

from dbspark.columnar.frames import frame_of, in_months, relabelled, struct_of
from dbspark.columnar.memory import reserve
from dbspark.columnar.schema import Schema, SchemaLike
from dbspark.connectors import sinks, streams
from dbspark.errors import ConfigError, DbsparkError, EvaluationError, OpenAnswerWarning, StoreError
from dbspark.kernels import preload
from dbspark.pipeline.display import counted, pipeline_html
from dbspark.pipeline.handles import Subscription, Table, Transaction, View, key_prefix
from dbspark.pipeline.monitoring import Monitored
from dbspark.pipeline.named_parts import NamedParts
from dbspark.pipeline.settings import (
    check_shards,
    check_text,
    known_options,
    parse_bytes,
    validated_maintenance,
    validated_settings,
)
from dbspark.pipeline.sink_keeper import SinkKeeper
from dbspark.pipeline.statements import execute
from dbspark.reporting import activity, level_of_caller
from dbspark.runtime.catalog import decode_schema, decode_tables, encode_schema
from dbspark.runtime.embedded import Embedded
from dbspark.runtime.exchange_choice import Exchange, check_exchange, resident_transport, slots_for
from dbspark.runtime.progress import ProgressMonitor, TickTimer
from dbspark.runtime.reader import ReadOnlyRuntime
from dbspark.runtime.runtime import ReadableTable, Runtime, StateReader
from dbspark.runtime.sharded import Sharded
from dbspark.runtime.switch_interval import SHORT_TURNS
from dbspark.runtime.tables import TableDefinition
from dbspark.runtime.transport import Transport
from dbspark.sql.analysis_session import query_over_frames
from dbspark.sql.explain import Explanation
from dbspark.sql.names import check_columns, check_name, find_name, occurs_in
from dbspark.sql.program import Maintenance, Program
from dbspark.storage.files import LocalFiles
from dbspark.storage.store import Committed, Store
from dbspark.trace.history import plain_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from dbspark.spark import SessionHandle

_log = logging.getLogger("dbspark")


class Pipeline(NamedParts, Monitored, SinkKeeper):
    """Tables, views over them, and transactions. `location=None` keeps all state in memory."""

    @known_options
    def __init__(
        self,
        name: str,
        *,
        location: str | None = None,
        spark: SparkSession | None = None,
        shards: int | None = None,
        exchange: Exchange | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """`shards`: None for this process, or the number of shards on Spark. `exchange`: what carries ticks to shards:
        "resident" (long-running workers) or "shuffle" (a Spark job for each tick)."""
        check_text("the name of a pipeline", name)
        check_shards(shards)
        if location is not None:
            location = os.fspath(location) if isinstance(location, os.PathLike) else location
            check_text("the location of a pipeline", location)
        preload.begin()
        self.name = name
        self.location = location
        self.config = validated_settings(config or {})
        reserve(parse_bytes(self.config["reserve"]))
        self.shards = shards
        self._given_session = spark
        self._session: SessionHandle | None = None
        self._program = Program(self._spark)
        self._definitions: dict[str, dict[str, Any]] = {}
        """By view, its definition as JSON, as it is stored beside the state."""
        self._lock = threading.RLock()
        self._subscribers: tuple[Subscription, ...] = ()
        self._feeds: dict[str, sinks.Feed] = {}
        self._streams = streams.Streams(None if location is None else f"{location}/streams")
        self._offsets: dict[str, Any] = {}
        self._positions: dict[str, Any] = {}
        """Committed position of each sink. Copy-on-write: a commit sees one consistent version."""
        self._stored_positions = self._positions
        self._closed = False
        self.tick = 0
        """The number of committed transactions."""
        self.id = str(uuid.uuid4())
        """Identifies the location; `run_id` identifies this opening of it."""
        self.read_only = bool(self.config["read_only"])
        self._monitor = ProgressMonitor(lambda: (self.id, self.name), self._label)
        if self.read_only and location is None:
            raise ConfigError("read_only: a pipeline in memory has no readers; give a location")
        check_exchange(exchange, shards)
        self._exchange = exchange
        slots = None if shards is None or self.read_only else slots_for(exchange, shards, self._spark, name)
        in_memory = shards is None or slots is not None
        self._temporary = None if in_memory or location is not None else tempfile.TemporaryDirectory("dbspark")
        place = location if self._temporary is None else self._temporary.name
        files = None if self._temporary is None else LocalFiles(self._temporary.name, durable=False)
        self._store: Store | None = None
        transport: Transport | None = None
        try:
            if place is not None:
                self._store = Store.open(place, write=not self.read_only, files=files)
            if shards is not None and slots is not None:
                opener = None if self._store is None else self._store.files.opener()
                transport = resident_transport(self._spark(), shards, opener, name, slots)
            self._state_reader: StateReader = self._open_runtime(shards, transport)
            self._runtime = cast(Runtime, self._state_reader)
            """The same for whoever has checked that the pipeline writes."""
            if not self.read_only:
                self._correct()
        except BaseException:
            if transport is not None:
                transport.close()
            elif slots is not None:
                slots.release()
            self._close_session()
            if self._store is not None:
                self._store.close()
            raise
        self._runtime = cast(Runtime, self._state_reader)
        """`_state_reader`, for code that has checked that the pipeline is writable."""

    def _open_runtime(self, shards: int | None, transport: Transport | None) -> StateReader:
        """Open the runtime (embedded, sharded or read-only) on the state that the store holds."""
        store, keep = self._store, int(self.config["history"])
        runtime: Runtime
        if shards is None:
            runtime = Embedded(self._program, keep)
        else:
            runtime = Sharded(self._program, shards, store, keep, transport)
        if store is None:
            return runtime
        committed = store.records()
        if self.read_only:
            return self._open_reader(store, committed)
        if committed.program:
            self._adopt_identity(committed)
            self._offsets = dict(committed.offsets)
            self._positions = self._stored_positions = dict(committed.positions)
            tables = decode_tables(committed)
            for table in tables:
                self._program.table(table.name, table.schema, table.primary_key)
            views = committed.program["views"]
            with activity(f"opening {self.name}", total=len(views), unit="views") as opening:
                for definition in views:
                    self._define(definition)
                    opening.advance()
            preload.wait()
            runtime.recover(store, tables, committed.tick, committed.program)
            for view in self._definitions:
                runtime.hold(view, self._oldest_unread_tick(view))
        return runtime

    def _correct(self) -> None:
        """Commit state that was recomputed on opening; corrections of stored views are a tick that sinks get too."""
        corrections = self._runtime.corrections()
        if corrections:
            tick = self._run_tick({}, None)
            _log.warning(
                "tick %d corrects the rows of %s: other operators made those that were stored",
                tick, ", ".join(sorted(corrections)),
            )  # fmt: skip
        elif self._runtime.refilled:
            self._commit_definitions()

    # ------------------------------------------------------------------ definitions

    @known_options
    def create_table(self, name: str, schema: SchemaLike, primary_key: Sequence[str] | None = None) -> Table:
        """Create an empty table. `schema` is DDL or a `StructType`."""
        with self._lock:
            self._check_writable("create_table")
            name = check_name(name, "table")
            given = Schema.of(schema)
            key = (primary_key,) if isinstance(primary_key, str) else _listed(primary_key)
            check_columns(f"table {name!r}", given.names, self._case_sensitive())
            if not all(isinstance(column, str) for column in key) or len({column.lower() for column in key}) < len(key):
                raise ConfigError(f"table {name!r}: primary_key is {key!r}; give each column once, by its name")
            key = tuple(given.names[given.index(find_name(c, given.names, self._case_sensitive()) or c)] for c in key)
            with self._rollback_on_error():
                self._program.table(name, given, key)
                self._runtime.add_table(TableDefinition(name, given, key, self.tick))
                self._commit_definitions()
            return Table(self, name)

    @known_options
    def create_view(
        self,
        name: str,
        query: str | DataFrame,
        *,
        maintenance: Maintenance = "auto",
        recursive: SchemaLike | None = None,
    ) -> View:
        """Create a view from SQL or a DataFrame; when this returns it has the rows of its query."""
        return self._create({name: (query, recursive)}, maintenance)[0]

    @known_options
    def create_views(self, queries: Mapping[str, str | DataFrame], *, maintenance: Maintenance = "auto") -> list[View]:
        """Create several views, each of which may read those before it; either all of them are created or none.

        On shards they are filled by one job instead of one for each.
        """
        return self._create({name: (query, None) for name, query in queries.items()}, maintenance)

    def _create(
        self, queries: Mapping[str, tuple[str | DataFrame, SchemaLike | None]], maintenance: Maintenance
    ) -> list[View]:
        with self._lock:
            self._check_writable("create_view")
            maintenance = validated_maintenance(maintenance)
            if not queries:
                return []
            begun = perf_counter()
            with self._rollback_on_error():
                buckets = self.shards is not None
                names = []
                for given, (query, recursive) in queries.items():
                    name = check_name(given, "view")
                    if not hasattr(query, "_jdf"):  # not a DataFrame
                        check_text(f"the query of view {name!r}", query)
                    names.append(name)
                    plan = self._program.view(
                        name, query, maintenance=maintenance, recursive=recursive, buckets=buckets
                    )
                    check_columns(f"view {name!r}", plan.schema.names, self._case_sensitive())
                    self._definitions[name] = self._definition(query, maintenance, recursive)
                preload.wait()  # filling needs the kernels, and no tick should have to wait for them
                try:
                    self._runtime.add_views(names, self.tick)
                except EvaluationError as error:
                    raise error.of_view(names[0] if len(names) == 1 else None) from error
                self._commit_definitions()
            _log.info("view %s: %.0f ms", ", ".join(names), 1e3 * (perf_counter() - begun))
            self._warn_of_open_answers(names)
            return [View(self, name) for name in names]

    def _warn_of_open_answers(self, names: Sequence[str]) -> None:
        for name in names:
            for sentence in self._program.views[name].open_answers:
                message = f"view {name!r}: Spark's own answer may differ: {sentence}"
                warnings.warn(message, OpenAnswerWarning, stacklevel=level_of_caller())

    def drop_view(self, name: str) -> None:
        """Drop a view with the state that only it needs, and stop and forget its sinks."""
        with self._lock:
            self._check_writable("drop_view")
            name = self._resolve(name, "view")
            self._program.check_unread(name)
        sinks_of = [key for key in self._feeds if key.startswith(key_prefix(name))]
        for key in sinks_of:  # without the lock, which a sink needs to finish its tick
            self._feeds.pop(key).stop()
        with self._lock, self._rollback_on_error():
            self._program.drop(name)
            del self._definitions[name]
            self._positions = {k: p for k, p in self._positions.items() if not k.startswith(key_prefix(name))}
            self._runtime.remove(name, self.tick)
            self._commit_definitions()

    def drop_table(self, name: str) -> None:
        """Drop a table, and stop the streams into it; views that read it must be dropped first."""
        with self._lock:
            self._check_writable("drop_table")
            name = self._resolve(name, "table")
            self._program.check_unread(name)
        self._streams.stop(name)  # without the lock, which a stream needs to finish its micro-batch
        with self._lock, self._rollback_on_error():
            self._program.drop(name)
            self._offsets = {k: o for k, o in self._offsets.items() if not k.startswith(key_prefix(name))}
            self._runtime.remove(name, self.tick)
            self._commit_definitions()

    @contextmanager
    def _rollback_on_error(self) -> Iterator[None]:
        """Restore definitions, circuit, offsets and positions if the block raises."""
        program, snapshot, definitions = self._program.saved(), self._runtime.snapshot(), dict(self._definitions)
        before = self._offsets, self._positions
        try:
            yield
        except BaseException:
            self._program.restore(program)
            self._runtime.reset(snapshot)
            self._definitions = definitions
            self._offsets, self._positions = before
            raise

    def frame(self, name: str) -> DataFrame:
        """A DataFrame that stands for a table or view in the definition of another view; it has no rows."""
        self._compile()
        return self._program.frame(self._find(name, "table") or self._find(name, "view") or name)

    def explain(self, query: str | DataFrame) -> Explanation:
        """How a view is maintained, or how a query would be: operator by operator, with the sizes of state.

        The result is text; its method `to_svg` draws the circuit.
        """
        self._check_open()
        self._compile()
        with self._lock:
            if not hasattr(query, "_jdf"):  # not a DataFrame
                check_text("what explain takes", query)
            name = self._find(query, "view") if isinstance(query, str) else None
            if name is None and isinstance(query, str) and query.isidentifier():
                self._resolve(query, "view")  # one word is a name, not a query; there is no such view, so this raises
            return self._program.explain(name or query, None if name is None else self._state_reader.sizes())

    # ------------------------------------------------------------------ transactions

    def transaction(self) -> Transaction:
        """A transaction: applied as a whole when its `with` block ends, dropped if the block raises."""
        self._check_writable("a transaction")
        preload.wait()
        return Transaction(self)

    def _commit(self, operations: Mapping[str, list[Any]], offset: tuple[str, Any] | None = None) -> int:
        with self._lock:
            self._check_writable("a transaction")
            self._monitor.running += 1
            try:
                with SHORT_TURNS:
                    return self._run_tick(operations, offset)
            finally:
                self._monitor.running -= 1

    def _run_tick(self, operations: Mapping[str, list[Any]], offset: tuple[str, Any] | None) -> int:
        timer, tick, runtime = TickTimer(), self.tick + 1, self._runtime
        subscribers = self._subscribers
        if self._store is not None:
            self._store.check_writable()  # a store with a failed commit refuses every tick
        outcome = runtime.step(operations, tick, [s.view for s in subscribers], timer)
        offsets = self._offsets if offset is None else {**self._offsets, offset[0]: offset[1]}
        after_commit: BaseException | None = None
        try:
            self._make_durable(tick, offsets)
        except BaseException as error:
            if self._store is None or self._store.tick != tick:
                runtime.undo()
                raise
            after_commit = error  # the manifest is in place, so the tick is committed; only clean-up after it failed
        # The tick is committed: nothing below may fail the transaction.
        self.tick, self._offsets = tick, offsets
        runtime.settle()
        timer.committed = perf_counter()
        if after_commit is not None and not isinstance(after_commit, Exception):
            raise after_commit
        if after_commit is not None:
            _log.error(
                "tick %d has been committed, but not all that comes after a commit was done",
                tick,
                exc_info=after_commit,
            )
        try:
            for feed in self._feeds.values():
                feed.committed(tick)
            for subscription in subscribers:
                subscription._deliver(outcome.deltas, tick)
            self._monitor.record_tick(
                tick, outcome.table_row_counts, outcome.view_row_counts, runtime.row_counts(), timer,
                runtime.transport_status(),
            )  # fmt: skip
        except Exception:
            _log.exception("tick %d has been committed, but not everybody could be told", tick)
        return tick

    @known_options
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
        self._check_writable("ingest")
        table = self._resolve(table, "table")

        def apply(kind: streams.StreamOperation, rows: Any, weight: str | None, offset: tuple[str, int] | None) -> None:
            tx = Transaction(self, "open")
            tx._add(table, kind, rows, weight)
            if offset is not None:
                tx._apply(offset)

        return self._streams.start(
            stream, table, mode, apply, lambda key: self._offsets.get(key),
            trigger=trigger, name=name, checkpoint=checkpoint, collect=self.shards is None,
        )  # fmt: skip

    # ------------------------------------------------------------------ reading

    def query(self, sql: str) -> DataFrame:
        """A Spark query over the present tables and views."""
        self._check_open()
        check_text("a query", sql)
        spark = self._spark()
        named = {n for n in (*self.tables, *self.views) if occurs_in(n, sql)}
        if not named:
            return spark.sql(sql)
        return query_over_frames(spark, {n: self._df(n, self.tick) for n in named}, sql)

    def refresh(self) -> int:
        """Move a read-only pipeline to the newest committed tick; returns the tick that it reads.

        Without it, it reads the tick at which it was opened, whatever is committed meanwhile. A pipeline that writes is
        always at its newest tick.
        """
        with self._lock:
            self._check_open()
            if self.read_only and self.location is not None:
                newest = Store.open(self.location, write=False)
                try:
                    reader = self._open_reader(newest, newest.records())
                except BaseException:
                    newest.close()
                    raise
                self._state_reader.close()
                self._state_reader, self._store = reader, newest
            return self.tick

    def sql(self, script: str) -> None:
        """Run CREATE TABLE, CREATE VIEW, DROP, INSERT and DELETE statements; each INSERT or DELETE is a transaction."""
        check_text("a script of SQL", script)
        execute(self, script)

    def _rows(self, name: str, tick: int | None) -> pa.Table:
        with self._lock:
            batch = self._readable(name).at(tick, self.tick)
        return plain_rows(batch)

    def _df(self, name: str, tick: int) -> DataFrame:
        """A table or view at a tick. On shards it is read by Spark's tasks, not by the driver."""
        self._check_open()
        spark = self._spark()
        if self.shards is None or self._store is None:
            return frame_of(spark, self._rows(name, tick))
        kind = "table" if name in self._state_reader.tables else "view"
        reader = spark.read.format("dbspark").option("location", self._store.files.location)
        frame = reader.option(kind, name).option("asOf", tick).option("monthsAsInt", "true").load()
        schema = struct_of(self._readable(name).schema)
        return frame if in_months(schema, wide=True) == schema else relabelled(frame, schema)

    def _readable(self, name: str) -> ReadableTable:
        self._check_open()
        return self._state_reader.readable(name, self.tick)

    # ------------------------------------------------------------------ closing

    def close(self) -> None:
        """Stop streams and sinks, release the location, and stop the Spark session if the pipeline started it."""
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
            self._state_reader.close()
            if self._store is not None:
                self._store.close()
            if self._temporary is not None:
                self._temporary.cleanup()
            self._close_session()

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "in memory" if self.location is None else f"{self.location}{', read only' if self.read_only else ''}"
        held = f"{counted(len(self.tables), 'table')}, {counted(len(self.views), 'view')}"
        return f"Pipeline({self.name!r}, {where}: {held}, tick {self.tick})"

    def _repr_html_(self) -> str:
        with self._lock:
            sizes = self._state_reader.sizes()
        return pipeline_html(self, {**self.tables, **self.views}, sizes)

    # ------------------------------------------------------------------ inside

    def _spark(self) -> SparkSession:
        if self._given_session is None and self._session is None:
            from dbspark.spark import get_session

            workers = 0 if self.shards is None or self._exchange == "shuffle" else self.shards
            self._session = get_session(app_name=f"dbspark {self.name}", worker_slots=workers)
        spark = self._given_session if self._session is None else self._session.spark
        assert spark is not None
        from dbspark.connectors.source import register_when_read
        from dbspark.connectors.stored_tables import PipelineSource

        register_when_read(PipelineSource)
        return spark

    def _check_open(self) -> None:
        if self._closed:
            raise DbsparkError(f"pipeline {self.name!r} is closed; open it again")

    def _check_writable(self, what: str) -> None:
        self._check_open()
        if self.read_only:
            raise StoreError(
                f"pipeline {self.name!r} is open for reading, and {what} needs one that writes; open {self.location} "
                "without the setting read_only"
            )

    def _definition(self, query: str | DataFrame, maintenance: str, recursive: Any) -> dict[str, Any]:
        if not isinstance(query, str):
            if self.location is not None:
                raise ConfigError(
                    "a view by a DataFrame cannot be found again when the location is reopened; give the query as SQL"
                )
            return {"query": None}
        shards = (
            {} if self.shards is None else {"buckets": True}
        )  # stored, because node ids depend on it: they must be the same however the location is opened
        declared = None if recursive is None else encode_schema(Schema.of(recursive))
        return {"query": query, "maintenance": maintenance, "recursive": declared, **shards}

    def _program_json(self) -> dict[str, Any]:
        """The program as JSON, as it is stored beside the state."""
        tables = [
            {"name": n, "schema": encode_schema(t.schema), "key": list(t.primary_key), "created": t.created}
            for n, t in self._state_reader.tables.items()
        ]
        views = [{"name": n, **definition} for n, definition in self._definitions.items()]
        return {"name": self.name, "id": self.id, "tables": tables, "views": views, **self._runtime.state_metadata()}

    def _commit_definitions(self) -> None:
        self._make_durable(self.tick, self._offsets)

    def _make_durable(self, tick: int, offsets: Mapping[str, Any]) -> None:
        """Commit a new tick, or the present one with new definitions; if it raises, neither is visible."""
        if self._store is not None:
            self._store.commit(tick, self._runtime.states(), self._program_json(), offsets, self._positions)
            self._stored_positions = self._positions

    def _adopt_identity(self, committed: Committed) -> None:
        """Take name, id and tick from the store."""
        if committed.program["name"] != self.name:
            _log.warning(
                "%s is the pipeline %r and keeps that name; it was opened as %r",
                self.location, committed.program["name"], self.name,
            )  # fmt: skip
            self.name = committed.program["name"]
        self.id = committed.program.get("id", self.id)
        self.tick = committed.tick

    def _define(self, definition: Mapping[str, Any]) -> None:
        """Define a view from its stored definition."""
        declared = None if definition["recursive"] is None else decode_schema(definition["recursive"])
        self._program.view(
            definition["name"], definition["query"], maintenance=definition["maintenance"], recursive=declared,
            buckets=definition.get("buckets", False),
        )  # fmt: skip
        self._definitions[definition["name"]] = {k: v for k, v in definition.items() if k != "name"}

    def _open_reader(self, store: Store, committed: Committed) -> ReadOnlyRuntime:
        """Open a tick for reading. It needs no circuit, and no Spark before a query or a DataFrame."""
        self._adopt_identity(committed)
        tables = decode_tables(committed)
        self._program = Program(self._spark)
        for table in tables:
            self._program.table(table.name, table.schema, table.primary_key)
        self._definitions = {v["name"]: {k: x for k, x in v.items() if k != "name"} for v in committed.program["views"]}
        return ReadOnlyRuntime(store, tables, committed.program.get("shards"), int(self.config["history"]))

    def _compile(self) -> None:
        """Compile the views of a read-only pipeline, which only `frame` and `explain` need."""
        if self.read_only:
            with self._lock:
                for name, definition in list(self._definitions.items()):
                    if name not in self._program.views:
                        self._define({"name": name, **definition})


def _listed(given: Any) -> tuple[Any, ...]:
    """The columns of a primary key as a tuple; anything else becomes its only element, which a later check refuses."""
    return tuple(given) if isinstance(given, list | tuple) else (given,) if given is not None else ()
