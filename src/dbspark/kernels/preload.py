"""Read compiled kernels from disk before they are needed.

numba reads a compiled kernel when it is first called, at some ten milliseconds each: a first tick would spend a second
on it in the middle of its work. Reading them all takes as long, but most of it passes while Spark starts and compiles
a view: `begin` starts a thread, once in a process, and `wait` is for whoever is about to be ready for data.

Kernels that have never been compiled on this machine are left alone: they are compiled when they are called.
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
_begun = threading.Lock()
_done = threading.Event()
_compiling = threading.Lock()


def begin() -> None:
    """Start reading, if nobody has."""
    if _begun.acquire(blocking=False):  # never given back: once in a process
        threading.Thread(target=_run, name="dbspark-kernels", daemon=True).start()


def wait() -> None:
    """Until all are read, if reading has begun."""
    if _begun.locked():
        _done.wait()


def machine_is_there() -> bool:
    """Whether programs can be run without waiting for a compiler: `kernels.vm.interpreter` is read, or has been
    compiled.

    It takes a while to compile, longer than most ticks would take without it. So it is read when it is first asked
    for, and where it has never been compiled on this machine, a thread compiles it while ticks go on without.
    """
    from dbspark.kernels.vm import interpreter as machine

    run: Any = machine.run
    if run.signatures:
        return True
    if not _compiling.locked():
        if _read(run):
            return True
        if _compiling.acquire(blocking=False):  # never given back: once in a process
            threading.Thread(target=compile_machine, name="dbspark-machine", daemon=True).start()
    return False


def compile_machine() -> None:
    """Compile the machine, if that has not been done."""
    from dbspark.kernels.vm import interpreter as machine

    run: Any = machine.run
    run.compile((types.int64,) * 6)


def _run() -> None:
    try:
        read_all()
    except Exception as error:  # they are read, or compiled, when they are called
        _log.debug("kernels were not read ahead: %s", error)
    finally:
        _done.set()


def read_all() -> int:
    """Read every kernel that has been compiled on this machine; returns how many there are."""
    for module in pkgutil.walk_packages(dbspark.kernels.__path__, "dbspark.kernels."):
        importlib.import_module(module.name)
    return sum(_read(kernel) for kernel in KERNELS)


def _read(kernel: Any) -> int:
    stored = kernel._cache._cache_file._load_index()
    for signature, *_ in stored:
        kernel.compile(signature)
    return len(stored)
