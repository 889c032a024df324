"""A tiny tour through the kernels of tables, by the ordinary API and without Spark."""

from __future__ import annotations

import pyarrow as pa

from dbspark.batch.chunk import CHUNK_ROWS
from dbspark.pipeline.pipeline import Pipeline

_ROWS = 3000
"""Enough for a batch that gets an index."""


def warm() -> None:
    """Use every kernel once, so that all are compiled and cached."""
    with Pipeline("warm", config={"history": 2}) as pipe:
        for name, key in (("plain", ()), ("keyed", ("k",))):
            pipe.create_table(name, "k BIGINT, v STRING", primary_key=key)
        for begin in (0, 2 * _ROWS, 3 * _ROWS):
            with pipe.transaction() as tx:
                for name in pipe.tables:
                    tx.insert(name, [(begin + i, "v") for i in range(_ROWS + (begin == 0))])
        for _ in range(20):
            with pipe.transaction() as tx:
                for name in pipe.tables:
                    tx.delete(name, [(1, "v")])
            with pipe.transaction() as tx:
                tx.insert("plain", [(1, "v")])
                tx.upsert("keyed", [(1, "v")])
        assert pipe.table("keyed").to_arrow().num_rows == 3 * _ROWS + 1
        for begin, rows in ((10 * _ROWS, 3), (20 * _ROWS, CHUNK_ROWS + 1)):
            keys = pa.array(range(begin, begin + rows), pa.int64())
            with pipe.transaction() as tx:
                tx.apply("keyed", pa.table({"k": keys, "v": pa.array(["v"] * rows)}))
