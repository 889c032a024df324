"""A tiny tour through every kernel, by the ordinary API."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dbspark.batch import Arrangement, Batch, merge
from dbspark.zset.config import BACKENDS, ZSetConfig
from dbspark.zset.zset import ZSet, columns


def warm() -> None:
    """Use every kernel once, so that all are compiled and cached."""
    schema = "k BIGINT, f DOUBLE, s STRING, b BOOLEAN, m MAP<STRING, INT>, t STRUCT<x: ARRAY<INT>>"
    rows: list[tuple[Any, ...]] = [
        (i, i / 2, str(i), i % 2 == 0, {"b": i, "a": None}, {"x": [i, None]}) for i in range(64)
    ]
    rows.append((None,) * 6)
    flat = pa.table({"k": pa.array(range(2000)), "v": pa.array(range(2000))})
    for backend in BACKENDS:
        config = ZSetConfig(backend=backend, smallset_n=8)
        nested = ZSet.from_rows(rows, schema, config=config)
        nested = nested.add(rows[0], 2) - nested.filter(lambda row: row[0] == 1)
        assert nested.weight(rows[0]) == 3
        z = ZSet.from_arrow(flat, config=config)
        for i in range(20):
            z = z + ZSet.from_rows([(i, i)], z.schema, [-1], config=config)
        assert z.count == 1980
        with z.arranged_view() as view:
            assert len(view) == 1980
        assert (z.weight((100, 100)), z.weight((100, None))) == (1, 0)
        assert (z + ZSet.from_arrow(flat.slice(0, 3), config=config)).count == 1983
        assert z.filter(columns(lambda b: pc.less(b["k"], 30))).count == 10
        assert sum(len(weights) for _, weights in z.scan()) == 1980
        indexed = z.group_by("k")
        assert indexed.join(indexed).count == 1980
        assert indexed.group(100).count == 1
    by_key = Arrangement(z.schema, (0,))
    parts = [Batch.from_arrow(flat.slice(i * 500, 500), by_key) for i in range(4)]
    assert merge(parts).rows == 2000
