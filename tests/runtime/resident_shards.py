"""Shards in one process as workers that stay run them: a thread for each, and queues in the place of Flight."""

import json
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from dbspark.columnar import Batch
from dbspark.runtime import worker_exchange
from dbspark.runtime.stage import DRIVER_DELTA
from dbspark.runtime.task import raise_first
from dbspark.runtime.wire import WireMessage
from dbspark.runtime.worker import Worker, WorkerLaunch, WorkerRun, _WorkerPlan
from dbspark.storage.segment import batch_bytes
from tests.runtime.shards import Shards, answered


class Wire:
    """A stream to another worker of this process; what is written is encoded, as on a network."""

    def __init__(self, sender, receiver):
        self.sender, self.receiver = sender, receiver

    def send(self, header, rows):
        encoded = [(s, pa.py_buffer(batch_bytes(p) if isinstance(p, Batch) else p)) for s, p in rows]
        size = sum(payload.size for _, payload in encoded)
        message = WireMessage(json.loads(json.dumps(header)), encoded, size)
        self.receiver.exchange.deliver(self.sender.launch.shard, 0, message)
        return size


def write_message(wire, header, rows=()):
    return wire.send(header, rows)


class LocalWorker(Worker):
    """A worker whose questions are answered at once, by functions in the place of Spark."""

    levels = ()

    def answer(self, header, rows=()):
        shard = self.launch.shard
        asked = [(shard, slot, batch_bytes(p) if isinstance(p, Batch) else bytes(p)) for slot, p in rows]
        calls = self.levels[header["level"]].external_calls
        answers = [(slot, pa.py_buffer(p)) for call in calls for _, slot, p in answered(call, asked)]
        self._requests.put(WireMessage({"kind": "external results"}, answers, 0))


class ResidentShards(Shards):
    """A circuit on workers that stay; the interface of `Shards`."""

    def __init__(self, graph, shards, location, places=None, policies=None):
        worker_exchange.write_message = write_message
        launches = [WorkerLaunch(s, shards, "a", 0, "", b"", ("", 0), None) for s in range(shards)]
        self.workers = [LocalWorker(launch) for launch in launches]
        for worker in self.workers:
            for other in self.workers:
                if other is not worker:
                    worker.exchange._writers[other.launch.shard] = Wire(worker, other)
        self.version = 0
        super().__init__(graph, shards, location, places, policies)

    def _job(self, context, begin, rows):
        run = self.version + 1
        header = {
            "run": run, "version": run, "plan": "plan", "base": self.version, "oldest": self.version, "forget": [],
            "records": None, "visible": None, "others": {}, "staged": [], "tables": None,
            "context": {
                "tick": context.tick, "initial": context.initial, "history_holds": {}, "unchanged_traces": [],
                "subscribed_views": [],
            },
        }  # fmt: skip

        def one(worker):
            mine = [(slot, pa.py_buffer(payload)) for shard, slot, payload in rows if shard == worker.launch.shard]
            worker.levels = self.levels
            worker._plans.setdefault("plan", _WorkerPlan(self.levels))
            return WorkerRun(worker, WireMessage(header, mine, 0)).run()

        with ThreadPoolExecutor(self.shards) as threads:
            replies = list(threads.map(one, self.workers))
        raise_first(head["error"].encode() for head, _ in replies if head["kind"] == "failed")
        assert all(head["kind"] == "done" for head, _ in replies), replies
        self.version = run
        return [(0, DRIVER_DELTA + name, batch_bytes(batch)) for _, out in replies for name, batch in out]

    def rows_kept(self):
        return {
            (name, worker.launch.shard): rows
            for worker in self.workers
            for name, (rows, _) in worker.state.sizes(consolidated=True).items()
        }


TRANSPORTS = {"shuffle": Shards, "resident": ResidentShards}
