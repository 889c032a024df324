"""The demo: views of a shop, maintained from streams and compared with Spark recomputing them.

Two acts. The first runs embedded and durable, in a process of its own: seven views follow the streams; they are read
as of an earlier tick; a view is added while streams run; then the process is killed in the middle of a transaction,
and another process opens the location and goes on. The second act runs the same views on shards.

This process only displays the events that the other one sends (`demo_process`), so it survives the kill. Everything
that the demo writes is in one folder, which is removed at the end.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from types import FrameType
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from dbspark.cli.demo_data import VIEWS, Workload
from dbspark.cli.demo_display import PICTURE_WIDTH, Screen, live_table, save_picture
from dbspark.cli.demo_events import Event, Failed, Running, Showed, Ticked, Vulnerable, encode_event
from dbspark.cli.demo_process import Child, raised
from dbspark.cli.output import print_line
from dbspark.errors import ConfigError

EMBEDDED: Final = Workload(rows=200_000, steps=60)
SHARDED: Final = Workload(rows=50_000, steps=2)
"""Small, because on two cores a tick on shards takes seconds: the act shows what shards do, not how fast they are."""
LEAST_EMBEDDED_STEPS: Final = 36
"""The first act has three rounds, and the last one has to be long enough to be killed in."""
TICKS_BEFORE_KILL: Final = 8
"""Ticks of the last round that are seen before the process is killed: streams are in full flow by then."""
POLL_S: Final = 0.05
"""Seconds to wait for an event before the screen is checked for a redraw."""


def run_demo(
    workload: Workload,
    console: Console,
    *,
    cores: int = 2,
    location: str | None = None,
    shards: int | None = None,
    picture: Path | None = None,
) -> bool:
    """Run one act and show it; returns whether everything was right: every view what Spark computes, nothing lost."""
    check_location(location)
    if shards is None and workload.steps < LEAST_EMBEDDED_STEPS:
        raise ConfigError(
            f"--ticks {workload.steps}: the first act needs at least {LEAST_EMBEDDED_STEPS}, for what it does between "
            "them; the second one (--shards 2) takes fewer"
        )
    if picture is not None and not picture.absolute().parent.is_dir():
        raise ConfigError(f"--picture {picture}: there is no folder {picture.absolute().parent}; make it first")
    where = f"on {shards} shards" if shards else "in one process, durable on disk"
    begun = perf_counter()
    with _stopped_by_signals(), TemporaryDirectory(prefix="dbspark-demo-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        kept = location if location is not None or shards else str(folder / "state")
        arguments = {"workload": asdict(workload), "location": kept, "shards": shards, "cores": cores}
        print_line(console, f"dbspark demo: {len(VIEWS)} views of a shop, kept from streams {where}")
        with Screen(console) as screen:
            screen.begin("starting a process for the pipeline")
            acknowledged = _follow_to_kill(screen, folder, {**arguments, "kill": not shards})
            if acknowledged is not None:
                (folder / "acknowledged").write_bytes(b"".join(map(encode_event, acknowledged)))
                _follow(screen, folder, "resume", {**arguments, "kill": False})
    figures = screen.figures
    right = not figures.problems
    text = summary(screen, perf_counter() - begun, location, shards)
    print_line(console, text)
    if picture is not None:
        save_picture(picture, live_table(figures, PICTURE_WIDTH), Text(), *screen.checks)
        print_line(console, f"\nThe picture is in {picture}.")
    return right


def check_location(location: str | None) -> None:
    """Refuse a location that has something in it: the demo begins a shop of its own."""
    if location is None or "://" in location:
        return
    if os.path.exists(location) and (not os.path.isdir(location) or os.listdir(location)):
        raise ConfigError(
            f"--location {location}: there is something already; name a folder that is empty or does not exist. "
            f"If an earlier demo made it, look at it with: dbspark sql {location}"
        )


def _follow_to_kill(screen: Screen, folder: Path, arguments: dict[str, Any]) -> list[Ticked] | None:
    """Follow the first process until it ends or is killed in the middle of a transaction.

    Returns the ticks that it had acknowledged when it was killed; None if it has ended by itself.
    """
    acknowledged: list[Ticked] = []
    kill_after: int | None = None

    def take(event: Event | None) -> None:
        nonlocal kill_after
        screen.take(event)
        match event:
            case Failed():
                raise raised(event)
            case Ticked():
                acknowledged.append(event)
            case Vulnerable():
                kill_after = len(acknowledged) + TICKS_BEFORE_KILL
            case _:
                pass

    with Child(folder, "perform", arguments) as child:
        while not child.ended:
            event = child.next(POLL_S)
            take(event)
            if not isinstance(event, Running) or kill_after is None or len(acknowledged) < kill_after:
                continue
            waiting = child.freeze()
            for other in waiting:
                take(other)
            last = [other for other in (event, *waiting) if isinstance(other, Running | Ticked)][-1]
            if isinstance(last, Ticked):
                child.thaw()  # the transaction was committed before the process was stopped
                continue
            child.kill()
            result = f"in the middle of tick {last.tick}, when {len(acknowledged)} ticks had been acknowledged"
            screen.figures.pause()
            screen.take(Showed("SIGKILL of the process and its JVM", result, True))
            screen.begin("starting another process")
            return acknowledged
        child.wait()
    if arguments["kill"]:
        missed = "no transaction was seen running; try again with more --ticks"
        screen.take(Showed("SIGKILL of the process", missed, False))
    return None


def _follow(screen: Screen, folder: Path, what: str, arguments: dict[str, Any]) -> None:
    """Follow a process to its end."""
    with Child(folder, what, arguments) as child:
        while not child.ended:
            event = child.next(POLL_S)
            screen.take(event)
            if isinstance(event, Failed):
                raise raised(event)
        child.wait()


def summary(screen: Screen, seconds: float, location: str | None, shards: int | None) -> str:
    """The closing text: what the demo has measured and checked, and what to try next."""
    figures = screen.figures
    lines = ["", f"What you have seen, in {seconds:.0f} s"]
    ours, most, spark, ratio = figures.ms(0.5), figures.ms(0.99), figures.spark_s, figures.ratio
    if ours is not None and most is not None:
        lines.append(
            f"  {len(figures.ticks)} ticks of {figures.rows_a_tick:,.0f} changed rows: {ours:,.1f} ms each "
            f"(p99 {most:,.1f}) for all {len(VIEWS)} views{'' if shards else ', on disk when they return'}"
        )
    if spark is not None and ratio is not None:
        lines.append(f"  Spark needs {spark:,.1f} s at its best to compute them anew: {ratio:,.0f} times as long")
    lines += [f"  {event.what}: {event.result}" for event in figures.showed if event.right]
    if figures.problems:
        lines += ["", "What was NOT right", *(f"  {line}" for line in figures.problems)]
    else:
        times = len(figures.compared)
        lines.append(f"  Every view was what Spark computes from the same files, all {times} times it was asked")
    program = _program()
    lines += ["", "What to try next"]
    tries: list[tuple[str, str]] = []
    if location is not None:
        tries += [
            (f'{program} sql {location} -e "SELECT * FROM best_customers ORDER BY region, place"', "ask the shop"),
            (f"{program} explain {location} networks", "how a view is kept, part by part"),
            (f"{program} status {location}", "what is on disk"),
        ]
    elif not shards:
        tries += [
            (f"{program} demo --shards 2", "the second act: the same views on Spark's executors"),
            (f"{program} demo --location shop", "keep the shop, to ask and change it afterwards"),
        ]
    else:
        tries.append((f"{program} demo", "the first act: in one process, with a kill and a restart"))
    tries += [
        (f"{program} init first && {program} run first", "a small program of your own, in SQL"),
        ("docs/tutorial.md", "from nothing to a pipeline with streams, a sink and a restart"),
    ]
    width = max(len(command) for command, _ in tries[-4:])
    lines += [f"  {command:<{width}}  {what}" for command, what in tries]
    return "\n".join(lines)


def _program() -> str:
    """How this program is called from the user's shell."""
    given = sys.argv[0]
    found = shutil.which("dbspark")
    if Path(given).name != "dbspark" or (found is not None and os.path.realpath(found) == os.path.realpath(given)):
        return "dbspark"
    return os.path.relpath(given) if len(os.path.relpath(given)) < len(given) else given


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the demo as Ctrl-C does, so that the child process is ended and the folder removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["EMBEDDED", "SHARDED", "check_location", "run_demo", "summary"]
