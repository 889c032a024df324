"""What the demo does with a pipeline: fill it, let streams change it, and compare it with Spark.

Two functions, for the two processes of the embedded act: `perform` begins a shop and runs it in *rounds*: streams bring
some steps in, then Spark computes the views anew and they are compared. In the last round the process may be killed
at any moment. `resume` opens the location after that, sees that nothing is lost, and lets the streams finish. On
shards `perform` does it all.

Streams wait while Spark computes the views, so each side has all cores when it is measured.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep, time
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.feather as feather

from dbspark.cli.demo_data import LATER_VIEWS, TABLES, VIEWS, ShopFiles, Workload
from dbspark.cli.demo_events import (
    Asked,
    Began,
    Compared,
    Emit,
    Ended,
    Held,
    Running,
    Showed,
    Ticked,
    Vulnerable,
)
from dbspark.cli.demo_oracle import Oracle, differences
from dbspark.pipeline.pipeline import Pipeline
from dbspark.runtime.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EMBEDDED_ROUNDS: Final = 3
SHARDED_ROUNDS: Final = 2
"""Rounds on shards: few, because each ends with Spark recomputing all views, which takes most of the time."""
POLL_S: Final = 0.0002
"""Seconds between two checks whether a transaction is running; a transaction takes some 20 ms."""
SMALLEST_HISTORY: Final = 1_000
"""Ticks that can be read back, at least; it is the pipeline's own default."""


@dataclass(frozen=True)
class Stage:
    """The settings of an act: its folder, location, shards and size."""

    folder: Path
    """The folder of the shop's files, and of the rows that are recorded for later comparison."""
    workload: Workload
    location: str | None
    shards: int | None
    kill: bool = False
    """Whether somebody will kill this process in the last round."""

    @property
    def recorded(self) -> Path:
        return self.folder / "recorded"

    def bounds(self) -> list[int]:
        """The last step of each round; the rounds are about equal."""
        rounds = min(EMBEDDED_ROUNDS if self.shards is None else SHARDED_ROUNDS, self.workload.steps)
        return [self.workload.steps * n // rounds for n in range(1, rounds + 1)]


class _Act:
    """A pipeline, and the events that report what is done with it."""

    def __init__(self, stage: Stage, spark: SparkSession, emit: Emit) -> None:
        self.stage = stage
        self.emit = emit
        self.shop = ShopFiles(stage.folder)
        self.oracle = Oracle(spark, self.shop)
        history = max(SMALLEST_HISTORY, 3 * stage.workload.steps)
        self.pipe = Pipeline(
            "shop", location=stage.location, spark=spark, shards=stage.shards, config={"history": history}
        )
        self.position = dict.fromkeys(TABLES, 0)
        """By table, the number of its files that the pipeline has applied."""
        self.positions: dict[int, dict[str, int]] = {}
        self._changed: dict[str, int] = {}
        self._grown: dict[str, int] = {}

    def watch(self, views: Sequence[str]) -> None:
        """Count the changes of views in every tick, for its `Ticked` event."""
        for view in views:
            self.pipe.view(view).subscribe(lambda changes, tick, view=view: self._count(view, changes))  # type: ignore[misc]

    def listen(self) -> None:
        self.pipe.add_listener(self._ticked)

    def _count(self, view: str, changes: pa.Table) -> None:
        self._changed[view] = changes.num_rows
        self._grown[view] = pa.compute.sum(changes["_weight"]).as_py() or 0

    def _ticked(self, progress: Progress) -> None:
        (table,) = (source["description"].removeprefix("table ") for source in progress["sources"])
        tick, changed, grown = progress["tick"], self._changed, self._grown
        self._changed, self._grown = {}, {}
        self.applied(tick, table)
        ms = progress["durationMs"]["transaction"]
        self.emit(Ticked(tick, table, progress["numInputRows"], ms, time(), changed, grown))

    def applied(self, tick: int, table: str) -> None:
        """Record that a tick has applied the next file of a table."""
        self.position[table] += 1
        self.positions[tick] = dict(self.position)

    @contextmanager
    def step(self, what: str) -> Iterator[list[str]]:
        """Emit events when the work of the block begins and ends; the block appends its result to the list, as text."""
        result: list[str] = []
        self.emit(Began(what))
        begun = perf_counter()
        yield result
        self.emit(Ended("".join(result) or what, perf_counter() - begun))

    def rows(self, tick: int) -> dict[str, pa.Table]:
        return {name: self.pipe.view(name).as_of(tick).to_arrow() for name in self.pipe.views}

    def compare(self) -> None:
        """Let Spark compute all views as of the present tick, and compare them."""
        tick = self.pipe.tick
        self.emit(Asked(tick))
        seconds = self.oracle.compute(
            self.shop.steps(self.positions[tick]), VIEWS, [v for v in LATER_VIEWS if v in self.pipe.views]
        )
        problems = self.oracle.problems(self.rows(tick))
        self.emit(Compared(tick, seconds, len(self.oracle.answers), problems))

    def record(self) -> None:
        """Write the views' present rows to files, to compare with later."""
        self.stage.recorded.mkdir()
        for name, rows in self.rows(self.pipe.tick).items():
            feather.write_feather(rows, str(self.stage.recorded / name), "uncompressed")
        (self.stage.recorded / "tick").write_text(str(self.pipe.tick))

    def travel(self) -> tuple[int, list[str]]:
        """Read the views as of the recorded tick; returns that tick, and the differences from the recorded rows."""
        tick = int((self.stage.recorded / "tick").read_text())
        rows = self.rows_as_of(tick)
        return tick, [
            f"{name} as of tick {tick}: {line}"
            for name, found in rows.items()
            for line in differences(found, feather.read_table(str(self.stage.recorded / name)))
        ]

    def rows_as_of(self, tick: int) -> dict[str, pa.Table]:
        return {name: self.pipe.view(name).as_of(tick).to_arrow() for name in VIEWS}

    def wait_for_tick(self, tick: int) -> None:
        """Wait until streams have brought the pipeline to a tick, or have failed."""
        while self.pipe.tick < tick and all(stream.isActive for stream in self.shop.streams.values()):
            sleep(POLL_S)

    def add_view(self) -> None:
        """Add a view while streams run, and see that it is right at once."""
        for name, (query, *_) in LATER_VIEWS.items():
            begun = perf_counter()
            view = self.pipe.create_view(name, query)
            seconds, tick = perf_counter() - begun, self.pipe.tick
            self.emit(Held({name: view.as_of(tick).to_arrow().num_rows}))
            self.watch([name])
            found = view.as_of(tick).to_arrow()
            self.shop.wait()
            self.oracle.compute(self.shop.steps(self.positions[tick]), [name])
            problems = self.oracle.problems({name: found})
            result = f"{found.num_rows:,} rows in {seconds:.1f} s at tick {tick}, as Spark computes them for that tick"
            self.emit(Showed("a view added while streams run", "; ".join(problems) or result, not problems))

    def announce(self) -> None:
        """From now on emit `Running` while a transaction runs, so that the parent can kill this process in one."""
        self.emit(Vulnerable())

        def look() -> None:
            running = True
            while self.pipe.is_active:
                before, running = running, self.pipe.status["isTriggerActive"]
                if running and not before:
                    self.emit(Running(self.pipe.tick + 1))
                sleep(POLL_S)

        threading.Thread(target=look, name="dbspark-demo-announce", daemon=True).start()


def perform(stage: Stage, spark: SparkSession, emit: Emit) -> None:
    """Begin the shop, and let streams change it, round by round."""
    act = _Act(stage, spark, emit)
    with act.pipe as pipe:
        with act.step("making up a shop and what will happen to it") as result:
            result.append(f"made up a shop and {act.shop.write(stage.workload):,} changes of it")
        with act.step("loading the tables by streams") as result:
            for name, (key, columns) in TABLES.items():
                pipe.create_table(name, columns, primary_key=[key])
            act.listen()
            act.shop.start(pipe)
            act.shop.deliver(0)
            act.shop.wait()
            rows = ", ".join(f"{pipe.table(name).to_arrow().num_rows:,} {name}" for name in TABLES)
            result.append(f"loaded {rows} by streams")
        _create_views(act)
        act.watch(list(VIEWS))
        emit(Held({name: rows.num_rows for name, rows in act.rows(pipe.tick).items()}))

        *bounds, last = stage.bounds()
        for number, bound in enumerate(bounds, 1):
            before = pipe.tick
            files = act.shop.deliver(bound)
            if number == 2 and stage.shards is None:
                act.wait_for_tick(before + files // 3)
                act.add_view()
            act.shop.wait()
            act.compare()
            if stage.shards is None and number == 1:
                act.record()
            if stage.shards is None and number == 2:
                _show_time_travel(act)
        if stage.kill:
            act.announce()
        act.shop.deliver(last)
        act.shop.wait()
        act.compare()


def _create_views(act: _Act) -> None:
    """On shards, one job for as many views as possible; recursive ones are made one by one."""
    groups: list[dict[str, str]] = []
    for name, (query, recursive, *_) in VIEWS.items():
        alone = act.stage.shards is None or recursive is not None
        if alone or not groups or any(VIEWS[other].recursive for other in groups[-1]):
            groups.append({})
        groups[-1][name] = query
    for group in groups:
        names = ", ".join(group)
        with act.step(f"filling {names}") as result:
            recursive = VIEWS[next(iter(group))].recursive
            if recursive is None:
                act.pipe.create_views(group)
            else:
                act.pipe.create_view(names, group[names], recursive=recursive)
            rows = ", ".join(f"{name} ({act.pipe.view(name).to_arrow().num_rows:,} rows)" for name in group)
            result.append(f"filled {rows}")


def _show_time_travel(act: _Act) -> None:
    begun = perf_counter()
    tick, problems = act.travel()
    seconds = perf_counter() - begun
    ago = act.pipe.tick - tick
    result = f"all {len(VIEWS)} views as of {ago} ticks ago are what they were then (read in {seconds:.2f} s)"
    act.emit(Showed(f"time travel to tick {tick}", "; ".join(problems) or result, not problems))


def resume(stage: Stage, spark: SparkSession, emit: Emit, acknowledged: Sequence[Ticked]) -> None:
    """Open the location again after a kill, see that nothing is lost, and let the streams finish."""
    begun = perf_counter()
    act = _Act(stage, spark, emit)
    with act.pipe as pipe:
        seconds = perf_counter() - begun
        last, found = acknowledged[-1].tick, pipe.tick
        for event in acknowledged:
            act.applied(event.tick, event.table)
        if found == last + 1:  # the tick was committed, but the kill came before its acknowledgement
            act.applied(found, next(n for n in TABLES if pipe.table(n).changes(last).num_rows))
        problems = _lost(pipe, acknowledged)
        result = (
            f"opened again at tick {found} in {seconds:.1f} s: all {len(acknowledged)} acknowledged ticks are there"
        )
        emit(Showed("a restart at the same location", "; ".join(problems) or result, not problems))
        if problems:
            return
        tick, problems = act.travel()
        result = f"all {len(VIEWS)} views are still what they were then"
        emit(Showed(f"time travel to tick {tick}, before the kill", "; ".join(problems) or result, not problems))
        act.listen()
        act.watch(list(pipe.views))
        emit(Held({name: rows.num_rows for name, rows in act.rows(found).items()}))
        act.shop.deliver(stage.workload.steps)
        act.shop.start(pipe)
        act.shop.wait()
        act.compare()


def _lost(pipe: Pipeline, acknowledged: Sequence[Ticked]) -> list[str]:
    """What is missing of ticks that were acknowledged: ticks as a whole, or rows of the tables that they changed."""
    last = acknowledged[-1].tick
    if not last <= pipe.tick <= last + 1:
        return [f"tick {last} was acknowledged, and the location is at tick {pipe.tick}"]
    first = min(event.tick for event in acknowledged)
    found: dict[int, int] = {}
    for name in TABLES:
        changes = pipe.table(name).changes(first - 1, last)
        for tick in changes["_tick"].value_counts():
            found[tick["values"].as_py()] = tick["counts"].as_py()
    return [
        f"tick {event.tick} changed {event.rows:,} rows of {event.table}, and {found.get(event.tick, 0):,} are there"
        for event in acknowledged
        if found.get(event.tick, 0) != event.rows
    ]


__all__ = ["Stage", "perform", "resume"]
