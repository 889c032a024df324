"""The embedded runtime: the circuit in this process. A small tick takes milliseconds; all state is on one machine.

A new view is filled from the nearest stored rows (`runtime.fill`): nodes that it shares with other views keep their
state, and are not computed again where their integral is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, SupportsInt

from dbspark.circuit.executor import Circuit, complete
from dbspark.circuit.graph import Graph
from dbspark.circuit.vm import TableConstraint
from dbspark.columnar import Batch, SortKey
from dbspark.columnar.delta import Delta
from dbspark.errors import TransactionError
from dbspark.operators.arranged import State
from dbspark.reporting import Activity, activity
from dbspark.runtime.fill import Integral, fill_states
from dbspark.runtime.progress import RowCountSnapshot, TickTimer
from dbspark.runtime.reslicing import reorder_spine, unsharded_states
from dbspark.runtime.runtime import Outcome, Runtime
from dbspark.runtime.sizes import sizes_of
from dbspark.runtime.state import difference, outputs_of, restore, stale_views, state_of, warn_of_refill
from dbspark.runtime.tables import ConstraintCheck, Operation, OperationKind, TableDefinition, TableState
from dbspark.sql.explain import Size
from dbspark.sql.program import Program
from dbspark.storage.store import Store
from dbspark.trace.config import SpineConfig
from dbspark.trace.history import History
from dbspark.trace.spine import Spine
from dbspark.trace.write_buffer import validate

STATE_SPINE_CONFIG = SpineConfig(
    min_background_rows=1 << 15,
    max_space_share=3.0,
    seldom_read_fanout=16,
    min_indexed_rows=1 << 9,
    min_filtered_rows=1 << 14,
    min_tiny_batches=8,
)
"""Spines of operators and of tables with a key: merges of 32 Ki rows and more run on the background thread, where they
cost a tick nothing on a machine with a second core. Append-only spines are merged rarely, because a merge would save no
space; lookups in many batches stay cheap, because batches and their indices are in memory."""
HISTORY_SPINE_CONFIG = replace(STATE_SPINE_CONFIG, append_only_fanout=16)
"""Spines of views, and of tables without a key. Append-only ones are merged more rarely still: no tick probes them."""


class _Tally(NamedTuple):
    """Row counts of the tables and views, in this order, and of the nodes of the circuit."""

    tables: Sequence[str]
    views: Sequence[str]
    counts: Sequence[int]
    nodes: RowCountSnapshot

    def rows(self) -> dict[str, int]:
        names = *(f"table {name}" for name in self.tables), *(f"view {name}" for name in self.views)
        return {**dict(zip(names, self.counts, strict=True)), **self.nodes.rows()}


def _filling(views: Sequence[str]) -> str:
    """The label of the progress report while views are filled."""
    return f"filling view {views[0]}" if len(views) == 1 else f"filling {len(views)} views"


def _all_of(history: History) -> Delta:
    return Delta.of(history.trace.scan())


class Embedded(Runtime):
    """Runs the circuit in this process."""

    def __init__(self, program: Program, keep: int) -> None:
        """`keep`: how many ticks back tables and views can be read (the setting `history`)."""
        self._program = program
        self._keep = keep
        self._circuit = Circuit(Graph())
        self.tables: dict[str, TableDefinition] = {}
        self._tables: dict[str, TableState] = {}
        self._views: dict[str, History] = {}
        self._before: tuple[Any, tuple[History, ...]] | None = None
        """For `undo`: the circuit before the unsettled tick, and the histories that the tick has changed."""
        self._corrections: dict[str, Delta] = {}
        """By view, the difference between its stored rows and the result of its query; the next tick applies it."""

    # ------------------------------------------------------------------ definitions

    def add_table(self, table: TableDefinition) -> None:
        self._add_table(table, self._table_history(table, table.created))
        self._circuit = self._rebuilt(self.states(), table.created)

    def _add_table(self, table: TableDefinition, history: History) -> None:
        self.tables = {**self.tables, table.name: table}
        self._tables = {**self._tables, table.name: TableState(table, history)}

    def add_views(self, names: Sequence[str], tick: int) -> None:
        kept = self.states()
        with activity(_filling(names)) as report:
            fresh, out = self._computed(names, kept, report=report)
        states = {**fresh, **kept}
        circuit = self._new_circuit()
        restore(circuit, states, tick)
        views = dict(self._views)
        for name in names:
            # The rows belong to the last tick: a view has no history before it was created.
            sort_key = SortKey(self._program.views[name].schema)
            views[name] = History(
                sort_key, self._keep, tick - 1, empty_at_tick=False, config=HISTORY_SPINE_CONFIG, seldom_read=True
            )
            views[name].append(out[name], tick)
        self._circuit, self._views = circuit, views

    def remove(self, name: str, tick: int) -> None:
        self.tables = {n: t for n, t in self.tables.items() if n != name}
        self._tables = {n: t for n, t in self._tables.items() if n != name}
        self._views = {n: h for n, h in self._views.items() if n != name}
        self._circuit = self._rebuilt(self.states(), tick)

    def _table_history(self, table: TableDefinition, tick: int, spine: Spine | None = None) -> History:
        keyed = bool(table.primary_key)
        config = STATE_SPINE_CONFIG if keyed else HISTORY_SPINE_CONFIG
        return History(table.sort_key, self._keep, tick, spine, config=config, seldom_read=not keyed, count_rows=keyed)

    def _new_circuit(self) -> Circuit:
        tables = {n: TableConstraint(t.sort_key, bool(t.primary_key)) for n, t in self.tables.items()}
        return Circuit(self._program.builder.graph, STATE_SPINE_CONFIG, tables=tables)

    def _rebuilt(
        self,
        states: Mapping[str, Any],
        tick: int,
        empty: Collection[str] = (),
        outputs: Mapping[str, str] | None = None,
    ) -> Circuit:
        """A circuit of the present program with stored state; nodes without stored state are filled.

        `empty`: nodes that may have no stored state because they have no rows; all others are worth a warning.
        `outputs`: by view, the node whose rows are stored, where that is known. A view whose rows were computed by
        other operators is corrected by the next tick.
        """
        circuit = self._new_circuit()
        missing = set(restore(circuit, states, tick))
        unknown = missing.difference(empty)
        if unknown:
            warn_of_refill(circuit.graph, unknown)
            self.refilled = True
        stale = stale_views(circuit.graph, unknown, outputs or {})
        if missing or stale:
            views = list(self._program.views) if missing else stale
            with activity(_filling(views)) as report:
                fresh, now = self._computed(views, states, stale, report)
            circuit = self._new_circuit()
            restore(circuit, {**states, **{n: s for n, s in fresh.items() if n in missing}}, tick)
            for name in stale:
                history = self._views[name]
                change = difference(now[name], history.trace.scan(), history.sort_key)
                if change.rows:
                    self._corrections[name] = change
        return circuit

    def _computed(
        self,
        views: Sequence[str],
        kept: Mapping[str, State],
        stale: Collection[str] = (),
        report: Activity | None = None,
    ) -> tuple[dict[str, State], dict[str, Delta]]:
        """The states that some views need and `kept` lacks, by node, perhaps more of them; and the rows of the views.

        `stale`: views whose histories do not hold the result of their query.
        """
        graph = self._program.builder.graph
        integrals: dict[str, Integral] = {
            node.id: partial(_all_of, self._tables[str(node.name)].history) for node in graph if node.role == "source"
        }
        for name, history in self._views.items():
            if name in stale:
                continue
            integrals.setdefault(graph.outputs[name].id, partial(_all_of, history))
        filled = fill_states(graph, kept, views, integrals, report)
        if filled is not None:
            return filled.states, {name: complete(value) for name, value in filled.outputs.items()}
        part = Graph()
        part.nodes = graph.nodes
        part.outputs = {name: graph.outputs[name] for name in views}
        circuit = Circuit(part)
        now = {n: _all_of(t.history) for n, t in self._tables.items()}
        out = circuit.step({n: d for n, d in now.items() if d.rows})
        return state_of(circuit), out

    # ------------------------------------------------------------------ ticks

    def operation(self, table: str, kind: OperationKind, data: Any, weight: str | None = None) -> Operation:
        return self.tables[table].operation(kind, data, weight)

    def step(
        self,
        operations: Mapping[str, list[Operation]],
        tick: int,
        subscribed_views: Collection[str],
        timer: TickTimer,
    ) -> Outcome:
        """Run one tick in five steps; only the last one changes what `states` names.

        1. Net the operations of each table into one delta, and set up the checks of its constraints.
        2. Run the circuit on the deltas. Its VM makes the checks of small deltas on the way.
        3. Validate the deltas of views, and sort those of subscribed views. All that can be refused is refused here.
        4. Finish the remaining checks; nothing may be written to a table that is still being checked. If 1 to 4 raise,
           the circuit is reset; a violated constraint is reported in preference to an error that follows from it.
        5. Append the deltas to the histories of tables and views. If that raises, the tick is undone.
        """
        before = self._circuit.snapshot()
        table_rows: dict[str, int] = {}
        table_deltas: dict[str, Delta] = {}
        checks: dict[str, ConstraintCheck] = {}
        view_deltas: dict[str, Delta] = {}
        subscribed: dict[str, Batch] = {}
        try:
            for name, ops in operations.items():
                delta, check = self._tables[name].net_delta(ops)
                table_rows[name] = delta.rows
                if delta.rows:
                    table_deltas[name] = delta
                if check is not None:
                    checks[name] = check
            timer.checked = perf_counter()
            vm_lists = {name for name, check in checks.items() if check.listing}
            out = self._circuit.step(table_deltas, subscribed_views, checks)
            for name, history in self._views.items():
                change = out[name]
                if name in self._corrections:
                    change = Delta.sum(history.sort_key.schema, [change, self._corrections[name]])
                view_deltas[name] = validate(change, history.sort_key)
                if name in subscribed_views:
                    subscribed[name] = view_deltas[name].sorted_by(history.sort_key)
            for check in checks.values():
                check.finish()
        except BaseException as error:
            self._circuit.reset(before)
            for check in checks.values():
                check.wait()
            for name in operations:
                self._tables[name].history.invalidate_directory()
            if isinstance(error, Exception) and not isinstance(error, TransactionError):
                for check in checks.values():  # a violated constraint explains more than an error that follows from it
                    check.recheck()
            raise
        written = (
            *(self._tables[name].history for name in table_deltas),
            *(self._views[n] for n, d in view_deltas.items() if d.rows),
        )
        try:
            for history in written:
                history.begin_tick()
            self._before = before, written
            for name, delta in table_deltas.items():
                self._tables[name].history.append(delta, tick, name in vm_lists and name not in checks)
            view_rows: dict[str, SupportsInt] = {}
            for name, delta in view_deltas.items():
                view_rows[name] = self._views[name].append(delta, tick) if delta.rows else 0
            timer.computed = perf_counter()
            return Outcome(table_rows, view_rows, subscribed)
        except BaseException:
            self._before = before, written
            self.undo()
            raise

    def hold(self, view: str, tick: int | None) -> None:
        if view in self._views:
            self._views[view].hold(tick)

    def settle(self) -> None:
        if self._before is not None:
            for history in self._before[1]:
                history.commit_tick()
            self._before, self._corrections = None, {}

    def undo(self) -> None:
        if self._before is not None:
            circuit, written = self._before
            self._circuit.reset(circuit)
            for history in written:
                history.rollback_tick()
            self._before = None

    # ------------------------------------------------------------------ state

    def states(self) -> dict[str, Any]:
        states: dict[str, Any] = dict(state_of(self._circuit))
        states |= {f"table {n}": (t.history.spine,) for n, t in self._tables.items()}
        states |= {f"view {n}": (h.spine,) for n, h in self._views.items()}
        return states

    def snapshot(self) -> Any:
        return self.tables, self._tables, self._views, self._circuit

    def reset(self, snapshot: Any) -> None:
        self.tables, self._tables, self._views, self._circuit = snapshot

    def state_metadata(self) -> dict[str, Any]:
        return {"outputs": outputs_of(self._program.builder.graph)}

    def corrections(self) -> Collection[str]:
        return list(self._corrections)

    def recover(
        self, store: Store, tables: Sequence[TableDefinition], tick: int, state_metadata: Mapping[str, Any]
    ) -> None:
        states = unsharded_states(store, state_metadata)
        for table in tables:
            stored = states.get(f"table {table.name}")
            spine = stored[0] if stored else None
            self._add_table(table, self._table_history(table, tick, spine))
        for name, view in self._program.views.items():
            sort_key = SortKey(view.schema)
            spine = states[f"view {name}"][0]
            if spine.sort_key is not sort_key:  # stored by shards in another order
                states[f"view {name}"] = (spine := reorder_spine(spine, sort_key),)
            self._views[name] = History(
                sort_key, self._keep, tick, spine, config=HISTORY_SPINE_CONFIG, seldom_read=True
            )
        self._circuit = self._rebuilt(states, tick, state_metadata.get("nodes", ()), state_metadata.get("outputs"))

    def readable(self, name: str, tick: int) -> History:
        return self._tables[name].history if name in self._tables else self._views[name]

    def sizes(self) -> dict[str, Size]:
        return sizes_of(self.states())

    def row_counts(self) -> RowCountSnapshot:
        rows = [table.history.unconsolidated_rows for table in self._tables.values()]
        rows += [history.unconsolidated_rows for history in self._views.values()]
        return _Tally(tuple(self._tables), tuple(self._views), rows, self._circuit.tally())

    def close(self) -> None:
        self._circuit.close()
        for history in (*(t.history for t in self._tables.values()), *self._views.values()):
            history.close()
