"""Catalyst plans in, our own plans out. Nothing else in dbspark knows Catalyst's nodes.

Spark parses, analyses and optimises; `read_plan` takes the optimised plan as JSON (one call to the JVM, however large
the plan) and turns it into the nodes of `dbspark.sql.plan`. A node that only Spark evaluates becomes an `OpaqueNode`,
an expression becomes a `Call` whatever it is: how they are computed is decided by the compiler.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from dbspark.columnar.frames import arrow_of
from dbspark.sql import plan as p
from dbspark.sql.analysis_session import AnalysisSession, TableLeaves, jvm_dataframe
from dbspark.sql.catalyst_nodes import BY_SPARK, REFUSED, PlanError, check_fields, check_metadata, refusal
from dbspark.sql.catalyst_tree import (
    CatalystNode,
    JvmReference,
    anonymous,
    expression_id,
    function_of,
    functions_in,
    holds_aggregate,
    is_option,
    is_reference,
    parse_tree,
    read_literal,
    to_hashable_option,
    value_of,
    window_in,
)
from dbspark.sql.determinism import not_deterministic, not_deterministic_names, open_answers
from dbspark.sql.distinct_aggregates import in_order
from dbspark.sql.types import from_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXCLUDED_RULES = (
    # They serve batch execution only, and make plans larger or hide tables from us:
    "org.apache.spark.sql.catalyst.optimizer.InferFiltersFromConstraints",  # IS NOT NULL beside every join key
    "org.apache.spark.sql.catalyst.optimizer.InferFiltersFromGenerate",
    "org.apache.spark.sql.catalyst.optimizer.OptimizeCsvJsonExprs",
    "org.apache.spark.sql.catalyst.optimizer.LimitPushDownThroughWindow",
    "org.apache.spark.sql.catalyst.optimizer.InferWindowGroupLimit",  # a hint for sorting; the filter stays anyway
    "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation",
    "org.apache.spark.sql.execution.planmerging.MergeSubplans",  # equal sub-plans are one node here anyway
)
"""Optimiser rules that are left out while a view is compiled."""

_EXCLUDED = "spark.sql.optimizer.excludedRules"

_WHOLE = 100_000
"""The limit of fields in the text of a node, high enough for all of them."""

_IGNORED = {
    "class", "num-children", "exprId", "resultId", "nonInheritableMetadataKeys", "explicitMetadata", "qualifier",
    "evalContext", "evalMode", "mutableAggBufferOffset", "inputAggBufferOffset", "hint", "joinCond", "mayHaveCountBug",
    "needsUserDecision", "collation", "errorMessage", "name", "metadata",
}  # fmt: skip
_OFTEN_NULL = {"timeZoneId", "filter", "elseValue", "dataType", "default", "ignoreNulls"}
"""Fields for which None in the JSON means that they are not set; None elsewhere is what the JSON cannot express."""
_NUMBERS = {"n", "ordinal", "seed", "precision", "scale", "numBits", "size", "groupIndex"}
"""Fields whose small integers are numbers; in other fields, small integers are positions of children."""


class PlanReader:
    """Reads one optimised plan."""

    def __init__(self, tables: TableLeaves, text: str) -> None:
        """`text` is the analysed plan as Spark prints it, in full."""
        self.tables = tables
        self._tries = "try_" in text
        """Whether some expression may be evaluated in another mode than the session's."""
        self.remarks: list[str] = []
        """The parts of the query that a view ignores, such as ORDER BY, as sentences."""

    def expr(self, raw: CatalystNode) -> p.Expr:
        name = raw.name
        if name == "AttributeReference":
            return self.column(raw)
        if name == "NamedLambdaVariable":
            return self.column(raw)
        if name == "Literal":
            return read_literal(raw)
        if name == "Alias":
            return self.expr(raw.children[0])
        if name == "ScalarSubquery":
            plan = self.node(parse_tree(raw.fields["plan"], raw.origin.field("plan")))
            return p.Subquery(plan, from_json(json.loads(raw.origin.jvm().dataType().json())))
        if name == "AggregateExpression":
            raise PlanError("an aggregate function where none is expected")
        return self._call(raw, tuple(self.expr(c) for c in raw.children))

    def _call(self, raw: CatalystNode, args: tuple[p.Expr, ...]) -> p.Call:
        """A function over arguments that were read already."""
        if raw.name == "InSet":
            dtype = from_json(json.loads(raw.origin.jvm().child().dataType().json()))
            if not pa.types.is_nested(dtype):
                return p.Call("In", (*args, *self._set_values(raw, dtype)), (), raw.origin)
        return p.Call(raw.name, args, self._options(raw), raw.origin)

    def _options(self, raw: CatalystNode) -> tuple[tuple[str, Any], ...]:
        """The options of an expression: its fields that are neither children nor references to them."""
        width = raw.fields["num-children"]
        options = [
            (k, to_hashable_option(v))
            for k, v in sorted(raw.fields.items())
            if k not in _IGNORED and is_option(v) and not (is_reference(v, width) and k not in _NUMBERS)
        ]
        if self._tries and ("evalContext" in raw.fields or "evalMode" in raw.fields):
            options.append(("mode", self._mode(raw)))
        if "PythonUD" in raw.name or raw.name == "ScalaUDF":
            options.append(("function", function_of(raw.origin.jvm())))
        elif any(v is None and k not in _IGNORED and k not in _OFTEN_NULL for k, v in raw.fields.items()):
            # The JSON leaves out what it has no form for; calls that differ in it must not look the same.
            options.append(("sql", re.sub(r"#\d+L?", "", str(raw.origin.jvm().sql()))))
        return tuple(options)

    def column(self, raw: CatalystNode) -> p.Column:
        self.tables.declare(expression_id(raw), raw.fields["dataType"])
        return p.Column(expression_id(raw), raw.fields["name"], from_json(raw.fields["dataType"]))

    def named(self, raw: CatalystNode) -> p.Named:
        if raw.name in ("Alias", "AttributeReference"):
            return p.Named(expression_id(raw), raw.fields["name"], self.expr(raw))
        raise PlanError(f"a {raw.name} where a named expression is expected")

    def order(self, raw: CatalystNode) -> p.Order:
        descending = "Descending" in str(raw.fields["direction"])
        nulls_last = "NullsLast" in str(raw.fields["nullOrdering"])
        return p.Order(self.expr(raw.children[0]), descending, nulls_last)

    def _mode(self, raw: CatalystNode) -> str:
        obj = raw.origin.jvm()
        mode = obj.evalContext().evalMode() if "evalContext" in raw.fields else obj.evalMode()
        return str(mode.toString())

    def _set_values(self, raw: CatalystNode, arrow: pa.DataType) -> list[p.Expr]:
        jvm_set = raw.origin.jvm().hset().toSeq()
        out: list[p.Expr] = []
        for i in range(jvm_set.size()):
            value = jvm_set.apply(i)
            text = None if value is None else str(value if not hasattr(value, "toString") else value.toString())
            out.append(p.Constant(value_of(text, arrow, partial(_same, value)), arrow))
        return sorted(out, key=repr)

    # ------------------------------------------------------------------ relational nodes

    def node(self, raw: CatalystNode) -> p.Node:
        read = _NODES.get(raw.name)
        if read is not None:
            check_fields(raw.name, raw.fields)
            return read(self, raw)
        if raw.name in BY_SPARK or (not raw.children and raw.name not in REFUSED):
            return self._opaque_node(raw)
        raise refusal(raw.name)

    def columns(self, raws: Iterable[CatalystNode]) -> tuple[p.Column, ...]:
        return tuple(self.column(r) for r in raws)

    def _opaque_node(self, raw: CatalystNode) -> p.Node:
        plan = raw.origin.jvm()
        linear = raw.name in ("BatchEvalPython", "ArrowEvalPython")  # others are given iterators of rows, or groups
        output = _columns_of(plan.output())
        children = tuple(self.node(c) for c in raw.children)
        if not children:
            raise PlanError(
                f"the query reads {plan.simpleString(100)}, which is not a table of the pipeline; "
                "create a table for it, or bring its rows in with insert or ingest"
            )
        text = raw.name + "".join(f"; {k}={json.dumps(anonymous(v))}" for k, v in sorted(raw.fields.items()))
        called = raw.exprs("udfs") if "udfs" in raw.fields else []
        called += [f for f in (raw.expr("functionExpr"), raw.expr("udtf")) if f is not None]
        for function in called:
            if function.fields.get("udfDeterministic") is False:
                raise not_deterministic(str(function.fields["name"]))
        fields = dict(raw.fields)
        functions = functions_in(plan) if called or "UD" in json.dumps(fields) else ()
        if not functions:  # the JSON leaves out what it has no form for
            fields["asText"] = re.sub(r"#\d+L?", "", str(plan.simpleString(_WHOLE)))
        return p.OpaqueNode(raw.name, children, output, linear, text, json.dumps(fields), functions, raw.origin)

    def _table(self, raw: CatalystNode) -> p.Node:
        number = (raw.fields.get("outputPartitioning") or {}).get("numPartitions")
        name = self.tables.name_of(number) if isinstance(number, int) else None
        if name is None:
            return self._opaque_node(raw)
        return p.Table(name, self.columns(raw.exprs("output")))

    def _values(self, raw: CatalystNode) -> p.Node:
        """Rows that are part of the query: Spark computes them once."""
        plan = raw.origin.jvm()
        for field in json.loads(plan.schema().json())["fields"]:
            check_metadata(field["name"], field["metadata"])
        spark = self.tables.spark
        from pyspark.sql import DataFrame

        frame = DataFrame(jvm_dataframe(spark, plan), spark)
        output = _columns_of(plan.output())
        if not output:
            data = pa.table({"row": pa.array([0] * frame.count())})
        else:
            data = arrow_of(frame.toDF(*(f"c{i}" for i in range(len(output)))))
        return p.Values(output, data, str(data.to_pydict()))

    def _project(self, raw: CatalystNode) -> p.Node:
        return p.Project(self.node(raw.children[0]), tuple(self.named(e) for e in raw.exprs("projectList")))

    def _filter(self, raw: CatalystNode) -> p.Node:
        condition = raw.expr("condition")
        assert condition is not None
        return p.Filter(self.node(raw.children[0]), self.expr(condition))

    def _join(self, raw: CatalystNode) -> p.Node:
        given = raw.fields["joinType"]
        kind = given.get("object") or given.get("product-class") or ""
        how = kind.rsplit(".", 1)[1].rstrip("$")
        names: dict[str, p.JoinType] = {
            "Inner": "inner", "Cross": "inner", "LeftOuter": "left", "RightOuter": "right", "FullOuter": "full",
            "LeftSemi": "semi", "LeftAnti": "anti", "ExistenceJoin": "existence", "LeftSingle": "left",
        }  # fmt: skip
        if how not in names:
            raise PlanError(f"a join of type {how} is not known")
        exists = None
        if how == "ExistenceJoin":
            exists = self.column(parse_tree(given["exists"], raw.origin.field("joinType").field("exists")))
        condition = raw.expr("condition")
        return p.Join(
            self.node(raw.children[0]), self.node(raw.children[1]), names[how],
            None if condition is None else self.expr(condition), exists, how == "LeftSingle",
        )  # fmt: skip

    def _aggregate(self, raw: CatalystNode) -> p.Node:
        """Aggregate calls inside output expressions become columns of their own."""
        child = self.node(raw.children[0])
        grouping = raw.exprs("groupingExpressions")
        keys: list[p.Named] = []
        known: dict[p.Expr, p.Named] = {}
        for i, g in enumerate(grouping):
            expr = self.expr(g)
            if expr in known:
                continue
            if isinstance(expr, p.Column):
                known[expr] = p.Named(expr.id, expr.name, expr)
            else:
                known[expr] = p.Named(-1000 - i, f"key{i}", expr)
            keys.append(known[expr])
        found: dict[p.Aggregation, p.Column] = {}
        outputs = []
        for e in raw.exprs("aggregateExpressions"):
            inner = e.children[0] if e.name == "Alias" else e
            outputs.append(p.Named(expression_id(e), e.fields["name"], self._over_groups(inner, known, found)))
        pairs = tuple((column, aggregation) for aggregation, column in found.items())
        return in_order(p.Aggregate(child, tuple(keys), pairs, tuple(outputs), raw.origin))

    def _over_groups(
        self, raw: CatalystNode, keys: Mapping[p.Expr, p.Named], found: dict[p.Aggregation, p.Column]
    ) -> p.Expr:
        """An output of an aggregate: grouping expressions and aggregations in it are replaced by columns."""
        if raw.name == "AggregateExpression":
            aggregation = self.aggregation(raw)
            if aggregation not in found:
                number = int(raw.fields["resultId"]["id"])
                # The type is set by the compiler of the function.
                found[aggregation] = p.Column(number, f"agg{len(found)}", pa.null())
            return found[aggregation]
        if raw.name in ("AttributeReference", "Literal", "ScalarSubquery", "NamedLambdaVariable"):
            expr = self.expr(raw)
            return _key_column(keys[expr]) if expr in keys else expr
        if not holds_aggregate(raw):
            expr = self.expr(raw)
            if expr in keys:
                return _key_column(keys[expr])
        if raw.name == "Alias":
            return self._over_groups(raw.children[0], keys, found)
        return self._call(raw, tuple(self._over_groups(c, keys, found) for c in raw.children))

    def aggregation(self, raw: CatalystNode) -> p.Aggregation:
        function = raw.children[0]
        orders = {i: self.order(c) for i, c in enumerate(function.children) if c.name == "SortOrder"}
        args = (orders[i].expr if i in orders else self.expr(c) for i, c in enumerate(function.children))
        call = self._call(function, tuple(args))
        if orders:  # the expression of the ORDER BY becomes an argument, its direction an option
            how = tuple((i, o.descending, o.nulls_last) for i, o in orders.items())
            call = replace(call, options=(*call.options, ("order", how)))
        where = self.expr(raw.children[1]) if len(raw.children) > 1 else None
        return p.Aggregation(call, bool(raw.fields["isDistinct"]), where)

    def _window(self, raw: CatalystNode) -> p.Node:
        functions, around = [], []
        for e in raw.exprs("windowExpressions"):
            inner = e.children[0] if e.name == "Alias" else e
            number, name = expression_id(e), e.fields["name"]
            window = window_in(inner)
            if window is None:  # folded to a constant
                around.append(p.Named(number, name, self.expr(inner)))
                continue
            function, spec = window.children
            if function.name == "Literal":  # an aggregate of no rows, whatever the frame: FILTER (WHERE FALSE)
                around.append(p.Named(number, name, self._around(inner, window, self.expr(function))))
                continue
            if window is not inner:  # Spark computes something with the result, such as a decimal from its digits
                hidden = p.Column(-2_000_000 - number, name, pa.null())
                around.append(p.Named(number, name, self._around(inner, window, hidden)))
                number = hidden.id
            functions.append((number, name, self._window_call(function, spec.children[-1])))
        child = self.node(raw.children[0])
        made: p.Node = child if not functions else p.Window(
            child, tuple(functions),
            tuple(self.expr(e) for e in raw.exprs("partitionSpec")),
            tuple(self.order(e) for e in raw.exprs("orderSpec")), raw.origin,
        )  # fmt: skip
        if not around:
            return made
        replaced = {n.id: n for n in around}
        columns = _columns_of(raw.origin.jvm().output())
        return p.Project(made, tuple(replaced.get(c.id) or p.Named(c.id, c.name, c) for c in columns))

    def _around(self, raw: CatalystNode, window: CatalystNode, instead: p.Expr) -> p.Expr:
        """The expression with `instead` in the place of its window function."""
        if raw is window:
            return instead
        if window_in(raw) is None:
            return self.expr(raw)
        return self._call(raw, tuple(self._around(c, window, instead) for c in raw.children))

    def _window_call(self, function: CatalystNode, frame: CatalystNode) -> p.WindowCall:
        kind = "rows" if "RowFrame" in str(frame.fields["frameType"]) else "range"
        lower, upper = (self._bound(b) for b in frame.children)
        made = p.Frame(cast("Any", kind), lower, upper)
        if function.name == "AggregateExpression":
            return p.WindowCall(self.aggregation(function), made)
        call = self.expr(function)
        assert isinstance(call, p.Call)
        return p.WindowCall(call, made, bool(function.fields.get("ignoreNulls", False)))

    def _bound(self, raw: CatalystNode) -> p.Expr | int | None:
        if raw.name.startswith("Unbounded"):
            return None
        if raw.name.startswith("CurrentRow"):
            return 0
        if raw.name == "Literal" and re.match(r"interval (year|month)", str(raw.fields["dataType"])):
            return p.Call("Months", (), (("months", raw.fields["value"]),))  # which have no fixed length
        return self.expr(raw)

    def _limit(self, raw: CatalystNode) -> p.Node:
        """GlobalLimit over LocalLimit over (Offset over) Sort."""
        expr = self.expr(cast("CatalystNode", raw.expr("limitExpr")))
        if not isinstance(expr, p.Constant):
            raise PlanError("a LIMIT is a number")
        child = raw.children[0]
        if child.name == "LocalLimit":
            local = self.expr(cast("CatalystNode", child.expr("limitExpr")))
            if local != expr:
                raise PlanError(f"[UNKNOWN_PLAN] a LIMIT of {expr.value} over a limit of partitions that is another")
            child = child.children[0]
        return self._topped(child, int(expr.value), 0)

    def _offset(self, raw: CatalystNode) -> p.Node:
        expr = self.expr(cast("CatalystNode", raw.expr("offsetExpr")))
        assert isinstance(expr, p.Constant)
        child = raw.children[0]
        if child.name in ("GlobalLimit", "LocalLimit"):  # LIMIT n + m, then OFFSET m
            limit = self.expr(cast("CatalystNode", child.expr("limitExpr")))
            assert isinstance(limit, p.Constant)
            inner = child.children[0]
            inner = inner.children[0] if inner.name == "LocalLimit" else inner
            return self._topped(inner, int(limit.value) - int(expr.value), int(expr.value))
        return self._topped(child, None, int(expr.value))

    def _topped(self, child: CatalystNode, limit: int | None, offset: int) -> p.Node:
        if child.name == "Offset" and limit is not None and not offset:
            return _fewer(self._offset(child), limit)
        if child.name == "Project" and child.children[0].name == "Sort":  # a projection does not change the order
            inner = self._topped(child.children[0], limit, offset)
            return p.Project(inner, tuple(self.named(e) for e in child.exprs("projectList")))
        if child.name == "Sort" and child.fields["global"]:
            order = tuple(self.order(e) for e in child.exprs("order"))
            return p.Top(self.node(child.children[0]), order, limit, offset)
        return p.Top(self.node(child), (), limit, offset)

    def _through(self, raw: CatalystNode) -> p.Node:
        """Nodes that change nothing about which rows there are."""
        return self.node(raw.children[0])

    def _sort(self, raw: CatalystNode) -> p.Node:
        """Without a LIMIT above it (see `_topped`), an order is that of a result that is shown, not of a view."""
        if raw.fields["global"]:
            self.remarks.append("ORDER BY is ignored: a view has no order; sort when you read it")
        else:
            self.remarks.append("SORT BY is ignored: it orders partitions of Spark, which a view does not have")
        return self.node(raw.children[0])

    def _sample(self, raw: CatalystNode) -> p.Node:
        raise PlanError(
            "[NOT_DETERMINISTIC] a sample is another one every time, so no view can be kept equal to it; "
            "filter by a hash of a key instead, such as WHERE pmod(xxhash64(id), 100) < 5"
        )

    def _union(self, raw: CatalystNode) -> p.Node:
        if raw.fields["byName"] or raw.fields["allowMissingCol"]:
            raise PlanError("[UNKNOWN_PLAN] a union by name, of which Spark has not put the columns in order")
        children = tuple(self.node(c) for c in raw.children)
        return p.Union(children, _columns_of(raw.origin.jvm().output()))

    def _distinct(self, raw: CatalystNode) -> p.Node:
        child = self.node(raw.children[0])
        columns = _columns_of(raw.origin.jvm().output())
        named = tuple(p.Named(c.id, c.name, c) for c in columns)
        return p.Aggregate(child, named, (), named, raw.origin)

    def _generate(self, raw: CatalystNode) -> p.Node:
        generator = self.expr(cast("CatalystNode", raw.expr("generator")))
        assert isinstance(generator, p.Call)
        plan = raw.origin.jvm()
        indexes = plan.unrequiredChildIndex()
        unrequired = {indexes.apply(i) for i in range(indexes.size())}
        width = plan.child().output().size()
        required = tuple(i for i in range(width) if i not in unrequired)
        columns = self.columns(raw.exprs("generatorOutput"))
        child = self.node(raw.children[0])
        return p.Generate(child, generator, required, bool(raw.fields["outer"]), columns, raw.origin)

    def _expand(self, raw: CatalystNode) -> p.Node:
        at = raw.origin.field("projections")
        given = raw.fields["projections"]
        if given is None:  # Spark leaves out lists of some kinds
            rows = at.jvm()
            given = [
                [json.loads(rows.apply(i).apply(j).toJSON()) for j in range(rows.apply(i).size())]
                for i in range(rows.size())
            ]
        projections = tuple(
            tuple(self.expr(parse_tree(e, at.item(i).item(j))) for j, e in enumerate(row))
            for i, row in enumerate(given)
        )
        return p.Expand(self.node(raw.children[0]), projections, self.columns(raw.exprs("output")))

    def _loop(self, raw: CatalystNode) -> p.Node:
        anchor, step = (self.node(c) for c in raw.children)
        limit = raw.fields.get("maxDepth")
        columns = _columns_of(raw.origin.jvm().output())
        return p.Loop(int(raw.fields["id"]), anchor, step, columns, limit if isinstance(limit, int) else None)

    def _loop_ref(self, raw: CatalystNode) -> p.Node:
        return p.LoopRef(int(raw.fields["loopId"]), self.columns(raw.exprs("output")))

    def _group_limit(self, raw: CatalystNode) -> p.Node:
        """WindowGroupLimit only spares sorting: the filter on the rank stays above it."""
        return self.node(raw.children[0])


_NODES: dict[str, Callable[[PlanReader, CatalystNode], p.Node]] = {
    "LogicalRDD": PlanReader._table,
    "LocalRelation": PlanReader._values,
    "OneRowRelation": PlanReader._values,
    "Range": PlanReader._values,
    "Project": PlanReader._project,
    "Filter": PlanReader._filter,
    "Join": PlanReader._join,
    "Aggregate": PlanReader._aggregate,
    "Window": PlanReader._window,
    "WindowGroupLimit": PlanReader._group_limit,
    "GlobalLimit": PlanReader._limit,
    "LocalLimit": PlanReader._through,
    "Offset": PlanReader._offset,
    "Sort": PlanReader._sort,
    "Sample": PlanReader._sample,
    "RepartitionByExpression": PlanReader._through,
    "Repartition": PlanReader._through,
    "RebalancePartitions": PlanReader._through,
    "ResolvedHint": PlanReader._through,
    "SubqueryAlias": PlanReader._through,
    "ReturnAnswer": PlanReader._through,
    "Union": PlanReader._union,
    "Distinct": PlanReader._distinct,
    "Generate": PlanReader._generate,
    "Expand": PlanReader._expand,
    "UnionLoop": PlanReader._loop,
    "UnionLoopRef": PlanReader._loop_ref,
}


@dataclass(frozen=True, slots=True)
class AnalyzedQuery:
    """A query that has been read: its plan, the columns that it gives in order, and what a view of it will not do."""

    plan: p.Node
    columns: tuple[p.Column, ...]
    remarks: tuple[str, ...]
    declared: tuple[Any, ...] = ()
    """The Spark types of the columns, as JSON."""
    open_answers: tuple[str, ...] = ()
    """What in it has more than one right answer (`dbspark.sql.determinism`)."""


def read_plan(tables: TableLeaves, query: str | DataFrame) -> AnalyzedQuery:
    """The optimised plan of a query over tables, by SQL or as a DataFrame."""
    session = tables.analysis_session()
    excluded = session.get(_EXCLUDED)
    session.set(_EXCLUDED, ",".join([*(excluded.split(",") if excluded else []), *EXCLUDED_RULES]))
    session.set("spark.sql.debug.maxToStringFields", "100000")  # plans are looked at as text, in full
    statement = session.statement_in(query) if isinstance(query, str) else ""
    if statement:  # which analysing would execute
        raise PlanError(
            f"[UNSUPPORTED_QUERY] {statement} is a statement, and a view is defined by a query; give it a SELECT, and "
            "run statements with spark.sql()"
        )
    analyzed = session.analyzed(query)
    for name in not_deterministic_names(analyzed):
        raise not_deterministic(name)
    plan = _optimized(session, analyzed)
    if plan.isStreaming():
        raise PlanError(
            "[UNSUPPORTED_QUERY] the query reads a stream; ingest it into a table of the pipeline, and read that"
        )
    reader = PlanReader(tables, analyzed.toString())
    node = reader.node(parse_tree(json.loads(plan.toJSON()), JvmReference(None, plan)))
    output = plan.output()
    declared = tuple(_declared(output.apply(i)) for i in range(output.size()))
    return AnalyzedQuery(node, _columns_of(output), tuple(reader.remarks), declared, tuple(open_answers(analyzed)))


def _optimized(session: AnalysisSession, analyzed: Any) -> Any:
    """The optimised plan of a query.

    Spark's rules about constraints fail on some plans (a correlated subquery below EXCEPT ALL: "key not found", of the
    query itself as of ours); without constraints, which few rules look at, the plan is as correct.
    """
    from py4j.protocol import Py4JJavaError

    try:
        return session.optimized(analyzed)
    except Py4JJavaError:
        session.set("spark.sql.constraintPropagation.enabled", "false")
        return session.optimized(analyzed)


def _key_column(named: p.Named) -> p.Column:
    dtype = named.expr.type if isinstance(named.expr, p.Column) else pa.null()
    return p.Column(named.id, named.name, dtype)


def _fewer(node: p.Node, limit: int) -> p.Node:
    """A top with a further limit: at most so many of its rows."""
    if isinstance(node, p.Project):
        return p.Project(_fewer(node.child, limit), node.outputs)
    assert isinstance(node, p.Top)
    return p.Top(node.child, node.order, limit if node.limit is None else min(limit, node.limit), node.offset)


def _columns_of(output: Any) -> tuple[p.Column, ...]:
    """A JVM sequence of attributes."""
    out = []
    for i in range(output.size()):
        attribute = output.apply(i)
        dtype = from_json(_declared(attribute))
        out.append(p.Column(int(attribute.exprId().id()), attribute.name(), dtype))
    return tuple(out)


def _declared(expr: Any) -> Any:
    """The Spark type of an expression in the JVM, as JSON."""
    return json.loads(expr.dataType().json())


def _same(value: Any) -> Any:
    return value
