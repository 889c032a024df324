"""A contender: one system that keeps or recomputes the view of a case.

A system whose ticks are calls (`Ticking`) says how to `open` it, to `load` the first rows, to `tick`, and what the
`result` is. `prepare` brings rows into the form that the system takes them in (an Arrow table in memory into its own
frames, dicts, files) and is not timed; everything after it is: taking the rows in, and having the view, or what has
changed of it, at hand.

A system that recomputes gets slower with every tick, so it may stop before the last one: after `budget` seconds of
ticks it takes the remaining rows without recomputing, untimed, and computes once more for the comparison. Its rate is
then that of the part done, which flatters it; the outcome says so. Systems whose ticks are not calls (streams) measure
themselves: all that they have is `run`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa

from benchmarks.harness import no_gc
from benchmarks.peers.case import Case, in_memory, with_tick

_AHEAD: Final = 16
"""Ticks that are prepared at a time."""


class NotExpressible(Exception):
    """The system cannot keep this view; the message says why."""


@dataclass(slots=True)
class Outcome:
    """What one run of one case has taken, in seconds; `views` are the results that are compared."""

    load: float = 0.0
    ticks: list[float] = field(default_factory=list)
    rows: int = 0
    """Rows that came in the timed ticks."""
    complete: bool = True
    continuous: float | None = None
    """Seconds for all ticks together, of a system that cannot be asked when one of them is done."""
    memory: int = 0
    """Bytes resident at the end, of this process and of those it has started."""
    note: str = ""
    views: list[pa.Table] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(self.ticks) if self.continuous is None else self.continuous

    def as_json(self) -> dict[str, Any]:
        content = asdict(self)
        del content["views"]
        return content


class Contender(ABC):
    """See the module's preface."""

    name: ClassVar[str]
    workloads: ClassVar[frozenset[str]]
    alone: ClassVar[bool] = False
    """Whether every run wants a process of its own."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        """A folder for files that the system wants."""
        self.pause: Callable[[], None] = lambda: None
        """Called before every `case.turn` ticks: others may have their turn (`benchmarks.peers.turns`)."""

    @classmethod
    def versions(cls) -> dict[str, str]:
        """The packages that its times depend on."""
        return {}

    def start(self) -> None:
        """Once for all cases: sessions and the like. Not timed."""
        return

    def stop(self) -> None:
        """The end of `start`."""
        return

    @abstractmethod
    def run(self, case: Case, budget: float) -> Outcome:
        """A whole case."""


class Ticking(Contender):
    """A system whose ticks are calls."""

    @abstractmethod
    def open(self, case: Case) -> None:
        """Empty tables and the view. Not timed."""

    def prepare(self, rows: dict[str, pa.Table]) -> Any:
        return rows

    def load(self, given: Any) -> None:
        self.tick(given)

    @abstractmethod
    def tick(self, given: Any) -> None:
        """Take rows in, and have the view, or what has changed of it, at hand."""

    @abstractmethod
    def result(self) -> pa.Table:
        """The view as it is after the last tick. Not timed."""

    def close(self) -> None:
        """The end of `open`."""
        return

    def run(self, case: Case, budget: float) -> Outcome:
        """A whole case, after the load and two ticks of it that nobody times: kernels, caches and JITs are warm."""
        out, source = Outcome(), case.open()
        self.open(case)
        try:
            for tick in range(min(3, case.ticks + 1)):
                (self.tick if tick else self.load)(self._given(source, tick))
        finally:
            self.close()
        for _ in range(case.repeat):
            out.views.clear()
            self.open(case)
            try:
                with no_gc():
                    self._all(case, source, budget, out)
                out.memory = resident()
            finally:
                self.close()
        return out

    def _all(self, case: Case, source: Any, budget: float, out: Outcome) -> None:
        """The load and the ticks, timed. Some ticks are prepared at a time: what is timed is then a tick after a tick,
        and not one after whatever it takes to prepare it."""
        out.load = self._timed(self.load, self._given(source, 0))
        self._check(case, 0, out)
        done, ready = 0, deque[Any]()
        for tick in range(1, case.ticks + 1):
            if sum(out.ticks) > budget and self.rest(source, tick, case):
                out.complete = False
                self._check(case, case.ticks, out)
                break
            if case.turn and tick % case.turn == 1 % case.turn:
                self.pause()
            if not ready:
                ready.extend(self._given(source, t) for t in range(tick, min(tick + _AHEAD, case.ticks + 1)))
            out.ticks.append(self._timed(self.tick, ready.popleft()))
            done = tick
            self._check(case, tick, out)
        out.rows += case.rows(1, 1 + done)

    def _given(self, source: Any, tick: int) -> Any:
        """The rows of a tick, in memory, as whoever has received or read them has them, in the form of the system."""
        return self.prepare({name: in_memory(table) for name, table in source[tick].items()})

    def rest(self, source: Any, tick: int, case: Case) -> bool:
        """Take all rows from a tick on without having the view in between; False if that is no faster."""
        return False

    def _timed(self, call: Any, given: Any) -> float:
        begun = time.perf_counter()
        call(given)
        return time.perf_counter() - begun

    def _check(self, case: Case, tick: int, out: Outcome) -> None:
        if tick in case.checked:
            out.views.append(with_tick(self.result(), tick))


class Recomputing(Ticking):
    """A system that takes the change in (`apply`) and then computes the whole view (`compute`)."""

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self.view: Any = None

    @abstractmethod
    def apply(self, given: Any) -> None:
        """Take the change in."""

    @abstractmethod
    def compute(self) -> Any:
        """The view, fetched."""

    def tick(self, given: Any) -> None:
        self.apply(given)
        self.view = self.compute()

    def rest(self, source: Any, tick: int, case: Case) -> bool:
        for later in range(tick, case.ticks + 1):
            self.apply(self._given(source, later))
        self.view = self.compute()
        return True


def resident() -> int:
    """Bytes of memory that this process and its children have; 0 where that cannot be told."""
    pids, total = [str(Path("/proc/self").resolve().name)], 0
    while pids:
        pid = pids.pop()
        try:
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    total += int(line.split()[1]) * 1024
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += (task / "children").read_text().split()
        except OSError:
            continue
    return total
