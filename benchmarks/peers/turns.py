"""Processes that take turns: only one of them runs at a time, and the others are stopped.

A machine drifts within seconds, so two cases that are to be compared must not run minutes apart. Each has a process,
which says when it is `READY` for the next stretch of its ticks and waits to be told to `GO`. Whoever has said so is
stopped until its turn comes, with all its threads: what it has left to be merged beside its ticks goes on in its own
turns only, and is paid for by its own ticks.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

READY: Final = "dbspark: ready"
GO: Final = "go"


def pause() -> None:
    """In a process that takes turns: until its turn comes."""
    print(READY, flush=True)
    sys.stdin.readline()


class Process:
    """One of them, as whoever gives the turns sees it."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, cwd=folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors,
            )  # fmt: skip
        self._wait()

    def _wait(self) -> None:
        """Until it is ready again, and then stop it; or until it has ended."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == READY:
                self._process.send_signal(signal.SIGSTOP)
                return
        self._process.wait()

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    def turn(self) -> None:
        """Let it run up to its next pause."""
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        with contextlib.suppress(OSError):  # it may have been killed
            self._process.stdin.write(f"{GO}\n")
            self._process.stdin.flush()
        self._wait()

    def kill(self) -> None:
        if not self.ended:
            self._process.kill()

    def close(self) -> None:
        self.kill()
        self._process.wait()

    def last_words(self) -> str:
        """What it said last, if it has failed."""
        said = self._log.read_text().strip().splitlines()
        return said[-1] if self._process.returncode and said else ""


def take_turns(processes: Sequence[Process], timeout: float) -> None:
    """Run all of them to their end. Who begins changes with every turn."""
    timer = threading.Timer(timeout, lambda: [process.kill() for process in processes])
    timer.daemon = True
    timer.start()
    turn = 0
    while any(not process.ended for process in processes):
        for process in processes if turn % 2 == 0 else reversed(processes):
            if not process.ended:
                process.turn()
        turn += 1
    timer.cancel()
