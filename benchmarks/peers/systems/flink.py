"""Flink SQL through PyFlink: streaming mode, a cluster of two slots in one JVM, changelogs in and out.

PyFlink cannot be handed a change from Python while a job runs, other than through an outside system. So tables are fed
inside the JVM by a connector of ours (`benchmarks/peers/flink`, compiled where a `javac` is found): this is Flink's
own time, without any of Python's. In W1 a tick takes from its release to the last row that reaches the sink before a
while without any; ticks that change nothing cannot be seen to end, and are not counted. A machine that stands still for
longer than that while ends a tick too early, so where a view is wrong the ticks are run again with a longer one. W3 is
one stream, from the first event to the end of the last sink, which is when all windows are closed; a second run keeps
the rows, for the comparison. Both are run with and without mini-batches, and the better one counts.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv

from benchmarks.peers.case import Case, at_tick, with_tick
from benchmarks.peers.compare import wrong
from benchmarks.peers.contender import Contender, NotExpressible, Outcome, resident
from benchmarks.peers.registry import ENVIRONMENTS

HOME: Final = ENVIRONMENTS / "pyflink"
JAR: Final = HOME / "dbspark-peer.jar"
_SOURCES: Final = Path(__file__).resolve().parents[1] / "flink"
_BATCHED: Final = 20
"""Milliseconds that a mini-batch of W1 waits for more rows."""
_PATIENCE: Final = (1, 5)
"""How many times as long it is waited for more rows of a tick, at first and where that was not enough."""
_REPLACED: Final = {"q9": 1}
"""Of views that Flink gives as rows that replace those of the same key, without taking the old ones back: how many
columns, from the first, are the key."""
_TYPES: Final = {"TIMESTAMP": "TIMESTAMP(3)"}


def compile_connector() -> str:
    """Make the connector's jar; why that cannot be done, if it cannot."""
    sources = [path for path in _SOURCES.rglob("*") if path.is_file()]
    if JAR.exists() and JAR.stat().st_mtime > max(path.stat().st_mtime for path in sources):
        return ""
    from dbspark.spark import find_java

    compiler = shutil.which("javac") or shutil.which("javac", path=str(find_java().home / "bin"))
    if compiler is None:
        return "installed, but its connector needs a JDK's javac, and there is none here: skipped"
    jars = os.pathsep.join(map(str, HOME.glob("lib/python*/site-packages/pyflink/lib/*.jar")))
    with tempfile.TemporaryDirectory() as folder:
        java = [str(path) for path in sources if path.suffix == ".java"]
        done = subprocess.run([compiler, "-nowarn", "-d", folder, "-cp", jars, *java], capture_output=True, text=True)
        if done.returncode:
            return f"its connector does not compile: {done.stderr.strip()}"
        with zipfile.ZipFile(JAR, "w") as jar:
            for root in (Path(folder), _SOURCES):
                for path in (*root.rglob("*.class"), *root.glob("META-INF/services/*")):
                    jar.write(path, path.relative_to(root))
    return ""


class Flink(Contender):
    name = "Flink SQL"
    workloads = frozenset({"w1", "w3"})
    alone = True

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {"apache-flink": version("apache-flink")}

    def run(self, case: Case, budget: float) -> Outcome:
        if not JAR.exists():
            raise NotExpressible("the connector is not compiled (make bench-peers, with a JDK's javac)")
        files = {name: self.scratch / f"{name}.columns" for name in case.tables}
        source = case.open()
        for name, path in files.items():
            _write(path, source.whole(name), case.tables[name].cuts)
        if case.workload == "w1":
            return min((self._ticks(case, files, wait) for wait in (0, _BATCHED)), key=_median)
        views = self._job(case, files, 0, wanted=True)
        runs = [self._job(case, files, wait, wanted=False) for wait in (0, 2000)]
        best = min(run["ticks"][0] for run in runs)
        expected = at_tick(case.expected(), case.ticks)
        return Outcome(
            continuous=best / 1e9, rows=case.rows(1, case.ticks + 1), memory=resident(),
            note="continuous: batches are not waited for",
            views=[with_tick(_table(views["rows"].get(0, []), expected), case.ticks)],
        )  # fmt: skip

    def _ticks(self, case: Case, files: dict[str, Path], wait: int) -> Outcome:
        for patience in _PATIENCE:
            outcome = self._patiently(case, files, wait, patience)
            if not wrong(pa.concat_tables(outcome.views), case):
                break
        return outcome

    def _patiently(self, case: Case, files: dict[str, Path], wait: int, patience: int) -> Outcome:
        done = self._job(case, files, wait, wanted=True, patience=patience)
        expected = case.expected()
        times = [done["ticks"][tick] / 1e9 for tick in range(1, case.ticks + 1) if done["ticks"][tick] >= 0]
        shape = at_tick(expected, 0)
        views = [with_tick(_table(done["rows"].get(tick, []), shape), tick) for tick in case.checked]
        return Outcome(
            load=done["ticks"][0] / 1e9, ticks=times, rows=case.rows(1, case.ticks + 1), memory=resident(), views=views,
            note=f"{case.ticks - len(times)} ticks changed nothing; mini-batches of {wait} ms",
        )  # fmt: skip

    def _job(self, case: Case, files: dict[str, Path], wait: int, wanted: bool, patience: int = 1) -> dict[str, Any]:
        """Run the query once; nanoseconds by tick, and rows with their counts by tick."""
        from pyflink.table import EnvironmentSettings, TableDescriptor, TableEnvironment

        ticks = case.ticks if case.workload == "w1" else 0
        desk = self.scratch / f"desk-{wait}-{wanted}-{patience}"
        base = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
        changes = case.parameters.get("changes", 0)
        settings = {
            "pipeline.jars": JAR.as_uri(), "parallelism.default": "2", "pipeline.object-reuse": "true",
            "table.local-time-zone": "UTC",
            "execution.buffer-timeout.interval": "0 ms" if 0 < changes <= 100 else "10 ms",
        }  # fmt: skip
        if wait:
            settings |= {
                "table.exec.mini-batch.enabled": "true", "table.exec.mini-batch.allow-latency": f"{wait} ms",
                "table.exec.mini-batch.size": "50000", "table.optimizer.agg-phase-strategy": "TWO_PHASE",
            }  # fmt: skip
        for key, value in settings.items():
            base.get_config().set(key, value)
        quiet = patience * ((100 if changes <= 100 else 300) + 2 * wait)
        options = {"desk": str(desk), "sources": str(len(files)), "ticks": str(ticks), "quiet-ms": str(quiet)}
        for name, table in case.tables.items():
            parts = [part.split() for part in table.ddl.split(", ")]
            columns = [f"`{column}` {_TYPES.get(kind, kind)}" for column, kind in parts]
            if "date_time" in table.columns:
                columns.append("WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND")
            if table.keys:
                columns.append(f"PRIMARY KEY ({', '.join(table.keys)}) NOT ENFORCED")
            given = {"connector": "dbspark-peer", "file": str(files[name]), **options}
            said = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
            base.execute_sql(f"CREATE TABLE {name} ({', '.join(columns)}) WITH ({said})")
        sink = TableDescriptor.for_connector("dbspark-peer").option("desk", str(desk)).option("ticks", str(ticks))
        sink = sink.option("key-columns", str(_REPLACED.get(case.view, 0)))
        query = base.sql_query(_SQL.get(case.view, case.sql))
        query.execute_insert(sink.option("wanted", str(wanted).lower()).build()).wait()
        out: dict[str, Any] = {"ticks": {}, "rows": {}}
        for line in desk.read_text().splitlines():
            kind, tick, figure, *rest = line.split("\t", 3)
            if kind == "tick":
                out["ticks"][int(tick)] = int(figure)
            else:
                out["rows"].setdefault(int(tick), []).extend(rest * int(figure))
        return out


def _median(outcome: Outcome) -> float:
    return statistics.median(outcome.ticks) if outcome.ticks else float("inf")


def _write(path: Path, table: pa.Table, cuts: list[int]) -> None:
    """A table as `Columns.java` reads it."""
    with path.open("wb") as out:

        def ints(*values: int) -> None:
            out.write(np.array(values, ">i4").tobytes())

        ints(len(cuts), *cuts, table.num_columns, int(table.column_names[-1] == "w"))
        for column in table.columns:
            if pa.types.is_string(column.type):
                text = pa.concat_arrays(column.chunks)
                offsets = np.frombuffer(text.buffers()[1], np.int32, len(text) + 1, 4 * text.offset)
                ints(1)
                out.write((offsets - offsets[0]).astype(">i4").tobytes())
                out.write(memoryview(text.buffers()[2])[offsets[0] : offsets[-1]])
            elif pa.types.is_timestamp(column.type):
                ints(2)
                out.write((column.cast(pa.int64()).to_numpy() // 1000).astype(">i8").tobytes())
            else:
                ints(3 if column.type == pa.int32() else 0)
                out.write(column.to_numpy().astype(">i8").tobytes())


def _table(rows: list[str], expected: pa.Table) -> pa.Table:
    """Lines with tabs as the columns of a view, typed as the expected ones."""
    kinds = {f.name: pa.int64() if pa.types.is_timestamp(f.type) else f.type for f in expected.schema}
    if not rows:
        return pa.table({name: pa.array([], kind) for name, kind in kinds.items()})
    read = pa.csv.read_csv(
        pa.BufferReader("\n".join(rows).encode()), pa.csv.ReadOptions(column_names=list(kinds)),
        pa.csv.ParseOptions(delimiter="\t", quote_char=False), pa.csv.ConvertOptions(column_types=kinds),
    )  # fmt: skip
    for i, declared in enumerate(expected.schema):
        if pa.types.is_timestamp(declared.type):
            read = read.set_column(i, declared.name, pa.array(read.column(i).to_numpy() * 1000))
    return read


_HOP: Final = "TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"


def _tumble(table: str) -> str:
    return f"TABLE(TUMBLE(TABLE {table}, DESCRIPTOR(date_time), INTERVAL '10' SECOND))"


def _counts(what: str) -> str:
    ranks = ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")
    return ", ".join([f"count({what})", *(f"count({what}) FILTER (WHERE {rank})" for rank in ranks)])


_DAY: Final = "DATE_FORMAT(date_time, 'yyyy-MM-dd')"
_ALL: Final = f"{_counts('*')}, {_counts('DISTINCT bidder')}, {_counts('DISTINCT auction')}"
_COUNTED: Final = (
    f"SELECT auction, count(*) AS num, window_start AS s, window_end AS e FROM {_HOP} "
    "GROUP BY auction, window_start, window_end"
)
_SQL: Final = {
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q4": "SELECT category, avg(CAST(final AS DOUBLE)) FROM (SELECT max(b.price) AS final, a.category FROM auction a "
    "JOIN bid b ON a.id = b.auction WHERE b.date_time BETWEEN a.date_time AND a.expires GROUP BY a.id, a.category) "
    "GROUP BY category",
    "q5": f"SELECT x.auction, x.num, x.s, x.e FROM ({_COUNTED}) x JOIN (SELECT max(num) AS most, s, e FROM "
    f"({_COUNTED}) GROUP BY s, e) m ON x.s = m.s AND x.e = m.e AND x.num >= m.most",
    "q7": "SELECT b.auction, b.price, b.bidder, b.date_time, b.extra FROM bid b JOIN (SELECT max(price) AS most, "
    f"window_start AS s, window_end AS e FROM {_tumble('bid')} GROUP BY window_start, window_end) m "
    "ON b.price = m.most AND b.date_time >= m.s AND b.date_time < m.e",
    "q8": "SELECT p.id, p.name, p.s FROM (SELECT id, name, window_start AS s, window_end AS e FROM "
    f"{_tumble('person')} GROUP BY id, name, window_start, window_end) p JOIN (SELECT seller, window_start AS s, "
    f"window_end AS e FROM {_tumble('auction')} GROUP BY seller, window_start, window_end) a "
    "ON p.id = a.seller AND p.s = a.s AND p.e = a.e",
    "q9": "SELECT id, item_name, description, initial_bid, reserve, date_time, expires, seller, category, extra, "
    "auction, bidder, price, bid_time, bid_extra FROM (SELECT a.*, b.auction, b.bidder, b.price, "
    "b.date_time AS bid_time, b.extra AS bid_extra, row_number() OVER (PARTITION BY a.id "
    "ORDER BY b.price DESC, b.date_time, b.seq) AS n FROM auction a JOIN bid b ON a.id = b.auction "
    "WHERE b.date_time BETWEEN a.date_time AND a.expires) WHERE n <= 1",
    "q12": f"SELECT bidder, count(*), window_start, window_end FROM {_tumble('bid')} "
    "GROUP BY bidder, window_start, window_end",
    "q13": "SELECT b.auction, b.bidder, b.price, b.date_time, s.`value` FROM bid b JOIN side_input s "
    "ON MOD(b.auction, 10000) = s.`key`",
    "q14": "SELECT auction, bidder, 0.908 * price, CASE WHEN HOUR(date_time) >= 8 AND HOUR(date_time) <= 18 "
    "THEN 'dayTime' WHEN HOUR(date_time) <= 6 OR HOUR(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END, "
    "date_time, extra, CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) FROM bid "
    "WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000",
    "q15": f"SELECT {_DAY}, {_ALL} FROM bid GROUP BY {_DAY}",
    "q16": f"SELECT channel, {_DAY}, max(DATE_FORMAT(date_time, 'HH:mm')), {_ALL} FROM bid GROUP BY channel, {_DAY}",
    "q17": f"SELECT auction, {_DAY}, {_counts('*')}, min(price), max(price), avg(CAST(price AS DOUBLE)), sum(price) "
    f"FROM bid GROUP BY auction, {_DAY}",
    # By time alone Flink keeps the last row of a key without ranking; of rows of the same time it is the one that came
    # last, which is what `seq` would say.
    "q18": "SELECT auction, bidder, price, channel, url, date_time, extra FROM (SELECT *, row_number() OVER (PARTITION "
    "BY bidder, auction ORDER BY date_time DESC) AS n FROM bid) WHERE n <= 1",
    "q22": "SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3), SPLIT_INDEX(url, '/', 4), "
    "SPLIT_INDEX(url, '/', 5) FROM bid",
}  # fmt: skip
