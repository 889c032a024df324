"""The process of the demo: what it told before it was killed is known, and nothing of it stays."""

import os
import time
from pathlib import Path

import pytest

from dbspark import errors
from dbspark.cli import demo_process
from dbspark.cli.demo_events import (
    Compared,
    Event,
    Failed,
    Held,
    Running,
    Showed,
    Ticked,
    decode_event,
    encode_event,
)
from dbspark.cli.demo_process import Child, raised
from dbspark.errors import DbsparkError, JavaNotFoundError

PREFACE = """
import json, os, subprocess, sys, time
from dbspark.cli.demo_events import *
from dbspark.cli.demo_process import _end_with_parent
arguments = json.loads(sys.argv[1])
def emit(event): os.write(arguments["events"], encode_event(event))
"""


def child(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> Child:
    script = folder / "script.py"
    script.write_text(PREFACE + text)
    monkeypatch.setattr(demo_process, "PROGRAM", [str(script)])
    return Child(folder, "perform", {})


def events(running: Child) -> list[Event]:
    found: list[Event] = []
    while not running.ended:
        event = running.next(1)
        if event is not None:
            found.append(event)
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int) -> None:
    for _ in range(500):
        if not is_alive(pid):
            return
        time.sleep(0.01)
    pytest.fail(f"process {pid} is still there")


def test_events_survive_the_pipe() -> None:
    sent = [
        Held({"größe": 3}),
        Ticked(7, "orders", 1500, 2.5, 3.0, {"v": 2}, {"v": -1}),
        Compared(7, 1.5, 7, ["v: a\nb"]),
        Showed("what", "result", False),
    ]
    assert [decode_event(encode_event(event)) for event in sent] == sent
    assert all(encode_event(event).count(b"\n") == 1 for event in sent)


def test_what_was_told_before_a_kill_is_read_and_the_group_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = """
other = subprocess.Popen(["sleep", "600"])   # as its JVM
emit(Held({"pid": other.pid}))
tick = 0
while True:
    tick += 1
    emit(Running(tick))
    emit(Ticked(tick, "orders", 1, 1.0, time.time()))
"""
    with child(monkeypatch, tmp_path, text) as running:
        first = running.next(60)
        assert isinstance(first, Held)
        told: list[Event] = []
        while len(told) < 1000:
            event = running.next(60)
            assert event is not None
            told.append(event)
        told += running.freeze()
        assert running.freeze() == [], "it told something while it was frozen"
        running.thaw()
        told += running.freeze()
        running.kill()
        told += events(running)
        ticks = [event.tick for event in told if isinstance(event, Ticked)]
        assert ticks == list(range(1, len(ticks) + 1))
        assert len(ticks) <= sum(isinstance(event, Running) for event in told) <= len(ticks) + 1
        assert not is_alive(running.pid)
        wait_until_gone(first.rows["pid"])


def test_it_ends_when_the_demo_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = """
_end_with_parent()
other = subprocess.Popen(["sleep", "600"])
emit(Held({"pid": other.pid}))
time.sleep(600)
"""
    with child(monkeypatch, tmp_path, text) as running:
        first = running.next(60)
        assert isinstance(first, Held)
        assert running._process.stdin is not None
        running._process.stdin.close()  # as the system does for a process that has died
        assert events(running) == []
        wait_until_gone(first.rows["pid"])


def test_an_end_without_a_word_shows_the_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with child(monkeypatch, tmp_path, "print('the last words'); sys.stdout.flush(); os._exit(3)") as running:
        assert events(running) == []
        with pytest.raises(DbsparkError, match=r"exit code 3[^$]*the last words"):
            running.wait()


def test_temporary_files_of_the_process_are_in_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with child(monkeypatch, tmp_path, "import tempfile; emit(Held({tempfile.mkdtemp(): 1}))") as running:
        (event,) = events(running)
        running.wait()
    assert isinstance(event, Held)
    assert all(os.path.dirname(made) == str(tmp_path / "tmp") for made in event.rows)


def test_errors_keep_their_class() -> None:
    assert type(raised(Failed("JavaNotFoundError", "No Java."))) is JavaNotFoundError
    for other in ("ValueError", "annotations", "__doc__"):
        assert type(raised(Failed(other, "text"))) is DbsparkError
    assert {type(raised(Failed(name, "text"))).__name__ for name in errors.__all__} == set(errors.__all__)
