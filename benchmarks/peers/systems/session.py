"""What the contenders on Spark have in common: one session for all cases."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.peers.contender import Contender


class OnSpark(Contender):
    """A contender with a Spark session from `start` to `stop`."""

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self._stack = ExitStack()
        self._spark: Any = None

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {"pyspark": version("pyspark")}

    def start(self) -> None:
        from benchmarks.sql.suites import session

        self._spark = self._stack.enter_context(session())

    def stop(self) -> None:
        self._stack.close()
