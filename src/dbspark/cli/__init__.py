"""The command line, `dbspark`.

A command parses its options and calls the library; it imports what it needs when it runs, so that `--help`
is immediate. A `DbsparkError` is addressed to the user: it is shown as a message without a traceback, and the exit
code is 1.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dbspark import __version__
from dbspark.errors import DbsparkError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Incremental views for Apache Spark.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def main() -> None:
    """The entry point of the installed `dbspark` program."""
    try:
        app()
    except DbsparkError as error:
        Console(stderr=True, soft_wrap=True).print(f"{type(error).__name__}: {error}", style="red", markup=False)
        sys.exit(1)


def _show_version(requested: bool) -> None:
    if requested:
        print(f"dbspark {__version__}")
        raise typer.Exit


@app.callback(epilog="Example: `dbspark demo`")
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Incremental views for Apache Spark."""


Location = Annotated[str, typer.Argument(help="Where the pipeline keeps its state: a folder, or a URI.")]
Limit = Annotated[int, typer.Option(min=1, help="Rows of an answer to show on a terminal.")]


@app.command("init", epilog="Example: `dbspark init shop`")
def _init(name: Annotated[str, typer.Argument(help="The folder to make.")]) -> None:
    """Make a folder with a small example program."""
    from dbspark.cli.programs import init

    init(name, Console())


@app.command("run", epilog="Example: `dbspark run shop.sql --location state/shop`")
def _run(
    program: Annotated[Path, typer.Argument(help="A .sql file, or a directory of them.")],
    location: Annotated[
        str | None, typer.Option(help="Where to keep the state, by default in memory: nothing is left.")
    ] = None,
    limit: Limit = 100,
    shards: Annotated[
        int | None,
        typer.Option(min=1, help="Run on Spark with so many shards; by default as it is stored, or in this process."),
    ] = None,
    refresh: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Run the flows of these streaming tables only; names with commas."),
    ] = None,
    full_refresh: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Make these streaming tables and views again, and the views that read them: a table from the "
            "beginning of its streams, a view from its definition as it is now.",
        ),
    ] = None,
    full_refresh_all: Annotated[
        bool, typer.Option("--full-refresh-all", help="The same with all streaming tables and views of the program.")
    ] = False,
) -> None:
    """Run the statements of a program: tables, views, changes and queries.

    A directory may have the layout of Spark's declarative pipelines, with a `spark-pipeline.yml`; its `storage` is then
    the location. A program can be run again at its location: definitions that already exist, word for word, are
    skipped, and streaming tables read what their streams have received since.
    """
    from dbspark.cli.programs import run_program

    run_program(
        program, location, Console(), limit=limit, refresh=refresh, full_refresh=full_refresh,
        full_refresh_all=full_refresh_all, shards=shards,
    )  # fmt: skip


@app.command("sql", epilog='Example: `dbspark sql state/shop -e "SELECT * FROM revenue"`')
def _sql(
    location: Location,
    execute: Annotated[
        str | None, typer.Option("--execute", "-e", help="Statements to run; without it they are read from a prompt.")
    ] = None,
    limit: Limit = 100,
    create: Annotated[bool, typer.Option("--create", help="Begin a pipeline if there is none.")] = False,
) -> None:
    """Query tables and views at a location, change tables, and define more.

    Answers are tables on a terminal, and lines with tabs when they are piped.
    """
    from dbspark.cli.statements import sql

    sql(location, execute, Console(), limit=limit, create=create)


@app.command("status", epilog="Example: `dbspark status state/shop`")
def _status(location: Location) -> None:
    """Show the tables and views at a location, their rows, the tick and the size on disk. Needs no Spark."""
    from dbspark.cli.status import show_status

    show_status(location, Console())


@app.command("explain", epilog="Example: `dbspark explain state/shop revenue`")
def _explain(
    location: Location, view: Annotated[str, typer.Argument(help="The name of a view, or a query in quotes.")]
) -> None:
    """Show how a view is maintained, or how a query would be, part by part."""
    from dbspark.cli.statements import explain

    explain(location, view, Console())


@app.command("demo", epilog="Example: `dbspark demo --shards 2`")
def _demo(
    rows: Annotated[
        int | None,
        typer.Option(min=1_000, help="Orders at the start; by default 200,000, on shards 50,000."),
    ] = None,
    ticks: Annotated[
        int | None, typer.Option(min=1, help="Files of changed orders for the streams; by default 60, on shards 2.")
    ] = None,
    changes: Annotated[int, typer.Option(min=10, help="Orders that change in a tick.")] = 1_000,
    cores: Annotated[int, typer.Option(min=1, help="Cores for Spark.")] = 2,
    location: Annotated[
        str | None, typer.Option(help="Keep the shop in this folder; by default it is removed at the end.")
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(min=1, help="The second act: on Spark's executors, with so many shards."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what the screen shows at the end as an SVG picture.")
    ] = None,
) -> None:
    """Maintain the views of a shop from streams, and compare them with Spark recomputing them.

    Seven views (joins, aggregates, a top three, a window, a recursive one) follow a shop, transaction by transaction.
    Every few seconds Spark recomputes them, and the results are compared. Then: time travel, a view that is added while
    streams run, and a SIGKILL with a restart that loses nothing. With `--shards` the same views run on Spark's
    executors. The command fails if any check fails.
    """
    from dbspark.cli.demo import EMBEDDED, SHARDED, run_demo
    from dbspark.cli.demo_data import Workload

    usual = SHARDED if shards else EMBEDDED
    workload = Workload(rows=rows or usual.rows, steps=ticks or usual.steps, changes=changes)
    try:
        right = run_demo(workload, Console(), cores=cores, location=location, shards=shards, picture=picture)
    except KeyboardInterrupt:
        kept = "nothing is left of it" if location is None else f"what was committed is in {location}, and nothing else"
        print(f"The demo was stopped; {kept}.", file=sys.stderr)
        raise typer.Exit(130) from None
    if not right:
        raise typer.Exit(1)
