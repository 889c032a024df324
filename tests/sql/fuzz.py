"""Random queries against Spark, for as long as wished: `python -m tests.sql.fuzz --seconds 600 --seed 7`.

A case is a handful of views over the same random tables (`tests.sql.generator`). Spark is asked after every tick. Where
Spark raises an error, our tick has to raise one as well, and to leave no trace; or the view is skipped for that tick:
which rows an optimiser evaluates is not laid down. Any other error, here or in reading Spark's answer, is a failure. A
case that fails is made smaller for a while, then printed so that it can be replayed.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from dbspark.columnar.frames import arrow_of
from dbspark.columnar.schema import Schema
from dbspark.errors import EvaluationError
from dbspark.sql.catalyst import EXCLUDED_RULES
from dbspark.sql.program import Program
from tests.sql.generator import Case, Change, Row, Tree, make_case, smaller
from tests.sql.oracle import difference, frozen, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Tally:
    """What was done."""

    queries: int = 0
    ticks: int = 0
    differences: int = 0
    skipped: int = 0
    """Views that Spark raised an error for, in a tick that passed here."""
    raised: int = 0
    """Ticks in which both raised an error on some value."""
    invalid: int = 0
    """Queries that Spark itself refuses."""
    modes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    """Why they were skipped."""
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[what] += time.monotonic() - start

    def __str__(self) -> str:
        modes = ", ".join(f"{n} {mode}" for mode, n in self.modes.most_common())
        times = ", ".join(f"{what} {n:.0f} s" for what, n in self.seconds.items())
        return (
            f"{self.queries} queries, {self.ticks} ticks, {self.differences} differences "
            f"({self.invalid} queries refused by Spark, {self.raised} ticks raised in both, "
            f"{self.skipped} views skipped; {modes}; {times})"
        )


@dataclass(frozen=True)
class Failure:
    """A view that is wrong, or an error that Spark does not raise."""

    kind: str
    view: str
    tick: int
    text: str

    @property
    def signature(self) -> str:
        """What stays the same while a case is made smaller."""
        if self.kind == "difference":
            return self.kind
        last = [line for line in self.text.strip().splitlines() if line.strip()][-1]
        return self.kind + re.sub(r"[\d'\"].*", "", last)[:60]


class Run:
    """One case, beside Spark."""

    def __init__(self, spark: SparkSession, case: Case, tally: Tally) -> None:
        self.spark = spark
        self.case = case
        self.tally = tally
        self.schemas = {name: Schema.of(columns) for name, columns in case.tables.items()}
        self.contents: dict[str, Counter[Row]] = {name: Counter() for name in case.tables}
        self.views: dict[str, str] = {}
        self.held: dict[str, Counter[Any]] = {}
        self.answers: dict[str, Counter[Any] | Exception] = {}
        """What Spark says about the contents, if it has been asked."""

    def __call__(self) -> Failure | None:
        try:
            return self._run()
        finally:
            for name in (*self.case.tables, *self.case.views):
                self.spark.catalog.dropTempView(name)

    def _run(self) -> Failure | None:
        program = Program(self.spark)
        for name, columns in self.case.tables.items():
            program.table(name, columns)
        for name, tree in self.case.views.items():
            try:
                with self.tally.timed("compiling"):
                    made = program.view(name, tree.sql)
            except Exception as error:
                if isinstance(error, PySparkException) or self._refused(tree.sql):
                    self.tally.invalid += 1
                    continue
                return Failure("view", name, -1, traceback.format_exc())
            modes = {n.mode for n in made.notes}
            self.tally.modes["full" if "full" in modes else "by groups" if len(modes) > 1 else "incremental"] += 1
            self.views[name] = tree.sql
            self.held[name] = Counter()
            self.tally.queries += 1
        self.circuit = program.circuit()
        for number, change in enumerate(self.case.ticks):
            failure = self._tick(number, change)
            if failure:
                return failure
        if self.case.retract:
            everything = {name: {row: -n for row, n in held.items()} for name, held in self.contents.items() if held}
            return self._tick(len(self.case.ticks), everything)
        return None

    def _refused(self, query: str) -> bool:
        """Whether Spark refuses a query as well."""
        try:
            self._tables({n: Counter() for n in self.contents}, True)
            for view, sql in self.views.items():
                self.spark.sql(sql).createOrReplaceTempView(view)
            arrow_of(self.spark.sql(query))
        except Exception:
            return True
        finally:
            for view in (*self.contents, *self.views):
                self.spark.catalog.dropTempView(view)
        return False

    def _tables(self, contents: dict[str, Counter[Row]], everything: bool) -> None:
        for name, schema in self.schemas.items():
            if everything or contents[name] != self.contents[name]:
                rows = [row for row, n in contents[name].items() for _ in range(n)]
                # In one partition, so that nothing is shuffled: that takes longer than all the rest.
                self.spark.createDataFrame(as_table(schema, rows)).coalesce(1).createOrReplaceTempView(name)

    def _expected(
        self, contents: dict[str, Counter[Row]], everything: bool, number: int
    ) -> dict[str, Counter[Any] | Exception] | Failure:
        """What Spark says, or the errors that it raises; a failure where what it says cannot be read."""
        self._tables(contents, everything)
        out: dict[str, Counter[Any] | Exception] = {}
        for name, query in self.views.items():
            try:
                frame = self.spark.sql(query)
                frame.createOrReplaceTempView(name)
                out[name] = Counter(rows_of(arrow_of(frame)))
            except (PySparkException, Py4JError) as error:
                out[name] = error
            except Exception:
                return Failure("oracle", name, number, traceback.format_exc())
        return out

    def _also_raised(self, contents: dict[str, Counter[Row]], error: Exception) -> bool:
        """Whether Spark raises the same error where it evaluates what a view is compiled from.

        That is the query without the optimiser's rules that are left out, over views that are tables. Elsewhere, Spark
        puts a view's query in the place of the view, and may find that there is nothing to join a failing row with.
        """
        found = re.search(r"\[[A-Z_]+", str(error))
        if not isinstance(error, EvaluationError | PySparkException) or not found:
            return False
        key = "spark.sql.optimizer.excludedRules"
        before = self.spark.conf.get(key, None)
        rules = [*EXCLUDED_RULES, "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation"]
        self.spark.conf.set(key, ",".join(rules))
        try:
            self._tables(contents, True)
            for name, query in self.views.items():
                rows = arrow_of(self.spark.sql(query))
                self.spark.createDataFrame(rows).coalesce(1).createOrReplaceTempView(name)
        except Exception as raised:
            return found[0] in str(raised)
        finally:
            if before is None:
                self.spark.conf.unset(key)
            else:
                self.spark.conf.set(key, before)
        return False

    def _tick(self, number: int, change: Change) -> Failure | None:
        after = {name: held.copy() for name, held in self.contents.items()}
        clipped: Change = {}
        for name, rows in change.items():
            if name not in after:
                continue
            clipped[name] = {row: max(n, -after[name][row]) for row, n in rows.items()}
            after[name].update(clipped[name])
            after[name] = +after[name]
        if not self.answers or any(rows for rows in clipped.values()):
            with self.tally.timed("Spark"):
                answers = self._expected(after, not self.answers, number)
            if isinstance(answers, Failure):
                return answers
            self.answers = answers
        errors = [a for a in self.answers.values() if isinstance(a, Exception)]
        try:
            with self.tally.timed("ticks"):
                out = self.circuit.tick({name: {r: n for r, n in rows.items() if n} for name, rows in clipped.items()})
        except Exception as error:
            known = isinstance(error, EvaluationError | PySparkException)  # anything else is a defect of ours
            if not known or (not errors and not self._also_raised(after, error)):
                return Failure("tick", "", number, traceback.format_exc())
            self.tally.raised += 1
            self.answers = {}
            return None
        self.contents = after
        self.tally.ticks += 1
        for name, changed in out.items():
            held = self.held[name]
            for row, weight in changed:
                key = frozen(row)
                held[key] += weight
                if not held[key]:
                    del held[key]
        for name in self.views:
            answer = self.answers[name]
            if isinstance(answer, Exception):
                self.tally.skipped += 1
                found = re.search(r"\[([A-Z_.]+)\]", str(answer))
                self.tally.reasons[f"{name} of {self.case.seed}: {found[1] if found else answer}"] += 1
                continue
            wrong = difference(self.held[name], answer)
            if wrong:
                return Failure("difference", name, number, wrong)
        return None


def as_table(schema: Schema, rows: list[Row]) -> pa.Table:
    """Rows as Spark gets them; structs are tuples in ours and dictionaries in Arrow's."""

    def plain(value: Any, dtype: pa.DataType) -> Any:
        if value is not None and pa.types.is_struct(dtype):
            return {f.name: v for f, v in zip(dtype, value, strict=True)}
        return value

    columns = [pa.array([plain(row[i], t) for row in rows], t) for i, t in enumerate(schema.types)]
    return pa.Table.from_arrays(columns, schema=schema.arrow)


# ---------------------------------------------------------------------- smaller cases


class Shrinker:
    """Makes a failing case smaller as long as it fails in the same way."""

    def __init__(self, spark: SparkSession, case: Case, failure: Failure, seconds: float) -> None:
        self.spark = spark
        self.case = case
        self.failure = failure
        self.until = time.monotonic() + seconds

    def __call__(self) -> tuple[Case, Failure]:
        self._later_ticks()
        for step in (self._views, self._fewer_ticks, self._queries, self._fewer_ticks, self._rows, self._unused):
            step()
        return self.case, self.failure

    def _try(self, case: Case) -> bool:
        if time.monotonic() > self.until:
            return False
        failure = Run(self.spark, case, Tally())()
        if failure is None or failure.signature != self.failure.signature:
            return False
        self.case, self.failure = case, failure
        return True

    def _any(self, cases: Callable[[], Iterator[Case]]) -> None:
        """Take the first smaller case that fails, and start again from it."""
        while any(self._try(c) for c in cases()):
            pass

    def _views(self) -> None:
        """One view, and those that it reads; where that is not enough, as few as possible."""
        for name in [self.failure.view] if self.failure.view else list(self.case.views):
            wanted = {name}
            for view in reversed(self.case.views):
                if view in wanted:
                    wanted |= {v for v in self.case.views if re.search(rf"\b{v}\b", self.case.views[view].sql)}
            if self._try(replace(self.case, views={n: t for n, t in self.case.views.items() if n in wanted})):
                return
        self._any(lambda: (replace(self.case, views=_without(self.case.views, n)) for n in reversed(self.case.views)))

    def _fewer_ticks(self) -> None:
        if self.failure.kind == "view":
            self.case = replace(self.case, ticks=[], retract=False)
            return
        self._later_ticks()
        n = len(self.case.ticks)
        self._any(
            lambda: (replace(self.case, ticks=_but(self.case.ticks, i)) for i in range(min(n, len(self.case.ticks))))
        )

    def _later_ticks(self) -> None:
        """What comes after the failure has no part in it."""
        if self.failure.tick < len(self.case.ticks):
            self.case = replace(self.case, ticks=self.case.ticks[: self.failure.tick + 1], retract=False)

    def _queries(self) -> None:
        def simpler() -> Iterator[Case]:
            for name in reversed(self.case.views):
                for tree in smaller(self.case.views[name]):
                    if time.monotonic() > self.until:
                        return
                    yield replace(self.case, views={**self.case.views, name: tree})

        self._any(simpler)

    def _rows(self) -> None:
        def fewer() -> Iterator[Case]:
            for i, change in enumerate(self.case.ticks):
                for name, rows in change.items():
                    for row, n in rows.items():
                        without = {**change, name: _without(rows, row)}
                        yield replace(self.case, ticks=[*self.case.ticks[:i], without, *self.case.ticks[i + 1 :]])
                        if n > 1:
                            once = {**change, name: {**rows, row: 1}}
                            yield replace(self.case, ticks=[*self.case.ticks[:i], once, *self.case.ticks[i + 1 :]])

        self._any(fewer)

    def _unused(self) -> None:
        text = " ".join(t.sql for t in self.case.views.values())
        used = {n: t for n, t in self.case.tables.items() if re.search(rf"\b{n}\b", text)}
        ticks = [{n: rows for n, rows in change.items() if n in used and rows} for change in self.case.ticks]
        self._try(replace(self.case, tables=used, ticks=ticks))


def _without(given: dict[Any, Any], key: Any) -> dict[Any, Any]:
    return {k: v for k, v in given.items() if k is not key}


def _but(given: list[Any], at: int) -> list[Any]:
    return [*given[:at], *given[at + 1 :]]


_HEAD = """\
# seed {seed}: {kind} in {view}, tick {tick}
import datetime
from decimal import Decimal
from tests.sql.fuzz import replay
inf, nan = float("inf"), float("nan")"""


def printed(case: Case, failure: Failure) -> str:
    """A case as Python that replays it, and what is wrong with it."""
    view = failure.view or "some view"
    lines = [_HEAD.format(seed=case.seed, kind=failure.kind, view=view, tick=failure.tick), "tables = {"]
    lines += [f"    {n!r}: {columns!r}," for n, columns in case.tables.items()]
    lines += ["}", "views = {", *(f"    {n!r}: {t.sql!r}," for n, t in case.views.items())]
    lines += ["}", "ticks = [", *(f"    {change!r}," for change in case.ticks), "]"]
    lines += [f"replay(spark, tables, views, ticks, retract={case.retract})"]
    return "\n".join([*lines, *(f"#   {line}" for line in failure.text.rstrip().splitlines()[-40:])])


def replay(
    spark: SparkSession, tables: dict[str, str], views: dict[str, str], ticks: list[Change], retract: bool = True
) -> None:
    """Run a case that was printed."""
    trees = {name: Tree("query", (sql,)) for name, sql in views.items()}
    failure = Run(spark, Case(0, tables, trees, ticks, retract), Tally())()
    assert failure is None, f"{failure.kind} in {failure.view or 'some view'}, tick {failure.tick}:\n{failure.text}"


# ---------------------------------------------------------------------- the command


def fuzz(
    spark: SparkSession, seed: int, *, queries: int | None = None, seconds: float | None = None,
    keep_going: bool = False, verbose: bool = False, shrink: float = 120,
    report: Callable[[str], None] = sys.stdout.write, per_case: int = 8,
) -> Tally:  # fmt: skip
    """Run cases from a seed on until there are enough queries, the time is over, or one fails."""
    tally = Tally()
    until = time.monotonic() + seconds if seconds is not None else None
    while (queries is None or tally.queries < queries) and (until is None or time.monotonic() < until):
        case = make_case(seed, per_case)
        seed += 1
        failure = Run(spark, case, tally)()
        if verbose:
            report(f"seed {case.seed}: {tally}\n")
        if failure is None:
            continue
        tally.differences += 1
        report(printed(*Shrinker(spark, case, failure, shrink)()) + "\n\n")
        if not keep_going:
            break
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sql.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, help="stop after this many queries")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first case; the next has the next")
    parser.add_argument("--keep-going", action="store_true", help="go on after a difference")
    parser.add_argument("--verbose", action="store_true", help="say where it is after every case")
    parser.add_argument("--shrink", type=float, default=120, help="seconds for making a failing case smaller")
    args = parser.parse_args()
    if args.queries is None and args.seconds is None:
        args.seconds = 60.0

    from dbspark.spark import get_session

    config = {
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "OFF",
    }
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # queries that Spark refuses
    handle = get_session(app_name="dbspark fuzz", cores=1, config=config)

    def report(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    try:
        tally = fuzz(
            handle.spark, args.seed, queries=args.queries, seconds=args.seconds, keep_going=args.keep_going,
            verbose=args.verbose, shrink=args.shrink, report=report,
        )  # fmt: skip
    finally:
        handle.close()
    report("".join(f"skipped {n} times: {why}\n" for why, n in tally.reasons.most_common()) + f"{tally}\n")
    return 1 if tally.differences else 0


if __name__ == "__main__":
    sys.exit(main())
