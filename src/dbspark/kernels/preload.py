"""Make kernels ready before they are called.

Loading all kernels takes a good part of a second, and compiling them the better part of a minute, once on a machine;
no tick waits for either. `begin` starts threads that load all units and compile those that are not cached, in the order
in which a program needs them, while Spark starts. `wait` returns when they have finished; it is called before data is
accepted.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Final

from dbspark.kernels import objects, units
from dbspark.reporting import activity

VM: Final = "vm"
"""The unit of the operator VM."""

_log = logging.getLogger("dbspark")
_started = threading.Lock()
_finished = threading.Event()
_compiling = threading.Lock()


class _Parts:
    """Progress of compiling the units that are not cached, in parts (`units.parts`). Thread-safe."""

    def __init__(self) -> None:
        self.total = 0
        self.done = 0
        self._lock = threading.Lock()

    def expect(self, amount: int) -> None:
        with self._lock:
            self.total += amount

    def step(self, amount: int) -> None:
        with self._lock:
            self.done += amount


_parts = _Parts()


def begin() -> None:
    """Start making all kernels ready in threads, unless that has been done in this process."""
    if _started.acquire(blocking=False):  # never released: once in a process
        threading.Thread(target=_run, name="dbspark-kernels", daemon=True).start()


def wait() -> None:
    """Wait until all kernels are ready, if `begin` has been called; shows the progress."""
    if _finished.is_set() or not _started.locked() or _finished.wait(0.05):
        return
    with activity("loading kernels", total=None, unit="parts") as loading:
        while not _finished.wait(0.1):
            if _parts.total:
                loading.label, loading.total, loading.done = "compiling kernels", _parts.total, _parts.done


def unready_units() -> list[str]:
    """Units that are not loaded: each of their kernels is loaded or compiled at its first call."""
    return [name for name in units.UNITS if not units.is_loaded(name)]


def operator_vm_ready() -> bool:
    """Whether the operator VM (`kernels.vm.interpreter`) can run without waiting for the compiler.

    Compiling it takes longer than most ticks would take without it. So the first call loads it from disk; where it has
    never been compiled on this machine, the first call starts a thread that compiles it, and ticks run without it.
    """
    if units.is_loaded(VM):
        return True
    if not _started.locked():
        if objects.has_unit(VM):
            units.load_unit(VM)
        elif _compiling.acquire(blocking=False):  # never released: once in a process
            threading.Thread(target=units.load_unit, args=(VM,), name="dbspark-operator-vm", daemon=True).start()
    return units.is_loaded(VM)


def compile_operator_vm() -> None:
    """Load the operator VM, or compile it where no compiled one is cached."""
    units.load_unit(VM)


def _run() -> None:
    try:
        make_ready()
    except Exception as error:  # each unit is loaded or compiled at the first call of one of its kernels instead
        _log.warning("kernels were not made ready ahead: %s", error)
    finally:
        _finished.set()


def make_ready() -> None:
    """Load all units. Those that are not cached are compiled first, on all cores."""
    missing = [name for name in units.UNITS if not objects.has_unit(name)]
    cores = threading.Semaphore(_cores())
    threads = [threading.Thread(target=_compile_one, args=(name, cores), daemon=True) for name in missing]
    for thread in threads:  # daemon threads: a program need not wait at its end for kernels that it did not use
        thread.start()
    for name in units.UNITS:
        if name not in missing:
            units.load_unit(name)
    for name in missing:
        _parts.expect(units.parts(name))
    for thread in threads:
        thread.join()


def _cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _compile_one(name: str, cores: threading.Semaphore) -> None:
    with cores:
        units.load_unit(name, _parts.step)
