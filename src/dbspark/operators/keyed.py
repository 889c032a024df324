"""Operators that treat keys apart: what goes out for a key is a function of the rows of that key."""

from __future__ import annotations

from collections.abc import Sequence

from dbspark.columnar import SortKey
from dbspark.operators.nested import Nested, NestedReduce, NestedSite
from dbspark.operators.operator import Operator
from dbspark.operators.placement import Key, Placed, Policy


class KeyedOperator(Operator):
    """An operator over arranged streams that treats keys apart.

    On shards its arranged inputs lie by their keys already; inside a fixpoint its form is the general reduction.
    """

    def input_placements(self, inputs: Sequence[Placed], policy: Policy) -> list[Key | None]:
        return [None] * len(inputs)

    def nested_traces(self) -> dict[str, SortKey]:
        return {}

    def nested(self, site: NestedSite) -> Nested:
        return NestedReduce(self, site.pending)


__all__ = ["KeyedOperator"]
