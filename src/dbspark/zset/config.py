"""Knobs of Z-sets, and the environment variables that set them.

The environment is read once, on first use; `configure`, `configured` or a `ZSetConfig` that is passed override it. A
value out of range is refused with the name of its knob, and nothing is changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from dbspark.errors import ConfigError, UnknownBackendError

BACKENDS: Final = ("HashMap", "FastZSet", "Batch", "Adaptive")

_VARIABLES: Final = {
    "backend": "DBSP_BACKEND",
    "smallset_n": "DBSP_ZSET_SMALLSET_N",
    "flush_size": "DBSP_ZSET_FLUSH_SIZE",
    "flush_bytes": "DBSP_ZSET_FLUSH_BYTES",
    "flush_time_ms": "DBSP_ZSET_FLUSH_TIME_MS",
    "level_fanout": "DBSP_ZSET_LEVEL_FANOUT",
    "compact_budget_ms": "DBSP_ZSET_COMPACT_BUDGET_MS",
    "cancel_ewma": "DBSP_ZSET_CANCEL_EWMA",
    "logging": "DBSP_ZSET_LOGGING",
}
_LOGGING: Final = ("off", "summary", "detailed")


@dataclass(frozen=True, slots=True)
class ZSetConfig:
    """One consistent set of knobs."""

    backend: str = "Adaptive"
    smallset_n: int = 512
    """N: up to this many rows are one small sorted vector."""
    flush_size: int = 65536
    """S: rows at which a memtable is flushed (rows added one by one count from the first read in columns on)."""
    flush_bytes: int = 8 << 20
    """Bytes at which a memtable is flushed."""
    flush_time_ms: float = 20.0
    """T: age of the oldest row at which a memtable in front of a spine is flushed."""
    level_fanout: int = 4
    """R: this many batches of one level are merged to one of the next."""
    compact_budget_ms: float = 2.0
    """B: time that one flush may spend on merging older batches."""
    cancel_ewma: float = 0.25
    """Share of changed rows with negative weights (EWMA) above which S is quartered."""
    logging: str = "off"
    """`summary` logs flushes and changes of form at INFO, `detailed` every decision at DEBUG."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value, kind = getattr(self, f.name), str(f.type)
            fits = isinstance(value, int | float if kind == "float" else int if kind == "int" else str)
            if not fits or isinstance(value, bool):
                raise ConfigError(f"{_VARIABLES[f.name]}: {value!r} is not a value of type {kind}")
        if self.backend not in BACKENDS:
            raise UnknownBackendError(
                f"{_VARIABLES['backend']}: there is no backend {self.backend!r}; choose one of {', '.join(BACKENDS)}"
            )
        if self.logging not in _LOGGING:
            raise ConfigError(f"{_VARIABLES['logging']}: {self.logging!r} is not one of {', '.join(_LOGGING)}")
        self._at_least("smallset_n", 0)
        self._at_least("flush_size", 1)
        self._at_least("flush_bytes", 1)
        self._at_least("flush_time_ms", 0)
        self._at_least("level_fanout", 2)
        self._at_least("compact_budget_ms", 0)
        if not 0 <= self.cancel_ewma <= 1:
            raise ConfigError(f"{_VARIABLES['cancel_ewma']}: {self.cancel_ewma!r} is not a share between 0 and 1")

    @property
    def small_limit(self) -> int:
        """A Z-set leaves the small form above this many rows: N + N/8."""
        return self.smallset_n + self.smallset_n // 8

    @property
    def shrink_limit(self) -> int:
        """A Z-set returns to the small form below this many rows: ¾ N, well below `small_limit` (hysteresis)."""
        return self.smallset_n - self.smallset_n // 4

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not value >= least:
            raise ConfigError(f"{_VARIABLES[name]}: {value!r} is too small; the least is {least}")

    @staticmethod
    def from_env(environ: Mapping[str, str]) -> ZSetConfig:
        """Read the DBSP_* variables; those not set keep their defaults."""
        given: dict[str, Any] = {}
        for f in fields(ZSetConfig):
            text = environ.get(_VARIABLES[f.name], "").strip()
            if not text:
                continue
            kind = str(f.type)
            try:
                given[f.name] = int(text) if kind == "int" else float(text) if kind == "float" else text
            except ValueError:
                raise ConfigError(f"{_VARIABLES[f.name]}: {text!r} is not a number") from None
        return ZSetConfig(**given)


_current: ZSetConfig | None = None


def current() -> ZSetConfig:
    """The default configuration."""
    global _current
    if _current is None:
        _current = ZSetConfig.from_env(os.environ)
    return _current


def configure(**knobs: Any) -> ZSetConfig:
    """Change the default configuration of Z-sets that are made from now on; returns it."""
    global _current
    _current = _replaced(knobs)
    return _current


@contextmanager
def configured(**knobs: Any) -> Iterator[ZSetConfig]:
    """Change knobs of the default configuration inside a `with` block."""
    global _current
    before = current()
    _current = _replaced(knobs)
    try:
        yield _current
    finally:
        _current = before


def _replaced(knobs: Mapping[str, Any]) -> ZSetConfig:
    unknown = sorted(set(knobs) - set(_VARIABLES))
    if unknown:
        raise ConfigError(f"unknown knobs: {', '.join(unknown)}; the knobs are {', '.join(_VARIABLES)}")
    return replace(current(), **knobs)
