"""Traces on several threads: one writes, others read, follow and hold, and large merges run beside them.

The writer's history is fixed: tick i inserts the rows of `delta(i)`, so what a reader may see is known: the sum of the
first n deltas, for some n. Every thread has an end; a test that waits longer than `LIMIT` has a deadlock.
"""

import random
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.errors import TimeError
from dbspark.trace import Antichain, SpineConfig, Trace, TraceAgent, idle_merge_effort
from dbspark.trace import background_merges as background
from dbspark.trace.merge_state import MergeRun, MergeState
from tests.trace.model import updates_of

SCHEMA = Schema.parse("k BIGINT, v BIGINT")
BY_KEY = SortKey(SCHEMA, [0], [(1, False, False)])
CONFIG = SpineConfig(
    fanout=2, max_inline_merge_rows=16, merge_step_rows=32, merge_rows_per_row=4, min_background_rows=64
)
TICKS = 150
ROWS = 20
LIMIT = 60


def delta(tick):
    """Rows (key, tick) for the keys 0 … ROWS-1; what tick-10 brought is taken back."""
    keys = np.arange(ROWS)
    come = pa.table({"k": keys, "v": np.full(ROWS, tick)})
    if tick < 10:
        return Batch.from_arrow(come, BY_KEY)
    gone = pa.table({"k": keys, "v": np.full(ROWS, tick - 10)})
    return Batch.from_arrow(pa.concat_tables([come, gone]), BY_KEY, np.repeat([1, -1], ROWS))


DELTAS = [delta(i) for i in range(TICKS)]


def expected(ticks):
    """The rows after so many ticks."""
    return {(k, v) for v in range(max(0, ticks - 10), ticks) for k in range(ROWS)}


def ticks_of(found):
    """How many ticks a read has seen, which must be all of each; `found` is a Z-set of weights 1."""
    last = max((v for _, v in found), default=-1)
    assert found == expected(last + 1), "neither before nor after a tick"
    return last + 1


def rows_of(batch):
    assert (batch.weights() == 1).all()
    table = batch.to_arrow()
    return set(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True))


class Threads:
    """Threads that stop when the writer has: the first error of any is raised at the end."""

    def __init__(self):
        self.stop = threading.Event()
        self.errors = []
        self.threads = []
        self.calls = {}

    def guarded(self, work, *args):
        try:
            work(*args)
        except BaseException as error:
            self.errors.append(error)
            self.stop.set()

    def start(self, work, *args):
        thread = threading.Thread(target=self.guarded, args=(work, *args), daemon=True)
        self.threads.append(thread)
        thread.start()

    def repeat(self, work, *args):
        """Call a function again and again until the writer has finished, and once more."""

        def loop():
            while not self.stop.is_set():
                work(*args)
                self.calls[work.__name__] = self.calls.get(work.__name__, 0) + 1
            work(*args)

        self.start(loop)

    def finish(self, *writers):
        """Wait for the writers, then for everyone."""
        deadline = time.monotonic() + LIMIT
        for thread in writers:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.stop.set()
        for thread in self.threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self.errors:
            raise self.errors[0]
        assert not any(t.is_alive() for t in self.threads), "a thread is stuck"


@pytest.fixture
def threads():
    some = Threads()
    yield some
    some.stop.set()


def write(trace, threads, pause=0.0):
    """The writer, on a thread of its own."""

    def work():
        for i in range(TICKS):
            trace.append(DELTAS[i])
            if pause:
                time.sleep(pause)
            if threads.errors:
                return

    threads.start(work)
    return threads.threads[-1]


def sums(batch):
    """What remains of a batch whose weights are not all 1."""
    table = batch.to_arrow()
    return dict(
        zip(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True), batch.weights().tolist(), strict=True)
    )


def test_every_read_of_a_trace_that_is_being_written_is_the_state_after_some_tick(threads):
    trace = Trace(BY_KEY, config=CONFIG)
    seen = {"scan": 0, "probe": 0, "first": 0, "cursor": 0}

    def advanced(name, ticks):
        assert ticks >= seen[name], "time goes backwards"
        seen[name] = ticks

    def scan():
        advanced("scan", ticks_of(rows_of(trace.scan())))

    def probe():
        advanced("probe", ticks_of(rows_of(trace.probe(range(ROWS)).batch())))

    def first():
        hits = trace.first(range(ROWS), 100)
        assert (hits.weights == 1).all()
        advanced("first", ticks_of(set(zip(*(c.to_pylist() for c in hits.columns()), strict=True))))

    def cursor():
        totals = {}
        for _, row, _, weight in trace.cursor():
            totals[row] = totals.get(row, 0) + weight
        advanced("cursor", ticks_of({row for row, weight in totals.items() if weight}))

    for reader in (scan, probe, first, cursor):
        threads.repeat(reader)
    threads.finish(write(trace, threads, 0.001))
    assert ticks_of(rows_of(trace.scan())) == TICKS
    assert seen == dict.fromkeys(seen, TICKS)
    assert all(threads.calls.get(name, 0) > 0 for name in seen), "a reader never had its turn"


def test_a_holder_reads_any_tick_it_holds_while_the_trace_is_written(threads):
    trace = Trace(BY_KEY, config=CONFIG)
    holder = TraceAgent.of(trace)
    pick = random.Random(1)

    def travel():
        (upper,) = holder.upper or [(TICKS,)]
        (low,) = holder.logical
        if low[0] >= upper[0]:
            return
        at = pick.randrange(low[0], upper[0])
        assert ticks_of(rows_of(holder.as_of(at))) == at + 1
        before = pick.randrange(low[0], at + 1)
        changed = sums(holder.changes(before, at))
        assert all(weight in (1, -1) for weight in changed.values())
        if pick.random() < 0.2:
            holder.advance(Antichain.at(at))

    threads.repeat(travel)
    threads.finish(write(trace, threads, 0.001))
    assert threads.calls["travel"] > 10


def test_a_reader_without_a_hold_gets_the_right_answer_or_none(threads):
    """Nobody holds the trace, so any tick may be compacted away at any moment: an error then, never a wrong answer."""
    trace = Trace(BY_KEY, config=CONFIG)
    outcomes = {"answer": 0, "refused": 0}

    def travel():
        (upper,) = trace.upper
        for at in (upper[0] - 1, upper[0]):
            if at < 0:
                continue
            try:
                found = trace.as_of(at)
            except TimeError:
                outcomes["refused"] += 1
            else:
                assert ticks_of(rows_of(found)) == at + 1
                outcomes["answer"] += 1

    threads.repeat(travel)
    threads.finish(write(trace, threads))
    assert outcomes["refused"]


def test_compaction_between_the_question_and_the_answer_gives_no_wrong_answer(monkeypatch):
    """The same at the worst moment, on one thread: the history goes while a read has begun."""
    trace = Trace(BY_KEY, config=SpineConfig(fanout=2))
    agent = TraceAgent.of(trace)
    for i in range(4):
        trace.append(DELTAS[i])
    reading = Trace.reading

    def late(self):
        agent.drop()
        trace.set_exert_logic(idle_merge_effort(1000))
        while trace.exert():
            pass
        return reading(self)

    monkeypatch.setattr(Trace, "reading", late)
    try:
        found = trace.as_of(1)
    except TimeError:
        return
    assert ticks_of(rows_of(found)) == 2


def test_imports_follow_from_other_threads(threads):
    """Begun before, amid and after the writing; each waits for what comes, and gets everything once."""
    trace = Trace(BY_KEY, config=CONFIG)
    agent = TraceAgent.of(trace)
    done = []

    def follow(delay):
        time.sleep(delay)
        source = agent.import_trace()
        totals, before = {}, Antichain.at(0)
        while not source.done:
            if not source.wait(LIMIT):
                assert source.done, "it waited in vain"
                break
            for batch in source.poll():
                for row, _, weight in updates_of(batch, 1):
                    totals[row] = totals.get(row, 0) + weight
            assert before.dominates(source.frontier), "the frontier went back"
            before = source.frontier
            if source.frontier:
                ((ticks,),) = source.frontier
                assert {row for row, weight in totals.items() if weight} == expected(ticks)
        assert {row for row, weight in totals.items() if weight} == expected(TICKS)
        done.append(delay)

    def work():
        for batch in DELTAS:
            trace.append(batch)
            time.sleep(0.001)
        trace.close()

    delays = (0, 0, 0.05, 0.2, 1.0)
    threads.start(work)
    writer = threads.threads[-1]
    for delay in delays:
        threads.start(follow, delay)
    threads.finish(writer)
    assert sorted(done) == sorted(delays)


def test_cancelling_an_import_wakes_whoever_waits_for_it(threads):
    trace = Trace(BY_KEY)
    source = TraceAgent.of(trace).import_trace()
    woken = threading.Event()

    def waiter():
        assert not source.wait(LIMIT)
        assert source.done
        woken.set()

    threads.start(waiter)
    time.sleep(0.05)
    assert not woken.is_set()
    source.cancel()
    assert woken.wait(10)
    threads.finish()


def test_closing_a_trace_wakes_whoever_waits_for_it(threads):
    trace = Trace(BY_KEY)
    source = TraceAgent.of(trace).import_trace()

    def waiter():
        while not source.done:
            source.wait(LIMIT)
            source.poll()

    threads.start(waiter)
    time.sleep(0.05)
    trace.close()
    threads.finish(*threads.threads)
    assert source.done


def test_imports_may_be_cancelled_while_they_are_polled_and_written_to(threads):
    trace = Trace(BY_KEY, config=CONFIG)
    agent = TraceAgent.of(trace)

    def come_and_go():
        source = agent.import_trace()
        poller = threading.Thread(target=threads.guarded, args=(poll, source), daemon=True)
        poller.start()
        time.sleep(random.random() / 500)
        source.cancel()
        poller.join(LIMIT)
        assert not poller.is_alive()
        assert source.poll() == []

    def poll(source):
        while not source.done:
            source.wait(0.01)
            source.poll()

    threads.repeat(come_and_go)
    threads.finish(write(trace, threads, 0.001))
    assert len(trace._listeners) == 0, "nobody listens any more"


def test_an_import_that_is_cancelled_while_it_is_polled_ends_without_an_error(monkeypatch):
    """The cancelling at the worst moment, on one thread: when the poll is about to move its hold."""
    trace = Trace(BY_KEY)
    agent = TraceAgent.of(trace)
    for i in range(3):
        trace.append(DELTAS[i])
    source = agent.import_trace()
    advance = TraceAgent.advance

    def late(self, frontier):
        source.cancel()
        advance(self, frontier)

    monkeypatch.setattr(TraceAgent, "advance", late)
    source.poll()
    assert source.done
    assert source.poll() == []
    assert agent.since == Antichain.at(0), "the agent itself holds on"


def test_agents_forks_and_idle_work_on_many_threads_disturb_nobody(threads):
    trace = Trace(BY_KEY, config=CONFIG)
    trace.set_exert_logic(idle_merge_effort(100))
    keeper = TraceAgent.of(trace)

    def hold():
        with TraceAgent.of(trace) as agent, agent.clone() as other:
            other.advance(agent.upper)
            assert agent.since.dominates(other.logical)
            ticks_of(rows_of(agent.scan()))

    def fork():
        other = trace.fork()
        ticks = ticks_of(rows_of(other.scan()))
        assert other.upper == Antichain.at(ticks)
        if ticks < TICKS:
            other.append(DELTAS[ticks])
            assert ticks_of(rows_of(other.scan())) == ticks + 1
        other.finish()
        assert ticks_of(rows_of(other.scan())) == min(ticks + 1, TICKS)

    def idle():
        trace.exert()

    def move():
        keeper.advance(keeper.upper)

    for work in (hold, fork, idle, move):
        threads.repeat(work)
    threads.finish(write(trace, threads, 0.001))
    trace.finish()
    assert ticks_of(rows_of(trace.scan())) == TICKS


def test_an_insert_waits_for_no_merge_in_the_background(monkeypatch):
    """A merge that takes for ever holds nobody up, until as many rows have come as it is merging."""
    release = threading.Event()
    turn = background.BackgroundMerge.run_step

    def held(self):
        release.wait(LIMIT)
        return turn(self)

    monkeypatch.setattr(background.BackgroundMerge, "run_step", held)
    trace = Trace(BY_KEY, config=SpineConfig(fanout=2, max_inline_merge_rows=0, min_background_rows=500))
    numbers = np.arange(4000)

    def rows(some):
        return Batch.from_arrow(pa.table({"k": some, "v": some}), BY_KEY)

    trace.append(rows(numbers[:1000]))
    trace.append(rows(numbers[1000:2000]))
    assert trace.spine.backlog() == 2000
    started = time.monotonic()
    for i in range(2000, 3000, 100):
        trace.append(rows(numbers[i : i + 100]))
    trace.seal(Antichain.at(100))
    trace.seal(Antichain.at(101))
    assert time.monotonic() - started < LIMIT / 2, "it waited for the merge"
    assert trace.scan().rows == 3000
    waiter = threading.Thread(target=lambda: [trace.append(rows(numbers[i : i + 100])) for i in range(3000, 4000, 100)])
    waiter.start()
    release.set()
    waiter.join(LIMIT)
    assert not waiter.is_alive()
    trace.finish()
    assert trace.scan().rows == 4000
    assert trace.spine.backlog() == 0


def test_an_error_in_the_background_reaches_the_writer(monkeypatch):
    def broken(self, limit):
        raise MemoryError("no room")

    monkeypatch.setattr(MergeRun, "step", broken)
    trace = Trace(BY_KEY, config=SpineConfig(fanout=2, max_inline_merge_rows=0, min_background_rows=10))

    def ten_ticks():
        for i in range(10):
            trace.append(DELTAS[i])
            time.sleep(0.01)
        trace.finish()

    with pytest.raises(MemoryError, match="no room"):
        ten_ticks()


@pytest.fixture
def stepped(monkeypatch):
    """What is merged in the background, step by step: the totals of the merges. No step ends before `go_on`."""
    step, steps, go_on = MergeRun.step, [], threading.Event()

    def slow(self, limit):
        steps.append(self.initial.total)
        assert go_on.wait(LIMIT)
        step(self, 100)

    monkeypatch.setattr(MergeRun, "step", slow)
    yield steps, go_on
    go_on.set()


def job(count):
    """A merge of so many rows, about to begin in the background."""
    halves = [np.arange(0, count, 2), np.arange(1, count, 2)]
    inputs = tuple(Batch.from_arrow(pa.table({"k": h, "v": h}), BY_KEY) for h in halves)
    return background.BackgroundMerge(MergeState((), inputs, (0, 0), count))


def until(happened):
    deadline = time.monotonic() + LIMIT
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def last(steps, total):
    return max(i for i, t in enumerate(steps) if t == total)


def test_small_merges_are_not_held_up_by_large_ones(stepped):
    steps, go_on = stepped
    running = [job(2000)]
    until(lambda: steps == [2000])
    running += [job(n) for n in (800, 1000, 400)]
    go_on.set()
    until(lambda: all(j.failed() is None and isinstance(j.latest, Batch) for j in running))
    assert [j.latest.rows for j in running] == [2000, 800, 1000, 400]
    assert steps[0] == 2000, "the step that was running"
    assert [t for t in steps[1:] if t != 2000] == sorted(t for t in steps if t != 2000)
    assert steps.index(2000, 1) > last(steps, 1000)


def test_a_merge_that_is_waited_for_comes_before_all_others(stepped):
    steps, go_on = stepped
    running = [job(200)]
    until(lambda: steps == [200])
    running += [job(n) for n in (400, 1000)]
    waiter = threading.Thread(target=running[2].wait)
    waiter.start()
    until(lambda: running[2]._awaited)
    go_on.set()
    waiter.join(LIMIT)
    assert not waiter.is_alive()
    for j in running:
        j.wait()
    assert [j.latest.rows for j in running] == [200, 400, 1000]
    assert last(steps, 1000) < last(steps, 200)
    assert last(steps, 1000) < last(steps, 400)


def test_merges_that_are_cancelled_let_go_of_their_inputs_before_others_go_on(stepped):
    steps, go_on = stepped
    first = job(200)
    until(lambda: steps == [200])
    gone = job(2000)
    gone.cancel()
    let_go = []
    gone._future.add_done_callback(lambda _: let_go.append(len(steps)))
    go_on.set()
    until(lambda: isinstance(first.latest, Batch))
    assert let_go == [1]
    assert 2000 not in steps
