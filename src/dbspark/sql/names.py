"""Names of tables, views and columns, by Spark's rules.

A name ignores case, unless the session sets `spark.sql.caseSensitive`. Any text can be a name: a script of SQL puts one
that is no identifier in backticks, with a backtick inside it doubled. Functions of Python take the plain text, and the
text in backticks as well.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Final

from dbspark.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IDENTIFIER: Final = r"(?:`(?:[^`]|``)+`|\w+)"
"""The pattern of a name in SQL, plain or in backticks."""


def unquoted(name: str) -> str:
    """The text of a name that may be in backticks, as SQL has it."""
    if re.fullmatch(r"`(?:[^`]|``)+`", name):
        return name[1:-1].replace("``", "`")
    return name


def backquoted(name: str) -> str:
    """The name in backticks, as SQL needs those that are no identifiers."""
    return "`" + name.replace("`", "``") + "`"


def sql_name(name: str) -> str:
    """The name as SQL reads it: as it is if it is an identifier, else in backticks."""
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else backquoted(name)


def occurs_in(name: str, query: str) -> bool:
    """Whether a query may name this table or view; true as well where only a column or a text is called so."""
    if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", query, re.IGNORECASE) is not None:
        return True
    return backquoted(name).lower() in query.lower()


def find_name(name: str, known: Collection[str], case_sensitive: bool = False) -> str | None:
    """The name among `known` that this one means; None if there is no such."""
    if name in known:
        return name
    plain = unquoted(name)
    if plain in known:
        return plain
    if case_sensitive:
        return None
    return next((n for n in known if n.lower() == plain.lower()), None)


def nearest(name: str, known: Iterable[str], similarity: float = 0.6) -> str:
    """` (did you mean 'x'?)` if one of the known names is like this one, else nothing."""
    by_lower = {n.lower(): n for n in known}
    found = difflib.get_close_matches(unquoted(name).lower(), by_lower, 1, similarity)
    return f" (did you mean {by_lower[found[0]]!r}?)" if found else ""


def check_name(name: Any, what: str) -> str:
    """The text of a name for a new table or view; raises `SchemaError` if it cannot be one."""
    if not isinstance(name, str):
        raise SchemaError(f"the name of a {what} is text, not {name!r} ({type(name).__name__})")
    plain = unquoted(name)
    if not plain.strip() or not plain.isprintable():
        raise SchemaError(f"{name!r} is not a name; a {what} needs at least one letter, and no control characters")
    return plain


def check_columns(what: str, names: Iterable[str], case_sensitive: bool) -> None:
    """Refuse columns that Spark could not tell apart, and those that `changes()` adds to a table or view."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name if case_sensitive else name.lower(), name)
        if other != name:
            raise SchemaError(
                f"{what} has columns {other!r} and {name!r}, which Spark cannot tell apart, as names ignore case; name "
                f"one of them otherwise, in a query with AS"
            )
        if name.lower() in RESERVED_COLUMNS:
            raise SchemaError(
                f"{what} has a column {name!r}: changes() adds columns of the names {' and '.join(RESERVED_COLUMNS)}; "
                f"name it otherwise, in a query with AS, such as {name} AS {name.strip('_')}"
            )


RESERVED_COLUMNS: Final = ("_tick", "_weight")
"""Columns that `changes()` adds to those of a table or view."""


def is_case_sensitive(spark: SparkSession | None) -> bool:
    """Whether a session tells names apart by case; without one, names ignore case."""
    if spark is None:
        return False
    try:
        return str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
    except Exception:  # the session has ended, and names are only read
        return False
