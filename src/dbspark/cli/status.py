"""The status of a location, read from its files alone: without Spark, and without a lock."""

from dataclasses import dataclass, field
from typing import Any

import pyarrow.fs as pafs
from rich.console import Console

from dbspark.cli.output import print_line, show_rows
from dbspark.connectors.sinks import describe_position
from dbspark.runtime.reslicing import split_trace_name
from dbspark.sql.explain import in_bytes
from dbspark.storage.files import Files, RemoteFiles
from dbspark.storage.lock import NAME as LOCK
from dbspark.storage.lock import Owner
from dbspark.storage.store import Store
from dbspark.trace.spine import Spine

__all__ = ["Status", "read_status", "show_status"]


@dataclass(frozen=True)
class Status:
    """A location as of its last tick."""

    name: str
    tick: int
    oldest: int
    """The oldest tick whose manifest is stored."""
    rows: dict[tuple[str, str], int]
    """By kind (`table` or `view`) and name."""
    queries: dict[str, str]
    """The query of each view."""
    files: int
    size: int
    """Bytes on disk."""
    writer: str | None
    """The process that holds the lock for writing."""
    shards: int | None = None
    """The number of shards; None for an embedded pipeline."""
    sinks: dict[str, str] = field(default_factory=dict)
    """By view and name of a sink, how far it is and what it failed with, as of the last commit."""


def read_status(location: str) -> Status:
    """Read the status of a location; raises `StoreError` if there is no pipeline."""
    with Store.open(location, write=False) as store:
        found = store.load()
        program: dict[str, Any] = found.program or {"name": "", "tables": [], "views": []}
        shards = program.get("shards")
        kept: dict[str, list[Spine]] = {}
        for name, spines in found.states.items():
            kept.setdefault(name if shards is None else split_trace_name(name)[0], []).append(spines[0])
        rows = {
            (kind, given["name"]): sum(_rows(spine) for spine in kept.get(f"{kind} {given['name']}", ()))
            for kind in ("table", "view")
            for given in program[f"{kind}s"]
        }
        queries = {given["name"]: given["query"] for given in program["views"]}
        sizes = _sizes(store.files)
        oldest = min(store.ticks(), default=found.tick)
        writer = _writer(store.files)
        return Status(
            program["name"], found.tick, oldest, rows, queries, len(sizes), sum(sizes), writer, shards,
            {key: describe_position(position) for key, position in found.positions.items()},
        )  # fmt: skip


def show_status(location: str, console: Console) -> None:
    """Print the location, tick and size, and a line for each table and view."""
    status = read_status(location)
    on = "" if status.shards is None else f", on {status.shards} shards"
    print_line(console, f"Pipeline {status.name} at {location}{on}")
    print_line(console, f"Tick {status.tick}; the files keep ticks {status.oldest} to {status.tick}")
    print_line(console, f"{in_bytes(status.size)} in {status.files:,} files")
    if status.writer is not None:
        print_line(console, f"Open for writing by {status.writer}")
    rows = [(name, kind, f"{count:,}" if console.is_terminal else count) for (kind, name), count in status.rows.items()]
    show_rows(console, ("name", "kind", "rows"), rows, {2})
    for key, place in status.sinks.items():
        print_line(console, f"Sink {key}: {place}")


def _rows(spine: Spine) -> int:
    """The number of rows at the last tick: the sum of the weights over all times."""
    return sum(int(batch.weights().sum()) for batch in spine.batches if batch.rows)


def _sizes(files: Files) -> list[int]:
    if isinstance(files, RemoteFiles):
        found = files.filesystem.get_file_info(pafs.FileSelector(files.folder, allow_not_found=True))
        return [info.size for info in found if info.type == pafs.FileType.File]
    sizes = []
    for name in files.names():
        try:
            sizes.append(files.path(name).stat().st_size)
        except FileNotFoundError:  # retired meanwhile
            continue
    return sizes


def _writer(files: Files) -> str | None:
    try:
        owner = Owner.from_json(files.read(LOCK).to_pybytes())
    except FileNotFoundError:
        return None
    return None if owner is None or owner.gone() else str(owner)
