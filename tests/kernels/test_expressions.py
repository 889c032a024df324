"""Expression bytecode against Python: three-valued logic, exact arithmetic, and falling back where int64 ends."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Schema
from dbspark.columnar.chunk import import_arrays
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.preload import compile_operator_vm
from dbspark.kernels.vm import expressions as kv
from dbspark.kernels.vm import result_columns as ks
from dbspark.kernels.vm.registers import STATUS_FALL_BACK, STATUS_OK
from tests.kernels.build import VM, column_of, project
from tests.strategies import INT64_MAX

PAIR = Schema.parse("a BIGINT, b BIGINT")
INT64 = (-INT64_MAX, INT64_MAX)
NUMBER = st.none() | st.integers(-3, 3) | st.sampled_from([INT64_MAX, -INT64_MAX, 2**31, 2**32])
ROWS = st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=6)
NUMBERS = st.recursive(
    st.sampled_from([("a",), ("b",)]) | NUMBER.map(lambda v: ("constant", v)),
    lambda inner: st.tuples(st.sampled_from(["+", "-", "*"]), inner, inner),
    max_leaves=4,
)
CONDITIONS = st.recursive(
    st.tuples(st.sampled_from(["=", "<=>", "<", "<="]), NUMBERS, NUMBERS)
    | st.tuples(st.just("in"), NUMBERS, st.lists(NUMBER, max_size=3)),
    lambda inner: (
        st.tuples(st.sampled_from(["and", "or"]), inner, inner) | st.tuples(st.sampled_from(["not", "is null"]), inner)
    ),
    max_leaves=4,
)
BINARY = {
    "+": kv.ADD, "-": kv.SUBTRACT, "*": kv.MULTIPLY, "=": kv.EQUAL, "<=>": kv.NULL_SAFE_EQUAL, "<": kv.LESS,
    "<=": kv.LESS_OR_EQUAL, "and": kv.AND, "or": kv.OR,
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def vm() -> None:
    compile_operator_vm()


def encode(expr: Any, code: list[int]) -> int:
    """Append the code of an expression; returns its slot. Slot 0 is left for the result."""
    name, *operands = expr
    if name in "ab":
        words = kv.LOAD, 0, nd.LANES + "ab".index(name)
    elif name == "constant":
        words = kv.CONSTANT, operands[0] or 0, int(operands[0] is None)
    elif name == "in":
        values = [v for v in operands[1] if v is not None]
        words = kv.IN_SET, encode(operands[0], code), int(None in operands[1]), len(values), *values
    elif name in ("not", "is null"):
        words = kv.NOT if name == "not" else kv.IS_NULL, encode(operands[0], code)
    else:
        words = BINARY[name], *(encode(o, code) for o in operands)
        words += INT64 if name in "+-*" else ()
    slot = next_slot(code)
    code += kv.line(words[0], slot, *words[1:])
    return slot


def next_slot(code: list[int]) -> int:
    return max(1, kv.slot_count(code))


def value_of(expr: Any, row: Any) -> Any:
    """What SQL says; OverflowError where a number does not fit."""
    name, *operands = expr
    if name in "ab":
        return row["ab".index(name)]
    if name == "constant":
        return operands[0]
    x = value_of(operands[0], row)
    if name == "in":
        if x is None or (x not in operands[1] and None in operands[1]):
            return None
        return x in operands[1]
    if name == "not":
        return None if x is None else not x
    if name == "is null":
        return x is None
    y = value_of(operands[1], row)
    if name == "<=>":
        return x == y
    if name in ("and", "or"):
        decides = name == "or"
        if decides in (x, y):
            return decides
        return None if None in (x, y) else not decides
    if None in (x, y):
        return None
    if name in "+-*":
        result = {"+": x + y, "-": x - y, "*": x * y}[name]
        if abs(result) > INT64_MAX:
            raise OverflowError
        return result
    return {"=": x == y, "<": x < y, "<=": x <= y}[name]


def results_of(expr: Any, rows: Any, boolean: bool) -> tuple[int, list[Any]]:
    code: list[int] = []
    slot = encode(expr, code)
    kind, width, ddl = (nd.BIT, 0, "BOOLEAN") if boolean else (nd.FIXED, 8, "BIGINT")
    vm, out = VM(2), Schema.parse(f"v {ddl}")
    arrays = [pa.array(c, pa.int64()) for c in zip(*rows, strict=True)]
    vm.load(0, import_arrays(PAIR, arrays, len(rows), None))
    status = vm.run(project(out, (ks.COMPUTED, kind, slot, width, 0), code=code))
    return status, [v for v, _ in vm.rows(1, out)] if status == STATUS_OK else []


@given(data=st.data(), boolean=st.booleans(), rows=ROWS)
def test_results_are_those_of_sql_or_none(data: st.DataObject, boolean: bool, rows: Any) -> None:
    expr = data.draw(CONDITIONS if boolean else NUMBERS)
    try:
        expected = STATUS_OK, [value_of(expr, row) for row in rows]
    except OverflowError:
        expected = STATUS_FALL_BACK, []
    assert results_of(expr, rows, boolean) == expected


@given(st.floats(), st.floats())
def test_encoded_floats_have_the_order_of_spark(x: float, y: float) -> None:
    def rank(v: float) -> tuple[bool, float]:
        return v != v, 0.0 if v != v else v

    assert (kv.encode_float(x) < kv.encode_float(y)) == (rank(x) < rank(y))
    assert (kv.encode_float(x) == kv.encode_float(y)) == (rank(x) == rank(y))


@given(values=st.lists(st.floats(), min_size=1, max_size=8), constant=st.floats())
def test_loaded_floats_compare_as_encoded_constants(values: list[float], constant: float) -> None:
    code = [
        *kv.line(kv.LOAD, 1, 0, nd.LANES), *kv.line(kv.CONSTANT, 2, kv.encode_float(constant), 0),
        *kv.line(kv.LESS, 0, 1, 2),
    ]  # fmt: skip
    vm, out = VM(2), Schema.parse("v BOOLEAN")
    vm.load(0, column_of(values, "DOUBLE"))
    assert vm.run(project(out, (ks.COMPUTED, nd.BIT, 0, 0, 0), code=code)) == STATUS_OK
    expected = [kv.encode_float(v) < kv.encode_float(constant) for v in values]
    assert [v for v, _ in vm.rows(1, out)] == expected


TEXTS = st.sampled_from(["", "a", "ab", "b", "Ärger", "x" * 40])


@given(st.lists(st.none() | TEXTS, min_size=1, max_size=8), st.lists(st.none() | TEXTS, max_size=3))
def test_strings_are_found_among_constants(values: list[Any], constants: list[Any]) -> None:
    texts = [pa.py_buffer(c.encode()) for c in constants if c is not None]
    where = [word for text in texts for word in (text.address, text.size)]
    code = kv.line(kv.STRING_IN_SET, 0, 0, nd.LANES, int(None in constants), len(texts), *where)
    vm, out = VM(2), Schema.parse("v BOOLEAN")
    vm.load(0, column_of(values, "STRING"))
    assert vm.run(project(out, (ks.COMPUTED, nd.BIT, 0, 0, 0), code=code)) == STATUS_OK
    expected = [value_of(("in", ("constant", v), constants), ()) for v in values]
    assert [v for v, _ in vm.rows(1, out)] == expected


@given(st.lists(st.integers(-(2**63) + 1, 2**63 - 1), min_size=1, max_size=5), st.integers(-50, 50), st.integers(1, 40))
def test_window_bounds_are_multiples_of_the_slide_or_none(times: list[int], origin: int, slide: int) -> None:
    code = [*kv.line(kv.LOAD, 1, 0, nd.LANES), *kv.line(kv.WINDOW_BOUND, 0, 1, origin, slide, 7)]
    vm, out = VM(2), Schema.parse("v BIGINT")
    vm.load(0, column_of(times, "BIGINT"))
    status = vm.run(project(out, (ks.COMPUTED, nd.FIXED, 0, 8, 0), code=code))
    if any(abs(t) >= 2**62 for t in times):
        assert status == STATUS_FALL_BACK
    else:
        assert [v for v, _ in vm.rows(1, out)] == [t - (t - origin) % slide + 7 for t in times]
