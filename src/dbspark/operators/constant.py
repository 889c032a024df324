"""Constant rows of a query (VALUES): emitted in the first tick and never again.

State: the rows, once they have been emitted. Cost: nothing after the first tick.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, ClassVar

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.delta import Delta
from dbspark.identity import encoded_value
from dbspark.operators.arranged import State
from dbspark.operators.operator import Operator
from dbspark.operators.placement import Key, Placed, Policy


class Constant(Operator):
    """A source of constant rows."""

    kind: ClassVar[str] = "constant-rows"
    version: ClassVar[int] = 1

    def __init__(self, rows: Batch) -> None:
        self.rows = rows
        self.schema = rows.schema

    def state_sort_keys(self) -> tuple[SortKey, ...]:
        return (self.rows.sort_key,)

    def step(self, state: State, inputs: Sequence[Any]) -> tuple[State, Delta]:
        if state[0].entries or not self.rows.rows:
            return state, Delta.empty(self.schema)
        return (state[0].insert(self.rows),), Delta.of(self.rows)

    def input_placements(self, inputs: Sequence[Placed], policy: Policy) -> list[Key | None]:
        return []

    @property
    def emits_without_input(self) -> bool:
        return True

    def parameters(self) -> tuple[Any, ...]:
        rows = sorted(encoded_value(item, self.kind) for item in Delta.of(self.rows).items())
        return self.schema, len(rows), hashlib.blake2b(b"".join(rows), digest_size=16).digest()

    def label(self) -> str:
        return f"{self.rows.rows} constant row{'s' if self.rows.rows != 1 else ''}"
