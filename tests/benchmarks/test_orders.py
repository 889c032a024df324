"""The data of LargeScalePipeline is DBSP.NET's, draw by draw."""

import numpy as np
import pytest

from benchmarks.zset import orders
from benchmarks.zset.dotnet import Random, scaled
from benchmarks.zset.orders import GOLDEN, Stream, answer, generate


@pytest.mark.parametrize(
    ("seed", "first"),
    [
        (42, [1434747710, 302596119, 269548474, 1122627734, 361709742, 563913476]),
        (0, [1559595546, 1755192844, 1649316166]),
        (7, [822959691, 1871007331, 1419354884]),
    ],
)
def test_draws_are_those_of_dotnet(seed, first):
    assert Random(seed).draws(len(first)).tolist() == first


def test_draws_do_not_depend_on_how_they_are_grouped():
    one, other = Random(42), Random(42)
    whole = one.draws(1000)
    assert np.concatenate([other.draws(n) for n in (1, 54, 55, 56, 834)]).tolist() == whole.tolist()
    assert one.draws(3).tolist() == other.draws(3).tolist()


@pytest.mark.parametrize("seed", [-42, 2**31 - 1, -(2**31)])
def test_any_seed_gives_draws_in_range(seed):
    drawn = Random(seed).draws(10_000)
    assert drawn.min() >= 0
    assert drawn.max() < 2**31 - 1
    assert drawn.tolist() == Random(2**31 - 1 if seed == -(2**31) else abs(seed)).draws(10_000).tolist()


def test_scaled_draws_stay_in_their_range():
    drawn = Random(1).draws(10_000)
    assert set(scaled(drawn, -2, 3).tolist()) == {-2, -1, 0, 1, 2}


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: f"{g.size}-{g.changes}-{g.products}")
def test_golden_values(golden):
    assert answer(generate(golden.size, golden.changes), golden.products) == golden


@pytest.mark.parametrize("size", [100_000, 300_000])
def test_first_orders(size):
    given = [tuple(row) for row in generate(size, 1).rows[:2].tolist()]
    assert given[: len(orders.FIRST[size])] == orders.FIRST[size]


def test_check_covers_every_golden_line():
    assert sum(orders.check(size) for size in (100_000, 300_000, 1_000_000)) == len(GOLDEN)


def test_a_wrong_row_is_noticed(monkeypatch):
    changed = generate(100_000, 1).rows.copy()
    changed[5, 3] += 1
    monkeypatch.setattr(orders, "generate", lambda _, n: orders.Orders(changed, *orders.change(changed, n, Random(1))))
    with pytest.raises(AssertionError, match="expected Golden"):
        orders.check(100_000)


def test_a_thousand_changes_hit_994_orders():
    assert len(set(generate(100_000, 1000).at.tolist())) == 994


def test_fresh_changes_always_take_away_what_is_there():
    base = generate(1000, 1)
    rows = {tuple(row) for row in base.rows.tolist()}
    assert len(rows) == 1000
    stream = Stream(base)
    for _ in range(50):
        table = stream.next(200)
        changes = list(zip(*(table.column(c).to_pylist() for c in range(6)), strict=True))
        gone = {c[:5] for c in changes if c[5] < 0}
        new = {c[:5] for c in changes if c[5] > 0}
        assert gone <= rows
        rows = (rows - gone) | new
