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

_NAME = r"`?(?P<name>[A-Za-z_][A-Za-z0-9_]*)`?"
_TOKEN = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|;|[^;'\"`/-]+|.", re.DOTALL)


# A column with its type and what follows it, up to PRIMARY KEY; quoted texts and brackets are passed over whole.
_INLINE_KEY = re.compile(
    r"`?(?P<column>\w+)`?(?P<given>\s+\w+(?:\s*\([^)]*\))?(?:\s+NOT\s+NULL)?)\s+PRIMARY\s+KEY\b", re.IGNORECASE
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
        key = [c.strip().strip("`") for c in declared[1].split(",")]
        columns = columns[: declared.start()]
    single = _INLINE_KEY.search(columns)
    if single is not None and not key:
        key = [single["column"]]
        given = single["given"]
        kept = given if "not null" in given.lower() else f"{given} NOT NULL"
        columns = f"{columns[: single.start()]}`{key[0]}`{kept}{columns[single.end() :]}"
    if found["exists"] and found["name"] in pipe.tables:
        return
    pipe.create_table(found["name"], columns, primary_key=key)


def _create_view(pipe: StatementTarget, found: re.Match[str]) -> None:
    name, query = found["name"], view_query(found)
    if found["exists"] and name in pipe.views:
        return
    if found["temporary"] and reads_a_stream(query):
        pipe._spark().sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {query}")  # for flows
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
    names = [c.split()[0] for c in _COMMENTED.sub("", given.columns).split(",") if c.strip()]
    return f"SELECT * FROM ({given.query}) AS {found['name']}({', '.join(names)})"


def _create_source(pipe: StatementTarget, found: re.Match[str]) -> None:
    exists = "IF NOT EXISTS " if found["exists"] else ""
    pipe._spark().sql(f"CREATE TABLE {exists}{found['rest']}")


def _drop(pipe: StatementTarget, found: re.Match[str]) -> None:
    view = found["kind"].lower() == "view"
    there = pipe.views if view else pipe.tables
    if found["exists"] and found["name"] not in there:
        return
    (pipe.drop_view if view else pipe.drop_table)(found["name"])


def _insert(pipe: StatementTarget, found: re.Match[str]) -> None:
    name = found["name"]
    schema = pipe.table(name).schema
    frame = pipe.query(found["query"])
    names = [c.strip().strip("`") for c in found["columns"].split(",")] if found["columns"] else schema.names
    if len(names) != len(frame.columns):
        raise DbsparkError(f"INSERT INTO {name}: {len(names)} columns are named and {len(frame.columns)} are given")
    given = frame.toDF(*names)
    missing = [f"CAST(NULL AS {_spark_type(pipe, name, c)}) AS `{c}`" for c in schema.names if c not in names]
    typed = [f"CAST(`{c}` AS {_spark_type(pipe, name, c)}) AS `{c}`" for c in names]
    rows = given.selectExpr(*typed, *missing).select(*schema.names)
    with pipe.transaction() as tx:
        tx.insert(name, rows)


def _spark_type(pipe: StatementTarget, table: str, column: str) -> str:
    return str(pipe.frame(table).schema[column].dataType.simpleString())


def _delete(pipe: StatementTarget, found: re.Match[str]) -> None:
    name = found["name"]
    pipe.table(name)
    condition = f" WHERE {found['condition']}" if found["condition"] else ""
    rows = pipe.query(f"SELECT * FROM {name}{condition}")
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
