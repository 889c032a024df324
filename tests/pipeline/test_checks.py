"""What a transaction may not do to a table, against a table that is a dictionary: rows fewer than none, keys twice."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import dbspark
from dbspark.columnar.sort_key import weakened_hash
from dbspark.errors import TransactionError
from dbspark.runtime.tables import MIN_BACKGROUND_CHECK_ROWS
from dbspark.trace.write_buffer import LIMITS

ALL = 0xFFFFFFFFFFFFFFFF


def possible(table: dict[Any, int], keyed: bool) -> bool:
    keys = [row[0] for row, weight in table.items() for _ in range(weight)]
    return all(weight > 0 for weight in table.values()) and (not keyed or len(keys) == len(set(keys)))


def arrow(rows: dict[Any, int]) -> pa.Table:
    columns = [r[0] for r in rows], [r[1] for r in rows], list(rows.values())
    return pa.table(list(columns), pa.schema({"k": pa.int64(), "v": pa.string(), "w": pa.int64()}))


@pytest.mark.parametrize("mask", [ALL, 0], ids=["hashes", "all collide"])
@pytest.mark.parametrize("history", [0, 3, 1000])
@pytest.mark.parametrize("keyed", [False, True], ids=["rows", "keys"])
def test_a_change_is_refused_exactly_where_the_result_is_no_table(keyed: bool, history: int, mask: int) -> None:
    rng = random.Random(history + keyed)
    held: dict[Any, int] = {}
    refused = 0
    with weakened_hash(mask), dbspark.Pipeline("checks", config={"history": history}) as pipe:
        pipe.create_table("t", "k BIGINT, v STRING", primary_key=("k",) if keyed else ())
        for _ in range(8 * LIMITS.max_deltas):
            change: dict[Any, int] = {}
            for _ in range(rng.randint(1, 6)):
                row = rng.randrange(30), rng.choice("ab")
                change[row] = change.get(row, 0) + rng.choice(
                    [1, -1] if rng.random() < 0.3 else [-1 if row in held else 1]
                )
            change = {row: weight for row, weight in change.items() if weight}
            after = {row: held.get(row, 0) + change.get(row, 0) for row in {**held, **change}}
            after = {row: weight for row, weight in after.items() if weight}
            try:
                with pipe.transaction() as tx:
                    tx.apply("t", arrow(change), weight="w")
            except TransactionError:
                assert not possible(after, keyed)
                refused += 1
            else:
                assert possible(after, keyed)
                held = after
            if rng.random() < 0.1:
                rows = pipe.table("t").to_arrow().to_pydict()
                assert sorted(zip(rows["k"], rows["v"], strict=True)) == sorted(
                    row for row, weight in held.items() for _ in range(weight)
                )
        assert refused > 10
        with pipe.transaction() as tx:
            tx.apply("t", arrow({row: -weight for row, weight in held.items()}), weight="w")
        assert pipe.table("t").to_arrow().num_rows == 0


def test_rows_are_found_through_filters() -> None:
    """Batches so large that they have one, between a larger and smaller ones."""
    rng = random.Random(1)
    with dbspark.Pipeline("checks", config={"history": 0}) as pipe:
        pipe.create_table("t", "k BIGINT, v STRING")
        next_key = 0
        there: list[int] = []
        for size in (40_000, 9_000, 6_000, 5_000, 3_000, 200, 50):
            with pipe.transaction() as tx:
                tx.insert("t", pa.table({"k": range(next_key, next_key + size), "v": ["v"] * size}))
            there += range(next_key, next_key + size)
            next_key += size
        for _ in range(10):
            gone = rng.sample(there, 500)
            there = sorted(set(there) - set(gone))
            with pipe.transaction() as tx:
                tx.delete("t", pa.table({"k": gone, "v": ["v"] * 500}))
            with pytest.raises(TransactionError, match="more often than it is there"), pipe.transaction() as tx:
                tx.delete("t", pa.table({"k": [there[0], gone[7]], "v": ["v"] * 2}))
        assert sorted(pipe.table("t").to_arrow()["k"].to_pylist()) == there


@pytest.mark.parametrize("history", [0, 5, 1000])
def test_changes_that_wait_are_read_as_those_that_do_not(history: int) -> None:
    """Every tick as it was, whenever it is asked for."""
    rng = random.Random(history)
    states: list[list[int]] = [[]]
    with dbspark.Pipeline("history", config={"history": history}) as pipe:
        pipe.create_table("t", "k BIGINT")
        for tick in range(1, 60):
            now = list(states[-1])
            gone = [k for k in now if rng.random() < 0.2]
            come = [tick * 10 + i for i in range(rng.randint(0, 3))]
            with pipe.transaction() as tx:
                if come:
                    tx.insert("t", [(k,) for k in come])
                if gone:
                    tx.delete("t", [(k,) for k in gone])
            states.append(sorted({*now, *come} - set(gone)))
            if rng.random() < 0.2:
                past = rng.randint(max(0, tick - history), tick)
                assert sorted(pipe.table("t").as_of(past).to_arrow()["k"].to_pylist()) == states[past]
                changes = pipe.table("t").changes(past).to_pydict()
                total = dict.fromkeys(states[past], 1)
                for key, weight in zip(changes["k"], changes["_weight"], strict=True):
                    total[key] = total.get(key, 0) + weight
                assert sorted(k for k, w in total.items() if w) == states[tick]
                assert set(total.values()) <= {0, 1}


@pytest.mark.parametrize("key", [None, ["k"]])
def test_large_changes_are_refused_beside_the_circuit(spark: Any, key: list[str] | None) -> None:
    """What is wrong is found while the circuit runs: nothing of the tick is left, and the next one is as if it had
    not been."""
    n = 3 * MIN_BACKGROUND_CHECK_ROWS
    with dbspark.Pipeline("beside", spark=spark) as pipe:
        for name in "tu":
            pipe.create_table(name, "k BIGINT, v BIGINT", primary_key=key)
        pipe.create_view("sums", "SELECT t.v, count(*) AS n FROM t JOIN u USING (k) GROUP BY t.v")
        with pipe.transaction() as tx:
            for name in "tu":
                tx.insert(name, pa.table({"k": range(n), "v": [k % 7 for k in range(n)]}))
        before = sorted(pipe.view("sums").to_arrow().to_pylist(), key=str)

        def change(wrong: bool) -> pa.Table:
            """Every row goes but the last ones; one that is not there goes as well, or comes and goes."""
            weights = [-1] * MIN_BACKGROUND_CHECK_ROWS + [-1] + ([] if wrong else [1])
            keys = [*range(MIN_BACKGROUND_CHECK_ROWS), n + 1] + ([] if wrong else [n + 1])
            return pa.table({"k": keys, "v": [k % 7 for k in keys], "w": weights})

        def both(broken: str) -> None:
            with pipe.transaction() as tx:
                for name in "tu":
                    tx.apply(name, change(wrong=name == broken), weight="w")

        for broken in "tu":
            with pytest.raises(TransactionError, match=rf"table '{broken}'.*({n + 1}.*)"):
                both(broken)
            assert sorted(pipe.view("sums").to_arrow().to_pylist(), key=str) == before
            assert pipe.table("t").to_arrow().num_rows == n
        both("neither")
        left = range(MIN_BACKGROUND_CHECK_ROWS, n)
        assert {row["v"]: row["n"] for row in pipe.view("sums").to_arrow().to_pylist()} == {
            v: sum(k % 7 == v for k in left) for v in range(7)
        }


@pytest.mark.parametrize("key", [None, ["k"]])
def test_a_small_change_beside_a_large_one_that_is_refused_has_not_happened(spark: Any, key: list[str] | None) -> None:
    """The circuit has looked at the small one, and listed it, before the other core has looked at the large one."""
    n = 2 * MIN_BACKGROUND_CHECK_ROWS
    with dbspark.Pipeline("beside", spark=spark) as pipe:
        for name in "tu":
            pipe.create_table(name, "k BIGINT, v BIGINT", primary_key=key)
        pipe.create_view("sums", "SELECT t.v, count(*) AS n FROM t JOIN u USING (k) GROUP BY t.v")
        with pipe.transaction() as tx:
            for name in "tu":
                tx.insert(name, pa.table({"k": range(n), "v": [k % 7 for k in range(n)]}))
        before = sorted(pipe.view("sums").to_arrow().to_pylist(), key=str)
        wrong = pa.table(
            {"k": [*range(MIN_BACKGROUND_CHECK_ROWS), -1], "v": [*(i % 7 for i in range(MIN_BACKGROUND_CHECK_ROWS)), 0]}
        )

        def both(small: pa.Table) -> None:
            with pipe.transaction() as tx:
                tx.apply("t", small, weight="w")
                tx.delete("u", wrong)

        for k in range(LIMITS.max_deltas + 3):
            gone = pa.table({"k": [k], "v": [k % 7], "w": [-1]})
            with pytest.raises(TransactionError, match="table 'u'"):
                both(gone)
            assert sorted(pipe.view("sums").to_arrow().to_pylist(), key=str) == before
            with pipe.transaction() as tx:
                tx.apply("t", gone, weight="w")  # it is still there
            with pytest.raises(TransactionError, match="table 't'"), pipe.transaction() as tx:
                tx.apply("t", gone, weight="w")  # and now it is not
            with pipe.transaction() as tx:
                tx.insert("t", gone.select(["k", "v"]))
        assert sorted(pipe.view("sums").to_arrow().to_pylist(), key=str) == before


def test_a_wrong_change_is_told_before_what_comes_of_it(spark: Any) -> None:
    """The circuit divides by the row that is not there; users want to know of the row."""
    with dbspark.Pipeline("beside", spark=spark) as pipe:
        pipe.create_table("t", "k BIGINT, v BIGINT")
        pipe.create_view("shares", "SELECT k, 100 DIV v AS share FROM t")
        with pipe.transaction() as tx:
            tx.insert(
                "t", pa.table({"k": range(2 * MIN_BACKGROUND_CHECK_ROWS), "v": [1] * (2 * MIN_BACKGROUND_CHECK_ROWS)})
            )
        gone = pa.table({"k": range(MIN_BACKGROUND_CHECK_ROWS + 1), "v": [1] * MIN_BACKGROUND_CHECK_ROWS + [0]})
        with pytest.raises(TransactionError, match="more often than it is there"), pipe.transaction() as tx:
            tx.delete("t", gone)
        with pytest.raises(dbspark.DbsparkError, match=r"(?i)zero"), pipe.transaction() as tx:
            tx.apply(
                "t",
                pa.table(
                    {
                        "k": range(MIN_BACKGROUND_CHECK_ROWS),
                        "v": [0] * MIN_BACKGROUND_CHECK_ROWS,
                        "w": [1] * MIN_BACKGROUND_CHECK_ROWS,
                    }
                ),
                weight="w",
            )
        assert pipe.table("t").to_arrow().num_rows == 2 * MIN_BACKGROUND_CHECK_ROWS
        with pipe.transaction() as tx:
            tx.delete("t", gone.slice(0, MIN_BACKGROUND_CHECK_ROWS))
        assert pipe.view("shares").to_arrow().num_rows == MIN_BACKGROUND_CHECK_ROWS
