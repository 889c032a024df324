"""Racing contenders against each other.

Machines are shared and noisy, so a figure is never a time by itself: contenders run in turn (A, B, C, then C, B, A,
…) and what counts is the ratio of their best or median rounds. Before anything is timed every contender has run
at least twice: kernels are compiled, and the memory it needs has been touched once, which costs more than using it.
What contenders produce is compared in the first and in the last round; nothing is reported if they differ.

A contender that is hopeless (many times slower than the fastest) is timed in the first rounds only.

Time is wall time. Where others keep the machine busy, `DBSP_BENCH_CLOCK=cpu` counts the time that the process had a
core instead, of all its threads together: fairer then, but it hides what two threads gain.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.report import QUICK

CLOCK: Final = time.process_time_ns if os.environ.get("DBSP_BENCH_CLOCK") == "cpu" else time.perf_counter_ns
HOPELESS: Final = 6.0
"""Times the fastest, in the rounds before the race, from which on a contender does not take part in it."""


class MismatchError(AssertionError):
    """Two contenders have produced different results: no time of theirs means anything."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do the work."""

    name: str
    run: Callable[[Any], Any]
    """The timed part; takes what `setup` has returned."""
    setup: Callable[[], Any] = lambda: None
    """Untimed, before each round."""
    outcome: Callable[[Any], Any] = lambda result: result
    """What is compared between contenders, from what `run` has returned. Untimed."""
    final: Callable[[Any], Any] | None = None
    """The same after the last round, where `outcome` would take too long to do it twice."""


@dataclass(slots=True)
class Timing:
    """Seconds of each round of one contender."""

    samples: list[float] = field(default_factory=list)
    raced: bool = False
    """False: it was hopeless, and the samples are those of the warm-up."""

    @property
    def best(self) -> float:
        return min(self.samples)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.samples)

    @property
    def spread(self) -> float:
        """Distance of the quartiles, as a share of the median."""
        if len(self.samples) < 4:
            return (max(self.samples) - min(self.samples)) / self.median
        low, _, high = statistics.quantiles(self.samples, n=4)
        return (high - low) / self.median

    def as_json(self) -> dict[str, Any]:
        return {
            "best": self.best, "median": self.median, "mean": self.mean, "spread": self.spread,
            "rounds": len(self.samples), "raced": self.raced,
        }  # fmt: skip


Timings = dict[str, Timing]


@contextmanager
def no_gc() -> Iterator[None]:
    """Without the cyclic garbage collector, which would run in whoever's turn it is."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def timed(run: Callable[[Any], Any], state: Any) -> tuple[float, Any]:
    begin = CLOCK()
    result = run(state)
    return (CLOCK() - begin) / 1e9, result


def race(
    contenders: Sequence[Contender],
    *,
    rounds: int = 2 if QUICK else 3,
    most: int = 3 if QUICK else 60,
    budget: float = 0.2 if QUICK else 2.0,
    warmups: int = 2,
    unsure: Callable[[Timings], bool] = lambda _: False,
    judged: str | None = None,
) -> Timings:
    """Time contenders in turn: at least `rounds` each, then more until `budget` seconds have passed, three times that
    if the outcome is still `unsure`. The `judged` one is never hopeless."""
    with no_gc():
        timings = {c.name: Timing() for c in contenders}
        racing = list(contenders)
        expected: dict[str, Any] = {}
        for turn in range(max(warmups, 1)):
            for c in racing:
                timings[c.name].samples.append(_turn(c, expected if turn == 0 else None, c.outcome))
            fastest = min(timings[c.name].best for c in racing)
            # In the first round a kernel may have been compiled, so only what is very slow leaves now.
            limit = max(HOPELESS * 4 * fastest, 4.0) if turn == 0 else HOPELESS * fastest
            racing = [c for c in racing if timings[c.name].best <= limit or c.name == judged]
        for c in racing:
            timings[c.name] = Timing(raced=True)
        begin = time.perf_counter()
        done = 0
        while done < rounds or (done < most and time.perf_counter() - begin < budget * (3 if unsure(timings) else 1)):
            for c in racing if done % 2 == 0 else reversed(racing):
                timings[c.name].samples.append(_turn(c, None, c.outcome))
            done += 1
        last: dict[str, Any] = {}
        for c in racing:
            timings[c.name].samples.append(_turn(c, last, c.final or c.outcome))
        return timings


def _turn(c: Contender, expected: dict[str, Any] | None, compared: Callable[[Any], Any]) -> float:
    state = c.setup()
    seconds, result = timed(c.run, state)
    if expected is not None:
        outcome = compared(result)
        first, value = next(iter(expected.items()), (c.name, outcome))
        if value != outcome:
            raise MismatchError(f"{first} gives {value!r:.300}, but {c.name} gives {outcome!r:.300}")
        expected[c.name] = outcome
    return seconds


__all__ = ["CLOCK", "QUICK", "Contender", "MismatchError", "Timing", "Timings", "no_gc", "race", "timed"]
