"""A trace against a list of updates: whatever is written, held, merged, forked, followed or reopened, it reads right.

A machine keeps several traces, each beside its model and its holders. After every step all invariants are asserted and
one of the traces is read in every way; at the end all are, and everything is retracted. The knobs are so small that
merges are in progress all the time.
"""

import random
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from dbspark.columnar import Batch
from dbspark.columnar.batch_file import open_batch, write_batch
from dbspark.columnar.sort_key import weakened_hash
from dbspark.errors import SchemaError, TimeError, WeightOverflowError
from dbspark.trace import (
    Antichain,
    Description,
    ProductTime,
    SpineConfig,
    Time,
    TotalTime,
    Trace,
    TraceAgent,
    TraceImport,
    idle_merge_effort,
)
from dbspark.trace.merge_state import MergeState
from tests.trace.model import (
    ARRANGEMENTS,
    BY_KEY,
    BY_ROW,
    ROWS,
    Model,
    Update,
    advanced,
    batch_of,
    check_invariants,
    check_reads,
    summed,
    updates_of,
    zset,
)

PICK = st.integers(0, 3)
SEED = st.integers(0, 1 << 30)
CONFIGS = st.builds(
    SpineConfig,
    fanout=st.sampled_from([2, 2, 3]),
    max_inline_merge_rows=st.integers(0, 4),
    merge_step_rows=st.integers(1, 8),
    merge_rows_per_row=st.integers(1, 3),
)


@dataclass
class Follower:
    """An import, and what it has given so far."""

    source: TraceImport
    since: Antichain
    given: list[Update] = field(default_factory=list)


@dataclass
class Slot:
    trace: Trace
    model: Model
    agents: list[TraceAgent] = field(default_factory=list)
    followers: list[Follower] = field(default_factory=list)
    frontiers: list[Antichain] = field(default_factory=list)
    """The trace's own two, as they were last seen."""

    def __repr__(self):
        return f"<{self.trace!r}, {len(self.agents)} agents>"

    def held(self):
        """The frontiers of all holders."""
        holders = self.agents + [f.source._agent for f in self.followers]
        return [(a.logical, a.physical) for a in holders]


class Machine(RuleBasedStateMachine):
    width = 1
    background = None

    @initialize(config=CONFIGS, sort_key=st.sampled_from(ARRANGEMENTS), held=st.booleans())
    def begin(self, config, sort_key, held):
        if self.background is not None:
            config = SpineConfig(
                config.fanout, max_inline_merge_rows=config.max_inline_merge_rows,
                merge_step_rows=config.merge_step_rows, merge_rows_per_row=config.merge_rows_per_row,
                min_background_rows=self.background,
            )  # fmt: skip
        self.slots = [Slot(Trace(sort_key, self.width, config), Model(self.width))]
        if held:
            self.slots[0].agents.append(TraceAgent.of(self.slots[0].trace))
        self.steps = 0
        self.folder = tempfile.TemporaryDirectory()

    def pick(self, index) -> Slot:
        return self.slots[max(-1 - index, -len(self.slots))]

    def agent(self, slot, index) -> TraceAgent | None:
        return slot.agents[index % len(slot.agents)] if slot.agents else None

    def check(self, slot):
        """After every step: all traces keep their invariants, and the one that was touched reads right."""
        self.steps += 1
        for one in self.slots:
            check_invariants(one.trace, one.model)
            self.check_frontiers(one)
        check_reads(slot.trace, slot.model, 3, self.steps)

    def check_frontiers(self, slot):
        """A trace compacts to the meet of its holders; where nobody holds it, it may follow what is written."""
        now = [slot.trace.since, slot.trace.physical]
        for which, before in enumerate(slot.frontiers or now):
            assert before.dominates(now[which]), "frontiers only move forward"
            held = [h[which] for h in slot.held() if h[which]]
            if held:
                meet = held[0]
                for other in held[1:]:
                    meet = meet.meet(other)
                assert now[which] == meet
            else:
                written = [slot.model.begin, *slot.model.boundaries]
                assert now[which] in [before.join(b) for b in written]
        slot.frontiers = now

    # ------------------------------------------------------------------ writing

    def later(self, upper, rng):
        """A frontier at or after another, as a rule after it; of two elements where times are partially ordered."""
        if self.width == 1:
            return Antichain([TotalTime(upper.meet_of_all()[0] + rng.choice([1, 1, 1, 2, 3]))])
        moved = []
        for element in upper:
            a, b = element
            kind = rng.randrange(5)
            if kind == 0:
                moved.append((a + 1, b))
            elif kind == 1:
                moved.append((a, b + rng.choice([1, 2])))
            elif kind == 2:
                moved.append((a + 1, b + 1))
            elif kind == 3:
                moved += [(a + 1, b), (a, b + 2)]
            else:
                moved.append(element)
        return Antichain(Time(t) for t in moved)

    def times_between(self, lower, upper):
        """Times at or above one frontier and not at or above another."""
        most = [max(t[c] for t in (*lower, *upper)) + 1 for c in range(self.width)]
        if self.width == 1:
            candidates = [TotalTime(t) for t in range(lower.meet_of_all()[0], most[0] + 1)]
        else:
            candidates = [ProductTime(a, b) for a in range(most[0] + 1) for b in range(most[1] + 1)]
        return [t for t in candidates if lower.less_equal(t) and not upper.less_equal(t)]

    @rule(at=PICK, seed=SEED, rows=st.sampled_from([0, 1, 1, 2, 3, 5, 9, 20]))
    def insert(self, at, seed, rows):
        slot = self.pick(at)
        self.insert_some(slot, random.Random(seed), rows)
        self.check(slot)

    @rule(at=PICK, seed=SEED, rows=st.sampled_from([1, 2, 4, 7]), count=st.integers(2, 6), merge=st.booleans())
    def insert_several(self, at, seed, rows, count, merge):
        """A run of inserts; its batches may be merged at once, but their times are held where they were."""
        slot, rng = self.pick(at), random.Random(seed)
        for _ in range(count):
            self.insert_some(slot, rng, rows)
        for agent in slot.agents if merge else ():
            agent.set_physical_compaction(slot.model.upper)
        self.check(slot)

    def insert_some(self, slot, rng, rows):
        if not slot.model.upper:
            return
        upper = self.later(slot.model.upper, rng)
        if upper == slot.model.upper:
            return
        times = self.times_between(slot.model.upper, upper)
        if rng.random() < 0.3:
            times = times[:1]
        updates = [(rng.choice(ROWS), rng.choice(times), rng.choice([1, 1, 1, 2, -1, -2])) for _ in range(rows)]
        self.insert_updates(slot, updates, upper)

    @rule(at=PICK, seed=SEED, share=st.sampled_from([0.3, 1.0]))
    def retract_what_is_there(self, at, seed, share):
        slot, rng = self.pick(at), random.Random(seed)
        if slot.model.upper:
            upper = self.later(slot.model.upper, rng)
            times = self.times_between(slot.model.upper, upper)
            if times:
                there = summed((row, w) for row, _, w in slot.model.updates)
                gone = [(row, times[0], -w) for row, w in there.items() if rng.random() < share]
                self.insert_updates(slot, gone, upper)
                self.check(slot)

    def insert_updates(self, slot, updates, upper):
        description = Description(slot.model.upper, upper, slot.trace.since)
        before = slot.trace.since
        slot.trace.insert(batch_of(slot.trace.sort_key, updates).with_description(description))
        slot.model.insert(updates, upper)
        if not any(logical or physical for logical, physical in slot.held()):
            assert slot.trace.since == before.join(upper), "a trace that nobody holds follows its upper"

    @rule(at=PICK, seed=SEED)
    def seal(self, at, seed):
        slot = self.pick(at)
        if slot.model.upper:
            upper = self.later(slot.model.upper, random.Random(seed))
            slot.trace.seal(upper)
            if upper != slot.model.upper:
                slot.model.insert([], upper)
            self.check(slot)

    @rule(at=PICK, sure=st.integers(0, 3))
    def close(self, at, sure):
        slot = self.pick(at)
        if sure == 0 and len(self.slots) > 1:
            slot.trace.close()
            if slot.model.upper:
                slot.model.insert([], Antichain())
            self.check(slot)

    @rule(at=PICK, seed=SEED)
    def refuse(self, at, seed):
        """What does not fit is refused, and leaves everything as it was."""
        slot, rng = self.pick(at), random.Random(seed)
        trace, upper = slot.trace, slot.model.upper
        before = trace.spine.entries, trace.upper, trace.since
        if upper:
            later = Antichain(t.join(tuple(c + 1 for c in t)) for t in upper)
            row, inside = rng.choice(ROWS), next(iter(upper))
            wrong = [
                ([(row, inside, 1)], Description(later, Antichain(), later)),
                ([(row, inside, 1)], Description(upper, upper, upper)),
                ([(row, next(iter(later)), 1)], Description(upper, later, upper)),
            ]
            if any(any(t) for t in upper):
                wrong.append(([(row, Time((0,) * self.width), 1)], Description(upper, Antichain(), upper)))
        else:
            wrong = [([(ROWS[0], Time((50,) * self.width), 1)], Description(upper, upper, upper))]
        for updates, description in wrong:
            with pytest.raises(TimeError):
                trace.insert(batch_of(trace.sort_key, updates).with_description(description))
        assert (trace.spine.entries, trace.upper, trace.since) == before or trace._background.running
        self.check(slot)

    # ------------------------------------------------------------------ holding

    def frontier(self, slot, rng):
        """Any frontier: earlier, later, of one element or two, seldom beyond what is written or the end of time."""
        if rng.random() < 0.03:
            return Antichain()
        known = [b for b in [slot.model.begin, *slot.model.boundaries] if b]
        if rng.random() < 0.7:
            return rng.choice(known[-4:])
        one, other = rng.choice(known), rng.choice(known)
        moved = self.later(one, rng)
        return moved if rng.random() < 0.5 else moved.meet(other)

    @rule(at=PICK)
    def hold(self, at):
        slot = self.pick(at)
        if len(slot.agents) < 4:
            agent = TraceAgent.of(slot.trace)
            assert (agent.logical, agent.physical) == (slot.trace.since, slot.trace.physical)
            slot.agents.append(agent)
            self.check(slot)

    @rule(at=PICK, which=PICK)
    def clone(self, at, which):
        slot = self.pick(at)
        agent = self.agent(slot, which)
        if agent and len(slot.agents) < 5:
            other = agent.clone()
            assert (other.logical, other.physical) == (agent.logical, agent.physical)
            slot.agents.append(other)
            self.check(slot)

    @rule(at=PICK, which=PICK, seed=SEED, kind=st.sampled_from(["logical", "physical", "both"]))
    def move(self, at, which, seed, kind):
        slot = self.pick(at)
        agent = self.agent(slot, which)
        if agent is None:
            return
        frontier = self.frontier(slot, random.Random(seed))
        logical, physical = agent.logical, agent.physical
        if kind == "logical":
            agent.set_logical_compaction(frontier)
            logical = logical.join(frontier)
        elif kind == "physical":
            agent.set_physical_compaction(frontier)
            physical = physical.join(frontier)
        else:
            agent.advance(frontier)
            logical, physical = logical.join(frontier), physical.join(frontier)
        assert (agent.logical, agent.physical) == (logical, physical)
        self.check(slot)

    @rule(at=PICK, which=PICK)
    def drop(self, at, which):
        slot = self.pick(at)
        agent = self.agent(slot, which)
        if agent is not None:
            agent.drop()
            agent.drop()
            slot.agents.remove(agent)
            with pytest.raises(TimeError, match="dropped"):
                agent.scan()
            self.check(slot)

    # ------------------------------------------------------------------ working

    @rule(at=PICK, effort=st.sampled_from([None, 1, 5, 100]), calls=st.integers(1, 4))
    def exert(self, at, effort, calls):
        slot = self.pick(at)
        slot.trace.set_exert_logic(None if effort is None else idle_merge_effort(effort))
        for _ in range(calls):
            if not slot.trace.exert():
                break
        self.check(slot)

    @rule(at=PICK)
    def exert_to_the_end(self, at):
        """Idle time ends with one batch before the physical frontier."""
        slot = self.pick(at)
        slot.trace.set_exert_logic(idle_merge_effort(3))
        calls = 0
        while slot.trace.exert():
            calls += 1
            assert calls < 5000 or self.background, "idle work never ends"
        ready = [e for e in slot.trace.spine.entries if e.description.upper.dominates(slot.trace.physical)]
        assert len(ready) <= 1
        assert not any(isinstance(e, MergeState) for e in ready)
        self.check(slot)

    @rule(at=PICK)
    def finish(self, at):
        slot = self.pick(at)
        slot.trace.finish()
        assert slot.trace.spine.backlog() == 0
        self.check(slot)

    @rule(at=PICK, bound=st.sampled_from([-2, -1, 1, 5]))
    def retain(self, at, bound):
        slot = self.pick(at)
        if bound < slot.model.bounds.get(1, -9):
            with pytest.raises(SchemaError, match="rise"):
                slot.trace.retain("v", bound)
        else:
            slot.trace.retain("v", bound)
            slot.model.bounds[1] = bound
        self.check(slot)

    # ------------------------------------------------------------------ sharing

    @rule(at=PICK)
    def fork(self, at):
        slot = self.pick(at)
        if len(self.slots) < 5:
            other = Slot(slot.trace.fork(), slot.model.copy())
            assert (other.trace.since, other.trace.physical) == (slot.trace.since, slot.trace.physical)
            self.slots.append(other)
            self.check(other)

    @rule(at=PICK)
    def reopen(self, at):
        """Every batch to a file and back, and a trace of them."""
        slot = self.pick(at)
        trace = slot.trace
        trace.finish()
        opened = []
        for batch in trace.spine.entries:
            path = Path(self.folder.name) / f"{self.steps}-{len(opened)}"
            self.steps += 1
            write_batch(batch, path, batch.description.to_json())
            found, metadata = open_batch(path, verify=self.steps % 2 == 0)
            opened.append(found.with_description(Description.from_json(metadata)))
            assert opened[-1].sort_key is trace.sort_key
        again = Trace.from_batches(opened, trace.sort_key, self.width, trace.spine.config)
        model = slot.model.copy()
        model.boundaries = [b.description.upper for b in opened]
        assert again.since.dominates(trace.since)
        for column, bound in model.bounds.items():
            again.retain(trace.sort_key.schema.names[column], bound)
        other = Slot(again, model)
        if len(self.slots) < 5:
            self.slots.append(other)
        else:
            self.slots[-1].agents.clear()
            self.slots[-1] = other
        self.check(other)

    @rule(at=PICK, which=PICK)
    def follow(self, at, which):
        slot = self.pick(at)
        agent = self.agent(slot, which)
        if agent is not None and len(slot.followers) < 3:
            slot.followers.append(Follower(agent.import_trace(), agent.logical))
            self.check(slot)

    @rule(at=PICK, which=PICK)
    def poll(self, at, which):
        slot = self.pick(at)
        if slot.followers:
            self.poll_one(slot, slot.followers[which % len(slot.followers)])
            self.check(slot)

    def poll_one(self, slot, follower):
        source = follower.source
        for batch in source.poll():
            assert batch.rows
            some = updates_of(batch, self.width)
            if follower.since:
                assert all(t.advance_by(follower.since) == t for _, t, _ in some), "times below the importer's since"
            follower.given += some
        assert source.frontier == slot.model.upper, "a quiet writer stalls nobody"
        assert source.done == (not slot.model.upper)
        assert not source.wait(0)
        model = slot.model
        found = [u for u in follower.given if model.stays(u[0])]
        assert advanced(found, follower.since) == advanced(model.kept(), follower.since)

    @rule(at=PICK, which=PICK)
    def cancel(self, at, which):
        slot = self.pick(at)
        if slot.followers:
            follower = slot.followers.pop(which % len(slot.followers))
            follower.source.cancel()
            assert follower.source.done
            assert follower.source.poll() == []
            self.check(slot)

    # ------------------------------------------------------------------ the end

    def teardown(self):
        if not hasattr(self, "slots") or sys.exc_info()[0] is not None:
            return
        try:
            for slot in self.slots:
                check_invariants(slot.trace, slot.model)
                check_reads(slot.trace, slot.model, 12)
                for follower in slot.followers:
                    self.poll_one(slot, follower)
            for slot in self.slots:
                self.retract_everything(slot)
        finally:
            self.folder.cleanup()

    def retract_everything(self, slot):
        trace, model = slot.trace, slot.model
        for agent in slot.agents:
            agent.drop()
        for follower in slot.followers:
            follower.source.cancel()
        if not model.upper:
            return
        last = next(iter(model.upper))
        for time in (*model.upper, *trace.since, *(t for _, t, _ in model.updates)):
            last = last.join(time)
        there = [(row, -w) for row, w in summed((r, w) for r, _, w in model.updates).items()]
        for change in ([*there, (ROWS[0], 1000)], [(ROWS[0], -1000)]):  # the first makes everything one batch
            upper = Antichain([tuple(c + 1 for c in last)])
            updates = [(row, last, w) for row, w in change]
            description = Description(model.upper, upper, trace.since)
            trace.insert(batch_of(trace.sort_key, updates).with_description(description))
            model.insert(updates, upper)
            check_reads(trace, model, 3)
            idle(trace)
            check_reads(trace, model, 3)
            last = upper.meet_of_all()
        assert trace.scan().rows == 0
        assert len(trace.probe([ROWS[0][: 3 if trace.sort_key.key is None else 1]]).batch()) == 0
        if not trace.since:
            return  # nobody can ask for any time, so none is advanced
        assert not list(trace.cursor())
        assert trace.spine.rows == 0, (
            f"everything has cancelled, but for {[e.description for e in trace.spine.entries]}"
        )
        check_invariants(trace, model)


class Ticks(Machine):
    pass


class Products(Machine):
    width = 2


class Background(Machine):
    background = 6


class BackgroundProducts(Machine):
    width = 2
    background = 6


def run(machine, share, steps):
    examples = max(5, settings.default.max_examples // share)
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=steps))


def test_any_history_of_ticks_reads_like_a_list():
    run(Ticks, 4, 25)


def test_any_history_of_partially_ordered_times_reads_like_a_list():
    run(Products, 4, 25)


def test_any_history_with_merges_in_the_background_reads_like_a_list():
    run(Background, 6, 25)


def test_any_history_of_partially_ordered_times_with_merges_in_the_background_reads_like_a_list():
    run(BackgroundProducts, 6, 25)


# ---------------------------------------------------------------------- one promise at a time

SMALL = SpineConfig(fanout=2)


def rows(numbers, weight=1):
    """A delta of the rows with these numbers."""
    return batch_of(BY_KEY, [(ROWS[i], Time((0,)), weight) for i in numbers])


def written(deltas, config=SMALL, held=True):
    """A trace of deltas at ticks 0, 1, …, and an agent that holds it at the beginning."""
    trace = Trace(BY_KEY, config=config)
    agent = TraceAgent.of(trace) if held else None
    for delta in deltas:
        trace.append(delta)
    return trace, agent


def idle(trace):
    """Work until there is nothing left to do."""
    trace.set_exert_logic(idle_merge_effort(1000))
    while trace.exert():
        pass
    trace.finish()


def at(*time):
    return Antichain.at(*time)


def test_upper_never_moves_back():
    trace, _ = written([rows([1]), rows([2])])
    for change in (
        lambda: trace.seal(at(1)),
        lambda: trace.append(Batch.empty(BY_KEY), 0),
        lambda: trace.append(rows([3]), 1),
        lambda: trace.insert(Batch(BY_KEY, (), Description(at(2), at(1), at(0)))),
    ):
        with pytest.raises(TimeError):
            change()
        assert trace.upper == at(2)
    trace.close()
    for change in (
        lambda: trace.seal(at(9)),
        lambda: trace.append(Batch.empty(BY_KEY), 9),
        lambda: trace.append(rows([3]), 9),
        lambda: trace.append(rows([3])),
    ):
        with pytest.raises(TimeError):
            change()
        assert trace.upper == Antichain()
    assert zset(trace.scan()) == {ROWS[1]: 1, ROWS[2]: 1}


def test_an_upper_beside_the_last_one_is_refused():
    trace = Trace(BY_KEY, width=2)
    trace.seal(at(0, 3))
    with pytest.raises(TimeError):
        trace.seal(at(3, 0))
    trace.seal(Antichain([ProductTime(1, 3), ProductTime(0, 4)]))
    assert len(trace.upper) == 2


def test_a_delta_of_several_coordinates_says_where_it_ends():
    trace = Trace(BY_KEY, width=2)
    with pytest.raises(TimeError, match="upper"):
        trace.append(rows([1]), (0, 0))
    trace.append(rows([1]), (0, 0), at(0, 1))
    assert trace.upper == at(0, 1)


def test_a_batch_without_a_description_or_of_another_sort_key_is_refused():
    trace = Trace(BY_KEY)
    with pytest.raises(TimeError, match="description"):
        trace.insert(rows([1]))
    other = batch_of(BY_ROW, [(ROWS[1], Time((0,)), 1)])
    with pytest.raises(SchemaError, match="takes no batch"):
        trace.insert(other.with_description(Description(at(0), at(1), at(0))))
    trace.append(other)
    assert zset(trace.scan()) == {ROWS[1]: 1}, "a delta is rearranged"


def test_since_never_moves_back_after_a_holder_went_beyond_what_is_written():
    trace, agent = written([rows([1]), rows([2])])
    agent.advance(at(9))
    idle(trace)
    agent.drop()
    trace.append(rows([3]))
    assert trace.since == at(9)
    holder = TraceAgent.of(trace)
    trace.append(rows([4]))
    assert holder.since == at(9)
    with pytest.raises(TimeError, match="since"):
        trace.as_of(3)
    trace.seal(at(11))
    assert zset(trace.as_of(9)) == {ROWS[i]: 1 for i in (1, 2, 3, 4)}


def test_a_batch_that_is_compacted_further_than_the_trace_takes_it_along():
    """Its own history before its since is not known, so the trace cannot answer for it either."""
    trace = Trace(BY_KEY)
    TraceAgent.of(trace)
    compacted = rows([1]).at_time((5,), Description(at(0), at(8), at(5)))
    trace.insert(compacted)
    with pytest.raises(TimeError, match="since"):
        trace.as_of(3)
    assert zset(trace.as_of(5)) == {ROWS[1]: 1}


def test_times_may_be_integers_of_numpy():
    trace, _ = written([rows([1]), rows([2])])
    assert zset(trace.as_of(np.int64(0))) == {ROWS[1]: 1}


def test_a_read_of_another_width_is_refused():
    trace, _ = written([rows([1])])
    for read in (trace.as_of, lambda t: trace.changes(0, t)):
        with pytest.raises(TimeError, match="coordinates"):
            read((0, 0))


def test_dropping_one_holder_lets_the_others_advance():
    trace, first = written([rows([i]) for i in range(4)])
    second = first.clone()
    second.advance(at(3))
    assert trace.since == at(0)
    assert zset(trace.as_of(0)) == {ROWS[0]: 1}
    first.drop()
    assert trace.since == trace.physical == at(3)
    with pytest.raises(TimeError, match="since"):
        second.as_of(2)
    second.set_logical_compaction(at(1))
    assert second.logical == at(3), "frontiers only move forward"
    second.drop()
    assert trace.since == at(4), "a trace that nobody holds follows its upper"


def test_a_held_boundary_stays_while_everything_else_is_merged():
    trace, agent = written([rows([i, i + 10]) for i in range(20)])
    agent.set_physical_compaction(at(8))
    idle(trace)
    assert len(trace.spine.entries) == 1 + 12
    for boundary in range(8, 21):
        found = {row for _, row, _, _ in trace.cursor_through(at(boundary))}
        assert found == {ROWS[j] for i in range(boundary) for j in (i, i + 10)}
    with pytest.raises(TimeError, match="physical"):
        trace.cursor_through(at(7))
    with pytest.raises(TimeError, match="boundary"):
        trace.cursor_through(at(50))


def test_empty_batches_cost_nothing():
    trace, _ = written([rows([1])], held=False)
    for i in range(2, 1000):
        trace.seal(at(i))
    assert len(trace.spine.entries) == 1
    trace, agent = written([])
    for i in range(1, 300):
        trace.seal(at(i))
    agent.advance(at(300))
    assert len(trace.spine.entries) == 1
    trace.append(rows([1]), 299, at(300))
    assert len(trace.spine.entries) == 1
    assert zset(trace.scan()) == {ROWS[1]: 1}


def test_a_trace_that_begins_with_an_empty_stretch_merges_like_any_other():
    trace = Trace(
        BY_KEY, config=SpineConfig(fanout=2, max_inline_merge_rows=0, merge_step_rows=8, merge_rows_per_row=3)
    )
    trace.seal(at(1))
    trace.append(rows([1]))
    idle(trace)
    trace.append(rows([1], -1))
    idle(trace)
    assert trace.spine.rows == 0


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("sizes", [(1,), (3,), (1, 1), (2, 1), (3, 3), (1, 2, 3), (2, 2, 2)])
def test_a_merge_whose_last_row_is_at_its_limit_comes_to_an_end(sizes, timed):
    numbers = iter(range(len(ROWS)))
    inputs = [rows([next(numbers) for _ in range(n)]).at_time((i if timed else 0,)) for i, n in enumerate(sizes)]
    for limit in range(1, sum(sizes) + 2):
        state, steps = MergeState((), tuple(inputs), (0,) * len(inputs), sum(sizes)), 0
        while isinstance(state, MergeState):
            state = state.step(limit)
            steps += 1
        assert state.rows == sum(sizes)
        assert steps <= sum(sizes) + 1


def test_a_history_that_nobody_can_see_any_more_goes_though_it_is_one_batch():
    trace, agent = written([rows([1]), rows([1], -1)])
    agent.set_physical_compaction(at(2))
    idle(trace)
    assert trace.spine.rows == 2
    agent.drop()
    idle(trace)
    assert trace.spine.rows == 0
    assert not trace.exert(), "and then there is nothing to do"


def test_a_fork_finishes_the_merges_it_has_inherited():
    config = SpineConfig(
        fanout=2, max_inline_merge_rows=0, merge_step_rows=1, merge_rows_per_row=1, min_background_rows=4
    )
    trace, _ = written([rows([i]) for i in range(12)], config, held=False)
    fork = trace.fork()
    assert ended_within(20, fork.finish)
    assert ended_within(20, trace.finish)
    for one in (trace, fork):
        assert one.spine.backlog() == 0
        assert zset(one.scan()) == {ROWS[i]: 1 for i in range(12)}


def ended_within(seconds, work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def test_a_fork_shares_batches_and_goes_its_own_way():
    trace, agent = written([rows([i]) for i in range(5)])
    agent.set_physical_compaction(at(2))
    trace.retain("v", -2)
    fork = trace.fork()
    assert (fork.since, fork.physical, fork.upper) == (trace.since, trace.physical, trace.upper)
    assert {id(c) for b in fork.spine.batches for c in b.chunks} == {
        id(c) for b in trace.spine.batches for c in b.chunks
    }
    before = zset(trace.scan())
    fork.append(rows([20]))
    fork.retain("v", 5)
    idle(fork)
    assert zset(trace.scan()) == before
    assert trace.upper == at(5)
    assert zset(trace.as_of(1)) == {ROWS[i]: 1 for i in (0, 1)}, "the holder of the one does not hold the other"
    trace.close()
    fork.append(rows([21]))
    assert fork.upper == at(7)


def test_a_spine_counts_the_rows_of_its_batches_after_compaction():
    trace, _ = written([rows([i]) for i in range(3)])
    again = Trace.from_batches(trace.spine.entries, BY_KEY, config=SMALL)
    again.retain("v", 0)
    check_invariants(again, model_of(again, [rows([i]) for i in range(3)]))
    TraceAgent.of(again).advance(at(3))
    check_invariants(again, model_of(again, [rows([i]) for i in range(3)]))


def model_of(trace, deltas):
    model = Model(1)
    for i, delta in enumerate(deltas):
        model.insert([(row, TotalTime(i), w) for row, _, w in updates_of(delta, 1)], at(i + 1))
    return model


# ---------------------------------------------------------------------- retention


@pytest.mark.parametrize("merged", [False, True])
def test_a_bound_holds_for_every_read_from_when_it_is_declared_and_for_none_before(merged):
    values = range(5)
    trace, agent = written([rows(range(2 * v, 2 * v + 2)) for v in values])
    everything = {ROWS[i]: 1 for i in range(10)}
    if merged:
        agent.set_physical_compaction(at(5))
        idle(trace)
    assert zset(trace.scan()) == everything
    fork = trace.fork()
    trace.retain("v", 1)
    kept = {row: w for row, w in everything.items() if row[1] is None or row[1] >= 1}
    assert 0 < len(kept) < 10
    assert zset(trace.scan()) == zset(trace.as_of(4)) == kept
    assert {row for _, row, _, _ in trace.cursor()} == set(kept)
    assert zset(trace.probe([0]).batch()) == kept
    assert zset(trace.changes(0, 4)) == {row: w for row, w in kept.items() if row not in zset(trace.as_of(0))}
    given = [row for batch in agent.import_trace().poll() for row in zset(batch)]
    assert sorted(given, key=str) == sorted(kept, key=str), "a late importer reads too"
    assert zset(fork.scan()) == everything, "declared for one, not for its fork"


def test_merges_drop_the_rows_below_a_bound():
    trace, _ = written([rows(range(10)), rows(range(10, 20))], held=False)
    trace.retain("v", 5)
    trace.append(rows(range(20, 30)))
    idle(trace)
    assert trace.spine.rows == trace.scan().rows == len([r for r in ROWS[:30] if r[1] is None or r[1] >= 5])


def test_a_bound_that_cannot_be_is_refused():
    trace, _ = written([rows([1])])
    trace.retain("v", 3)
    for column, bound in (("v", 2), ("v", None), ("v", "text"), ("nothing", 1)):
        with pytest.raises(SchemaError):
            trace.retain(column, bound)
    trace.retain("v", 3)


# ---------------------------------------------------------------------- large weights

MAX = (1 << 63) - 1


def test_sums_are_judged_by_their_totals_and_not_on_the_way():
    """At tick 1 the weight is beyond int64, and nobody asks for it then."""
    trace, agent = written([rows([1], MAX), rows([1], 5), rows([1], -5), rows([1], -3)])
    for time, weight in ((0, MAX), (2, MAX), (3, MAX - 3)):
        assert zset(trace.as_of(time)) == {ROWS[1]: weight}
    with pytest.raises(WeightOverflowError):
        trace.as_of(1)
    trace.seal(at(9))
    agent.advance(at(4))
    idle(trace)
    assert zset(trace.as_of(8)) == {ROWS[1]: MAX - 3}
    assert zset(trace.scan()) == {ROWS[1]: MAX - 3}


def test_a_holder_moves_though_a_sum_overflows():
    trace, agent = written([rows([1], MAX), rows([1], MAX)])
    agent.advance(at(2))
    assert trace.since == at(2)
    with pytest.raises(WeightOverflowError):
        trace.scan()
    trace.append(rows([1], -MAX))
    assert zset(trace.scan()) == {ROWS[1]: MAX}


@pytest.mark.parametrize("mask", [(1 << 64) - 1, 0b111], ids=["hashes", "collisions"])
@pytest.mark.parametrize("sort_key", [BY_ROW, BY_KEY])
@pytest.mark.parametrize("sources", [1, 2, 3, 5, 16, 17])
def test_a_merge_of_many_batches_of_many_times_is_their_sum_by_row_and_time(sources, sort_key, mask):
    """Rows that are in one batch only, in several, at several times in one; steps of any size."""
    rng = np.random.default_rng(sources)
    with weakened_hash(mask):
        inputs, right = [], Counter()
        for _ in range(sources):
            updates = {
                (ROWS[r], Time((int(t),))): int(w)
                for r, t, w in zip(
                    rng.integers(0, len(ROWS), 40), rng.integers(0, 9, 40), rng.choice([-1, 1, 1, 2], 40), strict=True
                )
            }
            inputs.append(batch_of(sort_key, [(row, time, w) for (row, time), w in updates.items()]))
            for (row, time), weight in updates.items():
                right[row, Time((max(time[0], 4),))] += weight
        right = {key: weight for key, weight in right.items() if weight}
        whole = Description(at(0), at(9), at(4))
        for limit in (1, 7, 1000):
            state = MergeState((), tuple(inputs), (0,) * sources, sum(b.rows for b in inputs), whole)
            while isinstance(state, MergeState):
                state = state.step(limit)
            assert {(row, time): weight for row, time, weight in updates_of(state, 1)} == right
