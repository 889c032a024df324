"""Kernels that have been compiled are there before they are called."""

from __future__ import annotations

from dbspark.columnar.schema import Schema
from dbspark.kernels import preload
from dbspark.kernels.jit import KERNELS
from dbspark.kernels.memory.hash import hash_columns
from dbspark.zset import ZSet


def test_all_that_have_been_compiled_are_read() -> None:
    assert len(ZSet.from_rows([("a", 1)], Schema.parse("s STRING, n INT")).batch()) == 1
    known = preload.read_all()
    assert known >= 1
    assert hash_columns in KERNELS
    assert sum(len(kernel.overloads) for kernel in KERNELS) >= known


def test_begun_once_and_waited_for() -> None:
    preload.begin()
    preload.begin()
    preload.wait()
    preload.wait()
