"""Spark as the oracle: after every tick, each view holds what Spark computes from the tables' contents.

Views are compared as multisets. Sums of floats are compared to within the last bits: Spark adds in the order in which
rows come, we add exactly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from dbspark.columnar.frames import arrow_of
from dbspark.columnar.schema import Schema
from dbspark.sql.program import Program

Changes = Mapping[str, Mapping[tuple[Any, ...], int]]


class Oracle:
    """A program over tables, beside the tables themselves and Spark."""

    def __init__(self, spark: SparkSession, tables: Mapping[str, str], views: Mapping[str, str]) -> None:
        self.spark = spark
        self.schemas = {name: Schema.of(ddl) for name, ddl in tables.items()}
        self.program = Program(spark)
        for name, ddl in tables.items():
            self.program.table(name, ddl)
        self.views = dict(views)
        for name, query in views.items():
            self.program.view(name, query)
        self.circuit = self.program.circuit()
        self.contents: dict[str, Counter[Any]] = {name: Counter() for name in tables}
        self.held: dict[str, Counter[Any]] = {name: Counter() for name in views}

    def tick(self, changes: Changes) -> None:
        """Apply changes, then compare every view with Spark."""
        out = self.circuit.tick({name: dict(rows) for name, rows in changes.items()})
        for name, rows in changes.items():
            held = self.contents[name]
            for row, weight in rows.items():
                held[row] += weight
                assert held[row] >= 0, "a test deletes what is not there"
                if not held[row]:
                    del held[row]
        for name, change in out.items():
            for row, weight in change:
                key = frozen(row)
                self.held[name][key] += weight
                if not self.held[name][key]:
                    del self.held[name][key]
        self.check()

    def check(self) -> None:
        expected = self.expected()
        for name in self.views:
            wrong = difference(self.held[name], expected[name])
            assert not wrong, f"view {name} ({self.views[name]}):\n{wrong}\ntables: {dict(self.contents)}"

    def expected(self) -> dict[str, Counter[Any]]:
        """What Spark says."""
        for name, schema in self.schemas.items():
            rows = [row for row, n in self.contents[name].items() for _ in range(n)]
            self.spark.createDataFrame(as_table(schema, rows)).createOrReplaceTempView(name)
        out = {}
        for name, query in self.views.items():
            table = arrow_of(self.spark.sql(query))
            out[name] = Counter(rows_of(table))
        for name in self.schemas:
            self.spark.catalog.dropTempView(name)
        return out

    def retract_all(self) -> None:
        """Delete every row of every table; whatever is left in a view then is right for empty tables."""
        self.tick({name: {row: -n for row, n in held.items()} for name, held in self.contents.items() if held})


def as_table(schema: Schema, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    columns = [pa.array([row[i] for row in rows], t) for i, t in enumerate(schema.types)]
    return pa.Table.from_arrays(columns, schema=schema.arrow)


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = [c.to_pylist() for c in table.columns]
    return [frozen(row) for row in zip(*columns, strict=True)] if columns else []


def frozen(value: Any) -> Any:
    """A value that can be counted, in which NaN is itself and -0.0 is 0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return tuple(frozen(v) for v in value.values())  # a struct, which is a tuple to us
    if isinstance(value, list | tuple):
        return tuple(frozen(v) for v in value)
    if hasattr(value, "tzinfo") and getattr(value, "tzinfo", None) is not None:
        return value.timestamp()
    return value


def difference(held: Counter[Any], expected: Counter[Any]) -> str:
    """What is too many and what is missing, floats compared loosely; nothing where they agree."""
    if held == expected:
        return ""
    extra, missing = held - expected, expected - held
    negative = {k: v for k, v in held.items() if v < 0}
    if not negative and sum(extra.values()) == sum(missing.values()):
        left, right = (sorted(c.elements(), key=_loose) for c in (extra, missing))
        if all(_close(a, b) for a, b in zip(left, right, strict=True)):
            return ""
    some = {"too many": extra, "missing": missing, "below zero": negative}
    return "\n".join(f"  {what}: {dict(list(rows.items())[:20])}" for what, rows in some.items() if rows)


def _loose(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6e}"
    if isinstance(value, tuple):
        return "(" + ",".join(_loose(v) for v in value) + ")"
    return repr(value)


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_close(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)
