"""Compiled kernels are loaded before they are called."""

from __future__ import annotations

from dbspark.kernels import preload
from dbspark.kernels.memory.hash import hash_columns


def test_loading_begins_once_and_can_be_waited_for_again() -> None:
    preload.begin()
    preload.begin()
    preload.wait()
    preload.wait()
    assert preload.unready_units() == []
    assert hash_columns.overloads


def test_the_operator_vm_is_ready_when_its_unit_is_loaded() -> None:
    preload.compile_operator_vm()
    assert preload.operator_vm_ready()
