"""W3: the queries of Nexmark under batches of events, as cases.

Every system is fed the columns that a query reads and no others (`READ`), from the tables that it reads; events of
other tables are not counted. The expected views are Spark's answers over all events at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from pyarrow import parquet

from benchmarks.peers.case import Case, Source, cuts_of, with_tick, write_arrow
from benchmarks.workloads import nexmark

_OFFER: Final = "id item_name description initial_bid reserve date_time expires seller category extra"
_BID: Final = "auction bidder price channel url date_time extra"
READ: Final[dict[str, dict[str, str]]] = {
    "q0": {"bid": "auction bidder price date_time extra"},
    "q1": {"bid": "auction bidder price date_time extra"},
    "q2": {"bid": "auction price"},
    "q3": {"auction": "id seller category", "person": "id name city state"},
    "q4": {"auction": "id category date_time expires", "bid": "auction price date_time"},
    "q5": {"bid": "auction date_time"},
    "q7": {"bid": "auction price bidder date_time extra"},
    "q8": {"person": "id name date_time", "auction": "seller date_time"},
    "q9": {"auction": _OFFER, "bid": "seq auction bidder price date_time extra"},
    "q12": {"bid": "bidder date_time"},
    "q13": {"bid": "auction bidder price date_time", "side_input": "key value"},
    "q14": {"bid": "auction bidder price date_time extra"},
    "q15": {"bid": "auction bidder price date_time"},
    "q16": {"bid": "auction bidder price channel date_time"},
    "q17": {"bid": "auction price date_time"},
    "q18": {"bid": f"seq {_BID}"},
    "q19": {"bid": f"seq {_BID}"},
    "q20": {"bid": _BID, "auction": _OFFER},
    "q22": {"bid": "auction bidder price channel url"},
}
QUERIES: Final = tuple(READ)
MEASURED: Final = ("q3", "q4", "q5", "q7", "q8", "q9", "q18", "q20")
"""Those of which the issue asks a geometric mean."""


def _ddl(table: str, columns: str) -> str:
    declared = {part.split()[0]: part for part in nexmark.TABLES[table].split(", ")}
    return ", ".join(declared[name] for name in columns.split())


def cases(folder: Path, events: int, batches: Iterable[int], queries: Sequence[str], spark: Any) -> list[Case]:
    """The cases of so many events, written to a folder, each query's batches one after the other."""
    whole = nexmark.tables(events)
    for name, rows in whole.items():
        write_arrow(folder / f"{name}.arrow", rows)
        parquet.write_table(rows, folder / f"{name}.parquet")
    seqs = {name: rows["seq"].to_numpy() for name, rows in whole.items() if name != "side_input"}
    out = []
    expected = answers(folder, queries, spark)
    for query in queries:
        for batch in batches:
            bounds = np.append(np.arange(0, events, batch), events)
            tables = {}
            for name, columns in READ[query].items():
                rows = len(whole[name])
                cuts = [0, *cuts_of(seqs[name], bounds)] if name in seqs else [0, rows, *(rows for _ in bounds[1:])]
                tables[name] = Source(f"../{name}.arrow", _ddl(name, columns), cuts)
            case = Case(
                "w3", query, nexmark.QUERIES[query], tables, {"events": events, "batch": batch},
                checked=[len(bounds) - 1], static=["side_input"], folder=folder / f"{query}-{batch}",
            )  # fmt: skip
            case.save()
            write_arrow(case.folder / "expected.arrow", with_tick(expected[query], case.ticks))
            out.append(case)
    return out


def answers(folder: Path, queries: Iterable[str], spark: Any) -> dict[str, Any]:
    """What Spark says to each query, over all events in the folder's files."""
    for name in nexmark.TABLES:
        spark.read.parquet(str(folder / f"{name}.parquet")).createOrReplaceTempView(name)
    try:
        return {query: spark.sql(nexmark.QUERIES[query]).toArrow() for query in queries}
    finally:
        for name in nexmark.TABLES:
            spark.catalog.dropTempView(name)
