"""What `explain` and strict mode say a part of a view costs."""

from __future__ import annotations

from typing import Any

import pytest

from dbspark.errors import DbsparkError
from dbspark.sql.program import Program

WHOLE_PARTITIONS = {
    "window": "SELECT a, sum(b) OVER (PARTITION BY a ORDER BY b) x FROM t",
    "window over all rows": "SELECT a, rank() OVER (ORDER BY b) x FROM t",
    "window by Spark": "SELECT a, stddev(b) OVER (PARTITION BY a) x FROM t",
    "Percentile": "SELECT a, percentile(b, 0.3) x FROM t GROUP BY a",
    "Percentile in an order": "SELECT a, percentile_cont(0.5) WITHIN GROUP (ORDER BY b) x FROM t GROUP BY a",
    "median": "SELECT a, median(b) x FROM t GROUP BY a",
    "approximate percentile": "SELECT a, approx_percentile(b, 0.5) x FROM t GROUP BY a",
    "Count distinct": "SELECT a, count(DISTINCT b) x FROM t GROUP BY a",
    "Sum distinct": "SELECT a, sum(DISTINCT b) x FROM t GROUP BY a",
    "Average distinct": "SELECT a, avg(DISTINCT b) x FROM t GROUP BY a",
    "CollectList": "SELECT a, collect_list(b) x FROM t GROUP BY a",
    "CollectSet": "SELECT a, collect_set(b) x FROM t GROUP BY a",
    "array_agg": "SELECT a, array_agg(DISTINCT b) x FROM t GROUP BY a",
    "Mode": "SELECT a, mode(b) x FROM t GROUP BY a",
    "ListAgg": "SELECT a, listagg(s) WITHIN GROUP (ORDER BY s) x FROM t GROUP BY a",
    "all rows": "SELECT count(DISTINCT b) x FROM t",
}

CHANGES = {
    "linear": "SELECT a, count(*) c, sum(b) s, avg(b) m, stddev(b) d FROM t GROUP BY a",
    "ends": "SELECT a, min(b) i, max(b) m, first(s) f, last(s) l, max_by(s, b) y, any_value(s) v FROM t GROUP BY a",
    "first rows": """
        SELECT a, b FROM (SELECT a, b, row_number() OVER (PARTITION BY a ORDER BY b) r FROM t) WHERE r <= 2""",
    "top": "SELECT a FROM t ORDER BY b LIMIT 5",
    "distinct": "SELECT DISTINCT a, b FROM t",
    "join": "SELECT x.a FROM t x LEFT JOIN t y ON x.a = y.b",
}


def program(spark: Any) -> Program:
    made = Program(spark)
    made.table("t", "a BIGINT, b BIGINT, s STRING")
    return made


def test_what_reads_whole_partitions_is_said_to_cost_them(spark: Any) -> None:
    made = program(spark)
    for name, query in WHOLE_PARTITIONS.items():
        assert ", cost: partition" in made.explain(query), name
    for name, query in CHANGES.items():
        assert "cost:" not in made.explain(query), name
    assert "all rows of the partitions that it touches" in made.explain(WHOLE_PARTITIONS["window"])
    assert "without PARTITION BY, a tick reads all rows" in made.explain(WHOLE_PARTITIONS["window over all rows"])


def test_strict_mode_takes_what_reads_partitions_and_its_message_says_so(spark: Any) -> None:
    made = program(spark)
    view = made.view("v", WHOLE_PARTITIONS["Count distinct"], maintenance="incremental")
    assert view.incremental
    assert [n.cost for n in view.notes] == ["partition"]
    query = "SELECT a, mode(b) m, approx_count_distinct(b) n FROM t GROUP BY a"
    with pytest.raises(DbsparkError) as raised:
        made.view("w", query, maintenance="incremental")
    assert "aggregate HyperLogLogPlusPlus: affected groups, cost: partition" in str(raised.value)
    assert "aggregate Mode: incremental, cost: partition" in str(raised.value)
