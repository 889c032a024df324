"""A standalone Spark cluster on loopback, from the installed PySpark: a master and workers of one core each.

    with cluster(folder) as (url, workers):
        ...

`python -m tests.runtime.cluster URL FOLDER` is a driver there: see `scenario`. It is a process of its own, because a
process has one Spark context, and that of the tests is taken.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

import dbspark
from dbspark.runtime.sharded import Sharded
from dbspark.spark.java import find_java
from tests.sql.oracle import difference, rows_of

ROOT = Path(__file__).parents[2]
PATIENCE = 180
"""Seconds that a process may take to come up; on an idle machine it takes three."""


# ---------------------------------------------------------------------- the cluster


def environment(**more):
    """What processes of Spark need to find Java, PySpark, dbspark and these tests."""
    path = [str(ROOT), str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1",  # seven JVMs, of which none lives long
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(p for p in path if p),
        **more,
    }


@contextlib.contextmanager
def cluster(folder, workers=2):
    """A master and workers, which are gone when the block is left, and their executors with them."""
    with contextlib.ExitStack() as stack:
        master = _begin(stack, folder, "master", "127.0.0.1", "master.Master")
        url = _said(master, folder / "master.log", r"Starting Spark master at (spark://\S+)")
        begun = []
        for i in range(workers):
            # Every worker has an address of its own, or Spark would not run a task a second time elsewhere.
            own = "--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work{i}"), url
            begun.append(_begin(stack, folder, f"worker{i}", f"127.0.0.{1 + i}", "worker.Worker", *own))
        for i, worker in enumerate(begun):
            _said(worker, folder / f"worker{i}.log", r"(Successfully registered)")
        yield url, begun


def _begin(stack, folder, name, host, main, *arguments):
    command = [f"{Path(pyspark.__file__).parent}/bin/spark-class", f"org.apache.spark.deploy.{main}"]
    command += ["--host", host, "--port", "0", "--webui-port", "0", *arguments]
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    process = subprocess.Popen(
        command, env=environment(SPARK_LOCAL_IP=host), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        start_new_session=True,
    )  # fmt: skip
    stack.callback(process.wait)
    stack.callback(end, process.pid)
    return process


def end(pid):
    """Kill a process and those that it has begun: a worker's executors are in its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _said(process, log, pattern):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and process.poll() is None:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"{log.name} does not say {pattern}: {log.read_text(errors='replace')[-2000:]}")


# ---------------------------------------------------------------------- faults in tasks


class Fault:
    """A step that does, in the first task that comes upon it, what a file in a folder says: `<tick>-<shard>.<what>`."""

    id = "fault"

    def __init__(self, folder):
        self.folder = folder

    def run(self, task):
        for name in os.listdir(self.folder):
            if name.startswith(f"{task.context.tick}-{task.shard}.") and not name.endswith(".done"):
                self.fail(name, Path(self.folder) / name)

    def fail(self, name, path):
        what = name.rpartition(".")[2]
        if what == "always":
            raise RuntimeError("a fault that stays")
        try:
            path.rename(path.with_name(f"{name}.done"))
        except FileNotFoundError:  # another task has come upon it
            return
        if what == "once":
            raise RuntimeError("a fault that goes away")
        if what == "kill":
            executor = _parent(os.getppid())  # above this process there is that which has forked it
            for pid in (_parent(executor), executor):
                os.kill(pid, signal.SIGKILL)
        assert what in ("slow", "kill")
        time.sleep(PATIENCE)  # until Spark has run the task elsewhere and ends this one


def _parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextlib.contextmanager
def faults(folder, level):
    """Faults in a level of every plan that is made."""
    planned = Sharded._plan

    def plan(self, graph):
        out = planned(self, graph)
        out.levels[min(level, len(out.levels) - 1)].steps.append(Fault(str(folder)))
        return out

    Sharded._plan = plan
    try:
        yield
    finally:
        Sharded._plan = planned


# ---------------------------------------------------------------------- the driver

TABLES = {"orders": "id BIGINT, customer BIGINT, amount BIGINT", "customers": "customer BIGINT, region STRING"}
VIEWS = {
    "revenue": "SELECT region, count(*) AS n, sum(amount) AS total FROM orders JOIN customers USING (customer) "
    "GROUP BY region",
    "first": "SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 3",
    "everything": "SELECT count(*) AS n, max(amount) AS most FROM orders",
}


def session(url):
    config = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.cores.max": "2",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "1s",
        "spark.python.task.killTimeout": "100ms",
    }
    builder = SparkSession.builder.master(url).appName("dbspark tests")
    for name, value in config.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Shop:
    """A pipeline, and what its tables must hold."""

    def __init__(self, spark, pipe):
        self.spark, self.pipe = spark, pipe
        self.orders, self.customers = {}, Counter()

    def apply(self, upserts, deleted=(), came=(), left=()):
        with self.pipe.transaction() as tx:
            tx.upsert("orders", upserts)
            tx.delete_keys("orders", [(i,) for i in deleted])
            tx.insert("customers", came)
            tx.delete("customers", left)
        for row in upserts:
            self.orders[row[0]] = row
        for i in deleted:
            del self.orders[i]
        self.customers = self.customers + Counter(came) - Counter(left)

    def held(self):
        return {"orders": list(self.orders.values()), "customers": list(self.customers.elements())}

    def check(self):
        check(self.spark, self.pipe, self.held())


def check(spark, pipe, held):
    """Tables hold exactly these rows, and views what Spark makes of them."""
    for name, rows in held.items():
        assert not difference(Counter(rows_of(pipe.table(name).to_arrow())), Counter(map(tuple, rows))), name
        spark.createDataFrame(rows, TABLES[name]).createOrReplaceTempView(name)
    try:
        for name, query in VIEWS.items():
            found = Counter(rows_of(pipe.view(name).to_arrow()))
            assert not difference(found, Counter(rows_of(spark.sql(query).toArrow()))), name
    finally:
        for name in held:
            spark.catalog.dropTempView(name)


def scenario(url, folder):
    """Ticks among which a task fails, one hangs, one fails for good, and a worker is killed, with what it runs."""
    told = folder / "faults"
    told.mkdir()
    spark = session(url)
    with (
        faults(told, 1),
        dbspark.Pipeline("shop", location=str(folder / "state"), spark=spark, shards=2, exchange="shuffle") as pipe,
    ):
        shop = Shop(spark, pipe)
        pipe.create_table("orders", TABLES["orders"], primary_key=["id"])
        pipe.create_table("customers", TABLES["customers"])
        for name, query in VIEWS.items():
            pipe.create_view(name, query)
        shop.apply([(i, i % 7, i * 37 % 101) for i in range(60)], came=[(c, "ns"[c % 2]) for c in range(5)])
        shop.check()
        for what in ("once", "slow", "kill", "nothing"):
            tick = pipe.tick + 1
            fault = told / f"{tick}-{tick % 2}.{what}"
            if what != "nothing":
                fault.touch()
            begun = time.monotonic()
            shop.apply(
                [(3, tick, 1000 + tick), (100 + tick, 1, tick), (tick, 2, 900)],
                deleted=[10 + tick, 20 + tick], came=[(10 + tick, "w")], left=[(tick - 2, "ns"[tick % 2])],
            )  # fmt: skip
            seconds = time.monotonic() - begun
            assert pipe.tick == tick
            assert seconds < PATIENCE, "nobody has waited for the task that hangs"
            assert not fault.exists(), "it has happened"
            shop.check()
            if what == "slow":
                refused(shop, told)
    spark.stop()
    (folder / "held.json").write_text(json.dumps({"tick": pipe.tick, **shop.held()}))


def refused(shop, told):
    """A task that always fails: the tick has not happened, and the next one can."""
    tick = shop.pipe.tick
    fault = told / f"{tick + 1}-0.always"
    fault.touch()
    with pytest.raises(dbspark.DbsparkError, match=r"was not applied(?s:.*)a fault that stays"):
        shop.apply([(1, 1, 1)])
    fault.unlink()
    assert shop.pipe.tick == tick
    shop.check()


if __name__ == "__main__":
    scenario(sys.argv[1], Path(sys.argv[2]))
