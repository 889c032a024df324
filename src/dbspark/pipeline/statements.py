"""Scripts of SQL statements that define and change a pipeline.

Statements are recognised here by regular expressions; queries are parsed by Spark. INSERT and DELETE evaluate their
query over the present tables and apply the result as a transaction. CREATE TABLE … USING goes to Spark: it makes a
table of Spark's catalogue, for flows to read (`dbspark.pipeline.flows`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from dbspark.errors import DbsparkError
from dbspark.pipeline.flows import (
    FLOW,
    STREAMING_TABLE,
    StatementTarget,
    check_supported,
    create_flow,
    create_streaming_table,
    parse_definition,
    reads_a_stream,
)
from dbspark.pipeline.handles import Kind
from dbspark.sql.names import IDENTIFIER, backquoted, find_name, is_case_sensitive, nearest, unquoted

_NAME = rf"(?P<name>{IDENTIFIER})"
_TOKEN = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|;|[^;'\"`/-]+|.", re.DOTALL)


# A column with its type and what follows it, up to PRIMARY KEY; quoted texts and brackets are passed over whole.
_INLINE_KEY = re.compile(
    rf"(?P<column>{IDENTIFIER})(?P<given>\s+\w+(?:\s*\([^)]*\))?(?:\s+NOT\s+NULL)?)\s+PRIMARY\s+KEY\b", re.IGNORECASE
)


def execute(pipe: StatementTarget, script: str) -> None:
    """Run the statements of a script in order."""
    for statement in statements(script):
        check_supported(statement)
        for pattern, run in _STATEMENTS:
            found = pattern.fullmatch(statement)
            if found is not None:
                run(pipe, found)
                break
        else:
            first = " ".join(statement.split()[:3])
            raise DbsparkError(
                f"{first} …: not a statement of a pipeline; there are CREATE TABLE, CREATE [MATERIALIZED] VIEW, "
                "CREATE STREAMING TABLE, CREATE FLOW, DROP TABLE, DROP VIEW, INSERT INTO and DELETE FROM. For queries "
                "use pipe.query"
            )


def statements(script: str) -> Iterator[str]:
    """The statements of a script, without comments."""
    parts: list[str] = []
    for token in _TOKEN.findall(script):
        if token == ";":
            yield from _statement_text(parts)
            parts = []
        else:
            comment = token.startswith("--") or (token.startswith("/*") and not token.startswith("/*+"))
            parts.append(" " if comment else token)
    yield from _statement_text(parts)


def _statement_text(parts: list[str]) -> Iterator[str]:
    text = "".join(parts).strip()
    if text:
        yield text


def _create_table(pipe: StatementTarget, found: re.Match[str]) -> None:
    columns = found["columns"]
    key: list[str] = []
    declared = re.search(r",\s*(?:CONSTRAINT\s+\w+\s+)?PRIMARY\s+KEY\s*\(([^)]*)\)\s*$", columns, re.IGNORECASE)
    if declared is not None:
        key = [unquoted(c) for c in re.findall(IDENTIFIER, declared[1])]
        columns = columns[: declared.start()]
    single = _INLINE_KEY.search(columns)
    if single is not None and not key:
        key = [unquoted(single["column"])]
        given = single["given"]
        kept = given if "not null" in given.lower() else f"{given} NOT NULL"
        columns = f"{columns[: single.start()]}{backquoted(key[0])}{kept}{columns[single.end() :]}"
    name = unquoted(found["name"])
    if found["exists"] and pipe._find(name, "table") is not None:
        return
    pipe.create_table(name, columns, primary_key=key)


def _create_view(pipe: StatementTarget, found: re.Match[str]) -> None:
    name, query = unquoted(found["name"]), view_query(found)
    if found["exists"] and pipe._find(name, "view") is not None:
        return
    if found["temporary"] and reads_a_stream(query):
        pipe._spark().sql(f"CREATE OR REPLACE TEMPORARY VIEW {backquoted(name)} AS {query}")  # for flows
    else:
        pipe.create_view(name, query)


def view_query(found: re.Match[str]) -> str:
    """The query of a CREATE VIEW statement, with the column names that the statement gives."""
    what = f"CREATE VIEW {found['name']}"
    given = parse_definition(found["rest"], what)
    if given.query is None:
        raise DbsparkError(f"{what}: AS and a query are missing")
    if given.columns is None:
        return given.query
    names = re.findall(rf"(?:^|,)\s*({IDENTIFIER})", _COMMENTED.sub("", given.columns))
    return f"SELECT * FROM ({given.query}) AS {found['name']}({', '.join(names)})"


def _create_source(pipe: StatementTarget, found: re.Match[str]) -> None:
    exists = "IF NOT EXISTS " if found["exists"] else ""
    pipe._spark().sql(f"CREATE TABLE {exists}{found['rest']}")


def _drop(pipe: StatementTarget, found: re.Match[str]) -> None:
    kind: Kind = "view" if found["kind"].lower() == "view" else "table"
    name = unquoted(found["name"])
    if found["exists"] and pipe._find(name, kind) is None:
        return
    (pipe.drop_view if kind == "view" else pipe.drop_table)(name)


def _insert(pipe: StatementTarget, found: re.Match[str]) -> None:
    name = pipe.table(unquoted(found["name"])).name
    schema = pipe.table(name).schema
    frame = pipe.query(found["query"])
    names = _named_columns(name, found["columns"], schema.names, is_case_sensitive(pipe._spark()))
    if len(names) != len(frame.columns):
        raise DbsparkError(f"INSERT INTO {name}: {len(names)} columns are named and {len(frame.columns)} are given")
    given = frame.toDF(*names)
    types = {f.name: f.dataType.simpleString() for f in pipe.frame(name).schema.fields}
    values = [backquoted(c) if c in names else "NULL" for c in schema.names]
    rows = given.selectExpr(
        *(f"CAST({v} AS {types[c]}) AS {backquoted(c)}" for c, v in zip(schema.names, values, strict=True))
    )
    with pipe.transaction() as tx:
        tx.insert(name, rows)


def _named_columns(table: str, listed: str | None, columns: list[str], case_sensitive: bool) -> list[str]:
    """The columns that an INSERT names, as the table calls them; all of them where it names none."""
    if not listed:
        return columns
    names = []
    for given in re.findall(IDENTIFIER, listed):
        column = find_name(given, columns, case_sensitive)
        if column is None or column in names:
            wrong = f"names {column!r} twice" if column else f"there is no column {given!r}{nearest(given, columns)}"
            raise DbsparkError(f"INSERT INTO {table}: {wrong}; the columns are {', '.join(columns)}")
        names.append(column)
    return names


def _delete(pipe: StatementTarget, found: re.Match[str]) -> None:
    name = pipe.table(unquoted(found["name"])).name
    condition = f" WHERE {found['condition']}" if found["condition"] else ""
    rows = pipe.query(f"SELECT * FROM {backquoted(name)}{condition}")
    with pipe.transaction() as tx:
        tx.delete(name, rows)


def _statement(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE | re.DOTALL)


SOURCE = _statement(rf"CREATE TABLE (?P<exists>IF NOT EXISTS )?(?P<rest>{_NAME}\s*(?:\(.*\)\s*)?USING .*)")
VIEW = _statement(
    r"CREATE (?:OR REFRESH )?(?P<temporary>TEMP(?:ORARY)? )?(?:MATERIALIZED )?VIEW (?P<exists>IF NOT EXISTS )?"
    rf"{_NAME}(?P<rest>[\s(].*)"
)
_COMMENTED = re.compile(r"COMMENT\s+'(?:[^'\\]|\\.|'')*'", re.IGNORECASE)
_QUERY = r"(?P<query>(?:VALUES|SELECT|WITH|TABLE|FROM)\b.*)"

_STATEMENTS: list[tuple[re.Pattern[str], Callable[[Any, re.Match[str]], None]]] = [
    (
        _statement(rf"CREATE TABLE (?P<exists>IF NOT EXISTS )?(?P<rest>{_NAME}\s*(?:\(.*\)\s*)?USING .*)"),
        _create_source,
    ),
    (_statement(rf"CREATE TABLE (?P<exists>IF NOT EXISTS )?{_NAME}\s*\((?P<columns>.*)\)"), _create_table),
    (VIEW, _create_view),
    (STREAMING_TABLE, create_streaming_table),
    (FLOW, create_flow),
    (_statement(rf"DROP (?:MATERIALIZED )?(?P<kind>TABLE|VIEW) (?P<exists>IF EXISTS )?{_NAME}"), _drop),
    (_statement(rf"INSERT INTO (?:TABLE )?{_NAME}\s*(?:\((?P<columns>[^()]*)\))?\s*{_QUERY}"), _insert),
    (_statement(rf"DELETE FROM {_NAME}(?: WHERE (?P<condition>.*))?"), _delete),
]
