"""Tables as leaves of Catalyst plans, and the sessions in which queries over them are analysed.

The optimiser cannot look into leaves and cannot fold them away: they are scans of an RDD. It raises when it is run, so
what looks at rows while a query is written, such as a pivot that has to find its values, fails instead of seeing an
empty table. A leaf is identified by the partition count of its `UnknownPartitioning`: that survives analysis,
optimisation and the renumbering of self-joins, and nothing reads it before execution. No two leaves of a process have
the same number, so a leaf of another pipeline, or of a table that has been dropped, is never taken for one of ours.

A query is analysed in a clone of the user's session (`AnalysisSession`). It has the user's settings, functions,
variables, temporary views and current database, and in it the names of the pipeline stand for its leaves, whatever
else they stand for in the user's session. Nothing of the user's session is changed, not even for a
moment: what runs in it meanwhile, in other threads too, neither sees names of the pipeline nor hides them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from dbspark.sql.names import backquoted, occurs_in
from dbspark.sql.types import has_no_arrow_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NO_ROWS = (
    "this DataFrame stands for a table or view of a pipeline in definitions of views, and has no rows. Read rows with "
    "df() of the table or view. To define a view, give all that Spark would look for in the rows, such as the values "
    "of a pivot"
)
"""The error of a job over a leaf."""

_NUMBERS = count(1_000_000)
"""Partition counts, each the number of one leaf; above the partitions of any real RDD."""

_STATEMENTS = (
    "plans.logical.Command", "plans.logical.ParsedStatement", "plans.logical.CompoundPlanStatement",
    "analysis.UnresolvedExecuteImmediate",
)  # fmt: skip
"""The classes of logical plans that Spark's parser gives for statements that are not queries."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The leaf of Catalyst plans that stands for one table or view of a pipeline."""

    number: int
    frame: DataFrame
    """The leaf as a DataFrame, for view definitions; it has no rows, and a job over it raises `NO_ROWS`."""
    relation: Any
    """The entry of a temporary view in the catalogue of a session."""


class TableLeaves:
    """The leaves that stand for the tables and views of one pipeline."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._leaves: dict[str, Leaf] = {}
        self._scratch = ScratchSession(spark)
        self._rdd = _raising_rdd(spark, NO_ROWS)
        self.declared: dict[int, Any] = {}
        """Spark types (JSON) that Arrow has no type for, by the expression id of the column."""

    def add(self, name: str, struct: StructType) -> DataFrame:
        """Add a leaf for a table; returns it as a DataFrame without rows."""
        from pyspark.sql import DataFrame

        spark = self.spark
        jvm: Any = spark._jvm
        number = next(_NUMBERS)
        none = jvm.scala.Option.empty()
        numbered = jvm.org.apache.spark.sql.execution.LogicalRDD(
            jvm.org.apache.spark.sql.catalyst.types.DataTypeUtils.toAttributes(
                spark._jsparkSession.parseDataType(struct.json())
            ),
            self._rdd,
            jvm.org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning(number),
            jvm.org.apache.spark.api.python.PythonUtils.toSeq(jvm.java.util.ArrayList()),
            False, none, spark._jsparkSession, none, none, False,
        )  # fmt: skip
        frame = DataFrame(jvm_dataframe(spark, numbered), spark)
        self._leaves[name] = Leaf(number, frame, self._scratch.relation(name, numbered))
        return frame

    def declare(self, number: int, given: Any) -> None:
        """Record the Spark type of a column, if its Arrow type does not determine it."""
        if has_no_arrow_type(given):
            self.declared[number] = given

    def frame(self, name: str) -> DataFrame:
        return self._leaves[name].frame

    def leaves(self) -> dict[str, Leaf]:
        return dict(self._leaves)

    def remove(self, name: str) -> None:
        self._leaves.pop(name, None)

    def reset(self, leaves: Mapping[str, Leaf]) -> None:
        """Restore the leaves of an earlier `leaves()`."""
        self._leaves = dict(leaves)

    def name_of(self, partitions: int) -> str | None:
        """The table of the leaf with this number; None for leaves of other pipelines and dropped tables."""
        return next((name for name, leaf in self._leaves.items() if leaf.number == partitions), None)

    def analysis_session(self) -> AnalysisSession:
        """A new session in which queries over these tables are analysed."""
        return AnalysisSession(self.spark, {name: leaf.relation for name, leaf in self._leaves.items()})


def _raising_rdd(spark: SparkSession, message: str) -> Any:
    """An RDD that raises when it is run. It needs no plan, which would cost seconds in a new session."""

    def fail(_: Any) -> Any:  # an inner function, which is pickled as it is: executors need not have dbspark
        raise RuntimeError(message)

    return spark.sparkContext.parallelize([0], 1).map(fail)._jrdd.rdd()


class AnalysisSession:
    """A clone of the user's session with temporary views for the tables of a pipeline."""

    def __init__(self, spark: SparkSession, relations: Mapping[str, Any]) -> None:
        """`relations`: catalogue entries from `ScratchSession.relation`, by name."""
        self.spark = spark
        parent = spark._jsparkSession
        self.session: Any = parent.cloneSession()
        _copy_what_clones_lack(spark, parent.sessionState(), self.session.sessionState())
        catalog = self.session.sessionState().catalog()
        self._names = {name.lower() for name in relations}
        for name, relation in relations.items():
            catalog.createTempView(name, relation, True)

    def set(self, key: str, value: str) -> None:
        """Change a setting of the clone."""
        self.session.sessionState().conf().setConfString(key, value)

    def get(self, key: str) -> str:
        """A setting of the clone, empty where there is none."""
        return str(self.session.sessionState().conf().getConfString(key, ""))

    def statement_in(self, query: str) -> str:
        """Spark's name of the statement that a text is, such as `DropTable`; empty for a query. Executes nothing."""
        catalyst = "org.apache.spark.sql.catalyst"
        with self._active():
            parsed = [self.session.sessionState().sqlParser().parsePlan(query)]
        loader = self.session.getClass().getClassLoader()
        statements = [
            self.spark._jvm.java.lang.Class.forName(f"{catalyst}.{name}", False, loader)  # type: ignore[union-attr]
            for name in _STATEMENTS
        ]
        while parsed:
            plan = parsed.pop()
            name = str(plan.getClass().getSimpleName())
            if any(statement.isInstance(plan) for statement in statements):
                return name.removesuffix("Statement")
            if name in ("UnresolvedWith", "Union"):  # WITH … INSERT, and FROM … INSERT … INSERT
                children = plan.children()
                parsed += [children.apply(i) for i in range(children.size())]
        return ""

    def analyzed(self, query: str | DataFrame) -> Any:
        """The analysed plan of a query; if it is a command, it is executed."""
        if not isinstance(query, str):
            return query._jdf.queryExecution().analyzed()
        self._keep_views_of_the_user(query)
        return self.session.sql(query).queryExecution().commandExecuted()

    def _keep_views_of_the_user(self, query: str) -> None:
        """Bind temporary views that Spark stores as SQL text to the tables that they read in the user's session."""
        from pyspark.errors import PySparkException

        catalog = self.session.sessionState().catalog()
        names = catalog.getTempViewNames()
        for name in (names.apply(i) for i in range(names.size())):
            if name.lower() in self._names or not occurs_in(name, query):
                continue
            view = catalog.getRawTempView(name)
            if view.isDefined() and view.get().plan().isEmpty():
                try:
                    plan = self.spark._jsparkSession.table(backquoted(name)).queryExecution().analyzed()
                except PySparkException:  # the view reads a dropped table; Spark says so if the query reads the view
                    continue
                catalog.createTempView(name, ScratchSession(self.spark).relation(name, plan), True)

    def optimized(self, analyzed: Any) -> Any:
        """The optimised plan of an analysed one.

        Parts of it are not replaced by what the user has cached: a view is over the tables, not over cached rows.
        """
        execution = self._rows(analyzed).queryExecution()
        with self._active():
            return self.session.sessionState().optimizer().execute(execution.normalized().clone())

    @contextmanager
    def _active(self) -> Iterator[None]:
        """The clone is the session whose settings Spark's parser and optimiser follow."""
        sessions = self.spark._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]
        before = sessions.getActiveSession()
        sessions.setActiveSession(self.session)
        try:
            yield
        finally:
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()

    def _rows(self, plan: Any) -> Any:
        jvm: Any = self.spark._jvm
        return jvm.org.apache.spark.sql.classic.Dataset.ofRows(self.session, plan)


class ScratchSession:
    """An empty session that turns plans into catalogue entries of temporary views, for use in any session.

    In a session that has a view of the same name, Spark would drop its cached data, from all sessions.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._session: Any = spark._jsparkSession.newSession()

    def relation(self, name: str, plan: Any) -> Any:
        rows = self._jvm.org.apache.spark.sql.classic.Dataset.ofRows(self._session, plan)
        rows.createOrReplaceTempView(backquoted(name))
        catalog = self._session.sessionState().catalog()
        made = catalog.getRawTempView(name).get()
        catalog.dropTempView(name)
        return made


def query_over_frames(spark: SparkSession, frames: Mapping[str, DataFrame], query: str) -> DataFrame:
    """A query in which some names stand for DataFrames, as a DataFrame."""
    from pyspark.sql import DataFrame

    scratch = ScratchSession(spark)
    plans = {name: frame._jdf.queryExecution().analyzed() for name, frame in frames.items()}
    session = AnalysisSession(spark, {name: scratch.relation(name, plan) for name, plan in plans.items()})
    return DataFrame(jvm_dataframe(spark, session.analyzed(query)), spark)


def jvm_dataframe(spark: SparkSession, plan: Any) -> Any:
    """The JVM DataFrame of a logical plan."""
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)


def _copy_what_clones_lack(spark: SparkSession, parent: Any, clone: Any) -> None:
    """Copy the current catalogue and the variables: cloning copies the current database of `spark_catalog` only."""
    jvm: Any = spark._jvm
    given, own = parent.catalogManager(), clone.catalogManager()
    if given.currentCatalog().name() != own.currentCatalog().name():
        own.setCurrentCatalog(given.currentCatalog().name())
        own.setCurrentNamespace(given.currentNamespace())
    variables = given.tempVariableManager()
    if not variables.isEmpty():
        field = variables.getClass().getDeclaredField("variables")  # there is no other way to list them
        field.setAccessible(True)
        pairs = field.get(variables).toSeq()
        for i in range(pairs.size()):
            names = jvm.java.util.ArrayList()
            names.add(pairs.apply(i)._1())
            sequence = jvm.org.apache.spark.api.python.PythonUtils.toSeq(names)
            own.tempVariableManager().create(sequence, pairs.apply(i)._2(), True)
