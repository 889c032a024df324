"""Mutable directories: batches appended behind those of a spine are found as if they were in it."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Batch
from dbspark.columnar.memory import allocate
from dbspark.kernels.lookup import directory as kd
from dbspark.kernels.lookup.probe import probe_directory
from tests.kernels.build import HASHES, batch_of, directory, several


def ranges_in(address: int, keys: Any, batches: int) -> Any:
    ranges = np.empty((len(keys), batches, 3), np.int64)
    probe_directory(address, keys, ranges)
    return ranges.tolist()


@given(several(1, 5), st.data(), st.lists(HASHES, max_size=5))
def test_appended_batches_are_found_behind_those_that_were_copied(
    drawn: Any, data: st.DataObject, strangers: list[int]
) -> None:
    groups, _ = drawn
    batches = [batch_of(items) for items in groups]  # one chunk each
    copied = data.draw(st.integers(0, len(batches)))
    spare = len(batches) - copied + data.draw(st.integers(0, 2))
    original, kept = directory(batches[:copied])
    memory = allocate(8 * kd.directory_words(copied, copied, spare))
    kd.copy_directory(original, copied, spare, memory.address)
    mutable = np.array([memory.address, copied], np.int64)
    for batch in batches[copied:]:
        kd.append_batch(mutable.ctypes.data, batch.chunks[0].table, batch.rows)
    assert mutable.tolist() == [memory.address, len(batches)]

    keys = np.array([*(item.key for items in groups for item in items), *strangers], np.uint64)
    whole, kept_too = directory(batches)
    assert ranges_in(memory.address, keys, len(batches)) == ranges_in(whole, keys, len(batches))
    assert kept
    assert kept_too


@given(several(0, 4), several(1, 3), several(0, 4), st.data())
def test_splicing_puts_new_batches_between_the_first_and_the_last(
    low: Any, new: Any, high: Any, data: st.DataObject
) -> None:
    """The arrays that are written are those of a directory of the same batches."""
    left_out = data.draw(st.integers(0, 2))
    old: list[Batch] = [*low[1], *new[1][:left_out], *high[1]]
    expected = [*low[1], *new[1], *high[1]]
    sources = directory(old)[1][0]
    old_refs = np.arange(kd.INDEX_REF_WORDS * len(old), dtype=np.int64)
    chunks = sum(len(b.chunks) for b in expected)
    arrays = [
        np.zeros(chunks, np.int64), np.zeros(chunks, np.int64), np.zeros(chunks, np.uint64),
        np.zeros(len(expected) + 1, np.int64), np.zeros(kd.INDEX_REF_WORDS * len(expected), np.int64),
    ]  # fmt: skip
    words = [a.ctypes.data for a in (*sources, old_refs)]
    words += [len(old), len(low[1]), len(old) - len(high[1]), *(a.ctypes.data for a in arrays), len(new[1])]
    for number, batch in enumerate(new[1]):
        only = len(batch.chunks) == 1
        words += [len(batch.chunks), batch.chunks[0].table if only else batch.tables.ctypes.data]
        words += [batch.rows if only else batch.lens.ctypes.data, -number, -1, -2, -3]
    request = np.array(words, np.int64)
    assert kd.splice_directory(request.ctypes.data) == chunks
    expected_sources = directory(expected)[1][0]
    for found, array in zip(arrays, expected_sources, strict=False):
        assert found.tolist() == array.tolist()
    refs = old_refs.reshape(-1, kd.INDEX_REF_WORDS).tolist()
    middle = [[-number, -1, -2, -3] for number in range(len(new[1]))]
    expected_refs = [*refs[: len(low[1])], *middle, *refs[len(old) - len(high[1]) :]]
    assert arrays[4].reshape(-1, kd.INDEX_REF_WORDS).tolist() == expected_refs
