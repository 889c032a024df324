"""The processors that kernels are compiled for, and the key under which compiled kernels are cached.

Code for one machine may use instructions that another does not have. So kernels are compiled for a *level* that most
machines have and that an image or a wheel can carry: x86-64-v3 (AVX2; Haswell, Zen and later) or armv8-a. A machine
below the level compiles for its own processor.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import Any, Final

import llvmlite
import llvmlite.binding as llvm
import numba

X86_64_V3_FEATURES: Final = frozenset(
    ["avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sahf", "sse3", "sse4.1",
     "sse4.2", "ssse3"]
)  # fmt: skip
"""LLVM's names of the instruction sets that the level adds to x86-64."""


@dataclass(frozen=True, slots=True)
class Target:
    """A processor, as LLVM describes it."""

    name: str
    cpu: str
    features: str = ""


@cache
def compile_target() -> Target:
    """The highest level that this machine has."""
    machine = llvm.get_process_triple().split("-")[0]
    features = llvm.get_host_cpu_features()
    if machine == "x86_64" and all(features.get(name) for name in X86_64_V3_FEATURES):
        return Target("x86-64-v3", "x86-64-v3")
    if machine in ("aarch64", "arm64"):
        return Target("armv8-a", "generic")
    cpu, flags = llvm.get_host_cpu_name(), features.flatten()
    return Target(f"{cpu}-{blake2b(flags.encode(), digest_size=4).hexdigest()}", cpu, flags)


@cache
def described() -> str:
    """The compilers, interpreter and target that compiled kernels fit.

    For example `numba 0.68.1, llvmlite 0.50.0, cpython-311, x86-64-v3, …`.
    """
    return (
        f"numba {numba.__version__}, llvmlite {llvmlite.__version__}, {sys.implementation.cache_tag}, "
        f"{compile_target().name}, {llvm.get_process_triple()}"
    )


@cache
def cache_key() -> str:
    """A name for kernels compiled from these sources, by these compilers, for this interpreter and target."""
    digest = blake2b(digest_size=8)
    digest.update(described().encode())
    for path, source in sorted(_sources(files("dbspark.kernels"), "")):
        digest.update(f"{path} {len(source)}\n".encode() + source)
    return f"kernels-{digest.hexdigest()}"


def _sources(folder: Any, path: str) -> list[tuple[str, bytes]]:
    """All modules below a folder, which may lie in a zip file, and their text."""
    found = []
    for each in folder.iterdir():
        name = f"{path}/{each.name}"
        if each.name.endswith(".py"):
            found.append((name, each.read_bytes()))
        elif each.is_dir() and each.name not in ("__pycache__", "compiled"):
            found += _sources(each, name)
    return found
