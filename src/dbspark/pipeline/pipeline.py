"""`Pipeline`: tables, views over them, and transactions that move all of them together.

    pipe = dbspark.Pipeline("shop", location="state/shop")
    pipe.create_table("orders", "id BIGINT, region STRING, amount DECIMAL(12, 2)", primary_key=["id"])
    pipe.create_view("revenue", "SELECT region, sum(amount) AS total FROM orders GROUP BY region")
    with pipe.transaction() as tx:
        tx.insert("orders", [(1, "north", Decimal("3.50"))])
    pipe.view("revenue").to_arrow()

A transaction is one tick of the circuit. It is computed beside what is there, made durable, and only then shown, so
whatever fails leaves everything as it was. The state of a pipeline is spines by name: those of the circuit's nodes, and
the histories of tables and views. A new view is filled from what is kept nearest to it; nodes that other views have
already keep their state.
"""

from __future__ import annotations

import logging
import re
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import pyarrow as pa

from dbspark.columnar.frames import frame_of, in_months, relabelled, struct_of
from dbspark.columnar.memory import reserve
from dbspark.columnar.schema import Schema, SchemaLike
from dbspark.connectors import sinks, streams
from dbspark.errors import ConfigError, DbsparkError, SchemaError, StoreError, TimeError
from dbspark.kernels import preload
from dbspark.pipeline.handles import Subscription, Table, Transaction, View
from dbspark.pipeline.statements import execute
from dbspark.runtime.catalog import schema_of, schema_text, tables_of
from dbspark.runtime.embedded import Embedded
from dbspark.runtime.progress import Listener, Monitor, Progress, Watch
from dbspark.runtime.reader import Reader
from dbspark.runtime.runtime import Readable, Runtime, Shows
from dbspark.runtime.sharded import Sharded
from dbspark.runtime.tables import TableDefinition
from dbspark.sql.leaves import over
from dbspark.sql.program import Maintenance, Program
from dbspark.storage.files import LocalFiles
from dbspark.storage.store import Committed, Store
from dbspark.trace.history import plain_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from dbspark.spark import SessionHandle

_log = logging.getLogger("dbspark")

DEFAULTS = {"history": 1000, "read_only": False, "reserve": 0}
"""Settings: `history` is how many ticks back tables and views can be read; with `read_only` nothing is changed, and
somebody else may write to the location; `reserve` is memory that this process takes now, and keeps for its state."""


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
        preload.begin()
        self.name = name
        self.location = location
        self.config = {**DEFAULTS, **_checked(config or {})}
        reserve(_bytes(self.config["reserve"]))
        self.shards = shards
        self._given = spark
        self._session: SessionHandle | None = None
        self._program = Program(self._spark)
        self._definitions: dict[str, dict[str, Any]] = {}
        """The views, as they are described beside the state."""
        self._lock = threading.RLock()
        self._subscribers: tuple[Subscription, ...] = ()
        self._feeds: dict[str, sinks.Feed] = {}
        self._streams = streams.Streams(None if location is None else f"{location}/streams")
        self._offsets: dict[str, Any] = {}
        self._positions: dict[str, Any] = {}
        """How far sinks are; replaced, never changed, so that a commit has them as of one moment."""
        self._stored_positions = self._positions
        self._closed = False
        self.tick = 0
        """Transactions that have been committed."""
        self.id = str(uuid.uuid4())
        """The same whenever the location is opened; `run_id` is another one every time."""
        self.read_only = bool(self.config["read_only"])
        self._monitor = Monitor(lambda: (self.id, self.name), self._label)
        if self.read_only and location is None:
            raise ConfigError("read_only: a pipeline in memory has no readers; give a location")
        self._temporary = None if shards is None or location is not None else tempfile.TemporaryDirectory("dbspark")
        place = location if self._temporary is None else self._temporary.name
        files = None if self._temporary is None else LocalFiles(self._temporary.name, durable=False)
        self._store = None if place is None else Store.open(place, write=not self.read_only, files=files)
        try:
            self._shows: Shows = self._opened(shards)
            self._runtime = cast(Runtime, self._shows)
            """The same for whoever has checked that the pipeline writes."""
            if not self.read_only:
                self._correct()
        except BaseException:
            if self._store is not None:
                self._store.close()
            raise

    def _opened(self, shards: int | None) -> Shows:
        """Whoever keeps tables and views, with what the store holds."""
        store, keep = self._store, int(self.config["history"])
        runtime: Runtime
        if store is None or shards is None:
            runtime = Embedded(self._program, keep)
        else:
            runtime = Sharded(self._program, shards, store, keep)
        if store is None:
            return runtime
        found = store.records()
        if self.read_only:
            return self._reader(store, found)
        if found.program:
            self._known_as(found)
            self._offsets = dict(found.offsets)
            self._positions = self._stored_positions = dict(found.positions)
            tables = tables_of(found)
            for table in tables:
                self._program.table(table.name, table.schema, table.primary_key)
            for given in found.program["views"]:
                self._define(given)
            runtime.recover(store, tables, found.tick, found.program)
            for view in self._definitions:
                runtime.hold(view, self._unread(view))
        return runtime

    def _correct(self) -> None:
        """Store what was computed again; what stored views lack is a tick, which sinks get as they get every other."""
        corrections = self._runtime.corrections()
        if corrections:
            tick = self._applied({}, None)
            _log.warning(
                "tick %d corrects the rows of %s: other operators made those that were stored",
                tick, ", ".join(sorted(corrections)),
            )  # fmt: skip
        elif self._runtime.refilled:
            self._commit_definitions()

    def _unread(self, view: str) -> int | None:
        """The oldest tick that a sink of a view has still to read from, whether it runs now or not."""
        return min((int(p["tick"]) for key, p in self._positions.items() if key.startswith(f"{view}.")), default=None)

    # ------------------------------------------------------------------ definitions

    def create_table(self, name: str, schema: SchemaLike, primary_key: Sequence[str] | None = None) -> Table:
        """A table that transactions change. `schema` is DDL or a StructType."""
        with self._lock:
            self._check_writable("create_table")
            _check_name(name)
            given = Schema.of(schema)
            key = (primary_key,) if isinstance(primary_key, str) else tuple(primary_key or ())
            for column in key:
                given.index(column)
            with self._all_or_nothing():
                self._program.table(name, given, key)
                self._runtime.add_table(TableDefinition(name, given, key, self.tick))
                self._commit_definitions()
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
        return self._create({name: (query, recursive)}, maintenance)[0]

    def create_views(self, queries: Mapping[str, str | DataFrame], *, maintenance: Maintenance = "auto") -> list[View]:
        """Several views at once, each of which may read those before it; all are filled together, or none is there.

        On shards that is one job instead of one for each.
        """
        return self._create({name: (query, None) for name, query in queries.items()}, maintenance)

    def _create(
        self, queries: Mapping[str, tuple[str | DataFrame, SchemaLike | None]], maintenance: Maintenance
    ) -> list[View]:
        with self._lock:
            self._check_writable("create_view")
            if not queries:
                return []
            begun = perf_counter()
            with self._all_or_nothing():
                buckets = self.shards is not None
                for name, (query, recursive) in queries.items():
                    _check_name(name)
                    self._program.view(name, query, maintenance=maintenance, recursive=recursive, buckets=buckets)
                    self._definitions[name] = self._definition(query, maintenance, recursive)
                self._runtime.add_views(list(queries), self.tick)
                self._commit_definitions()
            preload.wait()  # so that the first tick is as fast as those after it
            _log.info("view %s: %.0f ms", ", ".join(queries), 1e3 * (perf_counter() - begun))
            return [View(self, name) for name in queries]

    def drop_view(self, name: str) -> None:
        """Forget a view, whatever only it needs, and its sinks, which are stopped."""
        with self._lock:
            self._check_writable("drop_view")
            if name not in self._definitions:
                raise DbsparkError(f"no view {name!r}; the views are {', '.join(self.views) or 'none'}")
            self._program.check_unread(name)
        sinks_of = [key for key in self._feeds if key.startswith(f"{name}.")]
        for key in sinks_of:  # without the lock, which a sink needs to finish what it is at
            self._feeds.pop(key).stop()
        with self._lock, self._all_or_nothing():
            self._program.drop(name)
            del self._definitions[name]
            self._positions = {k: p for k, p in self._positions.items() if not k.startswith(f"{name}.")}
            self._runtime.remove(name, self.tick)
            self._commit_definitions()

    def drop_table(self, name: str) -> None:
        """Forget a table and the streams into it, which are stopped; views that read it have to go first."""
        with self._lock:
            self._check_writable("drop_table")
            if name not in self._shows.tables:
                raise DbsparkError(f"no table {name!r}; the tables are {', '.join(self.tables) or 'none'}")
            self._program.check_unread(name)
        self._streams.stop(name)  # without the lock, which a stream needs to finish what it is at
        with self._lock, self._all_or_nothing():
            self._program.drop(name)
            self._offsets = {k: o for k, o in self._offsets.items() if not k.startswith(f"{name}.")}
            self._runtime.remove(name, self.tick)
            self._commit_definitions()

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Definitions and circuit are as they were if the block raises."""
        program, kept, definitions = self._program.saved(), self._runtime.snapshot(), dict(self._definitions)
        before = self._offsets, self._positions
        try:
            yield
        except BaseException:
            self._program.restore(program)
            self._runtime.reset(kept)
            self._definitions = definitions
            self._offsets, self._positions = before
            raise

    def table(self, name: str) -> Table:
        """A table that is there."""
        self._check_table(name)
        return Table(self, name)

    def _check_table(self, name: str) -> None:
        if name not in self._shows.tables:
            raise DbsparkError(f"no table {name!r}; the tables are {', '.join(self.tables) or 'none'}")

    def view(self, name: str) -> View:
        """A view that is there."""
        if name not in self._definitions:
            raise DbsparkError(f"no view {name!r}; the views are {', '.join(self.views) or 'none'}")
        return View(self, name)

    @property
    def tables(self) -> list[str]:
        return list(self._shows.tables)

    @property
    def views(self) -> list[str]:
        return list(self._definitions)

    def frame(self, name: str) -> DataFrame:
        """A DataFrame that stands for a table or view in definitions of views; it has no rows of its own."""
        self._compile()
        return self._program.frame(name)

    def explain(self, query: str | DataFrame) -> str:
        """How a view, or a query that is not a view yet, is or would be kept: part by part, the circuit, its state."""
        self._compile()
        with self._lock:
            named = isinstance(query, str) and query in self._definitions
            return self._program.explain(query, self._shows.sizes() if named else None)

    # ------------------------------------------------------------------ transactions

    def transaction(self) -> Transaction:
        """Changes that are applied together when the block ends, or not at all if it raises."""
        self._check_writable("a transaction")
        return Transaction(self)

    def _commit(self, operations: Mapping[str, list[Any]], offset: tuple[str, Any] | None = None) -> int:
        with self._lock:
            self._check_writable("a transaction")
            self._monitor.running += 1
            try:
                return self._applied(operations, offset)
            finally:
                self._monitor.running -= 1

    def _applied(self, operations: Mapping[str, list[Any]], offset: tuple[str, Any] | None) -> int:
        watch, tick, runtime = Watch(), self.tick + 1, self._runtime
        subscribers = self._subscribers
        if self._store is not None:
            self._store.check_writable()  # a store that has failed refuses every tick, and says what to do
        outcome = runtime.step(operations, tick, [s.view for s in subscribers], watch)
        offsets = self._offsets if offset is None else {**self._offsets, offset[0]: offset[1]}
        late: BaseException | None = None
        try:
            self._make_durable(tick, offsets)
        except BaseException as error:
            if self._store is None or self._store.tick != tick:
                runtime.undo()
                raise
            late = error  # the manifest is in place: it is what comes after a commit that has failed
        # The tick has happened: nothing below may fail.
        self.tick, self._offsets = tick, offsets
        runtime.settle()
        watch.committed = perf_counter()
        if late is not None and not isinstance(late, Exception):
            raise late
        if late is not None:
            _log.error(
                "tick %d has been committed, but not all that comes after a commit was done", tick, exc_info=late
            )
        try:
            for feed in self._feeds.values():
                feed.committed(tick)
            for subscription in subscribers:
                subscription._deliver(outcome.changes, tick)
            self._monitor.note(tick, outcome.given, outcome.taken, runtime.tally(), watch)
        except Exception:
            _log.exception("tick %d has been committed, but not everybody could be told", tick)
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
        self._check_writable("ingest")
        self.table(table)

        def apply(kind: streams.Kind, rows: Any, weight: str | None, offset: tuple[str, int] | None) -> None:
            tx = Transaction(self)
            tx._add(table, kind, rows, weight)
            if offset is not None:
                tx._apply(offset)

        return self._streams.start(
            stream, table, mode, apply, lambda key: self._offsets.get(key),
            trigger=trigger, name=name, checkpoint=checkpoint, collect=self.shards is None,
        )  # fmt: skip

    # ------------------------------------------------------------------ progress

    @property
    def run_id(self) -> str:
        """Another one whenever the pipeline is opened."""
        return self._monitor.run_id

    @property
    def is_active(self) -> bool:
        """Whether it is open."""
        return not self._closed

    @property
    def status(self) -> dict[str, Any]:
        """What it is doing: `message`, `isDataAvailable`, `isTriggerActive`, as a StreamingQuery says it."""
        return self._monitor.status(self.is_active)

    @property
    def last_progress(self) -> Progress | None:
        """What the last transaction did, how long it took and what is kept; None before the first one."""
        return self._monitor.last

    @property
    def recent_progress(self) -> list[Progress]:
        """The same of the last hundred transactions, the oldest first."""
        return self._monitor.recent

    def add_listener(self, listener: Listener) -> None:
        """Call a function with the progress of every transaction, after it has happened."""
        self._monitor.listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Stop calling it."""
        if listener in self._monitor.listeners:
            self._monitor.listeners.remove(listener)

    def metrics(self) -> dict[str, Any]:
        """Figures since the pipeline was opened, and the rows and bytes that it keeps, by what keeps them."""
        with self._lock:
            sizes = self._shows.sizes()
        named = [n for n in sizes if n.startswith(("table ", "view "))]
        return {
            **self._monitor.totals,
            "tick": self.tick,
            "rows_by_name": {n.split(" ", 1)[1]: sizes[n].rows for n in named},
            "state_rows": {self._label(n): s.rows for n, s in sizes.items() if n not in named},
            "state_bytes": sum(s.bytes for s in sizes.values()),
        }

    def _label(self, name: str) -> str:
        """What people call the node or the table that keeps something."""
        node = self._program.builder.graph.nodes.get(name)
        return name if node is None else f"{node.label} #{name[:6]}"

    # ------------------------------------------------------------------ reading

    def query(self, sql: str) -> DataFrame:
        """A Spark query over tables and views as they are now."""
        spark = self._spark()
        named = {n for n in (*self.tables, *self.views) if re.search(rf"\b{re.escape(n)}\b", sql, re.IGNORECASE)}
        if not named:
            return spark.sql(sql)
        return over(spark, {n: self._df(n, self.tick) for n in named}, sql)

    def refresh(self) -> int:
        """Show the newest tick, in a pipeline that is open for reading; gives the tick that is shown.

        Until then it shows the tick at which it was opened, whatever the writer does. One that writes is always there.
        """
        with self._lock:
            self._check_open()
            if self.read_only and self.location is not None:
                newest = Store.open(self.location, write=False)
                try:
                    shown = self._reader(newest, newest.records())
                except BaseException:
                    newest.close()
                    raise
                self._shows.close()
                self._shows, self._store = shown, newest
            return self.tick

    def sql(self, script: str) -> None:
        """Run CREATE TABLE, CREATE VIEW, DROP, INSERT and DELETE statements, each a transaction of its own."""
        execute(self, script)

    def _rows(self, name: str, tick: int | None) -> pa.Table:
        with self._lock:
            batch = self._readable(name).at(tick, self.tick)
        return plain_rows(batch)

    def _df(self, name: str, tick: int) -> DataFrame:
        """A table or view at a tick. What lies on shards is read where Spark's tasks are."""
        spark = self._spark()
        if self.shards is None or self._store is None:
            return frame_of(spark, self._rows(name, tick))
        kind = "table" if name in self._shows.tables else "view"
        reader = spark.read.format("dbspark").option("location", self._store.files.location)
        frame = reader.option(kind, name).option("asOf", tick).option("monthsAsInt", "true").load()
        wanted = struct_of(self._readable(name).schema)
        return frame if in_months(wanted, wide=True) == wanted else relabelled(frame, wanted)

    def _readable(self, name: str) -> Readable:
        return self._shows.readable(name, self.tick)

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
            self._shows.close()
            if self._store is not None:
                self._store.close()
            if self._temporary is not None:
                self._temporary.cleanup()
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
        return f"Pipeline({self.name!r}, {where}: {len(self.tables)} tables, {len(self.views)} views, tick {self.tick})"

    # ------------------------------------------------------------------ inside

    def _spark(self) -> SparkSession:
        if self._given is None and self._session is None:
            from dbspark.spark import get_session

            self._session = get_session(app_name=f"dbspark {self.name}")
        spark = self._given if self._session is None else self._session.spark
        assert spark is not None
        from dbspark.connectors.stored_tables import register

        register(spark)
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
        shards = {} if self.shards is None else {"buckets": True}  # how it is computed stays, whoever opens it
        declared = None if recursive is None else schema_text(Schema.of(recursive))
        return {"query": query, "maintenance": maintenance, "recursive": declared, **shards}

    def _described(self) -> dict[str, Any]:
        """The program, as it is kept beside the state."""
        tables = [
            {"name": n, "schema": schema_text(t.schema), "key": list(t.primary_key), "created": t.created}
            for n, t in self._shows.tables.items()
        ]
        views = [{"name": n, **given} for n, given in self._definitions.items()]
        return {"name": self.name, "id": self.id, "tables": tables, "views": views, **self._runtime.described()}

    def _feed(self, view: str, key: str, deliver: Callable[[pa.Table, int], None], since: int | None) -> sinks.Feed:
        """A sink of a view that goes on from where it was, or begins."""
        with self._lock:
            self._check_writable("write_stream")
            running = self._feeds.get(key)
            if running is not None and running.isActive:
                raise ConfigError(f"the sink {key!r} runs already; stop it, or give this one another name=…")
            positions, new = self._positions, key not in self._positions
            if new:
                begin = {"tick": self.tick, "snapshot": True} if since is None else {"tick": since}
                self._positions = {**positions, key: begin}
            try:
                # Held before it is committed, so that what a manifest names goes back to the positions in it.
                self._runtime.hold(view, self._unread(view))
                self._check_kept(view, key, new)
                if new:
                    self._commit_definitions()
            except BaseException:
                self._positions = positions
                self._runtime.hold(view, self._unread(view))
                raise

            def save(position: sinks.Position) -> None:
                with self._lock:
                    self._positions = {**self._positions, key: position}
                    self._runtime.hold(view, self._unread(view))

            origin = sinks.Origin(
                lambda since, upto: self.view(view).changes(since, upto),
                lambda tick: self.view(view).as_of(tick).to_arrow(),
                self._commit_times,
                save,
            )
            self._feeds[key] = sinks.Feed(key, origin, deliver, self._positions[key], self.tick)
            return self._feeds[key]

    def _check_kept(self, view: str, key: str, new: bool) -> None:
        """Refuse a sink that would have to read what is no longer there."""
        tick, oldest = int(self._positions[key]["tick"]), self._readable(view).oldest()
        if tick < oldest and new:
            raise TimeError(
                f"the sink {key!r} is to begin after tick {tick}, which is no longer kept; the oldest is {oldest}. "
                "Begin with what the view holds now (no since=…), or keep more with the setting 'history' (ticks)"
            )
        if tick < oldest:
            raise TimeError(
                f"the sink {key!r} has read up to tick {tick}, and what came next is no longer kept; the oldest tick "
                f"is {oldest}. Forget it with pipe.view({view!r}).forget_stream(…) and begin it anew"
            )

    def _forget_feed(self, view: str, key: str) -> None:
        running = self._feeds.pop(key, None)
        if running is not None:
            running.stop()  # without the lock, which it needs to finish what it is at
        with self._lock:
            self._check_writable("forget_stream")
            if key not in self._positions:
                known = ", ".join(k for k in self._positions if k.startswith(f"{view}.")) or "none"
                raise ConfigError(f"there is no sink {key!r}; those of the view are {known}")
            positions = self._positions
            self._positions = {k: p for k, p in positions.items() if k != key}
            try:
                self._commit_definitions()
            except BaseException:
                self._positions = positions
                raise
            self._runtime.hold(view, self._unread(view))

    def _commit_times(self) -> dict[int, float]:
        if self._store is None:
            return {}
        from dbspark.connectors.stored_tables import commit_times

        return commit_times(self._store)

    def _commit_definitions(self) -> None:
        self._make_durable(self.tick, self._offsets)

    def _make_durable(self, tick: int, offsets: Mapping[str, Any]) -> None:
        """Commit a tick, which may be the present one with other definitions. What raises is not shown."""
        if self._store is not None:
            self._store.commit(tick, self._runtime.states(), self._described(), offsets, self._positions)
            self._stored_positions = self._positions

    def _known_as(self, found: Committed) -> None:
        """The pipeline that is stored."""
        if found.program["name"] != self.name:
            _log.warning(
                "%s is the pipeline %r and keeps that name; it was opened as %r",
                self.location, found.program["name"], self.name,
            )  # fmt: skip
            self.name = found.program["name"]
        self.id = found.program.get("id", self.id)
        self.tick = found.tick

    def _define(self, given: Mapping[str, Any]) -> None:
        """A view as it is described beside the state."""
        declared = None if given["recursive"] is None else schema_of(given["recursive"])
        self._program.view(
            given["name"], given["query"], maintenance=given["maintenance"], recursive=declared,
            buckets=given.get("buckets", False),
        )  # fmt: skip
        self._definitions[given["name"]] = {k: v for k, v in given.items() if k != "name"}

    def _reader(self, store: Store, found: Committed) -> Reader:
        """What shows a tick. That needs no circuit, and no Spark until somebody asks it something."""
        self._known_as(found)
        tables = tables_of(found)
        self._program = Program(self._spark)
        for table in tables:
            self._program.table(table.name, table.schema, table.primary_key)
        self._definitions = {v["name"]: {k: x for k, x in v.items() if k != "name"} for v in found.program["views"]}
        return Reader(store, tables, found.program.get("shards"), int(self.config["history"]))

    def _compile(self) -> None:
        """Define the views of a reader, which are not needed before."""
        if self.read_only:
            with self._lock:
                for name, given in list(self._definitions.items()):
                    if name not in self._program.views:
                        self._define({"name": name, **given})


def _checked(config: Mapping[str, Any]) -> Mapping[str, Any]:
    unknown = sorted(set(config) - set(DEFAULTS))
    if unknown:
        raise ConfigError(f"no setting {', '.join(unknown)}; there are {', '.join(DEFAULTS)}")
    if int(config.get("history", 0)) < 0:
        raise ConfigError(f"history: {config['history']} is not a number of ticks; give 0 or more")
    _bytes(config.get("reserve", 0))
    if not isinstance(config.get("read_only", False), bool):
        raise ConfigError(f"read_only is {config['read_only']!r}; it can be True or False")
    return config


def _bytes(given: int | str) -> int:
    """A number of bytes, or one with k, m or g behind it, as Java has them."""
    found = re.fullmatch(r"([0-9]+)([kmgt]?)b?", str(given).strip().lower())
    if found is None:
        raise ConfigError(f"reserve: {given!r} is not an amount of memory; give bytes, or text like '512m' or '4g'")
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[found[2]]


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise SchemaError(f"{name!r} is not a name; use letters, digits and underscores, and begin with a letter")
