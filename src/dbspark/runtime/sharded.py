"""The circuit as Spark jobs: one job for every tick, over state that lies in files.

The driver plans, hands out the records of the traces, and takes the new ones from the reports of the tasks; it never
holds rows, but for those that a transaction gives it. Tables and views are steps like the nodes of the circuit: a table
turns operations into a change where its rows are, a view keeps its history where its rows come in. A DataFrame that is
inserted is routed to the shards by the tasks of its own partitions.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import pyarrow as pa

from dbspark.circuit.executor import NodeRowCounts
from dbspark.circuit.graph import Graph
from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.delta import Delta
from dbspark.errors import ConfigError
from dbspark.operators.external_function import ExternalFunction
from dbspark.operators.placement import SHARD, key_of
from dbspark.runtime.balanced_joins import chosen
from dbspark.runtime.exchange import Records, Supersteps, packed_code
from dbspark.runtime.fixpoint import ITERATIONS, to_the_end, unrolled
from dbspark.runtime.placement import RANGES
from dbspark.runtime.planner import Level, Policies, layout
from dbspark.runtime.progress import Watch
from dbspark.runtime.reader import size_of
from dbspark.runtime.reslicing import AT, Kept, Reslice, trace_of
from dbspark.runtime.routing import Routed, routed, sent
from dbspark.runtime.runtime import Outcome, Runtime, Tally
from dbspark.runtime.state import warn_of_refill
from dbspark.runtime.tables import Kind, TableDefinition, TableState
from dbspark.runtime.task import REPORT, TOLD, Job, Row, Work
from dbspark.sql.explain import Size
from dbspark.sql.program import Program
from dbspark.storage.manifest import TraceRecord
from dbspark.storage.segment import decoded
from dbspark.storage.store import Store
from dbspark.trace.history import Histories, History, history_of

_log = logging.getLogger("dbspark")


@dataclass(frozen=True, slots=True)
class TableStep:
    """A table in front of the circuit: operations come in, their change goes out."""

    table: TableDefinition
    slot: str
    keep: int

    @property
    def id(self) -> str:
        return f"table {self.table.name}"

    def run(self, work: Work) -> None:
        if work.job.fresh:
            if self.id in work.records:
                work.values[self.slot] = Delta.of(self._history(work, work.job.tick + 1).trace.scan())
            return
        operations = sent(work, self.table)
        if not operations:
            return
        history = self._history(work, work.job.tick)
        delta, check = TableState(self.table, history).change(operations)
        if check is not None:
            check.done()
        change = delta.sorted_by(history.sort_key)
        if change.rows:
            history.append(Delta.of(change), work.job.tick)
            history.trace.finish()
            work.keep(self.id, (history.spine,))
            work.figures.setdefault("tables", {})[self.table.name] = change.rows
            work.values[self.slot] = Delta.of(change)

    def _history(self, work: Work, tick: int) -> History:
        return opened(work, self.id, self.table.sort_key, self.keep, self.table.created, tick)


@dataclass(frozen=True, slots=True)
class ViewStep:
    """A view behind the circuit: keeps what comes."""

    name: str
    slot: str
    sort_key: SortKey
    keep: int

    @property
    def id(self) -> str:
        return f"view {self.name}"

    def run(self, work: Work) -> None:
        tick = work.job.tick
        change = work.delta(self.slot, self.sort_key.schema).sorted_by(self.sort_key)
        if work.job.fresh:
            # The rows belong to the tick that is past: a view has no history before it was made.
            history = History(self.sort_key, self.keep, tick - 1, known=False)
        elif change.rows:
            history = opened(work, self.id, self.sort_key, self.keep, 0, tick)
        else:
            return
        history.append(Delta.of(change), tick)
        history.trace.finish()
        work.keep(self.id, (history.spine,))
        if change.rows:
            work.figures.setdefault("views", {})[self.name] = change.rows
            if self.name in work.job.wanted:
                work.tell(self.id, change)


def opened(work: Work, name: str, sort_key: SortKey, keep: int, created: int, tick: int) -> History:
    """What is kept of a table or view on this shard, up to before a tick."""
    spine = work.state(name, [sort_key])[0] if name in work.records else None
    history = history_of(sort_key, keep, created, spine, tick)
    history.hold(work.job.held.get(name))
    return history


@dataclass(frozen=True, slots=True)
class _Plan:
    """Levels, and the traces that they keep."""

    graph: Graph
    levels: tuple[Level, ...]
    traces: dict[str, Kept]
    resumed: tuple[tuple[Level, ...], ...] = ()
    """The levels from where fixpoints that are not over are gone on with."""


def check_travels(graph: Graph) -> None:
    """Refuse what a task cannot do: it has no session to ask Spark in."""
    for node in graph:
        if isinstance(node.operator, ExternalFunction):
            continue  # Spark is asked between the levels
        try:
            packed_code(node.operator)
        except Exception as error:
            raise ConfigError(
                f"[NOT_SHARDED.THROUGH_SPARK] {node.label!r} is evaluated by Spark itself, which the tasks of a "
                "pipeline on shards cannot ask about whole groups, inside an outer join or in a recursion. Open the "
                "pipeline with shards=None, or write the query without it: explain names what Spark evaluates"
            ) from error


class Sharded(Runtime):
    """See the module's preface."""

    def __init__(self, program: Program, shards: int, store: Store, keep: int) -> None:
        if shards < 1:
            raise ConfigError(f"shards: {shards} is not a number of shards; give 1 or more, or None to run embedded")
        self.shards = shards
        self._program = program
        self._store = store
        self._keep = keep
        self.tables: dict[str, TableDefinition] = {}
        self._views: set[str] = set()
        self._records: dict[str, dict[int, tuple[TraceRecord, ...]]] = {}
        self._steps: Supersteps | None = None
        self._planned: dict[int, _Plan] = {}
        """By how many iterations of fixpoints are unrolled."""
        self._iterations = ITERATIONS
        """As many as the last tick took."""
        self._policies: Policies = {}
        self._before: dict[str, dict[int, tuple[TraceRecord, ...]]] | None = None
        """The records before the tick that has not been settled yet."""
        self._held: dict[str, int] = {}
        """By trace, from which tick on somebody reads it."""

    # ------------------------------------------------------------------ definitions

    def add_table(self, table: TableDefinition) -> None:
        self.tables = {**self.tables, table.name: table}
        self._planned = {}

    def add_views(self, names: Sequence[str], tick: int) -> None:
        self._planned = {}
        self._balance(tick)  # a join may have to share a side now, which then lies by its key again
        self._fill(names, tick)
        self._views |= set(names)
        self._planned = {}

    def _fill(self, names: Sequence[str], tick: int) -> None:
        """Compute from the tables what is not kept yet of some views."""
        graph = self._program.builder.graph
        part = Graph()
        part.nodes, part.outputs = graph.nodes, {name: graph.outputs[name] for name in names}
        plan = self._plan(part.pruned())
        # Nodes that other views have keep their state; they are computed again only for what follows them.
        job = Job(tick, self.shards, self._files(), fresh=True, known=frozenset(self._records))
        tables = {name: given for name, given in self._records.items() if name.startswith("table ")}
        self._run(job, plan, tables, (), ())

    def remove(self, name: str, tick: int) -> None:
        self.tables = {n: t for n, t in self.tables.items() if n != name}
        self._views -= {name}
        self._held = {n: t for n, t in self._held.items() if n != f"view {name}"}
        self._planned = {}
        self._policies = {j: p for j, p in self._policies.items() if j in self._program.builder.graph.nodes}
        kept = self._present().traces
        self._records = {n: given for n, given in self._records.items() if n in kept}

    # ------------------------------------------------------------------ ticks

    def operation(self, table: str, kind: Kind, data: Any, weight: str | None = None) -> Any:
        return routed(self.tables[table], kind, data, weight)

    def step(self, operations: Mapping[str, list[Any]], tick: int, wanted: Collection[str], watch: Watch) -> Outcome:
        job = Job(tick, self.shards, self._files(), wanted=frozenset(wanted), held=self._held)
        rows: list[Row] = []
        frames: list[Any] = []
        for table, given in operations.items():
            for number, operation in enumerate(given):
                made = Routed(self.tables[table], number, operation)
                rows += made.rows(self.shards)
                frames += made.frames(self.shards)
        self._balance(tick)
        plan = self._present(self._iterations)
        watch.checked = perf_counter()
        self._before = self._records
        try:
            out = self._run(job, plan, self._records, rows, frames)
            outcome, iterations = self._outcome(out, plan, operations)
        except BaseException:
            self.undo()
            raise
        if plan.resumed:
            self._iterations = unrolled(iterations)
        watch.computed = perf_counter()
        return outcome

    def _outcome(self, out: Sequence[Row], plan: _Plan, tables: Collection[str]) -> tuple[Outcome, int]:
        """What the reports of a tick say, and how many iterations it took."""
        given_rows: dict[str, int] = dict.fromkeys(tables, 0)
        taken: dict[str, int] = dict.fromkeys(sorted(self._views), 0)
        told: dict[str, list[Batch]] = {}
        iterations = 0
        for _, slot, payload in out:
            if slot == REPORT:
                report = json.loads(payload)
                iterations = max([iterations, *report.get("iterations", {}).values()])
                for counts, found in ((given_rows, report.get("tables", {})), (taken, report.get("views", {}))):
                    for name, count in found.items():
                        counts[name] += count
            elif slot.startswith(TOLD):
                trace = slot.removeprefix(TOLD)
                batch = decoded(pa.py_buffer(payload), plan.traces[trace].sort_keys[0])
                told.setdefault(trace.removeprefix("view "), []).append(batch)
        return Outcome(given_rows, taken, {name: merge(batches) for name, batches in told.items()}), iterations

    def hold(self, view: str, tick: int | None) -> None:
        name = f"view {view}"
        held = {n: t for n, t in self._held.items() if n != name}
        self._held = held if tick is None else {**held, name: tick}

    def settle(self) -> None:
        self._before = None

    def undo(self) -> None:
        if self._before is not None:
            self._records, self._before = self._before, None

    def _run(
        self,
        job: Job,
        plan: _Plan,
        records: Mapping[str, Mapping[int, tuple[TraceRecord, ...]]],
        rows: Sequence[Row],
        frames: Sequence[Any],
    ) -> list[Row]:
        """Run a job and make what its tasks have written the present."""
        given: Records = {
            name: {shard: [r.to_json() for r in kept] for shard, kept in by_shard.items()}
            for name, by_shard in records.items()
        }
        steps = self._supersteps()

        def one(begin: int | None, rows: Sequence[Row]) -> list[Row]:
            if begin is None:
                return steps.run(job, plan.levels, given, rows, frames)
            return steps.run(job, plan.resumed[begin], given, rows)

        out = to_the_end(one, rows)
        found = {name: dict(by_shard) for name, by_shard in self._records.items()}
        for _, slot, payload in out:
            if slot == REPORT:
                report = json.loads(payload)
                for name, made in report["traces"].items():
                    kept = zip(made, plan.traces[name].sort_keys, strict=True)
                    found.setdefault(name, {})[report["shard"]] = tuple(self._store.adopted(r, a) for r, a in kept)
        self._records = found
        return out

    def _supersteps(self) -> Supersteps:
        if self._steps is None:
            self._steps = Supersteps(self._program.spark, self.shards)
        return self._steps

    def _files(self) -> Callable[[], Any]:
        return self._store.files.opener()

    # ------------------------------------------------------------------ planning

    def _present(self, iterations: int = ITERATIONS) -> _Plan:
        if iterations not in self._planned:
            plan = self._plan(self._program.circuit().graph, iterations)
            if iterations < ITERATIONS and plan.resumed:  # a tick that takes more than the last may take many more
                plan = replace(plan, resumed=self._present().resumed)
            self._planned[iterations] = plan
        return self._planned[iterations]

    def _plan(self, graph: Graph, iterations: int = ITERATIONS) -> _Plan:
        """Levels of a graph, with its tables in front and its outputs, which are views, behind."""
        check_travels(graph)
        placed = {name: frozenset({key_of(table.sort_key)}) for name, table in self.tables.items()}
        plan = layout(graph, placed, self._policies, iterations)
        levels = plan.levels
        traces = {
            n: Kept(step.state_sort_keys(), plan.lies[n])
            for n in plan.lies
            if (step := graph.nodes[n].operator) is not None
        }
        tables = []
        for node in graph:
            if node.role == "source":
                table = self.tables[str(node.name)]
                tables.append(TableStep(table, node.id, self._keep))
                traces[f"table {table.name}"] = Kept((table.sort_key,), (key_of(table.sort_key),))
        levels[0].steps[:0] = tables
        for name, output in plan.outputs.items():
            view = ViewStep(name, output.slot, SortKey(graph.outputs[name].schema, output.key), self._keep)
            levels[output.level].steps.append(view)
            traces[view.id] = Kept((view.sort_key,), (output.key,))
        return _Plan(graph, levels, traces, tuple(levels[begin:] for begin in plan.resumed))

    def _balance(self, tick: int) -> None:
        """Change the policies of joins where what is kept says so, and move what lies elsewhere then."""
        graph = self._present().graph
        sizes = {
            name: [size_of([by_shard[s]]).rows if s in by_shard else 0 for s in range(self.shards)]
            for name, by_shard in self._records.items()
        }
        policies = chosen(graph, sizes, self._policies, self.shards)
        if policies == self._policies:
            return
        before, old = self._policies, self._present()
        for join in {*policies, *before}:
            if policies.get(join) != before.get(join):
                _log.info("%s: %s", graph.nodes[join].label, " and ".join(policies.get(join, SHARD)))
        self._policies, self._planned = policies, {}
        try:
            new = self._present()
            moved = {n: kept for n, kept in new.traces.items() if n in self._records and kept != old.traces[n]}
            self._move(tick, {n: (old.traces[n], kept) for n, kept in moved.items()}, self._records)
        except BaseException:
            self._policies, self._planned = before, {}
            raise

    def _move(
        self,
        tick: int,
        traces: Mapping[str, tuple[Kept, Kept]],
        records: Mapping[str, Mapping[int, tuple[TraceRecord, ...]]],
    ) -> None:
        """Make traces lie, and be ordered, as they are to be."""
        level = Level([Reslice(n, old, new, tuple(records[n])) for n, (old, new) in traces.items()])
        given = {
            f"{name}{AT}{shard}": dict.fromkeys(range(self.shards), kept)
            for name in traces
            for shard, kept in records[name].items()
        }
        before = self._records
        self._records = {n: by_shard for n, by_shard in before.items() if n not in traces}
        try:
            plan = _Plan(Graph(), (level,), {n: new for n, (_, new) in traces.items()})
            self._run(Job(tick, self.shards, self._files()), plan, given, (), ())
        except BaseException:
            self._records = before
            raise

    # ------------------------------------------------------------------ state

    def states(self) -> dict[str, Any]:
        return {
            f"{name}{AT}{shard}": kept for name, by_shard in self._records.items() for shard, kept in by_shard.items()
        }

    def snapshot(self) -> Any:
        return self.tables, set(self._views), self._records, self._policies, self._held

    def reset(self, snapshot: Any) -> None:
        self.tables, self._views, self._records, self._policies, self._held = snapshot
        self._planned = {}

    def described(self) -> dict[str, Any]:
        traces = self._present().traces
        everywhere = sorted(n for n, kept in traces.items() if kept.everywhere)
        owned = sorted(n for n, kept in traces.items() if kept.owned)
        policies = {join: list(given) for join, given in self._policies.items()}
        nodes = self._kept_nodes()
        return {
            "shards": self.shards, "ranges": RANGES, "policies": policies, "everywhere": everywhere, "owned": owned,
            "nodes": nodes,
        }  # fmt: skip

    def _kept_nodes(self) -> list[str]:
        """The nodes that keep something, or may."""
        plan = self._present()
        return sorted(name for name in plan.traces if name in plan.graph.nodes)

    def recover(self, store: Store, tables: Sequence[TableDefinition], tick: int, described: Mapping[str, Any]) -> None:
        self.tables = {table.name: table for table in tables}
        self._views = set(self._program.views)
        self._policies = {join: tuple(given) for join, given in described.get("policies", {}).items()}
        plan = self._present()
        shards = described.get("shards")
        old: dict[str, dict[int, tuple[TraceRecord, ...]]] = {}
        for name, kept in store.records().states.items():
            trace, shard = (name, 0) if shards is None else trace_of(name)
            if trace in plan.traces:
                old.setdefault(trace, {})[shard] = kept
        same = {"shards": self.shards, "ranges": RANGES, "owned": self.described()["owned"]}
        if {name: described.get(name) for name in same} == same:
            self._records = old
        else:
            self._slice(store, old, shards, tick)
        stored = described.get("nodes", old)  # a node without rows may have nothing stored, and is known all the same
        missing = set(self._kept_nodes()).difference(stored)
        if missing:
            warn_of_refill(plan.graph, missing)
            self._fill(list(self._program.views), tick)

    def _slice(
        self, store: Store, old: Mapping[str, Mapping[int, tuple[TraceRecord, ...]]], shards: int | None, tick: int
    ) -> None:
        """Take over what other shards, or none, have kept."""
        plan = self._present()
        moved = {}
        for name, by_shard in old.items():
            stored = tuple(store.sort_key(record) for record in next(iter(by_shard.values())))
            new = plan.traces[name]
            # Where nothing is sharded, all is in one place.
            moved[name] = Kept(stored, tuple("owner" for _ in stored) if shards is None else new.lies), new
        self._move(tick, moved, old)

    # ------------------------------------------------------------------ reading

    def readable(self, name: str, tick: int) -> Histories:
        table = self.tables.get(name)
        trace = f"view {name}" if table is None else f"table {name}"
        sort_key = self._present().traces[trace].sort_keys[0] if table is None else table.sort_key
        created = 0 if table is None else table.created
        kept = self._records.get(trace, {})
        spines: list[Any] = [self._store.spine(records[0]) for records in kept.values()] or [None]
        return Histories([history_of(sort_key, self._keep, created, s, tick + 1) for s in spines])

    def sizes(self) -> dict[str, Size]:
        return {name: size_of(list(by_shard.values())) for name, by_shard in self._records.items()}

    def tally(self) -> Tally:
        return NodeRowCounts({name: size.rows for name, size in self.sizes().items()})

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()
            self._steps = None
