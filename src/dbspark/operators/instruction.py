"""Instructions of operators for the operator VM (`kernels.vm.interpreter`): what an operator needs to write its own.

`Operator.instruction` is given an `InstructionSite` (the registers and states of the operator and its inputs) and
returns an `Instruction`, or None: then the VM calls the step of the operator instead. An operator has an instruction if
its columns are flat, its functions have bytecode (`operators.function`), and one kernel updates all of its aggregates.

The code of an instruction is a sequence of words: its number, how many words follow, operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dbspark.columnar import SortKey
from dbspark.columnar.schema import Schema
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.vm import expressions as kv
from dbspark.kernels.vm import interpreter as km
from dbspark.kernels.vm import result_columns as ks

ALWAYS: Final = -1
"""Operand instead of a register that says whether to run an instruction: run it in every tick."""


class Registers:
    """Allocates the numbers of registers and states."""

    def __init__(self, mask: int) -> None:
        self.mask = mask
        """The mask that kernels apply to hashes."""
        self.count = 0
        self.states: list[str] = []
        """For each state the node that it belongs to."""
        self.of: dict[str, int] = {}
        """The register of each node that has one."""
        self.external: set[int] = set()
        """Registers that are not written by code but filled before it runs."""

    def new(self) -> int:
        self.count += 1
        return self.count - 1

    def state(self, node: str) -> int:
        if node not in self.states:
            self.states.append(node)
        return self.states.index(node)


@dataclass(slots=True)
class Instruction:
    """The code of an operator."""

    lines: Callable[[int], Sequence[int]]
    """Returns the code, given whether the result is retained (1) or only read by the VM in the same tick (0)."""
    out: int
    """The register of the result."""
    passes: tuple[str, ...] = ()
    """Inputs whose memory the result may share."""
    inserts: int | None = None
    """The register of the batch that the state inserts."""
    references: Any = field(default=None)
    """Objects whose memory the code addresses."""


@dataclass(frozen=True, slots=True)
class InstructionSite:
    """The registers and states available to one operator's instruction. Inputs are counted from 0."""

    node: str
    inputs: tuple[str, ...]
    schemas: tuple[Schema, ...]
    """Schemas of the inputs."""
    computed: tuple[bool, ...]
    """Which inputs are deltas that the VM computes itself."""
    registers: Registers

    @property
    def mask(self) -> int:
        return self.registers.mask

    def input(self, number: int = 0) -> int:
        """The register of an input."""
        return self.registers.of[self.inputs[number]]

    def input_state(self, number: int = 0) -> int:
        """The number of the state of an input."""
        return self.registers.state(self.inputs[number])

    def state(self) -> int:
        """The number of the operator's own state."""
        return self.registers.state(self.node)

    def register(self) -> int:
        """A new register."""
        return self.registers.new()

    def is_identity(self, columns: Sequence[int]) -> bool:
        """Whether `columns` are all columns of the first input, in order, and the VM computes that input itself."""
        return self.computed[0] and list(columns) == list(range(self.schemas[0].columns))

    def same_rows(self) -> Instruction:
        """The first input unchanged, except perhaps for column names: needs no code."""
        return Instruction(lambda retained: (), self.input(), passes=self.inputs[:1])

    def projection(
        self, schema: Schema, test: Sequence[int], code: Sequence[int], columns: Sequence[int], references: Any = None
    ) -> Instruction:
        """A filter and projection of the first input: `columns` of the rows for which the bytecode `test` holds."""
        source, out = self.input(), self.register()

        def lines(retained: int) -> list[int]:
            return projection_line(source, out, retained, schema, test, code, columns)

        return Instruction(lines, out, passes=self.inputs[:1], references=references)


def instruction_words(instruction: int, *operands: int) -> list[int]:
    return [instruction, 2 + len(operands), *operands]


def sort_line(
    sort_key: SortKey, source: int, out: int, retained: int, mask: int, wanted: int = ALWAYS, hashed: bool = False
) -> list[int]:
    """Sort the rows of register `source` into `out`, if register `wanted` says so. `hashed`: the rows have row
    hashes."""
    return instruction_words(km.ARRANGE, source, out, retained, wanted, int(hashed), mask, sort_key.kernel_spec_address)


def projection_line(
    source: int, out: int, retained: int, schema: Schema, test: Sequence[int], code: Sequence[int],
    columns: Sequence[int],
) -> list[int]:  # fmt: skip
    slots = max(kv.slot_count(test), kv.slot_count(code))
    return instruction_words(
        km.PROJECT, source, out, retained, schema.node_count, len(test), len(code), len(columns) // ks.COLUMN_WORDS,
        slots, *test, *code, *columns,
    )  # fmt: skip


def pass_through(columns: Sequence[tuple[int, int]]) -> list[int]:
    """Result columns that are unchanged input columns, given as (side, column)."""
    return [word for side, c in columns for word in (ks.PASS_THROUGH, side, nd.LANES + c, 0, 0)]


def all_columns(schema: Schema) -> list[int]:
    """Result columns that are all columns of the input, unchanged."""
    return pass_through([(0, c) for c in range(schema.columns)])


def relocated(code: Sequence[int], place: Callable[[int], tuple[int, int]]) -> list[int]:
    """Bytecode of an expression with each column number replaced by `place(number)`: (side, column)."""
    out, at = list(code), 0
    while at < len(out):
        if out[at] in (kv.LOAD, kv.STRING_IN_SET):
            side, column = place(out[at + 4])
            out[at + 3], out[at + 4] = side, nd.LANES + column
        at += out[at + 1]
    return out


__all__ = [
    "ALWAYS", "Instruction", "InstructionSite", "Registers", "all_columns", "instruction_words",
    "pass_through", "projection_line", "relocated", "sort_line",
]  # fmt: skip
