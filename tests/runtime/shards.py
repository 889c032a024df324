"""Shards in one process: the levels of a circuit run by the tasks that Spark would run, shuffled by hand."""

import json
from collections import Counter
from functools import partial

import pyarrow as pa

from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.delta import Delta
from dbspark.columnar.rows import encode_rows
from dbspark.operators.linear import FlatMap
from dbspark.runtime.placement import split
from dbspark.runtime.planner import plan_levels
from dbspark.runtime.stage import DRIVER_DELTA, ERROR, REPORT, StageTask
from dbspark.runtime.task import TickContext, raise_first
from dbspark.runtime.unrolled import run_until_complete, unroll
from dbspark.storage.files import files_at
from dbspark.storage.manifest import record_from_json
from dbspark.storage.reading import ManifestReader
from dbspark.storage.segment import decode_batch, encode_batch


class DriverOutputStep:
    """A step that sends an output to the driver, and has its integral as state."""

    def __init__(self, name, slot, sort_key):
        self.id = f"output {name}"
        self.slot = slot
        self.sort_key = sort_key

    def run(self, task):
        delta = task.delta(self.slot, self.sort_key.schema)
        if delta.rows:
            batch = delta.sorted_by(self.sort_key)
            task.send_to_driver(self.id, batch)
            task.set_state(self.id, (task.state(self.id, [self.sort_key])[0].insert(batch),))


def run_job(context, levels, records, rows, travelled=None):
    """What Spark does, in this process; every task is run twice, as a retried one is.

    `travelled` takes, by slot, the rows that go from one shard to another, or might.
    """
    for number, level in enumerate(levels):
        received = [{} for _ in range(context.shards)]
        for shard, slot, payload in rows:
            received[shard].setdefault(slot, []).append(payload)
        rows = []
        for shard, given in enumerate(received):
            mine = {n: json.loads(json.dumps(r[shard])) for n, r in records.items() if shard in r}
            for _ in range(2):
                out = list(StageTask(context, number, level, shard, mine, dict(given)).run())
            rows += out
        rows += [row for call in level.external_calls for row in answered(call, rows)]
        for emit in level.outgoing if travelled is not None else ():
            sent = [decode_batch(pa.py_buffer(p), level.streams[emit.slot]).rows for _, s, p in rows if s == emit.slot]
            if emit.to != "same":
                travelled[emit.slot] = travelled.get(emit.slot, 0) + sum(sent)
    return rows


def answered(call, rows):
    """What comes of the rows that leave a level for a question, which is a function here."""
    for shard, slot, payload in rows:
        if slot == call.slot:
            given = Delta.of(decode_batch(pa.py_buffer(payload), SortKey(call.source)))
            answer = FlatMap(call.schema, call.function).apply([given])
            yield shard, call.result_slot, b"".join(encode_batch(answer.sorted_by(SortKey(call.schema))))


class Shards:
    """A circuit on some shards."""

    def __init__(self, graph, shards, location, places=None, policies=None):
        self.graph = graph.pruned()
        self.shards = shards
        self.location = location
        self.tick_number = 0
        self.records = {}
        self.places = places or {}
        plan = plan_levels(self.graph, {n: frozenset({key}) for n, key in self.places.items()}, policies)
        self.levels = plan.levels
        self.sort_keys = {}
        for name, output in plan.outputs.items():
            sort_key = SortKey(self.graph.outputs[name].schema, output.key)
            self.levels[output.level].steps.append(DriverOutputStep(name, output.slot, sort_key))
            self.levels[output.level].streams.setdefault(output.slot, sort_key)
            self.sort_keys[f"output {name}"] = sort_key
        self.stages = unroll(self.levels)
        self.tick({}, fresh=True)

    def tick(self, changes, fresh=False):
        self.tick_number += 1
        context = TickContext(self.tick_number, self.shards, partial(files_at, self.location), fresh)
        rows = []
        for node in self.graph:
            if node.role == "source" and changes.get(node.name):
                rows += self._routed(node, changes[node.name])
        self.jobs = []
        self.travelled = {}
        out = run_until_complete(partial(self._job, context), rows)
        outputs = {}
        for _, slot, payload in out:
            if slot == REPORT:
                report = json.loads(payload)
                for name, found in report["traces"].items():
                    self.records.setdefault(name, {})[report["shard"]] = found
            else:
                name = slot.removeprefix(DRIVER_DELTA)
                outputs.setdefault(name, []).append(decode_batch(pa.py_buffer(payload), self.sort_keys[name]))
        return {
            name: Counter(dict(Delta.of(merge(outputs[key])).items()))
            if (key := f"output {name}") in outputs
            else Counter()
            for name in self.graph.outputs
        }

    def _job(self, context, begin, rows):
        self.jobs.append(begin)
        levels = self.stages.levels if begin is None else self.stages.resume_levels[begin]
        out = run_job(context, levels, self.records, rows, self.travelled)
        raise_first(p for _, slot, p in out if slot == ERROR)
        return out

    def _routed(self, node, change):
        placed = SortKey(node.schema, self.places.get(node.name))
        table = pa.Table.from_arrays(encode_rows(node.schema, list(change)), schema=node.schema.arrow)
        travels = self.levels[0].streams.setdefault(node.id, placed)
        for shard, batch in split(Batch.from_arrow(table, placed, list(change.values())), self.shards):
            yield shard, node.id, b"".join(encode_batch(batch.sorted_by(travels)))

    def rows_kept(self):
        """Rows of every trace, consolidated over its batches, by name and shard."""
        reading = ManifestReader(files_at(self.location), verify=True)
        sort_keys = dict(self.sort_keys)
        out = {}
        for node in self.graph:
            if node.operator is not None:
                sort_keys[node.id] = node.operator.state_sort_keys()
        for name, by_shard in self.records.items():
            kept = sort_keys[name]
            kept = kept if isinstance(kept, tuple) else (kept,)
            for shard, records in by_shard.items():
                for record, sort_key in zip(records, kept, strict=True):
                    spine = reading.spine(record_from_json(record, None), sort_key)
                    out[name, shard] = out.get((name, shard), 0) + spine.consolidated().rows
        return out
