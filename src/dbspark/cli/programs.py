"""Programs in files: `dbspark init` makes one, `dbspark run` runs one.

A program is a `.sql` file, a directory of them in the order of their names, or a directory in the layout of Spark's
declarative pipelines: `spark-pipeline.yml` says which files belong to it and where its state is. There definitions may
come in any order: sources, tables, views, flows; a view that names another one which is not there yet waits for it.

A run brings every streaming table up to what its streams have, and ends. Views need no refreshing. A full refresh is
for definitions that have changed: what is named, and the views that read it, is dropped and made again.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.errors import AnalysisException
from rich.console import Console

from dbspark.cli.output import print_line, show_rows
from dbspark.cli.statements import Shell, open_pipeline, spark_errors
from dbspark.cli.status import read_status
from dbspark.errors import ConfigError, DbsparkError, StoreError
from dbspark.pipeline.flows import FLOW, STREAMING_TABLE, check_supported, create_streaming_table, reads_a_stream
from dbspark.pipeline.pipeline import Pipeline
from dbspark.pipeline.statements import SOURCE, VIEW, statements
from dbspark.sql.names import find_name, unquoted

__all__ = ["SPEC", "ProgramText", "init", "read_program", "run_program"]

SPEC = ("spark-pipeline.yml", "spark-pipeline.yaml")
"""The names of the file that makes a directory a declarative pipeline."""

_README = """\
# {name}

`program.sql` defines tables and views and changes them. Run it with `dbspark run {name} --location {name}/state`, look
at what it made with `dbspark status {name}/state`, and ask with `dbspark sql {name}/state -e "SELECT * FROM revenue"`.
"""

_PROGRAM = """\
-- Tables that change, and views that follow them.
CREATE TABLE customers (customer_id BIGINT PRIMARY KEY, region STRING);
CREATE TABLE orders (order_id BIGINT PRIMARY KEY, customer_id BIGINT, amount DECIMAL(12, 2));

CREATE MATERIALIZED VIEW revenue AS
SELECT region, count(*) AS orders, sum(amount) AS total
FROM orders JOIN customers USING (customer_id)
GROUP BY region;

-- Each of these is a transaction, and every view is up to date after it.
INSERT INTO customers VALUES (1, 'north'), (2, 'south');
INSERT INTO orders VALUES (10, 1, 19.90), (11, 2, 5.00), (12, 1, 7.50);
DELETE FROM orders WHERE order_id = 11;

SELECT * FROM revenue;
"""


@dataclass(frozen=True)
class ProgramText:
    """The statements to run, and where their state is."""

    name: str
    statements: Sequence[tuple[Path, str]]
    """The statements, each with the file that it comes from."""
    location: str | None = None
    any_order: bool = False
    catalog: str | None = None
    database: str | None = None
    """The database of Spark's catalogue in which sources are looked up."""
    configuration: Mapping[str, str] = field(default_factory=dict)
    """Settings of the Spark session."""

    def defined(self, *patterns: re.Pattern[str]) -> list[str]:
        """The names that statements matching the patterns define."""
        found = (p.fullmatch(s) for _, s in self.statements for p in patterns)
        return [unquoted(f["name"]) for f in found if f is not None]


@dataclass
class _Spec:
    name: str | None = None
    storage: str | None = None
    catalog: str | None = None
    database: str | None = None
    schema: str | None = None
    """A synonym of `database`."""
    configuration: dict[str, str] = field(default_factory=dict)
    include: list[str] = field(default_factory=list)


_KEYS = ("name", "storage", "catalog", "database", "schema", "configuration", "libraries")


@dataclass(frozen=True)
class Refresh:
    """Which streaming tables are brought up to date, and which tables and views are created again."""

    only: Sequence[str] = ()
    """Streaming tables whose flows are run; all of them if it is empty."""
    full: Sequence[str] = ()
    """Streaming tables and views that are dropped and created again."""
    full_all: bool = False

    @staticmethod
    def of(only: str | None, full: str | None, full_all: bool, program: ProgramText) -> "Refresh":
        """Parse lists of names with commas; raises `ConfigError` for names that the program does not define."""
        streaming = program.defined(STREAMING_TABLE)
        for option, given, allowed in (
            ("--refresh", only, streaming), ("--full-refresh", full, [*streaming, *program.defined(VIEW)]),
        ):  # fmt: skip
            unknown = [name for name in _names(given) if find_name(name, allowed) is None]
            if unknown:
                raise ConfigError(
                    f"{option} {', '.join(unknown)}: not a streaming table"
                    f"{'' if option == '--refresh' else ' or view'} of the program; there are "
                    f"{', '.join(allowed) or 'none'}"
                )
        return Refresh(
            [find_name(name, streaming) or name for name in _names(only)],
            [find_name(name, program.defined(STREAMING_TABLE, VIEW)) or name for name in _names(full)],
            full_all,
        )

    def again(self, program: ProgramText) -> list[str]:
        """The names of the tables and views that are created again."""
        return [*program.defined(STREAMING_TABLE), *program.defined(VIEW)] if self.full_all else list(self.full)


def _names(given: str | None) -> list[str]:
    return [name.strip() for name in (given or "").split(",") if name.strip()]


def init(name: str, console: Console) -> None:
    """Make a folder with an example."""
    folder = Path(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already and is not an empty folder; choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "program.sql").write_text(_PROGRAM)
    (folder / "README.md").write_text(_README.format(name=name.rstrip("/")))
    print_line(console, f"Made {folder / 'program.sql'} and {folder / 'README.md'}. Run it with: dbspark run {name}")


def run_program(
    path: Path, location: str | None, console: Console, *, limit: int, refresh: str | None = None,
    full_refresh: str | None = None, full_refresh_all: bool = False, shards: int | None = None,
) -> None:  # fmt: skip
    """Run a program and print the row counts of its views."""
    program = read_program(path)
    requested = Refresh.of(refresh, full_refresh, full_refresh_all, program)
    where = program.location if location is None else location
    name = program.name
    if where is not None:
        with suppress(StoreError):  # nothing there yet, or nothing that can be read; opening it says which
            status = read_status(where)
            name, shards = status.name, status.shards if shards is None else shards
    with (
        open_pipeline(name, where, console, config=program.configuration, shards=shards) as pipe,
        _use_catalog(pipe, program),
    ):
        _drop(pipe, requested.again(program), program, console)
        known = {view: str(pipe._definitions[view]["query"]) for view in pipe.views}
        shell = Shell(pipe, console, limit=limit, known=known)
        _run_all(shell, program, requested)
        rows = [(view, len(pipe.view(view).to_arrow())) for view in pipe.views]
        rows += [(table, len(pipe.table(table).to_arrow())) for table in program.defined(STREAMING_TABLE)]
        print_line(console, f"Tick {pipe.tick}, {'in memory' if where is None else where}")
        if rows:
            show_rows(console, ("view", "rows"), rows, {1})


@contextmanager
def _use_catalog(pipe: Pipeline, program: ProgramText) -> Iterator[None]:
    """Use the catalogue and database of the program while the block runs."""
    if program.catalog is None and program.database is None:
        yield
        return
    catalog = pipe._spark().catalog
    before = catalog.currentCatalog(), catalog.currentDatabase()
    try:
        if program.catalog is not None:
            catalog.setCurrentCatalog(program.catalog)
        if program.database is not None:
            catalog.setCurrentDatabase(program.database)
        yield
    finally:
        catalog.setCurrentCatalog(before[0])
        catalog.setCurrentDatabase(before[1])


def _drop(pipe: Pipeline, names: Sequence[str], program: ProgramText, console: Console) -> None:
    """Drop what is created again and the views that read it, readers first."""
    reads = {name: plan.reads for name, plan in pipe._program.views.items()}
    dropped = {there for name in names if (there := pipe._find(name, "view") or pipe._find(name, "table"))}
    while more := {view for view, read in reads.items() if view not in dropped and read & dropped}:
        dropped |= more
    defined = program.defined(STREAMING_TABLE, VIEW)
    lost = sorted(name for name in dropped if find_name(name, defined) is None)
    if lost:
        raise ConfigError(
            f"a full refresh would drop {', '.join(lost)}, which reads what is made again and is not in the program; "
            "add it to the program, or drop it first"
        )
    for view in reversed(pipe.views):
        if view in dropped:
            pipe.drop_view(view)
    for table in [table for table in pipe.tables if table in dropped]:
        pipe.drop_table(table)
    if dropped:
        print_line(console, f"Made again: {', '.join(sorted(dropped))}")


def _run_all(shell: Shell, program: ProgramText, refresh: Refresh) -> None:
    statements = list(program.statements)
    if not program.any_order:
        _run_in_turn(shell, statements, refresh, wait=False)
        return
    for phase in range(4):
        _run_in_turn(shell, [s for s in statements if _phase(s[1]) == phase], refresh, wait=True)


def _phase(statement: str) -> int:
    """Sources, then tables, then views and the rest, then flows."""
    if FLOW.fullmatch(statement) is not None:
        return 3
    view = VIEW.fullmatch(statement)
    if SOURCE.fullmatch(statement) is not None or (view is not None and view["temporary"]):
        return 0 if view is None or reads_a_stream(statement) else 2
    return 1 if re.match(r"CREATE\s+(OR\s+REFRESH\s+)?(STREAMING\s+)?TABLE\b", statement, re.IGNORECASE) else 2


def _run_in_turn(shell: Shell, waiting: list[tuple[Path, str]], refresh: Refresh, wait: bool) -> None:
    while waiting:
        postponed: list[tuple[Path, str]] = []
        for file, statement in waiting:
            with _named(file), spark_errors():
                try:
                    _run_one(shell, statement, refresh)
                except AnalysisException as error:
                    # If all others of the round were postponed, it defines nothing that the last one could wait for.
                    last = len(postponed) == len(waiting) - 1
                    if not wait or last or error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
                        raise
                    postponed.append((file, statement))
        waiting = postponed


def _run_one(shell: Shell, statement: str, refresh: Refresh) -> None:
    found = STREAMING_TABLE.fullmatch(statement) or FLOW.fullmatch(statement)
    if found is None or not refresh.only or unquoted(found["name"]) in refresh.only:
        shell.run(statement)
    elif found.re is STREAMING_TABLE:
        create_streaming_table(shell.pipe, found, run=False)


@contextmanager
def _named(file: Path) -> Iterator[None]:
    """Prefix errors with the name of the file."""
    try:
        yield
    except DbsparkError as error:
        raise type(error)(f"{file}: {error}") from error


def read_program(path: Path) -> ProgramText:
    """Read a file, a directory of files, or a declarative pipeline; refuse all that can be refused before a run."""
    if path.is_file():
        if path.name in SPEC:
            return read_program(path.parent)
        return ProgramText(path.stem, _read([path]))
    if not path.is_dir():
        raise ConfigError(f"there is no file or directory {path}; give a .sql file or a directory of them")
    name = path.resolve().name
    spec_file = next((path / spec for spec in SPEC if (path / spec).is_file()), None)
    if spec_file is None:
        files = sorted(path.glob("*.sql"))
        if not files:
            raise ConfigError(f"{path} has no .sql files and no {SPEC[0]}; `dbspark init NAME` makes an example")
        return ProgramText(name, _read(files))
    spec = _read_spec(spec_file)
    found = _included(path, spec, spec_file)
    location = spec.storage
    if location is not None and "://" not in location:
        location = str(path / location)
    return ProgramText(
        spec.name or name, _read(found), location, True, spec.catalog, spec.database or spec.schema, spec.configuration
    )


def _included(folder: Path, spec: _Spec, spec_file: Path) -> list[Path]:
    files: set[Path] = set()
    for pattern in spec.include:
        # `**` at the end means all files below; to Python it means all folders.
        files.update(p for p in folder.glob(pattern + "/*" if pattern.endswith("**") else pattern) if p.is_file())
    other = sorted(str(p.relative_to(folder)) for p in files if p.suffix == ".py")
    if other:
        raise ConfigError(
            f"{spec_file}: {', '.join(other)}: definitions in Python are not there yet; write them in SQL"
        )
    found = sorted(p for p in files if p.suffix == ".sql")
    if not found:
        patterns = ", ".join(spec.include) or "none"
        raise ConfigError(f"{spec_file}: no .sql files found under its libraries ({patterns})")
    return found


def _read(files: Sequence[Path]) -> list[tuple[Path, str]]:
    out = []
    for file in files:
        try:
            script = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}") from None
        for statement in statements(script):
            with _named(file):
                check_supported(statement)
            out.append((file, statement))
    return out


def _read_spec(file: Path) -> _Spec:
    """Read the supported keys. Of YAML, only `key: value` and lists of globs are understood."""
    spec = _Spec()
    section = ""
    for number, text in enumerate(file.read_text().splitlines(), 1):
        bare = _without_comment(text)
        if not bare.strip() or bare.strip() == "---":
            continue
        key, colon, value = bare.strip().removeprefix("- ").strip().partition(":")
        key, value = key.strip(), _unquoted(value.strip())
        if not colon:
            if section != "":
                raise ConfigError(f"{file}, line {number}: `{text.strip()}` is not understood; write `key: value`")
        elif bare[0] not in " -":
            section = key
            if key not in _KEYS:
                raise ConfigError(f"{file}, line {number}: no key `{key}`; there are {', '.join(_KEYS)}")
            if key == "libraries" and value:
                raise ConfigError(f"{file}, line {number}: write libraries as a list, one `- glob:` a line")
            if key == "configuration" and value not in ("", "{}"):
                raise ConfigError(f"{file}, line {number}: write the configuration as lines of `key: value` below it")
            if key not in ("libraries", "configuration"):
                setattr(spec, key, value or None)
        elif section == "configuration":
            spec.configuration[_unquoted(key)] = value
        elif section == "libraries":
            if key == "include" and value:
                spec.include.append(value)
            elif key != "glob" or value:
                raise ConfigError(
                    f"{file}, line {number}: `{text.strip()}` is not understood; write `include: pattern`"
                )
    return spec


def _without_comment(text: str) -> str:
    quote = ""
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (position == 0 or text[position - 1].isspace()):
            return text[:position]
    return text


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value
