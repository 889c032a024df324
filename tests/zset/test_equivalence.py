"""All backends are one Z-set: whatever is done to them, in whatever order, they hold what a dict would hold.

A machine keeps *values*: the same Z-set four times, once per backend, beside the dict. Every step makes a new value
from an old one (mostly the newest, sometimes any other, so that histories branch) and keeps the old ones. Reading is a
step of its own, because a read may change the form of what is read. At the end every value that was ever made is read
once more (none may have changed under its holder's hands), and everything is retracted.
"""

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dbspark.errors import SchemaError, WeightOverflowError
from dbspark.trace.config import SpineConfig
from dbspark.zset import BACKENDS, ZSet, ZSetConfig, adaptive, columns, memtable, payload
from tests.zset.model import MAX, TINY, contents, model, plus, times

SCHEMA = "k BIGINT, s STRING"
STEPS = 40
"""Few enough that doubling at every step stays far from the range of weights."""

ROWS = st.tuples(st.integers(0, 12), st.sampled_from([None, "a", "bb"]))
WEIGHTS = st.integers(-3, 3)
ENTRIES = st.lists(st.tuples(ROWS, WEIGHTS), max_size=10)
HEAVY = st.sampled_from([1, -1, 1 << 60, -1 << 61, MAX - 10, MAX - (1 << 60) - 20, MAX, -MAX])
WAYS = ("rows", "columns")
PICK = st.integers(0, 7)
"""Which value to take: 0 is the newest."""
LATELY = st.integers(0, 2)
"""One of the newest."""
MIX = st.integers(0, len(BACKENDS) - 1)
"""How far the backends of the second operand are turned against those of the first: 0 is the same backend."""


@dataclass
class Value:
    rows: dict
    z: dict[str, ZSet]

    def __repr__(self):
        return f"<{len(self.rows)} rows>"


class Machine(RuleBasedStateMachine):
    knobs: dict
    span = 12
    """Rows of a range at the most."""

    def __init__(self):
        super().__init__()
        self.configs = {b: ZSetConfig(backend=b, **self.knobs) for b in BACKENDS}
        self.values = [Value({}, {b: ZSet.empty(SCHEMA, c) for b, c in self.configs.items()})]
        self.views = []

    def pick(self, index):
        return self.values[max(-1 - index, -len(self.values))]

    def keep(self, rows, z):
        for backend, one in z.items():
            assert one.config.backend == backend
        self.values.append(Value(rows, z))

    def every(self, value, change):
        return {b: change(z) for b, z in value.z.items()}

    def made(self, backend, rows):
        return ZSet.from_rows(list(rows), SCHEMA, list(rows.values()), self.configs[backend])

    # ------------------------------------------------------------------ changes

    @initialize(rows=ENTRIES)
    def begin(self, rows):
        expected = model([r for r, _ in rows], [w for _, w in rows])
        self.keep(expected, {b: self.made(b, expected) for b in BACKENDS})

    @rule(at=PICK, row=ROWS, weight=WEIGHTS)
    def add(self, at, row, weight):
        value = self.pick(at)
        self.keep(plus(value.rows, {row: weight}), self.every(value, lambda z: z.add(row, weight)))

    @rule(at=PICK, rows=ENTRIES)
    def add_row_by_row(self, at, rows):
        value = self.pick(at)

        def change(z):
            for row, weight in rows:
                z = z.add(row, weight)
            return z

        self.keep(plus(value.rows, model([r for r, _ in rows], [w for _, w in rows])), self.every(value, change))

    @rule(at=PICK, rows=ENTRIES, weighted=st.booleans())
    def add_many(self, at, rows, weighted):
        value = self.pick(at)
        keys, weights = [r for r, _ in rows], [w for _, w in rows] if weighted else None
        self.keep(plus(value.rows, model(keys, weights)), self.every(value, lambda z: z.add_many(keys, weights)))

    @rule(at=PICK, row=ROWS, weight=WEIGHTS, times=st.integers(4, 7))
    def change_one_row_again_and_again(self, at, row, weight, times):
        """Which makes it a hot one, where it comes in columns."""
        value = self.pick(at)

        def change(z):
            delta = ZSet.from_arrow({"k": [row[0]], "s": [row[1]], "w": [weight]}, "w", SCHEMA, z.config)
            for _ in range(times):
                z = z + delta
            return z

        self.keep(plus(value.rows, {row: weight * times}), self.every(value, change))

    @rule(at=PICK, first=st.integers(0, 2000), share=st.floats(0, 1), step=st.integers(1, 3), weight=WEIGHTS)
    def add_range(self, at, first, share, step, weight):
        value = self.pick(at)
        keys = [(first + i * step, None) for i in range(round(self.span * share))]
        weights = [weight] * len(keys)
        self.keep(plus(value.rows, model(keys, weights)), self.every(value, lambda z: z.add_many(keys, weights)))

    @rule(at=PICK, part=st.integers(1, 3), singly=st.booleans())
    def retract_some_of_what_is_there(self, at, part, singly):
        value = self.pick(at)
        gone = dict(list(value.rows.items())[::part])
        if singly and len(gone) > 40:
            gone = dict(list(gone.items())[:40])

        def change(z):
            if not singly:
                return z.add_many(list(gone), [-w for w in gone.values()])
            for row, weight in gone.items():
                z = z.add(row, -weight)
            return z

        self.keep(plus(value.rows, times(gone, -1)), self.every(value, change))

    @rule(at=PICK, other=PICK, mix=MIX)
    def plus(self, at, other, mix):
        a, b = self.pick(at), self.pick(other)
        self.keep(plus(a.rows, b.rows), {x: a.z[x] + b.z[y] for x, y in turned(mix)})

    @rule(at=PICK, other=PICK, mix=MIX)
    def minus(self, at, other, mix):
        a, b = self.pick(at), self.pick(other)
        self.keep(plus(a.rows, times(b.rows, -1)), {x: a.z[x] - b.z[y] for x, y in turned(mix)})

    @rule(at=PICK, others=st.lists(PICK, max_size=3), mix=MIX)
    def union_many(self, at, others, mix):
        a, some = self.pick(at), [self.pick(o) for o in others]
        z = {x: a.z[x].union_many([s.z[y] for s in some]) for x, y in turned(mix)}
        self.keep(plus(a.rows, *(s.rows for s in some)), z)

    @rule(at=PICK)
    def negate(self, at):
        value = self.pick(at)
        self.keep(times(value.rows, -1), self.every(value, lambda z: -z))

    @rule(at=PICK, factor=st.integers(-2, 2))
    def scale(self, at, factor):
        value = self.pick(at)
        self.keep(times(value.rows, factor), self.every(value, lambda z: z * factor))

    @rule(at=PICK, left_out=st.integers(0, 2), by_columns=st.booleans())
    def filter(self, at, left_out, by_columns):
        value = self.pick(at)

        def of_columns(batch):
            k = batch["k"]
            third = pc.subtract(k, pc.multiply(pc.floor(pc.divide(pc.cast(k, pa.float64()), 3.0)), 3.0))
            return pc.not_equal(third, float(left_out))

        keep = columns(of_columns) if by_columns else lambda row: row[0] % 3 != left_out
        rows = {r: w for r, w in value.rows.items() if r[0] % 3 != left_out}
        self.keep(rows, self.every(value, lambda z: z.filter(keep)))

    @rule(at=PICK, injective=st.booleans(), by_columns=st.booleans())
    def map_keys(self, at, injective, by_columns):
        value = self.pick(at)

        def of_row(row):
            return (row[0] + 1, row[1]) if injective else (abs(row[0]) // 2, None)

        def of_columns(batch):
            if injective:
                return {"k": pc.add(batch["k"], 1), "s": batch["s"]}
            return {"k": pc.divide(pc.abs(batch["k"]), 2), "s": pa.nulls(batch.num_rows, pa.string())}

        fn = columns(of_columns) if by_columns else of_row
        rows = model([of_row(r) for r in value.rows], value.rows.values())
        self.keep(rows, self.every(value, lambda z: z.map_keys(fn)))

    @rule(at=PICK)
    def freeze(self, at):
        value = self.pick(at)
        self.keep(value.rows, self.every(value, lambda z: z.freeze()))

    @rule(at=PICK, mix=MIX)
    def through_arrow(self, at, mix):
        value = self.pick(at)
        z = {
            x: ZSet.from_arrow(value.z[y].to_arrow(weight="w"), weight="w", schema=SCHEMA, config=self.configs[x])
            for x, y in turned(mix)
        }
        self.keep(value.rows, z)

    # ------------------------------------------------------------------ reads

    @rule(at=PICK)
    def iterate(self, at):
        value = self.pick(at)
        for backend, z in value.z.items():
            assert contents(z) == value.rows, backend

    @rule(at=PICK)
    def count(self, at):
        value = self.pick(at)
        assert {b: z.count for b, z in value.z.items()} == dict.fromkeys(BACKENDS, len(value.rows))

    @rule(at=PICK)
    def total_weight(self, at):
        value = self.pick(at)
        assert {b: z.total_weight for b, z in value.z.items()} == dict.fromkeys(BACKENDS, sum(value.rows.values()))

    @rule(at=PICK, row=ROWS)
    def weight(self, at, row):
        value = self.pick(at)
        some = [row, *list(value.rows)[:2]]
        for backend, z in value.z.items():
            assert [z.weight(r) for r in some] == [value.rows.get(r, 0) for r in some], backend

    @rule(at=PICK)
    def scan(self, at):
        value = self.pick(at)
        for backend, z in value.z.items():
            rows, weights = [], []
            for batch, some in z.scan():
                rows += [tuple(row.values()) for row in batch.to_pylist()]
                weights += some.tolist()
            assert len(rows) == len(value.rows), backend
            assert model(rows, weights) == value.rows, backend

    @rule(at=PICK)
    def to_arrow(self, at):
        value = self.pick(at)
        tables = {}
        for backend, z in value.z.items():
            table = tables[backend] = z.to_arrow(weight="w")
            rows = [(k, s) for k, s, _ in zip(*table.to_pydict().values(), strict=True)]
            assert len(rows) == len(value.rows), backend
            assert model(rows, table["w"].to_pylist()) == value.rows, backend
            if any(w < 0 for w in value.rows.values()):
                with pytest.raises(SchemaError, match="negative"):
                    z.to_arrow()
            elif sum(value.rows.values()) < 10_000:
                plain = [(k, s) for k, s in zip(*z.to_arrow().to_pydict().values(), strict=True)]
                assert model(plain) == value.rows, backend
        assert len({str(t.to_pydict()) for t in tables.values()}) == 1, "the order differs between backends"

    @rule(at=PICK, other=PICK, mix=MIX)
    def compare(self, at, other, mix):
        a, b = self.pick(at), self.pick(other)
        for x, y in turned(mix):
            assert (a.z[x] == b.z[y]) == (a.rows == b.rows), (x, y)

    @rule(at=PICK)
    def open_view(self, at):
        value = self.pick(at)
        views = self.every(value, lambda z: z.arranged_view())
        self.views.append((value.rows, views))
        first = list(views["HashMap"])
        assert all(list(view) == first for view in views.values())

    @precondition(lambda self: self.views)
    @rule(index=st.integers(0, 3))
    def close_view(self, index):
        rows, views = self.views.pop(index % len(self.views))
        for backend, view in views.items():
            view.close()
            assert dict(view) == rows, backend
            assert len(view) == len(rows)

    # ------------------------------------------------------------------ always, and at the end

    @invariant()
    def the_form_is_one_of_those_there_are(self):
        forms = {b: z.form for b, z in self.values[-1].z.items()}
        assert forms["Adaptive"] in ("small", "memtable", "trace")
        assert (forms["HashMap"], forms["FastZSet"], forms["Batch"]) == ("hash", "memtable", "batches")

    def teardown(self):
        for value in self.values:
            for backend, z in value.z.items():
                assert contents(z) == value.rows, f"{backend} has changed"
        for rows, views in self.views:
            for view in views.values():
                assert dict(view) == rows
                view.close()
        self.retract(self.values[-1])

    def retract(self, value):
        rows = list(value.rows.items())
        for backend, z in value.z.items():
            for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                z = z.add_many([r for r, _ in part], [-w for _, w in part])
            assert list(z) == [], backend
            assert (z.count, z.total_weight, bool(z)) == (0, 0, False), backend
            assert z == ZSet.empty(SCHEMA, self.configs[backend]), backend
            assert sum(batch.num_rows for batch, _ in z.scan()) == 0, backend
            assert z.to_arrow().num_rows == 0, backend
            assert all(z.weight(row) == 0 for row, _ in rows[:3]), backend
            with z.arranged_view() as view:
                assert len(view) == 0, backend


class Heavy(RuleBasedStateMachine):
    """Weights at the edge of int64: a change is refused by every backend or by none, and then nothing of it is seen."""

    def __init__(self):
        super().__init__()
        configs = {b: ZSetConfig(backend=b, **TINY) for b in BACKENDS}
        self.values = [Value({}, {b: ZSet.empty(SCHEMA, c) for b, c in configs.items()})]

    def pick(self, index):
        return self.values[max(-1 - index, -len(self.values))]

    def change(self, value, rows, change):
        z = {}
        for backend, one in value.z.items():
            if all(abs(w) <= MAX for w in rows.values()):
                z[backend] = change(one)
            else:
                with pytest.raises(WeightOverflowError):
                    change(one)
        if z:
            self.values.append(Value(rows, z))

    @rule(at=LATELY, key=st.integers(0, 1), weight=HEAVY)
    def add(self, at, key, weight):
        value = self.pick(at)
        self.change(value, plus(value.rows, {(key, None): weight}), lambda z: z.add((key, None), weight))

    @rule(at=LATELY, key=st.integers(0, 1), weight=st.sampled_from([1, 1 << 60]))
    def add_and_take_back(self, at, key, weight):
        """Which leaves a memtable behind that holds nothing."""
        value = self.pick(at)
        if abs(value.rows.get((key, None), 0) + weight) <= MAX:
            self.change(value, value.rows, lambda z: z.add((key, None), weight).add((key, None), -weight))

    @rule(at=LATELY, weight=HEAVY)
    def add_a_heavy_row_beside_many_light_ones(self, at, weight):
        self.add_some(at, [weight], 20, "columns")

    @initialize(light=st.sampled_from([0, 60]))
    def begin(self, light):
        self.add_some(0, [], light, "columns")

    @rule(at=LATELY, heavy=st.lists(HEAVY, max_size=2), light=st.sampled_from([0, 2, 20]), how=st.sampled_from(WAYS))
    def add_some(self, at, heavy, light, how):
        """Some heavy rows, and light ones beside them; enough of them to go every way there is."""
        value = self.pick(at)
        keys = [(k, None) for k in [*range(len(heavy)), *range(100, 100 + light)]]
        weights = [*heavy, *[1] * light]

        def change(z):
            if how == "rows":
                return z.add_many(keys, weights)
            columns = [pa.array([k for k, _ in keys], pa.int64()), pa.nulls(len(keys), pa.string())]
            table = pa.table([*columns, pa.array(weights, pa.int64())], ["k", "s", "w"])
            return z + ZSet.from_arrow(table, "w", SCHEMA, z.config)

        self.change(value, plus(value.rows, model(keys, weights)), change)

    @rule(at=LATELY, other=PICK, sign=st.sampled_from([1, -1]))
    def add_another(self, at, other, sign):
        a, b = self.pick(at), self.pick(other)
        backends = iter(a.z)
        rows = plus(a.rows, times(b.rows, sign))
        self.change(a, rows, lambda z: z + b.z[next(backends)] if sign > 0 else z - b.z[next(backends)])

    @rule(at=LATELY, factor=st.sampled_from([-1, 2, -3, 1 << 62, MAX]))
    def scale(self, at, factor):
        value = self.pick(at)
        self.change(value, times(value.rows, factor), lambda z: z * factor)

    @rule(at=LATELY)
    def read(self, at):
        value = self.pick(at)
        for backend, z in value.z.items():
            assert contents(z) == value.rows, backend
            assert z.total_weight == sum(value.rows.values()), backend
            assert [z.weight((k, None)) for k in range(3)] == [value.rows.get((k, None), 0) for k in range(3)], backend

    @rule(at=LATELY, other=PICK, mix=MIX)
    def compare(self, at, other, mix):
        a, b = self.pick(at), self.pick(other)
        for x, y in turned(mix):
            assert (a.z[x] == b.z[y]) == (a.rows == b.rows), (x, y)

    def teardown(self):
        for value in self.values:
            for backend, z in value.z.items():
                assert contents(z) == value.rows, f"{backend} has changed"


def turned(mix):
    """Pairs of backends."""
    return list(zip(BACKENDS, BACKENDS[mix:] + BACKENDS[:mix], strict=True))


class Tiny(Machine):
    knobs = TINY
    span = 40


class Default(Machine):
    knobs: ClassVar[dict[str, object]] = {}
    span = 1500


def run(machine, share):
    examples = max(5, settings.default.max_examples // share)
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=STEPS))


@pytest.fixture
def tiny_constants(monkeypatch):
    """What is no knob is made as small as the knobs, so that few rows are many here too."""
    for module in (memtable, payload, adaptive):
        monkeypatch.setattr(module, "MAX_PYTHON_ROWS", 3)
    monkeypatch.setattr(adaptive, "MIN_SPINE_ROWS", 16)


def test_all_backends_agree_through_every_change_of_form(tiny_constants):
    run(Tiny, 1)


def test_all_backends_agree_while_batches_are_always_being_merged(tiny_constants, monkeypatch):
    for module in (payload, adaptive):
        monkeypatch.setattr(
            module,
            "spine_config",
            lambda _: SpineConfig(fanout=2, max_inline_merge_rows=4, merge_step_rows=8, merge_rows_per_row=2),
        )
    run(Tiny, 3)


def test_all_backends_refuse_the_same_overflows(tiny_constants):
    run(Heavy, 1)


def test_all_backends_agree_with_the_usual_knobs():
    run(Default, 4)
