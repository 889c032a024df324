"""The same ticks by workers that stay, by a shuffle, and embedded: one after the other in the same minutes.

Three pipelines get the same transactions in turn: W1 (a join with an aggregate over a million orders), the seven views
of the demo, and a transitive closure. Their views are compared with each other. A shuffle takes most of the time, so it
gets the first few ticks only.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

import dbspark
from benchmarks.circuit import w1
from benchmarks.harness import QUICK, MismatchError, no_gc
from benchmarks.report import Target, save, show
from benchmarks.sql.suites import VIEW, apply, tables_of
from dbspark.cli import demo_data
from tests.sql.oracle import rows_of

MODES: Final = ("embedded", "resident", "shuffle")
SHARDS: Final = 2
ORDERS: Final = 20_000 if QUICK else 1_000_000
CHANGES: Final = (1, 100, 10_000)
TICKS: Final = 6 if QUICK else 25
SHUFFLE_TICKS: Final = 2 if QUICK else 5
"""Ticks that the shuffle is measured in."""
WARM: Final = 1
"""Ticks before the first that is measured."""
CLOSURE_NODES: Final = 40 if QUICK else 150

Turn = Callable[[dbspark.Pipeline], None]


def transports_suite(spark: Any) -> list[Target]:
    rows: list[list[Any]] = []
    targets: list[Target] = []
    for changes in CHANGES:
        work = w1.generate(ORDERS, changes, TICKS)
        turns = [partial(_apply, tables_of(change)) for change in work.ticks]
        times = _measured(spark, _w1, partial(_apply, tables_of(work.base)), turns)
        gain = 15 if changes == CHANGES[-1] else 50
        rows.append([f"W1, {ORDERS:,} orders, {changes:,} changes", *_figures(times)])
        targets += _targets(rows[-1][0], times, gain, 4 if changes == CHANGES[-1] else None)
    load, turns = _shop()
    times = _measured(spark, _demo, load, turns)
    rows.append(["the demo's seven views, 1,500 changes", *_figures(times)])
    targets += _targets(rows[-1][0], times, 40, 4)
    load, turns = _edges()
    times = _measured(spark, _closure, load, turns)
    rows.append(["transitive closure, inserts and deletes", *_figures(times)])
    targets += _targets(rows[-1][0], times, None, 5)
    header = ["ticks", "embedded ms", "resident ms", "shuffle ms", "resident / embedded", "shuffle / resident"]
    show(f"{SHARDS} shards, medians", header, rows)
    save("spark-transports", {"rows": rows, "targets": targets})
    return targets


def _measured(
    spark: Any, define: Callable[[dbspark.Pipeline], None], load: Turn, turns: Sequence[Turn]
) -> Mapping[str, float]:
    """The median seconds of a tick, by mode."""
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    with ExitStack() as stack:
        pipes = {mode: stack.enter_context(_opened(spark, mode)) for mode in MODES}
        for pipe in pipes.values():
            define(pipe)
            load(pipe)
        for number, turn in enumerate(turns):
            for mode in MODES if number % 2 else reversed(MODES):
                if mode != "shuffle" or number < SHUFFLE_TICKS + WARM:
                    times[mode].append(_timed(partial(turn, pipes[mode])))
            if number == SHUFFLE_TICKS + WARM - 1:
                _check(pipes)
                pipes.pop("shuffle").close()
        _check(pipes)
    return {mode: statistics.median(of_mode[WARM:]) for mode, of_mode in times.items()}


@contextmanager
def _opened(spark: Any, mode: str) -> Iterator[dbspark.Pipeline]:
    options: dict[str, Any] = {} if mode == "embedded" else {"shards": SHARDS, "exchange": mode}
    with dbspark.Pipeline("transports", spark=spark, **options) as pipe:
        yield pipe


def _timed(run: Callable[[], Any]) -> float:
    with no_gc():
        begun = time.perf_counter()
        run()
        return time.perf_counter() - begun


def _check(pipes: Mapping[str, dbspark.Pipeline]) -> None:
    first, *others = pipes.values()
    for view in first.views:
        expected = Counter(rows_of(first.view(view).to_arrow()))
        for pipe in others:
            if Counter(rows_of(pipe.view(view).to_arrow())) != expected:
                raise MismatchError(f"{view} is not the same on shards")


def _figures(times: Mapping[str, float]) -> list[float]:
    embedded, resident, shuffle = (1e3 * times[mode] for mode in MODES)
    return [embedded, resident, shuffle, resident / embedded, shuffle / resident]


def _targets(name: str, times: Mapping[str, float], gain: int | None, cost: int | None) -> list[Target]:
    out = []
    if gain is not None:
        out.append(Target(f"{name}: resident / shuffle", times["resident"] / times["shuffle"], 1 / gain, "x"))
    if cost is not None:
        out.append(Target(f"{name}: resident / embedded", times["resident"] / times["embedded"], cost, "x"))
    return out


# ---------------------------------------------------------------------- what is run


def _apply(tables: Any, pipe: dbspark.Pipeline) -> None:
    apply(pipe, tables)


def _w1(pipe: dbspark.Pipeline) -> None:
    pipe.create_table("orders", w1.ORDERS)
    pipe.create_table("customers", w1.CUSTOMERS)
    pipe.create_view("v", VIEW)


def _demo(pipe: dbspark.Pipeline) -> None:
    for name, (key, columns) in demo_data.TABLES.items():
        pipe.create_table(name, columns, primary_key=[key])
    for name, (query, recursive, *_) in demo_data.VIEWS.items():
        pipe.create_view(name, query, recursive=recursive)


def _shop() -> tuple[Turn, list[Turn]]:
    """The demo's transactions: the load, and ticks of 1,500 changed orders."""
    work = demo_data.Workload(rows=20_000 if QUICK else 200_000, steps=TICKS, changes=1_500)
    turns: dict[int, list[demo_data.Step]] = {}
    for step in demo_data.steps(work):
        turns.setdefault(step.number, []).append(step)

    def turn(of_tick: Sequence[demo_data.Step]) -> Turn:
        parts = []
        for step in of_tick:
            kinds = step.rows["_change_type"]
            rows = step.rows.drop_columns(["_change_type"])
            upserts = rows.filter(pc.is_in(kinds, pa.array(["insert", "update_postimage"])))
            keys = rows.filter(pc.equal(kinds, "delete")).select([demo_data.TABLES[step.table].key])
            parts.append((step.table, upserts, keys))

        def run(pipe: dbspark.Pipeline) -> None:
            with pipe.transaction() as tx:
                for table, upserts, keys in parts:
                    if len(upserts):
                        tx.upsert(table, upserts)
                    if len(keys):
                        tx.delete_keys(table, keys)

        return run

    load, *ticks = (turn(turns[number]) for number in sorted(turns))
    return load, ticks


REACH: Final = "SELECT src, dst FROM edges UNION SELECT r.src, e.dst FROM reach r JOIN edges e ON r.dst = e.src"


def _closure(pipe: dbspark.Pipeline) -> None:
    pipe.create_table("edges", "src BIGINT, dst BIGINT")
    pipe.create_view("reach", REACH, recursive="src BIGINT, dst BIGINT")


def _edges() -> tuple[Turn, list[Turn]]:
    """A sparse random graph, of which every tick removes three edges and adds three."""
    chance = random.Random(7)
    edges: set[tuple[int, int]] = set()
    while len(edges) < CLOSURE_NODES:
        edges.add((chance.randrange(CLOSURE_NODES), chance.randrange(CLOSURE_NODES)))
    now = sorted(edges)

    def changed(gone: Sequence[tuple[int, int]], new: Sequence[tuple[int, int]]) -> Turn:
        def run(pipe: dbspark.Pipeline) -> None:
            with pipe.transaction() as tx:
                tx.apply("edges", {**dict.fromkeys(new, 1), **dict.fromkeys(gone, -1)})

        return run

    turns = []
    for _ in range(TICKS):
        gone = chance.sample(now, 3)
        kept = [edge for edge in now if edge not in gone]
        new: list[tuple[int, int]] = []
        while len(new) < 3:
            edge = chance.randrange(CLOSURE_NODES), chance.randrange(CLOSURE_NODES)
            if edge not in kept and edge not in new and edge not in gone:
                new.append(edge)
        now = sorted([*kept, *new])
        turns.append(changed(gone, new))
    return changed((), sorted(edges)), turns


__all__ = ["transports_suite"]
