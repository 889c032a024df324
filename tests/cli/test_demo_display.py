"""The figures of the demo and the table that shows them."""

import io

import pytest
from rich.console import Console

from dbspark.cli.demo_data import LATER_VIEW, VIEWS
from dbspark.cli.demo_display import Figures, Screen, live_table
from dbspark.cli.demo_events import Asked, Began, Compared, Ended, Event, Held, Progressed, Showed, Ticked

LIVE: list[Event] = [
    Ticked(1, "orders", 50_000, 900.0, 0.0),  # loading, which is no part of the figures
    Held(dict.fromkeys(VIEWS, 10)),
    *(Ticked(n, "orders", 1_500, 10.0 * n, n / 2, {"revenue": 4}, {"spending": 2}) for n in range(2, 12)),
]


def figures(*events: Event) -> Figures:
    made = Figures()
    for event in (*LIVE, *events):
        made.take(event)
    return made


def text(made: Figures, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as capture:
        console.print(live_table(made, width))
    return capture.get()


def test_figures_are_of_the_live_ticks() -> None:
    made = figures()
    assert len(made.ticks) == 10
    assert (made.tick, made.rows_a_tick) == (11, 1_500)
    assert (made.ms(0.5), made.ms(0.99)) == (70.0, 110.0)
    assert made.rows_a_second == pytest.approx(3_000)
    assert (made.held["spending"], made.held["revenue"]) == (30, 10)
    assert (made.changed["revenue"], made.changed.get("spending", 0)) == (40, 0)
    assert made.ratio is None


def test_the_ratio_is_of_spark_at_its_best() -> None:
    made = figures(Compared(11, 21.0, 7, []), Compared(11, 14.0, 7, []), Compared(11, 28.0, 7, []))
    assert made.spark_s == 14.0
    assert made.ratio == pytest.approx(200)


def test_waiting_for_spark_is_no_slow_tick() -> None:
    made = figures(Asked(11), Ticked(12, "orders", 1_500, 70.0, 1_000.0), Ticked(13, "orders", 1_500, 70.0, 1_001.0))
    assert made.rows_a_second == pytest.approx(1_500)
    assert made.rates == [pytest.approx(3_000)]


def test_work_is_shown_while_it_goes_on() -> None:
    made = figures(Began("starting Spark"), Progressed("compiling kernels: 1 of 9"))
    assert (made.work, made.progress) == ("starting Spark", "compiling kernels: 1 of 9")
    made.take(Ended("started Spark", 1.0))
    assert made.work is None


def test_the_table_says_which_views_equal_spark() -> None:
    made = figures(Compared(11, 4.0, 7, ["spending: only Spark has (1,)"]), Held({LATER_VIEW: 3}))
    lines = {line.split()[0]: line.split()[-1] for line in text(made, 110).splitlines() if line.strip()}
    spending = next(line for line in text(made, 110).splitlines() if line.startswith("spending"))
    assert "DIFFERS" in spending
    assert "tick 11" in text(made, 110)
    assert lines[LATER_VIEW] == "–", "Spark has not computed it yet"
    made.take(Compared(12, 4.0, 8, []))
    assert "DIFFERS" not in text(made, 110)
    assert all("tick 12" in line for line in text(made, 110).splitlines() if line.split()[:1] == [LATER_VIEW])


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_table_fits_the_terminal(width: int) -> None:
    made = figures(Compared(11, 4.0, 7, []))
    lines = text(made, width).splitlines()
    assert len(lines) == 6 + len(VIEWS)
    assert all(any(line.startswith(f"{view} ") for line in lines) for view in VIEWS)
    assert max(map(len, lines)) <= width


def test_checks_are_kept_for_the_picture() -> None:
    screen = Screen(Console(file=io.StringIO(), width=200))
    for event in (*LIVE, Ended("started Spark", 1.0), Compared(11, 4.0, 7, []), Showed("time travel", "wrong", False)):
        screen.take(event)
    assert [line.plain[0] for line in screen.checks] == ["✓", "✗"]
    assert screen.figures.problems == ["time travel: wrong"]
