"""Which expressions give something else every time, and where a query has them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NOT_DETERMINISTIC = {
    "Rand": "rand", "Randn": "randn", "Uuid": "uuid", "Shuffle": "shuffle", "RandStr": "randstr", "Uniform": "uniform",
    "MonotonicallyIncreasingID": "monotonically_increasing_id", "SparkPartitionID": "spark_partition_id",
    "InputFileName": "input_file_name", "CurrentTimestamp": "current_timestamp", "CurrentDate": "current_date",
    "Now": "now", "LocalTimestamp": "localtimestamp", "CurrentTime": "current_time",
}  # fmt: skip
"""Expressions that give something else every time, by Catalyst's name."""
_SUSPECT = re.compile(
    r"\b(rand|randn|uuid|shuffle|randstr|uniform|monotonically_increasing_id|spark_partition_id|input_file_name|"
    r"current_timestamp|current_date|current_time|now|localtimestamp)\(",
    re.IGNORECASE,
)


def not_deterministic_names(frame: DataFrame) -> list[str]:
    """Catalyst's names of expressions in a query that do not give the same every time.

    They are looked for before optimisation, which replaces the present time by a constant.
    """
    plan = frame._jdf.queryExecution().analyzed()
    if not _SUSPECT.search(plan.toString()):
        return []
    found: list[str] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            name = str(value.get("class", "")).rsplit(".", 1)[-1]
            if name in NOT_DETERMINISTIC:
                found.append(name)
            for inner in value.values():
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    look(json.loads(plan.toJSON()))
    return found
