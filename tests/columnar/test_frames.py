"""NULL structs of a Spark DataFrame whose fields are NOT NULL."""

from __future__ import annotations

from typing import Any

from dbspark.columnar.frames import arrow_of, nullable_inside

STRUCT = "CASE WHEN id > 0 THEN named_struct('x', 1, 'y', array(named_struct('z', 2))) END"


def test_null_structs_are_collected(spark: Any) -> None:
    frame = spark.sql(f"SELECT {STRUCT} AS s, array({STRUCT}) AS a, map(1, {STRUCT}) AS m FROM range(2)")
    there = {"x": 1, "y": [{"z": 2}]}
    assert arrow_of(frame).to_pylist() == [
        {"s": None, "a": [None], "m": [(1, None)]},
        {"s": there, "a": [there], "m": [(1, there)]},
    ]


def test_a_frame_that_is_nullable_inside_stays_itself(spark: Any) -> None:
    frame = spark.createDataFrame([(1, None)], "id BIGINT NOT NULL, s STRUCT<a: BIGINT, b: ARRAY<STRING>>")
    assert nullable_inside(frame) is frame
    narrow = nullable_inside(spark.sql(f"SELECT {STRUCT} AS s, id FROM range(1)"))
    assert narrow.schema["s"].dataType["x"].nullable
    assert not narrow.schema["id"].nullable
