"""`optimise`: known sub-graphs become fused operators.

    integrate -> Q on values -> differentiate      Q on deltas, over arranged streams
    the three terms of a product                   one join over two arranged streams
    join -> project                                the join gives those columns only
    filter -> project                              those columns of the rows that stay
    filter -> filter, filter -> map, map -> map    one pass over the columns

Arrangements are nodes, and equal nodes are one: consumers of the same keys share them. What no output needs is left
out. A node that others use as well is not fused away. Only tests and benchmarks use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dbspark.circuit.graph import Graph, Node, Stream
from dbspark.columnar.delta import Delta
from dbspark.operators.join import Join
from dbspark.operators.linear import Filter, Map, Project, Select, Stateless, WeightedUnion
from dbspark.operators.operator import Arrange
from dbspark.operators.range_join import RangeJoin
from dbspark.operators.temporal import Differentiate, Integrate, OnValues, Product
from tests.reference.differentiate import again


class Fused(Stateless):
    """Filters and maps one after the other, without a stream between them."""

    kind: ClassVar[str] = "fused-linear"
    version: ClassVar[int] = 1

    def __init__(self, steps: Sequence[Filter | Map | Project]) -> None:
        self.steps = tuple(steps)
        self.schema = steps[-1].schema

    def apply(self, inputs: Sequence[Delta]) -> Delta:
        delta = inputs[0]
        for step in self.steps:
            if not delta.rows:
                return Delta.empty(self.schema)
            delta = step.applied([delta])
        return delta

    def parameters(self) -> tuple[Any, ...]:
        return self.steps

    def label(self) -> str:
        return ", ".join(s.label() for s in self.steps)


def with_columns(join: Join, columns: Sequence[tuple[int, int]], names: Sequence[str]) -> Join:
    """The same join with other output columns."""
    more: Any = {"columns": columns, "names": names, "residual": join.residual, "null_safe": join.null_safe}
    if isinstance(join, RangeJoin):
        return RangeJoin(*join.sides, join.how, ranges=join.ranges, **more)
    return Join(*join.sides, join.how, **more)


def optimise(graph: Graph) -> Graph:
    """An equivalent graph with fused operators."""
    graph = graph.pruned()
    for rule in (_fuse_derivatives, _fuse_columns):
        graph = rule(graph).pruned()
    return graph


def _users(graph: Graph) -> dict[str, int]:
    users = {n.id: 0 for n in graph}
    for node in graph:
        for source in node.inputs:
            users[source.id] += 1
    for node in graph.outputs.values():
        users[node.id] += 1
    return users


class _Rewriter:
    """Copies a graph node by node; a rule may give another stream for a node."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.out = Graph()
        self.made: dict[str, Stream] = {}
        self.users = _users(graph)

    def run(self, rule: Any) -> Graph:
        loops: list[tuple[Stream, Node]] = []
        for node in self.graph.schedule():
            if node.role == "source":
                assert node.name is not None
                self.made[node.id] = self.out.source(node.name, node.schema, node.kind)
            elif node.role == "delay":
                delay = self.out.delay(node.schema, node.kind, node.seed, None, node.name or "")
                self.made[node.id] = delay
                loops.append((delay, node.inputs[0]))
            else:
                replaced = rule(self, node)
                inputs = [self.made[n.id] for n in node.inputs]
                self.made[node.id] = again(self.out, node, inputs) if replaced is None else replaced
        for delay, source in loops:
            self.out.connect(delay, self.made[source.id])
        for name, node in self.graph.outputs.items():
            self.out.output(name, self.made[node.id])
        return self.out

    def arranged(self, stream: Stream, sort_key: Any) -> Stream:
        return self.out.add(Arrange(sort_key), [stream], ["delta"], "arranged")


def _fuse_derivatives(graph: Graph) -> Graph:
    return _Rewriter(graph).run(_derivative)


def _derivative(rewriter: _Rewriter, node: Node) -> Stream | None:
    operator = node.operator
    if isinstance(operator, Differentiate):
        lifted = node.inputs[0]
        if isinstance(lifted.operator, OnValues) and all(isinstance(n.operator, Integrate) for n in lifted.inputs):
            inner = lifted.operator
            streams = []
            for integral, sort_key in zip(lifted.inputs, inner.sort_keys, strict=True):
                stream = rewriter.made[integral.inputs[0].id]
                streams.append(stream if sort_key is None else rewriter.arranged(stream, sort_key))
            return rewriter.out.add(inner.operator, streams, [s.kind for s in streams], "delta")
    if isinstance(operator, WeightedUnion) and operator.signs == (1, 1, 1):
        found = _three_terms(node)
        if found is not None:
            join, left, right = found
            streams = [
                rewriter.arranged(rewriter.made[n.id], a) for n, a in zip((left, right), join.sides, strict=True)
            ]
            return rewriter.out.add(join, streams, ["arranged", "arranged"], "delta")
    return None


def _three_terms(node: Node) -> tuple[Join, Node, Node] | None:
    """The join and the two streams of changes, where a sum is the three terms of a product."""
    terms = node.inputs
    if not all(isinstance(t.operator, Product) for t in terms):
        return None
    product = terms[2].operator
    assert isinstance(product, Product)
    left, right = terms[2].inputs
    for term, (a, b) in zip(terms[:2], ((left, None), (None, right)), strict=True):
        assert isinstance(term.operator, Product)
        if term.operator.parameters() != product.parameters():
            return None
        if a is not None and (term.inputs[0] is not a or not _is_delayed_integral(term.inputs[1], right)):
            return None
        if b is not None and (term.inputs[1] is not b or not _is_delayed_integral(term.inputs[0], left)):
            return None
    return product.join, left, right


def _is_delayed_integral(node: Node, of: Node) -> bool:
    if node.role != "delay" or node.seed is not None:
        return False
    integral = node.inputs[0]
    return isinstance(integral.operator, Integrate) and integral.inputs[0] is of


def _fuse_columns(graph: Graph) -> Graph:
    return _Rewriter(graph).run(_columns)


def _columns(rewriter: _Rewriter, node: Node) -> Stream | None:
    operator = node.operator
    if not isinstance(operator, Filter | Map | Project) or len(node.inputs) != 1:
        return None
    source = node.inputs[0]
    if rewriter.users[source.id] != 1:
        return None
    made = rewriter.made[source.id].node
    inner = made.operator
    if isinstance(operator, Project) and isinstance(inner, Join) and inner.how != "existence":
        join = with_columns(inner, [inner.columns[c] for c in operator.columns], operator.schema.names)
        if join.schema is operator.schema or join.schema.types == operator.schema.types:
            return rewriter.out.add(join, [n.stream for n in made.inputs], ["arranged", "arranged"], "delta")
    if isinstance(operator, Project) and isinstance(inner, Filter):
        select = Select(operator.schema, inner.function, range(inner.schema.columns), operator.columns)
        return rewriter.out.add(select, [made.inputs[0].stream], [made.inputs[0].kind], made.kind)
    if isinstance(inner, Filter | Map | Project | Fused):
        steps = [*inner.steps, operator] if isinstance(inner, Fused) else [inner, operator]
        return rewriter.out.add(Fused(steps), [made.inputs[0].stream], [made.inputs[0].kind], made.kind)
    return None
