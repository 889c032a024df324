"""Views by the name of a function instead of SQL, for tests that need a pipeline and no Spark."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc
import pytest

from dbspark.sql.program import Program

QUERIES: dict[str, Any] = {}


def query(build: Any) -> Any:
    """A function of a builder and of the streams by name, as a query of its name."""
    QUERIES[build.__name__] = build
    return build


@query
def totals(b: Any, s: Any) -> Any:
    joined = b.join(s["orders"], s["customers"], on=["customer"])
    return b.aggregate(joined, ["region"], n=("count", None), total=("sum", "amount"))


@query
def large(b: Any, s: Any) -> Any:
    return b.filter(s["orders"], lambda c: pc.greater(c[2], 3))


@query
def customers_of(b: Any, s: Any) -> Any:
    return b.distinct(b.project(s["orders"], ["customer"]))


@query
def amounts(b: Any, s: Any) -> Any:
    return b.project(s["orders"], ["amount"])


def view(self: Program, name: str, query: Any, **_: Any) -> Any:
    self._check_new(name)
    return self._define(name, query, QUERIES[query](self.builder, self._streams), [], "auto", frozenset())


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views are made of `QUERIES`."""
    monkeypatch.setattr(Program, "view", view)


def tables(pipe: Any) -> None:
    pipe.create_table("orders", "id BIGINT, customer BIGINT, amount BIGINT", primary_key=["id"])
    pipe.create_table("customers", "customer BIGINT, region STRING")
