"""What all tests share: one Spark session for each process, and how long hypothesis searches.

Tests that ask for the fixture `spark` are marked `spark`. `tests/schedule.py` says which process runs what,
`tests/timing.py` how long it took.
"""

import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from dbspark.spark import get_session
from tests.timing import Timing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", _COMMON, max_examples=60, derandomize=True)
settings.register_profile("soak", _COMMON, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slowest", type=int, default=0, metavar="N", help="end with the N slowest tests, and warnings")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--slowest") and not hasattr(config, "workerinput"):  # not in the processes of xdist
        config.pluginmanager.register(Timing(config.getoption("--slowest")))


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from tests.schedule import Schedule

    return Schedule(config, log)


@pytest.hookimpl(tryfirst=True)  # before -m selects by the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


def pytest_collection_finish() -> None:
    """Keep modules, tests and compilers out of later collections: tests that count memory call for hundreds of them."""
    gc.collect()
    gc.freeze()


WORKER_SLOTS = 6
"""Slots beside the two cores: two pipelines of three shards with workers that stay."""


@pytest.fixture(params=["shuffle", "resident"])
def exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both transports in turn: what carries the ticks of pipelines on shards that do not say it themselves."""
    monkeypatch.setattr("dbspark.runtime.exchange_choice.DEFAULT_EXCHANGE", request.param)
    return str(request.param)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """The session for all tests of a process, local, of two cores; leave its settings as you found them."""
    folder = tmp_path_factory.mktemp("spark")
    config = {
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # The second compiler of the JVM would take more than half of its time, for code that runs a few times.
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Djava.io.tmpdir={folder}",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        # Queries of a few rows: compiling them, or planning them anew on the way, takes longer than running them.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }
    handle = get_session(app_name="dbspark tests", cores=2, worker_slots=WORKER_SLOTS, config=config)
    assert handle.owned, "a Spark session was started outside of the fixture"
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name)  # two threads that make it at once make one that cannot log what Spark logs
    yield handle.spark
    handle.close()
