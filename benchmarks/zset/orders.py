"""The data of LargeScalePipeline, as DBSP.NET generates it, with the values it must have.

Five draws per order from one generator (customer, product, quantity, price, age), then three per change (which order,
more of it, another price). `now` is frozen: a timestamp is an offset from it in seconds, so the data is the same on
every day. `check` asserts the golden values; nothing runs on data that does not have them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.zset.dotnet import Random, scaled

Int64s = npt.NDArray[np.int64]

COLUMNS: Final = ("CustomerId", "ProductId", "Quantity", "PriceCents", "Timestamp")
SCHEMA: Final = ", ".join(f"{name} BIGINT" for name in COLUMNS)
RECENT: Final = -30 * 86400
PRODUCTS: Final = 10_000
SEED: Final = 42


@dataclass(frozen=True)
class Orders:
    """Orders and the changes to them. `rows` has a column per field; changes name the order and its new values."""

    rows: Int64s
    at: Int64s
    changed: Int64s

    @property
    def size(self) -> int:
        return len(self.rows)

    def delta(self) -> pa.Table:
        """{(old, -1), (new, +1)} for each change, with the weights in column `w`."""
        return weighted(self.rows[self.at], self.changed)

    def after(self) -> Int64s:
        """The rows with the changes applied one by one: of several changes to one order the last one stays."""
        rows = self.rows.copy()
        for i, at in enumerate(self.at.tolist()):
            rows[at] = self.changed[i]
        return rows


def weighted(old: Int64s, new: Int64s) -> pa.Table:
    weights = np.repeat(np.array([-1, 1], np.int64), [len(old), len(new)])
    return table(np.concatenate([old, new])).append_column("w", pa.array(weights))


def table(rows: Int64s) -> pa.Table:
    return pa.table({name: np.ascontiguousarray(rows[:, c]) for c, name in enumerate(COLUMNS)})


@lru_cache(maxsize=4)
def generate(size: int, changes: int) -> Orders:
    """Orders and changes, the same as DBSP.NET's."""
    return _generated(size, changes, Random(SEED))


def _generated(size: int, changes: int, random: Random) -> Orders:
    rows = random.draws(size * 5).reshape(size, 5)
    limits = ((0, size // 10 + 1), (0, PRODUCTS), (1, 6), (100, 50_100), (0, 60 * 86400))
    for c, (low, high) in enumerate(limits):
        rows[:, c] = scaled(rows[:, c], low, high)
    rows[:, 4] *= -1
    at, changed = change(rows, changes, random)
    return Orders(rows, at, changed)


def change(rows: Int64s, count: int, random: Random) -> tuple[Int64s, Int64s]:
    """Draw changes: which rows, and what becomes of them."""
    drawn = random.draws(count * 3).reshape(count, 3)
    at = scaled(drawn[:, 0], 0, len(rows))
    changed = rows[at]
    changed[:, 2] += scaled(drawn[:, 1], 0, 2)
    changed[:, 3] += scaled(drawn[:, 2], -50, 50)
    return at, changed


class Stream:
    """Fresh changes, as many as one likes, each to the orders as they are by then."""

    def __init__(self, orders: Orders) -> None:
        self._rows = orders.rows.copy()
        self._random = Random(SEED + 1)

    def next(self, count: int) -> pa.Table:
        at, changed = change(self._rows, count, self._random)
        _, last = np.unique(at[::-1], return_index=True)
        last = count - 1 - last
        old = self._rows[at[last]]
        self._rows[at[last]] = changed[last]
        return weighted(old, changed[last])


# ---------------------------------------------------------------------- the answers, by plain numpy


@dataclass(frozen=True)
class Golden:
    """A line of the table in A1.3."""

    size: int
    changes: int
    products: int
    recent: int
    joined: int
    groups: int
    total_before: int
    recent_changes: int
    matched: int
    total_after: int
    groups_changed: int


GOLDEN: Final = tuple(
    Golden(*line)
    for line in (
        (100_000, 1, 5000, 50037, 24940, 14232, 1860440707, 0, 0, 1860440707, 0),
        (100_000, 1, 10000, 50037, 50037, 18362, 3768046242, 0, 0, 3768046242, 0),
        (100_000, 10, 10000, 50037, 50037, 18362, 3768046242, 3, 3, 3768109257, 3),
        (100_000, 100, 5000, 50037, 24940, 14232, 1860440707, 44, 19, 1860737891, 19),
        (100_000, 100, 10000, 50037, 50037, 18362, 3768046242, 44, 44, 3768752524, 44),
        (100_000, 1000, 10000, 50037, 50037, 18362, 3768046242, 507, 507, 3774223458, 495),
        (300_000, 1, 5000, 149952, 75007, 42746, 5621599189, 1, 1, 5621599051, 1),
        (300_000, 100, 5000, 149952, 75007, 42746, 5621599189, 60, 34, 5621971941, 34),
        (1_000_000, 1, 10000, 499898, 499898, 183758, 37618730651, 0, 0, 37618730651, 0),
        (1_000_000, 100, 10000, 499898, 499898, 183758, 37618730651, 60, 60, 37619351657, 60),
    )
)
FIRST: Final = {
    100_000: [(6681, 1409, 1, 26238, -873163), (2626, 7244, 3, 8782, -3946322)],
    300_000: [(20043, 1409, 1, 26238, -873163)],
}


def sums(rows: Int64s, products: int) -> tuple[Int64s, Int64s]:
    """Per (customer, class) of recent orders of known products: the group and its sum."""
    rows = rows[(rows[:, 4] >= RECENT) & (rows[:, 1] < products)]
    group = rows[:, 0] * 2 + rows[:, 1] % 2
    found, at = np.unique(group, return_inverse=True)
    total = np.zeros(len(found), np.int64)
    np.add.at(total, at, rows[:, 2] * rows[:, 3])
    return found, total


def answer(orders: Orders, products: int) -> Golden:
    """What numpy makes of the orders."""
    rows, after = orders.rows, orders.after()
    recent = rows[:, 4] >= RECENT
    before_groups, before = sums(rows, products)
    after_groups, then = sums(after, products)
    assert np.array_equal(before_groups, after_groups)
    recent_change = recent[orders.at]
    return Golden(
        orders.size, len(orders.at), products, int(recent.sum()), int((recent & (rows[:, 1] < products)).sum()),
        len(before_groups), int(before.sum()), int(recent_change.sum()),
        int((recent_change & (rows[orders.at, 1] < products)).sum()), int(then.sum()), int((before != then).sum()),
    )  # fmt: skip


def check(size: int) -> int:
    """Assert every golden value for this many orders; returns how many lines there are."""
    lines = [golden for golden in GOLDEN if golden.size == size]
    for golden in lines:
        orders = generate(size, golden.changes)
        first = [tuple(row) for row in orders.rows[:2].tolist()]
        for expected, given in zip(FIRST.get(size, []), first, strict=False):
            assert given == expected, f"{size} orders: expected {expected}, generated {given}"
        given = answer(orders, golden.products)
        assert given == golden, f"expected {golden}, generated {given}"
    return len(lines)
