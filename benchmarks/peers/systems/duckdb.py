"""DuckDB recomputing: tables in memory, two threads. A tick deletes and inserts by SQL and fetches the whole view."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any, Final

import pyarrow as pa

from benchmarks.peers.case import WEIGHT, Case
from benchmarks.peers.contender import Recomputing

_TUMBLE: Final = "time_bucket(INTERVAL '10 seconds', date_time)"
_WINDOWED: Final = {
    "q5": """\
WITH counts AS (
  SELECT auction, count(*) AS num, starttime
  FROM (
    SELECT auction, unnest([time_bucket(INTERVAL '2 seconds', date_time) - INTERVAL (2 * i) SECONDS
                            FOR i IN range(5)]) AS starttime
    FROM bid
  )
  GROUP BY auction, starttime
)
SELECT auction, num, starttime, starttime + INTERVAL '10 seconds' AS endtime
FROM counts JOIN (SELECT max(num) AS maxn, starttime FROM counts GROUP BY starttime) USING (starttime)
WHERE num >= maxn""",
    "q7": f"""\
SELECT auction, price, bidder, date_time, extra
FROM bid JOIN (SELECT max(price) AS maxprice, {_TUMBLE} AS starttime FROM bid GROUP BY starttime) m
  ON price = maxprice AND {_TUMBLE} = starttime""",
    "q8": f"""\
SELECT id, name, starttime
FROM (SELECT DISTINCT id, name, {_TUMBLE} AS starttime FROM person) p
JOIN (SELECT DISTINCT seller AS id, {_TUMBLE} AS starttime FROM auction) a USING (id, starttime)""",
    "q12": f"""\
SELECT bidder, count(*) AS bid_count, {_TUMBLE} AS starttime, {_TUMBLE} + INTERVAL '10 seconds' AS endtime
FROM bid GROUP BY bidder, {_TUMBLE}""",
}
_FORMATS: Final = {"yyyy-MM-dd": "%Y-%m-%d", "HH:mm": "%H:%M"}
_TYPES: Final = {"STRING": "VARCHAR", "INT": "INTEGER"}


def dialect(case: Case) -> str:
    """The view as DuckDB says it."""
    if case.workload == "w2":
        seed = "SELECT e.src, e.dst FROM edges e" + (" JOIN sources USING (src)" if "sources" in case.tables else "")
        return (
            f"WITH RECURSIVE reach(src, dst) AS ({seed} UNION "
            "SELECT r.src, e.dst FROM reach r JOIN edges e ON r.dst = e.src) SELECT src, dst FROM reach"
        )
    if case.view in _WINDOWED:
        return _WINDOWED[case.view]
    return re.sub(
        r"date_format\((\w+), '([^']*)'\)", lambda found: f"strftime({found[1]}, '{_FORMATS[found[2]]}')", case.sql
    )


def without_zone(rows: pa.Table) -> pa.Table:
    """Times as they are in UTC: a type of its own, which engines are quicker with."""
    for i, declared in enumerate(rows.schema):
        if pa.types.is_timestamp(declared.type) and declared.type.tz:
            plain = rows.column(i).cast(pa.timestamp(declared.type.unit))
            rows = rows.set_column(i, declared.name, plain)
    return rows


class Duckdb(Recomputing):
    name = "DuckDB"
    workloads = frozenset({"w1", "w2", "w3"})

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {"duckdb": version("duckdb")}

    def open(self, case: Case) -> None:
        import duckdb

        self._base: Any = duckdb.connect()
        self._base.execute("SET threads = 2")
        self._keys = {name: table.keys for name, table in case.tables.items()}
        for name, table in case.tables.items():
            ddl = " ".join(_TYPES.get(word.rstrip(","), word.rstrip(",")) + "," * word.endswith(",")
                           for word in table.ddl.split())  # fmt: skip
            self._base.execute(f"CREATE TABLE {name} ({ddl})")
        self._sql = dialect(case)

    def prepare(self, rows: dict[str, pa.Table]) -> dict[str, pa.Table]:
        return {name: without_zone(table) for name, table in rows.items()}

    def apply(self, given: dict[str, pa.Table]) -> None:
        for name, rows in given.items():
            self._base.register("given", rows)
            if WEIGHT in rows.column_names:
                same = " AND ".join(f"{name}.{key} = given.{key}" for key in self._keys[name])
                self._base.execute(f"DELETE FROM {name} USING given WHERE {same} AND given.{WEIGHT} < 0")
                self._base.execute(f"INSERT INTO {name} SELECT * EXCLUDE ({WEIGHT}) FROM given WHERE {WEIGHT} > 0")
            else:
                self._base.execute(f"INSERT INTO {name} SELECT * FROM given")
            self._base.unregister("given")

    def compute(self) -> pa.Table:
        return self._base.sql(self._sql).to_arrow_table()

    def result(self) -> pa.Table:
        return self.view

    def close(self) -> None:
        self._base.close()
