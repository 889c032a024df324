"""Rows that Spark's tasks push: those of the accepted attempts count, once, and nothing else is left."""

import contextlib

import pyarrow as pa

from dbspark.runtime.staging import StagedRows
from dbspark.runtime.wire import write_message
from tests.runtime.test_wire import Stream


class Broken(Stream):
    def read_chunk(self):
        if not self.chunks:
            raise pa.ArrowInvalid("the task has gone")
        return super().read_chunk()


def pushed(*payloads, kind=Stream):
    stream = kind()
    for payload in payloads:
        write_message(stream, {}, [("slot", payload)])
    return stream


def test_each_partition_counts_once():
    staged = StagedRows()
    staged.receive((7, 0, 0, 100), pushed(b"first" + bytes(59), b"second" + bytes(58)))
    staged.receive((7, 0, 0, 101), pushed(b"first" + bytes(59), b"second" + bytes(58)))  # a speculative task
    staged.receive((7, 0, 1, 102), pushed(b"third" + bytes(59)))
    staged.receive((6, 0, 0, 90), pushed(b"older" + bytes(59)))
    staged.receive((8, 0, 0, 110), pushed(b"later" + bytes(59)))
    with contextlib.suppress(pa.ArrowInvalid):
        staged.receive((7, 0, 2, 103), pushed(b"half" + bytes(60), kind=Broken))
    rows = staged.take(7, [(0, 0, 101), (0, 1, 102), (0, 2, 103), (0, 3, 104)])
    assert [payload.to_pybytes().rstrip(b"\0") for _, payload in rows] == [b"first", b"second", b"third"]
    assert not list(staged.take(7, [(0, 0, 100)])), "what was not accepted is dropped"
    assert [payload.to_pybytes().rstrip(b"\0") for _, payload in staged.take(8, [(0, 0, 110)])] == [b"later"]
