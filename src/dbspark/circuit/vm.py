"""A circuit as a program for `kernels.vm.interpreter`: small ticks in one call.

Operators stay what a circuit is made of. Those that have an instruction are written into a program; between them may
stand others, which step as always, on what the program has given so far. A tick runs the program where its deltas are
small, takes up what it wrote as batches and deltas, and leaves the tick to the operators where the program gives up:
nothing has happened then.

What leaves the program (outputs, what other operators read, what states take in) is in memory that is kept, one piece
for each tick. A column that is only passed on lies where it was, so whoever has it keeps that, too. Registers and
working memory are the program's own, and are written over by the next tick.

To put a small batch into a spine costs more than to compute it, so states take in what several ticks have brought at
once. Until then those ticks are *late*: the program has directories of its own, in which the machine lists their
batches behind those of the spines, and the circuit keeps what the ticks wrote as a value beside its states. States that
operators without an instruction read take in every tick by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from dbspark.circuit.graph import Graph, Node
from dbspark.circuit.instructions import Instruction, Registers, arranging, instruction, line
from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar import sort_key as hashing
from dbspark.columnar.batch import Index, surveyed
from dbspark.columnar.chunk import Chunk
from dbspark.columnar.delta import Delta, Parts
from dbspark.columnar.memory import allocate
from dbspark.kernels.lookup.directory import append
from dbspark.kernels.vm import interpreter as km
from dbspark.kernels.vm import registers as kr
from dbspark.operators.linear import Exchange
from dbspark.operators.operator import Arranged, State
from dbspark.trace.directory import Own
from dbspark.trace.spine import Spine

MAX_VM_ROWS: Final = km.CHUNK
"""Rows of a delta up to which a tick is run as a program."""
MAX_BUFFERED_TICKS: Final = 64
"""Ticks that states take in at once."""
_WAITING: Final = 4096
"""Rows that a state takes in at once."""
_MUCH: Final = 1024
"""Rows of all deltas from which on a tick is run without the interpreter's lock, and nothing of it is kept waiting."""
_FEW: Final = 512
"""Rows from which on a batch is not kept waiting: to be looked up in without an index costs more than to take it in."""
_LIGHT: Final = 1 << 31
"""Weights from which on it is not."""
_BOUND: Final = 1 << 62
"""Where the sum of all weights of a state may be so large, nothing is kept waiting."""
_MIN_ARENA_BYTES: Final = 1 << 13
"""Bytes of an arena at the least."""
_REGISTER: Final = Struct(f"{kr.REGISTER}q")
_BYTES: Final = 8 * kr.REGISTER
_STATE: Final = Struct(f"{km.STATE}q")
_WORD: Final = Struct("q")


class TableConstraint(NamedTuple):
    """The table that a source is the change of: its order, and whether its keys are unique."""

    sort_key: SortKey
    unique: bool


class TableCheck(Protocol):
    """Somebody who has to know whether a table stays one under the change of a source."""

    place: int
    """Where the directory of the table is; 0 where the program is not to look."""
    listing: bool
    """Whether it is to list the change there when all is done."""


class BufferedTick(NamedTuple):
    """What a tick has brought that states have not taken in yet."""

    told: bytes
    """All registers."""
    arena: Any


class StateRowCounts(NamedTuple):
    """Numbers in memory, which are read when somebody asks: where each of them is."""

    at: Mapping[str, int]
    memory: bytes

    def items(self) -> Iterator[tuple[str, int]]:
        for name, place in self.at.items():
            yield name, _WORD.unpack_from(self.memory, place)[0]


class OperatorVM:
    """The operators of a circuit, as far as they have instructions."""

    def __init__(
        self, graph: Graph, schedule: Sequence[Node], tables: Mapping[str, TableConstraint] | None = None
    ) -> None:
        """`tables`: sources whose rows may have to be checked, by name."""
        self.mask = hashing._mask
        registers = Registers(hashing._mask_word)
        self.given: dict[str, int] = {}
        """Registers of what comes from elsewhere: sources and delays first, then operators without an instruction."""
        for node in graph:
            if node.role != "operator":
                self._give(node, registers)
        self._head = [(node, register * kr.REGISTER) for node, register in self.given.items()]
        """Those that are known when a tick begins, and where their registers are."""
        self._most_listed = registers.new()
        """The register that says of how many rows and of which weights the batches are that states are to take in."""
        sources = {str(n.name): self.given[n.id] for n in graph if n.role == "source" and n.id in self.given}
        checked = {n: registers.new() for n in tables or {} if n in sources}
        self._checked = [(n, register * kr.REGISTER) for n, register in checked.items()]
        """Where it is told where the tables' directories are, and, one behind it, whether to list changes in them."""
        flags = {n: registers.new() for n in graph.outputs}
        self._flags = [(n, register * kr.REGISTER + kr.ROWS) for n, register in flags.items()]
        """Where it is told which outputs are wanted in order."""
        written: dict[str, Instruction] = {}
        order = _ordered(schedule, registers, written, lambda node: self._give(node, registers))
        outputs = {node.id for node in graph.outputs.values()}
        read = {i.id for n in graph if n.id not in written for i in n.inputs}
        self.written = frozenset(written)
        self.kept = _lying(outputs | read, written) & self.written
        self.keeps = {n: sorted(_lying({n}, written) & set(self.given)) for n in self.kept}
        """What else has to be kept beside what a node gave."""
        self.inserts = {n: i.inserts for n, i in written.items() if i.inserts is not None}
        """Registers of what states take in."""
        asked = {n.id for n in graph if n.kind == "arranged"} & self.kept
        self.later = {n: self.inserts.pop(n) for n in list(self.inserts) if n not in asked}
        """The same for states that only the program reads."""
        self.states = list(registers.states)
        self.others = [(i, n) for i, n in enumerate(self.states) if n not in self.later]
        self.behind = {n.id: _behind(n) for n in schedule if isinstance(n.operator, Exchange)}
        """Where what an exchange gives comes from."""
        self.steps: list[tuple[int, int] | Node] = []
        """What a tick does: so many words of code from an address on, or the step of an operator."""
        code: list[int] = []
        for name, place in checked.items():
            sort_key, unique = (tables or {})[name]
            key, schema = sort_key.key_nodes.tolist(), sort_key.schema
            rows = int(unique), schema.columns, schema.node_count, len(key), *key
            code += line(km.CHECK, sources[name], place, *rows)
        cuts: list[tuple[int, int] | Node] = [(0, len(code))]
        for node in order:
            found = written.get(node.id)
            if found is None:
                cuts.append(node)
            else:
                begin = len(code)
                code += found.lines(int(node.id in self.kept))
                cuts.append((begin, len(code)))
        self.sorted_outputs: dict[str, tuple[int, SortKey]] = {}
        """For outputs that may be wanted in order: the register of the rows, and their order."""
        begin = len(code)
        for name, node in graph.outputs.items():
            if node.id in registers.of and node.kind == "delta":
                out, by_row = self.sorted_outputs[name] = registers.new(), SortKey(node.schema)
                code += arranging(by_row, registers.of[node.id], out, 1, registers.mask, flags[name])
        for node_id, taken in self.later.items():
            code += line(km.LIST, taken, registers.states.index(node_id), self._most_listed)
        for name, place in checked.items():
            code += line(km.LIST_CHANGE, sources[name], place)
        cuts.append((begin, len(code)))
        self.of = dict(registers.of)
        self._code, self._held = np.array(code, np.int64), [i.kept for i in written.values()]
        self._join(cuts)
        self._registers, _ = _memory(registers.count * kr.REGISTER)
        self._cells = memoryview(self._registers).cast("q")
        """The words of all registers."""
        self._cells[:] = memoryview(bytes(self._registers.size)).cast("q")
        self._lines, _ = _memory(km.STATE * len(self.states))
        self._waiting_at = {n: self.states.index(n) * _STATE.size + 8 * km.WAITING for n in self.later}
        """Where the machine counts the rows that states have not taken in."""
        self._listed: Mapping[str, State] | None = None
        """The states whose batches are listed in directories of our own, if they are, and the ticks behind them."""
        self._buffered: tuple[BufferedTick, ...] | None = None
        self._owns = {n: Own(self._lines, self.states.index(n) * _STATE.size) for n in self.later}
        self._most = MAX_BUFFERED_TICKS
        self._arenas, _ = _memory(2 * kr.ARENA)
        self._arena = memoryview(self._arenas).cast("q")
        self._addresses = self._registers.address, self._lines.address, self._arenas.address
        self._temporary = allocate(1 << 19)
        self._room = _MIN_ARENA_BYTES
        """Bytes that a tick is given to keep things in."""

    @property
    def useful(self) -> bool:
        """Whether it does more than it costs to call it."""
        return len(self.written) > 1

    def _give(self, node: Node, registers: Registers) -> None:
        if node.kind == "delta" and not node.schema.nested:
            self.given[node.id] = registers.of[node.id] = register = registers.new()
            registers.given.add(register)

    def _join(self, cuts: Sequence[tuple[int, int] | Node]) -> None:
        """Pieces of code that follow each other are one step."""
        address, last = self._code.ctypes.data, 0
        pieces: list[Any] = []
        for cut in cuts:
            if isinstance(cut, Node):
                pieces.append(cut)
            elif pieces and not isinstance(pieces[-1], Node):
                pieces[-1] = pieces[-1][0], cut[1]
            else:
                pieces.append(cut)
        self.steps = [p if isinstance(p, Node) else (address + 8 * p[0], p[1] - p[0]) for p in pieces]
        self.steps = [s for s in self.steps if isinstance(s, Node) or s[1] > last]

    def run(
        self,
        values: dict[str, Any],
        states: Mapping[str, State],
        buffered: tuple[BufferedTick, ...] = (),
        sorted_outputs: Collection[str] = (),
        checks: Mapping[str, TableCheck] | None = None,
    ) -> VmRun | None:
        """One tick after those that are late, with outputs in order where wanted so; None: it is for the operators.

        `checks`: for sources that are to be checked, where the directory of their table is.
        """
        if hashing._mask is not self.mask:
            return None
        rows = 0
        for node, _ in self._head:
            value = values[node]
            if value.rows > MAX_VM_ROWS or type(value) is Parts:
                return None
            rows += value.rows
        much = rows >= _MUCH
        if much and not buffered:
            self._point(states)
        elif buffered is not self._buffered or states is not self._listed:
            self._list(states, buffered)
        while True:
            tick = VmRun(self, values, states, self._room)
            self._write(tick, sorted_outputs, checks)
            status = self._run(tick, int(much))
            used, kept = self._arena[kr.USED], self._arena[kr.ARENA + kr.USED]
            if status == kr.DONE:
                # The next tick is given half as much again as this one has used.
                self._room = max(_MIN_ARENA_BYTES, min(self._room, 2 * kept), kept + kept // 2)
                tick.buffered = self._and_one(buffered, tick)
                tick.flush |= much
                if self._listed is not None:
                    self._buffered = tick.buffered
                return tick
            if status == kr.ODD:
                return None
            if used > self._temporary.size:
                self._temporary = allocate(2 * used)
            self._room = max(self._room, 2 * kept)

    def remove_made_checks(self, checks: dict[str, Any]) -> None:
        """Leave those checks that the program does not make."""
        for name, _ in self._checked:
            if name in checks and checks[name].place:
                del checks[name]

    def _point(self, states: Mapping[str, State]) -> None:
        """Have all states read where they are, in directories that are not our own."""
        self._listed = self._buffered = None
        for node in self.later:
            spine = states[node][0]
            _STATE.pack_into(self._lines, self.states.index(node) * _STATE.size, spine.directory, spine.chunks, -1)

    def _list(self, states: Mapping[str, State], buffered: tuple[BufferedTick, ...]) -> None:
        """Write directories anew."""
        self._listed, self._most, self._buffered = states, MAX_BUFFERED_TICKS, buffered
        for node, register in self.later.items():
            at, spine = self.states.index(node) * _STATE.size, states[node][0]
            self._owns[node].copy(spine, MAX_BUFFERED_TICKS + 1)
            if spine.bound() > _BOUND:
                self._most = 1
            waiting = 0
            for told, _ in buffered:
                table, rows, *_ = _REGISTER.unpack_from(told, register * _BYTES)
                waiting += rows
                if rows:
                    append(self._lines.address + at, table, rows)
            _WORD.pack_into(self._lines, at + 8 * km.WAITING, waiting)

    def _and_one(self, buffered: tuple[BufferedTick, ...], tick: VmRun) -> tuple[BufferedTick, ...]:
        """The ticks that are late, and one more."""
        cells, begin = self._cells, self._most_listed * kr.REGISTER
        most = cells[begin + kr.ROWS]
        if not most:
            return buffered
        tick.flush = (
            most >= _FEW
            or cells[begin + km.LISTED] >= _WAITING
            or cells[begin + kr.LARGEST] >= _LIGHT
            or len(buffered) + 1 >= self._most
        )
        return (*buffered, BufferedTick(tick.told, tick.arena))

    def flushed_states(self, states: Mapping[str, State], buffered: Sequence[BufferedTick]) -> dict[str, State]:
        """The states that change when they take in what is late."""
        out: dict[str, State] = {}
        for node, register in self.later.items():
            before = states[node][0]
            found = [_batch(told, arena, register, before.sort_key) for told, arena in buffered]
            batches = [batch for batch in found if batch.rows]
            if batches:
                out[node] = (before.insert(batches[0] if len(batches) == 1 else merge(batches)),)
        return out

    def buffered_rows(self, buffered: Sequence[BufferedTick]) -> StateRowCounts:
        """By state, rows that it has not taken in."""
        if buffered is self._buffered:
            return StateRowCounts(self._waiting_at, self._lines.to_pybytes())
        rows = [
            sum([_REGISTER.unpack_from(t.told, r * _BYTES)[kr.ROWS] for t in buffered]) for r in self.later.values()
        ]
        return StateRowCounts({n: 8 * i for i, n in enumerate(self.later)}, Struct(f"{len(rows)}q").pack(*rows))

    def _write(self, tick: VmRun, sorted_outputs: Collection[str], checks: Mapping[str, TableCheck] | None) -> None:
        """Fill the registers and lines that a tick begins with."""
        cells, arena = self._cells, self._arena
        for node, at in self._head:
            cells[at], cells[at + 1] = tick.word(node)
        at = self._most_listed * kr.REGISTER
        cells[at + kr.ROWS] = cells[at + kr.LARGEST] = cells[at + km.LISTED] = 0
        for name, at in self._checked:
            check = checks.get(name) if checks else None
            cells[at], cells[at + 1] = (0, 0) if check is None else (check.place, check.listing)
        for name, at in self._flags:
            cells[at] = name in sorted_outputs
        for i, node in self.others:
            spine = tick.before[node][0]
            _STATE.pack_into(self._lines, i * _STATE.size, spine.directory, spine.chunks, 0)
        arena[0], arena[1], arena[2] = self._temporary.address, 0, self._temporary.size
        arena[3], arena[4], arena[5] = tick.arena.address, 0, tick.arena.size

    def _run(self, tick: VmRun, much: int) -> int:
        for step in self.steps:
            if isinstance(step, tuple):
                status = km.run(*step, *self._addresses, much)
                if status != kr.DONE:
                    return int(status)
                tick.told = self._cells.tobytes()
            else:
                register = self.given.get(step.id)
                tick.step(step)
                if register is not None:
                    at = register * kr.REGISTER
                    self._cells[at], self._cells[at + kr.ROWS] = tick.word(step.id)
        for node in self.inserts:
            tick.inserted(node)
        return kr.DONE


class VmRun:
    """One run of a program, and what it wrote."""

    __slots__ = (
        "_batches",
        "_chunks",
        "_program",
        "_values",
        "arena",
        "before",
        "buffered",
        "flush",
        "states",
        "told",
    )

    def __init__(self, program: OperatorVM, values: dict[str, Any], states: Mapping[str, State], room: int) -> None:
        self._program = program
        self._values = dict(values)
        self._chunks: dict[str, Chunk] = {}
        """What comes from elsewhere, as the machine reads it."""
        self._batches: dict[str, Batch] = {}
        """What states have taken in."""
        self.arena = allocate(room)
        self.before = states
        self.states: dict[str, State] = {}
        """Those that have changed."""
        self.told = b""
        """All registers."""
        self.buffered: tuple[BufferedTick, ...] = ()
        """Ticks that states have not taken in, this one included."""
        self.flush = False
        """Whether they should now."""

    def word(self, node: str) -> tuple[int, int]:
        """What the register of something that comes from elsewhere begins with."""
        value: Delta = self._values[node]
        if not value.rows:
            return 0, 0
        chunk = self._chunks[node] = value.chunk()
        return chunk.table, chunk.rows

    def step(self, node: Node) -> None:
        """The step of an operator that has no instruction."""
        assert node.operator is not None
        given = [self.value(i) for i in node.inputs]
        before = self.before[node.id]
        if node.quiet and not any(value.rows for value in given):
            self._values[node.id] = Delta.empty(node.schema)
            return
        state, self._values[node.id] = node.operator.step(before, given)
        if state is not before:
            self.states[node.id] = state

    def value(self, node: Node) -> Any:
        """What a node gave."""
        node = self._program.behind.get(node.id, node)
        found = self._values.get(node.id)
        if found is None:
            found = self._values[node.id] = self._arranged(node) if node.kind == "arranged" else self._delta(node)
        return found

    def in_order(self, name: str) -> Batch:
        """An output in order, where it was wanted so."""
        register, sort_key = self._program.sorted_outputs[name]
        return self._batch(register, sort_key)

    def inserted(self, node: str) -> Spine:
        """The state of a node with what it takes in."""
        before = self.before[node][0]
        if node not in self._batches:
            self._batches[node] = batch = self._batch(self._program.inserts[node], before.sort_key)
            if batch.rows:
                self.states[node] = (before.insert(batch),)
        return self.states[node][0] if node in self.states else before

    def _arranged(self, node: Node) -> Arranged:
        after = self.inserted(node.id)
        return Arranged(self._batches[node.id], self.before[node.id][0], after)

    def _delta(self, node: Node) -> Delta:
        kept = [self._chunks[n] for n in self._program.keeps[node.id] if n in self._chunks]
        table, rows, _, _, _, _, size, _ = _REGISTER.unpack_from(self.told, self._program.of[node.id] * _BYTES)
        if not rows:
            return Delta.empty(node.schema)
        return Delta.of_chunk(Chunk(node.schema, rows, self.arena.slice(table - self.arena.address, size), kept))

    def _batch(self, register: int, sort_key: SortKey) -> Batch:
        return _batch(self.told, self.arena, register, sort_key)


def _batch(told: bytes, arena: Any, register: int, sort_key: SortKey) -> Batch:
    """What a tick wrote in order."""
    table, rows, *survey, size, index = _REGISTER.unpack_from(told, register * _BYTES)
    if not rows:
        return Batch.empty(sort_key)
    chunk = Chunk(sort_key.schema, rows, arena.slice(table - arena.address, size), None)
    batch = surveyed(sort_key, chunk, survey)
    return batch.with_index(Index.at(index, rows, arena)) if index else batch


def _behind(node: Node) -> Node:
    while isinstance(node.operator, Exchange):
        node = node.inputs[0]
    return node


def _memory(words: int) -> tuple[Any, Struct]:
    """Memory for some words, and how they are written and read all at once."""
    return allocate(max(8 * words, 8)), Struct(f"{words}q")


def _ordered(
    schedule: Sequence[Node], registers: Registers, written: dict[str, Instruction], give: Callable[[Node], None]
) -> list[Node]:
    """The schedule with operators that have instructions beside each other; `written` gets those."""
    order: list[Node] = []
    left = list(schedule)
    done = {i.id for n in schedule for i in n.inputs if i.role != "operator"}
    while left:
        rest = []
        for node in left:
            found = instruction(node, registers) if all(i.id in done for i in node.inputs) else None
            if found is None:
                rest.append(node)
            else:
                written[node.id] = found
                order.append(node)
                done.add(node.id)
        if len(rest) == len(left):  # none has one: the first that can steps by itself
            ready = next(n for n in left if all(i.id in done for i in n.inputs))
            rest.remove(ready)
            order.append(ready)
            done.add(ready.id)
            give(ready)
        left = rest
    return order


def _lying(nodes: Collection[str], written: Mapping[str, Instruction]) -> set[str]:
    """Nodes, and those in whose memory their results may lie."""
    found: set[str] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += written[node].passes if node in written else ()
    return found


__all__ = ["MAX_VM_ROWS", "BufferedTick", "OperatorVM", "StateRowCounts", "TableCheck", "TableConstraint", "VmRun"]
