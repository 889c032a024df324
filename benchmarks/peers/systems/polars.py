"""Polars recomputing: frames in memory, two threads. A tick joins out what goes, appends what comes, runs the query."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Final

import pyarrow as pa

from benchmarks.peers.case import WEIGHT, Case
from benchmarks.peers.contender import Recomputing

_DAY: Final = "%Y-%m-%d"


def _queries() -> dict[str, Callable[[dict[str, Any]], Any]]:
    """The queries of Nexmark, over lazy frames by table."""
    import polars as pl

    c = pl.col
    ranks = (("rank1", c("price") < 10_000), ("rank2", c("price").is_between(10_000, 1_000_000, "left")),
             ("rank3", c("price") >= 1_000_000))  # fmt: skip

    def bids() -> list[Any]:
        return [pl.len().alias("total_bids"), *(cond.sum().alias(f"{rank}_bids") for rank, cond in ranks)]

    def distinct(column: str) -> list[Any]:
        some = [c(column).filter(cond).n_unique().alias(f"{rank}_{column}s") for rank, cond in ranks]
        return [c(column).n_unique().alias(f"total_{column}s"), *some]

    def tumble(frame: Any) -> Any:
        return frame.with_columns(starttime=c("date_time").dt.truncate("10s"))

    def matched(t: dict[str, Any]) -> Any:
        both = t["auction"].join(t["bid"], left_on="id", right_on="auction", suffix="_b", coalesce=False)
        return both.filter(c("date_time_b").is_between(c("date_time"), c("expires")))

    def q4(t: dict[str, Any]) -> Any:
        final = matched(t).group_by("id", "category").agg(c("price").max())
        return final.group_by("category").agg(c("price").mean())

    def q5(t: dict[str, Any]) -> Any:
        slots = (
            t["bid"]
            .select("auction", starttime=c("date_time").dt.truncate("2s"))
            .group_by("auction", "starttime")
            .len()
        )
        hops = [slots.with_columns(c("starttime").dt.offset_by(f"-{2 * i}s")) for i in range(5)]
        counts = pl.concat(hops).group_by("auction", "starttime").agg(num=c("len").sum())
        best = counts.filter(c("num") == c("num").max().over("starttime"))
        return best.select("auction", "num", "starttime", endtime=c("starttime").dt.offset_by("10s"))

    def q7(t: dict[str, Any]) -> Any:
        best = tumble(t["bid"]).filter(c("price") == c("price").max().over("starttime"))
        return best.select("auction", "price", "bidder", "date_time", "extra")

    def q8(t: dict[str, Any]) -> Any:
        persons = tumble(t["person"]).select("id", "name", "starttime").unique()
        sellers = tumble(t["auction"]).select("seller", "starttime").unique()
        return persons.join(sellers, left_on=["id", "starttime"], right_on=["seller", "starttime"])

    def q9(t: dict[str, Any]) -> Any:
        first = matched(t).sort("price", "date_time_b", "seq", descending=[True, False, False])
        return first.unique(subset="id", keep="first").select(
            "id", "item_name", "description", "initial_bid", "reserve", "date_time", "expires", "seller", "category",
            "extra", "auction", "bidder", "price", "date_time_b", "extra_b",
        )  # fmt: skip

    def q14(t: dict[str, Any]) -> Any:
        hour, price = c("date_time").dt.hour(), 0.908 * c("price")
        kind = (
            pl.when(hour.is_between(8, 18)).then(pl.lit("dayTime"))
            .when((hour <= 6) | (hour >= 20)).then(pl.lit("nightTime")).otherwise(pl.lit("otherTime"))
        )  # fmt: skip
        some = t["bid"].filter((price > 1_000_000) & (price < 50_000_000))
        count = c("extra").str.count_matches("c", literal=True).cast(pl.Int64)
        return some.select("auction", "bidder", price.alias("price"), kind.alias("bid_time_type"), "date_time", "extra",
                           count.alias("c_counts"))  # fmt: skip

    def q16(t: dict[str, Any]) -> Any:
        minute = c("date_time").dt.strftime("%H:%M").max().alias("minute")
        groups = t["bid"].group_by("channel", c("date_time").dt.strftime(_DAY).alias("day"))
        return groups.agg(minute, *bids(), *distinct("bidder"), *distinct("auction"))

    def q17(t: dict[str, Any]) -> Any:
        price = c("price")
        figures = [
            price.min().alias("least"),
            price.max().alias("most"),
            price.mean().alias("mean"),
            price.sum().alias("sum"),
        ]
        return t["bid"].group_by("auction", c("date_time").dt.strftime(_DAY).alias("day")).agg(*bids(), *figures)

    def q18(t: dict[str, Any]) -> Any:
        last = t["bid"].sort("date_time", "seq", descending=True).unique(subset=["bidder", "auction"], keep="first")
        return last.select("auction", "bidder", "price", "channel", "url", "date_time", "extra")

    def q19(t: dict[str, Any]) -> Any:
        ranked = t["bid"].sort("price", "seq", descending=[True, False]).with_columns(
            rank_number=pl.int_range(1, pl.len() + 1).over("auction")
        )  # fmt: skip
        return ranked.filter(c("rank_number") <= 10).select(
            "auction", "bidder", "price", "channel", "url", "date_time", "extra", "rank_number"
        )

    def q20(t: dict[str, Any]) -> Any:
        some = t["auction"].filter(c("category") == 10)
        return t["bid"].join(some, left_on="auction", right_on="id", suffix="_a").select(
            "auction", "bidder", "price", "channel", "url", "date_time", "extra", "item_name", "description",
            "initial_bid", "reserve", "date_time_a", "expires", "seller", "category", "extra_a",
        )  # fmt: skip

    def q22(t: dict[str, Any]) -> Any:
        parts = c("url").str.split("/")
        dirs = [parts.list.get(i, null_on_oob=True).alias(f"dir{i - 2}") for i in (3, 4, 5)]
        return t["bid"].select("auction", "bidder", "price", "channel", *dirs)

    return {
        "q0": lambda t: t["bid"].select("auction", "bidder", "price", "date_time", "extra"),
        "q1": lambda t: t["bid"].select("auction", "bidder", 0.908 * c("price"), "date_time", "extra"),
        "q2": lambda t: t["bid"].filter(c("auction") % 123 == 0).select("auction", "price"),
        "q3": lambda t: t["auction"].filter(c("category") == 10)
        .join(t["person"].filter(c("state").is_in(["OR", "ID", "CA"])), left_on="seller", right_on="id")
        .select("name", "city", "state", "id"),
        "q4": q4, "q5": q5, "q7": q7, "q8": q8, "q9": q9,
        "q12": lambda t: tumble(t["bid"]).group_by("bidder", "starttime").agg(bid_count=pl.len())
        .select("bidder", "bid_count", "starttime", endtime=c("starttime").dt.offset_by("10s")),
        "q13": lambda t: t["bid"].with_columns(key=c("auction") % 10_000).join(t["side_input"], on="key")
        .select("auction", "bidder", "price", "date_time", "value"),
        "q14": q14,
        "q15": lambda t: t["bid"].group_by(c("date_time").dt.strftime(_DAY).alias("day"))
        .agg(*bids(), *distinct("bidder"), *distinct("auction")),
        "q16": q16, "q17": q17, "q18": q18, "q19": q19, "q20": q20, "q22": q22,
    }  # fmt: skip


def _w1(t: dict[str, Any]) -> Any:
    import polars as pl

    some = t["orders"].filter(pl.col("status") < 8).join(t["customers"], on="customer_id")
    return some.group_by("region").agg(pl.len().alias("cnt"), pl.col("amount").sum().alias("total"))


class Polars(Recomputing):
    name = "Polars"
    workloads = frozenset({"w1", "w2", "w3"})

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {"polars": version("polars")}

    def open(self, case: Case) -> None:
        import polars as pl

        source = case.open()
        self._case = case
        self._keys = {name: table.keys for name, table in case.tables.items()}
        self._held: dict[str, Any] = {}
        for name in case.tables:
            empty = source.empty(name)
            plain = [column for column in empty.column_names if column != WEIGHT]
            self._held[name] = pl.from_arrow(empty.select(plain))
        self._query = _queries()[case.view] if case.workload == "w3" else _w1

    def prepare(self, rows: dict[str, pa.Table]) -> dict[str, Any]:
        import polars as pl

        return {name: pl.from_arrow(table) for name, table in rows.items()}

    def apply(self, given: dict[str, Any]) -> None:
        import polars as pl

        for name, rows in given.items():
            held = self._held[name]
            if WEIGHT in rows.columns:
                keys = self._keys[name]
                gone = rows.filter(pl.col(WEIGHT) < 0).select(keys)
                if len(gone):
                    held = held.join(gone, on=keys, how="anti", maintain_order="none")
                rows = rows.filter(pl.col(WEIGHT) > 0).drop(WEIGHT)
            self._held[name] = pl.concat([held, rows], rechunk=False)

    def compute(self) -> Any:
        if self._case.workload == "w2":
            return self._reachable()
        return self._query({name: frame.lazy() for name, frame in self._held.items()}).collect()

    def _reachable(self) -> Any:
        """Round by round, with what the last one has found."""
        import polars as pl

        edges = self._held["edges"]
        fresh = edges.join(self._held["sources"], on="src", how="semi") if "sources" in self._held else edges
        known = fresh
        while len(fresh):
            hop = fresh.rename({"dst": "at"}).join(edges, left_on="at", right_on="src").select("src", "dst").unique()
            fresh = hop.join(known, on=["src", "dst"], how="anti")
            known = pl.concat([known, fresh], rechunk=False)
        return known

    def result(self) -> pa.Table:
        return self.view.to_arrow()
