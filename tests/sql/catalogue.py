"""The table of edge values, the examples of docs/sql.md, and what Spark and dbspark make of them.

Every example is an expression over the columns of one table. Spark's answer comes from Spark jobs of many examples
each. An expression can fail on some rows and not on others: the jobs say on which, and give the values of the rest.
Ours have to agree on both.
"""

from __future__ import annotations

import logging
import math
import random
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dbspark.columnar.schema import Schema
from dbspark.errors import DbsparkError, EvaluationError
from dbspark.sql.analysis_session import TableLeaves
from dbspark.sql.catalyst import EXCLUDED_RULES, read_plan
from dbspark.sql.expressions.compiler import ExpressionCompiler
from dbspark.sql.expressions.rules import ColumnFrame, Compiled, Context
from dbspark.sql.plan import Call, Project, Table
from dbspark.sql.types import from_json, with_nullable_children

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DOCUMENT = Path(__file__).parents[2] / "docs" / "sql.md"
TIMEZONE = "America/Los_Angeles"
"""The session's time zone in these tests: one with daylight saving time."""
ROWS = 96

# ---------------------------------------------------------------------- edge values

_INF = math.inf

_DOUBLES = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 0.1, 0.3, 2.675, 1.005, 123.456, -987.654, 1e-5, 1e-3, 1e7,
    9999999.0, 12345678.9, 1e10, -1e15, 1e16, 1.7976931348623157e308, -1.7976931348623157e308, 4.9e-324,
    2.2250738585072014e-308, 9.223372036854775e18, 2.0**63, -(2.0**63), 2147483647.5, -2147483648.5, 1e100,
    1e-100, 2.0e-3, math.pi, 100.0, math.nan, _INF, -_INF, None,
]  # fmt: skip

_TEXTS = [
    "", " ", "a", "abc", "ABC", "Abc def", "  padded  ", "\tx\n", "ärger", "ÄRGER", "straße", "日本語", "a日b", "é",
    "😀 smile", "e\u0301", "%", "a%b_c", "\\", "it's", '"q"', "a,b,,c", "0", "1", "-1", "+7", " 42 ", "007", "1.5",
    "-0.0", ".5", "5.", "1e3", "1E-2", "1.0E10", "NaN", "nan", "Infinity", "-inf", "1d", "0x1A",
    "9223372036854775807", "9223372036854775808", "2147483648", "128", "99999999999999999999999999999999999999",
    "1234567890.125", "true", "FALSE", "t", "no", "2024-02-29", "2023-02-29", "2024-3-1", "1999", "2024-11",
    "2024-02-29T12:34:56.789Z", "2024-03-10 02:30:00", "2024-07-01 10:11:12.5+05:30", "12:34", "0001-01-01",
    "ABC\x00D", "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz", None,
]  # fmt: skip

_DATES = [
    None if text is None else date.fromisoformat(text) for text in (
        "1970-01-01", "1969-12-31", "2024-02-29", "2023-02-28", "2024-12-31", "2024-12-30", "2021-01-03",
        "2024-03-10", "2024-11-03", "1900-01-01", "1582-10-04", "1582-10-15", "0001-01-01", "9999-12-31",
        "2000-01-31", "2024-07-04", "2020-06-15", None,
    )
]  # fmt: skip

_MOMENTS = [
    None if text is None else datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (
        "1970-01-01 00:00:00", "1969-12-31 23:59:59.999999", "2024-02-29 12:34:56.789000",
        "2024-03-10 09:59:59.999999", "2024-03-10 10:00:00",  # Los Angeles goes from 1:59:59 to 3:00:00,
        "2024-11-03 08:30:00", "2024-11-03 09:30:00",  # and has 1:30:00 twice
        "2024-12-31 23:59:59.500000", "2000-01-01 00:00:00.000001", "1900-01-01 00:00:00", "1883-11-18 20:00:00",
        "1582-10-10 01:02:03", "0001-01-03 00:00:00", "9999-12-30 23:59:59.999999", "2024-07-04 16:20:00.120000",
        "2020-06-15 07:08:09", "2024-03-10 02:30:00", None,
    )
]  # fmt: skip

_JSON = [
    "", "{}", "[]", "null", "1", '"s"', "not json", '{"a":1}', '{"a":1.50,"b":"x"}',
    '{"a":{"b":[1,2,{"c":null}]},"d":true}', "[1,2,3]", '[{"a":1},{"a":2}]', '{"a":"日本 \\u00e9 \\n"}',
    '{"a":1,"a":2}', ' {"a" : "sp" } ', '{"a":1', '{"a":12345678901234567890}', '{"a":1e3,"b":-0.0}', '{"a":[]}',
    '{"a":""}', None,
]  # fmt: skip


def _decimals(*texts: str) -> list[Decimal | None]:
    return [*map(Decimal, texts), None]


def _recent(values: list[Any]) -> list[Any]:
    return [v for v in reversed(values) if v is None or 1900 <= v.year < 9000]


POOLS: dict[str, list[Any]] = {
    "b": [True, False, None],
    "t": [0, 1, -1, 127, -128, 2, 7, -5, 100, None],
    "s": [0, 1, -1, 32767, -32768, 12, 255, -256, 300, None],
    "i": [0, 1, -1, 2**31 - 1, -(2**31), 2, 3, 5, 10, 42, -7, 65535, 1999, 2024, 123456789, None],
    "i2": [0, 1, 2, 3, -1, -2, -3, 4, 7, 31, 32, 33, 100, 2**31 - 1, -(2**31), None],
    "l": [
        0, 1, -1, 2**63 - 1, -(2**63), 2**31, -(2**31) - 1, 2**53 + 1, 10, 42, -7, 20, 21, 1_700_000_000, 3_037_000_500,
        -3_037_000_500, 999_999_999_999, None,
    ],
    "l2": [
        0, 1, 2, 3, -1, -2, -3, 10, 63, 64, 65, 1000, 2**63 - 1, -(2**63), 3_037_000_500, 1_000_000_007, None,
    ],
    "f": [
        0.0, -0.0, 1.0, -1.5, 0.1, 2.5, 3.4028234663852886e38, 1.401298464324817e-45, 16777216.0, 1e10, 1e-5, 123.456,
        2147483648.0, math.nan, _INF, -_INF, None,
    ],
    "d": _DOUBLES,
    "d2": [
        0.0, -0.0, 1.0, 2.0, -2.0, 0.5, -0.5, 3.0, 10.0, 0.1, 1e-3, 1e10, 1e300, -1e300, 5e-324, 1.25, 7.0, math.nan,
        _INF, -_INF, None,
    ],
    "c": _decimals(
        "0", "0.01", "-0.01", "1.00", "-1.00", "0.05", "2.50", "-2.50", "9999999999.99", "-9999999999.99", "123.45",
        "-678.90", "1000000", "0.99", "49.95", "3.00",
    ),
    "c2": _decimals(
        "0", "0.0000000001", "-0.0000000001", "1", "-1", "0.5", "1.5", "2.5", "-2.5", "0.3333333333", "7",
        "9999999999999999999999999999.9999999999", "-9999999999999999999999999999.9999999999", "-98765.4321",
        "12345678901234567890.0123456789", "1000000000", "127.9999999999", "9223372036854775807.5", "2147483648",
    ),
    "str": _TEXTS,
    "str2": ["", "a", "b", "bc", " ", "日", "😀", "%", "abc", "e", "ß", ",", "1", "x", "A", "padded", None],
    "bin": [
        b"", b"a", b"abc", b"\x00", b"\xff\x00\x7f", b"\xc3\xa4", b"\xff\xfe", b"0123456789abcdef0123456789",
        b"\x01\x02\x03\x04\x05", b"\x80" * 9, None,
    ],
    "dt": _DATES,
    "dt2": _recent(_DATES),
    "ts": _MOMENTS,
    "ts2": _recent(_MOMENTS),
    "ntz": [None if m is None else m.replace(tzinfo=None) for m in _MOMENTS],
    "a": [
        [], [1], [1, 2, 3], [3, 1, 2], [1, 1, 2, 2], [None], [1, None, 3], [None, None], [2**63 - 1, 1], [-(2**63)],
        [5, 4, 3, 2, 1], [0, 42, -7], None,
    ],
    "a2": [
        [], ["a"], ["b", "a", "c"], ["a", "b", "a"], [None], ["a", None, "日本"], ["", " "], ["x"],
        ["😀", "e\u0301", "é"], ["1", "2", "x"], None,
    ],
    "m": [
        [], [("a", 1)], [("a", 1), ("b", 2)], [("b", 2), ("a", 1)], [("", None)],
        [("日", 2**63 - 1), ("x", None), ("abc", -1)], None,
    ],
    "st": [
        {"x": 1, "y": "a"}, {"x": None, "y": None}, {"x": -(2**63), "y": "日本"}, {"x": 42, "y": None},
        {"x": None, "y": ""}, None,
    ],
    "js": _JSON,
}  # fmt: skip
"""Values of each column; every value is in some row, and the rest of the rows are drawn at random."""

DDL = """
b BOOLEAN, t TINYINT, s SMALLINT, i INT, i2 INT, l BIGINT, l2 BIGINT, f FLOAT, d DOUBLE, d2 DOUBLE,
c DECIMAL(12,2), c2 DECIMAL(38,10), str STRING, str2 STRING, bin BINARY, dt DATE, dt2 DATE,
ts TIMESTAMP, ts2 TIMESTAMP, ntz TIMESTAMP_NTZ, a ARRAY<BIGINT>, a2 ARRAY<STRING>, m MAP<STRING,BIGINT>,
st STRUCT<x:BIGINT,y:STRING>, js STRING, n BIGINT
"""
"""The columns as Spark knows them; `n` is the number of the row."""


@cache
def edge_values() -> pa.Table:
    """The rows that every example is evaluated on."""
    random_ = random.Random(5)
    schema = Schema.of(DDL).arrow
    columns = []
    for field_ in schema:
        pool = POOLS.get(field_.name, range(ROWS))
        assert len(pool) <= ROWS
        values = [*pool, *(random_.choice(pool) for _ in range(ROWS - len(pool)))]
        if field_.name[-1] == "2":  # so that the first values of two columns of one type do not always meet
            random_.shuffle(values)
        columns.append(pa.array(values, field_.type))
    return pa.table(columns, schema=schema)


# ---------------------------------------------------------------------- examples


@dataclass(frozen=True, slots=True)
class Example:
    """One line of a table of docs/sql.md."""

    section: str
    function: str
    sql: str
    how: str

    def __str__(self) -> str:
        return self.sql


@cache
def examples() -> tuple[Example, ...]:
    """All lines of all tables with the columns function, example and how."""
    out = []
    section, inside = "", False
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:].strip()
        if not line.startswith("|"):
            inside = False
            continue
        cells = [c.strip() for c in line.replace(r"\|", "\0").strip().strip("|").split("|")]
        if cells == ["function", "example", "how"]:
            inside = True
        elif inside and not set(line) <= set("|-: "):
            function, sql, how = (c.replace("\0", "|") for c in cells)
            out.append(Example(section, function.strip("`"), sql.strip("`").strip(), how))
    return tuple(out)


# ---------------------------------------------------------------------- Spark's side


@contextmanager
def settings(spark: SparkSession, ansi: bool) -> Iterator[None]:
    """The session with ANSI mode on or off, in the time zone of these tests."""
    wanted = {
        "spark.sql.ansi.enabled": str(ansi).lower(),
        "spark.sql.session.timeZone": TIMEZONE,
        "spark.sql.subexpressionElimination.enabled": "false",
        "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation",
    }
    errors = logging.getLogger("SQLQueryContextLogger")  # which prints every query that Spark refuses
    quiet = errors.disabled
    errors.disabled = True
    try:
        with scoped(spark, wanted):
            yield
    finally:
        errors.disabled = quiet


@contextmanager
def scoped(spark: SparkSession, wanted: dict[str, str]) -> Iterator[None]:
    before = {k: spark.conf.get(k, None) for k in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


@dataclass(slots=True)
class Answer:
    """What Spark says of one example: a value for each row, or that the row fails."""

    type: pa.DataType | None = None
    values: pa.Array | None = None
    failing: frozenset[int] = frozenset()
    error: str = ""
    """Why Spark does not take the example at all, if it does not."""


@dataclass(slots=True)
class Oracle:
    """Spark's answers for a list of expressions, many to a job."""

    spark: SparkSession
    data: pa.Table = field(default_factory=edge_values)
    batch: int = 40

    def __post_init__(self) -> None:
        self.spark.createDataFrame(self.data, DDL).createOrReplaceTempView("edge_values")

    def answers(self, given: Sequence[str]) -> list[Answer]:
        out: list[Answer] = []
        for at in range(0, len(given), self.batch):
            out.extend(self._batch(list(given[at : at + self.batch])))
        return out

    def _batch(self, given: list[str]) -> list[Answer]:
        try:
            return self._job(given)
        except Exception as error:
            if len(given) > 1:
                half = len(given) // 2
                return self._batch(given[:half]) + self._batch(given[half:])
            return [Answer(error=str(error).split("\n\n")[0][:500])]

    def _job(self, given: list[str]) -> list[Answer]:
        """One job. Each value is in a struct of its own, which is NULL instead if computing the value fails."""
        columns = ", ".join(f"struct({sql} AS v) AS e{i}" for i, sql in enumerate(given))
        frame = self.spark.sql(f"SELECT {columns}, n FROM edge_values")
        types = [from_json(f.dataType.fields[0].dataType.jsonValue()) for f in frame.schema.fields[:-1]]
        table = self._tried(frame).toArrow()
        out = []
        for i, dtype in enumerate(types):
            column = table.column(i).combine_chunks()
            failing = frozenset(int(r) for r in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)))
            values = column.flatten()[0]
            out.append(Answer(dtype, values if values.type == dtype else _recast(values, dtype), failing))
        return out

    def _tried(self, frame: DataFrame) -> DataFrame:
        """The query with every output but the last inside Catalyst's TryEval, which makes NULL of a failure."""
        from pyspark.sql import DataFrame

        jvm: Any = self.spark._jvm
        catalyst = jvm.org.apache.spark.sql.catalyst
        project = frame._jdf.queryExecution().analyzed()
        outputs = project.projectList()
        tried = []
        for i in range(outputs.size()):
            output = outputs.apply(i)
            if i < outputs.size() - 1:
                inside = catalyst.expressions.TryEval(output.children().apply(0))
                output = output.withNewChildren(jvm.PythonUtils.toSeq([inside]))
            tried.append(output)
        plan = catalyst.plans.logical.Project(jvm.PythonUtils.toSeq(tried), project.child())
        made = DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(self.spark._jsparkSession, plan), self.spark)
        return made.sort("n")


def _recast(values: pa.Array, dtype: pa.DataType) -> pa.Array:
    if pa.types.is_nested(dtype):
        return pa.array(values.to_pylist(), dtype)
    return values.cast(dtype)


# ---------------------------------------------------------------------- our side


class FallsBack(Exception):
    """An example has a part without a rule."""


@dataclass(slots=True)
class Ours:
    """Expressions compiled by dbspark, over the columns of the edge values."""

    spark: SparkSession
    data: pa.Table = field(default_factory=edge_values)
    context: Context = field(default_factory=Context)
    tables: Any = None

    def __post_init__(self) -> None:
        from pyspark.sql.types import _parse_datatype_string

        struct_type = _parse_datatype_string(DDL)
        self.tables = TableLeaves(self.spark)
        self.tables.add("edge", struct_type).createOrReplaceTempView("edge")

    def compile(self, given: Sequence[str]) -> list[Compiled | Exception]:
        """Each expression compiled, or why it is not."""
        out: list[Compiled | Exception] = []
        settings = {
            "spark.sql.optimizer.excludedRules": ",".join(EXCLUDED_RULES),
            "spark.sql.debug.maxToStringFields": "100000",
        }
        with scoped(self.spark, settings):
            for at in range(0, len(given), 40):
                out.extend(self._batch(list(given[at : at + 40])))
        return out

    def _batch(self, given: list[str]) -> list[Compiled | Exception]:
        columns = ", ".join(f"{sql} AS e{i}" for i, sql in enumerate(given))
        try:
            node = read_plan(self.tables, self.spark.sql(f"SELECT *, {columns} FROM edge")).plan
            if not (isinstance(node, Project) and isinstance(node.child, Table)):
                raise FallsBack(f"the plan is not a projection: {node}")
        except Exception as error:
            if len(given) == 1:
                return [error]
            half = len(given) // 2
            return self._batch(given[:half]) + self._batch(given[half:])
        below = node.child.columns
        positions = {c.id: i for i, c in enumerate(below)}
        types = {c.id: with_nullable_children(c.type) for c in below}
        compiler = ExpressionCompiler(positions, types, self.context, _refuse)
        out: list[Compiled | Exception] = []
        for named in node.outputs[len(below) :]:
            try:
                out.append(compiler.compile(named.expr))
            except (FallsBack, DbsparkError) as error:
                out.append(error)
        return out

    def columns(self, rows: Sequence[int]) -> list[pa.Array]:
        data = self.data.take(pa.array(rows, pa.int64()))
        return [c.combine_chunks() for c in data.columns]


def _refuse(call: Call, compiler: ExpressionCompiler) -> Compiled:
    raise FallsBack(f"{call.name}{dict(call.options) or ''}")


def evaluate(compiled: Compiled, columns: list[pa.Array], rows: int) -> pa.Array:
    return compiled.array(ColumnFrame(columns, rows))


def check(compiled: Compiled, answer: Answer, ours: Ours) -> str | None:
    """How our evaluation differs from Spark's answer, or None."""
    assert answer.type is not None
    assert answer.values is not None
    if with_nullable_children(compiled.type) != with_nullable_children(answer.type):
        return f"the type is {compiled.type}, Spark's is {answer.type}"
    total = ours.data.num_rows
    good = [r for r in range(total) if r not in answer.failing]
    wanted = answer.values.take(pa.array(good, pa.int64()))
    columns = ours.columns(good)
    try:
        whole = evaluate(compiled, columns, len(good))
    except EvaluationError as error:
        return f"raises where Spark does not: {error}{_culprits(compiled, ours, good)}"
    problem = _difference(whole, wanted, good, ours)
    if problem:
        return problem
    # The same rows in the middle of longer arrays, and no rows.
    longer = [pa.concat_arrays([c.slice(0, 3), c, c.slice(0, 2)]).slice(3, len(good)) for c in columns]
    problem = _difference(evaluate(compiled, longer, len(good)), wanted, good, ours)
    if problem:
        return f"in a slice: {problem}"
    empty = evaluate(compiled, [c.slice(0, 0) for c in columns], 0)
    if len(empty) or empty.type != whole.type:
        return f"no rows give {empty}"
    for row in sorted(answer.failing):
        try:
            value = evaluate(compiled, ours.columns([row]), 1)
        except EvaluationError:
            continue
        return f"row {row} gives {value[0]} where Spark raises; {_shown(ours, row)}"
    if answer.failing and not compiled.can_fail:
        return "fails, but does not say that it can"
    return None


def _culprits(compiled: Compiled, ours: Ours, good: list[int]) -> str:
    for row in good:
        try:
            evaluate(compiled, ours.columns([row]), 1)
        except EvaluationError:
            return f" at row {row}; {_shown(ours, row)}"
    return ""


def _difference(found: pa.Array, wanted: pa.Array, rows: list[int], ours: Ours) -> str | None:
    if len(found) != len(wanted):
        return f"{len(found)} values for {len(wanted)} rows"
    if found.type != wanted.type and with_nullable_children(found.type) != with_nullable_children(wanted.type):
        return f"the values are of type {found.type}, Spark's of {wanted.type}"
    for row, mine, theirs in zip(rows, _exact(found), _exact(wanted), strict=True):
        if mine != theirs:
            return f"row {row} is {mine!r}, Spark says {theirs!r}; {_shown(ours, row)}"
    return None


def _shown(ours: Ours, row: int) -> str:
    values = ours.data.slice(row, 1)
    return ", ".join(f"{name}={_text(values.column(name)[0])}" for name in POOLS)


def _text(scalar: pa.Scalar) -> str:
    return repr(_exact(pa.array([scalar.as_py()], scalar.type))[0]) if scalar.is_valid else "NULL"


def _exact(array: pa.Array) -> list[Any]:
    """Values that are equal only if every bit is, NaN apart."""
    t = pa.types
    if t.is_timestamp(array.type) or t.is_duration(array.type) or t.is_time64(array.type):
        return list(array.cast(pa.int64()).to_pylist())
    if t.is_string(array.type):  # not all of which is UTF-8
        array = array.view(pa.binary())
    if t.is_date(array.type):
        return list(array.cast(pa.int32()).to_pylist())
    return [_bits(v, array.type) for v in _python(array)]


def _python(array: pa.Array) -> list[Any]:
    """Python values, but numbers for moments, which Python cannot hold all of."""
    t = pa.types
    if t.is_list(array.type):
        return [None if not v.is_valid else _exact(v.values) for v in array]
    if t.is_map(array.type):
        return [
            None if not v.is_valid
            else list(zip(_exact(v.values.field(0)), _exact(v.values.field(1)), strict=True)) for v in array
        ]  # fmt: skip
    if t.is_struct(array.type):
        fields = [_exact(f) for f in array.flatten()]
        return [tuple(f[i] for f in fields) if ok else None for i, ok in enumerate(array.is_valid().to_pylist())]
    return list(array.to_pylist())


def _bits(value: Any, dtype: pa.DataType) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (value, struct.pack("d", value))
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, timedelta | datetime | date):
        return str(value)
    return value
