"""Circuits that are stored after every tick and taken up again: they go on as if nothing had happened."""

import random

import pyarrow.compute as pc
import pytest

from dbspark.circuit import Builder
from dbspark.errors import StoreError
from dbspark.runtime.state import restore, state_of
from dbspark.storage import Store
from tests.storage.model import everything, small
from tests.zset.model import contents


def joined(b):
    orders = b.source("orders", "id BIGINT, customer BIGINT, amount BIGINT")
    customers = b.source("customers", "customer BIGINT, region STRING")
    some = b.filter(orders, lambda c: pc.greater(c[2], 1))
    both = b.join(some, customers, on=["customer"], how="left")
    b.output("revenue", b.aggregate(both, ["region"], n=("count", None), s=("sum", "amount"), m=("max", "amount")))
    b.output("top", b.top(orders, ["customer"], [("amount", "desc"), "id"], 2))
    b.output("people", b.distinct(b.project(orders, ["customer"])))


def recursive(b):
    edges = b.source("edges", "src BIGINT, dst BIGINT")

    def step(s, reach, edges):
        further = s.join(reach, edges, [("dst", "src")], select=[(0, "src"), (1, "dst")])
        return s.distinct(s.union(edges, further))

    (reach,) = b.fixpoint({"reach": "src BIGINT, dst BIGINT"}, [edges], step)
    b.output("reach", reach)
    b.output("count", b.aggregate(reach, ["src"], n=("count", None)))


def delayed(b):
    numbers = b.source("numbers", "x BIGINT")
    b.output("before", b.delay(numbers, seed=[(99,)]))
    b.output("value", b.differentiate(b.delay(b.integrate(numbers))))


PROGRAMS = {
    joined: {"orders": (300, 9, 20), "customers": (9, "abc")},
    recursive: {"edges": (7, 7)},
    delayed: {"numbers": (12,)},
}


class Inputs:
    """Random changes of tables that never take away what is not there."""

    def __init__(self, shape, seed):
        self.random = random.Random(seed)
        self.shape = shape
        self.there = {name: {} for name in shape}

    def tick(self):
        out = {}
        for name, ranges in self.shape.items():
            change, there = {}, self.there[name]
            for _ in range(self.random.randrange(8)):
                if there and self.random.random() < 0.4:
                    row, weight = self.random.choice(sorted(there)), -1
                else:
                    row = tuple(
                        self.random.choice(r) if isinstance(r, str) else self.random.randrange(r) for r in ranges
                    )
                    weight = 1
                there[row] = there.get(row, 0) + weight
                change[row] = change.get(row, 0) + weight
                if not there[row]:
                    del there[row]
            out[name] = {row: weight for row, weight in change.items() if weight}
        return out


def circuit_of(program, states=None, tick=0):
    b = Builder()
    program(b)
    circuit = b.circuit()
    if states is None:
        circuit._states = small(circuit._states)
    else:
        assert restore(circuit, small(states), tick) == []
    return circuit


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_circuit_goes_on_where_it_was(program, seed, tmp_path):
    inputs, points = Inputs(PROGRAMS[program], seed), random.Random(seed)
    steady, stored = circuit_of(program), circuit_of(program)
    store = Store.open(tmp_path)
    for tick in range(1, 26):
        change = inputs.tick()
        expected = {name: contents(z) for name, z in steady.tick(change).items()}
        assert {name: contents(z) for name, z in stored.tick(change).items()} == expected
        store.commit(tick, state_of(stored), {"program": program.__name__}, {"ticks": tick})
        if points.random() < 0.4:
            store.close()
            store = Store.open(tmp_path)
            loaded = store.load(verify=points.random() < 0.5)
            assert everything(loaded.states) == everything(state_of(steady))
            stored = circuit_of(program, loaded.states, loaded.tick)
            assert stored.tick_number == tick
    store.close()


def test_a_tick_that_is_not_committed_has_not_happened(tmp_path):
    inputs = Inputs(PROGRAMS[joined], 5)
    circuit = circuit_of(joined)
    with Store.open(tmp_path) as store:
        for tick in range(1, 6):
            circuit.tick(inputs.tick())
            store.commit(tick, state_of(circuit))
        expected = everything(state_of(circuit))
        circuit.tick(inputs.tick())
    with Store.open(tmp_path) as store:
        assert everything(store.load().states) == expected


def test_nodes_without_state_are_named_and_others_keep_theirs(tmp_path):
    """A changed program: what is the same keeps its state, what is new has none."""

    def more(b):
        joined(b)
        b.output("more", b.aggregate(b.graph.nodes[next(iter(b.graph.nodes))].stream, ["customer"], n=("count", None)))

    circuit = circuit_of(joined)
    circuit.tick(Inputs(PROGRAMS[joined], 1).tick())
    with Store.open(tmp_path) as store:
        store.commit(1, state_of(circuit))
        states = store.load().states
    b = Builder()
    more(b)
    changed = b.circuit()
    missing = restore(changed, states, 1)
    assert len(missing) == 1
    assert changed.graph.nodes[missing[0]].label.startswith("aggregate")
    assert everything({n: s for n, s in state_of(changed).items() if n not in missing}) == everything(states)


def test_state_in_another_order_is_refused():
    circuit = circuit_of(joined)
    states = {node: tuple(reversed([s for v in circuit._states.values() for s in v][: len(spines)]))
              for node, spines in circuit._states.items()}  # fmt: skip
    with pytest.raises(StoreError, match="another order"):
        restore(circuit_of(joined), states, 1)
