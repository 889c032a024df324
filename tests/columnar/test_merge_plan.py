"""A merge in progress: what it has left is what it was given, in the order in which it was given."""

from __future__ import annotations

import numpy as np
import pytest

from dbspark.columnar import Batch, Schema, merge
from dbspark.columnar.batch import Plan
from dbspark.zset import ZSet

SCHEMA = Schema.parse("k BIGINT, v BIGINT")
SIZES = (90, 10, 40, 3)


def batches() -> list[Batch]:
    """Each with keys that all of them have, and values that tell whose they are."""
    return [ZSet.from_rows([(k, age) for k in range(size)], SCHEMA).batch() for age, size in enumerate(SIZES)]


@pytest.mark.parametrize("limit", [1, 7, 50])
def test_what_is_left_comes_as_it_was_given(limit: int) -> None:
    given = batches()
    plan = Plan(given)
    done: list[Batch] = []
    while not plan.done:
        done.append(Batch(given[0].sort_key, plan.step(limit)))
        left = plan.remaining()
        ages = [set(batch.to_arrow()["v"].to_pylist()) for batch in left]
        assert all(len(age) == 1 for age in ages)
        assert [min(age) for age in ages] == sorted(min(age) for age in ages)
        assert merge([b for b in (*done, *left) if b.rows]).same(merge(given))
    assert merge(done).same(merge(given))


def test_it_goes_on_where_it_was() -> None:
    """A plan made of what another has left reads each input from where that one stopped."""
    given = batches()
    plan, done = Plan(given), []
    while not plan.done:
        done.append(Batch(given[0].sort_key, plan.step(5)))
        plan = plan if plan.done else Plan(*plan.unread())
    whole = merge(done)
    assert whole.same(merge(given))
    assert int(np.abs(whole.weights()).sum()) == sum(SIZES)
