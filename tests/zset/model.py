"""What the Z-set tests share: a Z-set as a plain dict, and where its rows come from.

The dict is the independent answer: rows to weights that are not zero. Its rows are in a form of their own (`plain`), in
which every NaN is one value and -0.0 is 0.0, as Spark groups them.
"""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from dbspark.columnar.schema import Schema
from dbspark.zset import ZSet, ZSetConfig

MAX = (1 << 63) - 1
"""The largest weight; the least is its opposite."""

TINY = {"smallset_n": 4, "flush_size": 8, "level_fanout": 2}
"""Knobs with which a handful of rows goes through every form."""


def plain(value: Any) -> Any:
    """A row, or a value in one, such that rows that Spark holds equal are equal in Python."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        value = sorted(value.items())
    if isinstance(value, tuple | list):
        return tuple(plain(v) for v in value)
    return value


def model(rows: Any, weights: Any = None) -> dict[Any, int]:
    """The sum of rows, each of weight 1 or of the weight given for it."""
    total: Counter[Any] = Counter()
    rows = list(rows)
    for row, weight in zip(rows, [1] * len(rows) if weights is None else weights, strict=True):
        total[plain(row)] += weight
    return {row: weight for row, weight in total.items() if weight}


def plus(*models: dict[Any, int]) -> dict[Any, int]:
    """The sum of models."""
    total: Counter[Any] = Counter()
    for one in models:
        for row, weight in one.items():
            total[row] += weight
    return {row: weight for row, weight in total.items() if weight}


def times(one: dict[Any, int], factor: int) -> dict[Any, int]:
    return {row: weight * factor for row, weight in one.items() if factor}


def contents(z: ZSet) -> dict[Any, int]:
    """What a Z-set holds, read by iterating: every row once, no weight zero, every weight an int."""
    out: dict[Any, int] = {}
    for row, weight in z:
        assert type(weight) is int
        assert weight != 0, f"{row} has weight 0"
        assert plain(row) not in out, f"{row} occurs twice"
        out[plain(row)] = weight
    return out


def made(rows: dict[Any, int], schema: Any, config: ZSetConfig | None = None) -> ZSet:
    """A Z-set from rows with weights."""
    return ZSet.from_rows(list(rows), schema, list(rows.values()), config)


def metrics_of(z: ZSet) -> Any:
    """The counters of the lineage of an adaptive Z-set; None while it has none."""
    return z._payload.metrics


@dataclass(frozen=True)
class Kind:
    """Rows of one schema: how many a Z-set has, which they are, and how heavy."""

    name: str
    ddl: str
    rows: st.SearchStrategy[tuple[Any, ...]]
    size: int
    weights: st.SearchStrategy[int]

    @property
    def schema(self) -> Schema:
        return Schema.parse(self.ddl)

    def entries(self) -> st.SearchStrategy[list[tuple[tuple[Any, ...], int]]]:
        """Rows with weights; rows may occur several times."""
        return st.lists(st.tuples(self.rows, self.weights), max_size=self.size)

    def __repr__(self) -> str:
        return self.name


def _weights(most: int) -> st.SearchStrategy[int]:
    return st.integers(-most, most).filter(bool)


_LETTERS = st.sampled_from("abcdefgh")
_FLOATS = st.one_of(
    st.sampled_from([math.nan, -math.nan, 0.0, -0.0, math.inf, -math.inf, 1.5, -2.25, 5e-324]),
    st.floats(width=64),
)
_SINGLES = st.one_of(st.sampled_from([math.nan, 0.0, -0.0, math.inf, 0.25]), st.floats(width=32))
_NESTED = st.tuples(
    st.none() | st.tuples(st.none() | st.integers(-3, 3), st.none() | _LETTERS),
    st.none() | st.lists(st.none() | _FLOATS, max_size=3).map(tuple),
    st.none() | st.dictionaries(_LETTERS, st.none() | st.integers(-2, 2), max_size=3).map(dict),
)

INTS = Kind("ints", "k BIGINT", st.tuples(st.integers(-100, 100)), 20, _weights(10))
STRINGS = Kind("strings", "s STRING", st.tuples(_LETTERS), 10, _weights(5))
FLOATS = Kind("floats", "x DOUBLE, y FLOAT", st.tuples(_FLOATS, _SINGLES), 15, _weights(10))
DECIMALS = Kind(
    "decimals", "d DECIMAL(12, 2)", st.tuples(st.none() | st.decimals(-99, 99, places=2)), 15, _weights(10)
)  # fmt: skip
NULLS = Kind(
    "nulls",
    "k INT, s STRING, b BOOLEAN, v VOID, n BINARY",
    st.tuples(
        st.none() | st.integers(-2, 2),
        st.none() | st.sampled_from(["", "x", "\x00", "é"]),
        st.none() | st.booleans(),
        st.none(),
        st.none() | st.sampled_from([b"", b"\x00", b"\xff"]),
    ),
    20,
    _weights(10),
)
NESTED = Kind(
    "nested", "r STRUCT<x: INT, y: STRING>, l ARRAY<DOUBLE>, m MAP<STRING, INT>", _NESTED, 12, _weights(10)
)  # fmt: skip
KINDS = (INTS, STRINGS, FLOATS, DECIMALS, NULLS, NESTED)

kinds = st.sampled_from(KINDS)
"""A schema with its rows."""


@dataclass(frozen=True)
class Sample:
    """A Z-set of the process's backend, built one way or another, and what it should hold."""

    z: ZSet
    rows: dict[Any, int]

    def __repr__(self) -> str:
        return f"{self.z.schema!r} {self.rows}"


@st.composite
def samples(draw: Any, kind: Kind, size: int | None = None) -> Sample:
    """A Z-set of this kind: given at once, row by row, or in several deltas that may cancel."""
    entries = draw(kind.entries())[:size]
    rows = [row for row, _ in entries]
    weights = [weight for _, weight in entries]
    expected = model(rows, weights)
    way = draw(st.sampled_from(("at once", "row by row", "in two deltas", "with a detour")))
    if way == "row by row":
        z = ZSet.empty(kind.schema)
        for row, weight in entries:
            z = z.add(row, weight)
    elif way == "in two deltas":
        half = len(rows) // 2
        z = ZSet.from_rows(rows[:half], kind.schema, weights[:half]).add_many(rows[half:], weights[half:])
    else:
        z = ZSet.from_rows(rows, kind.schema, weights)
        if way == "with a detour":
            other = ZSet.from_rows(rows[::2], kind.schema)
            z = z + other - other
    return Sample(z, expected)


@st.composite
def several(draw: Any, count: int, only: Any = None) -> list[Sample]:
    """Some Z-sets of one schema."""
    kind = draw(kinds if only is None else st.just(only))
    return [draw(samples(kind)) for _ in range(count)]


__all__ = [
    "DECIMALS", "FLOATS", "INTS", "KINDS", "MAX", "NESTED", "NULLS", "STRINGS", "TINY", "Kind", "Sample",
    "contents", "kinds", "made", "metrics_of", "model", "plain", "plus", "samples", "several", "times",
]  # fmt: skip
