"""External functions: flat maps that another engine evaluates (Spark, for expressions that dbspark does not have).

Embedded, the operator calls its function, which calls the engine and waits for the result. On shards a task cannot call
the engine, so the driver calls `evaluator` between two levels, for the rows of all shards at once; it is opaque here.
The operator cannot be sent to another process.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dbspark.columnar.schema import Schema
from dbspark.operators.function import Function
from dbspark.operators.linear import FlatMap


class ExternalFunction(FlatMap):
    """A flat map that another engine evaluates, row by row."""

    kind: ClassVar[str] = "evaluate-in-spark"
    version: ClassVar[int] = 1

    verb = "ask for"

    def __init__(self, schema: Schema, function: Function, evaluator: Any) -> None:
        super().__init__(schema, function)
        self.evaluator = evaluator


__all__ = ["ExternalFunction"]
