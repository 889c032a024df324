"""The sharded runtime: the driver of a circuit that is run by shards.

The driver plans, lets a transport run the levels (`dbspark.runtime.transport`), and takes new records of traces from
the reports of the shards. It holds no rows but those that a transaction gives it. A DataFrame is split by shard in the
tasks of its own partitions.

State changes in one place: `_run` replaces the records of the traces that tasks have reported, and `undo` puts the
records before the tick back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import pyarrow as pa

from dbspark.circuit.graph import Graph
from dbspark.columnar import Batch, SortKey, merge
from dbspark.errors import ConfigError, EvaluationError
from dbspark.operators.external_function import ExternalFunction
from dbspark.operators.placement import SHARD, key_of
from dbspark.reporting import activity
from dbspark.runtime.balanced_joins import choose_policies
from dbspark.runtime.exchange import ShuffleTransport, pickle_code
from dbspark.runtime.level_plan import Level, Policies
from dbspark.runtime.placement import RANGES
from dbspark.runtime.planner import plan_levels
from dbspark.runtime.progress import RowCountSnapshot, TickTimer
from dbspark.runtime.reader import stored_size
from dbspark.runtime.reslicing import SHARD_SEPARATOR, ResliceStep, TraceLayout, split_trace_name
from dbspark.runtime.routing import RoutedOperation, to_operation
from dbspark.runtime.runtime import Outcome, ReadableTable, Runtime
from dbspark.runtime.stage import Row
from dbspark.runtime.state import outputs_of, stale_views, warn_of_refill
from dbspark.runtime.table_steps import TableStep, ViewStep
from dbspark.runtime.tables import OperationKind, TableDefinition
from dbspark.runtime.task import HistoryOptions, TickContext
from dbspark.runtime.transport import (
    LevelsResult,
    LevelsRun,
    MemoryTransport,
    Records,
    ShardedPlan,
    TraceRecords,
    TraceRows,
    Transport,
)
from dbspark.sql.explain import Size
from dbspark.sql.program import Program
from dbspark.storage.manifest import TraceRecord
from dbspark.storage.segment import decode_batch
from dbspark.storage.store import Store
from dbspark.trace.history import ShardedHistory, history_of

_log = logging.getLogger("dbspark")


def check_picklable(graph: Graph) -> None:
    """Refuse operators that cannot be pickled for a task, such as those that evaluate through a Spark session."""
    for node in graph:
        if isinstance(node.operator, ExternalFunction):
            continue  # evaluated by Spark between two levels
        try:
            pickle_code(node.operator)
        except Exception as error:
            raise ConfigError(
                f"[NOT_SHARDED.THROUGH_SPARK] {node.label!r} is evaluated by Spark itself, which the tasks of a "
                "pipeline on shards cannot ask about whole groups, inside an outer join or in a recursion. Open the "
                "pipeline with shards=None, or write the query without it: explain names what Spark evaluates"
            ) from error


class ShardedRowCounts(NamedTuple):
    """The records of all traces at one moment; rows are counted when they are read."""

    records: Records

    def rows(self) -> dict[str, int]:
        """Rows by trace, over all shards."""
        return {n: sum(map(rows_of_trace, by_shard.values())) for n, by_shard in self.records.items()}


def rows_of_trace(records: TraceRecords) -> int:
    """Rows of a trace on one shard, before consolidation."""
    if records and isinstance(records[0], TraceRows):
        return records[0].rows
    return stored_size(stored_only([records])).rows


def stored_only(records: Iterable[TraceRecords]) -> list[tuple[TraceRecord, ...]]:
    """Records of traces that are stored."""
    return [tuple(r for r in of_trace if isinstance(r, TraceRecord)) for of_trace in records]


def _no_location() -> Any:
    raise ConfigError("the pipeline has no location")


class Sharded(Runtime):
    """Runs the circuit on `shards` shards."""

    def __init__(
        self, program: Program, shards: int, store: Store | None, keep: int, transport: Transport | None = None
    ) -> None:
        """`store` is None where the state is only in the memory of the workers of `transport`."""
        self.shards = shards
        self._program = program
        self._store = store
        self._keep = keep
        self.tables: dict[str, TableDefinition] = {}
        self._views: set[str] = set()
        self._records: dict[str, dict[int, TraceRecords]] = {}
        self._transport = transport
        self._plan_now: ShardedPlan | None = None
        """The plan of the whole circuit, until a definition or a join policy changes."""
        self._join_policies: Policies = {}
        self._before: dict[str, dict[int, TraceRecords]] | None = None
        """The records before the tick that has not been settled yet."""
        self._history_holds: dict[str, int] = {}
        """By trace, the tick from which its history is kept."""
        self._stale: list[str] = []
        """The views whose stored rows were computed by other operators; the next tick corrects them, and only them."""

    # ------------------------------------------------------------------ definitions

    def add_table(self, table: TableDefinition) -> None:
        self.tables = {**self.tables, table.name: table}
        self._plan_now = None

    def add_views(self, names: Sequence[str], tick: int) -> None:
        self._plan_now = None
        self._balance(tick)  # a side of a join that gets another reader is partitioned by key again
        with activity(f"filling {', '.join(names)} on {self.shards} shards"):
            self._fill(names, tick)
        self._views |= set(names)
        self._plan_now = None

    def _fill(self, names: Sequence[str], tick: int) -> None:
        """Fill new views and their nodes from the rows of the tables."""
        graph = self._program.builder.graph
        part = Graph()
        part.nodes, part.outputs = graph.nodes, {name: graph.outputs[name] for name in names}
        plan = self._plan(part.pruned())
        # Nodes shared with other views are computed again for the new nodes behind them, but keep their stored state.
        context = TickContext(tick, self.shards, self._files(), initial=True, unchanged_traces=frozenset(self._records))
        tables = {name: by_shard for name, by_shard in self._records.items() if name.startswith("table ")}
        self._run(context, plan, tables, (), ())

    def remove(self, name: str, tick: int) -> None:
        self.tables = {n: t for n, t in self.tables.items() if n != name}
        self._views -= {name}
        self._history_holds = {n: t for n, t in self._history_holds.items() if n != f"view {name}"}
        self._plan_now = None
        self._join_policies = {j: p for j, p in self._join_policies.items() if j in self._program.builder.graph.nodes}
        traces = self._current_plan().traces
        gone = [n for n in self._records if n not in traces]
        self._records = {n: by_shard for n, by_shard in self._records.items() if n in traces}
        if self._transport is not None:
            self._transport.forget(gone)

    # ------------------------------------------------------------------ ticks

    def operation(self, table: str, kind: OperationKind, data: Any, weight: str | None = None) -> Any:
        return to_operation(self.tables[table], kind, data, weight)

    def step(
        self, operations: Mapping[str, list[Any]], tick: int, subscribed_views: Collection[str], timer: TickTimer
    ) -> Outcome:
        if self._stale:
            return self._corrected(tick, timer)
        context = TickContext(
            tick,
            self.shards,
            self._files(),
            subscribed_views=frozenset(subscribed_views),
            history_holds=self._history_holds,
        )
        rows: list[Row] = []
        frames: list[Any] = []
        for table, of_table in operations.items():
            for number, operation in enumerate(of_table):
                routed_operation = RoutedOperation(self.tables[table], number, operation)
                rows += routed_operation.rows(self.shards)
                frames += routed_operation.frames(self.shards)
        self._balance(tick)
        plan = self._current_plan()
        timer.checked = perf_counter()
        self._before = self._records
        try:
            done = self._run(context, plan, self._records, rows, frames, frozenset(operations))
            outcome = self._outcome(done, plan, operations)
        except BaseException:
            self.undo()
            raise
        timer.computed = perf_counter()
        return outcome

    def _corrected(self, tick: int, timer: TickTimer) -> Outcome:
        """The tick that corrects views: all that they should hold is computed, and the difference is their change."""
        graph = self._program.builder.graph
        part = Graph()
        part.nodes, part.outputs = graph.nodes, {name: graph.outputs[name] for name in self._stale}
        plan = self._plan(part.pruned())
        views = {f"view {name}" for name in self._stale}
        known = frozenset(self._records) - views
        context = TickContext(
            tick, self.shards, self._files(), initial=True, unchanged_traces=known, history_holds=self._history_holds
        )
        given = {name: kept for name, kept in self._records.items() if name.startswith("table ") or name in views}
        timer.checked = perf_counter()
        self._before = self._records
        try:
            outcome = self._outcome(self._run(context, plan, given, (), ()), plan, ())
        except BaseException:
            self.undo()
            raise
        timer.computed = perf_counter()
        return outcome

    def corrections(self) -> Collection[str]:
        return list(self._stale)

    def _outcome(self, out: LevelsResult, plan: ShardedPlan, tables: Collection[str]) -> Outcome:
        """The outcome of a tick from the reports of its shards."""
        table_rows: dict[str, int] = dict.fromkeys(tables, 0)
        view_rows: dict[str, int] = dict.fromkeys(sorted(self._views), 0)
        deltas: dict[str, list[Batch]] = {}
        for report in out.reports:
            for counts, reported in ((table_rows, report.get("tables", {})), (view_rows, report.get("views", {}))):
                for name, count in reported.items():
                    counts[name] += count
        for trace, payload in out.batches:
            batch = decode_batch(pa.py_buffer(payload), plan.traces[trace].sort_keys[0])
            deltas.setdefault(trace.removeprefix("view "), []).append(batch)
        return Outcome(table_rows, view_rows, {name: merge(batches) for name, batches in deltas.items()})

    def hold(self, view: str, tick: int | None) -> None:
        name = f"view {view}"
        history_holds = {n: t for n, t in self._history_holds.items() if n != name}
        self._history_holds = history_holds if tick is None else {**history_holds, name: tick}

    def settle(self) -> None:
        self._before, self._stale = None, []
        if self._transport is not None:
            self._transport.settle()

    def undo(self) -> None:
        if self._before is not None:
            self._records, self._before = self._before, None
            if self._transport is not None:
                self._transport.undo()

    def _run(
        self,
        context: TickContext,
        plan: ShardedPlan,
        records: Records,
        rows: Sequence[Row],
        frames: Sequence[Any],
        tables: frozenset[str] | None = None,
        state: Records | None = None,
    ) -> LevelsResult:
        """Run levels, and replace the records of the traces that the shards report."""
        if state is None:
            state = None if records is self._records else self._records
        try:
            out = self._get_transport().run(LevelsRun(context, plan, records, rows, frames, state, tables))
        except EvaluationError as error:
            raise error.of_view(None if error.node is None else plan.graph.output_of(error.node)) from error
        records_after = {name: dict(by_shard) for name, by_shard in self._records.items()}
        for report in out.reports:
            shard = report["shard"]
            if self._store is None:
                for name, count in report.get("rows", {}).items():
                    records_after.setdefault(name, {})[shard] = (TraceRows(count),)
                continue
            for name, written in report["traces"].items():
                stored = zip(written, plan.traces[name].sort_keys, strict=True)
                records_after.setdefault(name, {})[shard] = tuple(self._store.adopted(r, a) for r, a in stored)
        self._records = records_after
        return out

    def _get_transport(self) -> Transport:
        if self._transport is None:
            self._transport = ShuffleTransport(self._program.spark, self.shards)
        return self._transport

    def _files(self) -> Callable[[], Any]:
        return _no_location if self._store is None else self._store.files.opener()

    # ------------------------------------------------------------------ planning

    def _current_plan(self) -> ShardedPlan:
        if self._plan_now is None:
            self._plan_now = self._plan(self._program.circuit().graph)
        return self._plan_now

    def _plan(self, graph: Graph) -> ShardedPlan:
        """The levels of a graph, with tables as first and views as last steps."""
        check_picklable(graph)
        placed = {name: frozenset({key_of(table.sort_key)}) for name, table in self.tables.items()}
        plan = plan_levels(graph, placed, self._join_policies)
        levels = plan.levels
        traces = {
            n: TraceLayout(step.state_sort_keys(), plan.trace_placements[n])
            for n in plan.trace_placements
            if (step := graph.nodes[n].operator) is not None
        }
        tables = []
        for node in graph:
            if node.role == "source":
                table = self.tables[str(node.name)]
                tables.append(TableStep(table, node.id, self._keep))
                traces[f"table {table.name}"] = TraceLayout((table.sort_key,), (key_of(table.sort_key),))
        levels[0].steps[:0] = tables
        for name, output in plan.outputs.items():
            view = ViewStep(name, output.slot, SortKey(graph.outputs[name].schema, output.key), self._keep)
            levels[output.level].steps.append(view)
            traces[view.id] = TraceLayout((view.sort_key,), (output.key,))
        return ShardedPlan(graph, levels, traces)

    def _balance(self, tick: int) -> None:
        """Choose the policies of joins by the sizes of traces, and move traces whose placement they change."""
        graph = self._current_plan().graph
        sizes = {
            name: [rows_of_trace(by_shard[s]) if s in by_shard else 0 for s in range(self.shards)]
            for name, by_shard in self._records.items()
        }
        join_policies = choose_policies(graph, sizes, self._join_policies, self.shards)
        if join_policies == self._join_policies:
            return
        before, old = self._join_policies, self._current_plan()
        for join in {*join_policies, *before}:
            if join_policies.get(join) != before.get(join):
                _log.info("%s: %s", graph.nodes[join].label, " and ".join(join_policies.get(join, SHARD)))
        self._join_policies, self._plan_now = join_policies, None
        try:
            new = self._current_plan()
            moved = {n: kept for n, kept in new.traces.items() if n in self._records and kept != old.traces[n]}
            self._move(tick, {n: (old.traces[n], kept) for n, kept in moved.items()}, self._records)
        except BaseException:
            self._join_policies, self._plan_now = before, None
            raise

    def _move(
        self,
        tick: int,
        traces: Mapping[str, tuple[TraceLayout, TraceLayout]],
        records: Records,
    ) -> None:
        """Run a job that moves traces from one layout to another."""
        level = Level([ResliceStep(n, old, new, tuple(records[n])) for n, (old, new) in traces.items()])
        inputs = {
            f"{name}{SHARD_SEPARATOR}{shard}": dict.fromkeys(range(self.shards), kept)
            for name in traces
            for shard, kept in records[name].items()
        }
        before = self._records
        self._records = {n: by_shard for n, by_shard in before.items() if n not in traces}
        try:
            plan = ShardedPlan(Graph(), (level,), {n: new for n, (_, new) in traces.items()})
            self._run(TickContext(tick, self.shards, self._files()), plan, inputs, (), (), state=before)
        except BaseException:
            self._records = before
            raise

    # ------------------------------------------------------------------ state

    def states(self) -> dict[str, Any]:
        return {
            f"{name}{SHARD_SEPARATOR}{shard}": kept
            for name, by_shard in self._records.items()
            for shard, kept in by_shard.items()
        }

    def snapshot(self) -> Any:
        mark = None if self._transport is None else self._transport.mark()
        return self.tables, set(self._views), self._records, self._join_policies, self._history_holds, mark

    def reset(self, snapshot: Any) -> None:
        self.tables, self._views, self._records, self._join_policies, self._history_holds, mark = snapshot
        self._plan_now = None
        if self._transport is not None:
            self._transport.return_to(mark)

    def state_metadata(self) -> dict[str, Any]:
        traces = self._current_plan().traces
        everywhere = sorted(n for n, kept in traces.items() if kept.replicated)
        owned = sorted(n for n, kept in traces.items() if kept.owned)
        join_policies = {join: list(sides) for join, sides in self._join_policies.items()}
        nodes = self._stateful_nodes()
        return {
            "shards": self.shards, "ranges": RANGES, "policies": join_policies, "everywhere": everywhere,
            "owned": owned, "nodes": nodes, "outputs": outputs_of(self._program.builder.graph),
        }  # fmt: skip

    def _stateful_nodes(self) -> list[str]:
        """The nodes that have state, even if it has no rows yet."""
        plan = self._current_plan()
        return sorted(name for name in plan.traces if name in plan.graph.nodes)

    def recover(
        self, store: Store, tables: Sequence[TableDefinition], tick: int, state_metadata: Mapping[str, Any]
    ) -> None:
        self.tables = {table.name: table for table in tables}
        self._views = set(self._program.views)
        self._join_policies = {join: tuple(sides) for join, sides in state_metadata.get("policies", {}).items()}
        plan = self._current_plan()
        shards = state_metadata.get("shards")
        old: dict[str, dict[int, TraceRecords]] = {}
        for name, kept in store.records().states.items():
            trace, shard = (name, 0) if shards is None else split_trace_name(name)
            if trace in plan.traces:
                old.setdefault(trace, {})[shard] = kept
        same = {"shards": self.shards, "ranges": RANGES, "owned": self.state_metadata()["owned"]}
        if {name: state_metadata.get(name) for name in same} == same:
            self._records = old
        else:
            self._reslice(store, old, shards, tick)
        stored = state_metadata.get("nodes", old)  # a node without rows may have no record
        missing = set(self._stateful_nodes()).difference(stored)
        if missing:
            warn_of_refill(plan.graph, missing)
            self._fill(list(self._program.views), tick)
        self._stale = stale_views(plan.graph, missing, state_metadata.get("outputs", {}))

    def _reslice(self, store: Store, old: Records, shards: int | None, tick: int) -> None:
        """Move state that was stored with another number of shards, or without shards, to these shards."""
        plan = self._current_plan()
        moved = {}
        for name, by_shard in old.items():
            given = next(iter(by_shard.values()))
            stored = tuple(store.sort_key(record) for record in given if isinstance(record, TraceRecord))
            new = plan.traces[name]
            # State of an embedded runtime counts as that of shard 0.
            moved[name] = TraceLayout(stored, tuple("owner" for _ in stored) if shards is None else new.placements), new
        self._move(tick, moved, old)

    # ------------------------------------------------------------------ reading

    def readable(self, name: str, tick: int) -> ReadableTable:
        table = self.tables.get(name)
        trace = f"view {name}" if table is None else f"table {name}"
        sort_key = self._current_plan().traces[trace].sort_keys[0] if table is None else table.sort_key
        created = 0 if table is None else table.created
        if self._store is None:
            assert isinstance(self._transport, MemoryTransport)
            options = HistoryOptions(sort_key, self._keep, created, table is not None and bool(table.primary_key))
            return self._transport.readable(trace, options, tick)
        kept = self._records.get(trace, {})
        records = [r for of_shard in kept.values() if isinstance(r := of_shard[0], TraceRecord)]
        spines: list[Any] = [self._store.spine(record) for record in records] or [None]
        return ShardedHistory([history_of(sort_key, self._keep, created, s, tick + 1) for s in spines])

    def sizes(self) -> dict[str, Size]:
        if self._store is None:
            assert isinstance(self._transport, MemoryTransport)
            return {name: Size(*size) for name, size in self._transport.sizes().items()}
        return {name: stored_size(stored_only(by_shard.values())) for name, by_shard in self._records.items()}

    def row_counts(self) -> RowCountSnapshot:
        return ShardedRowCounts(self._records)

    def transport_status(self) -> Mapping[str, Any] | None:
        return None if self._transport is None else self._transport.status()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None
