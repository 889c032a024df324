"""Output of rows: a table on a terminal, tab-separated lines for other programs."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["print_line", "show_arrow", "show_rows"]

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def print_line(console: Console, text: str) -> None:
    """Print a line without wrapping or markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def show_rows(console: Console, headings: Sequence[str], rows: Iterable[Sequence[object]], numeric: set[int]) -> None:
    """Print rows under headings; columns in `numeric` are aligned to the right."""
    texts = [["NULL" if value is None else str(value) for value in row] for row in rows]
    if not console.is_terminal:
        for row in [list(headings), *texts]:
            console.file.write("\t".join(value.translate(_ESCAPES) for value in row) + "\n")
        return
    table = Table(box=box.SIMPLE_HEAD)
    for position, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if position in numeric else "left")
    for row in texts:
        table.add_row(*(Text(value) for value in row))
    console.print(table)


def show_arrow(console: Console, table: pa.Table, limit: int | None) -> None:
    """Print the rows of a table, at most `limit`, and say if there are more."""
    shown = table if limit is None else table.slice(0, limit)
    numeric = {i for i, f in enumerate(table.schema) if _is_number(f.type)}
    columns = [column.to_pylist() for column in shown.columns]
    show_rows(console, table.column_names, zip(*columns, strict=True), numeric)
    if len(shown) < len(table):
        print_line(console, f"… and more; the first {len(shown):,} rows are shown (--limit)")


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
