"""What is shown of work that takes a while, where, and that nothing is shown elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from dbspark import reporting
from dbspark.reporting import Activity, Pace, activity, duration

AT_ONCE = Pace(first_s=0.0, redraw_s=0.001, line_s=0.001)


class Seen:
    """A canvas that notes what is drawn on it."""

    interval_s = 0.001

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.drawn, self.closed = threading.Event(), threading.Event()

    def draw(self, activities: Sequence[Activity]) -> None:
        self.texts += map(str, activities)
        self.drawn.set()

    def close(self) -> None:
        self.closed.set()


def seen(monkeypatch: pytest.MonkeyPatch, pace: Pace = AT_ONCE) -> Seen:
    canvas = Seen()
    monkeypatch.setattr(reporting, "PACE", pace)
    monkeypatch.setattr(reporting, "canvas_for", lambda shown: lambda: canvas)
    return canvas


def made(done: int, total: int | None, seconds: float, ended: bool = False) -> Activity:
    out = Activity("filling v", total, "rows")
    out.done, out.started = done, perf_counter() - seconds
    out.ended = out.started + seconds if ended else None
    return out


def test_a_line_says_rows_of_rows_the_rate_and_the_time_left() -> None:
    assert str(made(1200, 6000, 2.0)) == "filling v: 1,200 of 6,000 rows (20 %), 600 rows/s, 8 s left"
    assert str(made(0, 6000, 2.0)) == "filling v: 0 of 6,000 rows (0 %), 2 s"
    assert str(made(1200, None, 2.0)) == "filling v: 1,200 rows, 600 rows/s, 2 s"
    assert str(made(0, None, 2.0)) == "filling v: 2 s"
    assert str(made(9, 8, 2.0, ended=True)) == "filling v: 9 of 9 rows (100 %), 4.5 rows/s, 2 s"
    assert str(made(0, 0, 2.0)) == "filling v: 0 of 0 rows, 2 s"


def test_times_are_for_people() -> None:
    assert [duration(s) for s in (0.2, 59.4, 59.6, 125, 3600, 12000)] == [
        "0 s", "59 s", "1 min 0 s", "2 min 5 s", "1 h 0 min", "3 h 20 min",
    ]  # fmt: skip


def test_long_work_is_drawn_and_taken_away_again(monkeypatch: pytest.MonkeyPatch) -> None:
    canvas = seen(monkeypatch)
    with activity("first", 10) as first:
        first.advance(5)
        assert canvas.drawn.wait(60)
        with activity("second", None):
            canvas.drawn.clear()
            while not any(t.startswith("second") for t in canvas.texts):
                assert canvas.drawn.wait(60)
                canvas.drawn.clear()
        assert not canvas.closed.is_set()
    assert canvas.closed.is_set()  # before the block is left
    assert any(t.startswith("first: 5 of 10 rows (50 %)") for t in canvas.texts)
    with activity("third", 1):  # with a thread of its own
        canvas.drawn.clear()
        assert canvas.drawn.wait(60)
    assert reporting._PAINTER._running is None


def test_short_work_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    canvas = seen(monkeypatch, Pace(first_s=3600.0))
    with activity("short"):
        pass
    assert not canvas.texts


def test_work_goes_on_where_it_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    canvas = seen(monkeypatch)

    def fails(activities: Sequence[Activity]) -> None:
        canvas.drawn.set()
        raise OSError("the terminal has gone")

    monkeypatch.setattr(canvas, "draw", fails)
    with activity("long"):
        assert canvas.drawn.wait(60)
    with pytest.raises(ZeroDivisionError), activity("long"):
        _ = 1 // 0


@pytest.mark.parametrize(("variable", "shown", "is_drawn"), [
    ("", None, False), ("", True, True), ("", False, False), ("1", None, True), ("0", None, False), ("1", False, False),
])  # fmt: skip
def test_without_a_terminal_lines_are_drawn_only_if_asked_for(
    monkeypatch: pytest.MonkeyPatch, variable: str, shown: bool | None, is_drawn: bool
) -> None:
    monkeypatch.setenv("DBSPARK_PROGRESS", variable)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: False))
    assert reporting.canvas_for(shown) is (reporting.Lines if is_drawn else None)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
    if not variable and shown is None:
        assert reporting.canvas_for(shown) is reporting.Terminal


def test_notebooks_get_a_cell_that_is_empty_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    cells: list[str] = []
    display = SimpleNamespace(update=cells.append)
    shell = SimpleNamespace(kernel=object())
    ipython = SimpleNamespace(get_ipython=lambda: shell)
    shown = SimpleNamespace(HTML=lambda text: text, display=lambda html, display_id: display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", shown)  # type: ignore[arg-type]
    monkeypatch.delenv("DBSPARK_PROGRESS", raising=False)
    assert reporting.canvas_for() is reporting.Notebook
    canvas = reporting.Notebook()
    canvas.draw([Activity("<b>", 10, "rows")])
    canvas.close()
    assert "&lt;b&gt;" in cells[0]
    assert 'max="10"' in cells[0]
    assert cells[-1] == ""
    shell.kernel = None
    assert not reporting.is_notebook()


ON_A_TERMINAL = """
import threading
from dbspark import reporting
reporting.PACE = reporting.Pace(first_s=0.0, redraw_s=0.001)
drawn = threading.Event()
class Watched(reporting.Terminal):
    def draw(self, activities):
        super().draw(activities)
        drawn.set()
reporting.Terminal = Watched
with reporting.activity("filling view v", 10) as filling:
    filling.advance(5)
    assert drawn.wait(60)
print("end")
"""


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo terminal")
def test_a_terminal_shows_a_bar_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    env: dict[str, Any] = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    env.pop("DBSPARK_PROGRESS", None)
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen([sys.executable, "-c", ON_A_TERMINAL], stdout=out, stderr=theirs, env=env)
        os.close(theirs)
        text = b""
        try:
            while part := os.read(ours, 65536):
                text += part
        except OSError:  # how Linux says that the other end is closed
            pass
        assert process.wait(60) == 0
    os.close(ours)
    assert b"filling view v: 5 of 10 rows (50 %)" in text
    assert text.rstrip().endswith(b"\x1b[2K")  # the last thing written erases the line
    assert (tmp_path / "out").read_text() == "end\n"
