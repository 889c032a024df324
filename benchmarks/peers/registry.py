"""The systems: where the class of each is, and whose environment it needs.

An environment is a folder of `.peers` with the packages of `requirements-<environment>.txt`; `""` is the environment
of dbspark itself. Peers are optional: one whose environment is not there is skipped with a line.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.peers.contender import Contender

ROOT: Final = Path(__file__).resolve().parents[2]
ENVIRONMENTS: Final = ROOT / ".peers"
STAMP: Final = ".installed"
"""The file that an environment has when it is whole."""


@dataclass(frozen=True, slots=True)
class System:
    """One line of the list."""

    module: str
    cls: str
    environment: str = ""

    def load(self) -> type[Contender]:
        loaded: type[Contender] = getattr(importlib.import_module(f"benchmarks.peers.systems.{self.module}"), self.cls)
        return loaded

    @property
    def python(self) -> Path | None:
        """The Python to run it with; None if its environment is not there."""
        if not self.environment:
            return Path(sys.executable)
        python = ENVIRONMENTS / self.environment / "bin" / "python"
        return python if (python.parent.parent / STAMP).exists() else None


SYSTEMS: Final[dict[str, System]] = {
    "dbspark": System("dbspark", "Dbspark"),
    "search": System("search", "Search"),
    "hand": System("hand", "ByHand"),
    "duckdb": System("duckdb", "Duckdb", "duckdb"),
    "polars": System("polars", "Polars", "polars"),
    "spark": System("spark", "Spark"),
    "streaming": System("streaming", "Streaming"),
    "flink": System("flink", "Flink", "pyflink"),
    "pathway": System("pathway", "Pathway", "pathway"),
    "pydbsp": System("pydbsp", "Pydbsp", "pydbsp"),
}
