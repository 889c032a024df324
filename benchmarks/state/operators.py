"""`python -m benchmarks.state.operators <operator> <rows>`: what a process grows by when one operator has so many rows.

The process has run the same view over few rows before, so that kernels, Spark's classes and the like are there. Memory
is what the system counts as resident, after everything that is free was given back, and never that of the JVM. The
Arrow size is that of all rows of state as columns, with a weight each; state that two keepers share is one.
"""

from __future__ import annotations

import ctypes
import gc
import json
import re
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

import dbspark
from benchmarks.sql.suites import session

TABLES: Final = {"a": "k BIGINT, v BIGINT, s STRING", "b": "k BIGINT, x BIGINT", "e": "src BIGINT, dst BIGINT"}
VIEWS: Final = {
    "join": "SELECT a.k, a.v, b.x FROM a JOIN b ON a.k = b.k",
    "aggregate": "SELECT k, count(*) AS n, sum(v) AS total FROM a GROUP BY k",
    "minimum": "SELECT k, min(v) AS least, max(v) AS most FROM a GROUP BY k",
    "distinct": "SELECT DISTINCT k, s FROM a",
    "top-k": "SELECT k, v, s FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY v DESC, s) AS n FROM a) "
    "WHERE n <= 3",
    "window": "SELECT k, v, s, sum(v) OVER (PARTITION BY k ORDER BY v, s) AS running FROM a",
    "outer join": "SELECT a.k, a.v, b.x FROM a LEFT JOIN b ON a.k = b.k AND b.x > 0",
    "recursion": "SELECT src, dst FROM e UNION SELECT r.src, e.dst FROM view r JOIN e ON r.dst = e.src",
}


def data(rows: int) -> dict[str, pa.Table]:
    """Ten rows a key, a row of b for each, and chains of four edges."""
    rng = np.random.default_rng(1)
    keys = np.arange(rows) // 10
    words = pa.array([f"word {i:04}" for i in range(1000)]).take(pa.array(rng.integers(0, 1000, rows)))
    nodes = np.arange(rows)
    nodes = nodes[nodes % 5 < 4]
    return {
        "a": pa.table({"k": keys, "v": rng.integers(0, 1 << 40, rows), "s": words}),
        "b": pa.table({"k": np.arange(rows // 10), "x": rng.integers(-100, 100, rows // 10)}),
        "e": pa.table({"src": nodes, "dst": nodes + 1}),
    }


def opened(spark: Any, operator: str) -> dbspark.Pipeline:
    """The tables that an operator's view reads, and the view."""
    pipe = dbspark.Pipeline("memory", spark=spark, config={"history": 0})
    words = set(re.findall(r"\w+", VIEWS[operator]))
    for name, ddl in TABLES.items():
        if name in words:
            pipe.create_table(name, ddl)
    pipe.create_view("view", VIEWS[operator], recursive=TABLES["e"] if operator == "recursion" else None)
    return pipe


def loaded(pipe: dbspark.Pipeline, rows: int) -> None:
    given = data(rows)
    with pipe.transaction() as tx:
        for name in pipe.tables:
            tx.insert(name, given[name])


def arrow_size(pipe: dbspark.Pipeline) -> tuple[int, int]:
    """Rows of state, and their bytes as Arrow columns with weights."""
    spines = {id(s): s for kept in pipe._shows.states().values() for s in kept}
    rows = size = 0
    for spine in spines.values():
        for batch in spine.batches:
            rows += batch.rows
            size += 8 * batch.rows + batch.to_arrow().combine_chunks().nbytes
    return rows, size


def resident() -> int:
    """Bytes of this process, after what is free was given back."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def main(operator: str, rows: int) -> None:
    with session() as spark:
        with opened(spark, operator) as pipe:
            loaded(pipe, 1000)
        with opened(spark, operator) as pipe:
            before = resident()
            loaded(pipe, rows)
            grown = resident() - before
            kept, size = arrow_size(pipe)
            print(json.dumps({"rows": kept, "arrow": size, "grown": grown, "held": pipe.metrics()["state_bytes"]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
