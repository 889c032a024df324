"""Tables and views by name, and the circuit that they make.

    program = Program(spark)
    program.table("orders", "id BIGINT, region STRING, amount DECIMAL(12, 2)")
    program.view("revenue", "SELECT region, sum(amount) AS total FROM orders GROUP BY region")
    circuit = program.circuit()
    circuit.tick({"orders": [(1, "north", Decimal("3.50"))]})

Views see tables, and views that were made before them, which they share: one query, one node. Names are resolved by
Spark, in a clone of the user's session in which they stand for the tables and views (`dbspark.sql.analysis_session`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Literal, cast

from dbspark.circuit.builder import Builder
from dbspark.circuit.executor import Circuit
from dbspark.circuit.graph import Stream
from dbspark.columnar.frames import check_storable, struct_of
from dbspark.columnar.schema import Schema, SchemaLike
from dbspark.errors import DbsparkError, SchemaError
from dbspark.sql.analysis_session import TableLeaves
from dbspark.sql.catalyst import AnalyzedQuery, read_plan
from dbspark.sql.compiler import PlanCompiler
from dbspark.sql.explain import Explanation, Sizes, render
from dbspark.sql.expressions.rules import Context
from dbspark.sql.names import backquoted, find_name, is_case_sensitive
from dbspark.sql.plan_analysis import tables_read
from dbspark.sql.relations import MaintenanceNote, Scope
from dbspark.sql.spark_evaluator import SparkEvaluator
from dbspark.sql.types import with_spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Maintenance = Literal["auto", "incremental"]


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """A compiled view."""

    name: str
    query: str
    schema: Schema
    notes: tuple[MaintenanceNote, ...]
    reads: frozenset[str] = frozenset()
    """The tables and views in its query."""
    open_answers: tuple[str, ...] = ()
    """What in it has more than one right answer, as sentences."""

    @property
    def incremental(self) -> bool:
        return all(n.mode == "incremental" for n in self.notes)


class Program:
    """The tables and views of a pipeline, and the builder of the circuit that maintains the views."""

    def __init__(self, spark: SparkSession | Callable[[], SparkSession]) -> None:
        """`spark` may be a function, which is called when a query has to be read."""
        self._given = spark
        self.builder = Builder()
        self.tables: dict[str, Schema] = {}
        self._homes: dict[str, tuple[str, ...]] = {}
        """The columns by which the rows of tables lie on shards; all of them where none are named."""
        self.views: dict[str, ViewPlan] = {}
        self._streams: dict[str, Stream] = {}

    @cached_property
    def spark(self) -> SparkSession:
        given = self._given
        return given() if isinstance(given, FunctionType | MethodType) else cast("SparkSession", given)

    @cached_property
    def leaves(self) -> TableLeaves:
        leaves = TableLeaves(self.spark)
        for name, stream in self._streams.items():
            leaves.add(name, struct_of(stream.schema.arrow))
        return leaves

    @cached_property
    def evaluator(self) -> SparkEvaluator:
        return SparkEvaluator(self.leaves)

    def _add_leaf(self, name: str, schema: Schema) -> None:
        if "leaves" in self.__dict__:
            self.leaves.add(name, struct_of(schema.arrow))

    def table(self, name: str, schema: SchemaLike, key: Sequence[str] = ()) -> None:
        """Declare a table."""
        self._check_new(name)
        given = Schema.of(schema)
        if not given.columns:
            raise SchemaError(f"table {name!r} has no columns; name at least one, such as 'id BIGINT'")
        check_storable(given.arrow)
        self._streams[name] = self.builder.source(name, given)
        self.tables[name] = given
        self._homes[name] = tuple(key)
        self._add_leaf(name, given)

    def view(
        self,
        name: str,
        query: str | DataFrame,
        *,
        maintenance: Maintenance = "auto",
        recursive: SchemaLike | None = None,
        buckets: bool = False,
    ) -> ViewPlan:
        """Define a view by SQL or by a DataFrame over `frame`s; with `recursive`, its columns, it may name itself.

        With `buckets`, first rows are looked for among the first rows of each bucket, which shards find in parallel.
        """
        self._check_new(name)
        if recursive is not None:
            return self.recursive_views({name: (query, recursive)}, maintenance=maintenance)[0]
        given = self._read(query)
        compiler = PlanCompiler(self.evaluator, self.context(), given.remarks, self._homes if buckets else None)
        rel = compiler.relation(given.plan, Scope(self.builder, self._streams))
        columns = given.columns
        positions = [rel.position(c.id) for c in columns]
        stream = self._finished(rel.stream, positions, [c.name for c in columns], given.declared)
        reads = tables_read(given.plan)
        return self._define(name, query, stream, compiler.notes, maintenance, reads, given.open_answers)

    def recursive_views(
        self, views: Mapping[str, tuple[str | DataFrame, SchemaLike]], *, maintenance: Maintenance = "auto"
    ) -> list[ViewPlan]:
        """Define views that name themselves or one another: the least sets of rows that satisfy their queries."""
        schemas = {name: Schema.of(schema) for name, (_, schema) in views.items()}
        for name in views:
            self._check_new(name)
            self.leaves.add(name, struct_of(schemas[name].arrow))
        try:
            read = {name: self._read(query) for name, (query, _) in views.items()}
            compiler = PlanCompiler(self.evaluator, self.context())
            group = {}
            for name, found in read.items():
                columns = found.columns
                if [c.type for c in columns] != list(schemas[name].types):
                    raise SchemaError(
                        f"view {name!r} is declared as {schemas[name]!r} and its query gives "
                        f"{', '.join(f'{c.name} {c.type}' for c in columns)}; cast the columns, or declare those types"
                    )
                group[name] = (found.plan, columns, schemas[name])
            made = compiler.recursive_group(group, Scope(self.builder, self._streams))
        except BaseException:
            for name in views:
                self.leaves.remove(name)
            raise
        out = []
        for name, (query, _) in views.items():
            schema = schemas[name]
            stream = self._finished(made[name], range(schema.columns), schema.names, read[name].declared)
            self.leaves.remove(name)
            reads = frozenset().union(*(tables_read(found.plan) for found in read.values())) - set(views)
            answers = read[name].open_answers
            out.append(self._define(name, query, stream, compiler.notes, maintenance, reads, answers))
        return out

    def frame(self, name: str) -> DataFrame:
        """A DataFrame that stands for a table or view in definitions of further views."""
        if name not in self._streams:
            raise DbsparkError(f"no table or view {name!r}; there are {', '.join(self._streams) or 'none'}")
        return self.leaves.frame(name)

    def circuit(self) -> Circuit:
        """The circuit of all views; each view is an output, by its name."""
        return self.builder.circuit()

    def explain(self, query: str | DataFrame, sizes: Sizes | None = None) -> Explanation:
        """How a view, or a query that is not a view yet, is or would be maintained; `sizes` are those of the state."""
        if isinstance(query, str) and query in self.views:
            graph, root = self.builder.graph, self.builder.graph.outputs[query]
            return render(query, graph, root, root.schema.names, self.views[query].notes, sizes)
        given = self._read(query)
        compiler = PlanCompiler(self.evaluator, self.context(), given.remarks)
        scratch = Builder()
        streams = {name: scratch.source(name, stream.schema) for name, stream in self._streams.items()}
        rel = compiler.relation(given.plan, Scope(scratch, streams))
        names = [c.name for c in given.columns]
        return render(None, scratch.graph, rel.stream.node, names, compiler.notes, None, self.views)

    # ------------------------------------------------------------------ inside

    def _check_new(self, name: str) -> None:
        there = find_name(backquoted(name), self._streams, self._case_sensitive())
        if there is not None:
            also = "" if there == name else ", and names ignore case"
            raise DbsparkError(
                f"there is a table or view {there!r} already{also}; drop it first, or choose another name"
            )

    def _case_sensitive(self) -> bool:
        return is_case_sensitive(self.spark if "spark" in self.__dict__ else None)

    def context(self) -> Context:
        conf = self.spark.conf
        ansi = str(conf.get("spark.sql.ansi.enabled", "true")).lower() == "true"
        return Context(ansi, str(conf.get("spark.sql.session.timeZone") or "UTC"))

    def _define(
        self, name: str, query: str | DataFrame, stream: Stream, notes: list[MaintenanceNote], maintenance: Maintenance,
        reads: frozenset[str], open_answers: tuple[str, ...] = (),
    ) -> ViewPlan:  # fmt: skip
        text = query if isinstance(query, str) else "a DataFrame"
        made = ViewPlan(name, text, stream.schema, tuple(notes), reads, open_answers)
        if maintenance == "incremental" and not made.incremental:
            wrong = "; ".join(str(n) for n in notes if n.mode != "incremental")
            whole = "; ".join(str(n) for n in notes if n.mode == "incremental" and n.cost == "partition")
            also = f". Kept, at the cost of whole partitions: {whole}" if whole else ""
            raise DbsparkError(f"view {name!r} cannot be kept incrementally in every part: {wrong}{also}")
        self._streams[name] = stream
        self.views[name] = made
        self.builder.output(name, stream)
        self._add_leaf(name, stream.schema)
        return made

    def drop(self, name: str) -> None:
        """Forget a table or view that nothing else reads."""
        self.check_unread(name)
        self.views.pop(name, None)
        self.tables.pop(name, None)
        stream = self._streams.pop(name, None)
        self.builder.graph.outputs.pop(name, None)
        if stream is not None and stream.node.role == "source":
            del self.builder.graph.nodes[stream.node.id]
        self.builder.graph.nodes = self.builder.graph.pruned().nodes
        if "leaves" in self.__dict__:
            self.leaves.remove(name)

    def saved(self) -> Any:
        """Everything that is defined now, for `restore`; a value, which costs nothing to take."""
        graph = self.builder.graph
        leaves = self.leaves.leaves() if "leaves" in self.__dict__ else {}
        return dict(graph.nodes), dict(graph.outputs), dict(self.tables), dict(self.views), dict(self._streams), leaves

    def restore(self, saved: Any) -> None:
        """Go back to what was defined then."""
        graph = self.builder.graph
        graph.nodes, graph.outputs, self.tables, self.views, self._streams, leaves = saved
        if "leaves" in self.__dict__:
            self.leaves.reset({n: f for n, f in {**self.leaves.leaves(), **leaves}.items() if n in self._streams})

    def check_unread(self, name: str) -> None:
        """Refuse to drop what something else reads."""
        readers = [v.name for v in self.views.values() if name in v.reads and v.name != name]
        if readers:
            raise DbsparkError(f"{name!r} is read by {', '.join(readers)}; drop those first")

    def _finished(self, stream: Stream, columns: Any, names: Any, declared: Sequence[Any]) -> Stream:
        """A stream with the view's own column names, and with the Spark types `declared` (JSON) in their metadata."""
        if not names:
            raise SchemaError(
                "the query gives no columns, so its rows could only be counted; select a constant, such as 1 AS one, "
                "or count them with SELECT count(*)"
            )
        chosen = [stream.schema.names[c] for c in columns]
        twice = sorted({n for n in names if list(names).count(n) > 1})
        if twice:
            raise SchemaError(f"two columns of the view are called {', '.join(twice)}; name them apart with AS")
        fields = [
            with_spark_type(stream.schema.arrow.field(c).with_name(name).with_metadata(None), given)
            for c, name, given in zip(columns, names, declared, strict=True)
        ]
        return self.builder.project(stream, chosen, fields=fields)

    def _read(self, query: str | DataFrame) -> AnalyzedQuery:
        return read_plan(self.leaves, query)
