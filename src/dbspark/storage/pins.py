"""Pins: ticks that readers look at, and that retirement leaves alone for as long.

A reader in another process leaves a file that says who it is and which tick it reads. The pin of a process that is
gone is removed; one of another host, of which that cannot be known, counts for a day. On local disk a reader that has
opened its batches could do without, because what is mapped outlives its file; other file systems are read piece by
piece. Where a reader may not write it goes without a pin.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

from dbspark.storage.files import Files
from dbspark.storage.lock import Owner

_PREFIX = "pin-"
PIN_LEASE_SECONDS = 86_400.0
"""Seconds for which the pin of a process that cannot be asked counts."""

Version = tuple[int, int]
"""A tick and its revision."""


def put_pin(files: Files, version: Version) -> str | None:
    """Pin a tick for this process; returns the pin's file, None where this process may not write."""
    owner = Owner.current()
    name = f"{_PREFIX}{owner.token}.json"
    try:
        files.put(name, [json.dumps({"version": list(version), "owner": owner.to_json().decode()}).encode()])
    except OSError:
        return None
    return name


def pinned_versions(files: Files, names: list[str]) -> set[Version]:
    """The ticks pinned by processes that may be alive; pins of the dead are removed."""
    out: set[Version] = set()
    for name in names:
        if not name.startswith(_PREFIX) or not name.endswith(".json"):
            continue
        try:
            given: dict[str, Any] = json.loads(files.read(name).to_pybytes())
            owner = Owner.from_json(given["owner"].encode())
            tick, revision = given["version"]
        except FileNotFoundError:  # released meanwhile
            continue
        except (KeyError, TypeError, ValueError):
            owner = None
        if owner is None or owner.gone() or (not owner.here() and time.time() - owner.since > PIN_LEASE_SECONDS):
            with contextlib.suppress(OSError):
                files.remove(name)
            continue
        out.add((int(tick), int(revision)))
    return out


__all__ = ["Version", "pinned_versions", "put_pin"]
