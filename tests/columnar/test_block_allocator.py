"""Blocks never overlap, all are freed, and memory that is free beyond the limits is returned to the system."""

import gc
import itertools
import os
import random
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar.block_allocator import (
    HUGE_PAGE_BYTES,
    MIN_RESIDENT_FREE_BYTES,
    PAGE_BYTES,
    REGION_BYTES,
    BlockAllocator,
)

SIZES = st.integers(1, 3 * HUGE_PAGE_BYTES) | st.integers(REGION_BYTES - PAGE_BYTES, REGION_BYTES + PAGE_BYTES)
CALLS = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 1 << 30)), max_size=40)


def filled(allocator: BlockAllocator, size: int, mark: int) -> pa.Buffer:
    """A buffer that begins and ends with a number that no other has."""
    buffer = pa.py_buffer(allocator.allocate(size))
    assert buffer.size == size
    assert buffer.is_mutable
    memory = np.frombuffer(buffer, np.uint8)
    memory[:8] = np.frombuffer(np.int64(mark).tobytes(), np.uint8)[: len(memory[:8])]
    memory[-1] = mark % 251
    return buffer


def intact(buffer: pa.Buffer, mark: int) -> bool:
    memory = np.frombuffer(buffer, np.uint8)
    head = np.frombuffer(np.int64(mark).tobytes(), np.uint8)[: len(memory) - 1]
    return bool((memory[: len(head)][:8] == head).all()) and memory[-1] == mark % 251


@given(CALLS)
def test_blocks_do_not_overlap_and_all_are_freed(calls: list[tuple[bool, int, int]]) -> None:
    allocator = BlockAllocator()
    held: list[tuple[int, pa.Buffer]] = []
    for mark, (drop, size, which) in enumerate(calls):
        if drop and held:
            held.pop(which % len(held))
        else:
            held.append((mark, filled(allocator, size, mark)))
        places = sorted((b.address, b.size) for _, b in held)
        assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(places))
        assert allocator.allocated_bytes == sum(-(-b.size // PAGE_BYTES) * PAGE_BYTES for _, b in held)
        assert all(intact(b, m) for m, b in held)
        assert allocator.resident_free_bytes == sum(size for size, _, _ in allocator._resident)
        if which % 5 == 0:
            allocator.purge()
    held.clear()
    assert allocator.allocated_bytes == 0
    free = [(size, region.size) for size, _, region in allocator._resident + allocator._purged]
    assert all(size == whole for size, whole in free), "free blocks that touch are coalesced"
    assert sum(size for size, _ in free) == allocator.mapped_bytes


def test_a_part_of_a_buffer_keeps_its_block() -> None:
    allocator = BlockAllocator()
    whole = filled(allocator, 4 * PAGE_BYTES, 7)
    part, array = whole.slice(8, 8), np.frombuffer(whole, np.int64)[1:2]
    del whole
    assert allocator.allocated_bytes == 4 * PAGE_BYTES
    del part
    assert allocator.allocated_bytes == 4 * PAGE_BYTES
    array[0] = 3
    del array
    assert allocator.allocated_bytes == 0


def test_freed_memory_is_reused_first() -> None:
    allocator = BlockAllocator()
    first = allocator.allocate(HUGE_PAGE_BYTES)
    at = pa.py_buffer(first).address
    del first
    assert pa.py_buffer(allocator.allocate(HUGE_PAGE_BYTES)).address == at
    assert allocator.mapped_bytes == REGION_BYTES


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_regions_without_blocks_in_use_are_unmapped() -> None:
    allocator = BlockAllocator()
    held = [allocator.allocate(REGION_BYTES) for _ in range(16)]
    assert allocator.mapped_bytes == 16 * REGION_BYTES
    del held[2:]
    assert allocator.allocated_bytes == 2 * REGION_BYTES
    assert allocator.mapped_bytes == 2 * REGION_BYTES + MIN_RESIDENT_FREE_BYTES
    allocator.purge()
    assert allocator.mapped_bytes == 2 * REGION_BYTES


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_blocks_within_regions_are_purged_as_well() -> None:
    """Every other block stays in use, so that no region is free."""
    allocator = BlockAllocator()
    held = [filled(allocator, 2 * HUGE_PAGE_BYTES, i) for i in range(128)]
    for buffer in held:
        np.frombuffer(buffer, np.uint8)[16:-1] = 1
    before, mapped = resident(), allocator.mapped_bytes
    kept = dict(enumerate(held[::2]))
    del held, buffer
    assert allocator.allocated_bytes == 128 * HUGE_PAGE_BYTES
    assert allocator.resident_free_bytes <= max(MIN_RESIDENT_FREE_BYTES, 32 * HUGE_PAGE_BYTES)
    assert before - resident() > 20 * HUGE_PAGE_BYTES
    assert all(intact(b, 2 * i) for i, b in kept.items())
    again = [filled(allocator, 2 * HUGE_PAGE_BYTES, i) for i in range(64)]
    assert allocator.mapped_bytes == mapped, "purged blocks are used again"
    assert all(intact(b, i) for i, b in enumerate(again))


def test_reserved_memory_stays_mapped() -> None:
    allocator = BlockAllocator()
    allocator.reserve(8 * REGION_BYTES)
    assert allocator.mapped_bytes == 8 * REGION_BYTES
    held = [allocator.allocate(HUGE_PAGE_BYTES) for _ in range(8 * REGION_BYTES // HUGE_PAGE_BYTES)]
    assert allocator.mapped_bytes == 8 * REGION_BYTES
    del held
    assert allocator.allocated_bytes == 0
    assert allocator.mapped_bytes == 8 * REGION_BYTES


def test_blocks_are_allocated_and_freed_on_many_threads() -> None:
    allocator = BlockAllocator()
    wrong: list[int] = []

    def work(seed: int) -> None:
        draw, held = random.Random(seed), {}
        for step in range(400):
            mark = seed << 20 | step
            held[mark] = filled(allocator, draw.randrange(1, HUGE_PAGE_BYTES), mark)
            if len(held) > 8:
                gone = draw.choice(list(held))
                wrong.extend([gone] if not intact(held.pop(gone), gone) else [])

    running = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    gc.collect()
    assert not wrong
    assert allocator.allocated_bytes == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_can_allocate_and_free() -> None:
    from dbspark.columnar.block_allocator import PROCESS_ALLOCATOR

    held = filled(PROCESS_ALLOCATOR, HUGE_PAGE_BYTES, 5)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            more = filled(PROCESS_ALLOCATOR, HUGE_PAGE_BYTES, 6)
            np.frombuffer(held, np.uint8)[:] = 0
            status = 0 if intact(more, 6) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert intact(held, 5)
