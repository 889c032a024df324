"""`incrementalize`: from a circuit of values to the circuit of their changes.

By the chain rule every operator is replaced by itself:

    linear operators                 d Q(S) = Q(dS)
    delay                            d delay(S) = delay(dS), where its seed is empty
    integrate, differentiate         they go between S and dS, so they vanish
    product                          d (R x S) = dR x delay(S) + delay(R) x dS + dR x dS, with S = integrate(dS)
    anything else                    d Q(S) = differentiate(Q(integrate(dS)))

The result is explicit: nothing is hidden in operators, and it is the meaning that fused operators are tested against.
`tests.reference.optimise` then replaces the sub-graphs that it knows. Only tests use either.
"""

from __future__ import annotations

from collections.abc import Sequence

from dbspark.circuit.graph import Graph, Node, Stream
from dbspark.columnar import SortKey
from dbspark.operators.linear import Stateless, WeightedUnion
from dbspark.operators.temporal import Differentiate, Integrate, OnValues, Product


def incrementalize(graph: Graph) -> Graph:
    """The circuit of changes of a circuit of values: same sources and outputs, by name."""
    graph.schedule()
    out = Graph()
    made: dict[str, Stream] = {}
    loops: list[tuple[Stream, Node]] = []
    for node in graph.schedule():
        made[node.id] = _derived(out, node, made, loops)
    for delay, source in loops:
        out.connect(delay, made[source.id])
    for name, node in graph.outputs.items():
        out.output(name, made[node.id])
    return out


def again(graph: Graph, node: Node, inputs: Sequence[Stream]) -> Stream:
    """The operator of a node, perhaps of another graph, over streams of a graph."""
    assert node.operator is not None
    return graph.add(node.operator, inputs, [s.kind for s in inputs], node.kind)


def _derived(out: Graph, node: Node, made: dict[str, Stream], loops: list[tuple[Stream, Node]]) -> Stream:
    """The stream of changes of a stream of values; a stream of changes is its own."""
    if node.role == "source":
        assert node.name is not None
        return out.source(node.name, node.schema, "delta")
    if node.role == "delay":
        if node.kind == "value" and node.seed is not None:
            return _derived_seeded_delay(out, node, made, loops)
        delay = out.delay(node.schema, "delta", node.seed, None, node.name or "")
        loops.append((delay, node.inputs[0]))
        return delay
    inputs = [made[n.id] for n in node.inputs]
    operator = node.operator
    assert operator is not None
    if isinstance(operator, Integrate | Differentiate):
        return inputs[0]
    if isinstance(operator, Product):
        return _product_rule(out, operator, *inputs)
    if isinstance(operator, Stateless):
        return out.add(operator, inputs, ["delta"] * len(inputs), "delta")
    if isinstance(operator, OnValues):
        values = [
            out.add(Integrate(a or SortKey(s.schema)), [s], ["delta"], "value")
            for s, a in zip(inputs, operator.sort_keys, strict=True)
        ]
        value = out.add(operator, values, ["value"] * len(values), "value")
        return out.add(Differentiate(SortKey(operator.schema)), [value], ["value"], "delta")
    return again(out, node, inputs)  # an operator on deltas already


def _derived_seeded_delay(out: Graph, node: Node, made: dict[str, Stream], loops: list[tuple[Stream, Node]]) -> Stream:
    """A delay of values that begins with a seed: the seed comes, goes, and the delayed changes are those after it."""
    delay = out.delay(node.schema, "delta", None, None, node.name or "")
    loops.append((delay, node.inputs[0]))
    come = out.delay(node.schema, "delta", node.seed, None, f"{node.name}+")
    empty = out.add(WeightedUnion(node.schema, []), [], [], "delta")
    out.connect(come, empty)
    gone = out.delay(node.schema, "delta", None, come, f"{node.name}-")
    return out.add(WeightedUnion(node.schema, [1, 1, -1]), [delay, come, gone], ["delta"] * 3, "delta")


def _product_rule(out: Graph, product: Product, left: Stream, right: Stream) -> Stream:
    """Three terms over delayed integrals."""
    values = []
    for stream, sort_key in zip((left, right), product.join.sides, strict=True):
        value = out.add(Integrate(sort_key), [stream], ["delta"], "value")
        values.append(_shared_delay(out, value))
    terms = [
        out.add(product, [left, values[1]], ["delta", "value"], "delta"),
        out.add(product, [values[0], right], ["value", "delta"], "delta"),
        out.add(product, [left, right], ["delta", "delta"], "delta"),
    ]
    return out.add(WeightedUnion(product.schema, [1, 1, 1]), terms, ["delta"] * 3, "delta")


def _shared_delay(out: Graph, value: Stream) -> Stream:
    """The delay of a value; one is enough."""
    for node in out:
        if node.role == "delay" and node.inputs == [value.node]:
            return node.stream
    return out.delay(value.schema, "value", None, value)
