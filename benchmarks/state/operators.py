"""`python -m benchmarks.state.operators <operator> <rows>`: what a process grows by when one operator has so many rows.

It is measured twice: after the rows came in one transaction, and after a fifth of them went and as many others came in
`TICKS` transactions, where rows that cancel each other wait for merges and what was freed lies between what is kept.

The process has run the same view over few rows before, so that kernels, Spark's classes and the like are there. Memory
is what the system counts as resident, after everything that is free was given back, and never that of the JVM. The rows
are made in here and dropped, so whoever keeps what it was given is found out. The Arrow size is that of all rows of
state as columns, with a weight each; what two keepers share is one, and rows that cancel each other are none.
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
from dbspark.columnar.memory import purge_free_memory

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


TICKS: Final = 200
"""Each replaces a thousandth of the rows."""


def data(begin: int, end: int) -> dict[str, pa.Table]:
    """Rows begin … end-1, whole tens: ten of a key, a row of b for each, and chains of four edges."""
    ids = np.arange(begin, end)
    mixed, keys = _mixed(ids), np.arange(begin // 10, end // 10)
    words = pa.array([f"word {i:04}" for i in range(1000)])
    nodes = ids[ids % 5 < 4]
    return {
        "a": pa.table({"k": ids // 10, "v": mixed, "s": words.take(pa.array(mixed % 1000))}),
        "b": pa.table({"k": keys, "x": _mixed(keys) % 200 - 100}),
        "e": pa.table({"src": nodes, "dst": nodes + 1}),
    }


def _mixed(ids: Any) -> Any:
    """Numbers of 40 bits that look drawn, always the same for the same ids."""
    spread = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((spread ^ (spread >> np.uint64(29))) >> np.uint64(24)).astype(np.int64)


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
    """So many rows in one transaction."""
    given = data(0, rows)
    with pipe.transaction() as tx:
        for name in pipe.tables:
            tx.insert(name, given[name])


def replaced(pipe: dbspark.Pipeline, rows: int) -> None:
    """Old rows go and new ones come, as many, a few in each transaction."""
    each = max(rows // 10_000, 1) * 10
    for at in range(0, TICKS * each, each):
        old, new = data(at, at + each), data(rows + at, rows + at + each)
        with pipe.transaction() as tx:
            for name in pipe.tables:
                tx.delete(name, old[name])
                tx.insert(name, new[name])


def arrow_size(pipe: dbspark.Pipeline) -> tuple[int, int]:
    """Rows of state, and their bytes as Arrow columns with weights."""
    spines = {id(s): s for kept in pipe._state_reader.states().values() for s in kept}
    rows = size = 0
    for spine in spines.values():
        whole = spine.consolidated()
        rows += whole.rows
        size += 8 * whole.rows + whole.to_arrow().combine_chunks().nbytes
        spine.__dict__.pop("_consolidated", None)  # it was made for us, and must not be in the next measurement
    return rows, size


def resident() -> int:
    """Bytes of this process, after what is free was given back."""
    gc.collect()
    purge_free_memory()
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
            replaced(pipe, 1000)
        with opened(spark, operator) as pipe:
            before = resident()
            found = {}
            for when, change in (("loaded", loaded), ("replaced", replaced)):
                change(pipe, rows)
                grown = resident() - before
                held = pipe.metrics()["state_bytes"]
                kept, size = arrow_size(pipe)
                found[when] = {"rows": kept, "arrow": size, "grown": grown, "held": held}
            print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
