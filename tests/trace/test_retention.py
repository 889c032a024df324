"""Bounds of the retention: they only rise, they are of the column's type, and NULL is below none."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dbspark.columnar import Batch, Schema
from dbspark.errors import SchemaError
from dbspark.trace.retention import Retention

SCHEMA = Schema.parse("k BIGINT, v STRING")


def test_rows_below_any_bound_go_and_nulls_stay() -> None:
    rows = pa.table({"k": [1, 2, 3, None], "v": ["a", "b", None, "a"]}, schema=SCHEMA.arrow)
    batch = Batch.from_arrow(rows)
    retention = Retention().with_bound(SCHEMA, "k", 2)
    assert sorted(retention.filter_batch(batch).to_arrow()["k"].to_pylist(), key=str) == [2, 3, None]
    both = retention.with_bound(SCHEMA, "v", "b")
    assert sorted(both.filter_batch(batch).to_arrow()["k"].to_pylist()) == [2, 3]
    assert Retention().filter_batch(batch) is batch
    assert Retention().with_bound(SCHEMA, "k", 0).filter_batch(batch) is batch


def test_bounds_only_rise() -> None:
    retention = Retention().with_bound(SCHEMA, "k", 2).with_bound(SCHEMA, "k", 2).with_bound(SCHEMA, "k", 5)
    assert retention
    assert not Retention()
    with pytest.raises(SchemaError, match="'k' is 5 already; bounds only rise"):
        retention.with_bound(SCHEMA, "k", 4)


@pytest.mark.parametrize("bound", ["x", None, 2**64])
def test_a_bound_is_a_value_of_its_column(bound: object) -> None:
    with pytest.raises(SchemaError, match="column 'k'"):
        Retention().with_bound(SCHEMA, "k", bound)
