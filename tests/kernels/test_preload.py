"""Compiled kernels are loaded before they are called."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from dbspark.kernels import objects, preload, units
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


def test_what_is_not_there_is_compiled_on_as_many_cores_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, running, most, loaded = threading.Lock(), 0, 0, []
    parts = preload._Parts()

    def load_unit(name: str, step: Callable[[int], None] | None = None) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if step is not None:
            step(units.parts(name))
        with lock:
            running -= 1
            loaded.append(name)

    monkeypatch.setattr(objects, "has_unit", lambda name: name == "vm")
    monkeypatch.setattr(units, "load_unit", load_unit)
    monkeypatch.setattr(preload, "_parts", parts)
    preload.make_ready()
    assert sorted(loaded) == sorted(units.UNITS)
    assert most <= (os.cpu_count() or 1) + 1  # one loads what is there
    assert 0 < parts.done == parts.total


def test_a_process_that_ends_stops_what_it_has_begun_to_compile() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], text=True)
    units._compilers.add(sleeper)
    units._stop_compilers()
    assert sleeper.wait(60) != 0
    assert not units._compilers
