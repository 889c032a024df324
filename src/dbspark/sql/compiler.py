"""Compiles a logical plan to a circuit.

Every relational node becomes streams of a `Builder`. Columns of a stream are named by position (`c0`, `c1` …), so equal
sub-queries give equal nodes, whatever the names and expression ids of their columns. A list of expressions is one
function, projections that only select columns cost nothing, and a filter below a projection is one operator with it.

Where there is no incremental rule, Spark recomputes: the groups that a tick touches where there are groups, else
everything. A `MaintenanceNote` for every operator says how it is maintained, and why not incrementally.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from dbspark.circuit.builder import Builder
from dbspark.circuit.graph import Stream
from dbspark.columnar import Batch, SortKey
from dbspark.columnar.schema import Schema
from dbspark.errors import DbsparkError
from dbspark.operators.constant import Constant as ConstantRows
from dbspark.operators.function import Function
from dbspark.operators.recompute import RecomputeGroups
from dbspark.sql import generators, identity, windows
from dbspark.sql import plan as p
from dbspark.sql.aggregate_compiler import AggregateCompiler
from dbspark.sql.catalyst_nodes import SEES_NAMES
from dbspark.sql.column_functions import expand_function, generate_function
from dbspark.sql.join_compiler import JoinCompiler
from dbspark.sql.node_compiler import bucket_column
from dbspark.sql.plan_analysis import (
    columns_in,
    has_no_subquery,
    independent_parts,
    order_spec,
    push_below_expand,
    row_number_limit,
    window_function_call,
    window_function_name,
)
from dbspark.sql.relations import MaintenanceMode, MaintenanceNote, Relation, Scope, positional_schema, reads_partitions
from dbspark.sql.timewindows import pane

MAX_BUCKETED_ROWS = 1_000
"""The largest LIMIT for which shards first find the first rows of each bucket; each bucket has as many candidates."""


class PlanCompiler(JoinCompiler, AggregateCompiler):
    """Compiles plans into one graph."""

    def _compiled(self, node: p.Node, scope: Scope, needed: frozenset[int] | None) -> Relation:
        return _COMPILE[type(node)](self, node, scope, needed)

    def _table(self, node: p.Table, scope: Scope, needed: frozenset[int] | None) -> Relation:
        if node.name not in scope.tables:
            raise DbsparkError(f"no table or view {node.name!r}; there are {', '.join(scope.tables) or 'none'}")
        stream = scope.tables[node.name]
        ids = tuple(c.id for c in node.columns)
        if id(node) in self._buckets and self.homes is not None:
            home = self.homes.get(node.name) or stream.schema.names
            stream = scope.builder.bucket(stream, home)
            ids = (*ids, self._buckets[id(node)])
        if needed is not None and (needed & set(ids)) != set(ids):
            # Project to the columns that are needed; equal projections become one node.
            keep = [i for i, number in enumerate(ids) if number in needed] or [0]
            stream, ids = self._columns(scope.builder, stream, keep), tuple(ids[i] for i in keep)
        if positional_schema(stream.schema.types).types == stream.schema.types:
            # Rows without columns are still rows: one column stays.
            return Relation(self._columns(scope.builder, stream, range(max(len(ids), 1))), ids)
        # From here on nested types allow NULLs inside, so equal types are equal in this too.
        return Relation(self._positional(scope.builder, stream), ids)

    def _values(self, node: p.Values, scope: Scope, needed: frozenset[int] | None) -> Relation:
        schema = positional_schema([c.type for c in node.columns] or [pa.int64()])
        data = node.data.rename_columns(list(schema.names)).cast(schema.arrow)
        rows = Batch.from_arrow(data, SortKey(schema))
        stream = scope.builder.graph.add(ConstantRows(rows), [], [], "delta")
        return Relation(stream, self._ids(node.columns))

    def _project(self, node: p.Project, scope: Scope, needed: frozenset[int] | None) -> Relation:
        outputs = [n for n in node.outputs if needed is None or n.id in needed]
        child: p.Node = node.child
        condition: p.Expr | None = None
        if (
            isinstance(child, p.Filter)
            and not isinstance(push_below_expand(child), p.Expand)
            and id(child) not in scope.known
            and has_no_subquery(child.condition)
            and not isinstance(child.child, p.Window)  # a filter on ranks is the window's business
        ):
            condition, child = child.condition, child.child
        exprs = [n.expr for n in outputs]
        buckets = [n for n in self._buckets.values() if needed is None or n in needed]
        below = columns_in(exprs if condition is None else [*exprs, condition]).union(buckets)
        rel = self.relation(child, scope, below)
        rel, exprs = self._without_subqueries(rel, exprs, scope)
        made = [
            *zip([n.id for n in outputs], exprs, strict=True),
            *((n, bucket_column(n)) for n in buckets if n in rel.ids),
        ]
        return self._map_expressions(scope, rel, made, condition)

    def _filter(self, node: p.Filter, scope: Scope, needed: frozenset[int] | None) -> Relation:
        pushed = push_below_expand(node)
        if isinstance(pushed, p.Expand) and id(node.child) not in scope.known:
            return self._expand(pushed, scope, needed)
        below = None if needed is None else needed | columns_in([node.condition])
        limit, exact = row_number_limit(node)
        window = node.child
        if limit and isinstance(window, p.Window):
            rank = window.functions[0][0]
            if exact and (limit == 1 or (needed is not None and rank not in needed)):
                # The query asks for the first rows only, not for their numbers: a top without a window function.
                rel = self._window(window, scope, below, limit, numbered=False)
                every: list[tuple[int, p.Expr]] = [(c.id, c) for c in rel.columns()]
                ranks: list[tuple[int, p.Expr]] = [(rank, p.Constant(1, pa.int32()))]
                return (
                    rel
                    if needed is not None and rank not in needed
                    else self._map_expressions(scope, rel, every + ranks)
                )
            rel = self._window(window, scope, below, limit)
        else:
            rel = self.relation(node.child, scope, below)
        width = len(rel.ids)
        rel, (condition,) = self._without_subqueries(rel, [node.condition], scope)
        kept = self._filter_rows(scope.builder, rel, condition)
        if len(rel.ids) > width:
            kept = Relation(self._choose(scope.builder, kept.stream, range(width)), rel.ids[:width])
        return kept

    def _union(self, node: p.Union, scope: Scope, needed: frozenset[int] | None) -> Relation:
        streams = []
        for child in node.children:
            rel = self.relation(child, scope)
            streams.append(self._choose(scope.builder, rel.stream, self._plan_columns(rel) or [0]))
        # Spark's branches have the same types, except for what may be NULL.
        return Relation(scope.builder.union(*streams), self._ids(node.columns))

    def _expand(self, node: p.Expand, scope: Scope, needed: frozenset[int] | None) -> Relation:
        kept = [i for i, c in enumerate(node.columns) if needed is None or c.id in needed] or [0]
        columns = [node.columns[i] for i in kept]
        exprs = [row[i] for row in node.projections for i in kept]
        rel = self.relation(node.child, scope, columns_in(exprs))
        rel, exprs = self._without_subqueries(rel, exprs, scope)
        paned = pane(exprs)
        if paned is not None:  # times in the same pane are in the same windows: few rows are left to expand
            time, begin = paned
            rel = self._map_expressions(scope, rel, [(c.id, begin if c.id == time.id else c) for c in rel.columns()])
            rel = replace(rel, stream=scope.builder.consolidate(rel.stream))
        width = len(columns)
        compiled = self.compiler(rel).compile_all(exprs)
        projections = [exprs[i : i + width] for i in range(0, len(exprs), width)]
        rows = [compiled[i : i + width] for i in range(0, len(exprs), width)]
        types = []
        for i, column in enumerate(columns):
            found = [row[i].type for row in rows if not pa.types.is_null(row[i].type)]
            types.append(found[0] if found else column.type)
        schema = positional_schema(types)
        names = {number: f"c{i}" for number, i in rel.positions.items()}
        label = "; ".join(", ".join(p.text(e, names) for e in row) for row in projections)
        made = identity.ExpandRows(self.context, tuple(identity.trees(row, rel.positions) for row in projections))
        function = Function(expand_function(rows, schema.types), self._named(f"expand {label}"), identity=made)
        return Relation(scope.builder.flat_map(rel.stream, function, schema), tuple(c.id for c in columns))

    def _generate(self, node: p.Generate, scope: Scope, needed: frozenset[int] | None) -> Relation:
        rel = self.relation(node.child, scope)
        own = self._plan_columns(rel)
        kept = [own[i] for i in node.required if i < len(own)]
        rel, args = self._without_subqueries(rel, node.generator.args, scope)
        as_read = tuple(args) == node.generator.args
        if not as_read:  # Spark does not know the columns that subqueries have become: arguments are columns of ours
            rel, columns = self._with_keys(scope, rel, [a for a in args if not isinstance(a, p.Constant)])
            computed = (p.Column(rel.ids[c], "", rel.types[c]) for c in columns)
            args = [a if isinstance(a, p.Constant) else next(computed) for a in args]
            node = replace(node, generator=replace(node.generator, args=tuple(args)))
        ids = (*(rel.ids[i] for i in kept), *(c.id for c in node.columns))
        if not ids:  # rows without columns are still rows: one column stays
            kept, ids = [0], (self._filler(),)
        names = {number: f"c{i}" for number, i in rel.positions.items()}
        label = f"{'outer ' if node.outer else ''}{p.text(node.generator, names)} beside {kept}"
        schema = positional_schema([*(rel.types[i] for i in kept), *(c.type for c in node.columns)])
        made = identity.GenerateRows(
            self.context, (identity.tree(node.generator, rel.positions), node.outer, tuple(kept))
        )
        generator = generators.compile_generator(node, self.compiler(rel))
        if generator is None:
            spark_function = generators.generator_by_spark(node, rel.ids, kept, self.spark, as_read)
            self._note(
                MaintenanceNote(
                    node.generator.name, "incremental", "THROUGH_SPARK", "Spark evaluates it on each change"
                )
            )
            by_spark = Function(spark_function.answer, self._named(label), dict(enumerate(kept)), identity=made)
            return Relation(scope.builder.external_function(rel.stream, by_spark, schema, spark_function), ids)
        function = Function(
            generate_function(generator, kept), self._named(label), dict(enumerate(kept)), identity=made
        )
        return Relation(scope.builder.flat_map(rel.stream, function, schema), ids)

    def _window(
        self,
        node: p.Window,
        scope: Scope,
        needed: frozenset[int] | None,
        limit: int | None = None,
        numbered: bool = True,
    ) -> Relation:
        """A window; with `limit`, over the first rows of partitions, or just those if they are not to be `numbered`."""
        b = scope.builder
        exprs: list[p.Expr] = [*node.partition, *(o.expr for o in node.order)]
        for _, _, call in node.functions:
            inner = call.function.call if isinstance(call.function, p.Aggregation) else call.function
            # A constant is a parameter (offset, default), unless it is the first argument: that is a column.
            exprs += [a for i, a in enumerate(inner.args) if i == 0 or not isinstance(a, p.Constant)]
            if isinstance(call.function, p.Aggregation) and call.function.where is not None:
                exprs.append(call.function.where)
        mine = {number for number, _, _ in node.functions}
        below = None if needed is None else (needed - mine) | columns_in(exprs)
        rel = self.relation(node.child, scope, below)
        width = len(rel.ids)
        rel, columns = self._with_keys(scope, rel, exprs)
        at = dict(zip(exprs, columns, strict=True))
        partition = [f"c{at[e]}" for e in node.partition]
        order = [order_spec(f"c{at[o.expr]}", o) for o in node.order]
        functions = []
        for _, _, call in node.functions:
            inner = call.function.call if isinstance(call.function, p.Aggregation) else call.function
            args = [at.get(a, -1) for a in inner.args]
            functions.append(
                windows.compile_window_function(call, args, [rel.types[c] if c >= 0 else pa.null() for c in args])
            )
        stream = rel.stream
        if limit is not None:
            stream = b.top(stream, partition, order, limit)
            self._note(MaintenanceNote(f"first {limit} rows of each partition", "incremental"))
            if not numbered:
                return Relation(self._choose(b, stream, range(width)), rel.ids[:width])
        ids = (*rel.ids, *(number for number, _, _ in node.functions))
        missing = [
            window_function_name(call) for (_, _, call), f in zip(node.functions, functions, strict=True) if f is None
        ]
        if missing:
            if limit is not None:
                return self._window(node, scope, needed)
            why = f"no incremental rule for {', '.join(missing)}"
            mode: MaintenanceMode = "affected groups" if partition else "full"
            self._note(
                reads_partitions("window", mode, "WINDOW_FUNCTION", why)
                if partition
                else MaintenanceNote("window", mode, "WINDOW_FUNCTION", why)
            )
            made = self._recomputed_window(node, b, rel, partition)
        else:
            made = b.window(
                stream, partition, order,
                {f"c{len(rel.ids) + i}": f for i, f in enumerate(functions) if f is not None},
            )  # fmt: skip
            self._note(
                reads_partitions("window")
                if partition
                else reads_partitions("window", why="without PARTITION BY, a tick reads all rows")
            )
            made = self._positional(b, made)
        keep = [i for i, number in enumerate(ids) if i < width or i >= len(rel.ids)]
        return Relation(self._choose(b, made, keep), tuple(ids[i] for i in keep))

    def _recomputed_window(self, node: p.Window, b: Builder, rel: Relation, partition: Sequence[str]) -> Stream:
        columns = [p.Column(n, f"c{i}", t) for i, (n, t) in enumerate(zip(rel.ids, rel.types, strict=True))]
        evaluate, types = self.spark.over_rows(node.origin, columns)
        names = {number: f"c{i}" for number, i in rel.positions.items()}
        label = (
            "; ".join(f"{p.text(window_function_call(c), names)} {c.frame}" for _, _, c in node.functions)
            + "; "
            + "; ".join(f"{p.text(o.expr, names)} {o.descending} {o.nulls_last}" for o in node.order)
        )
        calls = tuple(identity.window_call(call, rel.positions) for _, _, call in node.functions)
        order = tuple(identity.order(o, rel.positions) for o in node.order)
        made = identity.SparkWindow(self.context, (calls, order))
        sort_key = SortKey(rel.stream.schema, [rel.stream.schema.index(c) for c in partition])
        function = Function(evaluate, self._named(label), identity=made)
        operator = RecomputeGroups([sort_key], function, positional_schema(types))
        return b.with_state(operator, [rel.stream], [sort_key])

    def _top(self, node: p.Top, scope: Scope, needed: frozenset[int] | None) -> Relation:
        b = scope.builder
        exprs = [o.expr for o in node.order]
        limit = node.limit if node.limit is not None else (1 << 62)
        bucket = self._bucket_below(node.child, scope) if limit + node.offset <= MAX_BUCKETED_ROWS else None
        below = None if needed is None else needed.union(columns_in(exprs), () if bucket is None else (bucket,))
        # A limit counts rows, and which ones are the first may depend on any column: nothing is dropped below it.
        rel = self.relation(node.child, scope, below if node.order else None)
        width = len(rel.ids)
        rel, exprs = self._without_subqueries(rel, exprs, scope)
        rel, columns = self._with_keys(scope, rel, exprs)
        order = [order_spec(f"c{c}", o) for c, o in zip(columns, node.order, strict=True)]
        stream = rel.stream
        if bucket is not None:
            rel = self._in_buckets(b, rel, bucket)
            stream = b.top(rel.stream, [rel.name(bucket)], order, limit + node.offset)
        stream = b.top(stream, [], order, limit, node.offset)
        self._note(MaintenanceNote(f"first {node.limit} rows", "incremental"))
        own = [i for i in range(width) if rel.ids[i] != bucket]
        return Relation(self._choose(b, stream, own), tuple(rel.ids[i] for i in own))

    def _loop(self, node: p.Loop, scope: Scope, needed: frozenset[int] | None) -> Relation:
        anchor = self.relation(node.anchor, scope)
        schema = positional_schema([c.type for c in node.columns])
        anchor_stream = self._fit(scope.builder, anchor.stream, schema)
        outside = list(independent_parts(node.step, lambda n: isinstance(n, p.LoopRef)))
        imports = [self.relation(n, scope) for n in outside]

        def body(inner: Builder, loop: Stream, start: Stream, *given: Stream) -> Stream:
            known = {id(n): Relation(s, r.ids) for n, s, r in zip(outside, given, imports, strict=True)}
            within = Scope(inner, {}, known, {node.number: Relation(loop, ())})
            step = self.relation(node.step, within)
            return inner.union(start, self._fit(inner, step.stream, schema))

        (out,) = scope.builder.fixpoint(
            {"loop": schema}, [anchor_stream, *(r.stream for r in imports)], body, node.limit or 10_000
        )
        self._note(MaintenanceNote("recursive union", "incremental"))
        return Relation(out, tuple(c.id for c in node.columns))

    def _loop_ref(self, node: p.LoopRef, scope: Scope, needed: frozenset[int] | None) -> Relation:
        return Relation(scope.loops[node.number].stream, tuple(c.id for c in node.columns))

    def recursive(self, name: str, node: p.Node, columns: Sequence[p.Column], schema: Schema, scope: Scope) -> Stream:
        """A view that names itself: the least set of rows that satisfies the query."""
        return self.recursive_group({name: (node, columns, schema)}, scope)[name]

    def recursive_group(
        self, views: Mapping[str, tuple[p.Node, Sequence[p.Column], Schema]], scope: Scope
    ) -> dict[str, Stream]:
        """Views that name themselves or one another, with set semantics."""
        names = list(views)
        plain = {n: positional_schema(views[n][2].types) for n in names}

        def refers(n: p.Node) -> bool:
            return isinstance(n, p.Table) and n.name in views

        outside = [n for name in names for n in independent_parts(views[name][0], refers)]
        imports = [self.relation(n, scope) for n in outside]

        def body(inner: Builder, *given: Stream) -> list[Stream]:
            loops = dict(zip(names, given, strict=False))
            known = {id(n): Relation(s, r.ids) for n, s, r in zip(outside, given[len(names) :], imports, strict=True)}
            out = []
            for name in names:
                node, columns, _ = views[name]
                within = Scope(inner, loops, known)
                rel = self.relation(node, within)
                ordered = self._choose(inner, rel.stream, [rel.position(c.id) for c in columns])
                out.append(inner.distinct(self._fit(inner, ordered, plain[name])))
            return out

        made = scope.builder.fixpoint(plain, [r.stream for r in imports], body)
        self._note(MaintenanceNote(f"recursive view {', '.join(names)}", "incremental"))
        return dict(zip(names, made, strict=True))

    def _fit(self, b: Builder, stream: Stream, schema: Schema) -> Stream:
        if stream.schema.types != schema.types:
            raise DbsparkError(f"a recursion gives {stream.schema!r} where {schema!r} is declared; cast the columns")
        return b.project(stream, list(stream.schema.names), list(schema.names))

    def _opaque_node(self, node: p.OpaqueNode, scope: Scope, needed: frozenset[int] | None) -> Relation:
        b = scope.builder
        rels = [self.relation(c, scope) for c in node.children]
        ids = tuple(c.id for c in node.columns)
        known = {number: (i, at) for i, r in enumerate(rels) for number, at in r.positions.items()}
        as_read = identity.of_json(json.loads(node.fields), known)
        made = identity.SparkNode(self.context, (node.name, as_read, node.functions))
        if node.linear and len(rels) == 1:
            (rel,) = rels
            spark_function = self.spark.flat_map(node.origin, rel.ids, (), node.columns)
            schema = positional_schema([c.type for c in node.columns])
            same = {i: rel.position(c.id) for i, c in enumerate(node.columns) if c.id in rel.ids}
            self._note(MaintenanceNote(node.name, "incremental", "THROUGH_SPARK", "Spark evaluates it on each change"))
            function = Function(spark_function.answer, self._named(node.text), same, identity=made)
            return Relation(b.external_function(rel.stream, function, schema, spark_function), ids)
        self._note(MaintenanceNote(node.name, "full", "OPERATOR", f"no rule for {node.name}; Spark computes it anew"))
        inputs = self.spark.inputs(node.origin)
        rels = [self._as_in_plan(b, r, dict(given)) for r, given in zip(rels, inputs, strict=True)]
        whole = self.spark.over_all(node.origin, [r.columns() for r in rels], inputs)
        if node.name in SEES_NAMES:
            names = tuple(tuple(name for _, name in given) for given in inputs)
            made = identity.SparkNode(self.context, (node.name, as_read, node.functions, names))
        sort_keys = [SortKey(r.stream.schema, []) for r in rels]
        schema = positional_schema([c.type for c in node.columns])
        operator = RecomputeGroups(sort_keys, Function(whole, self._named(node.text), identity=made), schema)
        return Relation(b.with_state(operator, [r.stream for r in rels], sort_keys), ids)

    def _as_in_plan(self, b: Builder, rel: Relation, ids: Iterable[int]) -> Relation:
        """A relation with the columns of Spark's plan in their order, which some functions go by, each once."""
        at = [rel.position(number) for number in ids] or [0]
        return Relation(self._choose(b, rel.stream, at), tuple(rel.ids[i] for i in at))


_COMPILE: dict[type, Callable[..., Relation]] = {
    p.Table: PlanCompiler._table,
    p.Values: PlanCompiler._values,
    p.Project: PlanCompiler._project,
    p.Filter: PlanCompiler._filter,
    p.Join: PlanCompiler._join,
    p.Aggregate: PlanCompiler._aggregate,
    p.Window: PlanCompiler._window,
    p.Top: PlanCompiler._top,
    p.Union: PlanCompiler._union,
    p.Expand: PlanCompiler._expand,
    p.Generate: PlanCompiler._generate,
    p.Loop: PlanCompiler._loop,
    p.LoopRef: PlanCompiler._loop_ref,
    p.OpaqueNode: PlanCompiler._opaque_node,
}
