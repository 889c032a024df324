"""The shop of the demo: what happens to it makes sense, and streams get it in order."""

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from dbspark.cli.demo_data import SMALL_TABLE_STEPS, TABLES, ShopFiles, Workload, steps

SMALL = Workload(rows=500, steps=SMALL_TABLE_STEPS + 1, changes=100)
GOES = {"delete", "update_preimage"}


def test_steps_delete_and_update_what_is_there() -> None:
    present: dict[str, dict[int, tuple[object, ...]]] = {name: {} for name in TABLES}
    seen: Counter[tuple[str, str]] = Counter()
    for number, table, rows in steps(SMALL):
        names = [column.split()[0] for column in TABLES[table].columns.replace("(8,2)", "").split(",")]
        assert rows.column_names == ["_change_type", *names]
        here, gone, come = present[table], dict[int, str](), dict[int, str]()
        for row in rows.to_pylist():
            kind, values = row.pop("_change_type"), tuple(row.values())
            key = row[TABLES[table].key]
            seen[table, kind] += number > 0
            if kind in GOES:
                assert here.pop(key) == values, "the version that goes is not the one that was there"
                assert gone.setdefault(key, kind) == kind
            else:
                assert key not in here
                assert key not in come, "a key comes twice in a step"
                assert (kind == "update_postimage") == (gone.get(key) == "update_preimage")
                here[key], come[key] = values, kind
        if table == "customers":
            assert all(referrer is None or referrer < key for key, (_, _, referrer) in here.items())
    assert min(seen["orders", kind] for kind in ("insert", "delete", "update_preimage", "update_postimage")) > 20
    assert seen["customers", "update_postimage"] == seen["products", "update_postimage"] == 2
    assert len(present["orders"]) > 300


def test_the_shop_delivers_steps_in_the_order_of_their_times(tmp_path: Path) -> None:
    shop = ShopFiles(tmp_path)
    total = shop.write(SMALL)
    assert shop.deliver(0) == 3
    assert shop.deliver(4) == 4 + 2
    assert shop.steps({"orders": 3, "customers": 1}) == {"orders": 2, "customers": 0}
    assert shop.deliver(SMALL.steps) == SMALL.steps - 4 + 2
    assert shop.steps({"orders": 12, "customers": 3}) == {"orders": 11, "customers": 11}
    files = {name: sorted(shop.delivered(name).iterdir(), key=lambda file: file.stat().st_mtime) for name in TABLES}
    assert all(found == sorted(found) for found in files.values())
    assert sum(pq.read_metadata(file).num_rows for found in files.values() for file in found) == total


def test_every_demo_has_the_same_shop() -> None:
    assert all(a.rows.equals(b.rows) for a, b in zip(steps(SMALL), steps(SMALL), strict=True))
