"""Expressions and nodes without a rule or kernel, evaluated by Spark on the rows of a delta.

A piece of the optimised plan (an expression, or a node) is put over a small relation that holds those rows under the
column ids that the piece refers to, and run as an ordinary Spark query. The result is Spark's own by definition; the
cost is one Spark job, some tens of milliseconds, over as many rows as the delta has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dbspark.columnar.frames import arrow_of, frame_of, nullable_inside, spark_type
from dbspark.errors import DbsparkError
from dbspark.sql.analysis_session import TableLeaves, jvm_dataframe
from dbspark.sql.catalyst_nodes import PlanError
from dbspark.sql.catalyst_tree import JvmReference
from dbspark.sql.determinism import not_deterministic
from dbspark.sql.expressions.rules import ColumnFrame, Compiled
from dbspark.sql.plan import Aggregation, Call, Column, Constant, Expr, walk
from dbspark.sql.plan_analysis import columns_in
from dbspark.sql.relations import positional_schema
from dbspark.sql.types import from_json, with_spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_UNKNOWN = 10**9
"""Numbers from here on are of columns that Spark's plan does not have."""

ROW = "__row"
"""The column that says which row a result belongs to."""


class SparkEvaluator:
    """Runs pieces of plans as Spark queries in the session of the pipeline."""

    def __init__(self, tables: TableLeaves) -> None:
        self.spark = tables.spark
        self.tables = tables
        self._evaluated: dict[str, str] = {}
        """By the name of an expression, why Spark cannot evaluate it on rows alone; empty where it can."""

    def check(self, call: Call) -> None:
        """Refuse an expression that Spark cannot evaluate on rows alone, or that is not deterministic."""
        for part in walk(call):
            if not isinstance(part, Call) or part.origin is None:
                continue
            expr = part.origin.jvm()
            if part.name not in self._evaluated:
                self._evaluated[part.name] = self._reason(expr)
            if reason := self._evaluated[part.name]:
                raise PlanError(f"[UNSUPPORTED_QUERY] {part.name} cannot be part of a view here: {reason}")
        if call.origin is not None and not call.origin.jvm().deterministic():
            # Aggregates that depend on an order are not either; ours decide on one, and are columns by now.
            for expr in (part.origin.jvm() for part in walk(call) if isinstance(part, Call) and part.origin):
                below = expr.children()
                if not expr.deterministic() and all(below.apply(i).deterministic() for i in range(below.size())):
                    raise not_deterministic(str(expr.prettyName()))

    def _reason(self, expr: Any) -> str:
        """Why Spark does not evaluate expressions of a class on rows alone; nothing where it does."""
        jvm: Any = self.spark._jvm
        loader = expr.getClass().getClassLoader()

        def is_a(name: str) -> bool:
            found = jvm.java.lang.Class.forName(f"org.apache.spark.sql.catalyst.expressions.{name}", False, loader)
            return bool(found.isInstance(expr))

        if is_a("PlanExpression"):
            return "it holds a query, which has to see the tables; write it as a join"
        if is_a("Unevaluable") and not is_a("PythonFuncExpression") and not is_a("SortOrder"):
            return "Spark only knows it where its planner expects it; write it otherwise"
        return ""

    def declare_inputs(self, origin: JvmReference) -> None:
        """Remember the Spark types of the columns that come into a node, where Arrow's types do not say them."""
        inputs = origin.jvm().children()
        for i in range(inputs.size()):
            output = inputs.apply(i).output()
            for j in range(output.size()):
                attribute = output.apply(j)
                self.tables.declare(int(attribute.exprId().id()), type_json(attribute))

    def relation(
        self, columns: Sequence[Column], arrays: Sequence[pa.Array], row: Any, declared: Sequence[Any] | None = None
    ) -> Any:
        """A logical plan that holds rows under given column numbers; with the number of each row, if asked for.

        The columns are of the Spark types `declared`, as JSON; without them, of those that the numbers have in plans.
        """
        if declared is None:
            declared = [self.tables.declared.get(column.id) for column in columns]
        fields = [
            pa.field(f"c{i}", a.type) if given is None else with_spark_type(pa.field(f"c{i}", a.type), given)
            for i, (a, given) in enumerate(zip(arrays, declared, strict=True))
        ]
        given = list(arrays)
        if row is not None:
            fields.append(pa.field(ROW, pa.int64()))
            given.append(pa.array(row, pa.int64()))
        frame = frame_of(self.spark, pa.Table.from_arrays(given, schema=pa.schema(fields)))
        leaf = frame._jdf.queryExecution().analyzed()
        output = leaf.output()
        named = [self._alias(output.apply(i), column.name, column.id) for i, column in enumerate(columns)]
        if row is not None:
            named.append(output.apply(len(columns)))
        return self.project(named, leaf)

    def run(self, plan: Any) -> pa.Table:
        """The rows of a logical plan, with columns by position."""
        from pyspark.sql import DataFrame

        frame = DataFrame(jvm_dataframe(self.spark, plan), self.spark)
        return arrow_of(nullable_inside(frame.toDF(*(f"c{i}" for i in range(len(frame.columns))))))

    def columns(
        self, exprs: Sequence[Call], columns: Sequence[Column], unknown: Collection[int]
    ) -> SparkFunction | None:
        """Expressions over the columns of a stream, by position; those in `unknown` are not in Spark's plan.

        None if the unknown columns cannot be substituted in the expressions that Spark has read.
        """
        jvm: Any = self.spark._jvm
        used = columns_in(exprs)
        positions = [i for i, c in enumerate(columns) if c.id in used]
        strange = [columns[i].id for i in positions if columns[i].id in unknown]
        given = [_UNKNOWN + i if columns[i].id in unknown else columns[i].id for i in positions]
        if not all(_substitutes(e, frozenset(strange)) for e in exprs):
            return None

        def make(leaf: Any) -> tuple[Any, list[Any]]:
            known = {columns[p].id: leaf.output().apply(i) for i, p in enumerate(positions)}
            attributes = {number: known[number] for number in strange}
            over = [_over(jvm, e, e.origin.jvm(), attributes) for e in exprs]
            return leaf, [self._alias(e, "value") for e in over]

        types = [from_json(json.loads(e.origin.jvm().dataType().json())) for e in exprs]
        return SparkFunction(self, positions, given, range(len(columns)), make, types)

    def both(self, parts: Sequence[Expr]) -> Call | None:
        """Conditions that all have to hold as one, in their order; None where Spark has not read all of them."""
        if not parts or not all(isinstance(p, Call) and p.origin is not None for p in parts):
            return None
        jvm: Any = self.spark._jvm
        first, *others = [p for p in parts if isinstance(p, Call)]
        whole = first
        for part in others:
            both = jvm.org.apache.spark.sql.catalyst.expressions.And(whole.origin.jvm(), part.origin.jvm())
            whole = Call("And", (whole, part), (), JvmReference(None, both))
        return whole

    def where(self, condition: Expr, value: Expr, dtype: pa.DataType) -> Call:
        """A value of a type where a condition holds, NULL elsewhere."""
        made = self._jvm_of(condition), self._jvm_of(value)
        origin = None
        if made[0] is not None and made[1] is not None:
            jvm: Any = self.spark._jvm
            expressions = jvm.org.apache.spark.sql.catalyst.expressions
            nothing = expressions.Literal(None, made[1].dataType())
            origin = JvmReference(None, expressions.If(made[0], made[1], nothing))
        return Call("If", (condition, value, Constant(None, dtype)), (), origin)

    def _jvm_of(self, expr: Expr) -> Any:
        """An expression as Spark has it; None where Spark has not read it."""
        jvm: Any = self.spark._jvm
        expressions = jvm.org.apache.spark.sql.catalyst.expressions
        if isinstance(expr, Column):
            field, declared = positional_schema([expr.type]).arrow.field(0), self.tables.declared.get(expr.id)
            given = spark_type(field if declared is None else with_spark_type(field, declared))
            dtype = jvm.org.apache.spark.sql.types.DataType.fromJson(given.json())
            return self._alias(expressions.Literal(None, dtype), expr.name, expr.id).toAttribute()
        if not isinstance(expr, Call):
            return None
        if expr.origin is not None:
            return expr.origin.jvm()
        args = [self._jvm_of(a) for a in expr.args]
        if expr.name not in ("And", "IsNotNull") or any(a is None for a in args):
            return None
        return getattr(expressions, expr.name)(*args)

    def expression(self, origin: JvmReference, columns: Sequence[Column], positions: Sequence[int]) -> Compiled:
        """An expression over columns of a frame, evaluated by Spark."""
        jvm: Any = self.spark._jvm
        expr = origin.jvm()
        dtype = from_json(json.loads(expr.dataType().json()))

        def run(frame: ColumnFrame) -> pa.Array:
            if not frame.rows:
                return pa.array([], dtype)
            leaf = self.relation(columns, [frame.columns[p] for p in positions], range(frame.rows))
            return _by_row(self.run(self._projected(jvm, leaf, expr)), dtype, frame.rows)

        return Compiled(dtype, run, True)

    def function(self, call: Call, args: Sequence[Compiled | None], inside: Mapping[int, Compiled]) -> Compiled:
        """A function that Spark evaluates over arguments computed here; None in `args`: the plan's argument stays.

        `inside`: by number, the outer columns that its lambdas read.
        """
        jvm: Any = self.spark._jvm
        expr = call.origin.jvm()
        dtype = from_json(json.loads(expr.dataType().json()))
        computed = [*(a for a in args if a is not None), *inside.values()]
        columns = [Column(_UNKNOWN + i, f"arg{i}", a.type) for i, a in enumerate(computed)]
        declared = [type_json(expr.children().apply(i)) for i, a in enumerate(args) if a is not None]
        declared += [self.tables.declared.get(number) for number in inside]

        def run(frame: ColumnFrame) -> pa.Array:
            if not frame.rows:
                return pa.array([], dtype)
            leaf = self.relation(columns, [a.array(frame) for a in computed], range(frame.rows), declared)
            output = [leaf.output().apply(i) for i in range(len(computed))]
            attributes = dict(zip(inside, output[len(output) - len(inside) :], strict=True))
            values = iter(output)
            children = jvm.java.util.ArrayList()
            for i in range(expr.children().size()):
                as_read = expr.children().apply(i)
                children.add(next(values) if args[i] is not None else _over(jvm, call.args[i], as_read, attributes))
            over = expr.withNewChildren(_seq(jvm, children))
            return _by_row(self.run(self._projected(jvm, leaf, over)), dtype, frame.rows)

        return Compiled(dtype, run, True)

    def constant(self, origin: JvmReference) -> pa.Scalar:
        """The value of an expression without columns."""
        jvm: Any = self.spark._jvm
        expr = origin.jvm()
        leaf = self.relation((), (), range(1))
        dtype = from_json(json.loads(expr.dataType().json()))
        return _by_row(self.run(self._projected(jvm, leaf, expr)), dtype, 1)[0]

    def _projected(self, jvm: Any, leaf: Any, expr: Any) -> Any:
        return self.project([leaf.output().last(), self._alias(expr, "value")], leaf)

    def project(self, named: Sequence[Any], plan: Any) -> Any:
        """Some named expressions over a plan."""
        jvm: Any = self.spark._jvm
        return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(_seq(jvm, _list(jvm, named)), plan)

    def _alias(self, expr: Any, name: str, number: int | None = None) -> Any:
        """An expression as a column, of a number of its own unless one is given."""
        jvm: Any = self.spark._jvm
        expressions = jvm.org.apache.spark.sql.catalyst.expressions
        no_names = _seq(jvm, jvm.java.util.ArrayList())
        fresh = expressions.NamedExpression.newExprId()
        identity = fresh if number is None else expressions.ExprId(number, fresh.jvmId())
        return expressions.Alias(expr, name, identity, no_names, jvm.scala.Option.empty(), no_names)

    def aggregate(
        self, call: Aggregation, types: Sequence[pa.DataType]
    ) -> tuple[Callable[[Any, Sequence[pa.Array], Any], pa.Array], pa.DataType]:
        """An aggregate function over groups of rows, as `operators.collect.Recompute` calls it, and its type."""
        jvm: Any = self.spark._jvm
        function = call.call.origin.jvm()
        dtype = from_json(json.loads(function.dataType().json()))
        columns = [Column(_UNKNOWN + i, f"arg{i}", t) for i, t in enumerate(types)]
        args = call.call.args
        kept = [isinstance(a, Constant) for a in args]
        declared = [type_json(function.children().apply(i)) for i in range(len(columns))]
        catalyst = jvm.org.apache.spark.sql.catalyst

        def aggregated(arrays: Sequence[pa.Array], group: Any, grouped: bool) -> pa.Table:
            """The aggregate by group, or over all rows: then there is one row even for none."""
            leaf = self.relation(columns, arrays, group, declared)
            children = jvm.java.util.ArrayList()
            for i, k in enumerate(kept):
                as_read = function.children().apply(i)
                # Equal arguments become one column: DISTINCT and ORDER BY have to be over the same expression.
                children.add(as_read if k else _argument(jvm, as_read, leaf.output().apply(args.index(args[i]))))
            over = function.withNewChildren(_seq(jvm, children))
            complete = getattr(catalyst.expressions.aggregate, "Complete$").__getattr__("MODULE$")
            fresh = catalyst.expressions.NamedExpression.newExprId
            nothing, no_names = jvm.scala.Option.empty(), _seq(jvm, jvm.java.util.ArrayList())
            whole = catalyst.expressions.aggregate.AggregateExpression(over, complete, call.distinct, nothing, fresh())
            by, outputs = jvm.java.util.ArrayList(), jvm.java.util.ArrayList()
            if grouped:
                by.add(leaf.output().last())
                outputs.add(leaf.output().last())
            outputs.add(catalyst.expressions.Alias(whole, "value", fresh(), no_names, nothing, no_names))
            return self.run(catalyst.plans.logical.Aggregate(_seq(jvm, by), _seq(jvm, outputs), leaf, nothing))

        def evaluate(starts: Any, arrays: Sequence[pa.Array], weights: Any) -> pa.Array:
            groups = len(starts) - 1
            of_row = np.repeat(np.arange(groups), np.diff(starts))
            rows = np.repeat(np.arange(len(of_row)), np.maximum(weights, 0))
            table = aggregated([a.take(pa.array(rows)) for a in arrays], of_row[rows], True)
            values = _array(table.column(1)).cast(dtype)
            at = np.full(groups, -1, np.int64)
            at[table.column(0).to_numpy()] = np.arange(table.num_rows)
            if (at < 0).any():  # groups without rows: the result is not NULL for every function, a count is 0
                none = aggregated([a.slice(0, 0) for a in arrays], [], False)
                values = pa.concat_arrays([values, _array(none.column(0)).cast(dtype)])
                at[at < 0] = len(values) - 1
            return values.take(pa.array(at))

        return evaluate, dtype

    def over_rows(
        self, origin: JvmReference, columns: Sequence[Column]
    ) -> tuple[Callable[[Any], list[pa.Array]], list[pa.DataType]]:
        """A function that evaluates a node over all given rows, and the types of the node's columns."""
        plan = origin.jvm()
        output = plan.output()
        self.declare_inputs(origin)
        own = [from_json(json.loads(output.apply(i).dataType().json())) for i in range(output.size())]
        added = own[plan.child().output().size() :]
        types = [c.type for c in columns] + added

        def evaluate(given: Any) -> list[pa.Array]:
            leaf = self.relation(columns, given[0], None)
            table = self.run(self.node(origin, [leaf]))
            return [_array(table.column(i)).cast(t) for i, t in enumerate(types)]

        return evaluate, types

    def inputs(self, origin: JvmReference) -> list[list[tuple[int, str]]]:
        """The numbers and names of the columns of each input of a node; a column may be there more than once."""
        children = origin.jvm().children()
        outputs = [children.apply(i).output() for i in range(children.size())]
        return [[(int(o.apply(i).exprId().id()), str(o.apply(i).name())) for i in range(o.size())] for o in outputs]

    def over_all(
        self, origin: JvmReference, columns: Sequence[Sequence[Column]], inputs: Sequence[Sequence[tuple[int, str]]]
    ) -> Callable[[Any], list[pa.Array]]:
        """A node over everything that its inputs hold: functions see the columns, names and order of `inputs`."""
        self.declare_inputs(origin)
        named = []
        for given, shown in zip(columns, inputs, strict=True):
            names = dict(shown)
            named.append([Column(c.id, names.get(c.id, c.name), c.type) for c in given])

        def leaf_of(of: Sequence[Column], arrays: Sequence[pa.Array], shown: Sequence[tuple[int, str]]) -> Any:
            leaf = self.relation(of, arrays, None)
            if len(of) >= len(shown):
                return leaf
            output = {column.id: leaf.output().apply(i) for i, column in enumerate(of)}
            return self.project([output[number] for number, _ in shown], leaf)

        def evaluate(given: Any) -> list[pa.Array]:
            leaves = [leaf_of(*of) for of in zip(named, given, inputs, strict=True)]
            table = self.run(self.node(origin, leaves))
            return [_array(c) for c in table.columns]

        return evaluate

    def flat_map(
        self, origin: JvmReference, numbers: Sequence[int], kept: Sequence[int], made: Sequence[Column],
        arguments: Sequence[int | None] | None = None,
    ) -> SparkFunction:  # fmt: skip
        """A node that treats rows one by one, as a function; it returns kept columns of its input and the node's own.

        `numbers`: the ids of the input columns. `arguments`: the positions of a generator's arguments; None leaves an
        argument as it is.
        """

        self.declare_inputs(origin)

        def make(leaf: Any) -> tuple[Any, list[Any]]:
            plan = self.node(origin, [leaf]) if arguments is None else self._generating(origin, leaf, arguments)
            output = plan.output()
            by_id = {int(output.apply(i).exprId().id()): output.apply(i) for i in range(output.size())}
            return plan, [by_id[column.id] for column in made]

        return SparkFunction(self, range(len(numbers)), numbers, kept, make, [c.type for c in made])

    def node(self, origin: JvmReference, leaves: Sequence[Any]) -> Any:
        """A node of the plan over other children."""
        jvm: Any = self.spark._jvm
        return origin.jvm().withNewChildren(_seq(jvm, _list(jvm, leaves)))

    def _generating(self, origin: JvmReference, leaf: Any, arguments: Sequence[int | None]) -> Any:
        """A generator over columns of a relation."""
        jvm: Any = self.spark._jvm
        node = origin.jvm()
        given = node.generator()
        children = jvm.java.util.ArrayList()
        for i, at in enumerate(arguments):
            children.add(given.children().apply(i) if at is None else leaf.output().apply(at))
        return jvm.org.apache.spark.sql.catalyst.plans.logical.Generate(
            given.withNewChildren(_seq(jvm, children)), _seq(jvm, jvm.java.util.ArrayList()), node.outer(),
            node.qualifier(), node.generatorOutput(), leaf,
        )  # fmt: skip


class SparkFunction:
    """An external function: columns that Spark computes row by row from the columns of a stream, beside passed ones.

    `answer` evaluates it on Arrow arrays; `frame` adds it to a DataFrame, as a part of a larger plan.
    """

    def __init__(
        self, spark: SparkEvaluator, positions: Sequence[int], numbers: Sequence[int], kept: Sequence[int],
        make: Callable[[Any], tuple[Any, list[Any]]], types: Sequence[pa.DataType],
    ) -> None:  # fmt: skip
        """The function reads the columns at `positions`, under the ids `numbers`; those at `kept` go out first.

        `make` takes a leaf with the columns that are read, and gives a plan over it and the computed columns.
        """
        self._spark = spark
        self._positions = positions
        self._numbers = numbers
        self.kept = list(kept)
        self._make = make
        self.types = list(types)

    def answer(self, arrays: Sequence[pa.Array]) -> tuple[list[pa.Array], Any]:
        """The columns that go out, and the row that each row comes from, as a flat map gives them."""
        given = [arrays[p] for p in self._positions]
        columns = [Column(n, f"c{i}", a.type) for i, (n, a) in enumerate(zip(self._numbers, given, strict=True))]
        leaf = self._spark.relation(columns, given, range(len(arrays[0])))
        plan, made = self._make(leaf)
        table = self._spark.run(self._spark.project([leaf.output().last(), *made], plan))
        origin = table.column(0).to_numpy().astype(np.int64)
        rows = pa.array(origin)
        values = [_array(table.column(1 + i)).cast(t) for i, t in enumerate(self.types)]
        return [*(arrays[k].take(rows) for k in self.kept), *values], origin

    def _declared(self, frame: DataFrame) -> DataFrame:
        """Cast the columns that the function reads to their Spark types, where Python workers have returned others."""
        from pyspark.sql.functions import expr

        for position, number in zip(self._positions, self._numbers, strict=True):
            given = self._spark.tables.declared.get(number)
            field = frame.schema.fields[position]
            if given is None or field.dataType.jsonValue() == given:
                continue
            name = f"`{field.name}`"
            if not isinstance(given, str) or given == "variant":
                raise DbsparkError(
                    f"on shards Spark cannot evaluate a function of a column of type {json.dumps(given)}, which Python "
                    "workers cannot give it back; apply the function to the column of a table, or open the pipeline "
                    "without shards"
                )
            value = f"make_ym_interval(0, {name})" if re.search("year|month", given) else name
            frame = frame.withColumn(field.name, expr(f"CAST({value} AS {given})"))
        return frame

    def frame(self, frame: DataFrame, beside: int) -> DataFrame:
        """The function's output on a DataFrame of the stream's columns, and the last `beside` columns as they are."""
        from pyspark.sql import DataFrame as ColumnFrame

        below = self._declared(frame)._jdf.queryExecution().analyzed()
        output = [below.output().apply(i) for i in range(below.output().size())]
        named = [self._spark._alias(output[p], f"c{p}", n) for p, n in zip(self._positions, self._numbers, strict=True)]
        plan, made = self._make(self._spark.project([*named, *output], below))
        carried = [*(output[k] for k in self.kept), *made, *output[len(output) - beside :]]
        session = frame.sparkSession
        return ColumnFrame(jvm_dataframe(session, self._spark.project(carried, plan)), session)


def type_json(expr: Any) -> Any:
    """The Spark type of an expression in the JVM, as JSON."""
    return json.loads(expr.dataType().json())


def _argument(jvm: Any, as_read: Any, value: Any) -> Any:
    """A column as an argument of an aggregate; in the place of an ORDER BY, with its direction."""
    if as_read.getClass().getSimpleName() != "SortOrder":
        return value
    return as_read.withNewChildren(_seq(jvm, _list(jvm, [value])))


def _list(jvm: Any, items: Sequence[Any]) -> Any:
    out = jvm.java.util.ArrayList()
    for item in items:
        out.add(item)
    return out


def _substitutes(expr: Expr, strange: frozenset[int]) -> bool:
    """Whether the columns `strange` can be substituted in Spark's object that an expression was read from."""
    if not isinstance(expr, Call) or not columns_in([expr]) & strange:
        return True
    if expr.origin is None or expr.origin.jvm().children().size() > len(expr.args):
        return False
    return all(_substitutes(a, strange) for a in expr.args)


def _seq(jvm: Any, items: Any) -> Any:
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq(items)


def _over(jvm: Any, expr: Expr, as_read: Any, attributes: Mapping[int, Any]) -> Any:
    """An expression with attributes in the place of some of its columns."""
    if isinstance(expr, Column):
        return attributes.get(expr.id, as_read)
    if not isinstance(expr, Call) or not columns_in([expr]) & set(attributes):
        return as_read
    found = expr.origin.jvm()
    children = jvm.java.util.ArrayList()
    for i in range(found.children().size()):
        children.add(_over(jvm, expr.args[i], found.children().apply(i), attributes))
    return found.withNewChildren(_seq(jvm, children))


def _by_row(table: pa.Table, dtype: pa.DataType, rows: int) -> pa.Array:
    """Column 1 in the order of the row numbers in column 0."""
    numbers = table.column(0).to_numpy()
    values = _array(table.column(1)).cast(dtype)
    if len(numbers) > 1 and not np.all(numbers[1:] > numbers[:-1]):
        values = values.take(pa.array(np.argsort(numbers)))
    assert len(values) == rows
    return values


def _array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
