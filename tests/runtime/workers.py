"""Workers that stay without Spark: their jobs are processes of this machine, and everything else is as on a cluster."""

import multiprocessing
from contextlib import contextmanager

from dbspark.circuit import Builder
from dbspark.columnar.schema import Schema
from dbspark.runtime import resident, worker_pool, worker_slots
from dbspark.runtime.progress import TickTimer
from dbspark.runtime.sharded import Sharded
from dbspark.runtime.tables import TableDefinition
from dbspark.storage.store import Store

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["dbspark.runtime.worker"])


class ProcessContext:
    """What `worker_pool` asks of a SparkContext; a job is a process, and fails if that does."""

    applicationId = "processes"  # noqa: N815 - Spark's name
    master = "local[9]"

    def getConf(self):  # noqa: N802
        return {"spark.driver.host": "127.0.0.1"}

    def setJobGroup(self, *_):  # noqa: N802
        pass

    def setLocalProperty(self, *_):  # noqa: N802
        pass

    def cancelJobGroup(self, group):  # noqa: N802
        pass

    def parallelize(self, _rows, _slices):
        return self

    def map(self, function):
        return _Job(function.args[0])


class _Job:
    def __init__(self, launch):
        self.launch = launch

    def collect(self):
        process = _PROCESSES.Process(target=worker_pool.serve_worker, args=(self.launch,), daemon=True)
        process.start()
        process.join()
        if process.exitcode:
            raise RuntimeError(f"the worker ended with {process.exitcode}")


class _Program:
    """A circuit in the place of compiled SQL."""

    def __init__(self, graph):
        self.builder = self
        self.graph = graph
        self.views = dict.fromkeys(graph.outputs)

    def circuit(self):
        return self


class Shop:
    """Orders by customer on workers, with as many as there are of each."""

    SCHEMA = Schema.of("id BIGINT, customer BIGINT")

    def __init__(self, shards=2, location=None):
        b = Builder()
        orders = b.source("orders", self.SCHEMA)
        b.output("customers", b.distinct(b.project(orders, ["customer"])))
        self.program = _Program(b.graph)
        self.location = location
        self.store = None if location is None else Store.open(str(location))
        files = None if self.store is None else self.store.files.opener()
        slots = worker_slots.WorkerSlots().hold(None, shards)
        self.transport = resident.ResidentTransport(None, shards, files, "shop", slots)
        self.runtime = Sharded(self.program, shards, self.store, 100, self.transport)
        self.tick = 0
        self.runtime.add_table(TableDefinition("orders", self.SCHEMA, ("id",), 0))
        self.runtime.add_views(["customers"], 0)
        self._commit()

    def apply(self, kind, rows, commit=True):
        operations = {"orders": [self.runtime.operation("orders", kind, rows)]}
        outcome = self.runtime.step(operations, self.tick + 1, ["customers"], TickTimer())
        if not commit:
            self.runtime.undo()
            return outcome
        self.tick += 1
        self._commit()
        self.runtime.settle()
        return outcome

    def _commit(self):
        if self.store is not None:
            self.store.commit(self.tick, self.runtime.states(), {})

    def rows(self, name="customers", tick=None):
        table = self.runtime.readable(name, self.tick).at(tick, self.tick).to_arrow()
        return sorted(zip(*(c.to_pylist() for c in table.columns), strict=True))

    def close(self):
        self.runtime.close()
        if self.store is not None:
            self.store.close()


@contextmanager
def shop(monkeypatch, shards=2, location=None):
    """A shop whose workers are processes."""
    for module in (worker_pool, worker_slots):
        monkeypatch.setattr(module, "spark_context", lambda _: ProcessContext())
    monkeypatch.setattr(worker_slots, "cluster_slots", lambda _: 9)
    opened = Shop(shards, location)
    try:
        yield opened
    finally:
        opened.close()
