"""A fixpoint on shards: its graph is cut at exchanges into levels, and all of them in turn are one iteration.

Inputs of the fixpoint are received by the first iteration, and the next value of a variable by the next. What one shard
does in one level of one iteration is here (`IterationLevel`); how iterations follow each other is the transport's
business: resident workers exchange messages (`FixpointRun` keeps the state of the tick as values), a Spark job
unrolls a few iterations as stages (`dbspark.runtime.unrolled`).

*Agreement on the next iteration.* In the last level of an iteration every shard votes: for the next iteration if a
variable changed, else for the first iteration with deferred batches. The least vote of all shards wins; without votes
the fixpoint has ended. A vote may prove needless, where the changes of two shards cancel; equal rows of a variable are
exchanged to one shard before they are read, so this happens once and not for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from dbspark.circuit.nested import endless
from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.delta import Delta
from dbspark.operators.nested import Nested, NestedArranged, NestedSite, NestedStateful, PendingIterations
from dbspark.runtime.level_plan import FixpointPlan, NodeStep
from dbspark.runtime.task import FixpointOutcome, LevelTask, ShardState


class Vote(NamedTuple):
    """The vote of a shard at the end of an iteration."""

    iteration: int
    """The iteration that is to come next."""
    growing: list[str]
    """The variables that have changed."""


def agreed(votes: Sequence[Vote]) -> int | None:
    """The iteration that comes next by the votes of all shards; None: the fixpoint has ended."""
    return min((vote.iteration for vote in votes), default=None)


class IterationState(Protocol):
    """The state of a fixpoint on one shard during a tick, as one level of an iteration uses it."""

    @property
    def iteration(self) -> int: ...

    def is_deferred(self, step: NodeStep) -> bool:
        """Whether work of a node was deferred to this iteration."""
        ...

    def value(self, step: NodeStep, arguments: list[Any]) -> Any:
        """The output of a node in this iteration."""
        ...

    def add_change(self, variable: str, change: Batch) -> None:
        """Record the change of a variable."""
        ...

    def first_deferred(self) -> int | None:
        """The first later iteration to which work is deferred."""
        ...


class IterationLevel:
    """One level of one iteration on one shard."""

    def __init__(self, loop: FixpointPlan, number: int, task: LevelTask, state: IterationState) -> None:
        """`task`: of this level, with the slots that it has received."""
        self.loop = loop
        self.task = task
        self.state = state
        self.level = loop.levels[number]

    def has_work(self) -> bool:
        """Whether rows have been received, or batches were deferred to this iteration."""
        streams = self.level.streams
        if any(self.task.delta(slot, streams[slot].schema).rows for slot in list(self.task.received)):
            return True
        return any(self.state.is_deferred(step) for step in self.level.steps)

    def step(self) -> bool:
        """Run the nodes of the level, if they have rows to work on; returns whether they had."""
        task = self.task
        if not task.received and not any(self.state.is_deferred(step) for step in self.level.steps):
            return False
        for step in self.level.steps:
            arguments = [task.values[s] if schema is None else task.delta(s, schema) for s, schema in step.inputs]
            task.values[step.id] = self.state.value(step, arguments)
        return True

    def vote(self) -> Vote | None:
        """At the end of an iteration: record the changes of the variables, and vote for the next iteration."""
        growing = []
        for name, slot, schema in self.loop.variable_feeds:
            change = self.task.delta(slot, schema).sorted_by(SortKey(schema))
            if change.rows:
                growing.append(name)
                self.state.add_change(name, change)
        following = self.state.iteration + 1 if growing else self.state.first_deferred()
        return None if following is None else Vote(following, growing)

    def check_limit(self, votes: Sequence[Vote]) -> None:
        """Raise for a recursion that has not ended after as many iterations as it may take."""
        if self.state.iteration >= self.loop.fixpoint.limit and self.has_work():
            growing = {name for vote in votes for name in vote.growing}
            raise endless(
                [name for name, _, _ in self.loop.variable_feeds if name in growing], self.loop.fixpoint.limit
            )


class FixpointRun:
    """A fixpoint on one shard in one tick, in a process that runs all of its iterations."""

    def __init__(self, loop: FixpointPlan, kept: ShardState) -> None:
        self.loop = loop
        self._kept = kept
        self.iteration = 0
        self._pending = PendingIterations()
        self._nodes: dict[tuple[int, str], Nested] = {}
        """By level and node, what is iterated."""
        self._arranged: dict[str, NestedArranged] = {}
        """By trace, the arrangements of the levels that own them."""
        self._changes: dict[str, list[Batch]] = {}
        self.levels = [LevelOfRun(self, number) for number in range(len(loop.levels))]

    def node(self, number: int, step: NodeStep) -> Nested:
        """A node as a level iterates it."""
        found = self._nodes.get((number, step.id))
        if found is None:
            site = NestedSite(self._pending, partial(self._trace, step))
            found = self._nodes[number, step.id] = step.operator.nested(site)
        return found

    def _trace(self, step: NodeStep, name: str) -> NestedArranged:
        """The arrangement of a node. The first level that reads it owns its rows; others have a copy of their own."""
        traces, trace = self.loop.fixpoint.arranged, step.id + name
        arranged = NestedArranged(self._kept.spine(self.loop.id, list(traces).index(trace), traces[trace]))
        if step.owns_state:
            self._arranged[trace] = arranged
        return arranged

    def add_change(self, variable: str, change: Batch) -> None:
        """Record the change of a variable."""
        self._changes.setdefault(variable, []).append(change)

    def first_deferred(self) -> int | None:
        """The first later iteration to which work is deferred."""
        return self._pending.next((), self.iteration)

    def outcome(self) -> FixpointOutcome:
        """What the fixpoint has computed, once it has ended."""
        new = {trace: [b for b in arranged.present().batches if b.rows] for trace, arranged in self._arranged.items()}
        return FixpointOutcome(self.iteration + 1, self._changes, {t: batches for t, batches in new.items() if batches})


class LevelOfRun:
    """The state of a run as one of its levels uses it."""

    def __init__(self, run: FixpointRun, number: int) -> None:
        self._run = run
        self._number = number
        self.add_change = run.add_change
        self.first_deferred = run.first_deferred

    @property
    def iteration(self) -> int:
        return self._run.iteration

    def is_deferred(self, step: NodeStep) -> bool:
        """Whether work of a node was deferred to this iteration."""
        nested = self._run.node(self._number, step)
        return isinstance(nested, NestedStateful) and (self.iteration,) in nested.deferred

    def value(self, step: NodeStep, arguments: list[Any]) -> Any:
        """The output of a node in this iteration."""
        return self._run.node(self._number, step).step((self.iteration,), arguments)


@dataclass(frozen=True, slots=True)
class FixpointResultStep:
    """A step of the level behind a fixpoint: gives the results of the fixpoint and updates its traces."""

    loop: FixpointPlan

    @property
    def id(self) -> str:
        return self.loop.id

    def run(self, task: LevelTask) -> None:
        loop = self.loop
        task.values[loop.id] = results = loop.fixpoint.nothing()
        outcome = task.fixpoints.get(loop.id)
        if outcome is None:
            return
        task.report_fields.setdefault("iterations", {})[loop.id] = outcome.iterations
        for name, _, _ in loop.variable_feeds:
            changes = outcome.changes.get(name)
            if changes:
                results[name] = Delta.of(merge(changes))
        if outcome.new_rows:
            self._update_traces(task, outcome.new_rows)

    def _update_traces(self, task: LevelTask, new_rows: Mapping[str, Sequence[Batch]]) -> None:
        before = task.state(self.loop.id, self.loop.fixpoint.state_sort_keys())
        after = []
        for trace, past in zip(self.loop.fixpoint.arranged, before, strict=True):
            new = new_rows.get(trace)
            after.append(past.insert(merge(new)) if new else past)
        if any(a is not b for a, b in zip(after, before, strict=True)):
            task.set_state(self.loop.id, tuple(after))


__all__ = ["FixpointResultStep", "FixpointRun", "IterationLevel", "IterationState", "Vote", "agreed"]
