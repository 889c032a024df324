"""Streaming tables and flows, as Spark's declarative pipelines write them.

    CREATE STREAMING TABLE clicks AS SELECT user, page FROM STREAM raw_clicks WHERE page IS NOT NULL;
    CREATE FLOW old_clicks AS INSERT INTO clicks BY NAME SELECT * FROM STREAM archived_clicks;

A streaming table is a table that streams append to. Each of these streams is a flow, with a name (the table's, unless
the statement gives one) and a checkpoint under that name. Running the statement reads what is available, as Spark's
trigger `availableNow` does, and ends; running it again goes on from there. Rows are applied exactly once.

A flow reads tables of Spark's catalogue, and streaming views of the session. To follow tables and views of the
pipeline itself, define a view, not a flow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dbspark.columnar.schema import Schema, SchemaLike
from dbspark.errors import DbsparkError, SchemaError
from dbspark.pipeline.handles import Kind, Table, Transaction, View
from dbspark.sql.names import IDENTIFIER, unquoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_NAME = rf"(?P<name>{IDENTIFIER})"
_STREAM = re.compile(r"\bSTREAM\b\s*[\w`(]", re.IGNORECASE)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"")
_CLAUSE = re.compile(
    r"COMMENT\s+(?:'(?:[^'\\]|\\.|'')*'|\"[^\"]*\")|(?:TBLPROPERTIES|PARTITIONED\s+BY|CLUSTER(?:ED)?\s+BY|OPTIONS)\s*\(|"
    r"USING\s+\w+",
    re.IGNORECASE,
)
_CDC = re.compile(rf"CREATE\s+FLOW\s+{_NAME}.*\bAUTO\s+CDC\b.*", re.IGNORECASE | re.DOTALL)
STREAMING_TABLE = re.compile(
    rf"CREATE\s+(?:OR\s+REFRESH\s+)?STREAMING\s+TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?{_NAME}(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
FLOW = re.compile(
    rf"CREATE\s+FLOW\s+(?P<flow>{IDENTIFIER})(?:\s+COMMENT\s+'[^']*')?\s+AS\s+"
    rf"INSERT\s+INTO\s+(?:TABLE\s+)?{_NAME}(?:\s+BY\s+NAME)?\s+(?P<query>.*)",
    re.IGNORECASE | re.DOTALL,
)


class StatementTarget(Protocol):
    """What statements ask of a pipeline. A protocol: `pipeline.pipeline` imports this module, never the other way."""

    @property
    def tables(self) -> Mapping[str, Table]: ...

    @property
    def views(self) -> Mapping[str, View]: ...

    def table(self, name: str) -> Table: ...

    def create_table(self, name: str, schema: SchemaLike, primary_key: Sequence[str] | None = None) -> Table: ...

    def create_view(self, name: str, query: str | DataFrame) -> View: ...

    def drop_table(self, name: str) -> None: ...

    def drop_view(self, name: str) -> None: ...

    def frame(self, name: str) -> DataFrame: ...

    def query(self, sql: str) -> DataFrame: ...

    def transaction(self) -> Transaction: ...

    def ingest(
        self, table: str, stream: DataFrame, *, trigger: Mapping[str, Any] | str | None = None, name: str | None = None
    ) -> StreamingQuery: ...

    def _spark(self) -> SparkSession: ...

    def _find(self, name: str, kind: Kind) -> str | None: ...


@dataclass(frozen=True, slots=True)
class DefinitionClauses:
    """The columns and the query of a definition."""

    columns: str | None
    query: str | None


def parse_definition(rest: str, what: str) -> DefinitionClauses:
    """Parse what follows a name: columns in brackets, storage clauses (ignored), AS and a query; all are optional."""
    text, columns = rest.strip(), None
    if text.startswith("("):
        end = _closing(text, 0, what)
        columns, text = text[1:end].strip(), text[end + 1 :].strip()
    while (clause := _CLAUSE.match(text)) is not None:
        end = clause.end()
        if clause[0].endswith("("):
            end = _closing(text, end - 1, what) + 1
        text = text[end:].strip()
    if not text:
        return DefinitionClauses(columns, None)
    found = re.match(r"AS\b\s*", text, re.IGNORECASE)
    if found is None:
        raise DbsparkError(f"{what}: `{' '.join(text.split()[:4])} …` is not understood; write AS and a query")
    return DefinitionClauses(columns, text[found.end() :])


def _closing(text: str, start: int, what: str) -> int:
    """The position of the bracket that closes the one at `start`."""
    blank = _QUOTED.sub(lambda quoted: "'" * len(quoted[0]), text)
    depth = 0
    for at in range(start, len(blank)):
        depth += {"(": 1, ")": -1}.get(blank[at], 0)
        if not depth:
            return at
    raise DbsparkError(f"{what}: a bracket is not closed")


def reads_a_stream(query: str) -> bool:
    """Whether a query reads from STREAM."""
    return _STREAM.search(_QUOTED.sub("''", query)) is not None


def check_supported(statement: str) -> None:
    """Raise for statements of declarative pipelines that are not supported."""
    if (found := _CDC.fullmatch(statement)) is not None:
        raise DbsparkError(
            f"CREATE FLOW {found['name']}: AUTO CDC is not there; create a table with a primary key, and read the "
            "stream into it with pipe.ingest(…, mode='upsert') or mode='changes'"
        )
    if (table := STREAMING_TABLE.fullmatch(statement)) is not None:
        what = f"CREATE STREAMING TABLE {table['name']}"
        given = parse_definition(table["rest"], what)
        if given.query is None and given.columns is None:
            raise DbsparkError(f"{what}: give its columns in brackets, or AS and a query over a stream")
        _check_streaming(given.query, what)
    if (flow := FLOW.fullmatch(statement)) is not None:
        _check_streaming(flow["query"], f"CREATE FLOW {flow['flow']}")


def _check_streaming(query: str | None, what: str) -> None:
    if query is not None and not reads_a_stream(query):
        raise DbsparkError(
            f"{what}: its query reads no stream; write FROM STREAM name, or, for what is computed from tables of the "
            "pipeline, CREATE MATERIALIZED VIEW"
        )


def create_streaming_table(pipe: StatementTarget, found: re.Match[str], run: bool = True) -> None:
    """Create the table unless it exists, and run its flow, if it has one."""
    name = unquoted(found["name"])
    what = f"CREATE STREAMING TABLE {name}"
    given = parse_definition(found["rest"], what)
    stream = None if given.query is None else _stream(pipe, given.query, what)
    if given.columns is not None:
        schema = Schema.of(given.columns)
    elif stream is not None:
        schema = Schema.of(stream.schema)
    else:
        raise DbsparkError(f"{what}: give its columns in brackets, or AS and a query over a stream")
    if pipe._find(name, "table") is None:
        pipe.create_table(name, schema)
    there = pipe.table(name)
    if there.schema != schema.arrow or there.primary_key:
        columns = ", ".join(f"{f.name} {f.type}" for f in there.schema)
        raise SchemaError(
            f"{what}: there is a table of that name with other columns ({columns}); run it with --full-refresh {name}, "
            "which reads its streams from their beginning, or choose another name"
        )
    if stream is not None and run:
        _run(pipe, name, name, stream)


def create_flow(pipe: StatementTarget, found: re.Match[str]) -> None:
    """Run a further flow into a streaming table."""
    pipe.table(found["name"])
    _run(
        pipe,
        unquoted(found["flow"]),
        unquoted(found["name"]),
        _stream(pipe, found["query"], f"CREATE FLOW {found['flow']}"),
    )


def _run(pipe: StatementTarget, flow: str, table: str, stream: DataFrame) -> None:
    pipe.ingest(table, stream, name=flow, trigger={"availableNow": True}).awaitTermination()


def _stream(pipe: StatementTarget, query: str, what: str) -> DataFrame:
    from pyspark.errors import AnalysisException

    _check_streaming(query, what)
    try:
        frame = pipe._spark().sql(query)
    except AnalysisException as error:
        name = str((error.getMessageParameters() or {}).get("relationName", "")).strip("`")
        if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND" and name in (*pipe.tables, *pipe.views):
            raise DbsparkError(
                f"{what}: {name} belongs to this pipeline, and a flow reads what comes from outside; what is computed "
                f"from {name} is a CREATE MATERIALIZED VIEW, which follows it by itself"
            ) from None
        raise
    if not frame.isStreaming:
        raise DbsparkError(f"{what}: Spark does not read {' '.join(query.split()[:8])} … as a stream")
    return frame


__all__ = [
    "FLOW",
    "STREAMING_TABLE",
    "DefinitionClauses",
    "StatementTarget",
    "check_supported",
    "create_flow",
    "create_streaming_table",
    "parse_definition",
    "reads_a_stream",
]  # fmt: skip
