"""One entry runs every package, small or large, and goes on after one that fails."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from benchmarks import __main__ as entry


@pytest.fixture
def called(monkeypatch):
    """What the entry imports and runs, instead of the suites."""
    seen = []

    def imported(name):
        if name == "benchmarks.page":
            return SimpleNamespace(write=lambda: seen.append("page"))

        def main(arguments):
            if name == "benchmarks.trace.__main__":
                raise RuntimeError("broken")
            seen.append((name.split(".")[1], os.environ["DBSP_QUICK_BENCH"], *arguments))
            return 0

        return SimpleNamespace(main=main)

    monkeypatch.setattr(entry, "import_module", imported)
    monkeypatch.setenv("DBSP_QUICK_BENCH", "")
    return seen


def test_some_packages_are_run_small(called):
    assert entry.main(["quick", "peers", "sql", "--strict"]) == 0
    assert called == [("peers", "1", "--strict"), ("sql", "1", "--strict")]


def test_all_are_run_and_the_page_is_written_though_one_fails(called, capsys):
    assert entry.main(["full"]) == 2
    assert called == [*((name, "0") for name in entry.PACKAGES if name != "trace"), "page"]
    assert "failed: trace" in capsys.readouterr().out
