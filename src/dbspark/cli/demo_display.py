"""The demo on the screen: figures from events, a live table on a terminal, plain lines elsewhere.

`Figures` derives all that is shown from the events. A `Screen` shows it: what has been done stays as lines, and on a
terminal the table below them is redrawn. The table has the views, and above them how fast ticks are beside Spark.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

from rich import box
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from dbspark.cli.demo_data import LATER_VIEWS, VIEWS
from dbspark.cli.demo_events import Asked, Began, Compared, Ended, Event, Held, Progressed, Showed, Ticked
from dbspark.cli.output import print_line

REDRAW_S: Final = 0.1
"""Seconds between two drawings of the live table."""
LINE_S: Final = 5.0
"""Seconds between two lines on the progress of long work, where there is no terminal."""
RATE_TICKS: Final = 30
"""Latest ticks of a round over which its rows per second are computed while it runs."""
SPARK_BARS: Final = "▁▂▃▄▅▆▇█"
BARS_SHOWN: Final = 48
PICTURE_WIDTH: Final = 104
WIDTH_BESIDES: Final = 66
"""Characters of the table of views beside the column that describes them, which is cut on a narrow terminal."""


class Figures:
    """All that the demo shows, derived from the events so far."""

    def __init__(self) -> None:
        self.work: str | None = None
        """What is being done; `work_begun` is when it began."""
        self.work_begun = perf_counter()
        self.progress = ""
        self.tick = 0
        self.ticks: list[Ticked] = []
        """The ticks of the live part, which begins when all views are filled."""
        self.held: dict[str, int] = {}
        self.last_changed: dict[str, int] = {}
        self.changed: dict[str, int] = {}
        self.compared: list[Compared] = []
        self.showed: list[Showed] = []
        self.rates: list[float] = []
        """Rows a second of each round that has ended."""
        self._round: deque[Ticked] = deque()

    def take(self, event: Event) -> None:
        """Update the figures with an event."""
        match event:
            case Began(what):
                self.work, self.work_begun, self.progress = what, perf_counter(), ""
            case Progressed(text):
                self.progress = text
            case Ended():
                self.work = None
            case Held(rows):
                self.held.update(rows)
            case Ticked():
                self._ticked(event)
            case Asked():
                self._end_round()
                self.work, self.work_begun = "Spark computes the views anew, from the tables", perf_counter()
                self.progress = ""
            case Compared():
                self.compared.append(event)
                self.work = None
            case Showed():
                self.showed.append(event)
            case _:
                pass

    def _ticked(self, event: Ticked) -> None:
        self.tick = event.tick
        if not self.held:
            return
        self.ticks.append(event)
        self._round.append(event)
        self.last_changed = event.changed
        for view, rows in event.changed.items():
            self.changed[view] = self.changed.get(view, 0) + rows
        for view, rows in event.grown.items():
            self.held[view] = self.held.get(view, 0) + rows

    def _end_round(self) -> None:
        rate = _rate(list(self._round))
        if rate is not None:
            self.rates.append(rate)
        self._round.clear()

    def pause(self) -> None:
        """Forget the ticks of the round: no ticks come for a while, and the gap must not lower the rate."""
        self._round.clear()

    @property
    def rows_a_second(self) -> float | None:
        return _rate(list(self._round)[-RATE_TICKS:]) or (self.rates[-1] if self.rates else None)

    def ms(self, quantile: float) -> float | None:
        """A quantile of the milliseconds of a tick; None before the first tick."""
        times = sorted(event.ms for event in self.ticks)
        return times[min(len(times) - 1, int(quantile * len(times)))] if times else None

    @property
    def rows_a_tick(self) -> float:
        return median(event.rows for event in self.ticks)

    @property
    def spark_s(self) -> float | None:
        """Seconds of Spark's fastest recomputation of the views."""
        return min((event.seconds for event in self.compared), default=None)

    @property
    def ratio(self) -> float | None:
        """How many times as long Spark takes as the median tick."""
        ours, spark = self.ms(0.5), self.spark_s
        return None if ours is None or spark is None else 1e3 * spark / ours

    @property
    def problems(self) -> list[str]:
        """What each failed check says."""
        wrong = [line for event in self.compared for line in event.problems]
        return wrong + [f"{event.what}: {event.result}" for event in self.showed if not event.right]


def _rate(ticks: Sequence[Ticked]) -> float | None:
    if len(ticks) < 2 or ticks[-1].at <= ticks[0].at:
        return None
    return sum(event.rows for event in ticks[1:]) / (ticks[-1].at - ticks[0].at)


def _text(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def compared_line(figures: Figures, event: Compared) -> str:
    """The result of a comparison with Spark, and the figures so far, in a line."""
    if event.problems:
        return f"MISMATCH at tick {event.tick}: " + "; ".join(event.problems)
    return (
        f"tick {event.tick}: all {event.views} views equal what Spark computes anew in {event.seconds:.1f} s; "
        f"{_text(figures.rows_a_second)} rows/s, {_text(figures.ms(0.5), 1)} ms a tick "
        f"(p99 {_text(figures.ms(0.99), 1)}), ratio {_text(figures.ratio)}x"
    )


def live_table(figures: Figures, width: int) -> RenderableType:
    """The views, and how fast they are kept, in so many columns of the terminal."""
    now = Table.grid(padding=(0, 3), expand=False)
    for _ in range(4):
        now.add_column(no_wrap=True)
    bold = "bold cyan"

    def figure(label: str, value: str, unit: str = "") -> Text:
        return Text.assemble((f"{label} ", "dim"), (value, bold), (f" {unit}" if unit else "", "dim"))

    last = figures.ticks[-1] if figures.ticks else None
    now.add_row(
        figure("tick", f"{figures.tick:,}"),
        figure("rows a second", _text(figures.rows_a_second)),
        figure("ms a tick: p50", _text(figures.ms(0.5), 1)),
        figure("p99", _text(figures.ms(0.99), 1)),
    )
    latest = figures.compared[-1] if figures.compared else None
    now.add_row(
        figure("rows", "–" if last is None else f"{last.rows:,}", "" if last is None else f"of {last.table}"),
        figure("Spark anew", _text(figures.spark_s, 1), "s"),
        figure("ratio", "–" if figures.ratio is None else f"{figures.ratio:,.0f}x"),
    )
    bars = Text.assemble(
        ("ms of the last ticks ", "dim"), (_bars([event.ms for event in figures.ticks[-BARS_SHOWN:]]), "green")
    )
    views = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    views.add_column("view", style="bold", no_wrap=True)
    views.add_column("what it is", style="dim", no_wrap=True)
    for heading in ("rows", "last tick", "in all"):
        views.add_column(heading, justify="right", no_wrap=True)
    views.add_column("equal to Spark", justify="right", no_wrap=True)
    for name, (*_, what) in {**VIEWS, **LATER_VIEWS}.items():
        if name not in figures.held:
            continue
        changed = figures.last_changed.get(name, 0)
        same, style = _verdict(latest, name)
        row = [name, _short(what, width - WIDTH_BESIDES), f"{figures.held[name]:,}"]
        moved = Text(f"{changed:,}", style="yellow" if changed else "dim")
        views.add_row(*row, moved, f"{figures.changed.get(name, 0):,}", Text(same, style=style))
    return Group(now, bars, Text(), views)


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def _verdict(latest: Compared | None, name: str) -> tuple[str, str]:
    if latest is None or (name in LATER_VIEWS and latest.views == len(VIEWS)):
        return "–", "dim"
    if any(line.startswith(f"{name}: ") for line in latest.problems):
        return f"DIFFERS, tick {latest.tick}", "bold red"
    return f"tick {latest.tick}", "green"


def _bars(values: Sequence[float]) -> str:
    top = max(values, default=0.0)
    return "".join(SPARK_BARS[min(len(SPARK_BARS) - 1, int(len(SPARK_BARS) * value / (top or 1)))] for value in values)


class Screen:
    """Shows figures while events come. A `with` block ends the live part."""

    def __init__(self, console: Console) -> None:
        self.figures = Figures()
        self.console = console
        self._live: Live | None = None
        self._drawn = 0.0
        self._said = perf_counter()
        self.checks: list[Text] = []
        """The lines that report a check, with their styles."""

    def __enter__(self) -> Screen:
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self.figures.work = None
            self._draw()
            self._live.stop()
            self._live = None

    def take(self, event: Event | None) -> None:
        """Show an event, or, without one, that time goes by."""
        if event is not None:
            self.figures.take(event)
            match event:
                case Ended(result, seconds):
                    self.say(f"{seconds:6.1f} s  {result}")
                case Compared():
                    self.say(compared_line(self.figures, event), right=not event.problems)
                case Showed(what, result, right):
                    self.say(f"{what}: {result}", right=right)
                case _:
                    pass
        if self._live is None:
            if self.figures.progress and perf_counter() - self._said > LINE_S:
                self.say(f"          {self.figures.progress}")
        elif perf_counter() - self._drawn > REDRAW_S:
            self._draw()

    def say(self, text: str, right: bool | None = None) -> None:
        """Show a line that stays."""
        sign = {None: "  ", True: "✓ ", False: "✗ "}[right]
        line = Text(sign + text, style={None: "", True: "green", False: "bold red"}[right])
        if right is not None:
            self.checks.append(line)
        self._said = perf_counter()
        if self._live is None:
            print_line(self.console, text)
        else:
            self.console.print(line)

    def begin(self, what: str) -> None:
        """Show what is being done from now on."""
        self.take(Began(what))

    def _draw(self) -> None:
        if self._live is None:
            return
        parts: list[RenderableType] = []
        if self.figures.held:
            parts += [Text(), live_table(self.figures, self.console.width)]
        if self.figures.work is not None:
            seconds = perf_counter() - self.figures.work_begun
            doing = f"{self.figures.work} … {seconds:.1f} s"
            if self.figures.progress:
                doing += f"  {self.figures.progress}"
            parts += [Spinner("dots", Text(doing, style="cyan"))]
        self._live.update(Group(*parts), refresh=True)
        self._drawn = perf_counter()  # after drawing, so that a slow terminal does not take all the time


def save_picture(file: Path, *parts: RenderableType) -> None:
    """Write what is shown as an SVG picture, with fonts that the viewer has."""
    with Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=PICTURE_WIDTH, file=nowhere, force_terminal=True, color_system="truecolor")
        for part in parts:
            console.print(part)
        begin, end = CONSOLE_SVG_FORMAT.index("@font-face"), CONSOLE_SVG_FORMAT.index(".{unique_id}-matrix")
        console.save_svg(
            str(file), title="dbspark demo", code_format=CONSOLE_SVG_FORMAT[:begin] + CONSOLE_SVG_FORMAT[end:]
        )


__all__ = ["PICTURE_WIDTH", "Figures", "Screen", "compared_line", "live_table", "save_picture"]
