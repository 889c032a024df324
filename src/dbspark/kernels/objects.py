"""Files of compiled units of kernels: their format, and the folders in which they lie.

    MAGIC, BLAKE2 digest of the rest, pickled `CompiledUnit`

Invariants:
1. A file is read as a whole, and nothing of it is unpickled or run unless the digest fits. A damaged file is treated
   as if it did not exist.
2. A file appears under its name complete, or not at all; its folder is named after the key of what is in it
   (`target.cache_key`).
3. Nothing is read from a folder that another user could have written to.

Kernels are read from the package itself (a platform wheel has them; it may be read-only, or a zip file), and then from
the first of these folders that can be written: `__pycache__` beside the sources, so that all users and Spark's workers
share it; the user's cache; the temporary folder.
"""

from __future__ import annotations

import logging
import os
import pickle
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from numba.core import serialize

from dbspark.kernels.target import cache_key

MAGIC: Final = b"dbspark kernels 1\n"
_DIGEST_BYTES: Final = 32
PACKAGED: Final = "compiled"
"""The folder of the package that a platform wheel carries."""

DESCRIPTION: Final = "fits.txt"
"""The file in `PACKAGED` that says which compilers and target the kernels fit (`target.described`)."""

_log = logging.getLogger("dbspark")


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """What numba needs in order to call one signature of a kernel whose machine code has been loaded."""

    name: str
    signature: Any
    descriptor: Any
    environment: Any


@dataclass(frozen=True, slots=True)
class CompiledUnit:
    """Machine code of a unit, and the description of the functions in it."""

    machine_code: bytes
    declarations: bytes
    """LLVM bitcode of a module that declares the functions in `machine_code`."""
    kernels: list[CompiledKernel]
    c_functions: dict[str, str]
    """Symbols of C functions, by qualified name."""
    environments: list[Any]
    """numba's environments of all functions, which the code refers to by name."""


@cache
def writable_folder() -> Path | None:
    """The folder that this process writes compiled kernels to; None where there is none."""
    places = []
    package = files("dbspark.kernels")
    if isinstance(package, Path):
        places.append(package / "__pycache__")
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    places += [Path(user) / "dbspark", Path(tempfile.gettempdir()) / f"dbspark-{os.getuid()}"]
    for place in places:
        folder = place / cache_key()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK) and _trusted(folder):
            return folder
    return None


def _trusted(folder: Path) -> bool:
    """Whether files in a folder can have been written only by this user, by root, or by those who may also write the
    sources."""
    if folder.is_relative_to(Path(__file__).parent):
        return True
    status = folder.stat()
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & 0o022


def read_unit(name: str) -> CompiledUnit | None:
    """A unit that has been compiled before; None where there is none, or only a damaged one."""
    for path in _candidates(name):
        try:
            data = path.read_bytes()
        except (OSError, KeyError):  # KeyError: not in the zip file
            continue
        unit = parse_unit(data)
        if unit is not None:
            return unit
        _log.warning("compiled kernels in %s are damaged and are compiled anew", path)
    return None


@cache
def unfit_package() -> str | None:
    """What the kernels that came with the package fit, as text, if they do not fit this process; None if they do or if
    the package came without."""
    folder = files("dbspark.kernels").joinpath(PACKAGED)
    if not folder.is_dir() or folder.joinpath(cache_key()).is_dir():
        return None
    try:
        return folder.joinpath(DESCRIPTION).read_text().strip()
    except (OSError, KeyError):
        return "something else"


def has_unit(name: str) -> bool:
    """Whether there is a file of the unit."""
    return any(path.is_file() for path in _candidates(name))


def _candidates(name: str) -> Iterator[Any]:
    yield files("dbspark.kernels").joinpath(PACKAGED, cache_key(), f"{name}.unit")
    folder = writable_folder()
    if folder is not None:
        yield folder / f"{name}.unit"


def parse_unit(data: bytes) -> CompiledUnit | None:
    """The unit in the content of a file, or None."""
    start = len(MAGIC) + _DIGEST_BYTES
    content = data[start:]
    if data[:start] != MAGIC + blake2b(content, digest_size=_DIGEST_BYTES).digest():
        return None
    try:
        unit = pickle.loads(content)
    except Exception:  # the content is not a pickle that this process can read
        return None
    return unit if isinstance(unit, CompiledUnit) else None


def write_unit(path: Path, unit: CompiledUnit) -> None:
    """Write a file under another name and rename it, so that no reader sees a part of it."""
    content = serialize.dumps(unit)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            file.write(MAGIC + blake2b(content, digest_size=_DIGEST_BYTES).digest() + content)
            file.flush()
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a unit's file, so that only one of several processes compiles it."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(f"{path}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
