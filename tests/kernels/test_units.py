"""Units of kernels: each kernel is in one, and is loaded from it with the types that it lists."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from dbspark.kernels import objects, units
from dbspark.kernels.jit import Int64s, ReadOnlyInt64s, UInt64, kernel
from dbspark.kernels.memory import hash as hash_kernels
from dbspark.kernels.units import KERNELS, UNITS


def test_every_module_with_kernels_is_in_one_unit() -> None:
    for name in UNITS:
        units.import_unit(name)
    listed = [module for modules in UNITS.values() for module in modules]
    assert len(listed) == len(set(listed))
    declaring = {k.module for k in (*KERNELS, *units.C_FUNCTIONS) if k.module.startswith("dbspark.kernels.")}
    assert declaring == {f"dbspark.kernels.{module}" for module in listed}


def test_all_kernels_of_a_loaded_unit_have_the_types_that_they_list() -> None:
    for name in UNITS:
        units.load_unit(name)
        assert units.is_loaded(name)
    for each in KERNELS:
        if each.module.startswith("dbspark.kernels."):
            assert set(each.listed_signatures) <= set(each.overloads), each.qualified_name


def test_loading_compiles_nothing() -> None:
    """In a process of its own, in which LLVM cannot optimise; numba's own runtime has been compiled before."""
    code = """
from numba.core import codegen
from numba.core.registry import cpu_target
cpu_target.target_context.refresh()
def refuse(*arguments):
    raise AssertionError("the compiler was started")
codegen.CPUCodeLibrary._optimize_final_module = refuse
from dbspark import ZSet
print(ZSet.from_rows([(1, "a"), (2, "b")], "k BIGINT, s STRING").count)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("2\n", 0), done.stderr


def test_signatures_are_read_from_annotations() -> None:
    @kernel
    def some(a: int, b: float, c: UInt64, d: Int64s | ReadOnlyInt64s) -> None:
        pass

    KERNELS.remove(some)
    assert [str(s) for s in some.listed_signatures] == [
        "(int64, float64, uint64, Array(int64, 1, 'C', False, aligned=True))",
        "(int64, float64, uint64, Array(int64, 1, 'C', True, aligned=True))",
    ]


def test_other_types_are_compiled_when_they_are_met(caplog: pytest.LogCaptureFixture) -> None:
    @kernel
    def total(values: Int64s) -> int:
        out = 0
        for i in range(values.shape[0]):
            out += values[i]
        return out

    KERNELS.remove(total)
    with caplog.at_level(logging.WARNING, "dbspark"):
        assert total(np.arange(4)) == 6
        assert not caplog.records
        assert total(np.arange(4, dtype=np.int32)) == 6
    assert "types that it does not list" in caplog.text


def test_a_kernel_that_was_loaded_can_be_part_of_one_that_is_compiled_here() -> None:
    units.load_unit_of(hash_kernels.mask_words)
    mask_words = hash_kernels.mask_words

    @kernel
    def mask_twice(out: int, rows: int, mask: UInt64) -> None:
        mask_words(out, rows, mask)
        mask_words(out, rows, mask)

    KERNELS.remove(mask_twice)
    words = np.arange(8, dtype=np.uint64)
    mask_twice(words.ctypes.data, 8, np.uint64(3))
    assert words.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_a_unit_that_cannot_be_compiled_is_left_to_its_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(UNITS, "broken", ("no.such.module",))
    monkeypatch.setitem(units._locks, "broken", threading.Lock())
    monkeypatch.setattr(objects, "writable_folder", lambda: tmp_path)
    with caplog.at_level(logging.WARNING, "dbspark"):
        units.load_unit("broken", lambda amount: None)
    assert not units.is_loaded("broken")
    assert "could not be compiled ahead" in caplog.text
    del units._loaded["broken"]
