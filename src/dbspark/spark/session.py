"""The Spark session: the caller's, the active one, or a local one that dbspark starts.

Invariant: dbspark stops only what it started, and changes nothing that is not its own. A session that is
given or found keeps its settings. For one that is started here, the environment variables that Spark reads at
launch are set for the launch and put back after it; a value the user has set is kept, except a JAVA_HOME that
does not lead to a usable Java.

The environment is needed because Spark offers nothing else: the launch script reads JAVA_HOME, the JVM reads
SPARK_LOCAL_IP, and the workers' Python is PYSPARK_PYTHON or else whatever `python3` means on PATH, which is
rarely the interpreter that dbspark is installed in.
"""

import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dbspark.errors import ConfigError
from dbspark.spark.java import find_java
from dbspark.spark.jvm import launch_jvm, show_own_log, shows_everything

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SessionHandle", "get_session"]

logger = logging.getLogger(__name__)

_LAUNCH = threading.Lock()
"""Held while a session is looked for and started: os.environ belongs to the whole process."""


@dataclass(frozen=True)
class SessionHandle:
    """A Spark session and who has to stop it. A `with` block closes it."""

    spark: "SparkSession"
    owned: bool
    """Whether dbspark started this session, and `close` stops it."""

    def close(self) -> None:
        """Stop the session if dbspark started it; a session of somebody else goes on."""
        if self.owned:
            self.spark.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def get_session(
    spark: "SparkSession | None" = None,
    *,
    app_name: str = "dbspark",
    cores: int | None = None,
    worker_slots: int = 0,
    config: Mapping[str, str] | None = None,
) -> SessionHandle:
    """The session to work with: `spark`, else the active one, else a new one that dbspark owns.

    `app_name`, `cores` (default: all), `worker_slots` (further slots, for resident workers) and `config` (Spark
    settings) are for a new session only and do not touch an existing one. Raises `JavaNotFoundError` if a JVM has to
    be started and there is no Java for it.

        with get_session() as session:
            session.spark.range(3).show()
    """
    if cores is not None and cores < 1:
        raise ConfigError(f"cores is {cores}, and a session needs at least one. Leave it out to use all cores.")
    if spark is not None:
        return SessionHandle(spark, owned=False)
    with _LAUNCH:
        found = _existing()
        if found is not None:
            return SessionHandle(found, owned=False)
        return SessionHandle(_start(app_name, cores or os.cpu_count() or 1, worker_slots, config or {}), owned=True)


def _existing() -> "SparkSession | None":
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    # Active is a matter of the thread. A context of another thread is still the only one that a process can
    # have: the builder would return it, and must not be handed settings to change it by.
    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    return None


def _start(app_name: str, cores: int, worker_slots: int, config: Mapping[str, str]) -> "SparkSession":
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if "SPARK_REMOTE" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ:
        # A Connect server, or a job under spark-submit: where it runs and with which Java is decided already.
        return _build(SparkSession.builder.appName(app_name), config)
    variables = {
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP") or "127.0.0.1",
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable,
        "PYSPARK_DRIVER_PYTHON": os.environ.get("PYSPARK_DRIVER_PYTHON") or sys.executable,
    }
    if SparkContext._gateway is None:  # else the JVM of an earlier session serves again
        if shows_everything():
            show_own_log()
        java = find_java()
        logger.info("Starting Spark with Java %d from %s (%s).", java.version, java.source, java.home)
        variables["JAVA_HOME"] = str(java.home)
    settings = {
        "spark.master": f"local[{cores + worker_slots}]", "spark.app.name": app_name,
        **_local_settings(cores), **config,
    }  # fmt: skip
    with _environment(variables):
        launch_jvm(settings)
        return _build(SparkSession.builder, settings)


def _local_settings(cores: int) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(cores),
        # Spark's default parallelism follows the cores; the slots of resident workers are not for its jobs.
        "spark.default.parallelism": str(cores),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # 10 000 by default; a batch of 100 000 rows about halves the cost of a trip through Python.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        # Above this an Arrow table becomes partitions rather than a literal in the plan of every task.
        "spark.sql.execution.arrow.localRelationThreshold": "1m",
        # A column of the wrong type is then named in the error, rather than failing somewhere in the JVM.
        "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    }


def _build(builder: "SparkSession.Builder", config: Mapping[str, str]) -> "SparkSession":
    for key, value in config.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the duration of a block, and put back what was there."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
