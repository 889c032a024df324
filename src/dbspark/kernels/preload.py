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

import dbspark.kernels
from dbspark.kernels.jit import KERNELS

_log = logging.getLogger("dbspark")
_begun = threading.Lock()
_done = threading.Event()


def begin() -> None:
    """Start reading, if nobody has."""
    if _begun.acquire(blocking=False):  # never given back: once in a process
        threading.Thread(target=_run, name="dbspark-kernels", daemon=True).start()


def wait() -> None:
    """Until all are read, if reading has begun."""
    if _begun.locked():
        _done.wait()


def _run() -> None:
    try:
        read_all()
    except Exception as error:  # they are read, or compiled, when they are called
        _log.debug("kernels were not read ahead: %s", error)
    finally:
        _done.set()


def read_all() -> int:
    """Read every kernel that has been compiled on this machine; returns how many there are."""
    for module in pkgutil.iter_modules(dbspark.kernels.__path__):
        if module.name not in ("preload", "warm"):
            importlib.import_module(f"dbspark.kernels.{module.name}")
    return sum(_read(kernel) for kernel in KERNELS)


def _read(kernel: Any) -> int:
    stored = kernel._cache._cache_file._load_index()
    for signature, *_ in stored:
        kernel.compile(signature)
    return len(stored)
