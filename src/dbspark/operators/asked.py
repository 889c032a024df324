"""Rows that somebody else makes of rows, one by one: an operator that is a question to another engine.

On one machine it is a flat map: its function puts the question and waits for the answer. On shards nobody can ask from
inside a task, so the question is put between two levels, for the rows of all shards at once; `question` is what is to
be put there, and this module does not look into it. An `Asked` cannot leave the process in which it was made.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dbspark.columnar.schema import Schema
from dbspark.operators.function import Function
from dbspark.operators.linear import FlatMap


class Asked(FlatMap):
    """A flat map that Spark evaluates; see the module's preface."""

    kind: ClassVar[str] = "evaluate-in-spark"
    version: ClassVar[int] = 1

    verb = "ask for"

    def __init__(self, schema: Schema, function: Function, question: Any) -> None:
        super().__init__(schema, function)
        self.question = question


__all__ = ["Asked"]
