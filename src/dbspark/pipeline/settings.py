"""The settings of a pipeline (`Pipeline(config={…})`): their defaults and their validation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar, get_args

from dbspark.errors import ConfigError
from dbspark.sql.names import nearest
from dbspark.sql.program import Maintenance

DEFAULTS = {"history": 1000, "read_only": False, "reserve": 0}
"""`history`: how many ticks back tables and views can be read. `read_only`: the location is only read, so another
process may write to it. `reserve`: bytes of memory that the process allocates at once and keeps for state."""

_BYTE_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def validated_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """All settings, with defaults for those that `config` leaves out; raises `ConfigError` for what is not allowed."""
    if not isinstance(config, Mapping):
        raise ConfigError(f"config is {config!r:.80}; give a dict of settings, such as {{'history': 1000}}")
    unknown = [name for name in config if name not in DEFAULTS]
    if unknown:
        hint = nearest(str(unknown[0]), DEFAULTS)
        raise ConfigError(f"config: no setting {unknown[0]!r}{hint}; there are {', '.join(DEFAULTS)}")
    history = config.get("history", 0)
    if not isinstance(history, int | str) or isinstance(history, bool) or not re.fullmatch("[0-9]+", str(history)):
        raise ConfigError(f"config: history is {history!r}, which is not a number of ticks; give 0 or more")
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


def validated_maintenance(given: Any) -> Maintenance:
    """The value of `maintenance=`; raises `ConfigError` for anything that it cannot be."""
    allowed = get_args(Maintenance)
    if given not in allowed:
        hint = nearest(given, allowed) if isinstance(given, str) else ""
        raise ConfigError(f"maintenance is {given!r}{hint}; it can be {' or '.join(map(repr, allowed))}")
    return given  # type: ignore[no-any-return]


def check_text(what: str, given: Any) -> None:
    """Refuse anything but a string that is not blank."""
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(f"{what} is a text, not {given!r:.80} ({type(given).__name__})")


def check_tick(what: str, given: Any) -> None:
    """Refuse anything but the number of a tick."""
    if not isinstance(given, int) or isinstance(given, bool):
        raise ConfigError(f"{what}: a tick is a number, as pipe.tick gives it, not {given!r:.80}")


def check_shards(given: Any) -> None:
    """Refuse anything but None or a number of shards."""
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
        raise ConfigError(f"shards: {given!r} is not a number of shards; give 1 or more, or None to run embedded")


P = ParamSpec("P")
R = TypeVar("R")


def known_options(function: Callable[P, R]) -> Callable[P, R]:
    """Make a method refuse an option that it does not have, with a message that names the nearest one that it has."""
    names = [name for name in signature(function).parameters if name != "self"]
    label = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        for name in options:
            if name not in names:
                hint = nearest(name, names)
                raise ConfigError(f"{label} has no option {name!r}{hint}; there are {', '.join(names)}")
        return function(*args, **options)

    return call


__all__ = [
    "DEFAULTS",
    "check_shards",
    "check_text",
    "check_tick",
    "known_options",
    "parse_bytes",
    "validated_maintenance",
    "validated_settings",
]
