"""W1: orders joined with customers, summed by region (`benchmarks.circuit.w1`), as cases.

The view is known after every tick from counting, and every tick of every system is compared with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.circuit import w1
from benchmarks.peers.case import Case, Source, with_tick, write_arrow
from benchmarks.sql.suites import VIEW, tables_of

DECLARED = {"orders": w1.ORDERS, "customers": w1.CUSTOMERS}
KEYS = {"orders": ["order_id"], "customers": ["customer_id"]}


def cases(folder: Path, sizes: Iterable[int], ticks: Mapping[int, int]) -> list[Case]:
    """For each number of orders, and each number of changes a tick: so many ticks."""
    out = []
    for size in sizes:
        for changes, count in ticks.items():
            work = w1.generate(size, changes, count)
            steps = [tables_of(change) for change in (work.base, *work.ticks)]
            case = Case(
                "w1", "revenue", VIEW, {}, {"orders": size, "changes": changes}, checked=list(range(count + 1)),
                folder=folder / f"w1-{size}-{changes}",
            )  # fmt: skip
            for name, ddl in DECLARED.items():
                rows = [step[name] for step in steps]
                write_arrow(case.folder / f"{name}.arrow", pa.concat_tables(rows))
                cuts = [0, *np.cumsum([len(part) for part in rows]).tolist()]
                case.tables[name] = Source(f"{name}.arrow", ddl, cuts, weighted=True, keys=KEYS[name])
            case.save()
            views = [with_tick(_table(view), tick) for tick, view in enumerate(work.views)]
            write_arrow(case.folder / "expected.arrow", pa.concat_tables(views))
            out.append(case)
    return out


def _table(view: Mapping[str, tuple[int, int]]) -> pa.Table:
    regions = pa.array(list(view), pa.string())
    counts, totals = (pa.array([figures[i] for figures in view.values()], pa.int64()) for i in (0, 1))
    return pa.table({"region": regions, "cnt": counts, "total": totals})
