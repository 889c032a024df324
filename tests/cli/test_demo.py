"""The demo as its user sees it. A script takes the place of the process with the pipeline."""

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import dbspark
from dbspark.cli import app, demo_process, main
from dbspark.cli import demo as demo_module
from dbspark.cli.demo import EMBEDDED, LEAST_EMBEDDED_STEPS, run_demo
from dbspark.cli.demo_data import VIEWS, Workload
from dbspark.errors import ConfigError, DbsparkError, JavaNotFoundError

PROCESS = """
import json, os, sys, time
from dbspark.cli.demo_data import LATER_VIEW, VIEWS
from dbspark.cli.demo_events import *
arguments = json.loads(sys.argv[1])
problem = os.environ.get("PROBLEM", "")

def emit(*events):
    for event in events:
        os.write(arguments["events"], encode_event(event))

def ticks(first, last):
    for tick in range(first, last + 1):
        emit(Running(tick))
        time.sleep(0.001)
        emit(Ticked(tick, "orders", 1500, 20.0, float(tick), {"revenue": 40}, {"spending": 1}))

emit(Began("starting Spark"), Progressed("compiling kernels: 1 of 2"), Progressed(""), Ended("started Spark", 1.5))
if problem == "error":
    emit(Failed("JavaNotFoundError", "No Java [local] was found."))
elif problem == "wait":
    emit(Began("waiting for ever"))
    time.sleep(600)
elif arguments["what"] == "perform":
    emit(Ticked(1, "orders", 50000, 500.0, 0.0), Held(dict.fromkeys(VIEWS, 10)))
    ticks(2, 10)
    wrong = ["spending: only Spark has (1,)"] if problem == "rows" else []
    emit(Asked(10), Compared(10, 5.0, 7, wrong), Showed("time travel", "as it was", True), Held({LATER_VIEW: 3}))
    if arguments["kill"]:
        emit(Vulnerable())
        ticks(11, 200 if problem == "never" else 10_000_000)
    emit(Asked(10), Compared(10, 4.0, 7, []))
else:
    told = [decode_event(line) for line in open(arguments["folder"] + "/acknowledged", "rb")]
    last = told[-1].tick
    assert [event.tick for event in told] == list(range(1, last + 1)) and last >= 18
    emit(Held(dict.fromkeys(VIEWS, 10)))
    ticks(last + 1, last + 3)
    emit(Asked(last + 3), Compared(last + 3, 4.5, 8, []))
"""


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder in which the demo makes its own; it is to be empty afterwards."""
    script = tmp_path / "process.py"
    script.write_text(PROCESS)
    monkeypatch.setattr(demo_process, "PROGRAM", [str(script)])
    (tmp_path / "made").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "made"))
    monkeypatch.delenv("PROBLEM", raising=False)
    return tmp_path / "made"


def shown(*, terminal: bool = False, **options: object) -> tuple[bool, str]:
    out = io.StringIO()
    console = Console(file=out, width=120, height=50, force_terminal=terminal)
    right = run_demo(EMBEDDED, console, **options)  # type: ignore[arg-type]
    return right, out.getvalue()


def test_plain_lines_where_there_is_no_terminal(process: Path) -> None:
    right, text = shown()
    assert right
    assert "\x1b" not in text
    assert "\r" not in text
    assert "1.5 s  started Spark" in text
    assert re.search(
        r"SIGKILL of the process and its JVM: in the middle of tick \d+, when \d+ ticks had been ack", text
    )
    assert "tick 10: all 7 views equal what Spark computes anew in 5.0 s" in text
    assert "20.0 ms a tick (p99 20.0), ratio 250x" in text
    assert "Spark needs 4.5 s at its best to compute them anew: 225 times as long" in text
    assert "all 2 times it was asked" in text
    assert "dbspark demo --shards 2" in text
    assert list(process.iterdir()) == []


def test_a_live_table_on_a_terminal(process: Path) -> None:
    right, text = shown(terminal=True)
    assert right
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert all(view in plain for view in VIEWS)
    assert "rows a second" in plain
    assert "225x" in plain
    assert "✓ time travel: as it was" in plain
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h"), "the cursor stays hidden"


def test_the_second_act_is_not_killed() -> None:
    right, text = shown(shards=2)
    assert right
    assert "on 2 shards" in text
    assert "SIGKILL" not in text
    assert "the first act" in text


def test_what_is_wrong_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBLEM", "rows")
    right, text = shown()
    assert not right
    assert "MISMATCH at tick 10: spending: only Spark has (1,)" in text
    assert "What was NOT right\n  spending: only Spark has (1,)" in text
    assert "Every view was" not in text


def test_a_process_that_cannot_be_killed_in_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBLEM", "never")
    monkeypatch.setattr(demo_module, "TICKS_BEFORE_KILL", 1_000)
    right, text = shown()
    assert not right
    assert "no transaction was seen running" in text


def test_an_error_of_the_process_is_raised(process: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBLEM", "error")
    with pytest.raises(JavaNotFoundError, match=r"No Java \[local\] was found"):
        shown()
    assert list(process.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_leaves_nothing(process: Path, number: signal.Signals) -> None:
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from dbspark.cli import demo_process, main\n"
        f"demo_process.PROGRAM = [{str(process.parent / 'process.py')!r}]; sys.argv = ['dbspark', 'demo']; main()"
    )
    started = subprocess.Popen(
        [sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PROBLEM": "wait", "TMPDIR": str(process), "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert started.stdout is not None
        assert any("started Spark" in line for line in started.stdout)
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        started.send_signal(number)
        _, error = started.communicate(timeout=60)
    finally:
        started.kill()
        started.wait()
    assert started.returncode == 130
    assert "Traceback" not in error
    assert "nothing is left of it" in error
    assert list(process.iterdir()) == []
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert len(children) == 1


def test_a_picture(process: Path, tmp_path: Path) -> None:
    file = tmp_path / "demo.svg"
    right, text = shown(picture=file)
    assert right
    assert f"The picture is in {file}" in text
    picture = file.read_text()
    ElementTree.fromstring(picture)
    assert "best_customers" in picture
    assert not re.search(r"url\([^#]|href|@import", picture), "it loads something from elsewhere"


def test_the_location_stays_and_has_to_be_new(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert shown(location=str(tmp_path / "there"))[0]
    (tmp_path / "there" / "file").touch()
    for place in (tmp_path / "there", tmp_path / "there" / "file"):
        with pytest.raises(ConfigError, match="there is something already"):
            shown(location=str(place))
    with pytest.raises(ConfigError, match="there is no folder"):
        shown(picture=tmp_path / "no" / "demo.svg")
    with pytest.raises(ConfigError, match=f"at least {LEAST_EMBEDDED_STEPS}"):
        run_demo(Workload(rows=1_000, steps=3), Console(file=io.StringIO()))


class TestCommandLine:
    def test_version(self) -> None:
        result = CliRunner().invoke(app, ["--version"])
        assert (result.exit_code, result.output) == (0, f"dbspark {dbspark.__version__}\n")

    @pytest.mark.parametrize("command", [[], ["demo"]])
    def test_help_has_an_example(self, command: list[str]) -> None:
        result = CliRunner().invoke(app, [*command, "--help"])
        assert result.exit_code == 0
        assert "Example: dbspark demo" in result.output

    def test_a_bad_option_is_a_usage_error(self) -> None:
        assert CliRunner().invoke(app, ["demo", "--ticks", "0"]).exit_code == 2

    def test_a_mismatch_is_an_exit_code(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(demo_module, "run_demo", lambda *args, **kwargs: False)
        assert CliRunner().invoke(app, ["demo"]).exit_code == 1

    def test_our_errors_are_messages_and_not_tracebacks(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail(*args: object, **kwargs: object) -> bool:
            raise DbsparkError("No Java [local] was found.")

        monkeypatch.setattr(demo_module, "run_demo", fail)
        monkeypatch.setattr("sys.argv", ["dbspark", "demo"])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 1
        assert capsys.readouterr().err == "DbsparkError: No Java [local] was found.\n"
