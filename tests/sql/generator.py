"""Random tables, queries and ticks, each from one seed.

Queries are trees whose leaves are text. A node says what it is (`kind`): an expression of some type, a query with some
columns, an item of a list, a clause that may be left out. That is enough to make a failing query smaller without
knowing any SQL: a node gives way to a descendant of the same kind, a clause to nothing, a list to a shorter one, and
Spark says whether the result still means something.

Types are letters (`TYPES`); `f` is a DOUBLE that depends on the order in which floats are added. Those are shown and
never compared, sorted or grouped by, so that every query has one right answer.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple

TYPES = {
    "l": "BIGINT", "i": "INT", "s": "STRING", "d": "DOUBLE", "m": "DECIMAL(10,2)", "D": "DATE", "T": "TIMESTAMP",
    "b": "BOOLEAN", "A": "ARRAY<BIGINT>", "S": "STRUCT<x: INT, y: STRING>", "f": "DOUBLE",
}  # fmt: skip
ORDERED = "lismdDT"
"""Types that are compared with < and make good keys."""
LONGEST = 1_200
"""Characters of a query: longer ones take their time and rarely find more."""

Row = tuple[Any, ...]
Change = dict[str, dict[Row, int]]


# ---------------------------------------------------------------------- trees


@dataclass(frozen=True)
class Tree:
    """A piece of SQL; `kind` is explained in the module's preface."""

    kind: str
    parts: tuple[str | Tree, ...]

    @cached_property
    def sql(self) -> str:
        if self.kind == "list":
            return ", ".join(p if isinstance(p, str) else p.sql for p in self.parts)
        return "".join(p if isinstance(p, str) else p.sql for p in self.parts)

    @cached_property
    def size(self) -> int:
        return 1 + sum(p.size for p in self.parts if isinstance(p, Tree))

    def below(self) -> Iterator[Tree]:
        """All descendants, nearest first."""
        level = [p for p in self.parts if isinstance(p, Tree)]
        while level:
            yield from level
            level = [p for t in level for p in t.parts if isinstance(p, Tree)]


def smaller(tree: Tree) -> Iterator[Tree]:
    """Trees that are simpler in one place, the boldest first."""
    for instead in _simpler(tree):
        if instead.size < tree.size:
            yield instead
    for i, part in enumerate(tree.parts):
        if isinstance(part, Tree):
            for instead in smaller(part):
                yield Tree(tree.kind, (*tree.parts[:i], instead, *tree.parts[i + 1 :]))


def _simpler(tree: Tree) -> Iterator[Tree]:
    if tree.kind == "clause":
        yield Tree("clause", ())
    elif tree.kind == "list":
        if len(tree.parts) > 1:
            for i in range(len(tree.parts)):
                yield Tree("list", (*tree.parts[:i], *tree.parts[i + 1 :]))
    elif tree.kind != "item":
        if tree.kind in LITERALS:
            yield Tree(tree.kind, (LITERALS[tree.kind][0],))
        yield from (t for t in tree.below() if t.kind == tree.kind)


# ---------------------------------------------------------------------- values

_EPOCH = datetime(2024, 2, 29, 12, tzinfo=UTC)
VALUES: dict[str, list[Any]] = {
    "l": [0, 1, 1, 2, 2, 3, 3, 4, -1, 7, 1_000_000_000_000],
    "i": [0, 1, 1, 2, 2, 3, 3, 5, -2, 1_000_000],
    "s": ["a", "a", "b", "b", "ab", "", "é", "A b", "a%", "12"],
    "d": [0.0, -0.0, 1.0, 1.5, 1.5, 2.0, -2.25, float("nan"), float("inf"), 100.125],
    "m": [Decimal(t) for t in ("0.00", "1.00", "1.50", "1.50", "2.00", "-3.25", "99999.99")],
    "D": [date(2024, 2, 29), date(2024, 1, 31), date(2023, 12, 31), date(1969, 12, 31), date(2024, 2, 29)],
    "T": [_EPOCH + timedelta(seconds=s) for s in (0, 0, 1, 3600, 86400, -2_000_000_000)]
    + [_EPOCH + timedelta(microseconds=123_456)],
    "b": [True, False],
    "A": [(), (1,), (1, 2), (2, None, 2), (3, 1), (None,)],
    "S": [(1, "a"), (1, "b"), (2, None), (None, "a"), (None, None)],
}

LITERALS: dict[str, list[str]] = {
    "l": ["1L", "0L", "3L", "-2L", "CAST(NULL AS BIGINT)"],
    "i": ["1", "0", "2", "5", "CAST(NULL AS INT)"],
    "s": ["'a'", "''", "'ab'", "'b'", "CAST(NULL AS STRING)"],
    "d": ["1.5D", "0D", "2D", "CAST('NaN' AS DOUBLE)", "CAST(NULL AS DOUBLE)"],
    "m": ["1.50", "2.0", "0.00", "CAST(NULL AS DECIMAL(10,2))"],
    "D": ["DATE'2024-01-31'", "DATE'2024-02-29'", "CAST(NULL AS DATE)"],
    "T": ["TIMESTAMP'2024-02-29 12:00:00'", "TIMESTAMP'2024-02-29 13:00:00'", "CAST(NULL AS TIMESTAMP)"],
    "b": ["TRUE", "FALSE", "CAST(NULL AS BOOLEAN)"],
    "A": ["array(1L, 2L)", "array(3L)", "CAST(NULL AS ARRAY<BIGINT>)"],
    "S": ["named_struct('x', 1, 'y', 'a')", "CAST(NULL AS STRUCT<x: INT, y: STRING>)"],
    "f": ["1.5D"],
}

# ---------------------------------------------------------------------- expressions: {letter} is one of that type

_ANY = ["coalesce({t}, {t})", "CASE WHEN {b} THEN {t} ELSE {t} END", "CASE WHEN {b} THEN {t} END", "if({b}, {t}, {t})"]
_COMPARED = ["greatest({t}, {t})", "least({t}, {t})", "nullif({t}, {t})"]

EXPRESSIONS: dict[str, list[str]] = {
    "l": [
        "({l} + {l})", "({l} - {i})", "({l} * 3)", "(- {l})", "abs({l})", "({l} % 4)", "({l} div 3)",
        "({l} div nullif({l}, 0))", "CAST({i} AS BIGINT)", "CAST({m} AS BIGINT)", "({l} & 6)", "({l} | {i})",
        "({l} ^ {l})", "try_cast({s} AS BIGINT)", "get({A}, 0)", "try_element_at({A}, -1)", "array_max({A})",
        "aggregate({A}, 0L, (acc, x) -> acc + coalesce(x, 0L))", "coalesce({l}, {i})", "nvl2({s}, {l}, {l})",
        "array_position({A}, 2L)", "CAST({b} AS BIGINT)", "ceil({d} / 1e3D)",
    ],
    "i": [
        "({i} + {i})", "({i} - {i})", "({i} * 2)", "(- {i})", "abs({i})", "({i} % 3)", "pmod({i}, 5)", "length({s})",
        "year({D})", "month({D})", "dayofweek({D})", "datediff({D}, {D})", "hour({T})", "minute({T})",
        "CAST({b} AS INT)", "size({A})", "{S}.x", "instr({s}, 'a')", "ascii({s})", "pmod(hash({s}, {l}), 7)",
        "shiftleft({i}, 2)", "CAST(sign({l}) AS INT)", "levenshtein({s}, {s})", "quarter({D})", "extract(DAY FROM {T})",
        "bit_count({l})", "locate('b', {s})", "cardinality({A})",
    ],
    "s": [
        "upper({s})", "lower({s})", "concat({s}, {s})", "({s} || '-')", "substring({s}, 1, 2)", "trim({s})",
        "replace({s}, 'a', 'x')", "CAST({i} AS STRING)", "CAST({l} AS STRING)", "CAST({D} AS STRING)",
        "date_format({D}, 'yyyy-MM')", "left({s}, 1)", "lpad({s}, 4, '*')", "reverse({s})", "{S}.y",
        "CAST({b} AS STRING)", "CAST({m} AS STRING)", "split({s}, 'a')[0]", "initcap({s})", "repeat({s}, 2)",
        "concat_ws(',', {s}, {s})", "regexp_replace({s}, '[ab]+', '_')", "CAST({T} AS STRING)",
        "translate({s}, 'ab', 'ba')", "rpad({s}, 3, '.')", "substring_index({s}, 'b', 1)", "array_join({A}, '-')",
        "date_format({T}, 'HH:mm')", "hex({l})",
    ],
    "d": [
        "({d} + {d})", "({d} - {d})", "({d} * 0.5D)", "({i} / nullif({i}, 0))", "CAST({l} AS DOUBLE)", "abs({d})",
        "round({d}, 1)", "sqrt(abs({i}))", "nanvl({d}, 0D)", "({d} / nullif({d}, 0D))", "CAST({m} AS DOUBLE)",
        "(- {d})", "try_divide({l}, {i})", "({l} / 4)", "bround({d}, 0)",
    ],
    "m": [
        "({m} + {m})", "({m} - {m})", "({m} * 2)", "({m} * {m})", "({m} / nullif({m}, 0))", "round({m}, 1)", "abs({m})",
        "CAST({i} AS DECIMAL(10,2))", "(- {m})", "({m} % 3)", "({m} + {i})", "ceil({m})", "floor({m})",
        "coalesce({m}, 0)", "({m} * 1.005)", "CAST({m} AS DECIMAL(20,4))", "try_divide({m}, {i})",
    ],
    "D": [
        "date_add({D}, pmod({i}, 30))", "trunc({D}, 'MM')", "last_day({D})", "CAST({T} AS DATE)", "add_months({D}, 1)",
        "date_sub({D}, 7)", "({D} + INTERVAL 1 DAY)", "next_day({D}, 'MON')", "try_cast({s} AS DATE)",
    ],
    "T": [
        "({T} + INTERVAL 2 HOURS)", "date_trunc('HOUR', {T})", "CAST({D} AS TIMESTAMP)", "({T} - INTERVAL 1 MONTH)",
        "date_trunc('MONTH', {T})", "timestampadd(MINUTE, pmod({i}, 90), {T})",
    ],
    "b": [
        "({l} = {l})", "({l} < {i})", "({i} >= {i})", "({s} = {s})", "({s} < {s})", "({d} > {d})", "({d} = {d})",
        "({m} <= {m})", "({m} = {i})", "({D} < {D})", "({T} <= {T})", "({D} = {D})", "({l} <=> {l})", "({s} <=> {s})",
        "({s} <> {s})", "({l} IS NULL)", "({s} IS NOT NULL)", "({d} IS NULL)", "({b} AND {b})", "({b} OR {b})",
        "(NOT {b})", "({i} IN (1, 2, 5))", "({l} NOT IN (1L, 3L))", "({s} IN ('a', 'b', {s}))",
        "({l} BETWEEN {i} AND {l})", "({s} LIKE 'a%')", "({s} RLIKE '^[ab]')", "array_contains({A}, 2)",
        "exists({A}, x -> x > 1)", "forall({A}, x -> x < 3)", "startswith({s}, 'a')", "isnan({d})", "({T} < {D})",
        "({s} LIKE '%b')", "({m} > {d})", "({A} = {A})", "({S} = {S})", "({i} <> {i})", "({i} > 1)", "({l} <= 2)",
        "contains({s}, 'b')", "(({l}, {s}) IN ((1L, 'a'), (2L, 'b')))",
    ],
    "A": [
        "array({l}, {i})", "sort_array({A})", "array_distinct({A})", "concat({A}, {A})", "transform({A}, x -> x + 1)",
        "filter({A}, x -> x > 1)", "slice({A}, 1, 2)", "array_union({A}, {A})", "reverse({A})", "array_remove({A}, 1L)",
        "array_except({A}, {A})", "transform({A}, (x, i) -> x * i)", "array_compact({A})",
    ],
    "S": ["named_struct('x', {i}, 'y', {s})", "struct({i} AS x, {s} AS y)"],
    "f": ["({f} + {d})", "({f} * 2D)", "abs({f})", "coalesce({f}, {d})"],
}  # fmt: skip
for _letter, _templates in EXPRESSIONS.items():
    if _letter != "f":
        _templates += [t.replace("{t}", f"{{{_letter}}}") for t in _ANY + (_COMPARED if _letter in ORDERED else [])]

RAISING = {
    "l": ["({l} div {l})", "CAST({s} AS BIGINT)", "({l} % {i})", "element_at({A}, 2)", "({l} * {l} * {l})"],
    "i": ["CAST({l} AS INT)", "CAST({s} AS INT)", "({i} * {i})"],
    "d": ["({d} / {d})", "({i} / {i})"],
    "m": ["({m} / {m})", "CAST({l} AS DECIMAL(10,2))"],
    "D": ["CAST({s} AS DATE)"],
}
"""What raises an error on some rows."""

# ---------------------------------------------------------------------- aggregates: @ is where FILTER goes

AGGREGATES: dict[str, list[str]] = {
    "l": [
        "count(*)@", "count({l})@", "count({s})@", "count(DISTINCT {s})@", "count(DISTINCT {l})@", "sum({i})@",
        "sum({l})@", "sum(DISTINCT {l})@", "bit_xor({l})@", "count_if({b})@", "count(DISTINCT {l}, {s})@",
        "max({l})@", "min({l})@", "count({i}, {s})@", "sum(DISTINCT {i})@", "approx_count_distinct({l})@",
        "max({l})@ - min({l})", "sum({l})@ + count(*)", "bit_or({l})@", "coalesce(sum({i})@, 0L)",
    ],
    "i": ["max({i})@", "min({i})@", "max(length({s}))@", "bit_and({i})@"],
    "s": [
        "max({s})@", "min({s})@", "array_join(sort_array(collect_set({s})@), ',')",
        "array_join(sort_array(collect_list({s})@), ',')", "max({s})@ || min({s})",
    ],
    "d": ["max({d})@", "min({d})@", "avg({i})@", "percentile({i}, 0.5)@", "median({i})@", "avg(DISTINCT {i})@"],
    "m": ["sum({m})@", "min({m})@", "max({m})@", "avg({m})@", "sum(DISTINCT {m})@"],
    "D": ["max({D})@", "min({D})@"],
    "T": ["max({T})@", "min({T})@"],
    "b": ["bool_and({b})@", "bool_or({b})@", "max({b})@", "count(*)@ > 1", "sum({i})@ > 3", "min({s})@ = 'a'"],
    "A": ["sort_array(collect_list({l})@)", "sort_array(collect_set({l})@)", "max({A})@"],
    "S": ["max({S})@", "min({S})@"],
    "f": ["sum({d})@", "avg({d})@", "stddev({i})@", "var_pop({i})@", "sum({f})@", "avg({f})@", "stddev_pop({m})@"],
}  # fmt: skip

WINDOWS: dict[str, list[str]] = {
    "l": ["sum({l})", "count(*)", "count({s})", "sum({i})", "max({l})", "min({l})", "sum({l})@"],
    "i": ["min({i})", "max({i})"],
    "s": ["max({s})", "min({s})", "first_value({s})", "last_value({s})", "nth_value({s}, 2)"],
    "d": ["avg({i})", "max({d})", "min({d})"],
    "m": ["sum({m})", "avg({m})", "max({m})"],
    "D": ["max({D})", "first_value({D})"],
    "f": ["sum({d})", "avg({d})", "stddev({i})"],
    "A": ["sort_array(collect_list({l}) %)"],
}
SHIFTS = ["lag({t})", "lead({t})", "lag({t}, 2)", "lead({t}, 1, {L})", "lag({t}, 1, {L})", "nth_value({t}, 2)",
          "first_value({t})", "last_value({t})", "lag({t}) IGNORE NULLS", "last_value({t}) IGNORE NULLS"]  # fmt: skip
RANKS = {"i": ["rank()", "dense_rank()"], "d": ["percent_rank()", "cume_dist()"]}
FRAMES = ["", " ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW", " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
          " ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING", " ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING",
          " ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
          " RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING"]  # fmt: skip
RANGES = {"l": ["2 PRECEDING AND CURRENT ROW", "1 PRECEDING AND 1 FOLLOWING", "CURRENT ROW AND 2 FOLLOWING"],
          "D": ["INTERVAL 30 DAYS PRECEDING AND CURRENT ROW", "INTERVAL 1 DAY PRECEDING AND INTERVAL 1 DAY FOLLOWING"],
          "T": ["INTERVAL 1 HOUR PRECEDING AND CURRENT ROW"]}  # fmt: skip
RANGES["i"] = RANGES["l"]
RANGES["m"] = ["1.5 PRECEDING AND CURRENT ROW", "CURRENT ROW AND 2 FOLLOWING"]


class Column(NamedTuple):
    """A column that can be named, and its type."""

    name: str
    type: str


@dataclass
class Query:
    """A query whose columns are c0, c1, …"""

    tree: Tree
    types: str

    @property
    def sql(self) -> str:
        return self.tree.sql


@dataclass
class Generator:
    """Queries over tables and views, which `relations` has with the types of their columns."""

    r: random.Random
    relations: dict[str, str]
    raising: float = 0.006
    _names: int = 0
    _subqueries: int = 0
    _cte: dict[str, str] = field(default_factory=dict)

    def query(self, depth: int = 3) -> Query:
        shapes = {
            self._select: 5, self._joined: 5, self._grouped: 5, self._set_operation: 2, self._windowed: 3, self._top: 1,
            self._distinct: 1, self._exploded: 1, self._first_ranks: 0.7, self._with: 1, self._lateral: 0.5,
            self._pivoted: 0.3,
        }  # fmt: skip
        shape = self.r.choices(list(shapes), list(shapes.values()))[0]
        return shape(depth)

    # ------------------------------------------------------------------ expressions

    def expr(self, letter: str, scope: Sequence[Column], depth: int) -> Tree:
        columns = [c for c in scope if c.type == letter]
        if letter == "f" and not columns:
            return Tree("f", (self.expr("d", scope, depth),))
        if columns and self.r.random() < (0.45 if depth > 0 else 0.9):
            return Tree(letter, (self.r.choice(columns).name,))
        if depth <= 0 or self.r.random() < 0.1:
            return Tree(letter, (self.r.choice(LITERALS[letter]),))
        if self._subqueries and letter != "f" and self.r.random() < (0.18 if letter == "b" else 0.05):
            return self._subquery(letter, scope)
        if self.r.random() < self.raising and letter in RAISING:
            return self.filled(letter, self.r.choice(RAISING[letter]), scope, depth - 1)
        return self.filled(letter, self._template(EXPRESSIONS[letter], scope), scope, depth - 1)

    def _template(self, templates: Sequence[str], scope: Sequence[Column]) -> str:
        """One of some templates, rather one whose types are there."""
        there = {c.type for c in scope}
        for _ in range(5):
            chosen = self.r.choice(templates)
            if set(re.findall(r"\{(\w)\}", chosen)) - {"b"} <= there:
                break
        return chosen

    def filled(self, kind: str, template: str, scope: Sequence[Column], depth: int) -> Tree:
        """A template with expressions in place of its letters."""
        out: list[str | Tree] = []
        for i, piece in enumerate(re.split(r"\{(\w)\}", template)):
            if i % 2:
                out.append(self.expr(piece, scope, depth))
            elif piece:
                out.append(piece)
        return Tree(kind, tuple(out))

    def predicate(self, scope: Sequence[Column], depth: int = 2) -> Tree:
        """A condition that looks at some column."""
        for _ in range(5):
            made = self.expr("b", scope, depth)
            if any(c.name in made.sql for c in scope):
                break
        return made

    def aggregate(self, letter: str, scope: Sequence[Column], depth: int = 1) -> Tree:
        template = self._template(AGGREGATES[letter], scope)
        before, _, after = template.partition("@")
        parts: list[str | Tree] = [self.filled("x", before, scope, depth)]
        if "@" in template and self.r.random() < 0.15:
            parts.append(Tree("clause", (" FILTER (WHERE ", self.predicate(scope, 1), ")")))
        parts.append(self.filled("x", after, scope, depth))
        return Tree(letter if letter != "f" else "x", tuple(parts))

    def _subquery(self, letter: str, scope: Sequence[Column]) -> Tree:
        """A subquery as a value or a condition, correlated or not."""
        self._subqueries, before = 0, self._subqueries
        try:
            source, inner = self._from(1)
            conditions: list[Tree] = []
            correlated = self.r.random() < 0.5
            pair = self._pair(scope, inner) if correlated else None
            if pair:
                operator = "<=>" if self.r.random() < 0.15 else "="
                conditions.append(Tree("b", (pair[1], f" {operator} ", pair[0])))
            if self.r.random() < 0.5:
                conditions.append(self.predicate(inner, 1))
            which = self.r.choice(["in", "exists", "scalar"]) if letter == "b" else "scalar"
            if which == "exists" and pair and self.r.random() < 0.3:
                other = self._pair(scope, inner)
                if other:
                    conditions.append(Tree("b", (other[1], self.r.choice([" < ", " <> "]), other[0])))
            if which == "scalar":
                where = self._where(conditions)
                value = self.aggregate(letter, inner)
                return Tree(letter, ("(SELECT ", value, " FROM ", source, *where, ")"))
            negated = "NOT " if self.r.random() < 0.4 else ""
            if which == "exists":
                return Tree("b", (f"({negated}EXISTS (SELECT 1 FROM ", source, *self._where(conditions), "))"))
            of = self.r.choice(ORDERED)
            value, key = self.expr(of, scope, 1), self.expr(of, inner, 1)
            where = self._where(conditions)
            return Tree("b", ("(", value, f" {negated}IN (SELECT ", key, " AS k FROM ", source, *where, "))"))
        finally:
            self._subqueries = before

    def _where(self, conditions: Sequence[Tree], word: str = "WHERE") -> list[Tree]:
        if not conditions:
            return []
        made = conditions[0]
        for c in conditions[1:]:
            made = Tree("b", (made, " AND ", c))
        return [Tree("clause", (f" {word} ", made))]

    def _pair(self, left: Sequence[Column], right: Sequence[Column], of: str = ORDERED) -> tuple[str, str] | None:
        """Two columns that can be compared."""
        pairs = [(a.name, b.name) for a in left for b in right if a.type in of and _alike(a.type, b.type)]
        return self.r.choice(pairs) if pairs else None

    # ------------------------------------------------------------------ sources

    def _name(self, letter: str = "t") -> str:
        self._names += 1
        return f"{letter}{self._names}x"

    def _from(self, depth: int, exact: bool = False) -> tuple[Tree, list[Column]]:
        """Something to select from, and its columns."""
        alias = self._name()
        chance = self.r.random()
        if depth > 0 and chance < 0.35:
            made = self.query(depth - 1)
            tree, types = Tree("source", ("(", made.tree, f") {alias}")), made.types
        elif chance > 0.96:
            types = "".join(self.r.choice("lisd") for _ in range(2))
            rows = [", ".join(self.r.choice(LITERALS[t]) for t in types) for _ in range(self.r.randint(1, 3))]
            text = ", ".join(f"({row})" for row in rows)
            tree = Tree("source", (f"(SELECT * FROM VALUES {text} AS v(c0, c1)) {alias}",))
        else:
            name = self.r.choice([*self.relations, *self._cte, *self._cte])
            types = {**self.relations, **self._cte}[name]
            tree = Tree("source", (f"{name} {alias}",))
        columns = [Column(f"{alias}.c{i}", t) for i, t in enumerate(types)]
        return tree, [c for c in columns if c.type != "f"] if exact else columns

    def _join(self, depth: int, sources: int) -> tuple[Tree, list[Column]]:
        tree, scope = self._from(depth)
        for _ in range(sources - 1):
            other, columns = self._from(depth - 1)
            how = self.r.choices(
                ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN", "CROSS JOIN"],
                [5, 3, 2, 2, 1, 1, 0.5],
            )[0]
            both = [*scope, *columns]
            if how == "CROSS JOIN":
                tree = Tree("source", (tree, " CROSS JOIN ", other))
            else:
                condition = self._join_condition(scope, columns)
                tree = Tree("source", (tree, f" {how} ", other, " ON ", condition))
            scope = scope if "SEMI" in how or "ANTI" in how else both
        return tree, scope

    def _join_condition(self, left: Sequence[Column], right: Sequence[Column]) -> Tree:
        parts: list[Tree] = []
        kind = self.r.random()
        for _ in range(self.r.choice([1, 1, 2])):
            pair = self._pair(left, right)
            if pair is None:
                of = self.r.choice(ORDERED)
                parts.append(Tree("b", (self.expr(of, left, 1), " = ", self.expr(of, right, 1))))
            elif kind < 0.55:
                parts.append(Tree("b", (pair[0], " = ", pair[1])))
            elif kind < 0.65:
                parts.append(Tree("b", (pair[0], " <=> ", pair[1])))
            elif kind < 0.75:
                of = self.r.choice("lis")
                parts.append(Tree("b", (self.expr(of, left, 1), " = ", self.expr(of, right, 1))))
            else:
                parts.append(Tree("b", (pair[0], self.r.choice([" < ", " >= ", " <> ", " > "]), pair[1])))
        if kind > 0.9:
            pair = self._pair(left, right, "li")
            if pair:
                low, high = self.r.choice([("", " + 2"), (" - 1", " + 1"), (" - 3", "")])
                parts.append(Tree("b", (f"{pair[0]} BETWEEN {pair[1]}{low} AND {pair[1]}{high}",)))
        elif self.r.random() < 0.3:
            parts.append(self.predicate([*left, *right], 1))
        made = parts[0]
        for part in parts[1:]:
            made = Tree("b", (made, " AND ", part))
        return made

    # ------------------------------------------------------------------ shapes

    def _outputs(self, made: Sequence[tuple[str, Tree]]) -> tuple[Tree, str]:
        items = tuple(Tree("item", (tree, f" AS c{i}")) for i, (_, tree) in enumerate(made))
        return Tree("list", items), "".join(t for t, _ in made)

    def _types(self, scope: Sequence[Column], low: int, high: int) -> str:
        """Types of columns to make, those that are there before others."""
        there = [c.type for c in scope]
        return "".join(
            self.r.choice(there) if there and self.r.random() < 0.6 else self.r.choice("lismdDTblisAS")
            for _ in range(self.r.randint(low, high))
        )

    def _select(self, depth: int, types: str | None = None, sources: int = 1) -> Query:
        tree, scope = self._join(depth, sources)
        self._subqueries += 1
        types = types or self._types(scope, 1, 4)
        listed, types = self._outputs([(t, self.expr(t, scope, self.r.randint(0, 2))) for t in types])
        where = self._where([self.predicate(scope)]) if self.r.random() < 0.6 else []
        self._subqueries -= 1
        return Query(Tree(f"q{types}", ("SELECT ", listed, " FROM ", tree, *where)), types)

    def _joined(self, depth: int) -> Query:
        return self._select(depth, None, self.r.choice([2, 2, 2, 3]))

    def _grouped(self, depth: int, types: str | None = None) -> Query:
        tree, scope = self._join(depth, self.r.choice([1, 1, 2]))
        where = self._where([self.predicate(scope)]) if self.r.random() < 0.4 else []
        keys: list[tuple[str, Tree]] = []
        for _ in range(self.r.choice([0, 1, 1, 2, 2])):
            letter = self.r.choice([c.type for c in scope if c.type != "f"] or ["l"])
            keys.append((letter, self.expr(letter, scope, self.r.choice([0, 0, 1]))))
        keys = [k for i, k in enumerate(keys) if k[1].sql not in [o[1].sql for o in keys[:i]]]
        # A number alone in GROUP BY is a position, and constants may be folded away from under their expressions.
        keys = [k for k in keys if any(c.name in k[1].sql for c in scope)]
        chosen = types or "".join(self.r.choice("llismdDTbAff") for _ in range(self.r.randint(1, 3)))
        made = [(t, self.aggregate(t, scope)) for t in chosen]
        listed, all_types = self._outputs(made if types else [*keys, *made])
        after: list[str | Tree] = []
        if keys:
            names = Tree("list", tuple(Tree("item", (k,)) for _, k in keys))
            how = self.r.choices(["", "ROLLUP", "CUBE", "GROUPING SETS"], [8, 1, 1, 0.5])[0]
            if how == "GROUPING SETS":
                every = ", ".join(k.sql for _, k in keys)
                after += [f" GROUP BY GROUPING SETS (({every}), ({keys[0][1].sql}), ())"]
            else:
                after += [" GROUP BY ", *([f"{how} (", names, ")"] if how else [names])]
        if self.r.random() < 0.25:
            after.append(Tree("clause", (" HAVING ", self.aggregate("b", scope))))
        return Query(Tree(f"q{all_types}", ("SELECT ", listed, " FROM ", tree, *where, *after)), all_types)

    def _of_types(self, depth: int, types: str) -> Query:
        return self._select(depth, types) if self.r.random() < 0.8 else self._grouped(depth, types)

    def _exact(self, depth: int) -> Query:
        """A query none of whose columns depends on the order of additions."""
        made = self.query(depth)
        if "f" not in made.types:
            return made
        kept = [(t, Tree(t, (f"e.c{i}",))) for i, t in enumerate(made.types) if t != "f"] or [("i", Tree("i", ("1",)))]
        listed, types = self._outputs(kept)
        return Query(Tree(f"q{types}", ("SELECT ", listed, " FROM (", made.tree, ") e")), types)

    def _set_operation(self, depth: int) -> Query:
        left = self._exact(max(depth - 1, 0))
        right = self._of_types(max(depth - 2, 0), left.types)
        how = self.r.choice(["UNION ALL", "UNION", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL", "UNION ALL"])
        return Query(Tree(f"q{left.types}", ("(", left.tree, f") {how} (", right.tree, ")")), left.types)

    def _distinct(self, depth: int) -> Query:
        source, scope = self._from(depth, exact=True)
        chosen = [(c.type, Tree(c.type, (c.name,))) for c in scope if self.r.random() < 0.7]
        listed, types = self._outputs(chosen or [("l", self.expr("l", scope, 1))])
        return Query(Tree(f"q{types}", ("SELECT DISTINCT ", listed, " FROM ", source)), types)

    def _order(self, scope: Sequence[Column]) -> str:
        """A total order: of rows that are equal in it, all columns are equal."""
        columns = list(scope)
        self.r.shuffle(columns)
        ends = ["", " DESC", " NULLS LAST", " DESC NULLS FIRST"]
        return ", ".join(c.name + self.r.choice(ends) for c in columns)

    def _window(self, scope: Sequence[Column]) -> tuple[str, Tree]:
        """A window function, and its type."""
        keys = [c.name for c in scope if c.type != "d" and self.r.random() < 0.4][:2]
        partition = f"PARTITION BY {', '.join(keys)} " if keys else ""
        kind = self.r.random()
        total = f"{partition}ORDER BY {self._order(scope)}"
        if kind < 0.15:
            return "i", Tree("x", (self.r.choice(["row_number()", "ntile(2)", "ntile(3)"]), f" OVER ({total})"))
        one = self.r.choice(list(scope))
        part = f"{partition}ORDER BY {one.name}{self.r.choice(['', ' DESC'])}"
        if kind < 0.3:
            letter = self.r.choice(list(RANKS))
            return letter, Tree("x", (f"{self.r.choice(RANKS[letter])} OVER ({self.r.choice([part, total])})",))
        if kind < 0.5:
            value = self.r.choice(list(scope))
            call = self.r.choice(SHIFTS).replace("{t}", value.name).replace("{L}", LITERALS[value.type][0])
            return value.type, Tree("x", (f"{call} OVER ({total})",))
        letter = self.r.choice(list(WINDOWS))
        template = self._template(WINDOWS[letter], scope)
        whole = re.match(r"(first|last|nth)_value", template)
        spec = total + self.r.choice(FRAMES)
        if not whole and one.type in RANGES and self.r.random() < 0.35:
            spec = f"{partition}ORDER BY {one.name} RANGE BETWEEN {self.r.choice(RANGES[one.type])}"
        elif not whole and self.r.random() < 0.25:
            spec = self.r.choice([part, partition])
        if "%" in template:
            before, after = template.split("%")
            parts: list[str | Tree] = [self.filled("x", before, scope, 0), f"OVER ({spec})", after]
            return letter, Tree("x", tuple(parts))
        filtered = template.endswith("@")
        call_tree = self.filled("x", template.rstrip("@"), scope, 1)
        where = [Tree("clause", (" FILTER (WHERE ", self.predicate(scope, 1), ")"))] if filtered else []
        return letter, Tree("x", (call_tree, *where, f" OVER ({spec})"))

    def _windowed(self, depth: int) -> Query:
        inner = self._exact(max(depth - 1, 0))
        alias = self._name("w")
        scope = [Column(f"{alias}.c{i}", t) for i, t in enumerate(inner.types)]
        made = [self._window(scope) for _ in range(self.r.choice([1, 1, 2, 3]))]
        kept = [(c.type, Tree(c.type, (c.name,))) for c in scope if self.r.random() < 0.8]
        listed, types = self._outputs([*kept, *made])
        source = inner.tree
        if len(made) > 1:  # which of two equal rows comes first may differ from one window to the next
            source = Tree(source.kind, ("SELECT DISTINCT * FROM (", source, f") {self._name('u')}"))
        return Query(Tree(f"q{types}", ("SELECT ", listed, " FROM (", source, f") {alias}")), types)

    def _first_ranks(self, depth: int) -> Query:
        inner = self._exact(max(depth - 1, 0))
        alias = self._name("w")
        scope = [Column(f"{alias}.c{i}", t) for i, t in enumerate(inner.types)]
        keys = ", ".join(c.name for c in scope if self.r.random() < 0.4)
        partition = f"PARTITION BY {keys} " if keys else ""
        function = self.r.choice(["row_number()", "rank()", "dense_rank()"])
        order = self._order(scope) if function == "row_number()" else self._order(scope[:1])
        test = self.r.choice(["<= 2", "= 1", "< 2", "<= 3", "= 2"])
        tree = Tree(
            f"q{inner.types}i",
            (f"SELECT * FROM (SELECT {alias}.*, {function} OVER ({partition}ORDER BY {order}) AS c{len(scope)} FROM (",
             inner.tree, f") {alias}) WHERE c{len(scope)} {test}"),
        )  # fmt: skip
        return Query(tree, inner.types + "i")

    def _top(self, depth: int) -> Query:
        inner = self._exact(max(depth - 1, 0))
        alias = self._name("o")
        scope = [Column(f"{alias}.c{i}", t) for i, t in enumerate(inner.types)]
        limit = f" LIMIT {self.r.randint(1, 4)}" if self.r.random() < 0.9 else ""
        offset = f" OFFSET {self.r.randint(1, 3)}" if not limit or self.r.random() < 0.3 else ""
        after = f") {alias} ORDER BY {self._order(scope)}{limit}{offset}"
        return Query(Tree(f"q{inner.types}", ("SELECT * FROM (", inner.tree, after)), inner.types)

    def _exploded(self, depth: int) -> Query:
        source, scope = self._from(depth)
        name = self._name("g")
        outer = "OUTER " if self.r.random() < 0.4 else ""
        kind = self.r.random()
        made: list[Column] = [Column(f"{name}.x", "l")]
        if kind < 0.6:
            call: list[str | Tree] = ["explode(", self.expr("A", scope, 1), f") {name} AS x"]
        elif kind < 0.8:
            call = ["posexplode(", self.expr("A", scope, 1), f") {name} AS n, x"]
            made.append(Column(f"{name}.n", "i"))
        else:
            call = ["explode(split(", self.expr("s", scope, 1), f", 'b')) {name} AS x"]
            made = [Column(f"{name}.x", "s")]
        everything = [*scope, *made]
        types = self._types(scope, 0, 2)
        listed, types = self._outputs(
            [(c.type, Tree(c.type, (c.name,))) for c in made] + [(t, self.expr(t, everything, 1)) for t in types]
        )
        parts = ("SELECT ", listed, " FROM ", source, f" LATERAL VIEW {outer}", *call)
        where = self._where([self.predicate(everything, 1)]) if self.r.random() < 0.3 else []
        return Query(Tree(f"q{types}", (*parts, *where)), types)

    def _with(self, depth: int) -> Query:
        inner = self.query(max(depth - 1, 0))
        name = self._name("cte")
        self._cte[name] = inner.types
        try:
            body = self.query(max(depth - 1, 1))
        finally:
            del self._cte[name]
        return Query(Tree(f"q{body.types}", (f"WITH {name} AS (", inner.tree, ") ", body.tree)), body.types)

    def _lateral(self, depth: int) -> Query:
        source, scope = self._from(depth)
        inner, columns = self._from(0)
        pair = self._pair(scope, columns)
        letter = self.r.choice("lism")
        value = self.aggregate(letter, columns)
        where = self._where([Tree("b", (f"{pair[1]} = {pair[0]}",))]) if pair else []
        alias = self._name("a")
        outputs = [(c.type, Tree(c.type, (c.name,))) for c in scope[:3]] + [(letter, Tree("x", (f"{alias}.v",)))]
        listed, types = self._outputs(outputs)
        parts = ("SELECT ", listed, " FROM ", source, ", LATERAL (SELECT ", value, " AS v FROM ", inner, *where)
        return Query(Tree(f"q{types}", (*parts, f") {alias}")), types)

    def _pivoted(self, depth: int) -> Query:
        inner = self._exact(max(depth - 1, 0))
        keys = [i for i, t in enumerate(inner.types) if t in "lis"]
        if not keys:
            return inner
        k = self.r.choice(keys)
        of = inner.types[k]
        values = ", ".join(f"{LITERALS[of][n]} AS p{n}" for n in (0, 1))
        alias = self._name("p")
        others = "".join(t for i, t in enumerate(inner.types) if i != k)
        names = [f"{alias}.c{i}" for i in range(len(inner.types)) if i != k] + [f"{alias}.p0", f"{alias}.p1"]
        types = others + "ll"
        listed = ", ".join(f"{n} AS c{i}" for i, n in enumerate(names))
        text = f"SELECT {listed} FROM (SELECT * FROM ("
        tree = Tree(f"q{types}", (text, inner.tree, f") PIVOT (count(*) FOR c{k} IN ({values}))) {alias}"))
        return Query(tree, types)


def _alike(a: str, b: str) -> bool:
    return a == b or {a, b} == {"l", "i"}


# ---------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """Tables, views over them, and ticks."""

    seed: int
    tables: dict[str, str]
    """Their columns, as Spark writes a schema."""
    views: dict[str, Tree]
    ticks: list[Change]
    retract: bool = True
    """Whether everything is deleted after the ticks."""


def make_case(seed: int, queries: int = 8, raising: float = 0.006) -> Case:
    """A case from a seed."""
    r = random.Random(seed)
    tables = {
        f"t{i}": r.choice("li") + "".join(r.choice("lismdDTblismdAS") for _ in range(r.randint(1, 3)))
        for i in range(r.choice([2, 2, 3]))
    }
    generator = Generator(r, dict(tables), raising)
    views: dict[str, Tree] = {}
    for i in range(queries):
        made = generator.query(r.choice([1, 1, 2, 2, 3]))
        while len(made.sql) > LONGEST:
            made = generator.query(2)
        views[f"v{i}"] = made.tree
        if r.random() < 0.3:
            generator.relations[f"v{i}"] = made.types
    schemas = {n: ", ".join(f"c{i} {TYPES[t]}" for i, t in enumerate(types)) for n, types in tables.items()}
    return Case(seed, schemas, views, make_ticks(r, tables))


def make_ticks(r: random.Random, tables: dict[str, str]) -> list[Change]:
    """Inserts; then inserts, deletes, updates, and sometimes nothing."""
    known: dict[str, dict[Row, Row]] = {name: {} for name in tables}
    """Rows as they were first seen: 0.0 equals -0.0 in Python, and only what was inserted can be deleted."""
    held: dict[str, Counter[Row]] = {name: Counter() for name in tables}
    ticks: list[Change] = []
    for number in range(r.choice([3, 3, 4])):
        change: Change = {}
        for name, types in tables.items():
            if number and r.random() < 0.2:
                continue
            rows: Counter[Row] = Counter()
            for row, n in held[name].items():
                if r.random() < 0.4:
                    rows[row] -= r.randint(1, n)
                    if r.random() < 0.5:  # an update
                        at = r.randrange(len(types))
                        rows[(*row[:at], _value(r, types[at]), *row[at + 1 :])] += 1
            for _ in range(r.randint(0 if number else 2, 6)):
                rows[tuple(_value(r, t) for t in types)] += r.choice([1, 1, 1, 2])
            change[name] = {known[name].setdefault(row, row): n for row, n in rows.items() if n}
            for row, n in change[name].items():
                held[name][row] += n
            held[name] = +held[name]
        ticks.append(change)
        if number and r.random() < 0.3:
            ticks.append({})
    return ticks


def _value(r: random.Random, letter: str) -> Any:
    return None if r.random() < 0.15 else r.choice(VALUES[letter])
