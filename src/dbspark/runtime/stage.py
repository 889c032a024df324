"""A stage: one level on one shard as a task of a Spark job.

A stage is a pure function of the level, the records of its traces, and the rows (slot, payload) that it receives: it
opens its traces from the location, runs the level, writes new batches to files and sends rows to the next stage.

1. A stage may be run several times. Each run writes files under new names and reports these names; the driver receives
   the report of one run, and only the manifest makes its files part of the state.
2. Reports, errors and batches for the driver are forwarded from stage to stage until the last one, where Spark collects
   them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from dbspark.errors import DbsparkError
from dbspark.runtime.level_plan import Level
from dbspark.runtime.stored_state import StoredState
from dbspark.runtime.task import LevelTask, TickContext, failure
from dbspark.storage.segment import batch_bytes

Row = tuple[int, str, bytes]
"""(target shard, slot, payload)"""
REPORT, ERROR, DRIVER_DELTA = "report", "error", "delta of "
"""Slots that are forwarded to the driver; `DRIVER_DELTA` is a prefix, followed by the name of a trace."""

MAX_INLINE_BYTES = 1 << 20
"""Bytes that a stage of a fixpoint forwards as rows; more are spilled to a file of the location."""
SUSPENDED, SPILLED = "suspended", "spilled"
"""Slots whose payloads are extents in files: what a waiting level has received, for the driver; what a stage reads."""


@runtime_checkable
class SlotReader(Protocol):
    """A step that reads received slots itself, in a level that forwards all slots that no step reads."""

    def reads_slot(self, slot: str) -> bool:
        """Whether the step reads a slot."""
        ...


class StageTask(LevelTask):
    """One run of a stage."""

    __slots__ = ("rows", "stored")

    def __init__(
        self,
        context: TickContext,
        number: int,
        level: Level,
        shard: int,
        records: Mapping[str, Sequence[Any]],
        received: dict[str, list[Any]] | None = None,
    ) -> None:
        """`records`: the records of the traces of this level and shard, as JSON."""
        self.stored = StoredState(context, records)
        super().__init__(context, number, level, shard, self.stored, {} if received is None else received)
        self.rows: list[Row] = []
        """Rows that steps send beside the outgoing slots of the level."""

    def run(self) -> Iterator[Row]:
        """Run the stage; yields the rows for the next one."""
        begun = time.perf_counter()
        for slot in [s for s in self.received if s in (REPORT, ERROR, SUSPENDED) or s.startswith(DRIVER_DELTA)]:
            for payload in self.received.pop(slot):
                yield self.shard, slot, payload
            if slot in (ERROR, SUSPENDED):
                return
        if any(slot in self.received for slot in self.level.awaited_slots):
            yield self.shard, SUSPENDED, self._spill_received(self._take_spilled_refs())
            return
        spilled_rest = self._read_spilled_slots()
        try:
            self.run_steps()
            out = [*self.outgoing_rows(), *self.rows]
            out += [(self.shard, DRIVER_DELTA + n, batch_bytes(b)) for n, b in self.driver_batches]
            if self.level.forwards_rest:
                out += self._forward_rest(spilled_rest)
            traces = self.stored.write()
        except DbsparkError as error:
            yield self.shard, ERROR, failure(error, self.number, self.shard)
            return
        yield from out
        if traces or self.report_fields:
            self.report_fields |= {"seconds": time.perf_counter() - begun}
            report = {"level": self.number, "shard": self.shard, "traces": traces, **self.report_fields}
            yield self.shard, REPORT, json.dumps(report).encode()

    def outgoing_rows(self, task: LevelTask | None = None) -> Iterator[Row]:
        """What the outgoing slots of this task, or of a nested one, send. A broadcast batch is encoded once."""
        last: tuple[Any, bytes] = None, b""
        for shard, slot, batch in (task or self).outgoing():
            if batch is not last[0]:
                last = batch, batch_bytes(batch)
            yield shard, slot, last[1]

    # ------------------------------------------------------------------ spilling

    def _take_spilled_refs(self) -> list[tuple[str, list[Any]]]:
        """Slots and extents of spilled payloads that were received."""
        return [row for payload in self.received.pop(SPILLED, ()) for row in json.loads(payload)["rows"]]

    def _read_spilled_slots(self) -> list[tuple[str, list[Any]]]:
        """Read spilled payloads of this level; returns the slots and extents of those that are only forwarded."""
        loops = [step for step in self.level.steps if isinstance(step, SlotReader)]
        spilled_rest = []
        for slot, place in self._take_spilled_refs():
            if self.level.forwards_rest and not any(step.reads_slot(slot) for step in loops):
                spilled_rest.append((slot, place))
            else:
                self.received.setdefault(slot, []).append(self.stored.read_spilled(place).to_pybytes())
        return spilled_rest

    def _spill_received(self, rows: list[tuple[str, list[Any]]]) -> bytes:
        """Spill all received payloads; returns all extents as JSON. `rows` have been spilled already."""
        payloads = [(slot, payload) for slot, received in self.received.items() for payload in received]
        places = self.stored.spill([payload for _, payload in payloads]) if payloads else []
        rows = rows + [(slot, place) for (slot, _), place in zip(payloads, places, strict=True)]
        return json.dumps({"resumes": self.level.resume_point, "rows": rows}).encode()

    def _forward_rest(self, rows: list[tuple[str, list[Any]]]) -> Iterator[Row]:
        """The received slots that no step has read, for the next level; `rows` have been spilled already."""
        if should_spill(payload for payloads in self.received.values() for payload in payloads):
            yield self.shard, SPILLED, self._spill_received(rows)
            return
        yield from ((self.shard, slot, payload) for slot, received in self.received.items() for payload in received)
        if rows:
            yield self.shard, SPILLED, json.dumps({"rows": rows}).encode()


def should_spill(payloads: Iterable[bytes]) -> bool:
    """Whether payloads are spilled to a file rather than forwarded from stage to stage as rows."""
    return sum(map(len, payloads)) > MAX_INLINE_BYTES


__all__ = ["DRIVER_DELTA", "ERROR", "REPORT", "SPILLED", "SUSPENDED", "Row", "StageTask", "should_spill"]
