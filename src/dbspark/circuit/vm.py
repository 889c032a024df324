"""The operator VM of a circuit: generates its code, runs ticks of small deltas, and wraps the results.

Operators with an instruction (`Operator.instruction`) are compiled to code for `kernels.vm.interpreter`; between pieces
of code the others step as usual, on what the VM has computed so far. `OperatorVM.run` returns None where a tick is not
for the VM (a large delta, weights beyond int64, an error to raise): nothing is changed then, and the operators step.

Results that leave the VM (outputs, inputs of other operators, batches for states) are in *retained* memory, one arena
for each tick. A column that is passed through lies in the memory of the input, so its readers keep that alive as well.
Registers and scratch memory belong to the VM and are overwritten by the next tick.

**Buffered ticks.** Inserting a small batch into a spine costs more than computing it, so states that only the VM reads
insert the batches of several ticks at once. Until then the ticks are *buffered*:
1. The VM has mutable directories of its own, in which the interpreter appends the batches behind those of the spines.
2. The circuit holds the buffered ticks as an immutable value beside its states, so snapshots and resets include them.
3. States that other operators read insert every tick by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from dbspark.circuit.graph import Graph, Node
from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar import sort_key as hashing
from dbspark.columnar.batch_index import BatchIndex
from dbspark.columnar.chunk import Chunk
from dbspark.columnar.delta import ChunkedDelta, Delta
from dbspark.columnar.memory import allocate
from dbspark.columnar.row_times import SURVEY_OF_NO_TIME
from dbspark.columnar.sort_batch import SortedChunks
from dbspark.kernels.lookup.directory import append_batch
from dbspark.kernels.vm import interpreter as km
from dbspark.kernels.vm import registers as kr
from dbspark.operators.arranged import Arranged, State
from dbspark.operators.instruction import Instruction, InstructionSite, Registers, instruction_words, sort_line
from dbspark.operators.linear import Exchange
from dbspark.trace.directory import MutableDirectory
from dbspark.trace.spine import Spine

MAX_VM_ROWS: Final = km.MAX_DELTA_ROWS
"""Limit of the rows of a delta; a tick with a larger one runs operator by operator."""
_MIN_UNLOCKED_ROWS: Final = 1024
"""With at least this many rows in all inputs the GIL is released while code runs; such ticks are not buffered."""
_MIN_ARENA_BYTES: Final = 1 << 13
"""Minimum size of the retained arena of a tick."""


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """Limits beyond which states insert the buffered ticks."""

    ticks: int = 64
    """Buffered ticks."""
    rows: int = 4096
    """Buffered rows of one state."""
    batch_rows: int = 512
    """Rows of one batch: probing a larger one in the buffer costs more than inserting it."""
    weight: int = 1 << 31
    """Weight of one row."""
    state_weight: int = 1 << 62
    """Bound on the sum of the weights of a state; nothing is buffered for a larger one, so that no sum overflows."""


BUFFER_LIMITS: Final = BufferLimits()

_REGISTER: Final = Struct(f"{kr.REGISTER_WORDS}q")
_STATE: Final = Struct(f"{km.STATE_WORDS}q")
_WORD: Final = Struct("q")


class TableConstraint(NamedTuple):
    """The constraint on the deltas of a table: the sort key of its rows, and whether keys are unique."""

    sort_key: SortKey
    unique: bool


class TableCheck(Protocol):
    """Asks the VM to check that a change does not violate the constraints of its table."""

    place: int
    """Address of the table's mutable directory; 0 where the VM is not to check."""
    listing: bool
    """Whether the VM is to append the change to the directory when the tick succeeds."""


class BufferedTick(NamedTuple):
    """A tick whose batches states have not inserted yet."""

    registers: bytes
    """All registers after the tick."""
    arena: Any


class StateRowCounts(NamedTuple):
    """Row counts by state, decoded when they are read: a copy of memory, and the offset of each count in it."""

    at: Mapping[str, int]
    memory: bytes

    def items(self) -> Iterator[tuple[str, int]]:
        for name, offset in self.at.items():
            yield name, _WORD.unpack_from(self.memory, offset)[0]


class OperatorVM:
    """The compiled operators of a circuit, with the memory that they work in."""

    def __init__(
        self, graph: Graph, schedule: Sequence[Node], tables: Mapping[str, TableConstraint] | None = None
    ) -> None:
        """`tables`: by source name, the constraints that a tick may be asked to check."""
        self.mask = hashing._mask
        registers = Registers(hashing._mask_word)
        self.inputs: dict[str, int] = {}
        """Registers filled from outside: sources and delays first, then operators without an instruction."""
        for node in graph:
            if node.role != "operator":
                self._add_input(node, registers)
        self._tick_inputs = [(node, register * kr.REGISTER_WORDS) for node, register in self.inputs.items()]
        """Sources and delays, which are known when a tick begins, and the first words of their registers."""
        self._statistics = registers.new()
        """The register in which APPEND_TO_STATE collects sizes and weights of the buffered batches."""
        sources = {str(n.name): self.inputs[n.id] for n in graph if n.role == "source" and n.id in self.inputs}
        checked = {n: registers.new() for n in tables or {} if n in sources}
        self._checked = [(n, register * kr.REGISTER_WORDS) for n, register in checked.items()]
        """The first words of registers of checked tables: directory, and whether to append the change to it."""
        flags = {n: registers.new() for n in graph.outputs}
        self._flags = [(n, register * kr.REGISTER_WORDS + kr.REG_ROWS) for n, register in flags.items()]
        """Words that say which outputs are to be sorted."""
        compiled: dict[str, Instruction] = {}
        order = _compile_in_order(schedule, registers, compiled, lambda node: self._add_input(node, registers))
        outputs = {node.id for node in graph.outputs.values()}
        read = {i.id for n in graph if n.id not in compiled for i in n.inputs}
        self.compiled = frozenset(compiled)
        self.retained = _with_shared_memory(outputs | read, compiled) & self.compiled
        """Nodes whose results are in retained memory."""
        self.shares = {n: sorted(_with_shared_memory({n}, compiled) & set(self.inputs)) for n in self.retained}
        """Inputs in whose memory columns of a node's result may lie."""
        self.inserts = {n: i.inserts for n, i in compiled.items() if i.inserts is not None}
        """Registers of the batches that states insert in every tick."""
        arranged = {n.id for n in graph if n.kind == "arranged"} & self.retained
        self.buffered_inserts = {n: self.inserts.pop(n) for n in list(self.inserts) if n not in arranged}
        """Registers of the batches for states that only the VM reads, which insert those of several ticks at once."""
        self.states = list(registers.states)
        self.direct_states = [(i, n) for i, n in enumerate(self.states) if n not in self.buffered_inserts]
        self.exchange_inputs = {n.id: _exchange_input(n) for n in schedule if isinstance(n.operator, Exchange)}
        """The nodes whose deltas exchanges pass on."""
        self.steps: list[tuple[int, int] | Node] = []
        """What a tick runs: pieces of code (address, words), and operators without an instruction."""
        code: list[int] = []
        for name, register in checked.items():
            sort_key, unique = (tables or {})[name]
            key, schema = sort_key.key_nodes.tolist(), sort_key.schema
            operands = int(unique), schema.columns, schema.node_count, len(key), *key
            code += instruction_words(km.CHECK_TABLE, sources[name], register, *operands)
        pieces: list[tuple[int, int] | Node] = [(0, len(code))]
        for node in order:
            found = compiled.get(node.id)
            if found is None:
                pieces.append(node)
            else:
                begin = len(code)
                code += found.lines(int(node.id in self.retained))
                pieces.append((begin, len(code)))
        self.sorted_outputs: dict[str, tuple[int, SortKey]] = {}
        """For outputs that a tick may be asked to sort: register of the sorted rows, and their sort key."""
        begin = len(code)
        for name, node in graph.outputs.items():
            if node.id in registers.of and node.kind == "delta":
                out, by_row = self.sorted_outputs[name] = registers.new(), SortKey(node.schema)
                code += sort_line(by_row, registers.of[node.id], out, 1, registers.mask, flags[name])
        for node_id, inserted in self.buffered_inserts.items():
            code += instruction_words(km.APPEND_TO_STATE, inserted, registers.states.index(node_id), self._statistics)
        for name, register in checked.items():
            code += instruction_words(km.APPEND_TO_TABLE, sources[name], register)
        pieces.append((begin, len(code)))
        self.registers_of = dict(registers.of)
        self._code, self._referenced = np.array(code, np.int64), [i.references for i in compiled.values()]
        self._set_steps(pieces)
        self._registers = _allocate_words(registers.count * kr.REGISTER_WORDS)
        self._cells = memoryview(self._registers).cast("q")
        """The words of all registers."""
        self._cells[:] = memoryview(bytes(self._registers.size)).cast("q")
        self._state_lines = _allocate_words(km.STATE_WORDS * len(self.states))
        self._row_count_at = {
            n: self.states.index(n) * _STATE.size + 8 * km.STATE_BUFFERED_ROWS for n in self.buffered_inserts
        }
        """Offsets at which the interpreter counts the buffered rows of states."""
        self._directory_states: Mapping[str, State] | None = None
        """The states whose batches are in the mutable directories; None if these are not in use."""
        self._buffered: tuple[BufferedTick, ...] | None = None
        """The buffered ticks whose batches are in the mutable directories, behind those of the states."""
        self._directories = {
            n: MutableDirectory(self._state_lines, self.states.index(n) * _STATE.size) for n in self.buffered_inserts
        }
        self._max_ticks = BUFFER_LIMITS.ticks
        self._arenas = _allocate_words(2 * kr.ARENA_WORDS)
        self._arena_words = memoryview(self._arenas).cast("q")
        self._addresses = self._registers.address, self._state_lines.address, self._arenas.address
        self._scratch = allocate(1 << 19)
        self._arena_bytes = _MIN_ARENA_BYTES
        """Size of the retained arena of the next tick."""

    @property
    def useful(self) -> bool:
        """Whether it runs more than one operator; for a single one a call of the VM costs more than it saves."""
        return len(self.compiled) > 1

    def _add_input(self, node: Node, registers: Registers) -> None:
        if node.kind == "delta" and not node.schema.nested:
            self.inputs[node.id] = registers.of[node.id] = register = registers.new()
            registers.external.add(register)

    def _set_steps(self, pieces: Sequence[tuple[int, int] | Node]) -> None:
        """Join adjacent pieces of code into steps."""
        address = self._code.ctypes.data
        joined: list[Any] = []
        for piece in pieces:
            if isinstance(piece, Node):
                joined.append(piece)
            elif joined and not isinstance(joined[-1], Node):
                joined[-1] = joined[-1][0], piece[1]
            else:
                joined.append(piece)
        steps = [p if isinstance(p, Node) else (address + 8 * p[0], p[1] - p[0]) for p in joined]
        self.steps = [s for s in steps if isinstance(s, Node) or s[1] > 0]

    def run(
        self,
        values: dict[str, Any],
        states: Mapping[str, State],
        buffered: tuple[BufferedTick, ...] = (),
        sorted_outputs: Collection[str] = (),
        checks: Mapping[str, TableCheck] | None = None,
    ) -> VmRun | None:
        """Run one tick after the buffered ones; None if the operators have to run it.

        `values`: by node, the deltas of sources and delays. `checks`: by source, the tables to check.
        """
        if hashing._mask is not self.mask:
            return None
        rows = 0
        for node, _ in self._tick_inputs:
            value = values[node]
            if value.rows > MAX_VM_ROWS or type(value) is ChunkedDelta:
                return None
            rows += value.rows
        large = rows >= _MIN_UNLOCKED_ROWS
        if large and not buffered:
            self._use_spine_directories(states)
        elif buffered is not self._buffered or states is not self._directory_states:
            self._copy_directories(states, buffered)
        while True:
            tick = VmRun(self, values, states, self._arena_bytes)
            self._write_inputs(tick, sorted_outputs, checks)
            try:
                status = self._run_steps(tick, int(large))
                scratch_used = self._arena_words[kr.ARENA_USED]
                retained_used = self._arena_words[kr.ARENA_WORDS + kr.ARENA_USED]
                if status == kr.STATUS_OK:
                    # The next tick gets between one and a half times and twice what this one has used.
                    self._arena_bytes = max(
                        _MIN_ARENA_BYTES, min(self._arena_bytes, 2 * retained_used), retained_used + retained_used // 2
                    )
                    tick.buffered = self._buffer(buffered, tick)
                    tick.flush |= large
                    if self._directory_states is not None:
                        self._buffered = tick.buffered
                    return tick
            except BaseException:
                # The directories may contain batches of the failed tick: copy them again for the next one.
                self._directory_states = self._buffered = None
                raise
            if status == kr.STATUS_FALL_BACK:
                return None
            if scratch_used > self._scratch.size:
                self._scratch = allocate(2 * scratch_used)
            self._arena_bytes = max(self._arena_bytes, 2 * retained_used)

    def remove_made_checks(self, checks: dict[str, Any]) -> None:
        """Remove the checks that the VM has done; the caller does those that remain."""
        for name, _ in self._checked:
            if name in checks and checks[name].place:
                del checks[name]

    def _use_spine_directories(self, states: Mapping[str, State]) -> None:
        """Let the code read the spines' own directories, to which it cannot append."""
        self._directory_states = self._buffered = None
        for node in self.buffered_inserts:
            spine = states[node][0]
            at = self.states.index(node) * _STATE.size
            _STATE.pack_into(self._state_lines, at, spine.directory, spine.chunks, -1)

    def _copy_directories(self, states: Mapping[str, State], buffered: tuple[BufferedTick, ...]) -> None:
        """Copy the spines' directories to mutable ones and append the buffered ticks."""
        self._directory_states = self._buffered = None  # not in use until all are copied, because copying may fail
        self._max_ticks = BUFFER_LIMITS.ticks
        for node, register in self.buffered_inserts.items():
            at, spine = self.states.index(node) * _STATE.size, states[node][0]
            self._directories[node].copy(spine, BUFFER_LIMITS.ticks + 1)
            if spine.bound() > BUFFER_LIMITS.state_weight:
                self._max_ticks = 1
            buffered_rows = 0
            for registers, _ in buffered:
                table, rows, *_ = _REGISTER.unpack_from(registers, register * _REGISTER.size)
                buffered_rows += rows
                if rows:
                    append_batch(self._state_lines.address + at, table, rows)
            _WORD.pack_into(self._state_lines, at + 8 * km.STATE_BUFFERED_ROWS, buffered_rows)
        self._directory_states, self._buffered = states, buffered

    def _buffer(self, buffered: tuple[BufferedTick, ...], tick: VmRun) -> tuple[BufferedTick, ...]:
        """The buffered ticks with one more, if it has changed any state; sets `tick.flush`."""
        cells, begin = self._cells, self._statistics * kr.REGISTER_WORDS
        batch_rows = cells[begin + kr.REG_ROWS]
        if not batch_rows:
            return buffered
        tick.flush = (
            batch_rows >= BUFFER_LIMITS.batch_rows
            or cells[begin + km.REG_BUFFERED_ROWS] >= BUFFER_LIMITS.rows
            or cells[begin + kr.REG_SURVEY] >= BUFFER_LIMITS.weight
            or len(buffered) + 1 >= self._max_ticks
        )
        return (*buffered, BufferedTick(tick.registers, tick.arena))

    def flushed_states(self, states: Mapping[str, State], buffered: Sequence[BufferedTick]) -> dict[str, State]:
        """The states that change when the batches of buffered ticks are inserted."""
        out: dict[str, State] = {}
        for node, register in self.buffered_inserts.items():
            before = states[node][0]
            found = [_batch(registers, arena, register, before.sort_key) for registers, arena in buffered]
            batches = [batch for batch in found if batch.rows]
            if batches:
                out[node] = (before.insert(batches[0] if len(batches) == 1 else merge(batches)),)
        return out

    def buffered_rows(self, buffered: Sequence[BufferedTick]) -> StateRowCounts:
        """By state, the rows of buffered ticks."""
        if buffered is self._buffered:
            return StateRowCounts(self._row_count_at, self._state_lines.to_pybytes())
        rows = [
            sum([_REGISTER.unpack_from(tick.registers, r * _REGISTER.size)[kr.REG_ROWS] for tick in buffered])
            for r in self.buffered_inserts.values()
        ]
        at = {n: 8 * i for i, n in enumerate(self.buffered_inserts)}
        return StateRowCounts(at, Struct(f"{len(rows)}q").pack(*rows))

    def _write_inputs(
        self, tick: VmRun, sorted_outputs: Collection[str], checks: Mapping[str, TableCheck] | None
    ) -> None:
        """Fill the registers, states and arenas that a tick begins with."""
        cells, arenas = self._cells, self._arena_words
        for node, at in self._tick_inputs:
            cells[at], cells[at + 1] = tick.register_words(node)
        at = self._statistics * kr.REGISTER_WORDS
        cells[at + kr.REG_ROWS] = cells[at + kr.REG_SURVEY] = cells[at + km.REG_BUFFERED_ROWS] = 0
        for name, at in self._checked:
            check = checks.get(name) if checks else None
            cells[at], cells[at + 1] = (0, 0) if check is None else (check.place, check.listing)
        for name, at in self._flags:
            cells[at] = name in sorted_outputs
        for i, node in self.direct_states:
            spine = tick.before[node][0]
            _STATE.pack_into(self._state_lines, i * _STATE.size, spine.directory, spine.chunks, 0)
        arenas[0], arenas[1], arenas[2] = self._scratch.address, 0, self._scratch.size
        arenas[3], arenas[4], arenas[5] = tick.arena.address, 0, tick.arena.size

    def _run_steps(self, tick: VmRun, large: int) -> int:
        for step in self.steps:
            if isinstance(step, tuple):
                status = km.run(*step, *self._addresses, large)
                if status != kr.STATUS_OK:
                    return int(status)
                tick.registers = self._cells.tobytes()
            else:
                register = self.inputs.get(step.id)
                tick.step(step)
                if register is not None:
                    at = register * kr.REGISTER_WORDS
                    self._cells[at], self._cells[at + kr.REG_ROWS] = tick.register_words(step.id)
        for node in self.inserts:
            tick.state_after(node)
        return kr.STATUS_OK


class VmRun:
    """One tick of the VM: its results, which are wrapped as deltas and batches when they are read."""

    __slots__ = (
        "_batches", "_chunks", "_values", "_vm", "arena", "before", "buffered", "flush", "registers", "states"
    )  # fmt: skip

    def __init__(self, vm: OperatorVM, values: dict[str, Any], states: Mapping[str, State], arena_bytes: int) -> None:
        self._vm = vm
        self._values = dict(values)
        self._chunks: dict[str, Chunk] = {}
        """Inputs as the interpreter reads them."""
        self._batches: dict[str, Batch] = {}
        """Batches that states have inserted."""
        self.arena = allocate(arena_bytes)
        self.before = states
        self.states: dict[str, State] = {}
        """The states that have changed."""
        self.registers = b""
        """All registers, after the last piece of code."""
        self.buffered: tuple[BufferedTick, ...] = ()
        """The buffered ticks, this one included."""
        self.flush = False
        """Whether states are to insert the buffered ticks now."""

    def register_words(self, node: str) -> tuple[int, int]:
        """The first words of the register of an input: node table and rows."""
        value: Delta = self._values[node]
        if not value.rows:
            return 0, 0
        chunk = self._chunks[node] = value.chunk()
        return chunk.table, chunk.rows

    def step(self, node: Node) -> None:
        """Run the step of an operator without an instruction."""
        assert node.operator is not None
        inputs = [self.value(i) for i in node.inputs]
        before = self.before[node.id]
        if node.skips_empty_input and not any(value.rows for value in inputs):
            self._values[node.id] = Delta.empty(node.schema)
            return
        state, self._values[node.id] = node.operator.step(before, inputs)
        if state is not before:
            self.states[node.id] = state

    def value(self, node: Node) -> Any:
        """The result of a node: a delta, or an `Arranged` if the node is an arrangement."""
        node = self._vm.exchange_inputs.get(node.id, node)
        found = self._values.get(node.id)
        if found is None:
            found = self._values[node.id] = self._arranged(node) if node.kind == "arranged" else self._delta(node)
        return found

    def in_order(self, name: str) -> Batch:
        """An output that was among `sorted_outputs`, as a sorted batch."""
        register, sort_key = self._vm.sorted_outputs[name]
        return self._batch(register, sort_key)

    def state_after(self, node: str) -> Spine:
        """The state of a node after the tick."""
        before = self.before[node][0]
        if node not in self._batches:
            self._batches[node] = batch = self._batch(self._vm.inserts[node], before.sort_key)
            if batch.rows:
                self.states[node] = (before.insert(batch),)
        return self.states[node][0] if node in self.states else before

    def _arranged(self, node: Node) -> Arranged:
        after = self.state_after(node.id)
        return Arranged(self._batches[node.id], self.before[node.id][0], after)

    def _delta(self, node: Node) -> Delta:
        shared = [self._chunks[n] for n in self._vm.shares[node.id] if n in self._chunks]
        at = self._vm.registers_of[node.id] * _REGISTER.size
        table, rows, _, _, _, _, size, _ = _REGISTER.unpack_from(self.registers, at)
        if not rows:
            return Delta.empty(node.schema)
        return Delta.of_chunk(Chunk(node.schema, rows, self.arena.slice(table - self.arena.address, size), shared))

    def _batch(self, register: int, sort_key: SortKey) -> Batch:
        return _batch(self.registers, self.arena, register, sort_key)


def _batch(registers: bytes, arena: Any, register: int, sort_key: SortKey) -> Batch:
    """The sorted delta in a register as a batch."""
    table, rows, *survey, size, index = _REGISTER.unpack_from(registers, register * _REGISTER.size)
    if not rows:
        return Batch.empty(sort_key)
    chunk = Chunk(sort_key.schema, rows, arena.slice(table - arena.address, size), None)
    batch = Batch.of(SortedChunks(sort_key, (chunk,), survey, SURVEY_OF_NO_TIME))
    return batch.with_index(BatchIndex.at(index, rows, arena)) if index else batch


def _exchange_input(node: Node) -> Node:
    while isinstance(node.operator, Exchange):
        node = node.inputs[0]
    return node


def _allocate_words(words: int) -> Any:
    return allocate(max(8 * words, 8))


def _compile_in_order(
    schedule: Sequence[Node],
    registers: Registers,
    compiled: dict[str, Instruction],
    add_input: Callable[[Node], None],
) -> list[Node]:
    """The schedule, with operators that have instructions as close together as possible; fills `compiled`."""
    order: list[Node] = []
    pending = list(schedule)
    done = {i.id for n in schedule for i in n.inputs if i.role != "operator"}
    while pending:
        rest = []
        for node in pending:
            found = _instruction(node, registers) if all(i.id in done for i in node.inputs) else None
            if found is None:
                rest.append(node)
            else:
                compiled[node.id] = found
                registers.of[node.id] = found.out
                order.append(node)
                done.add(node.id)
        if len(rest) == len(pending):  # none has an instruction: the first one with all inputs steps by itself
            ready = next(n for n in pending if all(i.id in done for i in n.inputs))
            rest.remove(ready)
            order.append(ready)
            done.add(ready.id)
            add_input(ready)
        pending = rest
    return order


def _instruction(node: Node, registers: Registers) -> Instruction | None:
    """The instruction of a node whose inputs have registers; None if it has none."""
    operator = node.operator
    if operator is None or operator.schema.nested or any(i.schema.nested for i in node.inputs):
        return None
    if any(i.id not in registers.of for i in node.inputs) or node.kind not in ("delta", "arranged"):
        return None
    inputs = tuple([i.id for i in node.inputs])
    computed = tuple([i.kind == "delta" and registers.of[i.id] not in registers.external for i in node.inputs])
    return operator.instruction(
        InstructionSite(node.id, inputs, tuple([i.schema for i in node.inputs]), computed, registers)
    )


def _with_shared_memory(nodes: Collection[str], compiled: Mapping[str, Instruction]) -> set[str]:
    """The nodes, and all others whose memory their results may share."""
    found: set[str] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += compiled[node].passes if node in compiled else ()
    return found


__all__ = [
    "BUFFER_LIMITS", "MAX_VM_ROWS", "BufferLimits", "BufferedTick", "OperatorVM", "StateRowCounts", "TableCheck",
    "TableConstraint", "VmRun",
]  # fmt: skip
