"""The nodes of Catalyst, their fields and the metadata of columns that the plan reader supports, and what it refuses.

Catalyst leaves some of a query's meaning to physical planning and to streaming, in nodes and in metadata. A reader that
ignored it would give wrong rows silently. Hence three rules:

1. A node is read by a rule, is evaluated by Spark as a whole (`BY_SPARK`), or is refused by name.
2. A node that is read has no fields but those of `FIELDS`, which says of each one that is not read why it may be.
3. Metadata of a column under a key that Spark interprets is in `METADATA`, or is refused by name. Whoever writes a
   query may attach metadata of their own, such as a comment, under any other key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dbspark.errors import DbsparkError


class PlanError(DbsparkError):
    """A plan that cannot be read."""


FIELDS: Mapping[str, frozenset[str]] = {
    name: frozenset(fields.split())
    for name, fields in {
        "LogicalRDD": "output rdd outputPartitioning outputOrdering isStreaming stream session originStats "
        "originConstraints fromCheckpoint",
        "LocalRelation": "output data isStreaming stream",
        "OneRowRelation": "",
        "Range": "start end step numSlices output isStreaming",
        "Project": "projectList child",
        "Filter": "condition child",
        "Join": "left right joinType condition hint",
        "Aggregate": "groupingExpressions aggregateExpressions child hint",
        "Window": "windowExpressions partitionSpec orderSpec child hint",
        "WindowGroupLimit": "partitionSpec orderSpec rankLikeFunction limit child",
        "GlobalLimit": "limitExpr child",
        "LocalLimit": "limitExpr child",
        "Offset": "offsetExpr child",
        "Sort": "order global child hint",
        "Sample": "lowerBound upperBound withReplacement seed child sampleMethod",
        "RepartitionByExpression": "partitionExpressions child optNumPartitions optAdvisoryPartitionSize",
        "Repartition": "numPartitions shuffle child",
        "RebalancePartitions": "partitionExpressions child optNumPartitions optAdvisoryPartitionSize",
        "ResolvedHint": "child hints",
        "SubqueryAlias": "identifier child",
        "ReturnAnswer": "child",
        "Union": "children byName allowMissingCol",
        "Distinct": "child",
        "Generate": "generator unrequiredChildIndex outer qualifier generatorOutput child",
        "Expand": "projections output child",
        "UnionLoop": "id anchor recursion outputAttrIds limit maxDepth",
        "UnionLoopRef": "loopId output accumulated",
    }.items()
}
"""The fields of the nodes that are read. Those that no rule reads say nothing about which rows there are:

- `hint` (JoinHint, AggregateHint, WindowHint, SortHint, ResolvedHint's `hints`): which algorithm Spark should take;
- `qualifier`, `identifier`: names, which the analyser has resolved;
- `numSlices`, `numPartitions`, `shuffle`, `partitionExpressions`, `opt…`: where Spark puts rows;
- `rdd`, `stream`, `session`, `originStats`, `originConstraints`, `outputOrdering`, `fromCheckpoint`: of our leaves;
- `byName`, `allowMissingCol`: the analyser has put the columns in order; they are refused where it has not;
- `isStreaming`: plans that stream are refused;
- `outputAttrIds`, `accumulated`: numbers of the columns of a loop, which are in `output`;
- `limit` of a loop: how early Spark may stop, as the LIMIT above it, which stays in the plan, drops further rows;
- `limit`, `rankLikeFunction` of WindowGroupLimit: how early Spark may stop, under a filter that stays in the plan.
"""

BY_SPARK: Mapping[str, str] = {
    "BatchEvalPython": "a Python function over each row",
    "ArrowEvalPython": "a Python function over batches of rows",
    "BatchEvalPythonUDTF": "a Python table function over each row",
    "ArrowEvalPythonUDTF": "a Python table function over batches of rows",
    "MapInPandas": "a Python function over frames of rows",
    "MapInArrow": "a Python function over batches of rows",
    "FlatMapGroupsInPandas": "a Python function over each group",
    "FlatMapGroupsInArrow": "a Python function over each group",
    "FlatMapCoGroupsInPandas": "a Python function over pairs of groups",
    "FlatMapCoGroupsInArrow": "a Python function over pairs of groups",
    "ScriptTransformation": "a program that rows are piped through",
    "BinBy": "rows split over bins of time",
    "AsOfJoin": "the partner that is next in some order",
    "Intersect": "rows of both inputs",
    "Except": "rows of one input that are not in the other",
}
"""Nodes without a rule of ours that Spark evaluates, over the change or over everything: batch operators whose rows
depend on nothing but the rows of their inputs."""

SEES_NAMES = frozenset(name for name in BY_SPARK if name.startswith(("MapIn", "FlatMap")))
"""Those whose Python functions are given frames, and so the names of the columns of their inputs."""

_STREAMING = "it keeps state from batch to batch of a stream, which a view over tables has no batches for"
_TYPED = "it is over objects of the JVM; write it with columns and functions of columns"
_SINK = "a view is kept by the pipeline, it writes nowhere else; add a sink to the view"

REFUSED: Mapping[str, str] = {
    "Deduplicate": f"{_STREAMING}; use SELECT DISTINCT, or row_number() over a key and a filter on it",
    "DeduplicateWithinWatermark": "it drops rows by the watermark of a stream; "
    "use SELECT DISTINCT, or row_number() over a key and a filter on it",
    "EventTimeWatermark": "a watermark drops late rows of a stream, and the tables of a pipeline take all rows; "
    "leave withWatermark out, or filter by time",
    "UpdateEventTimeWatermarkColumn": "a watermark drops late rows of a stream; leave it out, or filter by time",
    "FlatMapGroupsWithState": f"{_STREAMING}; write it as an aggregate or a window",
    "FlatMapGroupsInPandasWithState": f"{_STREAMING}; write it as an aggregate or a window",
    "TransformWithState": f"{_STREAMING}; write it as an aggregate or a window",
    "TransformWithStateInPySpark": f"{_STREAMING}; write it as an aggregate or a window",
    "SequentialStreamingUnion": f"{_STREAMING}; ingest the streams into a table",
    "NamedStreamingRelation": "ingest the stream into a table, and read that",
    "CollectMetrics": "what observe() collects is told by the runs of a query, and a view is not run; "
    "leave it out, and make a view of the aggregates",
    "AttachDistributedSequence": "numbers that depend on where Spark puts rows are other ones every time; "
    "use row_number() over an order",
    "LateralJoin": "Spark has left a lateral subquery as it is, which only its own planner runs; write it as a join",
    "DomainJoin": "Spark has left a correlated subquery as it is, which only its own planner runs; write it as a join",
    "NearestByJoin": "an approximate or unordered choice of neighbours is not a function of the rows; "
    "join, and take the first ranks of row_number() over the distance",
    "Zip": "it pairs rows by their place in a partition, which rows of a table do not have; join by a key",
    "Tail": "it takes the last rows in no particular order; use ORDER BY with LIMIT",
    "LimitAll": "Spark has left LIMIT ALL in the plan; leave it out",
    "WithCTE": "Spark has left a WITH in the plan, as it does where what is in it gives something else every time; "
    "make a view of that part",
    "CTERelationDef": "Spark has left a WITH in the plan; make a view of that part",
    "Subquery": "Spark has left a subquery in the plan; write it as a join",
    "Pivot": "Spark has left it in the plan; write the aggregates with FILTER",
    "MultiResult": "it gives more than one result; make a view of each",
    "SQLFunctionNode": "Spark has left the body of an SQL function in the plan; write it into the query",
    "MergeRows": "it is a part of MERGE, which changes tables; a view has none",
    "View": "Spark has left a view of its own in the plan",
    "UnresolvedHint": "Spark has left a hint unresolved; leave it out",
    "WithWindowDefinition": "Spark has left a WINDOW clause in the plan; write the window at the function",
    "DataFrameDropColumns": "Spark has left it in the plan; select the columns that stay",
    "UnresolvedDeduplicate": "Spark has left it in the plan; use SELECT DISTINCT",
    "UnresolvedQualify": "Spark has left QUALIFY in the plan; filter in an outer query",
    "UnresolvedWith": "Spark has left a WITH in the plan; make a view of that part",
    "MetricViewPlaceholder": "a metric view is read by its own planner; write its query",
    "ResolvedMetricView": "a metric view is read by its own planner; write its query",
    "AutoCdcInto": f"{_STREAMING}; ingest the changes into a table with a primary key",
    **dict.fromkeys(
        (
            "AppendColumns", "AppendColumnsWithObject", "CoGroup", "DeserializeToObject", "SerializeFromObject",
            "MapElements", "MapGroups", "MapPartitions", "TypedFilter", "MapPartitionsInR", "MapPartitionsInRWithArrow",
            "FlatMapGroupsInR", "FlatMapGroupsInRWithArrow", "MapPartitionsExternalUDF",
        ),
        _TYPED,
    ),
    **dict.fromkeys(
        (
            "Call", "InsertIntoDir", "CreateTable", "WriteFiles", "WriteToDataSourceV2", "WriteToStream",
            "WriteToStreamStatement", "WriteToContinuousDataSource", "WriteToMicroBatchDataSource",
            "WriteToMicroBatchDataSourceV1",
        ),
        _SINK,
    ),
}  # fmt: skip
"""Nodes that are refused, with the reason and what to do; so are nodes that are in no list here."""

METADATA: Mapping[str, str] = {
    "spark.timeWindow": "what window() has made of a time: the analyser has turned it into arithmetic, and "
    "window_time() into a field of it",
    "__metadata_col": "a hidden column of a source: which names find it",
    "__qualified_access_only": "the other key of a join with USING: which names find it",
    "__aggregated_access_only": "a column below an aggregate: which names find it",
    "__autoGeneratedAlias": "a column that was given no name: whether a permanent view may have it",
    "__is_duplicate": "one of two equal columns of an input: which names find it",
    "__dataset_id": "the DataFrame that a column was taken from: the analyser warns of self-joins by it",
    "__col_position": "the place of a column in that DataFrame",
    "__CHAR_VARCHAR_TYPE_STRING": "CHAR(n) or VARCHAR(n): the analyser has put in the padding and the checks",
    "__file_source_metadata_col": "of a file: sources of files are refused as such",
    "__file_source_constant_metadata_col": "of a file: sources of files are refused as such",
    "__file_source_generated_metadata_col": "of a file: sources of files are refused as such",
    "__preserve_on_delete": "what DELETE does with a hidden column: a view has no DELETE",
    "__preserve_on_update": "what UPDATE does with a hidden column: a view has no UPDATE",
    "__preserve_on_reinsert": "what MERGE does with a hidden column: a view has no MERGE",
    "__auto_filled_generated_column": "what INSERT does with a generated column: a view has no INSERT",
    "CURRENT_DEFAULT": "the DEFAULT that INSERT takes: a view has no INSERT",
    "EXISTS_DEFAULT": "what older files of a table hold in a column: sources of files are refused as such",
    "GENERATION_EXPRESSION": "what INSERT computes a column by: a view has no INSERT",
    "identity.start": "what INSERT numbers rows by: a view has no INSERT",
    "identity.step": "what INSERT numbers rows by: a view has no INSERT",
    "identity.allowExplicitInsert": "what INSERT numbers rows by: a view has no INSERT",
    "comment": "text for people",
}
"""Keys of metadata that Spark interprets and that change nothing about the rows of a view, with what they say."""

REFUSED_METADATA: Mapping[str, str] = {
    "spark.sessionWindow": "session_window() is not kept as a view yet: Spark merges the sessions while it runs a "
    "query, not in its plan. Number the sessions instead: with lag() over the times of a key find the rows that come "
    "later than the gap after the one before, with sum() over those count sessions, and group by key and count",
    "spark.watermarkDelayMs": "a watermark drops late rows of a stream, and the tables of a pipeline take all rows; "
    "leave withWatermark out, or filter by time",
    "spark.cdc.streamingPostProcessing": f"changes of a table as a stream: {_STREAMING}; ingest them into a table",
}
"""Keys that change what a query means, with what to do. So does any other key that is Spark's by its name."""

_OF_SPARK = ("spark.", "__")
"""Prefixes of the keys that Spark uses itself."""


def check_fields(name: str, fields: Iterable[str]) -> None:
    """Refuse a node with a field that is not in `FIELDS`."""
    strange = sorted(set(fields) - FIELDS[name] - {"class", "num-children"})
    if strange:
        raise PlanError(
            f"[UNKNOWN_PLAN] {name} of this version of Spark has {', '.join(strange)}, which dbspark does not know; "
            "use a version of Spark that dbspark was tested with"
        )


def check_metadata(column: str, keys: Iterable[str]) -> None:
    """Refuse a column whose metadata changes what Spark does with it."""
    for key in keys:
        if key in REFUSED_METADATA:
            raise PlanError(f"[UNSUPPORTED_QUERY] column {column!r}: {REFUSED_METADATA[key]}")
        if key.startswith(_OF_SPARK) and key not in METADATA:
            raise PlanError(
                f"[UNKNOWN_PLAN] column {column!r} has metadata under {key!r}, a name that Spark keeps for itself, "
                "and dbspark does not know what it means; choose another name if it is yours, or leave it out"
            )


def refusal(name: str) -> PlanError:
    """The error for a node that cannot be kept."""
    reason = REFUSED.get(name, "dbspark does not know what it means; write the query without it")
    return PlanError(f"[UNSUPPORTED_QUERY] {name} cannot be part of a view: {reason}")
