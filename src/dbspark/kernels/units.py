"""Units: kernels that are compiled together, into one file, and loaded together.

Functions that call the same helpers share a unit, because each unit has a copy of every helper. There are several
units so that several cores compile at once, and so that what a program needs first is ready first.

A unit is loaded from its file (`objects`); where there is none, a separate process compiles it (`compiler`), and all
other processes on the machine that need the unit wait for that one.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from numba.core.compiler import compile_result
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target

from dbspark.kernels import objects
from dbspark.kernels.objects import CompiledUnit
from dbspark.kernels.target import described
from dbspark.reporting import activity

UNITS: Final[dict[str, tuple[str, ...]]] = {
    "vm": (
        "vm.interpreter", "vm.constraints", "aggregate.accumulators", "aggregate.group", "aggregate.top_k",
        "sort.sort_rows", "sort.row_order", "sort.radix_sort", "lookup.index", "lookup.bloom_filter",
        "lookup.directory", "memory.arrow_import",
    ),
    "batches": (
        "memory.hash", "memory.gather", "memory.arrow_export", "merge.consolidate", "merge.merge_join",
        "merge.merge_small", "merge.merge_timed", "merge.split", "lookup.probe", "lookup.ranges", "lookup.first_rows",
        "lookup.row_lookup", "lookup.hash_table",
    ),
    "windows": (
        "aggregate.window_functions", "aggregate.moments", "aggregate.exact_sums", "aggregate.bit_counts",
        "aggregate.time_windows",
    ),
}  # fmt: skip
"""Modules of each unit, below `dbspark.kernels`. Units are loaded and compiled in this order."""

KERNELS: Final[list[Any]] = []
"""All kernels (`jit.Kernel`) of the modules imported so far."""
C_FUNCTIONS: Final[list[Any]] = []
"""All C functions (`jit.CFunction`) of the modules imported so far."""

_log = logging.getLogger("dbspark")
_locks: Final = {name: threading.Lock() for name in UNITS}
_loaded: Final[dict[str, Any]] = {}
"""By unit, the objects that its machine code refers to, so that they live as long as the process. None where a unit
cannot be loaded: then each of its kernels is compiled in this process at its first call."""
_compilers: Final[set[subprocess.Popen[str]]] = set()
"""Running compiler processes."""
_saying: Final = threading.Lock()
"""Taken by the first thread that logs why kernels are compiled, and never released: it is logged once in a process."""


@cache
def _unit_of_module() -> dict[str, str]:
    return {f"dbspark.kernels.{module}": name for name, modules in UNITS.items() for module in modules}


def load_unit_of(declared: Any) -> None:
    """Load the unit that a kernel or C function belongs to; compile it first where that has not been done."""
    name = _unit_of_module().get(declared.module)
    if name is not None:  # tests declare kernels of their own
        load_unit(name)


def load_unit(name: str, step: Callable[[int], None] | None = None) -> None:
    """Load a unit; compile it first where that has not been done. `step` is called with the number of parts that have
    been finished since its last call; without it the progress is shown."""
    if name in _loaded:
        return
    with _locks[name]:
        if name in _loaded:
            return
        begun = perf_counter()
        unit = objects.read_unit(name) or _compile(name, step)
        attached = None
        if unit is not None:
            import_unit(name)
            try:
                attached = _attach(name, unit)
            except Exception as error:
                _log.warning("kernels of unit %s cannot be loaded, each is compiled at its first call: %s", name, error)
        _loaded[name] = attached
        _log.debug("kernels: unit %s: %.0f ms", name, 1e3 * (perf_counter() - begun))


def is_loaded(name: str) -> bool:
    """Whether calling a kernel of the unit waits neither for the compiler nor for the disk."""
    return _loaded.get(name) is not None


def import_unit(name: str) -> None:
    """Import the modules of a unit."""
    for module in UNITS[name]:
        importlib.import_module(f"dbspark.kernels.{module}")


def parts(name: str) -> int:
    """The sum of what `step` gets while the unit is compiled: one for each function, and LLVM's share of the time."""
    functions = len(functions_of(name))
    return functions + llvm_parts(functions)


def llvm_parts(functions: int) -> int:
    """How many functions numba translates in the time that LLVM needs for all of them: a sixth, as measured."""
    return functions // 6


def functions_of(name: str) -> set[Dispatcher]:
    """The kernels of a unit and all helpers that they call."""
    import_unit(name)
    modules = {f"dbspark.kernels.{module}" for module in UNITS[name]}
    found: set[Dispatcher] = set()
    ahead: list[Dispatcher] = [kernel for kernel in KERNELS if kernel.module in modules]
    while ahead:
        function = ahead.pop()
        if function not in found:
            found.add(function)
            variables, code = function.py_func.__globals__, function.py_func.__code__
            ahead += [variables[n] for n in code.co_names if isinstance(variables.get(n), Dispatcher)]
    return found


def _compile(name: str, step: Callable[[int], None] | None) -> CompiledUnit | None:
    """Compile a unit in a separate process, or wait for the process that is compiling it already."""
    if step is None:
        with activity(f"compiling kernels ({name})", total=parts(name), unit="parts") as compiling:
            return _compile(name, compiling.advance)
    _say_why()
    folder = objects.writable_folder()
    try:
        if folder is None:
            with tempfile.TemporaryDirectory(prefix="dbspark") as temporary:
                return _compile_to(Path(temporary), name, step)
        with objects.locked(folder / f"{name}.unit"):
            return objects.read_unit(name) or _compile_to(folder, name, step)
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("kernels of unit %s could not be compiled ahead, each is at its first call: %s", name, error)
        return None


def _say_why() -> None:
    """Log once that kernels are compiled, and why those that came with the package, if any, are not used."""
    if not _saying.acquire(blocking=False):  # another unit came first
        return
    fits = objects.unfit_package()
    if fits is None:
        _log.info("compiling kernels, once on this machine")
    elif fits == described():
        _log.warning("the sources of kernels differ from those that came with dbspark: compiling them, once")
    else:
        _log.warning(
            "the compiled kernels that came with dbspark are for %s; here is %s: compiling them, once on this machine",
            fits, described(),
        )  # fmt: skip


def _compile_to(folder: Path, name: str, step: Callable[[int], None]) -> CompiledUnit | None:
    path = folder / f"{name}.unit"
    command = [sys.executable, "-m", "dbspark.kernels.compiler", name, str(path)]
    # The files are shared: NUMBA_* variables of this process (optimisation levels, tracing) must not affect them.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    _log.debug("kernels: unit %s is compiled to %s", name, path)
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):  # fmt: skip
        _compilers.add(process)
        assert process.stdout is not None
        for line in process.stdout:
            step(int(line))
        status = process.wait()
        if process not in _compilers:
            return None  # `_stop_compilers` has ended it, because this process is ending
        _compilers.remove(process)
        if status == 0:
            return objects.parse_unit(path.read_bytes())
        errors.seek(0)
        raise subprocess.SubprocessError(errors.read().decode(errors="replace").strip())


@atexit.register
def _stop_compilers() -> None:
    """End the compiler processes that are running when this process ends: nobody waits for their results."""
    while _compilers:
        _compilers.pop().terminate()


@global_compiler_lock
def _attach(name: str, unit: CompiledUnit) -> Any:
    """Link a unit's machine code into this process, and give its kernels their entry points."""
    context = cpu_target.target_context
    context.refresh()
    codegen = context.codegen()
    library = codegen.unserialize_library((name, "object", (unit.machine_code, unit.declarations)))
    kernels = {kernel.qualified_name: kernel for kernel in KERNELS}
    for compiled in unit.kernels:
        kernel = kernels[compiled.name]
        if tuple(compiled.signature.args) in kernel.overloads:
            continue
        entry_point = context.get_executable(library, compiled.descriptor, compiled.environment)
        kernel.add_overload(
            compile_result(
                typing_context=context.typing_context,
                target_context=context,
                library=library,
                environment=compiled.environment,
                entry_point=entry_point,
                fndesc=compiled.descriptor,
                signature=compiled.signature,
                objectmode=False,
            )
        )
    for environment in unit.environments:
        codegen.set_env(environment.env_name, environment)
    for function in C_FUNCTIONS:
        symbol = unit.c_functions.get(function.qualified_name)
        if symbol is not None:
            function.loaded_address = library.get_pointer_to_function(symbol)
    return library, unit.environments
