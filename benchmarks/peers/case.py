"""A case: tables, the ticks in which their rows come, and the view to keep. It lies on disk, for other processes.

`case.json` names the tables: the Arrow file of each, the columns that the view reads, and `cuts`: the rows of tick i
are those from `cuts[i]` to `cuts[i + 1]`. Tick 0 is the load. A weighted table has a last column `w`, +1 or -1, and
within a tick the rows that go come before those that come; other tables only grow. `expected.arrow` has the view after
each of the ticks that are `checked`, with the tick in its first column.

Files are mapped, so a tick costs a slice. This module runs in the environments of peers: pyarrow and numpy are all
that it may import.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

WEIGHT: Final = "w"
TICK: Final = "tick"


@dataclass(slots=True)
class Source:
    """A table of a case."""

    file: str
    """Relative to the case's folder."""
    ddl: str
    """The columns that are read, as Spark declares them, without the weight."""
    cuts: list[int]
    weighted: bool = False
    keys: list[str] = field(default_factory=list)

    @property
    def columns(self) -> list[str]:
        return [part.split()[0] for part in self.ddl.split(", ")]


@dataclass(slots=True)
class Case:
    """See the module's preface."""

    workload: str
    view: str
    """The name of the view within its workload: q3, say."""
    sql: str
    """The view in Spark's SQL."""
    tables: dict[str, Source]
    parameters: dict[str, Any]
    checked: list[int]
    recursive: str | None = None
    """The columns of a view that names itself."""
    static: list[str] = field(default_factory=list)
    """Tables that are whole after the load."""
    reserve: int = 0
    """Bytes of memory that a system may take before the load."""
    repeat: int = 1
    """How often it is run in a round, one after the other."""
    turn: int = 0
    """Ticks after which another case has its turn, if it is compared with one (`benchmarks.peers.turns`)."""
    folder: Path = field(default_factory=Path)

    @property
    def ticks(self) -> int:
        """How many there are after the load."""
        return len(next(iter(self.tables.values())).cuts) - 2

    @property
    def name(self) -> str:
        given = ", ".join(f"{key} {value:,}" for key, value in self.parameters.items())
        return f"{self.view}: {given}" if given else self.view

    def rows(self, begin: int, end: int) -> int:
        """How many rows come in these ticks, those of tables that never change left out."""
        moving = [t for name, t in self.tables.items() if name not in self.static]
        return sum(t.cuts[end] - t.cuts[begin] for t in moving)

    def open(self) -> Ticks:
        return Ticks(self)

    def save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        content = asdict(self)
        del content["folder"]
        (self.folder / "case.json").write_text(json.dumps(content))

    @staticmethod
    def read(folder: Path) -> Case:
        content = json.loads((folder / "case.json").read_text())
        tables = {name: Source(**given) for name, given in content.pop("tables").items()}
        return Case(**content, tables=tables, folder=folder)

    def expected(self) -> pa.Table:
        return read_arrow(self.folder / "expected.arrow")


class Ticks:
    """The ticks of a case, its files mapped: `ticks[0]` is the load."""

    def __init__(self, case: Case) -> None:
        self._cuts = {name: source.cuts for name, source in case.tables.items()}
        self._tables = {}
        for name, source in case.tables.items():
            columns = [*source.columns, WEIGHT] if source.weighted else source.columns
            self._tables[name] = read_arrow(case.folder / source.file).select(columns)

    def __getitem__(self, tick: int) -> dict[str, pa.Table]:
        """The rows of a tick, by table; tables without rows are left out."""
        bounds = {name: (cuts[tick], cuts[tick + 1]) for name, cuts in self._cuts.items()}
        return {name: self._tables[name].slice(a, b - a) for name, (a, b) in bounds.items() if b > a}

    def whole(self, name: str) -> pa.Table:
        """All rows of a table."""
        return self._tables[name]

    def empty(self, name: str) -> pa.Table:
        """A table's columns, without rows."""
        return self._tables[name].slice(0, 0)


def read_arrow(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def in_memory(table: pa.Table) -> pa.Table:
    """A copy of a table's rows, and of nothing else: those of a mapped file are read from it when they are touched."""
    parts = [pa.ipc.read_record_batch(part.serialize(), part.schema) for part in table.combine_chunks().to_batches()]
    return pa.Table.from_batches(parts, table.schema)


def write_arrow(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.ipc.new_file(str(path), table.schema) as sink:
        sink.write_table(table.combine_chunks())


def with_tick(table: pa.Table, tick: int) -> pa.Table:
    """A view with the tick after which it is so, as `expected.arrow` has it."""
    return table.add_column(0, TICK, pa.array(np.full(table.num_rows, tick, np.int64)))


def at_tick(views: pa.Table, tick: int) -> pa.Table:
    """The view after a tick, of those that `with_tick` has marked."""
    return views.filter(pc.equal(views[TICK], tick)).drop_columns([TICK])


def cuts_of(seq: np.ndarray, bounds: Sequence[int] | np.ndarray) -> list[int]:
    """Where rows in the order of `seq` have to be cut to be apart at these bounds."""
    return [int(i) for i in np.searchsorted(seq, bounds)]
