"""Tables and views by name, and the circuit that they make.

    program = Program(spark)
    program.table("orders", "id BIGINT, region STRING, amount DECIMAL(12, 2)")
    program.view("revenue", "SELECT region, sum(amount) AS total FROM orders GROUP BY region")
    circuit = program.circuit()
    circuit.tick({"orders": [(1, "north", Decimal("3.50"))]})

Views see tables, and views that were made before them, which they share: one query, one node. Names are resolved by
Spark, in temporary views that are there only while a query is analysed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from dbspark.batch.schema import Schema, SchemaLike
from dbspark.circuit.builder import Builder
from dbspark.circuit.executor import Circuit
from dbspark.circuit.graph import Stream
from dbspark.errors import DbsparkError, SchemaError
from dbspark.sql import plan as p
from dbspark.sql.catalyst import EXCLUDED_RULES, Tables, not_deterministic_names, read
from dbspark.sql.compiler import Note, PlanCompiler, Scope, not_deterministic
from dbspark.sql.expressions.rules import Context
from dbspark.sql.through_spark import Spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Maintenance = Literal["auto", "incremental"]


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """A compiled view."""

    name: str
    query: str
    schema: Schema
    notes: tuple[Note, ...]

    @property
    def incremental(self) -> bool:
        return all(n.mode == "incremental" for n in self.notes)


class Program:
    """See the module's preface."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.builder = Builder()
        self.tables: dict[str, Schema] = {}
        self.views: dict[str, ViewPlan] = {}
        self._leaves = Tables(spark)
        self._streams: dict[str, Stream] = {}
        self._evaluator = Spark(spark)

    def table(self, name: str, schema: SchemaLike) -> None:
        """Declare a table."""
        self._check_new(name)
        given = Schema.of(schema)
        self._streams[name] = self.builder.source(name, given)
        self.tables[name] = given
        self._leaves.add(name, _struct(given))

    def view(
        self,
        name: str,
        query: str | DataFrame,
        *,
        maintenance: Maintenance = "auto",
        recursive: SchemaLike | None = None,
    ) -> ViewPlan:
        """Define a view by SQL or by a DataFrame over `frame`s; with `recursive`, its columns, it may name itself."""
        self._check_new(name)
        if recursive is not None:
            return self.recursive_views({name: (query, recursive)}, maintenance=maintenance)[0]
        node, columns = self._read(query)
        compiler = PlanCompiler(self._evaluator, self._context())
        rel = compiler.relation(node, Scope(self.builder, self._streams))
        stream = self._finished(rel.stream, [rel.position(c.id) for c in columns], [c.name for c in columns])
        return self._define(name, query, stream, compiler.notes, maintenance)

    def recursive_views(
        self, views: Mapping[str, tuple[str | DataFrame, SchemaLike]], *, maintenance: Maintenance = "auto"
    ) -> list[ViewPlan]:
        """Define views that name themselves or one another: the least sets of rows that satisfy their queries."""
        schemas = {name: Schema.of(schema) for name, (_, schema) in views.items()}
        for name in views:
            self._check_new(name)
            self._leaves.add(name, _struct(schemas[name]))
        try:
            read = {name: self._read(query) for name, (query, _) in views.items()}
            compiler = PlanCompiler(self._evaluator, self._context())
            group = {}
            for name, (node, columns) in read.items():
                given = [c.type for c in columns]
                declared = list(Schema(schemas[name].arrow).types)
                if given != declared:
                    raise SchemaError(
                        f"view {name!r} is declared as {schemas[name]!r} and its query gives "
                        f"{', '.join(f'{c.name} {c.type}' for c in columns)}; cast the columns, or declare those types"
                    )
                group[name] = (node, columns, schemas[name])
            made = compiler.recursive_group(group, Scope(self.builder, self._streams))
        except BaseException:
            for name in views:
                self._leaves.remove(name)
            raise
        out = []
        for name, (query, _) in views.items():
            stream = self._finished(made[name], range(schemas[name].columns), schemas[name].names)
            self._leaves.remove(name)
            out.append(self._define(name, query, stream, compiler.notes, maintenance))
        return out

    def frame(self, name: str) -> DataFrame:
        """A DataFrame that stands for a table or view in definitions of further views."""
        if name not in self._streams:
            raise DbsparkError(f"no table or view {name!r}; there are {', '.join(self._streams) or 'none'}")
        return self._leaves.frame(name)

    def circuit(self) -> Circuit:
        """The circuit of all views; a view that is there is an output of its name."""
        return self.builder.circuit()

    def explain(self, query: str | DataFrame) -> str:
        """How a view, or a query that is not a view yet, is or would be maintained."""
        if isinstance(query, str) and query in self.views:
            return explained(self.views[query].notes)
        node, _ = self._read(query)
        compiler = PlanCompiler(self._evaluator, self._context())
        scratch = Builder()
        streams = {name: scratch.source(name, stream.schema) for name, stream in self._streams.items()}
        compiler.relation(node, Scope(scratch, streams))
        return explained(compiler.notes)

    # ------------------------------------------------------------------ inside

    def _check_new(self, name: str) -> None:
        if name in self._streams:
            raise DbsparkError(f"there is a table or view {name!r} already; drop it first, or choose another name")

    def _context(self) -> Context:
        conf = self.spark.conf
        ansi = str(conf.get("spark.sql.ansi.enabled", "true")).lower() == "true"
        return Context(ansi, str(conf.get("spark.sql.session.timeZone") or "UTC"))

    def _define(
        self, name: str, query: str | DataFrame, stream: Stream, notes: list[Note], maintenance: Maintenance
    ) -> ViewPlan:
        text = query if isinstance(query, str) else "a DataFrame"
        made = ViewPlan(name, text, stream.schema, tuple(notes))
        if maintenance == "incremental" and not made.incremental:
            wrong = "; ".join(str(n) for n in notes if n.mode != "incremental")
            raise DbsparkError(f"view {name!r} cannot be kept incrementally in every part: {wrong}")
        self._streams[name] = stream
        self.views[name] = made
        self.builder.output(name, stream)
        self._leaves.add(name, _struct(stream.schema))
        return made

    def _finished(self, stream: Stream, columns: Any, names: Any) -> Stream:
        chosen = [stream.schema.names[c] for c in columns]
        twice = sorted({n for n in names if list(names).count(n) > 1})
        if twice:
            raise SchemaError(f"two columns of the view are called {', '.join(twice)}; name them apart with AS")
        return self.builder.project(stream, chosen, list(names))

    def _read(self, query: str | DataFrame) -> tuple[p.Node, tuple[p.Column, ...]]:
        with self._session():
            if isinstance(query, str):
                with self._names():
                    frame = self.spark.sql(query)
                    return self._checked(frame)
            return self._checked(query)

    def _checked(self, frame: DataFrame) -> tuple[p.Node, tuple[p.Column, ...]]:
        for name in not_deterministic_names(frame):
            raise not_deterministic(name)
        return read(self._leaves, frame)

    @contextmanager
    def _names(self) -> Iterator[None]:
        """Tables and views as temporary views of the session; those of the user that they hide come back."""
        catalog = self.spark.catalog
        hidden: dict[str, Any] = {}
        for name, frame in self._leaves.frames().items():
            if catalog.tableExists(name) and catalog.getTable(name).isTemporary:
                hidden[name] = self.spark.table(name)
            frame.createOrReplaceTempView(name)
        try:
            yield
        finally:
            for name in self._leaves.frames():
                if name in hidden:
                    hidden[name].createOrReplaceTempView(name)
                else:
                    catalog.dropTempView(name)

    @contextmanager
    def _session(self) -> Iterator[None]:
        """The optimiser without the rules that we do not want, while a query is read."""
        key = "spark.sql.optimizer.excludedRules"
        before = self.spark.conf.get(key, None)
        rules = [*(before.split(",") if before else []), *EXCLUDED_RULES]
        self.spark.conf.set(key, ",".join(rules))
        try:
            yield
        finally:
            if before is None:
                self.spark.conf.unset(key)
            else:
                self.spark.conf.set(key, before)


def explained(notes: Any) -> str:
    """One line for each operator."""
    return "\n".join(str(n) for n in notes) or "the rows as they are: incremental"


def _struct(schema: Schema) -> Any:
    """A Spark schema of an Arrow one."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructField, StructType

    plain = pa.schema([pa.field(f.name, f.type, f.nullable) for f in schema.arrow])
    made = from_arrow_schema(plain, prefer_timestamp_ntz=True)
    return StructType([StructField(f.name, f.dataType, f.nullable) for f in made.fields])
