"""Programs in files: `dbspark init` makes one, `dbspark run` runs one.

A program is a `.sql` file, a directory of them in the order of their names, or a directory in the layout of Spark's
declarative pipelines: `spark-pipeline.yml` says which files belong to it and where its state is. There definitions may
come in any order; one that names a table or view that is not there yet waits for it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.errors import AnalysisException
from rich.console import Console

from dbspark.cli.output import line, show_rows
from dbspark.cli.statements import Shell, check, opened, spark_errors
from dbspark.cli.status import read_status
from dbspark.errors import ConfigError, DbsparkError, StoreError
from dbspark.pipeline.statements import statements

__all__ = ["SPEC", "Program", "init", "read_program", "run"]

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
class Program:
    """What is run."""

    name: str
    statements: Sequence[tuple[Path, str]]
    """With the files that they are from."""
    location: str | None = None
    any_order: bool = False
    ignored: Sequence[str] = ()
    """Settings of the pipeline's file that have no meaning here."""


@dataclass
class _Spec:
    name: str | None = None
    storage: str | None = None
    include: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)


def init(name: str, console: Console) -> None:
    """Make a folder with an example."""
    folder = Path(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already and is not an empty folder; choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "program.sql").write_text(_PROGRAM)
    (folder / "README.md").write_text(_README.format(name=name.rstrip("/")))
    line(console, f"Made {folder / 'program.sql'} and {folder / 'README.md'}. Run it with: dbspark run {name}")


def run(path: Path, location: str | None, console: Console, *, limit: int) -> None:
    """Run a program and say what its views hold."""
    program = read_program(path)
    where = program.location if location is None else location
    if program.ignored:
        line(console, f"Without effect here: {', '.join(program.ignored)}")
    name, known = program.name, {}
    if where is not None:
        try:
            status = read_status(where)
            name, known = status.name, status.queries
        except StoreError:  # nothing there yet, or nothing that can be read; opening it says which
            pass
    with opened(name, where, console) as pipe:
        shell = Shell(pipe, console, limit=limit, known=known)
        _run_all(shell, program)
        rows = [(view, len(pipe.view(view).to_arrow())) for view in pipe.views]
        line(console, f"Tick {pipe.tick}, {'in memory' if where is None else where}")
        if rows:
            show_rows(console, ("view", "rows"), rows, {1})


def _run_all(shell: Shell, program: Program) -> None:
    waiting = list(program.statements)
    while waiting:
        postponed: list[tuple[Path, str]] = []
        for file, statement in waiting:
            with _named(file), spark_errors():
                try:
                    shell.run(statement)
                except AnalysisException as error:
                    # Of the last round all are postponed; then the last of them has nothing to wait for.
                    last = len(postponed) == len(waiting) - 1
                    if not program.any_order or last or error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
                        raise
                    postponed.append((file, statement))
        waiting = postponed


@contextmanager
def _named(file: Path) -> Iterator[None]:
    """Name the file in errors."""
    try:
        yield
    except DbsparkError as error:
        raise type(error)(f"{file}: {error}") from error


def read_program(path: Path) -> Program:
    """A file, a directory of files, or a declarative pipeline; everything that can be refused is refused here."""
    if path.is_file():
        if path.name in SPEC:
            return read_program(path.parent)
        return Program(path.stem, _read([path]))
    if not path.is_dir():
        raise ConfigError(f"there is no file or directory {path}; give a .sql file or a directory of them")
    name = path.resolve().name
    spec_file = next((path / spec for spec in SPEC if (path / spec).is_file()), None)
    if spec_file is None:
        files = sorted(path.glob("*.sql"))
        if not files:
            raise ConfigError(f"{path} has no .sql files and no {SPEC[0]}; `dbspark init NAME` makes an example")
        return Program(name, _read(files))
    spec = _read_spec(spec_file)
    found = _included(path, spec, spec_file)
    location = spec.storage
    if location is not None and "://" not in location:
        location = str(path / location)
    return Program(spec.name or name, _read(found), location, any_order=True, ignored=spec.ignored)


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
                check(statement)
            out.append((file, statement))
    return out


def _read_spec(file: Path) -> _Spec:
    """The few keys that count here. The file is YAML; of that only `key: value` and lists of globs are understood."""
    spec = _Spec()
    section = ""
    for number, text in enumerate(file.read_text().splitlines(), 1):
        bare = _without_comment(text)
        if not bare.strip() or bare.strip() == "---":
            continue
        key, colon, value = bare.strip().removeprefix("- ").strip().partition(":")
        key, value = key.strip(), _unquoted(value.strip())
        if not colon:
            if section in ("name", "storage", "libraries"):
                raise ConfigError(f"{file}, line {number}: `{text.strip()}` is not understood; write `key: value`")
        elif bare[0] not in " -":
            section = key
            if key in ("name", "storage"):
                setattr(spec, key, value or None)
            elif key == "libraries" and value:
                raise ConfigError(f"{file}, line {number}: write libraries as a list, one `- glob:` a line")
            elif key != "libraries":
                spec.ignored.append(key)
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
