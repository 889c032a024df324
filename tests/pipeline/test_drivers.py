"""Drivers of sharded pipelines are killed: what is opened next is a whole tick, and none that returned is missing."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import dbspark
from tests.sql.oracle import rows_of

ROOT = Path(__file__).parents[2]
KILLS = max(2, int(os.environ.get("DBSPARK_KILLS", "10")) // 5)
ORDERS = "id BIGINT, customer BIGINT, amount BIGINT"
TOTALS = "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer"

CHILD = """
import sys
from dbspark.spark import get_session
from tests.pipeline.test_drivers import opened, transaction

with get_session(cores=2, worker_slots=int(sys.argv[2]), config={"spark.log.level": "OFF"}) as session:
    pipe = opened(sys.argv[1], session.spark, 2)
    while True:
        transaction(pipe)
        print(pipe.tick, flush=True)
"""


def opened(location, spark, shards=None):
    pipe = dbspark.Pipeline("shop", location=location, spark=spark, shards=shards)
    if "orders" not in pipe.tables:
        pipe.create_table("orders", ORDERS, primary_key=["id"])
    if "totals" not in pipe.views:
        pipe.create_view("totals", TOTALS)
    return pipe


def rows_at(tick):
    """The rows that a tick puts in."""
    return [(i % 31, i % 7, i + tick) for i in range(tick * 10, tick * 10 + 10)]


def transaction(pipe):
    tick = pipe.tick + 1
    with pipe.transaction() as tx:
        tx.upsert("orders", rows_at(tick))
        tx.delete_keys("orders", [(tick % 31,)])


def expected(tick):
    orders = {}
    for t in range(1, tick + 1):
        orders |= {row[0]: row for row in rows_at(t)}
        orders.pop(t % 31, None)
    counts, totals = Counter(), Counter()
    for _, customer, amount in orders.values():
        counts[customer] += 1
        totals[customer] += amount
    return set(orders.values()), {(c, n, totals[c]) for c, n in counts.items()}


def held(pipe):
    tables = [pipe.table("orders").to_arrow(), pipe.view("totals").to_arrow()]
    rows = [rows_of(table) for table in tables]
    assert all(len(set(some)) == len(some) for some in rows), "nothing is there twice"
    return tuple(map(set, rows))


def test_drivers_are_killed(spark, tmp_path):
    chance = random.Random(KILLS)
    location, last = str(tmp_path / "state"), 0
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    java = "-XX:TieredStopAtLevel=1"  # as in tests/conftest.py
    for i in range(KILLS):
        child = subprocess.Popen(
            # Two with workers that stay, then two with a job for each tick.
            [sys.executable, "-c", CHILD, location, str(2 - i // 2 % 2 * 2)],
            env={**os.environ, "PYTHONPATH": path, "JAVA_TOOL_OPTIONS": java},
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            told = []
            for _ in range(2 + i % 2):  # at its first tick it is slower than it is going to be
                begun = time.monotonic()
                told.append(child.stdout.readline())
            time.sleep(chance.uniform(0, 1.5) * (time.monotonic() - begun))
        finally:
            if i % 2:
                child.kill()  # what it has begun may go on for a while
            else:
                os.killpg(child.pid, signal.SIGKILL)
        told += child.stdout.readlines()
        child.wait()
        returned = max(int(line) for line in told)
        assert returned > last
        with dbspark.Pipeline("shop", location=location, config={"read_only": True}) as pipe:
            assert returned <= pipe.tick <= returned + 1
            assert held(pipe) == expected(pipe.tick)
            last = pipe.tick
    with opened(location, spark) as pipe:
        assert pipe.tick == last
        transaction(pipe)
        assert held(pipe) == expected(last + 1)
