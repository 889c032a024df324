"""Reports on work that takes a while: how much is done, how fast, and how long it will take.

    with activity("filling view revenue", total=1_000_000, unit="rows") as filling:
        for part in parts:
            …
            filling.advance(len(part))

Invariants:

1. By default progress is shown only where standard error is a terminal or the program is a notebook. The environment
   variable DBSPARK_PROGRESS (1 or 0) and the argument `shown` override this; without a terminal it is plain lines.
2. Work that ends within `Pace.first_s` shows nothing.
3. The thread that works only adds numbers (`advance`). Another thread draws, and a failure to draw ends the drawing,
   never the work.

Everybody may import this module; it imports rich and IPython only when something is shown.
"""

from __future__ import annotations

import html
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

VARIABLE = "DBSPARK_PROGRESS"


def level_of_caller() -> int:
    """The `stacklevel` of a warning that is to name the line outside dbspark from which it was called, however far."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "dbspark":
        level, frame = level + 1, frame.f_back
    return level


@dataclass(frozen=True, slots=True)
class Pace:
    """When activities are drawn."""

    first_s: float = 1.0
    """Seconds; an activity that ends sooner is not shown."""
    redraw_s: float = 0.2
    """Seconds between two drawings on a terminal or in a notebook."""
    line_s: float = 5.0
    """Seconds between two lines where there is no terminal."""


PACE = Pace()


class Activity:
    """Work that is going on. Attributes may be set by the thread that works, and are read by the one that draws."""

    def __init__(self, label: str, total: int | None, unit: str) -> None:
        self.label = label
        self.total = total
        """How much there is to do; None where it is not known. It may change while the work goes on."""
        self.unit = unit
        self.done = 0
        self.started = perf_counter()
        self.ended: float | None = None

    def advance(self, amount: int = 1) -> None:
        """Add to the amount that is done."""
        self.done += amount

    @property
    def elapsed_s(self) -> float:
        return (perf_counter() if self.ended is None else self.ended) - self.started

    def __str__(self) -> str:
        """One line: `filling view v: 1,200 of 5,000 rows (24 %), 600 rows/s, 6 s left`."""
        seconds, done, total = self.elapsed_s, self.done, self.total
        rate = done / seconds if seconds else 0.0
        if total is None:
            parts = [f"{done:,} {self.unit}"] if done else []
        else:
            share = f" ({100 * min(done, total) // total} %)" if total else ""
            parts = [f"{done:,} of {max(total, done):,} {self.unit}{share}"]
        if done:
            parts.append(f"{rate:,.{0 if rate >= 10 else 1}f} {self.unit}/s")
        if total is not None and done and self.ended is None:
            parts.append(f"{duration(max(total - done, 0) / rate)} left")
        else:
            parts.append(duration(seconds))
        return f"{self.label}: {', '.join(parts)}"


def duration(seconds: float) -> str:
    """A time for people: `8 s`, `2 min 5 s`, `3 h 20 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Canvas(Protocol):
    """Where activities are drawn."""

    interval_s: float

    def draw(self, activities: Sequence[Activity]) -> None: ...

    def close(self) -> None:
        """All of the activities have ended: remove what was drawn."""
        ...


class Lines:
    """Plain lines, for logs."""

    def __init__(self) -> None:
        self.interval_s = PACE.line_s

    def draw(self, activities: Sequence[Activity]) -> None:
        for each in activities:
            print(each, file=sys.stderr, flush=True)  # noqa: T201 (where progress is asked for without a terminal)

    def close(self) -> None:
        pass


class Terminal:
    """Lines that are redrawn at the bottom of the terminal, and removed at the end."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self.interval_s = PACE.redraw_s
        self._live = Live(
            console=Console(stderr=True), auto_refresh=False, transient=True, redirect_stdout=False,
            redirect_stderr=False,
        )  # fmt: skip
        self._live.start()

    def draw(self, activities: Sequence[Activity]) -> None:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        rows = []
        for each in activities:
            row = Table.grid(padding=(0, 1))
            row.add_row(ProgressBar(each.total, min(each.done, each.total or 0), width=24), Text(str(each)))
            rows.append(row)
        self._live.update(Group(*rows), refresh=True)

    def close(self) -> None:
        self._live.stop()


class Notebook:
    """An output cell that changes, and is empty at the end."""

    def __init__(self) -> None:
        from IPython.display import HTML, display  # type: ignore[import-not-found, unused-ignore]

        self.interval_s = PACE.redraw_s
        self._html = HTML
        self._handle = display(HTML(""), display_id=True)

    def draw(self, activities: Sequence[Activity]) -> None:
        self._handle.update(self._html("".join(map(self._line, activities))))

    def _line(self, each: Activity) -> str:
        value = "" if each.total is None else f' value="{min(each.done, each.total)}" max="{each.total}"'
        return f"<div><progress{value}></progress> {html.escape(str(each))}</div>"

    def close(self) -> None:
        self._handle.update(self._html(""))


def is_notebook() -> bool:
    """Whether what is displayed goes to a notebook."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return getattr(shell, "kernel", None) is not None


_chosen: Callable[[], Canvas] | None = None


def draw_on(make: Callable[[], Canvas] | None) -> None:
    """Draw all activities of this process on a canvas of the program's own; None: on the default one again."""
    global _chosen
    _chosen = make


def canvas_for(shown: bool | None = None) -> Callable[[], Canvas] | None:
    """The canvas to draw on; None: draw nothing. `shown`: whether to show progress; None: the default."""
    if _chosen is not None:
        return _chosen
    asked = os.environ.get(VARIABLE, "").strip().lower()
    if shown is None and asked:
        shown = asked not in ("0", "false", "no", "off")
    if shown is False:
        return None
    if is_notebook():
        return Notebook
    if sys.stderr is not None and sys.stderr.isatty():
        return Terminal
    return Lines if shown else None


class _Painter:
    """The thread that draws, for as long as there are activities."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._activities: list[Activity] = []
        self._running: tuple[threading.Thread, threading.Event] | None = None
        """The drawing thread, and the event that ends it."""

    def add(self, each: Activity, make: Callable[[], Canvas]) -> None:
        with self._lock:
            self._activities.append(each)
            if self._running is None:
                end = threading.Event()
                thread = threading.Thread(target=self._run, args=(make, end), name="dbspark-progress", daemon=True)
                self._running = thread, end
                thread.start()

    def remove(self, each: Activity) -> None:
        """The activity has ended; when this returns, nothing of it is on the screen."""
        with self._lock:
            self._activities.remove(each)
            running = None if self._activities else self._running
            if running is not None:
                self._running = None
        if running is not None:
            thread, end = running
            end.set()
            thread.join()

    def _run(self, make: Callable[[], Canvas], end: threading.Event) -> None:
        canvas: Canvas | None = None
        wait = PACE.first_s
        try:
            while not end.wait(wait):
                with self._lock:
                    late = [each for each in self._activities if each.elapsed_s >= PACE.first_s]
                if late:
                    canvas = make() if canvas is None else canvas
                    canvas.draw(late)
                wait = PACE.redraw_s if canvas is None else canvas.interval_s
        except Exception:  # a terminal that has gone, a notebook that was closed: the work goes on unseen
            return
        finally:
            if canvas is not None:
                _quietly(canvas.close)


def _quietly(function: Callable[[], Any]) -> None:
    try:
        function()
    except Exception:  # what cannot be drawn cannot be taken away either
        return


_PAINTER = _Painter()


@contextmanager
def activity(label: str, total: int | None = None, unit: str = "rows", shown: bool | None = None) -> Iterator[Activity]:
    """Report the progress of a block, if it takes long enough and progress is shown (invariant 1 of the module)."""
    made = Activity(label, total, unit)
    canvas = canvas_for(shown)
    if canvas is not None:
        _PAINTER.add(made, canvas)
    try:
        yield made
    finally:
        made.ended = perf_counter()
        if canvas is not None:
            _PAINTER.remove(made)


__all__ = ["PACE", "Activity", "Pace", "activity", "canvas_for", "draw_on", "duration", "is_notebook"]
