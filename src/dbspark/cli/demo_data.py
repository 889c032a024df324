"""The shop of the demo: its tables, its views, and what happens to it.

`write` makes one Parquet file for each table and *step*. Step 0 is what the shop begins with; each later one holds
changes: rows that go and rows that come, with `_change_type` as in Delta's change feed. The files are all that both
sides are given: streams read them into the pipeline, and Spark makes the tables from them to check the views
(`demo_oracle`). `ShopFiles` delivers steps by moving their files to where the streams look.

Invariants:

1. A step deletes and updates only rows that are there, and has each key once.
2. A stream reads one file at a time, in the order of steps (the files' modification times say so), so the micro-batch
   n of a table is its file n.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from dbspark.pipeline.pipeline import Pipeline

SEED: Final = 7
"""Seed of the random numbers: every demo of the same size has the same shop."""
SMALL_TABLE_STEPS: Final = 10
"""Orders change in every step; customers and products in the first of ten: people move less often than they buy."""

CATEGORIES: Final = ("books", "games", "music", "tools", "toys")
REGIONS: Final = ("north", "south", "east", "west")


class ShopTable(NamedTuple):
    """A table of the shop."""

    key: str
    columns: str


class ShopView(NamedTuple):
    """A view of the shop. A recursive one also has its columns, and its query as Spark's `WITH RECURSIVE`."""

    query: str
    recursive: str | None = None
    in_spark: str | None = None
    what: str = ""
    """What kind of query it is, for the screen."""


TABLES: Final = {
    "customers": ShopTable("customer_id", "customer_id BIGINT, region STRING, referred_by BIGINT"),
    "products": ShopTable("product_id", "product_id BIGINT, category STRING, price DECIMAL(8,2)"),
    "orders": ShopTable(
        "order_id", "order_id BIGINT, customer_id BIGINT, product_id BIGINT, quantity INT, placed DATE"
    ),
}

_DIRECT_REFERRALS = (
    "SELECT referred_by AS customer_id, customer_id AS brought FROM customers WHERE referred_by IS NOT NULL"
)
_INDIRECT_REFERRALS = (
    "SELECT r.customer_id, c.customer_id FROM referrals r JOIN customers c ON c.referred_by = r.brought"
)

VIEWS: Final = {
    "revenue": ShopView(
        """
        SELECT region, category, count(*) AS orders, sum(quantity * price) AS revenue
        FROM orders JOIN customers USING (customer_id) JOIN products USING (product_id)
        GROUP BY region, category""",
        what="3 tables joined, summed up",
    ),
    "spending": ShopView(
        """
        SELECT customer_id, region, sum(quantity * price) AS spent
        FROM orders JOIN customers USING (customer_id) JOIN products USING (product_id)
        GROUP BY customer_id, region""",
        what="the same by customer",
    ),
    "best_customers": ShopView(
        """
        SELECT region, place, customer_id, spent FROM (
            SELECT *, row_number() OVER (PARTITION BY region ORDER BY spent DESC, customer_id) AS place FROM spending)
        WHERE place <= 3""",
        what="top 3 of each region",
    ),
    "audience": ShopView(
        """
        SELECT category, count(DISTINCT customer_id) AS customers
        FROM orders JOIN products USING (product_id) GROUP BY category""",
        what="distinct customers",
    ),
    "trend": ShopView(
        """
        SELECT placed, revenue,
               sum(revenue) OVER (ORDER BY placed ROWS BETWEEN 6 PRECEDING AND CURRENT ROW) AS week
        FROM (SELECT placed, sum(quantity * price) AS revenue
              FROM orders JOIN products USING (product_id) GROUP BY placed)""",
        what="a sum over 7 days",
    ),
    "referrals": ShopView(
        f"{_DIRECT_REFERRALS} UNION {_INDIRECT_REFERRALS}",
        recursive="customer_id BIGINT, brought BIGINT",
        in_spark=f"""
        WITH RECURSIVE referrals(customer_id, brought) AS ({_DIRECT_REFERRALS} UNION ALL {_INDIRECT_REFERRALS})
        SELECT * FROM referrals""",
        what="recursive: who brought whom",
    ),
    "networks": ShopView(
        """
        SELECT r.customer_id, count(*) AS people, sum(spent) AS spent
        FROM referrals r JOIN spending s ON s.customer_id = r.brought
        GROUP BY r.customer_id ORDER BY spent DESC, r.customer_id LIMIT 10""",
        what="top 10 over two views",
    ),
}

LATER_VIEW: Final = "regions_by_day"
"""The view that is added while streams run."""
LATER_VIEWS: Final = {
    LATER_VIEW: ShopView(
        """
        SELECT placed, region, count(*) AS orders, count(DISTINCT customer_id) AS customers, max(quantity) AS most
        FROM orders JOIN customers USING (customer_id) GROUP BY placed, region""",
        what="added while streams run",
    )
}


@dataclass(frozen=True)
class Workload:
    """The size of the demo."""

    rows: int
    """Orders at the start."""
    steps: int
    changes: int = 1_000
    """Orders that a step inserts (a quarter), updates or deletes; an update is two rows."""

    @property
    def customers(self) -> int:
        return max(50, self.rows // 40)

    @property
    def products(self) -> int:
        return max(20, self.rows // 400)


class Step(NamedTuple):
    """The changes of one table in one step: Arrow rows with `_change_type`."""

    number: int
    table: str
    rows: pa.Table


class _Table:
    """The present rows of a table, by key, and the change rows that an update makes of them."""

    def __init__(self, name: str, columns: dict[str, Any]) -> None:
        self.name = name
        self.columns = {column: np.asarray(values) for column, values in columns.items()}

    def at(self, keys: Any, kind: str) -> pa.Table:
        rows = arrow_rows(self.name, {column: values[keys] for column, values in self.columns.items()})
        return rows.add_column(0, "_change_type", pa.repeat(pa.scalar(kind), len(rows)))

    def change(self, keys: Any, **values: Any) -> list[pa.Table]:
        """Update rows; returns their old and their new versions, as change rows."""
        before = self.at(keys, "update_preimage")
        for column, given in values.items():
            self.columns[column][keys] = given
        return [before, self.at(keys, "update_postimage")]


def arrow_rows(table: str, columns: dict[str, Any]) -> pa.Table:
    """The columns of a table with the types of its schema; negative referrers are NULL."""
    if table == "customers":
        referrers = pa.array(columns["referred_by"], mask=columns["referred_by"] < 0)
        region = pa.array(np.asarray(REGIONS, object)[columns["region"]], pa.string())
        return pa.table({"customer_id": columns["customer_id"], "region": region, "referred_by": referrers})
    if table == "products":
        category = pa.array(np.asarray(CATEGORIES, object)[columns["product_id"] % len(CATEGORIES)], pa.string())
        price = pa.array(columns["cents"] / 100).cast(pa.decimal128(8, 2))  # rounded to cents
        return pa.table({"product_id": columns["product_id"], "category": category, "price": price})
    placed = pa.array(columns["placed"].astype(np.int32)).cast(pa.date32())
    return pa.table({**columns, "quantity": columns["quantity"].astype(np.int32), "placed": placed})


def steps(workload: Workload) -> Iterator[Step]:
    """What happens to the shop, step by step."""
    random = np.random.default_rng(SEED)
    inserted = max(1, workload.changes // 4)
    touched = max(1, workload.changes - inserted)
    people, things = workload.customers, workload.products
    ids = np.arange(people)
    first_day = (np.datetime64("2026-01-01") - np.datetime64("1970-01-01")).astype(int)
    every_order = workload.rows + workload.steps * inserted

    def referrers(of: Any) -> Any:
        """Random earlier customers: nobody has referred themselves, so referrals have no cycles."""
        return np.where(of < 20, -1, (random.random(len(of)) * (of // 3)).astype(np.int64))

    customers = _Table(
        "customers",
        {"customer_id": ids, "region": random.integers(0, len(REGIONS), people), "referred_by": referrers(ids)},
    )
    products = _Table("products", {"product_id": np.arange(things), "cents": random.integers(100, 10_000, things)})
    orders = _Table(
        "orders",
        {
            "order_id": np.arange(every_order),
            "customer_id": random.integers(0, people, every_order),
            "product_id": random.integers(0, things, every_order),
            "quantity": random.integers(1, 6, every_order),
            "placed": first_day + random.integers(0, 90, every_order),
        },
    )
    there = np.zeros(every_order, bool)
    there[: workload.rows] = True
    for table, keys in ((customers, ids), (products, np.arange(things)), (orders, np.flatnonzero(there))):
        yield Step(0, table.name, table.at(keys, "insert"))
    for number in range(1, workload.steps + 1):
        if number % SMALL_TABLE_STEPS == 1:
            moving = random.choice(people, max(1, workload.changes // 200), replace=False)
            moved = customers.change(
                moving, region=random.integers(0, len(REGIONS), len(moving)), referred_by=referrers(moving)
            )
            yield Step(number, "customers", pa.concat_tables(moved))
            priced = random.integers(0, things, 1)
            yield Step(
                number, "products", pa.concat_tables(products.change(priced, cents=random.integers(100, 10_000)))
            )
        present = np.flatnonzero(there)
        picked = random.choice(present, min(touched, len(present) // 2), replace=False)
        gone, kept = picked[picked % 3 == 0], picked[picked % 3 > 0]
        deleted = orders.at(gone, "delete")
        updated = orders.change(
            kept, product_id=random.integers(0, things, len(kept)), quantity=random.integers(1, 6, len(kept))
        )
        new = workload.rows + (number - 1) * inserted + np.arange(inserted)
        there[gone], there[new] = False, True
        yield Step(number, "orders", pa.concat_tables([orders.at(new, "insert"), deleted, *updated]))


class ShopFiles:
    """The files of the shop: those that are written, and those that have been delivered to the streams."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.streams: dict[str, StreamingQuery] = {}

    def write(self, workload: Workload) -> int:
        """Write the files of all steps; returns the number of rows."""
        for name in TABLES:
            (self.folder / "written" / name).mkdir(parents=True)
            self.delivered(name).mkdir(parents=True)
        total = 0
        for number, table, rows in steps(workload):
            file = self.folder / "written" / table / f"{number:06d}.parquet"
            pq.write_table(rows, file)
            # Streams read files in the order of their modification times; every file system tells whole seconds apart.
            os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
            total += len(rows)
        return total

    def delivered(self, table: str) -> Path:
        """The folder that the stream of a table reads."""
        return self.folder / "delivered" / table

    def deliver(self, upto: int) -> int:
        """Deliver the files of all steps up to `upto`; returns their number."""
        count = 0
        for name in TABLES:
            for file in sorted((self.folder / "written" / name).iterdir()):
                if int(file.stem) <= upto:
                    file.rename(self.delivered(name) / file.name)
                    count += 1
        return count

    def steps(self, positions: Mapping[str, int]) -> dict[str, int]:
        """By table, the step of the last file that is applied; `positions`: by table, how many files are applied."""
        names = {name: sorted(file.stem for file in self.delivered(name).glob("*.parquet")) for name in positions}
        return {name: int(names[name][count - 1]) for name, count in positions.items()}

    def start(self, pipe: Pipeline) -> None:
        """Start the streams into the tables of a pipeline; those of a reopened one go on where they were."""
        spark = pipe._spark()
        for name, (_, columns) in TABLES.items():
            files = spark.readStream.schema(f"_change_type STRING, {columns}").option("maxFilesPerTrigger", 1)
            # The files' modification times are in the past; by default a stream ignores files that are too old.
            stream = files.option("maxFileAge", "36500d").parquet(str(self.delivered(name)))
            self.streams[name] = pipe.ingest(name, stream, mode="changes")

    def wait(self) -> None:
        """Wait until streams have processed what has been delivered; raises what one failed with."""
        for stream in self.streams.values():
            stream.processAllAvailable()


__all__ = [
    "LATER_VIEW", "LATER_VIEWS", "TABLES", "VIEWS", "ShopFiles", "ShopTable", "ShopView", "Step", "Workload",
    "arrow_rows", "steps",
]  # fmt: skip
