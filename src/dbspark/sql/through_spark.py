"""What we have no kernel for, Spark evaluates on the rows that are at hand.

A piece of the optimised plan (an expression, or a node) is put over a small relation that holds those rows under the
column numbers that the piece refers to, and run as an ordinary Spark query. It costs a Spark job, some tens of
milliseconds, on as many rows as the change has; the answer is Spark's own by definition.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dbspark.sql.catalyst import Origin, of_rows
from dbspark.sql.expressions.rules import Compiled, Frame
from dbspark.sql.plan import Aggregation, Call, Column, Constant, Expr
from dbspark.sql.shapes import columns_in
from dbspark.sql.types import from_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROW = "__row"
"""The column that says which row a result belongs to."""


class Spark:
    """Evaluates pieces of plans in a session."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def relation(self, columns: Sequence[Column], arrays: Sequence[pa.Array], row: Any) -> Any:
        """A logical plan that holds rows under given column numbers; with the number of each row, if asked for."""
        jvm: Any = self.spark._jvm
        fields = [pa.field(f"c{i}", a.type) for i, a in enumerate(arrays)]
        given = list(arrays)
        if row is not None:
            fields.append(pa.field(ROW, pa.int64()))
            given.append(pa.array(row, pa.int64()))
        frame = self.spark.createDataFrame(pa.Table.from_arrays(given, schema=pa.schema(fields)))
        leaf = frame._jdf.queryExecution().analyzed()
        output = leaf.output()
        expressions = jvm.org.apache.spark.sql.catalyst.expressions
        named = jvm.java.util.ArrayList()
        nothing = jvm.scala.Option.empty()
        no_names = _seq(jvm, jvm.java.util.ArrayList())
        for i, column in enumerate(columns):
            identity = expressions.ExprId(column.id, self._jvm_id())
            named.add(expressions.Alias(output.apply(i), column.name, identity, no_names, nothing, no_names))
        if row is not None:
            named.add(output.apply(len(columns)))
        logical = jvm.org.apache.spark.sql.catalyst.plans.logical
        return logical.Project(_seq(jvm, named), leaf)

    def run(self, plan: Any) -> pa.Table:
        """The rows of a logical plan, with columns by position."""
        from pyspark.sql import DataFrame

        frame = DataFrame(of_rows(self.spark, plan), self.spark)
        return frame.toDF(*(f"c{i}" for i in range(len(frame.columns)))).toArrow()

    def expression(self, origin: Origin, columns: Sequence[Column], positions: Sequence[int]) -> Compiled:
        """An expression over columns of a frame, evaluated by Spark."""
        jvm: Any = self.spark._jvm
        expr = origin.jvm()
        dtype = from_json(json.loads(expr.dataType().json()))

        def run(frame: Frame) -> pa.Array:
            if not frame.rows:
                return pa.array([], dtype)
            leaf = self.relation(columns, [frame.columns[p] for p in positions], range(frame.rows))
            return _by_row(self.run(self._projected(jvm, leaf, expr)), dtype, frame.rows)

        return Compiled(dtype, run, True)

    def function(self, call: Call, args: Sequence[Compiled | None], inside: Mapping[int, Compiled]) -> Compiled:
        """A function over values that we compute; where there is none, an argument stays as the plan has it.

        `inside` are the columns in its lambdas, by number.
        """
        jvm: Any = self.spark._jvm
        expr = call.origin.jvm()
        dtype = from_json(json.loads(expr.dataType().json()))
        computed = [*(a for a in args if a is not None), *inside.values()]
        columns = [Column(10**9 + i, f"arg{i}", a.type) for i, a in enumerate(computed)]

        def run(frame: Frame) -> pa.Array:
            if not frame.rows:
                return pa.array([], dtype)
            leaf = self.relation(columns, [a.array(frame) for a in computed], range(frame.rows))
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

    def constant(self, origin: Origin) -> pa.Scalar:
        """The value of an expression without columns."""
        jvm: Any = self.spark._jvm
        expr = origin.jvm()
        leaf = self.relation((), (), range(1))
        dtype = from_json(json.loads(expr.dataType().json()))
        return _by_row(self.run(self._projected(jvm, leaf, expr)), dtype, 1)[0]

    def _projected(self, jvm: Any, leaf: Any, expr: Any) -> Any:
        expressions = jvm.org.apache.spark.sql.catalyst.expressions
        nothing = jvm.scala.Option.empty()
        no_names = _seq(jvm, jvm.java.util.ArrayList())
        fresh = jvm.org.apache.spark.sql.catalyst.expressions.NamedExpression.newExprId()
        named = jvm.java.util.ArrayList()
        named.add(leaf.output().last())
        named.add(expressions.Alias(expr, "value", fresh, no_names, nothing, no_names))
        return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(_seq(jvm, named), leaf)

    def aggregate(
        self, call: Aggregation, types: Sequence[pa.DataType]
    ) -> tuple[Callable[[Any, Sequence[pa.Array], Any], pa.Array], pa.DataType]:
        """An aggregate function over groups of rows, as `operators.collect.Recompute` calls it, and its type."""
        jvm: Any = self.spark._jvm
        function = call.call.origin.jvm()
        dtype = from_json(json.loads(function.dataType().json()))
        columns = [Column(10**9 + i, f"arg{i}", t) for i, t in enumerate(types)]
        kept = [isinstance(a, Constant) for a in call.call.args]
        catalyst = jvm.org.apache.spark.sql.catalyst

        def aggregated(arrays: Sequence[pa.Array], group: Any, grouped: bool) -> pa.Table:
            """The aggregate by group, or over all rows: then there is one row even for none."""
            leaf = self.relation(columns, arrays, group)
            children = jvm.java.util.ArrayList()
            for i, k in enumerate(kept):
                children.add(function.children().apply(i) if k else leaf.output().apply(i))
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
            if (at < 0).any():  # no rows are not nothing to every function: counts are 0
                none = aggregated([a.slice(0, 0) for a in arrays], [], False)
                values = pa.concat_arrays([values, _array(none.column(0)).cast(dtype)])
                at[at < 0] = len(values) - 1
            return values.take(pa.array(at))

        return evaluate, dtype

    def over_rows(
        self, origin: Origin, columns: Sequence[Column]
    ) -> tuple[Callable[[Any], list[pa.Array]], list[pa.DataType]]:
        """A node over all the rows it is given; and the types of its columns."""
        plan = origin.jvm()
        output = plan.output()
        own = [from_json(json.loads(output.apply(i).dataType().json())) for i in range(output.size())]
        added = own[plan.child().output().size() :]
        types = [c.type for c in columns] + added

        def evaluate(given: Any) -> list[pa.Array]:
            leaf = self.relation(columns, given[0], None)
            table = self.run(self.node(origin, [leaf]))
            return [_array(table.column(i)).cast(t) for i, t in enumerate(types)]

        return evaluate, types

    def over_all(self, origin: Origin, columns: Sequence[Sequence[Column]]) -> Callable[[Any], list[pa.Array]]:
        """A node over everything that its inputs hold."""

        def evaluate(given: Any) -> list[pa.Array]:
            leaves = [self.relation(c, arrays, None) for c, arrays in zip(columns, given, strict=True)]
            table = self.run(self.node(origin, leaves))
            return [_array(c) for c in table.columns]

        return evaluate

    def flat_map(
        self, origin: Origin, columns: Sequence[Column], made: Sequence[Column],
        arguments: Sequence[int | None] | None = None,
    ) -> Callable[[Sequence[pa.Array]], tuple[list[pa.Array], Any]]:  # fmt: skip
        """A node that treats rows one by one: its columns, by number, and the row that each row comes from.

        With `arguments`, it is a generator, over columns at those positions; None leaves an argument as it is.
        """
        jvm: Any = self.spark._jvm

        def evaluate(arrays: Sequence[pa.Array]) -> tuple[list[pa.Array], Any]:
            leaf = self.relation(columns, arrays, range(len(arrays[0])))
            row = leaf.output().last()
            plan = self.node(origin, [leaf]) if arguments is None else self._generating(origin, leaf, arguments)
            output = plan.output()
            by_id = {int(output.apply(i).exprId().id()): output.apply(i) for i in range(output.size())}
            wanted = jvm.java.util.ArrayList()
            wanted.add(row)
            for column in made:
                wanted.add(by_id[column.id])
            project = jvm.org.apache.spark.sql.catalyst.plans.logical.Project(_seq(jvm, wanted), plan)
            table = self.run(project)
            values = [_array(table.column(1 + i)).cast(c.type) for i, c in enumerate(made)]
            return values, table.column(0).to_numpy().astype(np.int64)

        return evaluate

    def node(self, origin: Origin, leaves: Sequence[Any]) -> Any:
        """A node of the plan over other children."""
        jvm: Any = self.spark._jvm
        children = jvm.java.util.ArrayList()
        for leaf in leaves:
            children.add(leaf)
        return origin.jvm().withNewChildren(_seq(jvm, children))

    def _generating(self, origin: Origin, leaf: Any, arguments: Sequence[int | None]) -> Any:
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

    def _jvm_id(self) -> Any:
        jvm: Any = self.spark._jvm
        return jvm.org.apache.spark.sql.catalyst.expressions.NamedExpression.newExprId().jvmId()


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
