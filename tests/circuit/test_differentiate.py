"""One program in four forms: on values, differentiated explicitly, fused, and written on deltas. All say the same."""

import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.circuit import Builder, Circuit
from dbspark.operators.join import Join
from dbspark.operators.operator import Arrange
from dbspark.operators.temporal import Differentiate, Integrate, Product
from tests.reference.differentiate import incrementalize
from tests.reference.optimise import optimise

ORDERS = "id BIGINT, customer BIGINT, amount BIGINT"
CUSTOMERS = "customer BIGINT, region STRING"
ORDER = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 9))
CUSTOMER = st.tuples(st.integers(0, 3), st.sampled_from("xyz"))
COUNT = st.integers(-2, 3).filter(bool)
TICKS = st.lists(
    st.tuples(st.dictionaries(ORDER, COUNT, max_size=4), st.dictionaries(CUSTOMER, COUNT, max_size=3)),
    min_size=1, max_size=6,
)  # fmt: skip


def program(b, source):
    orders, customers = source("orders", ORDERS), source("customers", CUSTOMERS)
    some = b.filter(orders, lambda c: pc.less(c[2], 8))
    doubled = b.map(some, lambda c: [c[1], pc.multiply(c[2], 2)], "customer BIGINT, amount BIGINT")
    joined = b.project(b.join(doubled, customers, ["customer"]), ["region", "amount"])
    b.output("linear", b.union(doubled, b.negate(b.project(doubled, ["customer", "amount"]))))
    b.output("joined", joined)
    b.output("late", b.delay(joined))
    b.output("distinct", b.distinct(joined))
    b.output("sums", b.aggregate(joined, ["region"], n=("count", None), s=("sum", "amount"), m=("max", "amount")))
    b.output("top", b.top(joined, ["region"], [("amount", "desc")], 2))
    b.output("left", b.join(doubled, customers, ["customer"], "left"))
    b.output("anti", b.join(doubled, customers, ["customer"], "anti"))
    b.output("except", b.combine(b.project(doubled, ["customer"]), b.project(customers, ["customer"]), "except all"))


def built(values):
    b = Builder()
    program(b, b.value_source if values else b.source)
    return b.graph


def clamped(rows, change):
    """A change that leaves no row below zero, and the rows after it."""
    out = {row: max(weight, -rows.get(row, 0)) for row, weight in change.items()}
    after = {row: rows.get(row, 0) + out.get(row, 0) for row in {*rows, *out}}
    return {r: w for r, w in out.items() if w}, {r: w for r, w in after.items() if w}


@given(ticks=TICKS)
def test_all_forms_of_a_program_say_the_same_after_every_tick(ticks):
    meaning = Circuit(built(True))
    explicit = incrementalize(built(True))
    forms = [Circuit(g) for g in (explicit, optimise(explicit), built(False), optimise(built(False)))]
    kept = [{} for _ in forms]
    tables = {"orders": {}, "customers": {}}

    def tick(change):
        expected = meaning.tick(tables)
        for form, values in zip(forms, kept, strict=True):
            for name, z in form.tick(change).items():
                values[name] = values[name] + z if name in values else z
            for name in expected:
                assert values[name] == expected[name], name

    for orders, customers in ticks:
        change = {}
        change["orders"], tables["orders"] = clamped(tables["orders"], orders)
        change["customers"], tables["customers"] = clamped(tables["customers"], customers)
        tick(change)
    change = {name: {row: -w for row, w in rows.items()} for name, rows in tables.items()}
    tables = {"orders": {}, "customers": {}}
    tick(change)
    tick({})  # what was delayed goes as well
    for form, values in zip(forms, kept, strict=True):
        assert not any(values.values())
        assert not any(form.state_rows().values())


def operators(graph):
    return [type(node.operator) for node in graph if node.operator is not None]


def test_a_product_becomes_three_terms_over_delayed_integrals_and_then_one_join():
    b = Builder()
    joined = b.join(b.value_source("l", "k BIGINT, a BIGINT"), b.value_source("r", "k BIGINT, b BIGINT"), ["k"])
    b.output("out", joined)
    explicit = incrementalize(b.graph)
    assert operators(explicit).count(Product) == 3
    assert operators(explicit).count(Integrate) == 2
    assert sum(node.role == "delay" for node in explicit) == 2
    fused = operators(optimise(explicit))
    assert sorted(t.__name__ for t in fused) == ["Arrange", "Arrange", "Join"]
    assert {Join, Arrange} == set(fused)


def test_linear_operators_are_their_own_derivative():
    b = Builder()
    s = b.value_source("s", "k BIGINT")
    b.output("out", b.difference(b.union(s, s), b.filter(s, lambda c: pc.greater(c[0], 1))))
    derived = incrementalize(b.graph)
    assert [n.label for n in derived] == [n.label for n in b.graph]
    assert not {Integrate, Differentiate} & set(operators(derived))


def test_consumers_of_the_same_keys_share_an_arrangement():
    b = Builder()
    left, right, other = (b.source(n, "k BIGINT, v BIGINT") for n in "lrq")
    b.output("one", b.join(left, right, ["k"]))
    b.output("two", b.join(left, other, ["k"], "left"))
    assert operators(b.graph).count(Arrange) == 3


def test_a_running_sum_is_a_loop_with_a_delay():
    b = Builder()
    s = b.source("s", "k BIGINT")
    before = b.loop("k BIGINT")
    total = b.union(s, before)
    b.connect(before, total)
    b.output("total", total)
    circuit = b.circuit()
    assert dict(circuit.tick({"s": [(1,)]})["total"]) == {(1,): 1}
    assert dict(circuit.tick({"s": [(2,)]})["total"]) == {(1,): 1, (2,): 1}
    assert dict(circuit.tick({"s": {(1,): -1}})["total"]) == {(2,): 1}


@pytest.mark.parametrize("seed", [None, [(7,)]], ids=["empty", "seeded"])
def test_a_loop_of_values_is_differentiated(seed):
    b = Builder()
    s = b.value_source("s", "k BIGINT")
    before = b.loop("k BIGINT", seed, values=True)
    total = b.union(s, before)
    b.connect(before, total)
    b.output("total", total)
    meaning, derived = Circuit(b.graph), Circuit(incrementalize(b.graph))
    values = [{(1,): 1}, {(1,): 1, (2,): 1}, {}, {(3,): 2}]
    last, kept = {}, None
    for value in values:
        change = {row: value.get(row, 0) - last.get(row, 0) for row in {*value, *last}}
        out = derived.tick({"s": {r: w for r, w in change.items() if w}})["total"]
        kept = out if kept is None else kept + out
        assert kept == meaning.tick({"s": value})["total"]
        last = value
