"""Regions: blocks never overlap, everything comes back, and memory that nobody needs goes back to the system."""

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

from dbspark.columnar.arena import HUGE, KEPT, PAGE, REGION, Regions

SIZES = st.integers(1, 3 * HUGE) | st.integers(REGION - PAGE, REGION + PAGE)
CALLS = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 1 << 30)), max_size=40)


def filled(regions: Regions, size: int, mark: int) -> pa.Buffer:
    """A buffer that begins and ends with a number that no other has."""
    buffer = pa.py_buffer(regions.take(size))
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
def test_blocks_do_not_overlap_and_all_come_back(calls: list[tuple[bool, int, int]]) -> None:
    regions = Regions()
    held: list[tuple[int, pa.Buffer]] = []
    for mark, (drop, size, which) in enumerate(calls):
        if drop and held:
            held.pop(which % len(held))
        else:
            held.append((mark, filled(regions, size, mark)))
        places = sorted((b.address, b.size) for _, b in held)
        assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(places))
        assert regions.taken == sum(-(-b.size // PAGE) * PAGE for _, b in held)
        assert all(intact(b, m) for m, b in held)
        assert regions.idle == sum(size for size, _, _ in regions._warm)
        if which % 5 == 0:
            regions.release()
    held.clear()
    assert regions.taken == 0
    free = [(size, region.size) for size, _, region in regions._warm + regions._cold]
    assert all(size == whole for size, whole in free), "what is beside each other is one"
    assert sum(size for size, _ in free) == regions.mapped


def test_a_part_of_a_buffer_keeps_its_block() -> None:
    regions = Regions()
    whole = filled(regions, 4 * PAGE, 7)
    part, array = whole.slice(8, 8), np.frombuffer(whole, np.int64)[1:2]
    del whole
    assert regions.taken == 4 * PAGE
    del part
    assert regions.taken == 4 * PAGE
    array[0] = 3
    del array
    assert regions.taken == 0


def test_freed_memory_is_given_to_the_next() -> None:
    regions = Regions()
    first = regions.take(HUGE)
    at = pa.py_buffer(first).address
    del first
    assert pa.py_buffer(regions.take(HUGE)).address == at
    assert regions.mapped == REGION


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_what_is_no_longer_needed_goes_back_to_the_system() -> None:
    regions = Regions()
    held = [regions.take(REGION) for _ in range(16)]
    assert regions.mapped == 16 * REGION
    del held[2:]
    assert regions.taken == 2 * REGION
    assert regions.mapped == 2 * REGION + KEPT
    regions.release()
    assert regions.mapped == 2 * REGION


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="nobody says how much memory a process has")
def test_parts_of_regions_go_back_as_well() -> None:
    """Every other block stays, so that no region is free."""
    regions = Regions()
    held = [filled(regions, 2 * HUGE, i) for i in range(128)]
    for buffer in held:
        np.frombuffer(buffer, np.uint8)[16:-1] = 1
    before, mapped = resident(), regions.mapped
    kept = dict(enumerate(held[::2]))
    del held, buffer
    assert regions.taken == 128 * HUGE
    assert regions.idle <= max(KEPT, 32 * HUGE)
    assert before - resident() > 20 * HUGE
    assert all(intact(b, 2 * i) for i, b in kept.items())
    again = [filled(regions, 2 * HUGE, i) for i in range(64)]
    assert regions.mapped == mapped, "what is cold is used again"
    assert all(intact(b, i) for i, b in enumerate(again))


def test_what_is_reserved_stays() -> None:
    regions = Regions()
    regions.reserve(8 * REGION)
    assert regions.mapped == 8 * REGION
    held = [regions.take(HUGE) for _ in range(8 * REGION // HUGE)]
    assert regions.mapped == 8 * REGION
    del held
    assert regions.taken == 0
    assert regions.mapped == 8 * REGION


def test_blocks_come_and_go_on_many_threads() -> None:
    regions = Regions()
    wrong: list[int] = []

    def work(seed: int) -> None:
        draw, held = random.Random(seed), {}
        for step in range(400):
            mark = seed << 20 | step
            held[mark] = filled(regions, draw.randrange(1, HUGE), mark)
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
    assert regions.taken == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_can_go_on() -> None:
    from dbspark.columnar.arena import REGIONS

    held = filled(REGIONS, HUGE, 5)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            more = filled(REGIONS, HUGE, 6)
            np.frombuffer(held, np.uint8)[:] = 0
            status = 0 if intact(more, 6) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert intact(held, 5)
