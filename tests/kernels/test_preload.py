"""Compiled kernels are loaded before they are called."""

from __future__ import annotations

from dbspark.columnar.schema import Schema
from dbspark.kernels import preload
from dbspark.kernels.jit import KERNELS
from dbspark.kernels.memory.hash import hash_columns
from dbspark.zset import ZSet


def test_every_compiled_kernel_is_loaded() -> None:
    assert len(ZSet.from_rows([("a", 1)], Schema.parse("s STRING, n INT")).batch()) == 1
    loaded = preload.read_all()
    assert loaded >= 1
    assert hash_columns in KERNELS
    assert sum(len(kernel.overloads) for kernel in KERNELS) >= loaded


def test_loading_begins_once_and_can_be_waited_for_again() -> None:
    preload.begin()
    preload.begin()
    preload.wait()
    preload.wait()
