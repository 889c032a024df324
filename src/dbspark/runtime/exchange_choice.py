"""Chooses the transport of a sharded pipeline: the user's choice, else resident workers if there are slots for them.

The choice is made once, when a pipeline is opened, and before anything is submitted: slots are held from then on
(`runtime.worker_slots`). If workers cannot be had and the user has not asked for them, every tick is a Spark job, and
the log says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, get_args

from dbspark.errors import ConfigError
from dbspark.runtime.transport import Transport
from dbspark.runtime.worker_slots import SLOTS, HeldSlots
from dbspark.storage.files import Files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("dbspark")

Exchange = Literal["resident", "shuffle"]
DEFAULT_EXCHANGE: Exchange | None = None
"""The transport if the user names none; None: resident workers if there are slots for them, else a Spark job a tick."""


def check_exchange(exchange: str | None, shards: int | None) -> None:
    """Refuse an unknown transport, a transport without shards, and what is not a number of shards."""
    if exchange is not None and exchange not in get_args(Exchange):
        raise ConfigError(f"exchange: {exchange!r} is not known; it can be {' or '.join(get_args(Exchange))}")
    if shards is None and exchange is not None:
        raise ConfigError(f"exchange={exchange!r} needs shards=…; without shards nothing is exchanged")
    if shards is not None and shards < 1:
        raise ConfigError(f"shards: {shards} is not a number of shards; give 1 or more, or None to run embedded")


def slots_for(exchange: Exchange | None, shards: int, spark: Callable[[], SparkSession], name: str) -> HeldSlots | None:
    """The slots for the workers of a pipeline; None where a Spark job carries each tick."""
    wanted = exchange or DEFAULT_EXCHANGE
    if wanted == "shuffle":
        return None
    try:
        _check_flight()
        return SLOTS.hold(spark(), shards)
    except ConfigError as error:
        if wanted == "resident":
            raise
        _log.warning("pipeline %s: every tick is a Spark job, not a message to workers that stay: %s", name, error)
        return None


def _check_flight() -> None:
    try:
        import pyarrow.flight  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"exchange='resident' needs pyarrow with Arrow Flight, which this Python cannot import ({error}); install "
            "pyarrow from PyPI or conda-forge, or open the pipeline with exchange='shuffle'"
        ) from None


def resident_transport(
    spark: SparkSession, shards: int, files: Callable[[], Files] | None, name: str, slots: HeldSlots
) -> Transport:
    """The transport by resident workers, in slots that are held for them; its first use starts them."""
    from dbspark.runtime.resident import ResidentTransport

    return ResidentTransport(spark, shards, files, name, slots)


__all__ = ["DEFAULT_EXCHANGE", "Exchange", "check_exchange", "resident_transport", "slots_for"]
