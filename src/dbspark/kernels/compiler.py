"""Compiles a unit of kernels to one object file: `python -m dbspark.kernels.compiler UNIT FILE`.

numba compiles each function separately: a helper is optimised and translated to machine code alone, and optimised and
translated again as a part of every function that calls it, directly or not. Here numba only translates functions to
LLVM IR. All functions of a unit are then linked into one module, each of them once; LLVM optimises that module and
translates it to machine code once.

This runs in a separate process, because it replaces numba's code generator: the functions that it compiles cannot be
called here.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from numba.core import cgutils
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import lookup_environment
from numba.core.event import Listener, register
from numba.core.registry import cpu_target

from dbspark.kernels import units
from dbspark.kernels.jit import Kernel
from dbspark.kernels.objects import CompiledKernel, CompiledUnit, write_unit
from dbspark.kernels.target import Target, compile_target
from dbspark.kernels.units import C_FUNCTIONS, KERNELS, UNITS


class _UncompiledLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The LLVM IR of a function, and the libraries of the functions that it calls."""

    def finalize(self) -> None:
        self._raise_if_finalized()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0


class _UnitCodegen(JITCPUCodegen):  # type: ignore[misc]
    """numba's code generator, changed to compile for `target` instead of this machine, and to stop at LLVM IR."""

    _library_class = _UncompiledLibrary

    def __init__(self, target: Target) -> None:
        self._target = target
        super().__init__("dbspark.kernels")

    def _get_host_cpu_name(self) -> str:
        return self._target.cpu

    def _get_host_cpu_features(self) -> str:
        return self._target.features

    def set_env(self, env_name: str, env: Any) -> None:
        pass  # only code that runs in this process needs its environment set


@global_compiler_lock
def compile_unit(name: str, target: Target) -> CompiledUnit:
    """Compile the kernels and C functions of a unit."""
    Kernel.compiled_here = True
    units.import_unit(name)
    context = cpu_target.target_context
    context.refresh()
    codegen = context._internal_codegen = _UnitCodegen(target)
    functions = units.functions_of(name)
    register("numba:compile", _ReportFunctions(functions))
    modules = {f"dbspark.kernels.{module}" for module in UNITS[name]}
    linked = codegen.create_library(name)
    exported: set[str] = set()
    kernels: list[CompiledKernel] = []
    c_functions: dict[str, str] = {}
    roots = []
    for kernel in KERNELS:
        if kernel.module in modules:
            for signature in kernel.listed_signatures:
                kernel.compile(signature)
                result = kernel.overloads[signature]
                result.fndesc.typemap = result.fndesc.calltypes = None  # not needed any more, and cannot be pickled
                kernels.append(
                    CompiledKernel(kernel.qualified_name, result.signature, result.fndesc, result.environment)
                )
                exported.add(result.fndesc.llvm_cpython_wrapper_name)
                roots.append(result.library)
    for function in C_FUNCTIONS:
        if function.module in modules:
            compiled = function.compiler()
            compiled.compile()
            c_functions[function.qualified_name] = compiled.native_name
            exported.add(compiled.native_name)
            roots.append(compiled._library)
    _link(linked, roots, exported)
    linked._optimize_final_module()
    module = linked._final_module
    module.verify()
    environments = {}
    for variable in module.global_variables:
        assert not variable.name.startswith("numba.dynamic.globals"), f"{name}: an address of this process in the code"
        environment = lookup_environment(variable.name)
        if environment is not None:
            environments[variable.name] = environment
    _report(units.llvm_parts(len(functions)))
    return CompiledUnit(
        codegen._tm.emit_object(module),
        _declarations(codegen, name, exported),
        kernels,
        c_functions,
        list(environments.values()),
    )


def _link(into: Any, roots: list[Any], exported: set[str]) -> None:
    """Link the modules of all libraries that `roots` need into `into`, each once. Functions that
    are not `exported` may be inlined and dropped."""
    seen: set[int] = set()
    stack = list(reversed(roots))
    while stack:
        library = stack.pop()
        if id(library) in seen:
            continue
        seen.add(id(library))
        module = library._final_module if isinstance(library, _UncompiledLibrary) else library._get_module_for_linking()
        into._final_module.link_in(module, preserve=True)
        stack += library._linking_libraries
    for function in into._final_module.functions:
        if not function.is_declaration and function.name not in exported:
            function.linkage = "linkonce_odr"


def _declarations(codegen: Any, name: str, exported: set[str]) -> bytes:
    """Bitcode of a module that names the exported functions: numba reads from it which symbols an object file has."""
    lines = [str(codegen._create_empty_module(cgutils.normalize_ir_text(name)))]
    lines += [f'define void @"{symbol}"() {{\n  unreachable\n}}' for symbol in sorted(exported)]
    bitcode: bytes = llvm.parse_assembly("\n".join(lines)).as_bitcode()
    return bitcode


class _ReportFunctions(Listener):  # type: ignore[misc]
    """Reports each function when it has been translated for the first time."""

    def __init__(self, functions: set[Any]) -> None:
        self._left = set(functions)

    def on_start(self, event: Any) -> None:
        pass

    def on_end(self, event: Any) -> None:
        function = event.data["dispatcher"]
        if function in self._left:
            self._left.remove(function)
            _report(1)


def _report(parts: int) -> None:
    """Write the number of parts finished to standard output, which the waiting process reads (`units`)."""
    sys.stdout.write(f"{parts}\n")
    sys.stdout.flush()


def main() -> None:
    """Compile one unit into a file."""
    unit, path = sys.argv[1:]
    gc.disable()  # numba makes a great many objects that live until the process ends
    write_unit(Path(path), compile_unit(unit, compile_target()))


if __name__ == "__main__":
    main()
