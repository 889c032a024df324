"""How kernels are compiled and where the compiled code is cached.

Every kernel goes through one of four decorators:

| decorator | called by | GIL | what for |
|---|---|---|---|
| `kernel` | Python, kernels | released | the rule |
| `gil_kernel` | Python, kernels | kept | what takes microseconds |
| `inlined` | kernels | | helpers that make or return arrays |
| `borrowing` | kernels | | helpers that only read and write the arrays they are passed |

Kernels do not call themselves: numba's disk cache of a recursive function crashes when it is loaded again. Nested
values are walked with an explicit stack, or bottom-up by the caller.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba import types

F = TypeVar("F", bound=Callable[..., Any])

i64: Any = np.int64
"""The cast that keeps a kernel's integers signed. Any to mypy, because a kernel mixes int and np.int64."""


def _cache_dir() -> str:
    """The directory of compiled kernels, named for a digest of all kernel sources and the versions of Python and numba.

    numba itself checks only the file that a function stands in, and would go on using a kernel after a helper in
    another file has changed. The directory lies next to the sources if possible, so that all users and Spark's workers
    share it.
    """
    here = Path(__file__).parent
    digest = blake2b(f"{sys.version_info[:2]} {numba.__version__}".encode(), digest_size=8)
    for source in sorted(here.rglob("*.py")):
        digest.update(source.read_bytes())
    name = f"kernels-{digest.hexdigest()}"
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for place in (here / "__pycache__", user / "dbspark", Path(tempfile.gettempdir()) / f"dbspark-{os.getuid()}"):
        try:
            (place / name).mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(place / name, os.W_OK):
            return str(place / name)
    return ""


_CACHE_DIR = _cache_dir()
KERNELS: list[Any] = []
"""All kernels of the modules imported so far; `preload` loads their compiled code."""


@contextmanager
def _cached() -> Iterator[None]:
    """Have numba cache what is defined inside in `_CACHE_DIR`."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = _CACHE_DIR or before
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


def kernel(fn: F) -> F:
    """Compile `fn` on first call, cached on disk. It runs without the GIL."""
    return _kernel(fn, nogil=True)


def gil_kernel(fn: F) -> F:
    """Compile `fn` on first call, cached on disk. It keeps the GIL: for kernels that take microseconds.

    Releasing the GIL gives it to the background merge thread if that waits for it, and taking it back lasts until that
    thread releases it and this one has been woken: longer than such a kernel runs. Where one may take long after all,
    it releases the GIL itself (`cpython.release_gil`).
    """
    return _kernel(fn, nogil=False)


def _kernel(fn: F, nogil: bool) -> F:
    with _cached():
        compiled: F = numba.njit(nogil=nogil, cache=True, no_cfunc_wrapper=True, _nrt=True)(fn)
    KERNELS.append(compiled)
    return compiled


def c_function(fn: Callable[[int], None]) -> int:
    """The address of `fn` as a C function `void (*)(void *)`, compiled now or loaded from disk.

    It is never freed: foreign code may call the address until the process ends.
    """
    with _cached():
        compiled = numba.cfunc(types.void(types.int64), nopython=True, cache=True)(fn)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(compiled))
    address: int = compiled.address
    return address


def inlined(fn: F) -> F:
    """Compile `fn` as a helper, which becomes part of each kernel that calls it and is cached with that; Python cannot
    call it.

    `_nrt` (array references are counted) is stated because numba would otherwise take the flag from the caller, which
    may be a `borrowing` helper.
    """
    compiled: F = numba.njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=True)(fn)
    return compiled


def borrowing(fn: F) -> F:
    """Compile `fn` as a helper that borrows its array arguments: no references are counted, because the caller holds
    them.

    Counting is atomic and costs as much as comparing two rows, once on entry and once on return. A helper that made an
    array would not compile; an array that something it calls returned would never be freed.
    """
    compiled: F = numba.njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)(fn)
    return compiled
