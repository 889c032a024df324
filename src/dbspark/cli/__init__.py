"""The command line, `dbspark`.

A command parses its options and calls the library; it imports what it needs when it runs, so that `--help`
is immediate. A `DbsparkError` is for the user: it is shown as a message without a traceback, and the exit
code is 1.
"""

import sys
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


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"dbspark {__version__}")
        raise typer.Exit


@app.callback(epilog="Example: `dbspark demo`")
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Incremental views for Apache Spark."""


@app.command("demo", epilog="Example: `dbspark demo --rows 1000000 --ticks 10`")
def _demo(
    rows: Annotated[int, typer.Option(min=1_000, help="Orders in the table at the start.")] = 200_000,
    ticks: Annotated[int, typer.Option(min=1, help="Changes to apply, one a tick.")] = 20,
    changes: Annotated[int, typer.Option(min=10, help="Orders that change in a tick.")] = 1_000,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores for Spark, by default all.")] = None,
) -> None:
    """Keep a table of orders up to date from its changes, and check it against Spark.

    Spark generates the orders and a log of inserts, updates and deletes. Each tick adds its changes to a Z-set,
    and Spark computes the same table from the whole log, for comparison. Fails if the two differ at the end.
    """
    from dbspark.cli.demo import Workload, run

    if not run(Workload(rows=rows, ticks=ticks, changes=changes), Console(), cores=cores):
        raise typer.Exit(1)
