"""Sizes of traces in memory.

Rows are counted before consolidation; every spine knows its count, so the cost does not depend on the number of rows.
Bytes are summed over all chunks: for `explain` and `metrics`, not for every tick.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dbspark.sql.explain import Size
from dbspark.trace.merge_state import MergeState
from dbspark.trace.spine import Spine


def rows_of(spines: Iterable[Spine]) -> int:
    """Rows of some spines, before consolidation."""
    return sum(spine.rows for spine in spines)


def size_of(spines: Iterable[Spine]) -> Size:
    """Rows and bytes of some spines."""
    spines = tuple(spines)
    total = 0
    for spine in spines:
        for entry in spine.entries:
            if isinstance(entry, MergeState):
                total += sum(chunk.nbytes() for chunk in entry.out) + sum(batch.nbytes() for batch in entry.inputs)
            else:
                total += entry.nbytes()
    return Size(rows_of(spines), total)


def sizes_of(states: Mapping[str, Iterable[Spine]]) -> dict[str, Size]:
    """Rows and bytes of each trace, by name."""
    return {name: size_of(spines) for name, spines in states.items()}


__all__ = ["rows_of", "size_of", "sizes_of"]
