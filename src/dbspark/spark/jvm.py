"""Starting the JVM of a session, with its log in a file instead of on the terminal.

A JVM with Spark writes some lines to standard error whenever it starts (incubator modules, log4j's profile, native
libraries) and warnings while it runs. Nobody who has started a program that uses dbspark asked for them. So the JVM
that dbspark starts has a file as its standard error: the log, with what Spark logs and what Python workers print.
Invariants:

1. Standard output stays the program's: a console sink of Structured Streaming prints there.
2. A JVM that does not start is an error that shows the end of its log.
3. `DBSPARK_LOG=debug` leaves standard error as it is, and shows what dbspark itself logs as well.
4. A JVM that is there already keeps what it has: it belongs to the user.

A log is in `dbspark/log` in the user's cache folder or, where that cannot be written, in the folder for temporary
files; the newest `LOGS_KEPT` are kept.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

from dbspark.errors import ConfigError, SparkStartError
from dbspark.spark.launcher import cache_folder

__all__ = ["LOG_VARIABLE", "launch_jvm", "log_file", "show_own_log", "shows_everything"]

LOG_VARIABLE: Final = "DBSPARK_LOG"
LOGS_KEPT: Final = 20
"""Log files; older ones are removed when a JVM is started. Enough to find that of a program which ran hours ago."""
LINES_SHOWN: Final = 20
"""Last lines of the log of a JVM that did not start, for the error: the reason is at its end."""

_log = logging.getLogger("dbspark")
_current: Path | None = None


def log_file() -> Path | None:
    """Where the JVM that dbspark has started in this process logs; None: on standard error, or there is none."""
    return _current


def shows_everything() -> bool:
    """Whether the user has asked for all that is logged (`DBSPARK_LOG=debug`)."""
    asked = os.environ.get(LOG_VARIABLE, "").strip().lower()
    if asked not in ("", "debug"):
        raise ConfigError(f"{LOG_VARIABLE} is {asked!r}. Set it to debug to see all that is logged, or leave it out.")
    return asked == "debug"


def launch_jvm(config: Mapping[str, str]) -> None:
    """Start the JVM of this process, unless there is one. `config`: the settings of the session."""
    global _current
    from pyspark import SparkConf, SparkContext, java_gateway

    if SparkContext._gateway is not None:
        return
    launch_gateway: Any = java_gateway.launch_gateway
    options = SparkConf().setAll(list(config.items()))
    if shows_everything():
        SparkContext._ensure_initialized(gateway=launch_gateway(options))
        return
    path, file = _new_log()
    with file:
        try:
            gateway = launch_gateway(options, {"stderr": file})
        except Exception as error:  # a PySparkException without a reason, or an OSError of the launch script
            raise SparkStartError(_reason(path, error)) from error
    SparkContext._ensure_initialized(gateway=gateway)
    _current = path
    _log.info("Spark logs to %s", path)


def _reason(path: Path, error: Exception) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()][-LINES_SHOWN:]
    said = "".join(f"\n  {line}" for line in lines) or f" nothing ({error})"
    return f"Spark could not be started. The end of its log, {path}, says:{said}"


def _new_log() -> tuple[Path, IO[bytes]]:
    """A new log file. The cache folder is the user's own; elsewhere the name must not be foreseeable."""
    name = f"spark-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-"
    for folder in (_log_folder, _temporary_folder):
        with suppress(OSError, RuntimeError):  # RuntimeError: there is no home folder
            place = folder()
            place.mkdir(parents=True, exist_ok=True)
            descriptor, path = tempfile.mkstemp(prefix=name, suffix=".log", dir=place)
            _remove_old(place)
            return Path(path), os.fdopen(descriptor, "ab")
    return Path(os.devnull), open(os.devnull, "ab")


def _log_folder() -> Path:
    return cache_folder() / "log"


def _temporary_folder() -> Path:
    return Path(tempfile.gettempdir())


def _remove_old(folder: Path) -> None:
    logs = sorted(folder.glob("spark-*-*-*.log"), key=lambda log: log.name)
    for log in logs[:-LOGS_KEPT]:
        with suppress(OSError):
            log.unlink()


def show_own_log() -> None:
    """Show all records of dbspark on standard error, unless the program has set up logging."""
    if _log.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"))
    _log.addHandler(handler)
    _log.setLevel(logging.DEBUG)
