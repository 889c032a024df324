"""The process that runs the demo's pipeline and Spark, and `Child`, which controls it.

It is a process of its own because the demo kills it. Invariants:

1. Everything it makes is in the demo's folder, Spark's temporary files included: whoever kills it removes one folder.
2. It and its JVM are a process group. The demo kills the group, and nothing else. If the demo itself is gone, standard
   input ends, and the group ends itself.
3. `freeze` stops it and reads the events that it has sent. If the end of the running transaction is not among them,
   that transaction has not been acknowledged, and a kill hits it in the middle.

It writes events to a pipe of its own. What it and Spark print goes to a log, which is shown if it fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dbspark import errors
from dbspark.cli.demo_events import Emit, Event, Failed, Progressed, Ticked, decode_event, encode_event
from dbspark.errors import DbsparkError
from dbspark.reporting import Activity, draw_on

PROGRAM: Final = ["-m", "dbspark.cli.demo_process"]
"""What the Python of the process runs."""
READ_BYTES: Final = 1 << 16
LOG_LINES_SHOWN: Final = 20
"""Last lines of the log that are shown where the process has ended without a `Failed` event."""
REDRAW_S: Final = 0.25
"""Seconds between two events on the progress of long work."""


class Child:
    """The demo's handle of the process. At its end a `with` block ends the process, and waits until it has gone."""

    def __init__(self, folder: Path, what: str, arguments: dict[str, Any]) -> None:
        """`what` is "perform" or "resume"; `folder` is where everything goes."""
        self.log = folder / "log.txt"
        self._events: deque[Event] = deque()
        self._partial = b""
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        given = json.dumps({"what": what, "folder": str(folder), "events": writer, **arguments})
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *PROGRAM, given],
                stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=[writer], start_new_session=True,
                env={**os.environ, "TMPDIR": str(temporary)},
            )  # fmt: skip
        os.close(writer)
        self._ended = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def next(self, timeout_s: float) -> Event | None:
        """The next event; None if none came in this time, or the process has ended (`ended`)."""
        if not self._events and not self._ended and select.select([self._reader], [], [], timeout_s)[0]:
            self._read()
        return self._events.popleft() if self._events else None

    @property
    def ended(self) -> bool:
        """Whether the process has ended and all of its events have been taken."""
        return self._ended and not self._events

    def _read(self) -> None:
        """Read what is in the pipe, without waiting."""
        while not self._ended:
            try:
                read = os.read(self._reader, READ_BYTES)
            except BlockingIOError:
                return
            self._ended = not read
            *lines, self._partial = (self._partial + read).split(b"\n")
            self._events.extend(map(decode_event, lines))

    def freeze(self) -> list[Event]:
        """Stop the process where it is; returns the events that it has sent and that `next` has not given yet."""
        os.kill(self.pid, signal.SIGSTOP)
        # Wait until it has stopped, or has ended, without taking its exit code from `subprocess`.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._read()
        waiting, self._events = list(self._events), deque()
        return waiting

    def thaw(self) -> None:
        """Let a frozen process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL the process and its JVM, and wait until they have gone."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self) -> None:
        """Wait until the process has ended by itself; raises what it failed with."""
        code = self._process.wait()
        if code:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # a JVM that the process has left behind
            last = self.log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
            raise DbsparkError(
                f"the process of the demo has ended with exit code {code}. The end of its log:\n" + "\n".join(last)
            )

    def close(self) -> None:
        self.kill()
        os.close(self._reader)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def raised(event: Failed) -> DbsparkError:
    """The error that a process ended with."""
    kind: type[DbsparkError] = getattr(errors, event.kind) if event.kind in errors.__all__ else DbsparkError
    return kind(event.message)


# ---------------------------------------------------------------------- inside the process


class _Forward:
    """A canvas that sends the progress of activities as events instead of drawing it."""

    interval_s = REDRAW_S

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def draw(self, activities: Sequence[Activity]) -> None:
        self._emit(Progressed("; ".join(map(str, activities))))

    def close(self) -> None:
        self._emit(Progressed(""))


def _end_with_parent() -> None:
    """End the process group when nobody holds the other end of standard input any more."""

    def watch() -> None:
        while os.read(0, READ_BYTES):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="dbspark-demo-parent", daemon=True).start()


def main() -> None:
    """Run an act, and send its events to the demo."""
    arguments = json.loads(sys.argv[1])
    pipe, lock = arguments.pop("events"), threading.Lock()

    def emit(event: Event) -> None:
        with lock:
            os.write(pipe, encode_event(event))

    _end_with_parent()
    try:
        _run(arguments, emit)
    except DbsparkError as error:
        traceback.print_exc()
        emit(Failed(type(error).__name__, str(error)))
    except Exception as error:
        traceback.print_exc()
        emit(Failed("DbsparkError", f"{type(error).__name__}: {error}"))


def _run(arguments: dict[str, Any], emit: Emit) -> None:
    from time import perf_counter

    from dbspark.cli.demo_act import Stage, perform, resume
    from dbspark.cli.demo_data import Workload
    from dbspark.cli.demo_events import Began, Ended
    from dbspark.kernels import preload
    from dbspark.spark import get_session

    draw_on(lambda: _Forward(emit))
    folder = Path(arguments["folder"])
    stage = Stage(
        folder, Workload(**arguments["workload"]), arguments["location"], arguments["shards"], arguments["kill"]
    )
    preload.begin()  # kernels are loaded, or compiled where there are none, while Spark starts
    emit(Began("starting Spark"))
    begun = perf_counter()
    workers = arguments["shards"] or 0
    settings = _settings(folder)
    session = get_session(app_name="dbspark demo", cores=arguments["cores"], worker_slots=workers, config=settings)
    emit(Ended(f"started Spark {session.spark.version}", perf_counter() - begun))
    with session:
        if arguments["what"] == "perform":
            perform(stage, session.spark, emit)
        else:
            acknowledged = [decode_event(line) for line in (folder / "acknowledged").read_bytes().splitlines()]
            resume(stage, session.spark, emit, [event for event in acknowledged if isinstance(event, Ticked)])


def _settings(folder: Path) -> dict[str, str]:
    return {
        "spark.log.level": "ERROR",
        # Adaptive execution costs more than it can save on queries of a second.
        "spark.sql.adaptive.enabled": "false",
        # Idle streams look for files every 10 ms by default, also while Spark is measured.
        "spark.sql.streaming.pollingDelay": "100ms",
        "spark.local.dir": str(folder / "tmp"),
        "spark.sql.warehouse.dir": str(folder / "tmp" / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder / 'tmp'} -XX:-UsePerfData",
    }


if __name__ == "__main__":
    main()


__all__ = ["Child", "main", "raised"]
