"""The change feed: the deltas of a view or table in the columns that change feeds have in Spark.

After the view's own columns come `_change_type` (`insert` or `delete`), `_commit_version` (the tick),
`_commit_timestamp` (the time of its commit; NULL where it is not stored any more) and `_weight` (1 or -1). A change of
weight 2 is two rows, as in the view, so readers that know only `_change_type` count right as well.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.errors import SchemaError

CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"
WEIGHT = "_weight"
TICK = "_tick"

FEED_FIELDS = pa.schema(
    [
        pa.field(CHANGE_TYPE, pa.string(), False),
        pa.field(COMMIT_VERSION, pa.int64(), False),
        pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", "UTC"), True),
        pa.field(WEIGHT, pa.int64(), False),
    ]
)
"""The columns that the feed adds to those of a view."""


def feed_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of the change feed of a view with these columns."""
    clashes = sorted(set(schema.names) & set(FEED_FIELDS.names))
    if clashes:
        raise SchemaError(f"the change feed adds the column(s) {', '.join(clashes)}, which are there; rename yours")
    return pa.schema([*schema, *FEED_FIELDS])


def to_feed(changes: pa.Table, times: Mapping[int, float]) -> pa.Table:
    """The feed of changes with `_tick` and `_weight`; `times`: by tick, the time of its commit in seconds."""
    weights = np.asarray(changes.column(WEIGHT).combine_chunks().to_numpy(zero_copy_only=False), np.int64)
    rows = changes.drop_columns([TICK, WEIGHT])
    ticks = np.asarray(changes.column(TICK).combine_chunks().to_numpy(zero_copy_only=False), np.int64)
    if (np.abs(weights) != 1).any():
        repeated = np.repeat(np.arange(len(weights)), np.abs(weights))
        rows, ticks, weights = rows.take(pa.array(repeated)), ticks[repeated], weights[repeated]
    signs = np.sign(weights)
    distinct, at = np.unique(ticks, return_inverse=True)
    stamps = pa.array(
        [None if (t := times.get(int(tick))) is None else int(t * 1e6) for tick in distinct], pa.timestamp("us", "UTC")
    )
    kinds = pc.if_else(pa.array(signs > 0), "insert", "delete")
    added = [kinds, pa.array(ticks), stamps.take(pa.array(at)), pa.array(signs)]
    return pa.Table.from_arrays([*rows.columns, *added], schema=feed_schema(rows.schema))


def to_inserts(rows: pa.Table, tick: int, times: Mapping[int, float]) -> pa.Table:
    """The feed that inserts all rows of a view at a tick."""
    numbers = [np.full(len(rows), tick, np.int64), np.ones(len(rows), np.int64)]
    for name, column in zip((TICK, WEIGHT), numbers, strict=True):
        rows = rows.append_column(name, pa.array(column))
    return to_feed(rows, times)


__all__ = [
    "CHANGE_TYPE",
    "COMMIT_TIMESTAMP",
    "COMMIT_VERSION",
    "FEED_FIELDS",
    "TICK",
    "WEIGHT",
    "feed_schema",
    "to_feed",
    "to_inserts",
]  # fmt: skip
