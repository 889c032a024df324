"""The graph of a circuit: nodes, the streams between them, and the checks before it runs.

A stream carries *deltas* (changes), *values* (whole Z-sets), *arranged* deltas (in order, with their integral) or the
results of a *nested* circuit; this is its kind, which is checked when a node is added. Nodes are added after their
inputs, except that the input of a delay may be set later. This is the only way to form a cycle, so every cycle contains
a delay.

A node's id is a digest of the identity of its operator (`dbspark.identity`: kind, version and parameters, never the
name of a class) and of the ids of its inputs. The same sub-query has the same id in another graph, another process,
another version of a program; that is how stored state is matched to its operator. Adding the same operator over the
same inputs twice gives the same node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from dbspark.columnar.schema import Schema
from dbspark.errors import CircuitError
from dbspark.identity import digest
from dbspark.operators.operator import Operator

Kind = Literal["delta", "value", "arranged", "nested"]

SOURCE: Final = ("source", 1)
DELAY: Final = ("delay", 1)
"""Kind and version of delays, which have no operator: raise the version if the meaning of their state changes."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The output of a node, by which other nodes refer to it."""

    node: Node
    kind: Kind

    @property
    def schema(self) -> Schema:
        return self.node.schema

    @property
    def id(self) -> str:
        return self.node.id

    def __repr__(self) -> str:
        return f"Stream({self.node.label}, {self.kind} of {self.schema!r})"


@dataclass(eq=False, slots=True)
class Node:
    """An operator with its inputs. `operator` is None for sources and delays, which the executor handles itself."""

    id: str
    label: str
    schema: Schema
    kind: Kind
    operator: Operator | None
    inputs: list[Node]
    role: Literal["operator", "source", "delay"] = "operator"
    name: str | None = None
    seed: Any = None
    order: int = field(default=0)

    @property
    def stream(self) -> Stream:
        return Stream(self, self.kind)

    @property
    def skips_empty_input(self) -> bool:
        """Whether it is skipped in a tick in which all its inputs are empty."""
        carries_changes = self.kind == "delta" and all(i.kind in ("delta", "arranged") for i in self.inputs)
        return carries_changes and bool(self.inputs) and self.operator is not None and self.operator.skips_empty_input

    def __repr__(self) -> str:
        return f"Node({self.id[:8]}, {self.label})"


class Graph:
    """Nodes by id, in the order in which they were added, and the outputs by name."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.outputs: dict[str, Node] = {}

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def __len__(self) -> int:
        return len(self.nodes)

    def source(self, name: str, schema: Schema, kind: Kind = "delta") -> Stream:
        """Add a source: an input of the circuit."""
        if any(n.role == "source" and n.name == name for n in self):
            raise CircuitError(f"there is a source {name!r} already; give this one another name")
        node_id = digest(*SOURCE, name, kind, schema)
        return self._add(Node(node_id, f"source {name}", schema, kind, None, [], "source", name))

    def add(self, operator: Operator, inputs: Sequence[Stream], takes: Sequence[Kind], kind: Kind) -> Stream:
        """Add an operator, which takes streams of the kinds `takes` and returns a stream of `kind`."""
        for i, (stream, wanted) in enumerate(zip(inputs, takes, strict=True)):
            self._check_own(stream, f"input {i} of {operator.label()!r}")
            if stream.kind != wanted:
                raise CircuitError(
                    f"input {i} of {operator.label()!r} has to carry {wanted}s, and {stream.node.label!r} carries "
                    f"{stream.kind}s; {_hint(wanted, stream.kind)}"
                )
        node_id = digest("node", operator, kind, tuple(s.node.id for s in inputs))
        if node_id in self.nodes:
            return self.nodes[node_id].stream
        return self._add(Node(node_id, operator.label(), operator.schema, kind, operator, [s.node for s in inputs]))

    def delay(self, schema: Schema, kind: Kind, seed: Any = None, of: Stream | None = None, name: str = "") -> Stream:
        """Add a delay: its input one tick ago, in the first tick the seed. The input may be set later."""
        if of is not None:
            self._check_own(of, "the input of a delay")
        number = sum(n.role == "delay" for n in self)
        node_id = digest(*DELAY, kind, schema, None if of is None else of.node.id, name, number)
        return self._add(Node(node_id, "delay", schema, kind, None, [of.node] if of else [], "delay", name, seed))

    def connect(self, delay: Stream, of: Stream) -> None:
        """Set the input of a delay."""
        self._check_own(delay, "the delay")
        self._check_own(of, "the input of a delay")
        node = delay.node
        if node.role != "delay":
            raise CircuitError(f"{node.label!r} is not a delay; only a delay gets its input after it was made")
        if node.inputs:
            raise CircuitError("this delay has an input already")
        if of.kind != node.kind or of.schema is not node.schema:
            raise CircuitError(f"a delay of {node.kind}s of {node.schema!r} cannot hold {of.kind}s of {of.schema!r}")
        node.inputs.append(of.node)

    def output(self, name: str, stream: Stream) -> None:
        """Make a stream an output of the circuit, under a name."""
        if name in self.outputs:
            raise CircuitError(f"there is an output {name!r} already; give this one another name")
        self._check_own(stream, f"output {name!r}")
        self.outputs[name] = stream.node

    def _check_own(self, stream: Stream, what: str) -> None:
        if self.nodes.get(stream.node.id) is not stream.node:
            raise CircuitError(f"{what} is a stream of another graph")

    def _add(self, node: Node) -> Stream:
        node.order = len(self.nodes)
        if node.id in self.nodes:
            raise CircuitError(f"{node.label!r} is in the graph already")
        self.nodes[node.id] = node
        return node.stream

    def schedule(self) -> list[Node]:
        """All nodes, each after its inputs and delays first; raises if there is a cycle without a delay."""
        unconnected = [n for n in self if n.role == "delay" and not n.inputs]
        if unconnected:
            raise CircuitError(f"{len(unconnected)} delay(s) have no input; connect them")
        waiting = {n.id: 0 if n.role == "delay" else len(n.inputs) for n in self}
        feeds: dict[str, list[Node]] = {n.id: [] for n in self}
        for node in self:
            if node.role != "delay":
                for source in node.inputs:
                    feeds[source.id].append(node)
        ready = [n for n in self if waiting[n.id] == 0]
        out: list[Node] = []
        while ready:
            node = ready.pop(0)
            out.append(node)
            for consumer in feeds[node.id]:
                waiting[consumer.id] -= 1
                if waiting[consumer.id] == 0:
                    ready.append(consumer)
        if len(out) < len(self.nodes):
            raise CircuitError(f"a cycle without a delay: {' -> '.join(n.label for n in self._cycle(waiting))}")
        return out

    def _cycle(self, waiting: dict[str, int]) -> list[Node]:
        """The nodes of one cycle among those that could not be scheduled."""
        node = next(n for n in self if waiting[n.id])
        seen: list[Node] = []
        while node not in seen:
            seen.append(node)
            node = next(i for i in node.inputs if waiting[i.id])
        cycle = seen[seen.index(node) :]
        return [node, *reversed(cycle)]

    def needed(self) -> set[str]:
        """The ids of the nodes that an output depends on."""
        return self.needed_by(self.outputs.values())

    def needed_by(self, nodes: Iterable[Node]) -> set[str]:
        """The ids of some nodes and of those that they depend on."""
        out: set[str] = set()
        pending = list(nodes)
        while pending:
            node = pending.pop()
            if node.id not in out:
                out.add(node.id)
                pending += node.inputs
        return out

    def output_of(self, node_id: str) -> str | None:
        """The first output, in the order in which they were made, that depends on a node."""
        return next((name for name, node in self.outputs.items() if node_id in self.needed_by([node])), None)

    def pruned(self) -> Graph:
        """The graph without nodes that no output depends on; sources stay."""
        needed = self.needed()
        graph = Graph()
        graph.nodes = {i: n for i, n in self.nodes.items() if i in needed or n.role == "source"}
        graph.outputs = dict(self.outputs)
        return graph

    def to_dot(self) -> str:
        """The graph in the language of Graphviz."""
        lines = ["digraph circuit {", '  rankdir=LR; node [shape=box, fontname="sans-serif", fontsize=10];']
        names = {node.id: f"n{i}" for i, node in enumerate(self)}
        for node in self:
            style = {"source": ", style=rounded", "delay": ", style=dashed"}.get(node.role, "")
            lines.append(f"  {names[node.id]} [label={_quoted(node.label)}{style}];")
        for node in self:
            for source in node.inputs:
                look = {"value": " [style=bold]", "arranged": ' [color="#2060c0"]'}.get(source.kind, "")
                lines.append(f"  {names[source.id]} -> {names[node.id]}{look};")
        for i, (name, node) in enumerate(self.outputs.items()):
            lines.append(f"  out_{i} [label={_quoted(name)}, shape=ellipse];")
            lines.append(f"  {names[node.id]} -> out_{i};")
        return "\n".join([*lines, "}"])

    def explain(self) -> str:
        """The graph as an indented text, from each output down."""
        lines: list[str] = []
        seen: dict[str, int] = {}
        for name, output in self.outputs.items():
            lines.append(f"{name}:")
            pending = [(output, 1)]
            while pending:
                node, depth = pending.pop()
                known = node.id in seen
                number = seen.setdefault(node.id, len(seen) + 1)
                lines.append(f"{'  ' * depth}#{number} {node.label}{' (above)' if known else ''}")
                if not known:
                    pending += [(source, depth + 1) for source in reversed(node.inputs)]
        return "\n".join(lines)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _hint(expected: Kind, actual: Kind) -> str:
    return {
        ("delta", "value"): "differentiate it first",
        ("value", "delta"): "integrate it first",
        ("arranged", "delta"): "arrange it first",
        ("delta", "arranged"): "use the stream that was arranged",
    }.get((expected, actual), "convert it first")
