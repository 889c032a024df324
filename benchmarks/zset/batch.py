"""Merging and building batches, against what Arrow and numpy take for the least that could be done.

Merging two batches writes every row once, so it is held against concatenating and combining the same columns, which
writes every row once too. Building sorts, so it is held against `numpy.argsort` of as many integers and one gather.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.harness import QUICK, Contender, Timings, race
from benchmarks.report import Target, save, show, show_targets
from benchmarks.zset.data import rows_of
from dbspark.columnar import Batch, merge

ROWS: Final = 100_000 if QUICK else 1_000_000
LIMIT: Final = 3.0


def _tables() -> tuple[pa.Table, pa.Table]:
    return rows_of(np.arange(ROWS)), rows_of(np.arange(ROWS, 2 * ROWS))


def merging() -> Timings:
    """Merging two batches against concatenating and combining two tables."""
    left, right = _tables()
    batches = [Batch.from_arrow(left), Batch.from_arrow(right)]
    return race(
        [
            Contender("merge", lambda _: merge(batches), outcome=lambda b: b.rows),
            Contender(
                "concat", lambda _: pa.concat_tables([left, right]).combine_chunks(), outcome=lambda t: t.num_rows
            ),
        ],
        budget=0.5 if QUICK else 8,
    )


def updating() -> Timings:
    """The same with batches of which half the rows cancel."""
    left, _ = _tables()
    mine = Batch.from_arrow(left)
    weights = np.full(ROWS, -1, np.int64)
    ids = np.arange(ROWS // 2, ROWS // 2 + ROWS)
    right = rows_of(ids)
    other = Batch.from_arrow(right, mine.sort_key, weights)
    return race(
        [
            Contender("merge", lambda _: merge([mine, other]), outcome=lambda b: b.rows),
            Contender(
                "concat", lambda _: pa.concat_tables([left, right]).combine_chunks(), outcome=lambda _: ROWS // 2 * 2
            ),
        ],
        budget=0.5 if QUICK else 4,
    )


def building() -> Timings:
    """Building a batch from unsorted rows against argsort and take."""
    table, _ = _tables()
    table = table.combine_chunks()
    numbers = np.random.default_rng(5).integers(-(1 << 62), 1 << 62, ROWS)

    def sort_and_take(_: Any) -> pa.Table:
        return table.take(pa.array(np.argsort(numbers)))

    return race(
        [
            Contender("build", lambda _: Batch.from_arrow(table), outcome=lambda b: b.rows),
            Contender("argsort + take", sort_and_take, outcome=lambda t: t.num_rows),
        ],
        budget=0.5 if QUICK else 8,
    )


def run() -> list[Target]:
    """The suite; returns its targets."""
    lines, targets, results = [], [], {}
    for name, timings, judged in (
        ("merge 2 batches", merging(), True),
        ("merge 2 batches, half cancels", updating(), False),
        ("build a batch", building(), True),
    ):
        (ours, mine), (theirs, other) = timings.items()
        ratio, by_median = mine.best / other.best, mine.median / other.median
        label = f"{name} of {ROWS:,} rows"
        results[label] = {ours: mine.as_json(), theirs: other.as_json(), "ratio": ratio, "ratio_median": by_median}
        lines.append(
            (label, mine.best * 1e3, mine.median * 1e3, f"{mine.spread:.0%}", theirs, other.best * 1e3,
             other.median * 1e3, f"{other.spread:.0%}", ratio, by_median)
        )  # fmt: skip
        if judged:
            targets.append(Target(f"{label} / {theirs}", ratio, LIMIT, "x", f"by medians {by_median:.2f}x"))
    header = ("", "best ms", "median", "spread", "against", "best ms", "median", "spread", "ratio", "by medians")
    show("Batches", header, lines)
    show_targets("Targets: batches", targets)
    save("zset-batch", {"results": results, "targets": targets})
    return targets


__all__ = ["run"]
