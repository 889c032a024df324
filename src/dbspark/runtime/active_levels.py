"""Which levels of a plan a transaction can touch, from the tables that it names.

Rows can only come from the tables of the transaction, so a slot that no path leads to from one of them is empty on all
shards. All workers derive the same from the plan and the names, without a message: a level without active steps is not
run, and between two levels nothing is sent where no active slot changes shard.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dbspark.runtime.fixpoint import FixpointResultStep
from dbspark.runtime.level_plan import Level, NodeStep
from dbspark.runtime.table_steps import TableStep, ViewStep


@dataclass(frozen=True, slots=True)
class ActiveLevel:
    """What a transaction can touch of one level."""

    runs: bool
    """Whether a step may have something to do."""
    exchanges: bool
    """Whether rows may change shard behind it."""
    fixpoints: frozenset[str]
    """The fixpoints in front of it that may receive rows."""
    calls: bool
    """Whether an external function may have rows to work on."""


def active_levels(levels: Sequence[Level], tables: Collection[str] | None) -> tuple[ActiveLevel, ...]:
    """What a transaction on some tables can touch of each level; None: everything."""
    if tables is None:
        return tuple(
            ActiveLevel(
                True,
                number < len(levels) - 1,
                frozenset(loop.id for loop in level.fixpoints),
                bool(level.external_calls),
            )
            for number, level in enumerate(levels)
        )
    active: set[str] = set()
    out = []
    for level in levels:
        loops = frozenset(
            loop.id for loop in level.fixpoints if any(slot.startswith(loop.slot_prefix) for slot in active)
        )
        runs = False
        for step in level.steps:
            if isinstance(step, TableStep):
                here, made = step.table.name in tables, step.slot
            elif isinstance(step, NodeStep):
                here, made = any(slot in active for slot, _ in step.inputs), step.id
            elif isinstance(step, FixpointResultStep):
                here, made = step.id in loops, step.id
            elif isinstance(step, ViewStep):
                here, made = step.slot in active, step.id
            else:
                here, made = True, step.id
            if here:
                runs = True
                active.add(made)
        sent = [emit for emit in level.outgoing if emit.node in active]
        active.update(emit.slot for emit in sent)
        calls = [call for call in level.external_calls if call.slot in active]
        active.update(call.result_slot for call in calls)
        out.append(ActiveLevel(runs, any(emit.to != "same" for emit in sent), loops, bool(calls)))
    return tuple(out)


__all__ = ["ActiveLevel", "active_levels"]
