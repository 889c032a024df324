"""W1: orders joined with customers, filtered, grouped by region, under a stream of changes.

    SELECT region, count(*) AS cnt, sum(amount) AS total
    FROM orders JOIN customers USING (customer_id) WHERE status < 8 GROUP BY region

A tick has D changes: one in twenty a customer who moves to another region, of the rest half new orders, a quarter
deleted ones, a quarter changed ones. Data and changes are drawn from seeded generators, and the view after every tick
is known from counting.

`Hand` is the limit: this view and no other, written by hand: a hash table of customers with chained orders, compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64s = npt.NDArray[np.int64]
ORDERS: Final = "order_id BIGINT, customer_id BIGINT, amount BIGINT, status INT"
CUSTOMERS: Final = "customer_id BIGINT, region STRING"
REGIONS: Final = np.array([f"region_{i:02d}" for i in range(25)])


@dataclass(slots=True)
class Change:
    """Rows of both tables with weights, in columns."""

    orders: dict[str, Any]
    customers: dict[str, Any]

    @property
    def rows(self) -> int:
        return len(self.orders["w"]) + len(self.customers["w"])


@dataclass(slots=True)
class Workload:
    """The base as one change, then the ticks; `views` after each of them."""

    base: Change
    ticks: list[Change]
    views: list[dict[str, tuple[int, int]]]


def _change(parts_o: list[tuple[Any, ...]], parts_c: list[tuple[Any, ...]]) -> Change:
    def columns(parts: list[tuple[Any, ...]], names: tuple[str, ...], types: tuple[Any, ...]) -> dict[str, Any]:
        return {
            n: np.concatenate([np.asarray(p[i], t) for p in parts]) if parts else np.empty(0, t)
            for i, (n, t) in enumerate(zip(names, types, strict=True))
        }

    orders = columns(
        parts_o,
        ("w", "order_id", "customer_id", "amount", "status"),
        (np.int64, np.int64, np.int64, np.int64, np.int32),
    )
    return Change(orders, columns(parts_c, ("w", "customer_id", "region"), (np.int64, np.int64, np.int64)))


def generate(n: int, d: int, ticks: int, seed: int = 1) -> Workload:
    """A workload of n orders and ticks of d changes."""
    rng = np.random.default_rng(seed)
    customers = n // 10
    region = rng.integers(0, 25, customers).astype(np.int8).astype(np.int64)
    room = n + ticks * d + 10
    customer, amount, status = np.zeros(room, np.int64), np.zeros(room, np.int64), np.zeros(room, np.int32)
    customer[:n] = rng.integers(0, customers, n)
    amount[:n] = rng.integers(1, 10001, n)
    status[:n] = rng.integers(0, 10, n).astype(np.int32)
    ids = np.arange(n)
    base = _change(
        [(np.ones(n), ids, customer[:n], amount[:n], status[:n])], [(np.ones(customers), np.arange(customers), region)]
    )
    rng = np.random.default_rng(seed * 1000 + d)
    live = ids
    following = n
    out: list[Change] = []
    views = [_view(region, customer, amount, status, live)]
    for _ in range(ticks):
        moving, inserts, deletes, updates = _parts(rng, d)
        at = rng.choice(len(live), deletes + updates, replace=False)
        gone, changed = live[at[:deletes]], live[at[deletes:]]
        movers = rng.choice(customers, moving, replace=False)
        orders = [_orders(-1, i, customer, amount, status) for i in (gone, changed)]
        people = [(np.full(moving, -1), movers, region[movers])]
        amount[changed] = rng.integers(1, 10001, updates)
        status[changed] = rng.integers(0, 10, updates)
        new = np.arange(following, following + inserts)
        following += inserts
        customer[new] = rng.integers(0, customers, inserts)
        amount[new] = rng.integers(1, 10001, inserts)
        status[new] = rng.integers(0, 10, inserts)
        region[movers] = (region[movers] + rng.integers(1, 25, moving)) % 25
        orders += [_orders(1, i, customer, amount, status) for i in (changed, new)]
        people.append((np.ones(moving), movers, region[movers]))
        keep = np.ones(len(live), bool)
        keep[at[:deletes]] = False
        live = np.concatenate([live[keep], new])
        out.append(_change(orders, people))
        views.append(_view(region, customer, amount, status, live))
    return Workload(base, out, views)


def _parts(rng: np.random.Generator, d: int) -> tuple[int, int, int, int]:
    """How many customers move, and how many orders come, go and change; a single change is drawn."""
    if d == 1:
        kind = int(np.searchsorted([0.05, 0.525, 0.7625], rng.random(), side="right"))
        return ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1))[kind]
    moving = max(1, round(d * 0.05))
    quarter = (d - moving) // 4
    return moving, d - moving - 2 * quarter, quarter, quarter


def _orders(w: int, ids: Int64s, customer: Int64s, amount: Int64s, status: Any) -> tuple[Any, ...]:
    return np.full(len(ids), w), ids, customer[ids], amount[ids], status[ids]


def _view(region: Int64s, customer: Int64s, amount: Int64s, status: Any, live: Int64s) -> dict[str, tuple[int, int]]:
    some = live[status[live] < 8]
    where = region[customer[some]]
    count = np.bincount(where, minlength=25)
    total = np.zeros(25, np.int64)
    np.add.at(total, where, amount[some])
    return {str(REGIONS[r]): (int(count[r]), int(total[r])) for r in range(25) if count[r]}


def arrow(change: Change) -> tuple[pa.Table, pa.Table, Int64s, Int64s]:
    """Both changes as Arrow tables without weights, and the weights."""
    o, c = change.orders, change.customers
    orders = pa.table({k: pa.array(o[k]) for k in ("order_id", "customer_id", "amount", "status")})
    customers = pa.table({"customer_id": pa.array(c["customer_id"]), "region": pa.array(REGIONS[c["region"]])})
    return orders, customers, o["w"], c["w"]


# ---------------------------------------------------------------------------------------------------- by hand


@numba.njit(inline="always")
def _slot(keys: Any, used: Any, key: Any) -> Any:
    mask = len(keys) - 1
    x = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    i = np.int64((x ^ (x >> np.uint64(29))) & np.uint64(mask))
    while used[i] and keys[i] != key:
        i = (i + 1) & mask
    return i


@numba.njit
def _grown(keys: Any, used: Any, region: Any, head: Any) -> Any:
    size = 2 * len(keys)
    k, u = np.empty(size, np.int64), np.zeros(size, np.bool_)
    r, h = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
    for i in range(len(keys)):
        if used[i]:
            j = _slot(k, u, keys[i])
            k[j], u[j], r[j], h[j] = keys[i], True, region[i], head[i]
    return k, u, r, h


@numba.njit
def _take_orders(w: Any, ids: Any, customer: Any, amount: Any, status: Any, keys: Any, used: Any, region: Any,
                 head: Any, rows: Any, free: Any, counts: Any, out: Any) -> None:  # fmt: skip
    for i in range(len(w)):
        if status[i] >= 8:
            continue
        s = _slot(keys, used, customer[i])
        if not used[s]:
            used[s], keys[s] = True, customer[i]
            counts[2] += 1
        r = region[s]
        if r >= 0:
            out[r, 0] += w[i]
            out[r, 1] += w[i] * amount[i]
        if w[i] > 0:
            if counts[1] > 0:
                counts[1] -= 1
                p = free[counts[1]]
            else:
                p = counts[0]
                counts[0] += 1
            rows[p, 0], rows[p, 1], rows[p, 2] = ids[i], amount[i], head[s]
            head[s] = p
        else:
            before, p = -1, head[s]
            while p >= 0 and not (rows[p, 0] == ids[i] and rows[p, 1] == amount[i]):
                before, p = p, rows[p, 2]
            if p >= 0:
                if before < 0:
                    head[s] = rows[p, 2]
                else:
                    rows[before, 2] = rows[p, 2]
                free[counts[1]] = p
                counts[1] += 1


@numba.njit
def _take_customers(w: Any, customer: Any, new: Any, keys: Any, used: Any, region: Any, head: Any, rows: Any,
                    counts: Any, out: Any) -> None:  # fmt: skip
    for i in range(len(w)):
        s = _slot(keys, used, customer[i])
        if not used[s]:
            used[s], keys[s] = True, customer[i]
            counts[2] += 1
        n, total, p = 0, 0, head[s]
        while p >= 0:
            n += 1
            total += rows[p, 1]
            p = rows[p, 2]
        out[new[i], 0] += w[i] * n
        out[new[i], 1] += w[i] * total
        if w[i] > 0:
            region[s] = new[i]
        elif region[s] == new[i]:
            region[s] = -1


class Hand:
    """The view by hand; regions come as strings, as they do for everybody else."""

    def __init__(self) -> None:
        size = 1 << 10
        self.keys, self.used = np.empty(size, np.int64), np.zeros(size, np.bool_)
        self.region, self.head = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
        self.rows, self.free = np.empty((size, 3), np.int64), np.empty(size, np.int64)
        self.counts = np.zeros(3, np.int64)
        self.codes: dict[str, int] = {}
        self.names: list[str] = []
        self.sums = np.zeros((64, 2), np.int64)

    def step(self, change: Change, regions: list[str]) -> list[tuple[int, str, int, int]]:
        o, c = change.orders, change.customers
        more = len(o["w"])
        while (self.counts[2] + more + len(c["w"])) * 2 > len(self.keys):
            self.keys, self.used, self.region, self.head = _grown(self.keys, self.used, self.region, self.head)
        while self.counts[0] + more > len(self.rows):
            self.rows = np.concatenate([self.rows, np.empty_like(self.rows)])
        if self.counts[1] + more > len(self.free):
            self.free = np.concatenate([self.free, np.empty(max(len(self.free), more), np.int64)])
        out = np.zeros_like(self.sums)
        if regions:
            new = np.empty(len(regions), np.int64)
            for i, name in enumerate(regions):
                code = self.codes.get(name)
                if code is None:
                    code = self.codes[name] = len(self.names)
                    self.names.append(name)
                new[i] = code
            table = self.keys, self.used, self.region, self.head, self.rows
        if more:
            _take_orders(
                o["w"], o["order_id"], o["customer_id"], o["amount"], o["status"],
                self.keys, self.used, self.region, self.head, self.rows, self.free, self.counts, out,
            )  # fmt: skip
        if regions:
            _take_customers(c["w"], c["customer_id"], new, *table, self.counts, out)
        delta: list[tuple[int, str, int, int]] = []
        for i in np.flatnonzero(out.any(axis=1)).tolist():
            old, now = self.sums[i].tolist(), (self.sums[i] + out[i]).tolist()
            self.sums[i] = now
            if old[0]:
                delta.append((-1, self.names[i], *old))
            if now[0]:
                delta.append((1, self.names[i], *now))
        return delta

    def view(self) -> dict[str, tuple[int, int]]:
        return {n: (int(self.sums[i, 0]), int(self.sums[i, 1])) for i, n in enumerate(self.names) if self.sums[i, 0]}


def regions_of(change: Change) -> list[str]:
    """The strings that a change of customers comes with."""
    names: list[str] = REGIONS[change.customers["region"]].tolist()
    return names


def pairs(workload: Workload) -> Iterator[tuple[Change, dict[str, tuple[int, int]]]]:
    """Every tick with the view after it."""
    yield from zip(workload.ticks, workload.views[1:], strict=True)
