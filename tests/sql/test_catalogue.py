"""Every expression of docs/sql.md against Spark, on edge values, with ANSI mode on and off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dbspark.errors import EvaluationError
from dbspark.sql.expressions.compiler import ExpressionCompiler, evaluate_rows
from dbspark.sql.expressions.rules import Compiled, Context
from dbspark.sql.plan import Call, Column
from tests.sql.catalogue import TIMEZONE, Answer, Example, Oracle, Ours, check, examples, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Pair = tuple[Answer, "Compiled | Exception", Ours]


@pytest.fixture(scope="module")
def evaluated(spark: SparkSession) -> Iterator[Callable[[Example, bool], Pair]]:
    """Spark's answer and our function for an example; those of its whole section are found at once."""
    known: dict[tuple[str, bool], dict[str, Pair]] = {}

    def look_up(example: Example, ansi: bool) -> Pair:
        key = (example.section, ansi)
        if key not in known:
            texts = list(dict.fromkeys(e.sql for e in examples() if e.section == example.section))
            with settings(spark, ansi):
                ours = Ours(spark, context=Context(ansi, TIMEZONE))
                answers = Oracle(spark).answers(texts)
                compiled = ours.compile(texts)
            known[key] = {t: (a, c, ours) for t, a, c in zip(texts, answers, compiled, strict=True)}
        return known[key][example.sql]

    yield look_up
    for view in ("edge", "edge_values"):
        spark.catalog.dropTempView(view)


def test_the_document_has_examples() -> None:
    assert len(examples()) > 100
    assert {e.how for e in examples()} <= {"native", "Spark"}


@pytest.mark.parametrize("ansi", [True, False], ids=["ansi", "legacy"])
@pytest.mark.parametrize("example", examples(), ids=lambda e: f"{e.section}:{e.sql}")
def test_example(example: Example, ansi: bool, evaluated: Callable[[Example, bool], Pair]) -> None:
    answer, compiled, ours = evaluated(example, ansi)
    assert not answer.error, f"Spark refuses {example.sql}: {answer.error}"
    if isinstance(compiled, Exception):
        assert example.how == "Spark", f"{example.sql} is not native: {compiled}"
        return
    problem = check(compiled, answer, ours)
    assert problem is None, f"{example.sql}: {problem}"


@pytest.mark.parametrize("example", [e for e in examples() if e.how == "Spark"], ids=lambda e: f"{e.section}:{e.sql}")
def test_what_is_left_to_spark(example: Example, evaluated: Callable[[Example, bool], Pair]) -> None:
    """What the document leaves to Spark is not native in both modes, or the document is out of date."""
    modes = [evaluated(example, ansi)[1] for ansi in (True, False)]
    assert any(isinstance(c, Exception) for c in modes), f"{example.sql} is native: say so in docs/sql.md"


# ---------------------------------------------------------------------- what no SQL text says, but optimised plans do


def _over_one_column(name: str, dtype: pa.DataType, options: dict[str, object]) -> Compiled:
    def missing(call: Call, compiler: ExpressionCompiler) -> Compiled:
        raise AssertionError(call)

    call = Call(name, (Column(1, "x", dtype),), tuple(options.items()))
    return ExpressionCompiler({1: 0}, {1: dtype}, Context(), missing).compile(call)


def test_sums_of_decimals_as_integers() -> None:
    """Spark sums decimals of few digits as integers: UnscaledValue inside of the sum, MakeDecimal outside."""
    given = pa.array([Decimal("1.50"), None, Decimal("-99.99")], pa.decimal128(4, 2))
    integers = evaluate_rows(_over_one_column("UnscaledValue", given.type, {}), [given], 3)
    assert integers.to_pylist() == [150, None, -9999]
    options = {"precision": 4, "scale": 2, "nullOnOverflow": True}
    made = _over_one_column("MakeDecimal", pa.int64(), options)
    assert evaluate_rows(made, [integers], 3) == given
    assert evaluate_rows(made, [pa.array([10_000])], 1).to_pylist() == [None]
    strict = _over_one_column("MakeDecimal", pa.int64(), {**options, "nullOnOverflow": False})
    assert strict.can_fail
    with pytest.raises(EvaluationError, match="NUMERIC_VALUE_OUT_OF_RANGE"):
        evaluate_rows(strict, [pa.array([10_000])], 1)


def test_rounding_where_arrow_divides_wrongly() -> None:
    """Arrow 26 divides some decimals by 10**15 wrongly; rounding goes another way."""
    value = Decimal("39051278511034408008207.500000000000000")
    given = pa.array([value], pa.decimal128(38, 15))
    compiled = _over_one_column("CheckOverflow", given.type, {"dataType": "decimal(38,0)", "nullOnOverflow": False})
    assert evaluate_rows(compiled, [given], 1).to_pylist() == [Decimal("39051278511034408008208")]
