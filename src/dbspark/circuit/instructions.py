"""Operators as instructions for `kernels.vm.interpreter`: for each kind of operator, the lines that do its step.

An operator has an instruction where its columns are flat and whatever else it is made of has one: conditions and values
as code (`operators.function.Coded`), aggregates that one kernel folds. All others step by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any, Final

import pyarrow as pa

from dbspark.circuit.graph import Node
from dbspark.columnar import SortKey
from dbspark.columnar.schema import Schema
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.vm import expressions as kv
from dbspark.kernels.vm import interpreter as km
from dbspark.kernels.vm import result_columns as ks
from dbspark.operators.aggregate import Aggregate, Average, Count, Extreme, GroupAggregate
from dbspark.operators.aggregate import Sum as SumOf
from dbspark.operators.distinct import Distinct
from dbspark.operators.join import Join
from dbspark.operators.linear import Consolidate, Exchange, FlatMap, Map, Project, Select, Sum
from dbspark.operators.operator import Arrange, Operator
from dbspark.operators.ordered import TopK

ALWAYS: Final = -1
"""Instead of a register that says whether something is wanted."""


class Registers:
    """Numbers of registers and states, handed out as they are needed."""

    def __init__(self, mask: int) -> None:
        self.mask = mask
        """Which bits of a hash count."""
        self.count = 0
        self.states: list[str] = []
        """The nodes whose states they are."""
        self.of: dict[str, int] = {}
        """The register of each node that has one."""
        self.given: set[int] = set()
        """Those of what comes from elsewhere."""

    def new(self) -> int:
        self.count += 1
        return self.count - 1

    def state(self, node: Node) -> int:
        if node.id not in self.states:
            self.states.append(node.id)
        return self.states.index(node.id)


@dataclass(slots=True)
class Instruction:
    """The lines of a node, given whether its result is kept."""

    lines: Callable[[int], Sequence[int]]
    passes: tuple[str, ...] = ()
    """Nodes in whose memory its result may lie."""
    inserts: int | None = None
    """The register with what its state takes in."""
    kept: Any = field(default=None)
    """What its lines name by address."""


def instruction(node: Node, registers: Registers) -> Instruction | None:
    """How the machine does the step of a node whose inputs have registers; None where it cannot."""
    operator = node.operator
    if operator is None or operator.schema.nested or any(i.schema.nested for i in node.inputs):
        return None
    if any(i.id not in registers.of for i in node.inputs) or node.kind not in ("delta", "arranged"):
        return None
    return _written(operator, node, registers)


def line(instruction: int, *operands: int) -> list[int]:
    return [instruction, 2 + len(operands), *operands]


def arranging(
    sort_key: SortKey, given: int, out: int, kept: int, mask: int, wanted: int = ALWAYS, known: bool = False
) -> list[int]:
    """Rows of a register in order. `known`: they have the hashes of whole rows."""
    return line(km.ARRANGE, given, out, kept, wanted, int(known), mask, sort_key.kernel_spec_address)


def passed(columns: Sequence[tuple[int, int]]) -> list[int]:
    """Columns of either side as they are: (side, column)."""
    return [word for side, c in columns for word in (ks.PASS_THROUGH, side, nd.LANES + c, 0, 0)]


def _all(schema: Schema) -> list[int]:
    return passed([(0, c) for c in range(schema.columns)])


def _placed(code: Sequence[int], place: Callable[[int], tuple[int, int]]) -> list[int]:
    """Code whose columns are found where `place` says: (side, column)."""
    out, at = list(code), 0
    while at < len(out):
        if out[at] in (kv.LOAD, kv.STRING_IN_SET):
            side, column = place(out[at + 4])
            out[at + 3], out[at + 4] = side, nd.LANES + column
        at += out[at + 1]
    return out


def _projecting(
    given: int, out: int, kept: int, schema: Schema, test: Sequence[int], code: Sequence[int], columns: Sequence[int]
) -> list[int]:
    slots = max(kv.slot_count(test), kv.slot_count(code))
    return line(
        km.PROJECT, given, out, kept, schema.node_count, len(test), len(code), len(columns) // ks.COLUMN_WORDS, slots,
        *test, *code, *columns,
    )  # fmt: skip


def _is_identity(columns: Sequence[int], node: Node, registers: Registers) -> bool:
    """Whether a node gives the columns that the machine has put into its input as they are."""
    before = node.inputs[0]
    computed = before.kind == "delta" and registers.of[before.id] not in registers.given
    return computed and list(columns) == list(range(before.schema.columns))


def _the_same(node: Node, registers: Registers) -> Instruction:
    """The rows that come, column by column, perhaps under other names."""
    registers.of[node.id] = registers.of[node.inputs[0].id]
    return Instruction(lambda kept: (), passes=(node.inputs[0].id,))


@singledispatch
def _written(operator: Operator, node: Node, registers: Registers) -> Instruction | None:
    return None


@_written.register
def _(operator: Arrange, node: Node, registers: Registers) -> Instruction:
    given, out = registers.of[node.inputs[0].id], registers.new()
    registers.of[node.id] = out
    registers.state(node)

    def lines(kept: int) -> list[int]:
        return arranging(operator.sort_key, given, out, 1, registers.mask)

    return Instruction(lines, inserts=out)


@_written.register
def _(operator: Project, node: Node, registers: Registers) -> Instruction:
    if _is_identity(operator.columns, node, registers):
        return _the_same(node, registers)
    given, out = registers.of[node.inputs[0].id], registers.new()
    registers.of[node.id] = out
    columns = passed([(0, c) for c in operator.columns])

    def lines(kept: int) -> list[int]:
        return _projecting(given, out, kept, operator.schema, (), (), columns)

    return Instruction(lines, passes=(node.inputs[0].id,))


@_written.register
def _(operator: Select, node: Node, registers: Registers) -> Instruction | None:
    coded = operator.function.coded
    if coded is None or not coded.test:
        return None
    given, out = registers.of[node.inputs[0].id], registers.new()
    registers.of[node.id] = out
    test = _placed(coded.test, lambda c: (0, operator.given[c]))
    columns = passed([(0, c) for c in operator.columns])

    def lines(kept: int) -> list[int]:
        return _projecting(given, out, kept, operator.schema, test, (), columns)

    return Instruction(lines, passes=(node.inputs[0].id,), kept=coded)


@_written.register(Map)
@_written.register(FlatMap)
def _(operator: Map | FlatMap, node: Node, registers: Registers) -> Instruction | None:
    coded = operator.function.coded
    if coded is None or not coded.columns:
        return None
    if not coded.test and _is_identity([c.number if c.kind < 0 else -1 for c in coded.columns], node, registers):
        return _the_same(node, registers)
    given, out = registers.of[node.inputs[0].id], registers.new()
    registers.of[node.id] = out
    test, code = (_placed(some, lambda c: (0, c)) for some in (coded.test, coded.code))
    columns: list[int] = []
    for shown in coded.columns:
        if shown.kind < 0:
            columns += passed([(0, shown.number)])
        else:
            columns += [ks.COMPUTED, shown.kind, shown.number, shown.width, 0]

    def lines(kept: int) -> list[int]:
        return _projecting(given, out, kept, operator.schema, test, code, columns)

    return Instruction(lines, passes=(node.inputs[0].id,), kept=coded)


@_written.register
def _(operator: Exchange, node: Node, registers: Registers) -> Instruction:
    return _the_same(node, registers)


@_written.register
def _(operator: Sum, node: Node, registers: Registers) -> Instruction | None:
    if any(sign != 1 for sign in operator.signs):
        return None
    given, out = [registers.of[i.id] for i in node.inputs], registers.new()
    registers.of[node.id] = out
    schema = operator.schema

    def lines(kept: int) -> list[int]:
        return line(km.SUM, out, kept, schema.columns, schema.node_count, len(given), *given, *_all(schema))

    return Instruction(lines)


@_written.register
def _(operator: Consolidate, node: Node, registers: Registers) -> Instruction:
    given, out, schema = registers.of[node.inputs[0].id], registers.new(), operator.schema
    registers.of[node.id] = out
    nodes = range(nd.LANES, nd.LANES + schema.columns)

    def lines(kept: int) -> list[int]:
        return line(
            km.CONSOLIDATE, given, out, kept, registers.mask, schema.node_count, schema.columns, *nodes, *_all(schema)
        )

    return Instruction(lines, passes=(node.inputs[0].id,))


@_written.register
def _(operator: Distinct, node: Node, registers: Registers) -> Instruction:
    source, schema = node.inputs[0], operator.schema
    given, state, out = registers.of[source.id], registers.state(source), registers.new()
    registers.of[node.id] = out

    def lines(kept: int) -> list[int]:
        return line(km.DISTINCT, given, state, out, kept, schema.columns, schema.node_count, *_all(schema))

    return Instruction(lines, passes=(source.id,))


@_written.register
def _(operator: TopK, node: Node, registers: Registers) -> Instruction:
    source, schema, key = node.inputs[0], operator.schema, operator.sort_key.key_nodes.tolist()
    given, state, out = registers.of[source.id], registers.state(source), registers.new()
    registers.of[node.id] = out

    def lines(kept: int) -> list[int]:
        return line(
            km.TOP_K, given, state, out, kept, operator.offset, operator.limit, schema.columns, schema.node_count,
            len(key), *key, *_all(schema),
        )  # fmt: skip

    return Instruction(lines)


@_written.register
def _(operator: Join, node: Node, registers: Registers) -> Instruction | None:
    if type(operator) is not Join or operator.how != "inner":
        return None
    residual = operator.residual
    if residual is not None and (residual.coded is None or not residual.coded.test):
        return None
    code: list[int] = []
    if residual is not None:
        assert residual.coded is not None
        wide = operator.sides[0].schema.columns
        code = _placed(residual.coded.test, lambda c: (0, c) if c < wide else (1, c - wide))
    sides, keys = [registers.of[i.id] for i in node.inputs], [a.key_nodes.tolist() for a in operator.sides]
    states = [registers.state(i) for i in node.inputs]
    out = registers.new()
    registers.of[node.id] = out
    nodes = max(a.schema.node_count for a in operator.sides)
    columns = passed(operator.columns)

    def lines(kept: int) -> list[int]:
        return line(
            km.JOIN, *sides, *states, out, kept, int(operator.null_safe), nodes, operator.schema.node_count,
            len(keys[0]), len(code), kv.slot_count(code), len(columns) // ks.COLUMN_WORDS, *keys[0], *keys[1], *code,
            *columns,
        )  # fmt: skip

    return Instruction(lines, kept=None if residual is None else residual.coded)


@_written.register
def _(operator: GroupAggregate, node: Node, registers: Registers) -> Instruction | None:
    fold, shown = operator.fold, _results(operator)
    if fold is None or shown is None or len(node.inputs) > 2:
        return None
    state_sort_key = operator.accumulators
    state_schema = state_sort_key.schema
    given, arranged, more = registers.of[node.inputs[0].id], ALWAYS, 0
    if len(node.inputs) == 2:
        arranged, more = registers.of[node.inputs[1].id], registers.state(node.inputs[1])
    state, rows, inserted, out = registers.state(node), registers.new(), registers.new(), registers.new()
    registers.of[node.id] = out
    origins = [word for side, n in fold.origins.tolist() for word in (ks.PASS_THROUGH, side, n, 0, 0)]
    template = state_schema.template
    folds, values = fold.folds.ravel().tolist(), fold.value.tolist()
    described = [word for pair in fold.described for word in pair]
    folding = (
        km.AGGREGATE, given, state, arranged, more, rows, registers.mask, operator.source.columns, state_schema.columns,
        fold.nodes, fold.count, fold.words, template.ctypes.data, state_schema.node_count, len(fold.key_nodes),
        len(folds) // 5, len(values), len(described) // 2,
    )  # fmt: skip
    details = (*fold.key_nodes.tolist(), *fold.state_keys.tolist(), *folds, *values, *described, *origins)
    some = [
        *kv.line(kv.LOAD, 1, 0, fold.count), *kv.line(kv.CONSTANT, 2, 0, 0), *kv.line(kv.EQUAL, 3, 1, 2),
        *kv.line(kv.NOT, 0, 3),
    ]  # fmt: skip

    def lines(kept: int) -> list[int]:
        return [
            *line(*folding, kept, *details),  # what comes out may lie in the memory of the rows of state
            *arranging(state_sort_key, rows, inserted, 1, registers.mask),
            *_projecting(rows, out, kept, operator.schema, some, (), shown),
        ]

    return Instruction(lines, inserts=inserted, kept=template)


def _results(operator: GroupAggregate) -> list[int] | None:
    """How the results of aggregates are shown, from rows of state; None where the machine cannot."""
    columns = passed([(0, c) for c in range(len(operator.key))])
    for aggregate, (begin, _) in zip(operator.aggregates, operator.spans, strict=True):
        shown = _result(aggregate, nd.LANES + begin)
        if shown is None:
            return None
        columns += shown
    return columns


def _result(aggregate: Aggregate, node: int) -> list[int] | None:
    if isinstance(aggregate, Count | Extreme):
        return [ks.PASS_THROUGH, 0, node, 0, 0]
    if isinstance(aggregate, SumOf):
        if aggregate.out == pa.int64():
            return [ks.SUM64, nd.FIXED, node, node + 1, 0]
        digits = aggregate.out.precision
        limit = 0 if digits == 38 else min(10**digits, (1 << 63) - 1)
        return [ks.SUM128, nd.FIXED, node, node + 1, limit]
    if isinstance(aggregate, Average) and isinstance(aggregate.sum, SumOf) and aggregate.out == pa.float64():
        return [ks.AVERAGE, nd.FLOAT64, node, node + 1, 0]
    return None


__all__ = ["ALWAYS", "Instruction", "Registers", "arranging", "instruction", "line", "passed"]
