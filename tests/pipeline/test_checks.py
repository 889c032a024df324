"""What a transaction may not do to a table, against a table that is a dictionary: rows fewer than none, keys twice."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import dbspark
from dbspark.batch.arrangement import weakened_hash
from dbspark.pipeline.changes import TransactionError
from dbspark.pipeline.waiting import CHANGES

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
        for _ in range(8 * CHANGES):
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
