"""What carries ticks to shards: the user's word, or workers that stay where there are slots for them."""

import builtins
import logging

import pytest

from dbspark.errors import ConfigError
from dbspark.runtime import exchange_choice, worker_slots
from dbspark.runtime.exchange_choice import check_exchange, slots_for
from tests.runtime.workers import ProcessContext


@pytest.fixture
def cluster(monkeypatch):
    """A cluster of three slots."""
    monkeypatch.setattr(worker_slots, "spark_context", lambda _: ProcessContext())
    monkeypatch.setattr(worker_slots, "cluster_slots", lambda _: 3)
    monkeypatch.setattr(exchange_choice, "SLOTS", worker_slots.WorkerSlots())


def asked(exchange, shards):
    return slots_for(exchange, shards, lambda: None, "shop")


def test_workers_are_used_where_there_are_slots(cluster, caplog):
    assert asked("shuffle", 2) is None
    held = asked(None, 2)
    assert held is not None
    with caplog.at_level(logging.WARNING, "dbspark"):
        assert asked(None, 1) is None
    assert "pipeline shop: every tick is a Spark job" in caplog.text
    assert "other pipelines hold 2" in caplog.text
    with pytest.raises(ConfigError, match="exchange='shuffle', or start Spark with"):
        asked("resident", 1)
    held.release()
    assert asked("resident", 2) is not None


def test_a_python_without_flight_is_told_what_to_install(cluster, monkeypatch, caplog):
    imported = builtins.__import__

    def without_flight(name, *arguments):
        if name == "pyarrow.flight":
            raise ImportError("no libarrow_flight")
        return imported(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without_flight)
    with pytest.raises(ConfigError, match=r"Arrow Flight.*no libarrow_flight.*install pyarrow"):
        asked("resident", 1)
    assert asked(None, 1) is None


def test_spark_connect_is_told_what_to_do():
    with pytest.raises(ConfigError, match=r"Spark Connect.*shards=None"):
        worker_slots.spark_context(object())


def test_what_makes_no_sense_is_refused():
    for exchange, shards, match in (
        ("flight", 2, "'flight' is not known; it can be resident or shuffle"),
        ("resident", None, "needs shards"),
        (None, 0, "0 is not a number of shards"),
    ):
        with pytest.raises(ConfigError, match=match):
            check_exchange(exchange, shards)
