"""How much is kept.

Rows are what spines hold before they are consolidated, which every spine knows; so they cost nothing to ask for,
however large the state is. Bytes are found by looking at every chunk, which is for people who ask, not for every tick.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dbspark.sql.explain import Size
from dbspark.trace.merge_state import MergeState
from dbspark.trace.spine import Spine


def rows_of(spines: Iterable[Spine]) -> int:
    """Rows that spines hold."""
    return sum(spine.rows for spine in spines)


def size_of(spines: Iterable[Spine]) -> Size:
    """Rows and bytes that spines hold."""
    given = tuple(spines)
    total = 0
    for spine in given:
        for entry in spine.entries:
            if isinstance(entry, MergeState):
                total += sum(chunk.nbytes() for chunk in entry.out) + sum(batch.nbytes() for batch in entry.inputs)
            else:
                total += entry.nbytes()
    return Size(rows_of(given), total)


def sizes_of(states: Mapping[str, Iterable[Spine]]) -> dict[str, Size]:
    """By the names under which state is kept."""
    return {name: size_of(spines) for name, spines in states.items()}


__all__ = ["rows_of", "size_of", "sizes_of"]
