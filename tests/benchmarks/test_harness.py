"""A race compares what contenders produce before it says how long they took."""

import time

import numpy as np
import pytest

from benchmarks.harness import Contender, MismatchError, race
from benchmarks.report import Target, figure
from benchmarks.zset.data import Population, fingerprint, rows_of, tuples_of, zset
from benchmarks.zset.updates import changes, deltas, lookups, points, union_many
from benchmarks.zset.workload import Result, measure
from dbspark.zset import BACKENDS, ZSetConfig

BRIEF = {"rounds": 2, "most": 2, "budget": 0.0}


def test_contenders_take_turns_and_warm_up_first():
    seen = []
    timings = race([Contender(name, lambda _, name=name: seen.append(name)) for name in "ab"], **BRIEF)
    assert seen == [*"ab", *"ab", *"ab", *"ba", *"ab"]
    assert [len(t.samples) for t in timings.values()] == [3, 3]


def test_different_results_are_an_error():
    with pytest.raises(MismatchError, match="a gives 1, but b gives 2"):
        race([Contender("a", lambda _: 1), Contender("b", lambda _: 2)], **BRIEF)


def test_what_differs_at_the_end_only_is_an_error():
    turns = iter([1, 1, 1, 1, 2])
    with pytest.raises(MismatchError):
        race([Contender("a", lambda _: 1), Contender("b", lambda _: next(turns))], **BRIEF)


def test_the_hopeless_are_timed_in_the_warm_up_only_unless_they_are_judged():
    contenders = [Contender("fast", lambda _: None), Contender("slow", lambda _: time.sleep(0.01))]
    assert not race(contenders, **BRIEF)["slow"].raced
    assert race(contenders, judged="slow", **BRIEF)["slow"].raced


def test_setup_is_not_timed():
    timings = race([Contender("a", lambda _: None, setup=lambda: time.sleep(0.02))], **BRIEF)
    assert timings["a"].median < 0.01


def test_targets_are_passed_at_their_limit():
    assert Target("t", 2.0, 2.0).passed
    assert not Target("t", 2.01, 2.0).passed
    assert [figure(v) for v in (0.123, 12.34, 1234.5, float("nan"))] == ["0.12", "12.3", "1,234", "-"]


def test_rows_are_distinct_and_the_same_every_time():
    table = rows_of(np.arange(20_000))
    assert len(set(tuples_of(np.arange(20_000)))) == 20_000
    assert rows_of(np.arange(5000, 6000)).equals(table.slice(5000, 1000).combine_chunks())


def test_fingerprints_are_equal_exactly_for_equal_zsets():
    ids = np.arange(300)
    for backend in BACKENDS:
        config = ZSetConfig(backend=backend)
        z = zset(ids, None, config)
        assert fingerprint(z) == fingerprint(zset(ids[::-1]))
        assert fingerprint(z + zset([7], [-1], config)) == fingerprint(zset(np.delete(ids, 7)))
        assert fingerprint(z + zset([7], [1], config)) != fingerprint(z)


@pytest.mark.parametrize(("inserts", "deletes"), [(5, 5), (8, 2), (2, 8), (0, 3), (3, 0)])
def test_a_population_deletes_only_what_is_there(inserts, deletes):
    population = Population(200)
    alive = set(range(200))
    for _ in range(20):
        ids, weights = population.change(inserts, deletes)
        new, gone = set(ids[weights > 0].tolist()), set(ids[weights < 0].tolist())
        assert (len(new), len(gone)) == (inserts, deletes)
        assert gone <= alive
        assert not new & alive
        alive = (alive | new) - gone
        assert set(population.ids.tolist()) == alive


@pytest.mark.parametrize("rows", [1, 10])
@pytest.mark.parametrize("kind", ["insert", "cancel", "toggle", "skew"])
def test_streams_of_deltas_have_the_size_asked_for(kind, rows):
    found = changes(kind, rows, 9, 1000)
    assert len(found) == 9
    assert all(len(ids) == len(weights) == rows for ids, weights in found)


@pytest.mark.parametrize(
    "workload", [points("hot-spot", 200), lookups(200, 1000), deltas("cancel", 1, 1000), union_many(1000)]
)
def test_backends_agree_on_a_workload(workload):
    result = measure(workload, **BRIEF)
    assert not result.error
    assert set(result.micros) == set(BACKENDS)
    assert result.best_single != "Adaptive"


def test_a_workload_that_fails_says_so_and_no_figure():
    workload = points("random", 10)
    result = Result(workload, {}, "ValueError: no")
    assert "ERROR" in result.line()
    assert result.as_json() == {"error": "ValueError: no"}
