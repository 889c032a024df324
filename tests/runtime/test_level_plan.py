"""The plan of levels as data."""

import pickle

from dbspark.columnar.schema import Schema
from dbspark.runtime.level_plan import ExternalCall, slot_of


def test_slots_are_named_by_node_and_columns():
    assert [slot_of("n"), slot_of("n", ()), slot_of("n", (0, 2))] == ["n", "n by ", "n by 0,2"]


def test_the_function_of_an_external_call_stays_on_the_driver():
    schema = Schema.parse("a BIGINT")
    call = ExternalCall("n", schema, "m", schema, lambda rows: rows)
    assert pickle.loads(pickle.dumps(call)) == ExternalCall("n", schema, "m", schema, None)
