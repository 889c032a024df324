"""What a workload is: operations that each backend does in the same way on the same rows, and its registry.

A round starts from a Z-set without history. That needs care with hash tables, which are changed in place: their base
is read once more, untimed, which gives it a table of its own if the last round has moved on with it.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from benchmarks.harness import QUICK, Contender, Timing, Timings, race
from benchmarks.report import figure
from benchmarks.zset.data import GROUPS, zset
from dbspark.columnar import Batch
from dbspark.zset import BACKENDS, ZSet, ZSetConfig, current

JUDGED: Final = "Adaptive"
SINGLE: Final = tuple(b for b in BACKENDS if b != JUDGED)
LIMIT: Final = 1.05
"""The adaptive backend may take this much of the best single one's time."""


@dataclass(frozen=True)
class Workload:
    """Something to do with a Z-set."""

    name: str
    ops: int
    """Operations per round: figures are per operation."""
    make: Callable[[ZSetConfig], Contender]
    estimate: str = "best"
    """`best` where every round does the same; `median` where state goes on from round to round, so that what is done
    in some rounds only still counts."""
    backends: tuple[str, ...] = BACKENDS
    """Those that take part: one of which a smaller workload says that it is hundreds of times slower may not."""
    limits: tuple[tuple[str, float], ...] = ()
    """Further targets: at most so much of that backend's time."""

    def contenders(self) -> list[Contender]:
        return [self.contender(replace(current(), backend=b), b) for b in self.backends]

    def contender(self, config: ZSetConfig, name: str) -> Contender:
        return replace(self.make(config), name=name)

    def time(self, timing: Timing) -> float:
        """Microseconds per operation."""
        return float(getattr(timing, self.estimate)) / self.ops * 1e6


@dataclass(frozen=True)
class Result:
    """Times of the backends on one workload, or what went wrong."""

    workload: Workload
    timings: Timings
    error: str = ""

    @property
    def micros(self) -> dict[str, float]:
        return {name: self.workload.time(t) for name, t in self.timings.items()}

    @property
    def best_single(self) -> str:
        """The backend that is hardest to keep up with."""
        singles = [b for b in self.timings if b != JUDGED]
        raced = [b for b in singles if self.timings[b].raced]
        return max(raced or singles, key=self.ratio)

    def ratio(self, to: str) -> float:
        """Of the times of each round, then the median: what slows a round down slows down all who race in it, while
        the best rounds of two contenders may be of different moments, one of them quiet."""
        mine, other = self.timings[JUDGED], self.timings[to]
        if not (mine.raced and other.raced):
            return self.micros[JUDGED] / self.micros[to]
        return statistics.median(a / b for a, b in zip(mine.samples, other.samples, strict=True))

    @property
    def parity(self) -> float:
        return self.ratio(self.best_single)

    @property
    def unpaired(self) -> float:
        """The ratio of the times shown: far from `parity`, it says that the machine was not quiet."""
        return self.micros[JUDGED] / self.micros[self.best_single]

    @property
    def verdict(self) -> str:
        return self.error or f"{self.parity:.2f}x of {self.best_single}"

    def as_json(self) -> dict[str, Any]:
        if self.error:
            return {"error": self.error}
        return {
            "ops": self.workload.ops, "estimate": self.workload.estimate, "micros": self.micros,
            "best_single": self.best_single, "ratio": self.parity, "unpaired": self.unpaired,
            "timings": {name: t.as_json() for name, t in self.timings.items()},
        }  # fmt: skip

    def line(self) -> tuple[Any, ...]:
        """For a table: the name, the time of each backend, the best single one, the ratio, the spread."""
        if self.error:
            return (self.workload.name, *([None] * len(BACKENDS)), None, None, None, None, "ERROR")
        micros = self.micros
        stars = {b: "" if t.raced else "*" for b, t in self.timings.items()}
        cells = [figure(micros[b]) + stars[b] if b in micros else "-" for b in BACKENDS]
        spread = f"{self.timings[JUDGED].spread:.0%}"
        return (self.workload.name, *cells, self.best_single, self.parity, self.unpaired, spread, self.parity <= LIMIT)


HEADER: Final = ("µs per operation", *BACKENDS, "best single", "Adaptive/best", "of times", "spread", "")


def unsure(workload: Workload) -> Callable[[Timings], bool]:
    """Whether a race is too close to the limit to be called."""

    def close(timings: Timings) -> bool:
        ratio = Result(workload, timings).parity
        return 0.97 < ratio < 1.2

    return close


def measure(workload: Workload, **options: Any) -> Result:
    """Race the backends; an exception becomes part of the result, so that one defect does not hide all figures."""
    options.setdefault("rounds", 7)  # a median of fewer says little
    options.setdefault("most", 15 if QUICK else 60)
    try:
        return Result(workload, race(workload.contenders(), unsure=unsure(workload), judged=JUDGED, **options))
    except Exception as error:
        return Result(workload, {}, f"{type(error).__name__}: {error}")


def matching(workloads: Iterable[Workload], pattern: str | None) -> list[Workload]:
    return [w for w in workloads if pattern is None or re.search(pattern, w.name)]


# ---------------------------------------------------------------------- Z-sets without history


@lru_cache(maxsize=4)
def batch_of(rows: int, groups: int = GROUPS) -> Batch:
    """Rows 0 … rows-1 in one batch."""
    return zset(np.arange(rows), None, replace(current(), backend="Batch"), groups).batch()


@lru_cache(maxsize=2)
def _hash_base(rows: int, groups: int, config: ZSetConfig) -> ZSet:
    return ZSet.from_batch(batch_of(rows, groups), config)


def fresh(rows: int, config: ZSetConfig, groups: int = GROUPS) -> ZSet:
    """Rows 0 … rows-1 in a Z-set that nothing has happened to."""
    if config.backend != "HashMap":
        return ZSet.from_batch(batch_of(rows, groups), config)
    z = _hash_base(rows, groups, config)
    own_table(z)
    return z


def own_table(z: ZSet) -> None:
    """Reading an old value gives it a table of its own; then going on from it costs no copy."""
    z.weight((0, 0, 0.0, ""))
