"""The workloads: tables, queries and data of TPC-H, Nexmark and TPC-DS, for tests and benchmarks alike.

They are plain data. No module here starts or imports Spark; tables are Arrow, queries are text in Spark's SQL.
"""

from __future__ import annotations

import re
from pathlib import Path


def read_queries(folder: Path) -> dict[str, str]:
    """The .sql files of a folder by name, q2 before q10."""
    paths = sorted(folder.glob("q*.sql"), key=lambda path: query_order(path.stem))
    return {path.stem: path.read_text(encoding="utf-8").strip() for path in paths}


def query_order(name: str) -> tuple[int, str]:
    match = re.fullmatch(r"q(\d+)(\w*)", name)
    if match is None:
        raise ValueError(f"{name!r} is not the name of a query")
    return int(match[1]), match[2]
