"""`Circuit`: a graph that runs, one tick at a time.

A tick reads the values of delays, computes every node once after its inputs, and commits. States are immutable values:
a tick computes new ones and replaces all old ones at the end, in one assignment, together with the values of delays. So
if an operator raises, every state and every delay is as before.

The operator VM (`circuit.vm`) runs ticks of small deltas; larger ones run operator by operator, with the same result.

Large merges of states may run on the background thread (`config.min_background_rows`): they begin when a tick is over,
and the next one that finds no buffered ticks adopts what has been merged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from dbspark.circuit.graph import Graph, Node
from dbspark.circuit.vm import BufferedTick, OperatorVM, StateRowCounts, TableConstraint
from dbspark.columnar import Batch, SortKey
from dbspark.columnar.delta import ChunkedDelta, Delta
from dbspark.errors import CircuitError, EvaluationError
from dbspark.kernels.preload import operator_vm_ready
from dbspark.operators.arranged import State
from dbspark.trace.background_merges import BackgroundMerges
from dbspark.trace.config import DEFAULT, SpineConfig
from dbspark.zset import ZSet

TickResult = tuple[dict[str, State], dict[str, Any], dict[str, Any], tuple[BufferedTick, ...], bool]
"""Results of a tick before the commit: changed states, outputs, values of delays, buffered ticks, whether to flush."""


class NodeRowCounts(NamedTuple):
    """Rows in the states of nodes at one moment, before consolidation."""

    inserted: Mapping[str, int]
    buffered: StateRowCounts | None = None

    def rows(self) -> dict[str, int]:
        """Row counts by the id of the node."""
        out = dict(self.inserted)
        for node, more in () if self.buffered is None else self.buffered.items():
            out[node] += more
        return out


class Circuit:
    """A validated graph with its state."""

    def __init__(
        self,
        graph: Graph,
        config: SpineConfig = DEFAULT,
        use_vm: bool = True,
        tables: Mapping[str, TableConstraint] | None = None,
    ) -> None:
        """`config`: of the spines of all states. Without `use_vm` every operator steps by itself.

        `tables`: by source, the constraints that `step` can check for its deltas.
        """
        self.graph = graph.pruned()
        self._config = config
        self._background_merges: dict[str, list[BackgroundMerges]] = {}
        """By node, the background merges of its spines."""
        self._schedule = [n for n in self.graph.schedule() if n.role == "operator"]
        self._sources = {str(n.name): n for n in self.graph if n.role == "source"}
        self._delays = [n for n in self.graph if n.role == "delay"]
        self._skips_empty_input = {n.id for n in self._schedule if n.skips_empty_input}
        """Nodes whose step is skipped in a tick in which all their inputs are empty."""
        self.tick_number = 0
        """Ticks that have been committed."""
        self._inserted_states: dict[str, State] = {
            n.id: self.configured(n.operator.initial_state()) for n in self._schedule if n.operator is not None
        }
        self._counted: tuple[Any, dict[str, int]] = None, {}
        """The states at the last count, and their rows: the count is reused while states are the same."""
        self._buffered: tuple[BufferedTick, ...] = ()
        """Ticks whose batches states have not inserted yet (`circuit.vm`)."""
        self._delay_values: dict[str, Any] = {n.id: _seed(n) for n in self._delays}
        self._uses_vm = use_vm
        self._vm: OperatorVM | None = None
        self._tables = tables

    def tick(self, inputs: Mapping[str, Any] | None = None) -> dict[str, ZSet]:
        """Run one tick; returns the outputs as Z-sets."""
        return self._run(inputs or {}, as_zset)

    def step(
        self,
        inputs: Mapping[str, Any],
        in_order: Collection[str] = (),
        checks: dict[str, Any] | None = None,
    ) -> dict[str, Delta]:
        """Run one tick on the deltas (or values) of sources; returns the outputs as deltas.

        `in_order`: outputs that are also sorted by whole rows, which costs less here than later. `checks`: by source,
        the constraint checks of its table (`circuit.vm.TableCheck`). The VM removes those that it has done; the caller
        does those that remain when this returns.
        """
        return self._run(inputs, complete, in_order, checks)

    def configured(self, state: State) -> State:
        """A state whose spines have the configuration of this circuit."""
        return tuple(spine.with_config(self._config) for spine in state)

    def _run(
        self,
        inputs: Mapping[str, Any],
        finished: Callable[[Any], Any],
        in_order: Collection[str] = (),
        checks: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        if not inputs.keys() <= self._sources.keys():
            unknown = ", ".join(sorted(set(inputs) - set(self._sources)))
            raise CircuitError(f"no source {unknown}; the sources are {', '.join(self._sources)}")
        if not self._buffered:  # adopting replaces spines, so the VM would have to copy all directories again
            self._adopt_merges()
        values: dict[str, Any] = dict(self._delay_values)
        for name, node in self._sources.items():
            change = inputs.get(name)
            values[node.id] = Delta.empty(node.schema) if change is None else as_delta(change, node)
        states, results, delay_values, buffered, flush = self._run_nodes(values, in_order, checks)
        outputs: dict[str, Any] = {}
        for name, value in results.items():
            try:
                outputs[name] = finished(value)
            except Exception as error:
                raise _of_view(error, name) from error
        # Nothing has been changed so far. Inserting may fail: out of memory, or because a background merge has failed.
        before = self.snapshot()
        try:
            self._take(states)
            self._buffered = buffered
            if flush:
                self._take_in()
        except BaseException:
            self.reset(before)
            raise
        self._delay_values = delay_values
        self.tick_number += 1
        return outputs

    def _run_nodes(
        self, values: dict[str, Any], in_order: Collection[str], checks: dict[str, Any] | None
    ) -> TickResult:
        """Run the VM, or else every operator; errors of expressions are extended by the name of the view."""
        before = dict(values)
        try:
            small = self._run_vm(values, in_order, checks)
        except Exception as error:
            if _of_view(error, "") is not error:
                self._run_operators(before)  # raises the same error, from the operator where it occurs
            raise
        return small or self._run_operators(values)

    def _run_vm(
        self, values: dict[str, Any], in_order: Collection[str], checks: dict[str, Any] | None
    ) -> TickResult | None:
        """Run a small tick by the VM; None if the VM cannot run it."""
        if self._vm is None and self._uses_vm and operator_vm_ready():
            self._vm = OperatorVM(self.graph, self._schedule, self._tables)
            self._uses_vm = self._vm.useful
        if self._vm is None or not self._uses_vm:
            return None
        tick = self._vm.run(values, self._inserted_states, self._buffered, in_order, checks)
        if tick is None:
            return None
        if checks:
            self._vm.remove_made_checks(checks)
        outputs = {}
        for name, node in self.graph.outputs.items():
            outputs[name] = tick.value(node)
            if name in in_order and name in self._vm.sorted_outputs:
                outputs[name] = outputs[name].add_sorted(tick.in_order(name))
        return tick.states, outputs, {n.id: tick.value(n.inputs[0]) for n in self._delays}, tick.buffered, tick.flush

    def _run_operators(self, values: dict[str, Any]) -> TickResult:
        """Run a tick operator by operator."""
        before_all, states = self._states, dict[str, State]()
        for node in self._schedule:
            assert node.operator is not None
            inputs = [values[i.id] for i in node.inputs]
            if node.id in self._skips_empty_input and not any(value.rows for value in inputs):
                values[node.id] = Delta.empty(node.schema)
                continue
            before = before_all[node.id]
            try:
                state, values[node.id] = node.operator.step(before, inputs)
            except Exception as error:
                raise _of_view(error, self.graph.output_of(node.id)) from error
            if state is not before:
                states[node.id] = state
        held = {n.id: values[n.inputs[0].id] for n in self._delays}
        return states, {name: values[node.id] for name, node in self.graph.outputs.items()}, held, (), False

    @property
    def _states(self) -> dict[str, State]:
        """All states, buffered ticks included."""
        self._take_in()
        return self._inserted_states

    @_states.setter
    def _states(self, states: dict[str, State]) -> None:
        self._inserted_states, self._buffered = states, ()

    def _take_in(self) -> None:
        if self._buffered:
            assert self._vm is not None
            self._take(self._vm.flushed_states(self._inserted_states, self._buffered))
            self._buffered = ()

    def _take(self, states: Mapping[str, State]) -> None:
        """Replace states by changed ones."""
        if states:
            if self._config.min_background_rows is not None:
                states = {name: self._merging(name, state) for name, state in states.items()}
            self._inserted_states = {**self._inserted_states, **states}

    def _merging(self, name: str, state: State) -> State:
        """Start the large merges of a state on the background thread; returns the state."""
        merges = self._background_merges.get(name)
        if merges is None:
            if not any(spine.merges for spine in state):
                return state
            merges = self._background_merges[name] = [BackgroundMerges() for _ in state]
        return tuple([b.start_merges(spine) for b, spine in zip(merges, state, strict=True)])

    def _adopt_merges(self) -> None:
        """Adopt the progress of background merges into the states."""
        for name, merges in self._background_merges.items():
            busy = merges[0].running if len(merges) == 1 else any(m.running for m in merges)
            if not busy:
                continue
            before = self._inserted_states[name]
            merged = tuple([b.adopt(spine) for b, spine in zip(merges, before, strict=True)])
            if merged != before:
                self._inserted_states = {**self._inserted_states, name: merged}

    def close(self) -> None:
        """Stop the background merges; all states stay readable."""
        for merges in self._background_merges.values():
            for spine_merges in merges:
                spine_merges.cancel()

    def snapshot(self) -> Any:
        """Everything that a tick changes, as an immutable value; costs nothing to take."""
        return self._inserted_states, self._buffered, self._delay_values, self.tick_number

    def reset(self, snapshot: Any) -> None:
        """Go back to a snapshot."""
        self._inserted_states, self._buffered, self._delay_values, self.tick_number = snapshot

    def tally(self) -> NodeRowCounts:
        """The row counts of all states at this moment; cheap enough for every tick."""
        if self._counted[0] is not self._inserted_states:
            counts = {node: sum([s.rows for s in spines]) for node, spines in self._inserted_states.items() if spines}
            self._counted = self._inserted_states, counts
        if not self._buffered:
            return NodeRowCounts(self._counted[1])
        assert self._vm is not None
        return NodeRowCounts(self._counted[1], self._vm.buffered_rows(self._buffered))

    def state_rows(self) -> dict[str, int]:
        """Rows in the state of each node that has state, by label."""
        out: dict[str, int] = {}
        for node in self._schedule:
            rows = sum(spine.consolidated().rows for spine in self._states[node.id])
            if self._states[node.id]:
                out[f"{node.label} #{node.id[:6]}"] = rows
        return out


def _of_view(error: Exception, view: str | None) -> Exception:
    """An error of an expression, of dbspark or Spark, with the name of the view; any other error unchanged."""
    if type(error).__module__.startswith("pyspark."):
        text = str(error).partition("JVM stacktrace:")[0].strip()
        return EvaluationError(f"in a part that Spark evaluates: {text}").of_view(view)
    return error.of_view(view) if isinstance(error, EvaluationError) else error


def _seed(node: Node) -> Any:
    if node.seed is not None:
        return as_delta(node.seed, node)
    return Delta.empty(node.schema)


def as_delta(change: Any, node: Node) -> Delta:
    """The delta of a source from a delta, a Z-set, a batch, Arrow data, or rows."""
    if isinstance(change, Delta):
        delta = change
    elif isinstance(change, Batch):
        delta = Delta.of(change)
    else:
        zset = change if isinstance(change, ZSet) else _zset_of(change, node)
        delta = Delta.of(zset.batch())
    if delta.schema is not node.schema:
        raise CircuitError(f"source {node.name!r} takes {node.schema!r}; given {delta.schema!r}")
    return delta


def _zset_of(change: Any, node: Node) -> ZSet:
    if isinstance(change, Mapping):
        return ZSet.from_rows(list(change), node.schema, list(change.values()))
    if hasattr(change, "__arrow_c_stream__") or hasattr(change, "__arrow_c_array__"):
        return ZSet.from_arrow(change, None, node.schema)
    return ZSet.from_rows(list(change), node.schema)


def complete(value: Any) -> Any:
    """An output, with a `ChunkedDelta` computed as a whole."""
    return Delta.of(value.batch()) if isinstance(value, ChunkedDelta) else value


def as_zset(value: Any) -> ZSet:
    """A delta or value on a stream, as a Z-set."""
    if isinstance(value, Delta):
        return ZSet.from_batch(value.sorted_by(SortKey(value.schema)))
    return ZSet.from_batch(value.delta().sorted_by(SortKey(value.schema)))
