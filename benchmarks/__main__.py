"""`python -m benchmarks`: run every suite of every package."""

from __future__ import annotations

import sys

from benchmarks.circuit.__main__ import main as circuit
from benchmarks.spark.__main__ import main as spark
from benchmarks.sql.__main__ import main as sql
from benchmarks.trace.__main__ import main as trace
from benchmarks.zset.__main__ import main as zset

if __name__ == "__main__":
    sys.exit(max(suite(sys.argv[1:]) for suite in (zset, trace, circuit, sql, spark)))
