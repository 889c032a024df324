"""`Circuit`: a graph that runs, one tick at a time.

A tick reads (delays show what they hold), computes (every node once, after its inputs), writes and commits. States are
values: a tick computes new ones beside the old and puts them all in place at the end, in one assignment, together
with what the delays hold. An operator that raises leaves every state, every delay and every output as before.

A tick of small deltas is run as a program (`circuit.vm`), a larger one operator by operator, to the same end.

Large merges of states may run beside the ticks (`config.min_background_rows`): they begin when a tick is over, and the
next one that finds nothing late takes over what has been merged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from dbspark.circuit.graph import Graph, Node
from dbspark.circuit.vm import BufferedTick, OperatorVM, StateRowCounts, TableConstraint
from dbspark.columnar import Batch, SortKey
from dbspark.columnar.delta import ChunkedDelta, Delta
from dbspark.errors import CircuitError
from dbspark.kernels.preload import operator_vm_ready
from dbspark.operators.operator import State
from dbspark.trace.background_merges import BackgroundMerges
from dbspark.trace.config import DEFAULT, SpineConfig
from dbspark.zset import ZSet

Done = tuple[dict[str, State], dict[str, Any], dict[str, Any], tuple[BufferedTick, ...], bool]
"""What a tick has computed: states that have changed, outputs, what delays hold, what states have not taken in, and
whether they should now."""


class NodeTally(NamedTuple):
    """Rows that nodes keep, before consolidation, at one moment."""

    taken: Mapping[str, int]
    buffered: StateRowCounts | None = None

    def rows(self) -> dict[str, int]:
        """By the id of the node."""
        out = dict(self.taken)
        for node, more in () if self.buffered is None else self.buffered.items():
            out[node] += more
        return out


class Circuit:
    """A validated graph with its state."""

    def __init__(
        self,
        graph: Graph,
        config: SpineConfig = DEFAULT,
        programs: bool = True,
        tables: Mapping[str, TableConstraint] | None = None,
    ) -> None:
        """`config`: of the spines of all states. Without `programs` operators always step by themselves.

        `tables`: sources whose changes a tick may be asked to check (`step`).
        """
        self.graph = graph.pruned()
        self._config = config
        self._background: dict[str, list[BackgroundMerges]] = {}
        """By node, the merges of its spines that run beside the ticks."""
        self._schedule = [n for n in self.graph.schedule() if n.role == "operator"]
        self._sources = {str(n.name): n for n in self.graph if n.role == "source"}
        self._delays = [n for n in self.graph if n.role == "delay"]
        self._quiet = {n.id for n in self._schedule if n.quiet}
        """Nodes that are passed over in a tick in which nothing comes to them."""
        self.tick_number = 0
        """Ticks that have been committed."""
        self._taken: dict[str, State] = {
            n.id: self.configured(n.operator.fresh()) for n in self._schedule if n.operator is not None
        }
        self._counted: tuple[Any, dict[str, int]] = None, {}
        """States, and the rows in them."""
        self._buffered: tuple[BufferedTick, ...] = ()
        """What the last ticks have brought that states have not taken in (`circuit.vm`)."""
        self._held: dict[str, Any] = {n.id: _seed(n) for n in self._delays}
        self._programmed = programs
        self._program: OperatorVM | None = None
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
        """Run one tick on what streams carry; returns the outputs as streams carry them.

        Those `in_order` are known by whole rows in order as well, which costs less now than when they are asked.
        `checks`: by source, whoever has to know whether its table stays one (`circuit.vm.TableCheck`). Those who are
        left when this returns have to look for themselves.
        """
        return self._run(inputs, complete, in_order, checks)

    def configured(self, state: State) -> State:
        """A state whose spines are merged as this circuit merges them."""
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
        if not self._buffered:  # else all directories of the program would be written anew
            self._take_over()
        values: dict[str, Any] = dict(self._held)
        for name, node in self._sources.items():
            change = inputs.get(name)
            values[node.id] = Delta.empty(node.schema) if change is None else as_delta(change, node)
        states, given, held, buffered, flush = self._by_program(values, in_order, checks) or self._by_operators(values)
        outputs = {name: finished(value) for name, value in given.items()}
        # Nothing above has changed anything. To take states in may fail: for want of memory, or because a merge beside
        # the ticks has failed.
        before = self.snapshot()
        try:
            self._take(states)
            self._buffered = buffered
            if flush:
                self._take_in()
        except BaseException:
            self.reset(before)
            raise
        self._held = held
        self.tick_number += 1
        return outputs

    def _by_program(
        self, values: dict[str, Any], in_order: Collection[str], checks: dict[str, Any] | None
    ) -> Done | None:
        """A small tick as one call, as far as operators have instructions; None where it is not for that."""
        if self._program is None and self._programmed and operator_vm_ready():
            self._program = OperatorVM(self.graph, self._schedule, self._tables)
            self._programmed = self._program.useful
        if self._program is None or not self._programmed:
            return None
        tick = self._program.run(values, self._taken, self._buffered, in_order, checks)
        if tick is None:
            return None
        if checks:
            self._program.remove_made_checks(checks)
        outputs = {}
        for name, node in self.graph.outputs.items():
            outputs[name] = tick.value(node)
            if name in in_order and name in self._program.sorted_outputs:
                outputs[name] = outputs[name].add_sorted(tick.in_order(name))
        return tick.states, outputs, {n.id: tick.value(n.inputs[0]) for n in self._delays}, tick.buffered, tick.flush

    def _by_operators(self, values: dict[str, Any]) -> Done:
        """Every operator by itself."""
        before_all, states = self._states, dict[str, State]()
        for node in self._schedule:
            assert node.operator is not None
            given = [values[i.id] for i in node.inputs]
            if node.id in self._quiet and not any(value.rows for value in given):
                values[node.id] = Delta.empty(node.schema)
                continue
            before = before_all[node.id]
            state, values[node.id] = node.operator.step(before, given)
            if state is not before:
                states[node.id] = state
        held = {n.id: values[n.inputs[0].id] for n in self._delays}
        return states, {name: values[node.id] for name, node in self.graph.outputs.items()}, held, (), False

    @property
    def _states(self) -> dict[str, State]:
        """All states, with what they had not taken in."""
        self._take_in()
        return self._taken

    @_states.setter
    def _states(self, states: dict[str, State]) -> None:
        self._taken, self._buffered = states, ()

    def _take_in(self) -> None:
        if self._buffered:
            assert self._program is not None
            self._take(self._program.flushed_states(self._taken, self._buffered))
            self._buffered = ()

    def _take(self, states: Mapping[str, State]) -> None:
        """States that have changed."""
        if states:
            if self._config.min_background_rows is not None:
                states = {name: self._merging(name, state) for name, state in states.items()}
            self._taken = {**self._taken, **states}

    def _merging(self, name: str, state: State) -> State:
        """Begin the large merges of a state beside the ticks."""
        beside = self._background.get(name)
        if beside is None:
            if not any(spine.merges for spine in state):
                return state
            beside = self._background[name] = [BackgroundMerges() for _ in state]
        return tuple([b.start_merges(spine) for b, spine in zip(beside, state, strict=True)])

    def _take_over(self) -> None:
        """Take over what has been merged beside the ticks."""
        for name, beside in self._background.items():
            busy = beside[0].running if len(beside) == 1 else any(b.running for b in beside)
            if not busy:
                continue
            before = self._taken[name]
            merged = tuple([b.adopt(spine) for b, spine in zip(beside, before, strict=True)])
            if merged != before:
                self._taken = {**self._taken, name: merged}

    def close(self) -> None:
        """Stop the merges that run beside the ticks; what they merge stays readable."""
        for beside in self._background.values():
            for merges in beside:
                merges.cancel()

    def snapshot(self) -> Any:
        """Everything that a tick changes, as it is now; a value, which costs nothing to take."""
        return self._taken, self._buffered, self._held, self.tick_number

    def reset(self, snapshot: Any) -> None:
        """Go back to a snapshot."""
        self._taken, self._buffered, self._held, self.tick_number = snapshot

    def tally(self) -> NodeTally:
        """What keeps rows at this moment, and how many; it costs next to nothing to ask for it at every tick."""
        if self._counted[0] is not self._taken:
            counts = {node: sum([s.rows for s in spines]) for node, spines in self._taken.items() if spines}
            self._counted = self._taken, counts
        if not self._buffered:
            return NodeTally(self._counted[1])
        assert self._program is not None
        return NodeTally(self._counted[1], self._program.buffered_rows(self._buffered))

    def state_rows(self) -> dict[str, int]:
        """Rows kept by each node that keeps any, by label."""
        out: dict[str, int] = {}
        for node in self._schedule:
            kept = sum(spine.consolidated().rows for spine in self._states[node.id])
            if self._states[node.id]:
                out[f"{node.label} #{node.id[:6]}"] = kept
        return out


def _seed(node: Node) -> Any:
    if node.seed is not None:
        return as_delta(node.seed, node)
    return Delta.empty(node.schema)


def as_delta(given: Any, node: Node) -> Delta:
    """What a source takes: a delta, a Z-set, a batch, Arrow data, or rows."""
    if isinstance(given, Delta):
        delta = given
    elif isinstance(given, Batch):
        delta = Delta.of(given)
    else:
        zset = given if isinstance(given, ZSet) else _zset_of(given, node)
        delta = Delta.of(zset.batch())
    if delta.schema is not node.schema:
        raise CircuitError(f"source {node.name!r} takes {node.schema!r}; given {delta.schema!r}")
    return delta


def _zset_of(given: Any, node: Node) -> ZSet:
    if isinstance(given, Mapping):
        return ZSet.from_rows(list(given), node.schema, list(given.values()))
    if hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__"):
        return ZSet.from_arrow(given, None, node.schema)
    return ZSet.from_rows(list(given), node.schema)


def complete(value: Any) -> Any:
    """An output of which nothing is left to compute."""
    return Delta.of(value.batch()) if isinstance(value, ChunkedDelta) else value


def as_zset(value: Any) -> ZSet:
    """What a stream carries, for people."""
    if isinstance(value, Delta):
        return ZSet.from_batch(value.sorted_by(SortKey(value.schema)))
    return ZSet.from_batch(value.delta().sorted_by(SortKey(value.schema)))
