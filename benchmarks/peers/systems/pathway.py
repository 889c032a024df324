"""Pathway, with one worker, fed by Python connectors, its view delivered to a subscriber.

A connector takes rows one at a time from Python; that is how it is fed, and it is timed. A tick of W1 or W2 goes
through one connector (the tables of W1 as a tagged union), so that a commit is one moment of the engine, and it is done
when the subscriber has seen the end of it. For that a checksum of everything that came in is a row more of the view: it
changes in every tick, also in those that leave the view as it is. W3 is continuous: batches are committed one after
the other without waiting, which is what serves Pathway best.

`pw.run` cannot be called twice in a process, so every run has its own.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.peers.case import WEIGHT, Case, with_tick
from benchmarks.peers.contender import Contender, NotExpressible, Outcome, resident

_MARK: Final = -1
_PRIME: Final = 1_000_003


class Pathway(Contender):
    name = "Pathway"
    workloads = frozenset({"w1", "w2", "w3"})
    alone = True

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self._changes: list[tuple[dict[str, Any], bool]] = []
        self._mark: int | None = None
        self._wanted: int | None = None
        self._reached = threading.Event()
        self._at = 0.0
        self._failed: BaseException | None = None

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {"pathway": version("pathway")}

    def run(self, case: Case, budget: float) -> Outcome:
        import pathway as pw

        return self._continuous(pw, case) if case.workload == "w3" else self._ticks(pw, case)

    # ------------------------------------------------------------------ W1 and W2: a tick at a time

    def _ticks(self, pw: Any, case: Case) -> Outcome:
        source, out = case.open(), Outcome()
        subject = _subject(pw, deletions=True)
        build = _revenue if case.workload == "w1" else _reach
        view, convert = build(pw, case, subject, source)
        pw.io.subscribe(view, on_change=self._changed, on_time_end=self._ended)
        steps = [convert(source[tick]) for tick in range(case.ticks + 1)]

        def drive() -> None:
            sums = 0
            held: Counter[tuple[Any, ...]] = Counter()
            subject.started.wait()
            for tick, step in enumerate(steps):
                sums += sum(sign * mark for sign, mark, _ in step)
                self._reached.clear()
                self._wanted = sums
                begun = time.perf_counter()
                for sign, _, row in step:
                    (subject.next if sign > 0 else subject.delete)(**row)
                subject.commit()
                if not self._reached.wait(300):
                    raise TimeoutError(f"tick {tick} is not done after 300 s")
                seconds = self._at - begun
                if tick:
                    out.ticks.append(seconds)
                else:
                    out.load = seconds
                self._fold(held)
                if tick in case.checked:
                    out.views.append(with_tick(_table(held), tick))
            out.memory = resident()

        self._driven(pw, drive, [subject])
        out.rows = case.rows(1, 1 + len(out.ticks))
        return out

    def _changed(self, key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        if row["kind"] == _MARK:
            if is_addition:
                self._mark = row["mark"]
        else:
            self._changes.append((row, is_addition))

    def _ended(self, moment: int) -> None:
        if self._wanted is not None and self._mark == self._wanted:
            self._at = time.perf_counter()
            self._wanted = None
            self._reached.set()

    def _fold(self, held: Counter[tuple[Any, ...]]) -> None:
        for row, added in self._changes:
            values = tuple(value for name, value in row.items() if name not in ("kind", "mark"))
            held[values] += 1 if added else -1
        self._changes.clear()

    def _driven(self, pw: Any, drive: Callable[[], None], subjects: Iterable[Any]) -> None:
        """Run the engine in this thread and the one who feeds it in another."""

        def guarded() -> None:
            try:
                drive()
            except BaseException as error:
                self._failed = error
            finally:
                for subject in subjects:
                    subject.done.set()

        feeder = threading.Thread(target=guarded)
        feeder.start()
        pw.run(monitoring_level=pw.MonitoringLevel.NONE)
        feeder.join()
        if self._failed is not None:
            raise self._failed

    # ------------------------------------------------------------------ W3

    def _continuous(self, pw: Any, case: Case) -> Outcome:
        build = _NEXMARK.get(case.view)
        if build is None:
            raise NotExpressible(f"{case.view} is not written for Pathway")
        source, out = case.open(), Outcome()
        subjects, tables = {}, {}
        for name in case.tables:
            columns = {_renamed(f.name): str if pa.types.is_string(f.type) else int for f in source.empty(name).schema}
            subjects[name] = _subject(pw, deletions=False)
            schema = pw.schema_from_dict(columns)
            tables[name] = pw.io.python.read(subjects[name], schema=schema, autocommit_duration_ms=None)
        view, times = build(pw, tables)
        steps = [{name: _dicts(rows) for name, rows in source[tick].items()} for tick in range(case.ticks + 1)]
        changes = self._changes

        def changed(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
            changes.append((row, is_addition))

        pw.io.subscribe(view, on_change=changed, on_time_end=self._moment)
        begun = 0.0

        def drive() -> None:
            nonlocal begun
            for subject in subjects.values():
                subject.started.wait()
            begun = time.perf_counter()
            for step in steps:
                for name, rows in step.items():
                    push = subjects[name].next
                    for row in rows:
                        push(**row)
                for subject in subjects.values():
                    subject.commit()

        self._driven(pw, drive, subjects.values())
        out.continuous = self._at - begun
        out.rows = case.rows(1, case.ticks + 1)
        out.memory = resident()
        out.note = "continuous: batches are not waited for"
        held: Counter[tuple[Any, ...]] = Counter()
        self._fold(held)
        shown = _table(held)
        for i in times:
            micros = pa.array(shown.column(i).to_numpy() * 1000)
            shown = shown.set_column(i, shown.column_names[i], micros)
        out.views.append(with_tick(shown, case.ticks))
        return out

    def _moment(self, moment: int) -> None:
        self._at = time.perf_counter()


def _subject(pw: Any, deletions: bool) -> Any:
    """A connector that stays open until it is told that all is done."""

    class Subject(pw.io.python.ConnectorSubject):
        def __init__(self) -> None:
            super().__init__()
            self.started, self.done = threading.Event(), threading.Event()

        def run(self) -> None:
            self.started.set()
            self.done.wait()

        @property
        def _deletions_enabled(self) -> bool:
            return deletions

    return Subject()


def _table(held: Counter[tuple[Any, ...]]) -> pa.Table:
    """Rows as often as they are held, in columns."""
    rows = [row for row, count in held.items() for _ in range(count)]
    width = len(rows[0]) if rows else 0
    return pa.table({f"c{i}": pa.array([row[i] for row in rows]) for i in range(width)})


def _renamed(column: str) -> str:
    return "key_" if column == "id" else column  # Pathway has an `id` of its own


def _dicts(rows: pa.Table) -> list[dict[str, Any]]:
    columns = []
    for column in rows.columns:
        if pa.types.is_timestamp(column.type):
            columns.append((column.cast(pa.int64()).to_numpy() // 1000).tolist())
        else:
            columns.append(column.to_pylist())
    names = [_renamed(name) for name in rows.column_names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _revenue(pw: Any, case: Case, subject: Any, source: Any) -> tuple[Any, Callable[..., Any]]:
    class Both(pw.Schema):
        kind: int = pw.column_definition(primary_key=True)
        key: int = pw.column_definition(primary_key=True)
        customer_id: int
        amount: int
        status: int
        region: str

    rows = pw.io.python.read(subject, schema=Both, autocommit_duration_ms=None)
    orders = rows.filter((pw.this.kind == 0) & (pw.this.status < 8))
    customers = rows.filter(pw.this.kind == 1)
    both = orders.join(customers, pw.left.customer_id == pw.right.customer_id)
    amounts = both.select(pw.left.amount, pw.right.region)
    sums = amounts.groupby(pw.this.region).reduce(
        pw.this.region, cnt=pw.reducers.count(), total=pw.reducers.sum(pw.this.amount), kind=0, mark=0
    )
    mark = rows.reduce(
        region="", cnt=0, total=0, kind=_MARK,
        mark=pw.reducers.sum(pw.this.key * _PRIME + pw.this.amount * 31 + pw.this.customer_id),
    )  # fmt: skip

    def convert(given: dict[str, pa.Table]) -> list[tuple[int, int, dict[str, Any]]]:
        out: list[tuple[int, int, dict[str, Any]]] = []
        for name, table in given.items():
            for row in table.to_pylist():
                order = name == "orders"
                fields = {
                    "kind": 0 if order else 1, "key": row["order_id"] if order else row["customer_id"],
                    "customer_id": row["customer_id"], "amount": row["amount"] if order else int(row["region"][-2:]),
                    "status": row["status"] if order else 0, "region": "" if order else row["region"],
                }  # fmt: skip
                check = fields["key"] * _PRIME + fields["amount"] * 31 + fields["customer_id"]
                out.append((row[WEIGHT], check, fields))
        return out

    return pw.Table.concat_reindex(sums, mark), convert


def _reach(pw: Any, case: Case, subject: Any, source: Any) -> tuple[Any, Callable[..., Any]]:
    class Edge(pw.Schema):
        src: int = pw.column_definition(primary_key=True)
        dst: int = pw.column_definition(primary_key=True)

    edges = pw.io.python.read(subject, schema=Edge, autocommit_duration_ms=None)
    seed = edges.select(pw.this.src, pw.this.dst)
    if "sources" in case.tables:
        wanted = pw.schema_from_dict({"node": int})
        sources = pw.debug.table_from_rows(wanted, [(node,) for node in source[0]["sources"]["src"].to_pylist()])
        seed = edges.join(sources, pw.left.src == pw.right.node).select(pw.left.src, pw.left.dst)

    def distinct(pairs: Any) -> Any:
        return pairs.groupby(pw.this.src, pw.this.dst).reduce(pw.this.src, pw.this.dst)

    def step(reach: Any, edges: Any, seed: Any) -> dict[str, Any]:
        hop = reach.join(edges, pw.left.dst == pw.right.src).select(src=pw.left.src, dst=pw.right.dst)
        return {"reach": distinct(pw.Table.concat_reindex(seed, hop)), "edges": edges, "seed": seed}

    seed = distinct(seed)
    pairs = pw.iterate(step, reach=pw.iterate_universe(seed), edges=edges, seed=seed).reach
    mark = edges.reduce(src=0, dst=0, kind=_MARK, mark=pw.reducers.sum(pw.this.src * _PRIME + pw.this.dst))
    shown = pairs.select(pw.this.src, pw.this.dst, kind=0, mark=0)

    def convert(given: dict[str, pa.Table]) -> list[tuple[int, int, dict[str, Any]]]:
        rows = given["edges"].to_pylist() if "edges" in given else []
        return [(r[WEIGHT], r["src"] * _PRIME + r["dst"], {"src": r["src"], "dst": r["dst"]}) for r in rows]

    return pw.Table.concat_reindex(shown, mark), convert


# ---------------------------------------------------------------------- Nexmark: a table, and which columns are times

_OFFER: Final = "item_name description initial_bid reserve date_time expires seller category extra"


def _columns(side: Any, names: str) -> list[Any]:
    return [side[name] for name in names.split()]


def _matched(pw: Any, t: dict[str, Any], *more: Any, **named: Any) -> Any:
    left, right = pw.left, pw.right
    both = t["auction"].join(t["bid"], left.key_ == right.auction)
    some = both.select(left.key_, *more, bid_time=right.date_time, **named)
    return some.filter((pw.this.bid_time >= pw.this.date_time) & (pw.this.bid_time <= pw.this.expires))


def _q3(pw: Any, t: dict[str, Any]) -> Any:
    this = pw.this
    some = t["person"].filter((this.state == "OR") | (this.state == "ID") | (this.state == "CA"))
    both = t["auction"].filter(this.category == 10).join(some, pw.left.seller == pw.right.key_)
    return both.select(*_columns(pw.right, "name city state"), pw.left.key_), ()


def _q4(pw: Any, t: dict[str, Any]) -> Any:
    this, left = pw.this, pw.left
    some = _matched(pw, t, left.category, left.date_time, left.expires, pw.right.price)
    final = some.groupby(this.key_, this.category).reduce(this.category, final=pw.reducers.max(this.price))
    return final.groupby(this.category).reduce(this.category, average=pw.reducers.avg(this.final)), ()


def _q5(pw: Any, t: dict[str, Any]) -> Any:
    this, bid = pw.this, t["bid"]
    window = pw.temporal.sliding(hop=2000, duration=10_000)
    counts = bid.windowby(bid.date_time, window=window, instance=bid.auction).reduce(
        auction=this._pw_instance, num=pw.reducers.count(), start=this._pw_window_start
    )
    most = counts.groupby(this.start).reduce(this.start, most=pw.reducers.max(this.num))
    best = counts.join(most, pw.left.start == pw.right.start, pw.left.num == pw.right.most)
    return best.select(*_columns(pw.left, "auction num start"), end=pw.left.start + 10_000), (2, 3)


def _q7(pw: Any, t: dict[str, Any]) -> Any:
    this = pw.this
    names = "auction price bidder date_time extra"
    bids = t["bid"].select(*_columns(this, names), window=this.date_time // 10_000)
    most = bids.groupby(this.window).reduce(this.window, most=pw.reducers.max(this.price))
    best = bids.join(most, pw.left.window == pw.right.window, pw.left.price == pw.right.most)
    return best.select(*_columns(pw.left, names)), (3,)


def _q8(pw: Any, t: dict[str, Any]) -> Any:
    this = pw.this
    start = this.date_time // 10_000 * 10_000
    persons = t["person"].select(this.key_, this.name, start=start)
    persons = persons.groupby(this.key_, this.name, this.start).reduce(this.key_, this.name, this.start)
    sellers = t["auction"].select(this.seller, start=start)
    sellers = sellers.groupby(this.seller, this.start).reduce(this.seller, this.start)
    both = persons.join(sellers, pw.left.key_ == pw.right.seller, pw.left.start == pw.right.start)
    return both.select(*_columns(pw.left, "key_ name start")), (2,)


def _q9(pw: Any, t: dict[str, Any]) -> Any:
    this, right = pw.this, pw.right
    offer = _columns(pw.left, _OFFER)
    some = _matched(pw, t, *offer, right.auction, right.bidder, right.price, right.seq, bid_extra=right.extra)
    order = pw.make_tuple(this.price, -this.bid_time, -this.seq)
    best = some.groupby(this.key_).reduce(at=pw.reducers.argmax(order))
    names = f"key_ {_OFFER} auction bidder price bid_time bid_extra"
    return best.select(*_columns(some.ix(this.at), names)), (5, 6, 13)


def _q12(pw: Any, t: dict[str, Any]) -> Any:
    this = pw.this
    bids = t["bid"].select(this.bidder, start=this.date_time // 10_000 * 10_000)
    counts = bids.groupby(this.bidder, this.start).reduce(this.bidder, n=pw.reducers.count(), start=this.start)
    return counts.select(*_columns(this, "bidder n start"), end=this.start + 10_000), (2, 3)


def _q13(pw: Any, t: dict[str, Any]) -> Any:
    names = "auction bidder price date_time"
    bids = t["bid"].select(*_columns(pw.this, names), looked_up=pw.this.auction % 10_000)
    both = bids.join(t["side_input"], pw.left.looked_up == pw.right.key)
    return both.select(*_columns(pw.left, names), pw.right.value), (3,)


def _q14(pw: Any, t: dict[str, Any]) -> Any:
    this, price = pw.this, 0.908 * pw.this.price

    def kind(ms: int) -> str:
        hour = ms // 3_600_000 % 24
        return "dayTime" if 8 <= hour <= 18 else "nightTime" if hour <= 6 or hour >= 20 else "otherTime"

    some = t["bid"].filter((price > 1_000_000) & (price < 50_000_000))
    when = pw.apply_with_type(kind, str, this.date_time)
    count = pw.apply_with_type(lambda text: text.count("c"), int, this.extra)
    return some.select(
        this.auction, this.bidder, price=price, kind=when, date_time=this.date_time, extra=this.extra, count=count
    ), (4,)


def _q17(pw: Any, t: dict[str, Any]) -> Any:
    this, count = pw.this, pw.reducers.count
    day = pw.apply_with_type(lambda ms: str(np.datetime64(ms, "ms"))[:10], str, this.date_time)
    low, high = this.price < 10_000, this.price >= 1_000_000
    ranks = {"low": low, "middle": ~low & ~high, "high": high}
    flags = {name: pw.cast(int, flag) for name, flag in ranks.items()}
    bids = t["bid"].select(this.auction, this.price, day=day, **flags)
    sums = {name: pw.reducers.sum(this[name]) for name in ranks}
    figures = {name: getattr(pw.reducers, name)(this.price) for name in ("min", "max", "avg", "sum")}
    return bids.groupby(this.auction, this.day).reduce(this.auction, this.day, n=count(), **sums, **figures), ()


def _q18(pw: Any, t: dict[str, Any]) -> Any:
    this, bid = pw.this, t["bid"]
    order = pw.make_tuple(this.date_time, this.seq)
    last = bid.groupby(this.bidder, this.auction).reduce(at=pw.reducers.argmax(order))
    return last.select(*_columns(bid.ix(this.at), "auction bidder price channel url date_time extra")), (5,)


def _q20(pw: Any, t: dict[str, Any]) -> Any:
    both = t["bid"].join(t["auction"].filter(pw.this.category == 10), pw.left.auction == pw.right.key_)
    mine = _columns(pw.left, "auction bidder price channel url date_time extra")
    offer = _columns(pw.right, "item_name description initial_bid reserve")
    last = _columns(pw.right, "expires seller category")
    return both.select(*mine, *offer, opened=pw.right.date_time, **_named(last), offer_extra=pw.right.extra), (
        5,
        11,
        12,
    )


def _named(columns: list[Any]) -> dict[str, Any]:
    return {column.name: column for column in columns}


def _q22(pw: Any, t: dict[str, Any]) -> Any:
    this = pw.this

    def part(i: int) -> Any:
        return pw.apply_with_type(lambda url: (url.split("/") + [""] * i)[i], str, this.url)

    return t["bid"].select(*_columns(this, "auction bidder price channel"), a=part(3), b=part(4), c=part(5)), ()


def _plain(names: str, times: tuple[int, ...], **computed: Callable[[Any], Any]) -> Callable[..., Any]:
    """Some columns of a bid, one of them computed."""

    def build(pw: Any, t: dict[str, Any]) -> Any:
        columns = {name: computed[name](pw.this) if name in computed else pw.this[name] for name in names.split()}
        return t["bid"].select(**columns), times

    return build


_BID: Final = "auction bidder price date_time extra"
_NEXMARK: Final[dict[str, Callable[..., Any]]] = {
    "q0": _plain(_BID, (3,)),
    "q1": _plain(_BID, (3,), price=lambda this: 0.908 * this.price),
    "q2": lambda pw, t: (t["bid"].filter(pw.this.auction % 123 == 0).select(pw.this.auction, pw.this.price), ()),
    "q3": _q3, "q4": _q4, "q5": _q5, "q7": _q7, "q8": _q8, "q9": _q9, "q12": _q12, "q13": _q13, "q14": _q14,
    "q17": _q17, "q18": _q18, "q20": _q20, "q22": _q22,
}  # fmt: skip
