"""Which expressions give something else every time, and where a query has them."""

from __future__ import annotations

import json
import re
from typing import Any

from dbspark.errors import DbsparkError

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


def not_deterministic_names(plan: Any) -> list[str]:
    """Catalyst's names of expressions in an analysed query that do not give the same every time.

    They are looked for before optimisation, which replaces the present time by a constant.
    """
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


def not_deterministic(name: str) -> DbsparkError:
    function = NOT_DETERMINISTIC.get(name, name)
    hint = (
        "put the time into a table of one row that you update, and join with it"
        if "current" in function or function in ("now", "localtimestamp")
        else "compute the value once, where the rows come in, and keep it in a column"
    )
    return DbsparkError(
        f"[NOT_DETERMINISTIC] {function}() gives something else every time, so no view can be kept equal to it; {hint}"
    )
