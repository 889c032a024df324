"""What the suite ends with: the slowest tests, and a warning where one test or all of them take too long.

A test's time is that of its set-up, call and tear-down, so the first that asks for a shared fixture pays for it.
Machines are noisy: time is never a failure.
"""

import time
from collections import Counter
from typing import Final

import pytest

SUITE_SECONDS: Final = 15 * 60
TEST_SECONDS: Final = 60
"""Beyond these there is a warning: a quiet machine with two cores needs a third."""


class Timing:
    """A plugin of the process that reports: with several, their tests' times arrive there."""

    def __init__(self, shown: int) -> None:
        self.shown = shown
        self.begun = time.monotonic()
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total = time.monotonic() - self.begun
        write = terminalreporter.write_line
        terminalreporter.section(f"slowest {self.shown} of {len(self.seconds)} tests")
        for test, seconds in self.seconds.most_common(self.shown):
            write(f"{seconds:6.1f} s  {test}")
        write(f"{total:6.1f} s  in all")
        for warning in too_long(self.seconds, total):
            write(warning, yellow=True)


def too_long(seconds: Counter[str], total: float) -> list[str]:
    """What takes too long, slowest first."""
    slow = [(s, test) for test, s in seconds.most_common() if s > TEST_SECONDS]
    lines = [f"warning: {test} took {s:.0f} s, more than {TEST_SECONDS} s" for s, test in slow]
    if total > SUITE_SECONDS:
        lines.append(f"warning: the suite took {total / 60:.1f} minutes, more than {SUITE_SECONDS // 60}")
    return lines
