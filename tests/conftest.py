"""What all tests share: one Spark session, and how long hypothesis searches.

Tests that ask for the fixture `spark` are marked `spark`. `make test` runs them apart, in one process, so that
one session serves them all. (The groups of xdist, which are made for this, have no effect with pytest 9.2:
pytest-xdist issue 1386.)
"""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from dbspark.spark import get_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", _COMMON, max_examples=60, derandomize=True)
settings.register_profile("soak", _COMMON, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(tryfirst=True)  # before -m selects by the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """The session for all tests, local[2]; leave its settings as you found them."""
    config = {
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
    handle = get_session(app_name="dbspark tests", cores=2, config=config)
    assert handle.owned, "a Spark session was started outside of the fixture"
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name)  # two threads that make it at once make one that cannot log what Spark logs
    yield handle.spark
    handle.close()
