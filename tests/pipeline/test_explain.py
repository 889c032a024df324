"""What `explain` shows of a view and of a query."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import dbspark
from dbspark.runtime.sizes import size_of, sizes_of
from dbspark.runtime.state import state_of
from dbspark.trace import Spine
from tests.pipeline.test_pipeline import shop
from tests.storage.model import BY_KEY, SMALL, numbered


def sizes(text: str) -> dict[str, int]:
    """Rows by what keeps them."""
    found = re.findall(r"^ *([\d,]+) +[\d.,]+ (?:bytes|[KM]iB) +#\d+ (.*)$", text, re.MULTILINE)
    return {what: int(rows.replace(",", "")) for rows, what in found}


def test_a_view_its_circuit_and_what_it_keeps(spark: Any) -> None:
    with shop(spark) as pipe:
        with pipe.transaction() as tx:
            tx.insert("customers", [(1, "north"), (2, "south")])
            tx.insert("orders", [(i, 1 + i % 2, Decimal(i)) for i in range(2000)])
        text = pipe.explain("revenue")
        assert text.startswith("View revenue (region, n, total)\n")
        assert "aggregate Sum: incremental" in text
        kept = sizes(text)
        assert kept["table orders"] == 2000
        assert kept["table customers"] == 2
        assert any(what.startswith("arrange") for what in kept)
        total = sum(s.rows for s in sizes_of(state_of(pipe._state_reader._circuit)).values())
        assert f"Kept by its operators: {total:,} rows, " in text
        assert "Kept of the view with its history: 2 rows, " in text
        assert pipe.view("revenue").explain() == text


def test_views_that_read_views_and_shared_operators(spark: Any) -> None:
    with shop(spark) as pipe:
        pipe.create_view("big", "SELECT a.region FROM revenue a JOIN revenue b ON a.n = b.n WHERE a.total > 22")
        text = pipe.explain("big")
        assert "(view revenue)" in text
        assert "(above)" in text
        assert text.count("table orders") == 1
        assert "(view big)" not in pipe.explain("revenue")


def test_recursions_show_what_is_iterated(spark: Any) -> None:
    with dbspark.Pipeline("graph", spark=spark) as pipe:
        pipe.create_table("edges", "src BIGINT, dst BIGINT")
        union = "SELECT src, dst FROM edges UNION SELECT r.src, e.dst FROM reach r JOIN edges e ON r.dst = e.src"
        pipe.create_view("reach", union, recursive="src BIGINT, dst BIGINT")
        with pipe.transaction() as tx:
            tx.insert("edges", [(1, 2), (2, 3)])
        text = pipe.explain("reach")
        assert sizes(text)["fixpoint of reach"] > 0
        assert re.search(r"\|.*inner join", text)


def test_a_query_that_is_not_a_view_has_no_sizes(spark: Any) -> None:
    with shop(spark) as pipe:
        text = pipe.explain("SELECT region, region FROM revenue JOIN customers USING (region)")
        assert text.startswith("Query (region, region)\n")
        assert "inner join: incremental" in text
        assert "view revenue" in text
        assert "table customers" in text
        assert "bytes" not in text
        assert "the rows as they are" in pipe.explain("SELECT * FROM orders")
        assert pipe.explain(pipe.frame("orders").groupBy("customer").count()).startswith("Query (customer, count)\n")


def test_sizes_count_merges_in_progress() -> None:
    spine = Spine(BY_KEY, config=SMALL)
    for i in range(12):
        spine = spine.insert(numbered(10 * i, 9))
    size = size_of([spine])
    assert size.rows == spine.rows == 108
    assert size.bytes > 108 * 16
    assert size_of([]) == size_of([Spine(BY_KEY)])
