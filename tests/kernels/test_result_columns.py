"""Result columns of the operator VM against Python: values of every width, sums, and rows that pass through."""

from decimal import Decimal
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
from tests.kernels.build import VM, column_of, passed, project

WIDTHS = {"TINYINT": 1, "SMALLINT": 2, "INT": 4, "BIGINT": 8, "DECIMAL(18, 0)": 16}


@pytest.fixture(autouse=True, scope="module")
def vm() -> None:
    compile_operator_vm()


@pytest.mark.parametrize("ddl", WIDTHS)
@given(data=st.data())
def test_computed_values_have_the_width_of_their_type(ddl: str, data: st.DataObject) -> None:
    width = WIDTHS[ddl]
    bound = 2 ** (8 * width - 1) - 1 if width < 16 else 10**18 - 1
    values = data.draw(st.lists(st.none() | st.integers(-bound, bound), min_size=1, max_size=20))
    vm, out = VM(2), Schema.parse(f"v {ddl}")
    vm.load(0, column_of(values, "BIGINT"))
    columns = (ks.COMPUTED, nd.FIXED, 0, width, 0)
    assert vm.run(project(out, columns, code=kv.line(kv.LOAD, 0, 0, nd.LANES))) == STATUS_OK
    assert [v for v, _ in vm.rows(1, out)] == values


MIXED = Schema.parse("stays BOOLEAN, s STRING, b BOOLEAN, n INT, d DECIMAL(30, 2), nothing VOID")
ROW = st.tuples(
    st.none() | st.booleans(), st.none() | st.sampled_from(["", "a", "Ärger", "x" * 70]), st.none() | st.booleans(),
    st.none() | st.integers(-(2**31), 2**31 - 1), st.none() | st.integers(-(10**9), 10**9).map(Decimal), st.none(),
)  # fmt: skip


@given(rows=st.lists(ROW, min_size=1, max_size=20), before=st.sampled_from([0, 3]))
def test_the_rows_that_pass_a_condition_are_gathered(rows: list[Any], before: int) -> None:
    arrays = [pa.array(c, t) for c, t in zip(zip(*(rows[:1] * before + rows), strict=True), MIXED.types, strict=True)]
    chunk = import_arrays(MIXED, [a.slice(before) for a in arrays], len(rows), None)
    vm = VM(2)
    vm.load(0, chunk)
    test = kv.line(kv.LOAD, 0, 0, nd.LANES)
    assert vm.run(project(MIXED, passed(*range(MIXED.columns)), test)) == STATUS_OK
    assert vm.rows(1, MIXED) == [(*row, 1) for row in rows if row[0]]


SUMS = Schema.parse("total DECIMAL(38, 0), number BIGINT")
TOTALS = st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-(2**64), 2**64) | st.integers(-100, 100)


@pytest.mark.parametrize("kind", ["64 bits", "128 bits", "average"])
@given(sums=st.lists(st.tuples(TOTALS, st.integers(0, 3)), min_size=1, max_size=6))
def test_sums_are_exact_or_left_to_the_operators(kind: str, sums: list[tuple[int, int]]) -> None:
    node = nd.LANES
    limit = 10**12
    description, ddl, fits, value = {
        "64 bits": (
            (ks.SUM64, nd.FIXED, node, node + 1, 0), "BIGINT",
            lambda total: -(2**63) <= total < 2**63, lambda total, number: total,
        ),
        "128 bits": (
            (ks.SUM128, nd.FIXED, node, node + 1, limit), "DECIMAL(12, 0)",
            lambda total: abs(total) < limit, lambda total, number: total,
        ),
        "average": (
            (ks.AVERAGE, nd.FLOAT64, node, node + 1, 0), "DOUBLE",
            lambda total: abs(total) <= 2**53, lambda total, number: total / number,
        ),
    }[kind]  # fmt: skip
    totals, numbers = zip(*sums, strict=True)
    arrays = [pa.array([Decimal(t) for t in totals], pa.decimal128(38, 0)), pa.array(numbers, pa.int64())]
    vm, out = VM(2), Schema.parse(f"v {ddl}")
    vm.load(0, import_arrays(SUMS, arrays, len(sums), None))
    status = vm.run(project(out, description))
    if all(fits(total) for total in totals):
        assert status == STATUS_OK
        assert [v for v, _ in vm.rows(1, out)] == [value(t, n) if n else None for t, n in sums]
    else:
        assert status == STATUS_FALL_BACK
