"""What is refused, how it says so, and that nothing of it was applied."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from dbspark.errors import DbsparkError, SchemaError, WeightOverflowError
from dbspark.zset import BACKENDS, ZSet, ZSetConfig, columns
from tests.zset.model import MAX, TINY, contents

SCHEMA = "id BIGINT, name STRING"
Z = [((1, "a"), 2), ((2, "b"), -1)]


@pytest.fixture
def z(each_backend):
    return ZSet.from_rows([row for row, _ in Z], SCHEMA, [weight for _, weight in Z])


@pytest.fixture(params=BACKENDS)
def config(request):
    return ZSetConfig(backend=request.param)


# ---------------------------------------------------------------------- rows that do not fit

MISSHAPEN = [
    (1,),
    (1, "a", 2),
    (),
    [1],
    {"id": 1},
    {"id": 1, "nam": "a"},
    {"id": 1, "name": "a", "x": 0},
    7,
    "ab",
    None,
]


@pytest.mark.parametrize("row", MISSHAPEN, ids=repr)
def test_a_row_of_the_wrong_shape_is_refused_naming_the_columns(z, row):
    for change in (z.add, z.weight, lambda r: z.add_many([(3, "c"), r]), lambda r: ZSet.from_rows([r], SCHEMA)):
        with pytest.raises(SchemaError, match=r"id.*name"):
            change(row)
    assert contents(z) == dict(Z)


MISFITS = [
    ("TINYINT", 128), ("TINYINT", "1"), ("SMALLINT", 1 << 15), ("INT", -(1 << 31) - 1), ("BIGINT", 1 << 63),
    ("BIGINT", 1.0), ("BIGINT", "1"), ("BIGINT", True), ("BIGINT", Decimal(1)), ("BIGINT", b"1"), ("BIGINT", (1,)),
    ("DOUBLE", "1.0"), ("DOUBLE", True), ("FLOAT", "1.0"), ("STRING", 1), ("STRING", ["a"]), ("STRING", b"\xff"),
    ("BOOLEAN", 1), ("BOOLEAN", "true"), ("DECIMAL(4, 2)", Decimal("123.45")), ("DECIMAL(4, 2)", Decimal("1.234")),
    ("DECIMAL(4, 2)", "1.23"), ("DATE", "2024-01-01"), ("BINARY", 5), ("TIMESTAMP", "now"),
    ("ARRAY<INT>", 5), ("ARRAY<INT>", ["x"]), ("STRUCT<a: INT, b: INT>", (1,)), ("STRUCT<a: INT>", ("x",)),
    ("MAP<STRING, INT>", {"a": "b"}), ("MAP<STRING, INT>", {None: 1}), ("MAP<STRING, INT>", 3), ("VOID", 1),
]  # fmt: skip


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize(("kind", "value"), MISFITS, ids=lambda v: repr(v) if not isinstance(v, str) else v)
def test_a_value_of_the_wrong_type_is_refused_naming_the_column(kind, value):
    z = ZSet.empty(f"id BIGINT, odd {kind}")
    for change in (z.add, z.weight, lambda row: z.add_many([(1, None), row])):
        with pytest.raises(SchemaError, match=r"column 'odd(\.\w+)?'"):
            change((1, value))
    assert z.is_empty()


@pytest.mark.usefixtures("each_backend")
def test_null_in_a_column_that_is_not_null_is_refused_naming_the_column():
    z = ZSet.from_rows([(1, "a")], "id BIGINT NOT NULL, name STRING")
    for change in (z.add, z.weight, lambda row: z.add_many([(2, "b"), row])):
        with pytest.raises(SchemaError, match=r"'id'.*NOT NULL"):
            change((None, "c"))
    assert contents(z) == {(1, "a"): 1}
    with pytest.raises(SchemaError, match=r"'id'.*NOT NULL"):
        ZSet.from_arrow(pa.table({"id": [1, None], "name": ["a", "b"]}), schema=z.schema)


def test_a_mapped_row_that_does_not_fit_is_refused_naming_the_column(z):
    with pytest.raises(SchemaError, match="'id'"):
        z.map_keys(lambda row: (str(row[0]), row[1]))
    with pytest.raises(SchemaError, match=r"id.*name"):
        z.map_keys(lambda row: row[:1])
    assert contents(z) == dict(Z)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_map_of_columns_must_give_as_many_rows_as_it_got(z, rows):
    with pytest.raises(SchemaError, match="2"):
        z.map_keys(columns(lambda _: pa.table({"id": pa.array(range(rows), pa.int64())})))


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_filter_of_columns_must_give_one_boolean_for_each_row(z, rows):
    with pytest.raises(SchemaError, match="2 rows"):
        z.filter(columns(lambda _: np.ones(rows, bool)))


def test_a_filter_of_columns_drops_rows_for_which_it_gives_null(z):
    assert contents(z.filter(columns(lambda _: pa.array([None, None], pa.bool_())))) == {}


def test_a_function_that_raises_leaves_everything_as_it_was(z):
    def fail(_):
        raise KeyError("mine")

    for operation in (z.filter, z.map_keys):
        for function in (fail, columns(fail)):
            with pytest.raises(KeyError, match="mine"):
                operation(function)
    assert contents(z) == dict(Z)


def test_rows_that_stop_in_the_middle_add_nothing(z):
    def rows():
        yield (5, "e")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        z.add_many(rows())
    assert contents(z) == dict(Z)


@pytest.mark.parametrize("weights", [[1], [1, 1, 1]])
def test_as_many_weights_as_rows_are_needed(z, weights):
    with pytest.raises(ValueError, match=r"zip|argument"):
        z.add_many([(1, "a"), (2, "b")], weights)
    assert contents(z) == dict(Z)


# ---------------------------------------------------------------------- Arrow data that does not fit


def test_missing_and_surplus_columns_are_named():
    with pytest.raises(SchemaError, match=r"missing: name.*not expected: title"):
        ZSet.from_arrow(pa.table({"id": [1], "title": ["a"]}), schema=SCHEMA)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("BIGINT", ["12"]), ("BIGINT", ["x"]), ("BIGINT", [1.5]), ("BIGINT", [True]), ("STRING", [12]),
        ("INT", [1 << 40]), ("DOUBLE", ["1.5"]), ("ARRAY<INT>", [1]), ("BOOLEAN", [1]), ("DATE", ["2024-01-01"]),
        ("BINARY", [1]), ("DECIMAL(4, 2)", [Decimal("123.45")]), ("STRUCT<a: INT>", [1]),
    ],
    ids=repr,
)  # fmt: skip
def test_a_column_of_another_type_is_refused_naming_it(kind, values):
    with pytest.raises(SchemaError, match="'odd'"):
        ZSet.from_arrow(pa.table({"odd": values}), schema=f"odd {kind}")


@pytest.mark.parametrize("dtype", [pa.uint32(), pa.float16(), pa.decimal256(50, 2)], ids=str)
def test_an_arrow_type_that_spark_does_not_have_is_refused_naming_the_column(dtype):
    with pytest.raises(SchemaError, match="'odd'"):
        ZSet.from_arrow(pa.table({"odd": pa.array([], dtype)}))


def test_columns_of_one_name_are_refused():
    with pytest.raises(SchemaError, match="not unique: a"):
        ZSet.empty("a INT, b INT, a INT")


def test_an_unknown_weight_column_is_refused_listing_the_columns():
    with pytest.raises(SchemaError, match=r"'weight'.*id, w"):
        ZSet.from_arrow(pa.table({"id": [1], "w": [1]}), weight="weight")


@pytest.mark.parametrize("weights", [[1.0], [None], ["1"], [True]], ids=repr)
def test_weights_must_be_integers_without_nulls(weights):
    with pytest.raises(SchemaError, match="'w'"):
        ZSet.from_arrow(pa.table({"id": [1], "w": pa.array(weights)}), weight="w")


@pytest.mark.usefixtures("each_backend")
def test_weights_of_any_integer_type_are_taken():
    for dtype in (pa.int8(), pa.uint8(), pa.int16(), pa.int32(), pa.uint64()):
        assert contents(ZSet.from_arrow({"id": [1], "w": pa.array([7], dtype)}, weight="w")) == {(1,): 7}


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(DbsparkError):
        ZSet.from_arrow({"id": [1], "name": ["a", "b"]})


def test_data_that_is_no_arrow_data_is_refused():
    with pytest.raises(SchemaError, match="list"):
        ZSet.from_arrow([(1, "a")])


def test_the_weight_column_must_not_be_one_of_the_rows(z):
    with pytest.raises(SchemaError, match="'name'"):
        z.to_arrow(weight="name")


def test_plain_rows_need_weights_that_are_not_negative(z):
    with pytest.raises(SchemaError, match="negative"):
        z.to_arrow()
    assert z.filter(lambda row: row[0] == 1).to_arrow().to_pylist() == [{"id": 1, "name": "a"}] * 2


# ---------------------------------------------------------------------- Z-sets that do not fit


@pytest.mark.parametrize(
    "other", ["id BIGINT", "id INT, name STRING", "name STRING, id BIGINT", "key BIGINT, name STRING"]
)
def test_z_sets_of_different_schemas_cannot_be_added(z, other):
    with pytest.raises(SchemaError, match=r"id: int64, name: string"):
        z + ZSet.empty(other)
    with pytest.raises(SchemaError, match=r"id: int64, name: string"):
        z - ZSet.empty(other)
    with pytest.raises(SchemaError, match=r"id: int64, name: string"):
        z.union_many([ZSet.empty(SCHEMA), ZSet.empty(other)])
    with pytest.raises(SchemaError, match=r"id: int64, name: string"):
        z.group_by("id") + ZSet.from_rows([], other)
    assert z != ZSet.empty(other)


def test_only_z_sets_can_be_added(z):
    for operation in (lambda: z + 1, lambda: z - 1, lambda: z.union(None), lambda: z.union_many([z, "z"])):
        with pytest.raises(TypeError):
            operation()


def test_comparing_with_something_else_is_false_and_never_an_error(config):
    z = ZSet.singleton((1, "a"), 1, SCHEMA, config)
    assert z != 1
    assert z != {(1, "a"): 1}
    assert z != ZSet.singleton((1,), 1, "id BIGINT", config)


@pytest.mark.parametrize("backend", BACKENDS)
def test_not_null_columns_do_not_matter_to_equality(config, backend):
    strict = ZSet.singleton((1,), 1, "id BIGINT NOT NULL", config)
    loose = ZSet.singleton((1,), 1, "id BIGINT", ZSetConfig(backend=backend))
    assert strict == loose
    assert loose == strict
    assert loose.add((None,)) != strict
    assert loose.add((1,)) != strict


def test_a_z_set_has_no_hash(z):
    with pytest.raises(TypeError, match="unhashable"):
        hash(z)


# ---------------------------------------------------------------------- weights

NOT_WEIGHTS = [1.5, 1.0, "1", None, Decimal(1), np.float64(2)]


@pytest.mark.parametrize("weight", NOT_WEIGHTS, ids=repr)
def test_a_weight_that_is_no_integer_is_refused_and_never_rounded(config, weight):
    z = ZSet.singleton((1, "a"), 1, SCHEMA, config)
    for change in (lambda: z.add((1, "a"), weight), lambda: z.add_many([(1, "a")], [weight]), lambda: z.scale(weight)):
        with pytest.raises((DbsparkError, TypeError)):
            change()
    assert contents(z) == {(1, "a"): 1}


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16])
def test_integers_of_numpy_are_weights_like_any_other(config, dtype):
    z = ZSet.empty(SCHEMA, config).add((1, "a"), dtype(3)).add_many([(1, "a")], np.array([4], dtype)).scale(dtype(2))
    assert contents(z) == {(1, "a"): 14}


ROW = (1, "a")
WAYS = {
    "add": lambda z, w: z.add(ROW, w),
    "add of numpy": lambda z, w: z.add(ROW, np.int64(w)),
    "add_many": lambda z, w: z.add_many([(2, "b"), ROW, (3, "c")], [1, w, 1]),
    "plus": lambda z, w: z + ZSet.from_rows([(2, "b"), ROW, (3, "c")], SCHEMA, [1, w, 1], z.config),
    "union_many": lambda z, w: z.union_many([ZSet.singleton(ROW, w, SCHEMA, z.config)]),
    "arrow": lambda z, w: z + ZSet.from_arrow({"id": [1], "name": ["a"], "w": [w]}, "w", SCHEMA, z.config),
    "frozen": lambda z, w: z.add(ROW, w).freeze(),
}  # fmt: skip


@pytest.mark.parametrize("sign", [1, -1], ids=["up", "down"])
@pytest.mark.parametrize("second", WAYS)
@pytest.mark.parametrize("first", WAYS)
def test_a_weight_beyond_int64_is_refused_at_once_and_nothing_is_applied(config, first, second, sign):
    z = WAYS[first](ZSet.empty(SCHEMA, config), sign * MAX)
    before = contents(z)
    assert before[ROW] == sign * MAX
    for weight in (sign, sign * MAX):
        with pytest.raises(WeightOverflowError):
            WAYS[second](z, weight)
    assert contents(z) == before
    assert z.weight(ROW) == sign * MAX
    assert z.count == len(before)
    assert contents(WAYS[second](z, -sign * MAX)) == contents(WAYS[second](ZSet.empty(SCHEMA, config), -sign * MAX) + z)


def test_an_overflow_beside_many_rows_is_refused_in_every_form(config):
    """The heavy row lies in the oldest batch, in the memtable or in both, with thousands of others around it."""
    for knobs in ({}, TINY):
        z = ZSet.empty(SCHEMA, ZSetConfig(backend=config.backend, **knobs)).add(ROW, MAX)
        for i in range(40):
            z = z.add_many([(100 * i + k, "x") for k in range(100)])
            if i % 10 == 5:
                z = z.add((i, "y"))
            if i % 13 == 7:
                with pytest.raises(WeightOverflowError):
                    z.add(ROW)
                with pytest.raises(WeightOverflowError):
                    z.add_many([(9, "z"), ROW])
                with pytest.raises(WeightOverflowError):
                    z + ZSet.from_rows([(k, "w") for k in range(3000)] + [ROW], SCHEMA, config=z.config)
        assert z.weight(ROW) == MAX
        assert z.weight((9, "z")) == 0
        assert z.weight((9, "w")) == 0
        assert z.count == 4001 + 4
        assert z.add(ROW, -1).weight(ROW) == MAX - 1


@pytest.mark.parametrize("waiting", [0, 1], ids=["nothing waits", "a row waits"])
def test_an_overflow_is_seen_where_a_row_is_both_waiting_and_in_a_large_delta(config, waiting):
    """The memtable was made before the heavy row came to lie beside it."""
    third = 1 << 60
    for heavy, steps in ((MAX - 10, [100]), (MAX - third - 20, [third, third])):
        z = ZSet.from_arrow({"id": range(1000, 4000), "name": ["x"] * 3000}, schema=SCHEMA, config=config)
        z = z.add((7, "y")).add((7, "y"), waiting - 1)
        delta = {"id": range(300), "name": ["x"] * 300, "w": [heavy, *[1] * 299]}
        z = z + ZSet.from_arrow(delta, "w", SCHEMA, config)
        for step in steps[:-1]:
            z = z.add((0, "x"), step)
        weight = heavy + sum(steps[:-1])
        assert z.weight((0, "x")) == weight
        with pytest.raises(WeightOverflowError):
            z.add((0, "x"), steps[-1])
        with pytest.raises(WeightOverflowError):
            z.add_many([(0, "x"), (5, "y")], [steps[-1], 1])
        assert z.weight((0, "x")) == weight
        assert z.weight((5, "y")) == 0


def test_a_delta_that_overflows_in_its_last_row_changes_none_of_the_others(config):
    rows = [(i, "x") for i in range(50)]
    z = ZSet.from_rows(rows, SCHEMA, [1] * 49 + [MAX], config)
    for again in range(2):
        with pytest.raises(WeightOverflowError):
            z.add_many(rows)
        with pytest.raises(WeightOverflowError):
            z + ZSet.from_rows(rows, SCHEMA, config=config)
        assert contents(z) == {**dict.fromkeys(rows, 1), rows[-1]: MAX}, again


def test_one_delta_may_not_overflow_by_itself(config):
    z = ZSet.empty(SCHEMA, config)
    with pytest.raises(WeightOverflowError):
        z.add(ROW, MAX + 1)
    with pytest.raises(WeightOverflowError):
        z.add_many([ROW, ROW], [MAX, 1])
    with pytest.raises(WeightOverflowError):
        z.add_many([ROW], [-MAX - 1])
    with pytest.raises(WeightOverflowError):
        ZSet.from_arrow({"id": [1, 1], "name": ["a", "a"], "w": [MAX, 1]}, "w", SCHEMA, config)
    assert z.is_empty()


def test_the_least_int64_is_no_weight_because_it_has_no_opposite(config):
    with pytest.raises(WeightOverflowError):
        ZSet.from_arrow({"id": [1], "name": ["a"], "w": [-MAX - 1]}, "w", SCHEMA, config)
    with pytest.raises(WeightOverflowError):
        ZSet.from_arrow({"id": [1, 1], "name": ["a", "a"], "w": [-MAX, -1]}, "w", SCHEMA, config)
    with pytest.raises(WeightOverflowError):
        ZSet.from_arrow({"id": [1], "w": pa.array([MAX + 1], pa.uint64())}, "w", config=config)


def test_scaling_and_mapping_beyond_int64_are_refused(config):
    z = ZSet.from_rows([(1, "a"), (2, "b")], SCHEMA, [MAX // 2, -MAX], config)
    for factor in (2, -2, MAX, 1 << 70):
        with pytest.raises(WeightOverflowError):
            z.scale(factor)
    with pytest.raises(WeightOverflowError):
        z.add((2, "b"), MAX).add((3, "c"), MAX).map_keys(lambda _: (0, "z"))
    with pytest.raises(WeightOverflowError):
        z.add((2, "b"), MAX).add((3, "c"), MAX).map_keys(
            columns(lambda batch: {"id": pa.array([0] * batch.num_rows, pa.int64()), "name": ["z"] * batch.num_rows})
        )
    assert contents(-z) == {(1, "a"): -(MAX // 2), (2, "b"): MAX}


def test_rows_that_are_gone_do_not_overflow(config):
    z = ZSet.from_rows([(0, "x"), (1, "a"), (2, "b")], SCHEMA, [MAX, 1, 1], config)
    z = z - ZSet.from_rows([(0, "x")], SCHEMA, [MAX], config)
    assert contents(z.scale(2)) == {(1, "a"): 2, (2, "b"): 2}
    assert contents(z.add((0, "x"), -MAX).add((0, "x"), MAX)) == {(1, "a"): 1, (2, "b"): 1}


def test_rows_that_are_gone_are_shown_to_no_function(config):
    rows = [(i, "x") for i in range(5)]
    z = ZSet.from_rows(rows, SCHEMA, config=config) - ZSet.from_rows(rows[:1], SCHEMA, config=config)
    seen = []

    def note(row):
        seen.append(row[0])
        return row

    z.filter(note)
    z.map_keys(note)
    assert sorted(seen) == [1, 1, 2, 2, 3, 3, 4, 4]
    shown = []
    z.filter(columns(lambda batch: shown.extend(batch["id"].to_pylist()) or np.ones(batch.num_rows, bool)))
    z.map_keys(columns(lambda batch: shown.extend(batch["id"].to_pylist()) or batch))
    assert sorted(shown) == [1, 1, 2, 2, 3, 3, 4, 4]


def test_the_sum_of_all_weights_may_be_beyond_int64(config):
    z = ZSet.from_rows([(1, "a"), (2, "b"), (3, "c")], SCHEMA, [MAX, MAX, -1], config)
    assert z.total_weight == 2 * MAX - 1
    assert (-z).total_weight == 1 - 2 * MAX
    assert z.add((4, "d"), MAX).total_weight == 3 * MAX - 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_opposite_extremes_compare_without_an_overflow(config, backend):
    high = ZSet.singleton(ROW, MAX, SCHEMA, config)
    low = ZSet.singleton(ROW, -MAX, SCHEMA, ZSetConfig(backend=backend))
    assert high != low
    assert low != high
    assert -high == low


def test_an_overflow_says_what_happened_and_that_nothing_was_applied(z):
    for change in (lambda: z.add((1, "a"), MAX), lambda: z.add_many([(1, "a")], [MAX])):
        with pytest.raises(WeightOverflowError, match=r"int64.*nothing was applied"):
            change()


def test_a_sum_is_refused_for_its_result_and_not_for_a_part_of_it(config):
    """The second summand holds a row in several batches, of which the first by itself would be too much."""
    light = [(i, "x") for i in range(60)]
    a = ZSet.from_rows([ROW, *light], SCHEMA, [MAX - 10] + [1] * 60, config)
    b = ZSet.from_rows([ROW, *light], SCHEMA, [1 << 61] + [1] * 60, config)
    b = b + ZSet.from_rows([ROW, *light], SCHEMA, [-(1 << 61)] + [1] * 60, config)
    assert (a + b).weight(ROW) == (b + a).weight(ROW) == MAX - 10
    assert (a + b).weight((3, "x")) == 3
