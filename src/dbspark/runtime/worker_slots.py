"""The slots of a cluster that resident workers hold, counted over all pipelines of the process.

A worker holds a slot of the cluster for as long as its pipeline is open. Slots are counted before anything is
submitted, so a pipeline that does not fit is refused at once instead of waiting for ever, and one slot is left for
ordinary jobs: without it no DataFrame could be read beside the workers.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from dbspark.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLOTS_FOR_JOBS: Final = 1
"""Slots that workers leave to ordinary jobs."""


class HeldSlots:
    """Slots that one pipeline holds until it releases them."""

    def __init__(self, owner: WorkerSlots, application: str, count: int) -> None:
        self._owner = owner
        self._application = application
        self._count = count

    def release(self) -> None:
        """Give the slots back. Doing it again does nothing."""
        self._owner.give_back(self._application, self._count)
        self._count = 0


class WorkerSlots:
    """Slots held by the pipelines of this process, by application."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}

    def hold(self, spark: SparkSession, wanted: int) -> HeldSlots:
        """Hold slots for the workers of a pipeline; raises `ConfigError` if too few are free."""
        context = spark_context(spark)
        application = str(context.applicationId)
        total = cluster_slots(context)
        with self._lock:
            held = self._held.get(application, 0)
            if held + wanted + SLOTS_FOR_JOBS > total:
                raise ConfigError(_too_few(context, wanted, held, total))
            self._held[application] = held + wanted
        return HeldSlots(self, application, wanted)

    def give_back(self, application: str, count: int) -> None:
        """Release slots of an application."""
        with self._lock:
            self._held[application] = self._held.get(application, 0) - count


SLOTS: Final = WorkerSlots()
"""The slots that the pipelines of this process hold."""


def spark_context(spark: SparkSession) -> Any:
    """The context of a session; raises `ConfigError` for Spark Connect, which has none."""
    if not hasattr(spark, "_jsparkSession"):
        raise ConfigError(
            "exchange='resident' needs a Spark session in this process, because workers are long tasks that talk to "
            "the driver; this one is of Spark Connect. Open the pipeline with shards=None, or start it on the cluster"
        )
    return spark.sparkContext


def cluster_slots(context: Any) -> int:
    """Tasks that the executors registered at this moment can run at once."""
    java: Any = context._jsc.sc()
    return int(java.maxNumConcurrentTasks(java.resourceProfileManager().defaultResourceProfile()))


def _too_few(context: Any, wanted: int, held: int, total: int) -> str:
    needed = held + wanted + SLOTS_FOR_JOBS
    others = f", other pipelines hold {held}" if held else ""
    master = str(context.master)
    if master.startswith("local"):
        remedy = f"start Spark with master('local[{needed}]'): these are threads, and may be more than cores"
    elif str(context.getConf().get("spark.dynamicAllocation.enabled", "false")).lower() == "true":
        remedy = (
            "set spark.dynamicAllocation.minExecutors so that there are as many from the beginning, because workers "
            "are counted before they are submitted"
        )
    else:
        remedy = "give the application more executors or cores (spark.executor.instances, spark.executor.cores)"
    return (
        f"shards={wanted} with exchange='resident' needs {wanted} slots for workers and {SLOTS_FOR_JOBS} for ordinary "
        f"jobs; the cluster has {total}{others}. Open the pipeline with fewer shards or exchange='shuffle', or {remedy}"
    )


__all__ = ["SLOTS", "SLOTS_FOR_JOBS", "HeldSlots", "WorkerSlots", "cluster_slots", "spark_context"]
