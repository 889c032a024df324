"""Non-deterministic expressions, which are refused, and queries with several right answers, which get a warning.

The answer of `first(x)` or of a LIMIT without an order depends on the order in which rows come. A view of such
a query is maintained, by an order of its own that never changes. Spark's answer may differ, also from run to run.
"""

from __future__ import annotations

import json
import re
from typing import Any

from dbspark.errors import DbsparkError
from dbspark.sql.catalyst_tree import CatalystNode, JvmReference, all_nodes, parse_tree

NOT_DETERMINISTIC = {
    "Rand": "rand", "Randn": "randn", "Uuid": "uuid", "Shuffle": "shuffle", "RandStr": "randstr", "Uniform": "uniform",
    "MonotonicallyIncreasingID": "monotonically_increasing_id", "SparkPartitionID": "spark_partition_id",
    "InputFileName": "input_file_name", "CurrentTimestamp": "current_timestamp", "CurrentDate": "current_date",
    "Now": "now", "LocalTimestamp": "localtimestamp", "CurrentTime": "current_time",
}  # fmt: skip
"""Non-deterministic expressions, by Catalyst's name."""
_SUSPECT = re.compile(
    r"\b(rand|randn|uuid|shuffle|randstr|uniform|monotonically_increasing_id|spark_partition_id|input_file_name|"
    r"current_timestamp|current_date|current_time|now|localtimestamp)\(",
    re.IGNORECASE,
)


def not_deterministic_names(plan: Any) -> list[str]:
    """Catalyst's names of the non-deterministic expressions in an analysed query.

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


# ---------------------------------------------------------------------------------------------- open answers

_OPEN = re.compile(
    r"\b(first|last|any_value|first_value|last_value|collect_list|array_agg|listagg|string_agg)\b|limit\b",
    re.IGNORECASE,
)
_FIRST = "min_by(x, y) or max_by(x, y) with a column y that tells the rows apart"
_INSTEAD = {
    "First": _FIRST, "Last": _FIRST, "AnyValue": _FIRST,
    "CollectList": "array_sort(collect_list(x)), or read it as a set",
    "ListAgg": "listagg(x) WITHIN GROUP (ORDER BY y)",
}  # fmt: skip
"""Aggregates whose answer depends on the order of rows, by Catalyst's name, and what to write instead."""
_ORDER_DOES_NOT_MATTER = {"ArraySort", "SortArray", "Size", "ArrayMin", "ArrayMax"}
"""Functions around an array whose result does not depend on the order of its elements."""
_PASSES_ORDER_ON = {"GlobalLimit", "LocalLimit", "Offset", "Project", "SubqueryAlias", "Filter"}


def open_answers(plan: Any) -> list[str]:
    """What of an analysed query has an answer that depends on the order of rows, as whole sentences."""
    if not _OPEN.search(plan.toString()):
        return []
    found: list[str] = []
    _look_for_open_answers(parse_tree(json.loads(plan.toJSON()), JvmReference(None, plan)), found, False, False)
    return list(dict.fromkeys(found))


def _look_for_open_answers(node: CatalystNode, found: list[str], ordered: bool, in_limit: bool) -> None:
    """`ordered`: whether the order of rows is given, or does not matter; `in_limit`: below a limit that was judged."""
    if node.name in _INSTEAD and not ordered and not node.fields.get("orderExpressions"):
        text = re.sub(r"#\d+L?", "", str(node.origin.jvm().sql()))
        found.append(f"{text} depends on the order of rows; to have one answer, write {_INSTEAD[node.name]}")
    is_limit = node.name in ("GlobalLimit", "LocalLimit")
    if is_limit and not in_limit and not _is_sorted(node):
        found.append(
            "LIMIT without ORDER BY takes any rows; to have one answer, order by columns that tell the rows apart"
        )
    within = ordered or node.name in _ORDER_DOES_NOT_MATTER
    if node.name == "WindowExpression":
        within = within or any(part.name == "SortOrder" for part in all_nodes(node))
    for child in node.children:
        _look_for_open_answers(child, found, within, is_limit)
    for field, value in node.fields.items():
        for i, tree in enumerate(value if isinstance(value, list) else ()):
            if isinstance(tree, list) and tree and isinstance(tree[0], dict) and "class" in tree[0]:
                inner = parse_tree(tree, node.origin.field(field).item(i))
                _look_for_open_answers(inner, found, False, False)
        if isinstance(value, list) and value and isinstance(value[0], dict) and "num-children" in value[0]:
            _look_for_open_answers(parse_tree(value, node.origin.field(field)), found, within, False)


def _is_sorted(limit: CatalystNode) -> bool:
    """Whether the rows that a limit takes are in an order, or can only be one row."""
    node = limit
    while node.name in _PASSES_ORDER_ON:
        node = node.children[0]
    return node.name == "Sort" or (node.name == "Aggregate" and not node.fields["groupingExpressions"])
