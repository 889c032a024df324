"""Streams in: every micro-batch of a Spark stream becomes exactly one transaction.

Spark repeats a micro-batch with the same id if it does not know that it was finished. So the id is committed with the
tick, under the table and the id that the query has from its checkpoint, and a micro-batch whose id is committed already
is skipped. A checkpoint that is ahead of the pipeline means that rows are missing, and is an error.

Back-pressure: a stream waits for its transaction, so a busy pipeline slows its sources down.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from dbspark.columnar.frames import arrow_of, arrow_schema
from dbspark.connectors.feed import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, WEIGHT
from dbspark.errors import ConfigError, SchemaError, StoreError
from dbspark.sql.names import find_name, nearest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

Mode = Literal["append", "upsert", "changes"]
StreamOperation = Literal["insert", "upsert", "apply"]

Apply = Callable[[StreamOperation, Any, str | None, tuple[str, int] | None], None]
"""`apply(operation, rows, weight column, offset)`: apply rows (a table or a DataFrame) and commit the offset with them;
without an offset, only check the rows."""

_log = logging.getLogger("dbspark")
_WEIGHT_BY_CHANGE_TYPE = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}


class Streams:
    """The streams into one pipeline. Checkpoints are stored in `folder`; without one, in a temporary directory."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._temporary: str | None = None
        self._running: dict[str, tuple[str, StreamingQuery]] = {}
        """By checkpoint, the table and the query."""

    def start(
        self,
        stream: DataFrame,
        table: str,
        mode: Mode,
        apply: Apply,
        last_applied: Callable[[str], int | None],
        *,
        trigger: Mapping[str, Any] | str | None = None,
        name: str | None = None,
        checkpoint: str | None = None,
        collect: bool = True,
    ) -> StreamingQuery:
        """Start a query that calls `apply` with its micro-batches.

        `last_applied` gives the id of the last micro-batch that was committed for a query. Micro-batches are collected
        as Arrow tables, or, without `collect`, passed as DataFrames.
        """
        if not getattr(stream, "isStreaming", False):
            raise ConfigError(f"table {table!r}: ingest takes a streaming DataFrame; use a transaction for other data")
        if mode not in get_args(Mode):
            hint = nearest(mode, get_args(Mode)) if isinstance(mode, str) else ""
            raise ConfigError(f"table {table!r}: mode is {mode!r}{hint}; it can be 'append', 'upsert' or 'changes'")
        how = None if trigger is None else _trigger(trigger)
        apply(*as_operation(_empty(stream), mode, table), None)
        place = checkpoint or self._checkpoint(name or table)
        _, before = self._running.get(place, (table, None))
        if before is not None and before.isActive:
            raise ConfigError(
                f"table {table!r}: a stream runs already with the checkpoint {place}; stop it, or give this one "
                "another name or checkpoint"
            )
        if checkpoint is None:
            _remove_orphaned_checkpoint(place, lambda query: last_applied(f"{table}.{query}") is not None)
        identity: Future[str] = Future()

        def apply_micro_batch(rows: DataFrame, batch: int) -> None:
            key = identity.result(timeout=600)
            last = last_applied(key)
            if last is not None and batch <= last:
                _log.info("table %s: micro-batch %d of %s is committed already", table, batch, place)
                return
            if batch > (-1 if last is None else last) + 1:
                raise StoreError(
                    f"table {table!r}: the checkpoint {place} goes on with micro-batch {batch}, but of its stream "
                    f"{'none' if last is None else f'no more than up to micro-batch {last}'} has been applied here. "
                    "The pipeline was set back, or the checkpoint is another pipeline's; give a new checkpoint to "
                    "read the stream from its beginning"
                )
            kind, given, weight = as_operation(arrow_of(rows), mode, table) if collect else as_frame(rows, mode)
            apply(kind, given, weight, (key, batch))

        writer = stream.writeStream.foreachBatch(apply_micro_batch).option("checkpointLocation", place)
        if name is not None:
            writer = writer.queryName(name)
        if how is not None:
            try:
                writer = writer.trigger(**how)
            except Exception as error:  # raised by Python or by the JVM, depending on what is wrong
                reason = str(error).splitlines()[0]
                raise ConfigError(f"trigger: {trigger!r} is not one; {_TRIGGERS}: {reason}") from None
        query = writer.start()
        identity.set_result(f"{table}.{query.id}")
        self._running[place] = table, query
        return query

    def _checkpoint(self, name: str) -> str:
        folder = self._folder
        if folder is None:
            if self._temporary is None:
                self._temporary = tempfile.mkdtemp(prefix="dbspark-streams-")
            folder = self._temporary
        elif "://" not in folder:
            folder = os.path.abspath(folder)
        return f"{folder}/{quote(name, safe=' ')}"

    def stop(self, table: str | None = None) -> None:
        """Stop the streams into a table, or all of them."""
        for place, (into, query) in list(self._running.items()):
            if table not in (None, into):
                continue
            try:
                if query.isActive:
                    query.stop()
            except Exception as error:  # Spark has stopped already, and the stream with it
                _log.warning("the stream with the checkpoint %s could not be stopped: %s", place, error)
            del self._running[place]

    def close(self) -> None:
        """Stop all streams, after the micro-batch in progress, and remove temporary checkpoints."""
        self.stop()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None


_TRIGGERS = "give what Spark's trigger() takes, for example {'availableNow': True} or {'processingTime': '1 second'}"


def _trigger(given: Mapping[str, Any] | str) -> dict[str, Any]:
    """The arguments of Spark's `trigger()`; raises `ConfigError` for names that it does not have."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    names = [name for name in signature(DataStreamWriter.trigger).parameters if name != "self"]
    if isinstance(given, str):
        if find_name(given, names) is not None:
            raise ConfigError(f"trigger: {given!r} is the name of a trigger; {_TRIGGERS}")
        return {"processingTime": given}
    if not isinstance(given, Mapping):
        raise ConfigError(f"trigger: {given!r} is not one; {_TRIGGERS}")
    for name in given:
        if name not in names:
            raise ConfigError(f"trigger: Spark has none called {name!r}{nearest(str(name), names)}; {_TRIGGERS}")
    return dict(given)


def as_operation(rows: pa.Table, mode: Mode, table: str) -> tuple[StreamOperation, pa.Table, str | None]:
    """The operation on a table that a micro-batch asks for: its kind, the rows, and the column of their weights."""
    if mode != "changes":
        return ("insert" if mode == "append" else "upsert"), rows, None
    names = set(rows.column_names)
    if not names & {WEIGHT, CHANGE_TYPE}:
        raise SchemaError(
            f"table {table!r}: changes need a column {CHANGE_TYPE} (insert, delete, update_preimage, update_postimage) "
            f"or {WEIGHT} (an integer); the columns are {', '.join(rows.column_names)}"
        )
    if WEIGHT not in names:
        rows = rows.append_column(WEIGHT, _weights(rows.column(CHANGE_TYPE), table))
    return "apply", rows.drop_columns(sorted(names & {CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP})), WEIGHT


def as_frame(rows: DataFrame, mode: Mode) -> tuple[StreamOperation, DataFrame, str | None]:
    """`as_operation` for a DataFrame. An unknown `_change_type` fails when Spark reads the rows."""
    if mode != "changes":
        return ("insert" if mode == "append" else "upsert"), rows, None
    if WEIGHT not in rows.columns:
        cases = " ".join(f"WHEN '{kind}' THEN {weight}L" for kind, weight in _WEIGHT_BY_CHANGE_TYPE.items())
        other = (
            f"raise_error(concat('{CHANGE_TYPE} is ', {CHANGE_TYPE}, ', none of {', '.join(_WEIGHT_BY_CHANGE_TYPE)}'))"
        )
        rows = rows.selectExpr("*", f"CASE {CHANGE_TYPE} {cases} ELSE CAST({other} AS BIGINT) END AS {WEIGHT}")
    return "apply", rows.drop(CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP), WEIGHT


def _weights(kinds: pa.ChunkedArray, table: str) -> pa.ChunkedArray:
    if not pa.types.is_string(kinds.type) and not pa.types.is_large_string(kinds.type):
        raise SchemaError(f"table {table!r}: column {CHANGE_TYPE} has to be a string, not {kinds.type}")
    kinds = kinds.cast(pa.string())
    at = pc.index_in(kinds, pa.array(list(_WEIGHT_BY_CHANGE_TYPE)))
    if at.null_count:
        other = kinds.filter(pc.is_null(at))[0].as_py()
        raise SchemaError(f"table {table!r}: {other!r} in {CHANGE_TYPE} is none of {', '.join(_WEIGHT_BY_CHANGE_TYPE)}")
    return pa.array(list(_WEIGHT_BY_CHANGE_TYPE.values()), pa.int64()).take(at)


def _remove_orphaned_checkpoint(checkpoint: str, known: Callable[[str], bool]) -> None:
    """Remove a checkpoint of which the pipeline has no micro-batch: its table was dropped, or never got any.

    No row of the stream is in the table then, so the stream is read from its beginning.
    """
    filesystem, folder = pafs.FileSystem.from_uri(checkpoint) if "://" in checkpoint else (None, checkpoint)
    filesystem = filesystem or pafs.LocalFileSystem()
    try:
        with filesystem.open_input_file(f"{folder}/metadata") as file:
            query = str(json.loads(file.read())["id"])
    except FileNotFoundError:
        return
    except (KeyError, TypeError, ValueError):  # damaged: Spark's own error is the better message
        return
    if not known(query):
        _log.info("the checkpoint %s has no part in the pipeline and is begun anew", checkpoint)
        filesystem.delete_dir(folder)


def _empty(stream: DataFrame) -> pa.Table:
    return arrow_schema(stream.schema).empty_table()


__all__ = ["Apply", "Mode", "StreamOperation", "Streams", "as_frame", "as_operation"]
