"""What the operator tests share: a circuit beside its specification.

`Run` ticks a circuit and keeps, as plain dicts, what its inputs and outputs add up to. The specification of an operator
is a function from whole inputs to the whole output, in plain Python; after every tick the sum of what came out has
to be what it says. At the end everything is taken back, and nothing may be left anywhere.

Small ticks are run by the operator VM where operators have instructions; so beside every circuit there is one in which
they all step by themselves, and both have to give the same.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from dbspark.circuit import Builder, Circuit
from tests.zset.model import contents, plain, plus

Rows = dict[Any, int]
"""A Z-set as a dict: rows to weights that are not zero."""


class Run:
    """A circuit, and what has gone in and come out so far."""

    def __init__(self, builder: Builder | Circuit) -> None:
        self.circuit = builder.circuit() if isinstance(builder, Builder) else builder
        self.beside = Circuit(builder.graph, use_vm=False) if isinstance(builder, Builder) else None
        self.given: dict[str, Rows] = {n.name: {} for n in self.circuit.graph if n.role == "source"}
        self._form: dict[Any, Any] = {}
        self.held: dict[str, Rows] = {name: {} for name in self.circuit.graph.outputs}

    def tick(self, **changes: Rows) -> dict[str, Rows]:
        """One tick with the given changes by source; returns what came out."""
        out = self.circuit.tick(changes)
        for name, change in changes.items():
            self._form.update((plain(row), row) for row in change)
            self.given[name] = plus(self.given[name], {plain(row): weight for row, weight in change.items()})
        deltas = {name: contents(z) for name, z in out.items()}
        if self.beside is not None:
            assert deltas == {name: contents(z) for name, z in self.beside.tick(changes).items()}
            if self.beside.tick_number % 3 == 0:  # states take in several ticks at once, unless they are looked at
                assert self.circuit.state_rows() == self.beside.state_rows()
        for name, delta in deltas.items():
            self.held[name] = plus(self.held[name], delta)
        return deltas

    def possible(self, name: str, entries: Iterable[tuple[Any, int]]) -> Rows:
        """Some changes of a table, without those that would take away what is not there."""
        there = Counter(self.given[name])
        change: Counter[Any] = Counter()
        for row, weight in entries:
            change[row] += max(weight, -there[plain(row)])
            there[plain(row)] += max(weight, -there[plain(row)])
        return {row: weight for row, weight in change.items() if weight}

    def retract(self, parts: int = 2) -> None:
        """Take everything back; all that is kept and all that came out has to be gone then."""
        self.take_back(parts)
        self.check_empty()

    def take_back(self, parts: int = 2) -> None:
        """Take everything back, in some ticks."""
        there = {name: list(rows.items()) for name, rows in self.given.items()}
        for part in range(parts):
            self.tick(**{n: {self._form[row]: -w for row, w in rows[part::parts]} for n, rows in there.items()})
        assert not any(self.given.values())

    def check_empty(self) -> None:
        assert not any(self.held.values()), f"left in the output: {self.held}"
        assert not any(self.circuit.state_rows().values()), f"left in the state: {self.circuit.state_rows()}"


def entries(rows: st.SearchStrategy[Any], weights: st.SearchStrategy[int], size: int = 8) -> Any:
    """Rows with weights; rows may occur several times."""
    return st.lists(st.tuples(rows, weights), max_size=size)


WEIGHTS = st.sampled_from([1, 1, 1, 2, 5, -1, -1, -2, -9])
"""Of changes to tables: what is beyond what is there is cut off."""
ANY_WEIGHTS = st.sampled_from([1, 1, -1, 2, -3, 7, 1 << 20, -(1 << 20)])


# ---------------------------------------------------------------------- joins


def joined(
    left: Rows,
    right: Rows,
    on: Sequence[tuple[int, int]],
    how: str = "inner",
    where: Callable[[Any], bool | None] | None = None,
    null_safe: bool = False,
    widths: tuple[int, int] = (2, 2),
) -> Rows:
    """A join by comparing every row with every row. `where` takes the two rows as one tuple."""

    def match(a: Any, b: Any) -> bool:
        for i, j in on:
            if (a[i] is None or b[j] is None) and not null_safe:
                return False
            if a[i] != b[j]:
                return False
        return where is None or where(a + b) is True

    out: Counter[Any] = Counter()
    lonely_left, lonely_right = set(left), set(right)
    for a, v in left.items():
        for b, w in right.items():
            if match(a, b):
                lonely_left.discard(a)
                lonely_right.discard(b)
                if how in ("inner", "left", "right", "full"):
                    out[a + b] += v * w
    if how in ("left", "full"):
        for a in lonely_left:
            out[a + (None,) * widths[1]] += left[a]
    if how in ("right", "full"):
        for b in lonely_right:
            out[(None,) * widths[0] + b] += right[b]
    for a, v in left.items():
        if (how == "semi" and a not in lonely_left) or (how == "anti" and a in lonely_left):
            out[a] += v
        elif how == "existence":
            out[(*a, a not in lonely_left)] += v
    return {row: weight for row, weight in out.items() if weight}


def projected(rows: Rows, columns: Sequence[int]) -> Rows:
    """Some columns."""
    out: Counter[Any] = Counter()
    for row, weight in rows.items():
        out[tuple(row[c] for c in columns)] += weight
    return {row: weight for row, weight in out.items() if weight}


# ---------------------------------------------------------------------- aggregates


def groups(rows: Rows, key: Sequence[int]) -> dict[Any, list[tuple[Any, int]]]:
    """The rows of each key, with their weights; without key columns there is always one group."""
    out: dict[Any, list[tuple[Any, int]]] = {} if key else {(): []}
    for row, weight in rows.items():
        out.setdefault(tuple(row[c] for c in key), []).append((row, weight))
    return out


def aggregated(rows: Rows, key: Sequence[int], *aggregates: Callable[[list[tuple[Any, int]]], Any]) -> Rows:
    """One row for every key: its columns, then what each aggregate says of its rows."""
    return {(*k, *(plain(a(found)) for a in aggregates)): 1 for k, found in groups(rows, key).items()}


def column(c: int, where: int | None = None) -> Callable[[list[tuple[Any, int]]], list[tuple[Any, int]]]:
    """The values of a column that are not NULL, of the rows that a FILTER lets through."""
    return lambda found: [
        (row[c], w) for row, w in found if row[c] is not None and (where is None or row[where] is True)
    ]


def count(where: int | None = None) -> Any:
    return lambda found: sum(w for row, w in found if where is None or row[where] is True)


def count_of(c: int, where: int | None = None) -> Any:
    return lambda found: sum(w for _, w in column(c, where)(found))


def exact_total(values: list[tuple[Any, int]]) -> Fraction:
    return sum((Fraction(v) * w for v, w in values), Fraction(0))


def rounded(exact: Fraction) -> float:
    """The nearest float."""
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def float_total(values: list[tuple[Any, int]]) -> float:
    """A sum of floats, given in plain form: exact, rounded once; NaN and infinities as additions would have it."""
    found = {v for v, _ in values}
    if "NaN" in found or {math.inf, -math.inf} <= found:
        return math.nan
    for special in (math.inf, -math.inf):
        if special in found:
            return special
    return rounded(exact_total(values))


def sum_of(c: int, where: int | None = None) -> Any:
    """Of integers or decimals; NULL where there is no value."""

    def total(found: Any) -> Any:
        values = column(c, where)(found)
        if not values:
            return None
        with localcontext() as context:
            context.prec = 200
            return sum(v * w for v, w in values)

    return total


def float_sum_of(c: int, where: int | None = None) -> Any:
    return lambda found: float_total(values) if (values := column(c, where)(found)) else None


def average_of(c: int, scale: int | None = None, where: int | None = None) -> Any:
    """Of integers a float; of decimals, where a scale is given, a decimal rounded half up."""

    def average(found: Any) -> Any:
        values = column(c, where)(found)
        if not values:
            return None
        n = sum(w for _, w in values)
        if scale is None:
            return rounded(exact_total(values)) / n
        quotient = exact_total(values) * 10**scale / n
        digits = int(abs(quotient) + Fraction(1, 2)) * (1 if quotient >= 0 else -1)
        return Decimal(digits).scaleb(-scale, Context(prec=200))

    return average


def float_average_of(c: int, where: int | None = None) -> Any:
    def average(found: Any) -> Any:
        values = column(c, where)(found)
        return float_total(values) / sum(w for _, w in values) if values else None

    return average


def _rank(value: Any) -> Any:
    """Where a value stands in Spark's order, in which NaN is the largest number."""
    return (1, 0.0) if value == "NaN" else (0, value)


def min_of(c: int, text: bool = False) -> Any:
    return lambda found: min((v for v, _ in column(c)(found)), key=None if text else _rank, default=None)


def max_of(c: int, text: bool = False) -> Any:
    return lambda found: max((v for v, _ in column(c)(found)), key=None if text else _rank, default=None)


__all__ = [
    "ANY_WEIGHTS", "WEIGHTS", "Rows", "Run", "aggregated", "average_of", "column", "contents", "count", "count_of",
    "entries", "exact_total", "float_average_of", "float_sum_of", "float_total", "groups", "joined", "max_of", "min_of",
    "plain", "plus", "projected", "rounded", "sum_of",
]  # fmt: skip
