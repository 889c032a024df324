"""Tables as leaves of Catalyst plans.

The optimiser cannot look into them and cannot fold them away: they are RDD scans over an empty RDD. They are told
apart by the partition count that their (unknown) partitioning claims, which survives analysis, optimisation and the
renumbering of self-joins, and which nothing looks at before execution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dbspark.sql.types import is_peculiar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FIRST_NUMBER = 1_000_000
"""Partition counts from here on are numbers of tables."""


class Tables:
    """The leaves of a session: DataFrames that stand for tables and views of a pipeline."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._names: list[str] = []
        self._frames: dict[str, DataFrame] = {}
        self.declared: dict[int, Any] = {}
        """Spark types that Arrow has no type for, as JSON, by the number of the column."""

    def add(self, name: str, struct: StructType) -> DataFrame:
        """A DataFrame that stands for a table; reading it gives no rows."""
        from pyspark.sql import DataFrame

        spark = self.spark
        jvm: Any = spark._jvm
        empty = spark.createDataFrame(spark.sparkContext.emptyRDD(), struct, verifySchema=False)
        leaf = empty._jdf.queryExecution().analyzed()
        number = _FIRST_NUMBER + len(self._names)
        none = jvm.scala.Option.empty()
        numbered = jvm.org.apache.spark.sql.execution.LogicalRDD(
            leaf.output(), leaf.rdd(),
            jvm.org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning(number),
            leaf.outputOrdering(), False, none, spark._jsparkSession, none, none, False,
        )  # fmt: skip
        frame = DataFrame(of_rows(spark, numbered), spark)
        self._names.append(name)
        self._frames[name] = frame
        return frame

    def declare(self, number: int, given: Any) -> None:
        """Remember the Spark type of a column, if Arrow's does not say which it is."""
        if is_peculiar(given):
            self.declared[number] = given

    def frame(self, name: str) -> DataFrame:
        return self._frames[name]

    def frames(self) -> dict[str, DataFrame]:
        return dict(self._frames)

    def remove(self, name: str) -> None:
        self._frames.pop(name, None)

    def reset(self, frames: dict[str, DataFrame]) -> None:
        """Go back to frames that have been there."""
        self._frames = dict(frames)

    def name_of(self, partitions: int) -> str | None:
        at = partitions - _FIRST_NUMBER
        return self._names[at] if 0 <= at < len(self._names) else None


def of_rows(spark: SparkSession, plan: Any) -> Any:
    """The JVM DataFrame of a logical plan."""
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)


def behind(spark: SparkSession, name: str) -> DataFrame:
    """What a temporary view stands for: putting it back under its name does not wrap it once more."""
    from pyspark.sql import DataFrame

    plan = spark.table(name)._jdf.queryExecution().analyzed()
    while plan.getClass().getSimpleName() in ("SubqueryAlias", "View"):
        plan = plan.child()
    return DataFrame(of_rows(spark, plan), spark)
