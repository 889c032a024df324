"""Workers that stay: what they answer, what they refuse, and what happens when one is lost."""

import gc
import os
import signal
import socket
import time
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from dbspark.errors import ConfigError, DbsparkError
from dbspark.runtime import worker_pool, worker_slots
from dbspark.runtime.tables import TransactionError
from dbspark.runtime.wire import call_options
from dbspark.runtime.worker_pool import WorkerLostError
from tests.runtime.workers import ProcessContext, shop


def orders(first, count=40):
    return [(first + i, (first + i) % 7) for i in range(count)]


def model(*ranges):
    return sorted({(c,) for first in ranges for _, c in orders(first)})


def test_ticks_are_kept_undone_and_read_at_earlier_ticks(monkeypatch):
    with shop(monkeypatch) as pipe:
        outcome = pipe.apply("insert", [(1, 10), (2, 20)])
        assert sorted(outcome.deltas["customers"].to_arrow().column("customer").to_pylist()) == [10, 20]
        assert outcome.view_row_counts == {"customers": 2}
        pipe.apply("insert", [(3, 30)], commit=False)
        assert pipe.rows() == [(10,), (20,)]
        with pytest.raises(TransactionError, match="two rows of the primary key"):
            pipe.apply("insert", [(1, 11), (4, 40)])
        pipe.apply("upsert", [(2, 21), (5, 10)])
        assert pipe.rows() == [(10,), (21,)]
        assert pipe.rows(tick=1) == [(10,), (20,)]
        assert pipe.rows("orders") == [(1, 10), (2, 21), (5, 10)]
        changes = pipe.runtime.readable("customers", 2).changes(1, 2, 2).to_pylist()
        assert sorted((r["customer"], r["_tick"], r["_weight"]) for r in changes) == [(20, 2, -1), (21, 2, 1)]
        assert pipe.runtime.row_counts().rows()["table orders"] >= 3
        assert pipe.runtime.sizes()["view customers"].bytes > 0


def test_a_lost_worker_ends_a_pipeline_in_memory_and_says_so(monkeypatch):
    with shop(monkeypatch) as pipe:
        pipe.apply("insert", orders(0))
        os.kill(pipe.transport.status()["workers"][1]["pid"], signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(WorkerLostError, match=r"worker 1 .* in memory only. Give it a location"):
                pipe.apply("insert", orders(100))
        with pytest.raises(WorkerLostError, match="Give it a location"):
            pipe.rows()


@pytest.mark.parametrize("hit", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_worker_is_replaced_where_there_is_a_location(monkeypatch, tmp_path, hit):
    monkeypatch.setattr(worker_pool, "SILENT_SECONDS", 1.0)
    with shop(monkeypatch, location=tmp_path / "state") as pipe:
        pipe.apply("insert", orders(0))
        stopped = []
        for number in range(1, 4):
            pids = [w["pid"] for w in pipe.transport.status()["workers"]]
            stopped.append(pids[number % 2])
            os.kill(stopped[-1], hit)
            pipe.apply("insert", orders(100 * number))
            kept = [w["pid"] for w in pipe.transport.status()["workers"]]
            assert kept[number % 2] != stopped[-1]
            assert kept[1 - number % 2] == pids[1 - number % 2], "the other one stays"
            assert pipe.rows() == model(*range(0, 100 * number + 1, 100))
            assert len(pipe.rows("orders")) == 40 * (number + 1)
        assert pipe.transport.status()["restarts"] == 3
        for pid in stopped if hit == signal.SIGSTOP else ():
            os.kill(pid, signal.SIGCONT)  # it finds that its streams have ended
        pipe.apply("delete", orders(0))
        assert len(pipe.rows("orders")) == 120


def test_a_run_that_fails_after_files_were_written_leaves_nothing(monkeypatch, tmp_path):
    with shop(monkeypatch, location=tmp_path / "state") as pipe:
        pipe.apply("insert", orders(0))
        pipe.apply("insert", orders(100), commit=False)
        with pytest.raises(TransactionError):
            pipe.apply("insert", [*orders(100), (1, 5)])
        pipe.apply("insert", orders(200))
        assert len(pipe.rows("orders")) == 80
        assert pipe.rows() == model(0, 200)


def test_strangers_are_refused_and_disturb_nothing(monkeypatch):
    with shop(monkeypatch) as pipe:
        pipe.apply("insert", [(1, 10)])
        pool = pipe.transport.pool
        hub = f"grpc://127.0.0.1:{pool._hub.port}"
        addresses = [*(worker.endpoint for worker in pool.workers), hub]
        for address in addresses:
            client = fl.connect(address)
            for options in (None, call_options("guessed"), call_options("")):
                with pytest.raises(fl.FlightUnauthenticatedError):
                    list(client.do_action(fl.Action("join", b"{}"), options))
                with pytest.raises(fl.FlightUnauthenticatedError):
                    client.do_exchange(fl.FlightDescriptor.for_path("driver", pool.attempt), options)[1].read_chunk()
            right = call_options(pool._secret)
            with pytest.raises((pa.ArrowException, OSError)):  # of another attempt
                client.do_exchange(fl.FlightDescriptor.for_path("driver", "older"), right)[1].read_chunk()
            client.close()
            host, port = address.removeprefix("grpc://").split(":")
            for garbage in (
                b"\0" * 100_000,
                b"GET / HTTP/1.1\r\n\r\n",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 5000,
            ):
                with socket.create_connection((host, int(port)), 5) as stranger:
                    stranger.sendall(garbage)
        pipe.apply("insert", [(2, 20)])
        assert pipe.rows() == [(10,), (20,)]
    for address in addresses:
        host, port = address.removeprefix("grpc://").split(":")
        deadline = time.monotonic() + 5
        while True:  # nothing listens when no pipeline runs
            with socket.socket() as probe:
                if probe.connect_ex((host, int(port))):
                    break
            assert time.monotonic() < deadline, address


def test_slots_are_counted_before_anything_is_submitted(monkeypatch):
    monkeypatch.setattr(worker_slots, "spark_context", lambda _: ProcessContext())
    monkeypatch.setattr(worker_slots, "cluster_slots", lambda _: 4)
    slots = worker_slots.WorkerSlots()
    first = slots.hold(None, 2)
    with pytest.raises(ConfigError, match=r"needs 2 slots.*the cluster has 4, other pipelines hold 2.*local\[5\]"):
        slots.hold(None, 2)
    slots.hold(None, 1)
    for _ in range(2):
        first.release()
    slots.hold(None, 2)


def test_a_pipeline_that_nobody_has_any_more_gives_its_workers_up(monkeypatch):
    with shop(monkeypatch) as pipe:
        pipe.apply("insert", [(1, 10)])
        pids = [w["pid"] for w in pipe.transport.status()["workers"]]
        pool, pipe.transport, pipe.runtime = pipe.transport.pool, None, SimpleNamespace(close=lambda: None)
        gc.collect()
        deadline = time.monotonic() + 10
        while pool.workers or any(os.path.exists(f"/proc/{pid}") for pid in pids):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_workers_that_do_not_register_are_an_error_that_says_what_to_look_at(monkeypatch):
    monkeypatch.setattr(worker_pool, "START_SECONDS", 0.1)
    monkeypatch.setattr(worker_pool, "STOP_SECONDS", 0.1)
    monkeypatch.setattr(worker_pool, "serve_worker", time.sleep)
    with (
        pytest.raises(DbsparkError, match=r"worker 0, 1 (of 2 has not registered|could not be started)"),
        shop(monkeypatch),
    ):
        pass
