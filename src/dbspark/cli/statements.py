"""Statements from the command line: answers of queries are printed, all other statements change the pipeline.

A `Shell` runs them one by one. A definition that exists already, word for word, is skipped, so that a program
can be run again at its location.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from dbspark.cli.output import print_line, show_arrow, show_rows
from dbspark.cli.status import read_status
from dbspark.columnar.frames import arrow_of
from dbspark.errors import DbsparkError, LockError, StoreError
from dbspark.pipeline.flows import check_supported
from dbspark.pipeline.pipeline import Pipeline
from dbspark.pipeline.statements import SOURCE, VIEW, statements, view_query
from dbspark.sql.names import IDENTIFIER, find_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Shell", "explain", "open_pipeline", "prompt", "spark_errors", "sql"]

_QUERY = re.compile(r"\(|(SELECT|WITH|VALUES|FROM|TABLE|DESCRIBE|DESC)\b", re.IGNORECASE)
_SHOW = re.compile(r"SHOW\s+(TABLES|VIEWS)", re.IGNORECASE)
_EXPLAIN = re.compile(r"EXPLAIN\s+(.+)", re.IGNORECASE | re.DOTALL)
_TABLE = re.compile(rf"CREATE\s+TABLE\s+({IDENTIFIER})", re.IGNORECASE)
_QUIT = {"quit", "exit", "\\q"}


class Shell:
    """Runs statements on a pipeline and prints their results."""

    def __init__(
        self, pipe: Pipeline, console: Console, *, limit: int | None, known: Mapping[str, str] | None = None
    ) -> None:
        """`known`: by view, its query at the start of this run; a definition with the same query is skipped, once."""
        self.pipe = pipe
        self.console = console
        self.limit = limit if console.is_terminal else None
        self._known = dict(known or {})
        self._old_tables = set(pipe.tables) if known is not None else set()

    def run(self, statement: str) -> None:
        """One statement, without a semicolon."""
        self.pipe.refresh()
        if (shown := _SHOW.fullmatch(statement)) is not None:
            self._show_names(shown[1].upper() == "VIEWS")
        elif (explained := _EXPLAIN.fullmatch(statement)) is not None:
            print_line(self.console, self.pipe.explain(explained[1]))
        elif _QUERY.match(statement) is not None:
            self._query(statement)
        elif self._is_there(statement):
            print_line(self.console, f"there already  {_headline(statement)}")
        else:
            begun = perf_counter()
            self.pipe.sql(statement)
            print_line(self.console, f"{1e3 * (perf_counter() - begun):9,.0f} ms  {_headline(statement)}")

    def _query(self, statement: str) -> None:
        frame = self.pipe.query(statement)
        if self.limit is not None:
            frame = frame.limit(self.limit + 1)
        show_arrow(self.console, arrow_of(frame), self.limit)

    def _show_names(self, views_only: bool) -> None:
        rows = [] if views_only else [(name, "table") for name in self.pipe.tables]
        show_rows(self.console, ("name", "kind"), [*rows, *((name, "view") for name in self.pipe.views)], set())

    def _is_there(self, statement: str) -> bool:
        """Whether the same definition existed before this run; defining it twice in one run is an error."""
        if (view := VIEW.fullmatch(statement)) is not None:
            name = find_name(view["name"], self._known) or ""
            same = name in self._known and self._known[name].split() == view_query(view).split()
            if same:
                del self._known[name]
            return same
        if SOURCE.fullmatch(statement) is not None:  # a table of Spark's catalogue, which lasts as long as the session
            return False
        found = _TABLE.match(statement)
        table = None if found is None else find_name(found[1], self._old_tables)
        if table is not None:
            with Pipeline("scratch") as scratch:
                scratch.sql(statement)
                given, there = scratch.table(table), self.pipe.table(table)
                same = given.schema == there.schema and given.primary_key == there.primary_key
            if same:
                self._old_tables.remove(table)
            return same
        return False


def prompt(shell: Shell, read: Callable[[str], str] = input) -> None:
    """Read statements, each up to its semicolon, and run them; an error is printed and the next one is read."""
    lines: list[str] = []
    while True:
        try:
            text = read("      -> " if lines else "dbspark> ")
        except KeyboardInterrupt:
            lines = []
            print_line(shell.console, "")
            continue
        except EOFError:
            return
        if not lines and text.strip().rstrip(";").lower() in _QUIT:
            return
        lines.append(text)
        if not text.rstrip().endswith(";"):
            if not "".join(lines).strip():
                lines = []
            continue
        script, lines = "\n".join(lines), []
        try:
            with spark_errors():
                for statement in statements(script):
                    shell.run(statement)
        except DbsparkError as error:
            shell.console.print(f"{type(error).__name__}: {error}", style="red", markup=False, soft_wrap=True)


Access = Literal["write", "write if possible", "read"]


@contextmanager
def open_pipeline(
    name: str, location: str | None, console: Console, access: Access = "write",
    config: Mapping[str, str] | None = None, shards: int | None = None,
) -> Iterator[Pipeline]:  # fmt: skip
    """Open a pipeline with a Spark session that logs errors only, while the block runs."""
    from dbspark.spark import get_session

    with console.status("Starting Spark"):
        settings = {"spark.log.level": "ERROR", **(config or {})}
        session = get_session(app_name=f"dbspark {name}", worker_slots=shards or 0, config=settings)
    with session, spark_errors(), _pipeline(name, location, session.spark, access, shards) as pipe:
        yield pipe


def _pipeline(
    name: str, location: str | None, spark: "SparkSession", access: Access, shards: int | None
) -> Pipeline:  # fmt: skip
    if access != "read":
        try:
            return Pipeline(name, location=location, spark=spark, shards=shards)
        except LockError as error:
            if access == "write":
                raise
            message = f"Reading only, each query at the newest tick: {error}"
            Console(stderr=True, soft_wrap=True).print(message, style="yellow", markup=False, highlight=False)
    return Pipeline(name, location=location, spark=spark, config={"read_only": True})


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turn errors of Spark into `DbsparkError`, which are printed without a traceback."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise DbsparkError(str(error).partition("\n\nJVM stacktrace:")[0].strip()) from error


def sql(location: str, script: str | None, console: Console, *, limit: int, create: bool) -> None:
    """Run a script at a location, or read statements until the end."""
    shards = None
    try:
        status = read_status(location)
        name, shards = status.name, status.shards
    except StoreError:
        if not create:
            raise
        name = location.rstrip("/").rpartition("/")[2]
    if script is None and not sys.stdin.isatty():
        script = sys.stdin.read()
    given = None if script is None else list(statements(script))
    for statement in given or ():
        check_supported(statement)
    with open_pipeline(name, location, console, "write if possible", shards=shards) as pipe:
        shell = Shell(pipe, console, limit=limit)
        if given is not None:
            for statement in given:
                shell.run(statement)
            return
        with suppress(ImportError):
            import_module("readline")  # input() then has a history
        print_line(
            console, f"{pipe!r}\nStatements end with a semicolon; SHOW TABLES; lists what is there, quit leaves."
        )
        prompt(shell)


def explain(location: str, view: str, console: Console) -> None:
    """Print how a view is maintained, or how a query would be."""
    name = read_status(location).name
    with open_pipeline(name, location, console, "read") as pipe:
        is_name = view.isidentifier() or pipe._find(view, "view") is not None
        print_line(console, pipe.view(view).explain() if is_name else pipe.explain(view))


def _headline(statement: str) -> str:
    words = " ".join(statement.split())
    return words if len(words) <= 60 else f"{words[:59]}…"
