"""Load compiled kernels from disk before they are called.

numba loads a compiled kernel at its first call, some ten milliseconds each; the first tick would spend a second on it.
Loading them all ahead takes as long, but most of that time passes while Spark starts and compiles a view. `begin`
starts a thread that loads them, once in a process; `wait` returns when it has finished and is called before data is
accepted.

Kernels that have never been compiled on this machine are not loaded; they are compiled when they are first called.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import threading
from typing import Any

from numba import types

import dbspark.kernels
from dbspark.kernels.jit import KERNELS

_log = logging.getLogger("dbspark")
_started = threading.Lock()
_finished = threading.Event()
_compiling = threading.Lock()


def begin() -> None:
    """Start loading in a thread, unless that has been done in this process."""
    if _started.acquire(blocking=False):  # never released: once in a process
        threading.Thread(target=_run, name="dbspark-kernels", daemon=True).start()


def wait() -> None:
    """Wait until all kernels are loaded, if loading has been started."""
    if _started.locked():
        _finished.wait()


def operator_vm_ready() -> bool:
    """Whether the operator VM (`kernels.vm.interpreter`) can run without waiting for the compiler.

    Compiling it takes longer than most ticks would take without it. So the first call loads it from disk; where it has
    never been compiled on this machine, the first call starts a thread that compiles it, and ticks run without it.
    """
    from dbspark.kernels.vm import interpreter as vm

    run: Any = vm.run
    if run.signatures:
        return True
    if not _compiling.locked():
        if _load(run):
            return True
        if _compiling.acquire(blocking=False):  # never released: once in a process
            threading.Thread(target=compile_operator_vm, name="dbspark-operator-vm", daemon=True).start()
    return False


def compile_operator_vm() -> None:
    """Load the operator VM, or compile it where no compiled one is cached."""
    from dbspark.kernels.vm import interpreter as vm

    run: Any = vm.run
    run.compile((types.int64,) * 6)


def _run() -> None:
    try:
        read_all()
    except Exception as error:  # each kernel is loaded or compiled at its first call instead
        _log.debug("kernels were not loaded ahead: %s", error)
    finally:
        _finished.set()


def read_all() -> int:
    """Load every kernel that has been compiled on this machine; returns how many signatures there are."""
    for module in pkgutil.walk_packages(dbspark.kernels.__path__, "dbspark.kernels."):
        importlib.import_module(module.name)
    return sum(_load(kernel) for kernel in KERNELS)


def _load(kernel: Any) -> int:
    """Load all compiled signatures of a kernel; returns how many there are on disk."""
    stored = kernel._cache._cache_file._load_index()
    for signature, *_ in stored:
        kernel.compile(signature)
    return len(stored)
