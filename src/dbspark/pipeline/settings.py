"""The settings of a pipeline (`Pipeline(config={…})`): their defaults and their validation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dbspark.errors import ConfigError

DEFAULTS = {"history": 1000, "read_only": False, "reserve": 0}
"""`history`: how many ticks back tables and views can be read. `read_only`: the location is only read, so another
process may write to it. `reserve`: bytes of memory that the process allocates at once and keeps for state."""

_BYTE_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def validated_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """All settings, with defaults for those that `config` leaves out; raises `ConfigError` for what is not allowed."""
    unknown = sorted(set(config) - set(DEFAULTS))
    if unknown:
        raise ConfigError(f"no setting {', '.join(unknown)}; there are {', '.join(DEFAULTS)}")
    if int(config.get("history", 0)) < 0:
        raise ConfigError(f"history: {config['history']} is not a number of ticks; give 0 or more")
    parse_bytes(config.get("reserve", 0))
    if not isinstance(config.get("read_only", False), bool):
        raise ConfigError(f"read_only is {config['read_only']!r}; it can be True or False")
    return {**DEFAULTS, **config}


def parse_bytes(amount: int | str) -> int:
    """A number of bytes, or text with the suffix k, m, g or t, as the options of Java have it."""
    match = re.fullmatch(r"([0-9]+)([kmgt]?)b?", str(amount).strip().lower())
    if match is None:
        raise ConfigError(f"reserve: {amount!r} is not an amount of memory; give bytes, or text like '512m' or '4g'")
    return int(match[1]) << _BYTE_SHIFTS[match[2]]


__all__ = ["DEFAULTS", "parse_bytes", "validated_settings"]
