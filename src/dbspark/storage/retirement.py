"""Retirement: which ticks are kept, and which files nobody needs any more.

A tick is kept while the policy says so, while a reader pins it, and in any case while it is the newest. A file is
needed while a tick that is kept names it. The rest is removed: now and then after a commit, and when a location is
opened for writing, which also removes what a crash has left behind. What cannot be removed is tried again. Where the
manifest of a kept tick cannot be read nobody knows what it needs, so nothing is removed until it is out of the policy.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dbspark.errors import ConfigError, CorruptFileError
from dbspark.storage.files import ASIDE, Files
from dbspark.storage.manifest import Manifest, has_extents, name_of, version_of
from dbspark.storage.pins import Version, pinned_versions

BATCH_PREFIX = "batch-"
_log = logging.getLogger("dbspark.storage")


@dataclass(frozen=True, slots=True)
class Keep:
    """Which ticks stay readable: the last ones, by number or by age; whatever either of them says is kept."""

    ticks: int = 10
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.ticks < 1:
            raise ConfigError(f"keep.ticks is {self.ticks}; the newest tick is always kept, so give 1 or more")

    def kept(self, times: Mapping[Version, float], now: float) -> set[Version]:
        """The ticks that stay, given the commit times of all."""
        order = sorted(times, reverse=True)
        numbers = sorted({tick for tick, _ in order}, reverse=True)[: self.ticks]
        out = {v for v in order if v[0] >= numbers[-1]} if numbers else set()
        if self.seconds is not None:
            # The state of a tick lasted until the next one, so that is what its age counts from.
            until = now
            for version in order:
                if now - until <= self.seconds:
                    out.add(version)
                until = times[version]
        return out


class Retirement:
    """Knows what the ticks of a location need, and removes the rest."""

    def __init__(self, files: Files, keep: Keep, read: Callable[[Version], Manifest]) -> None:
        self._files = files
        self._read = read
        self.keep = keep
        self.held: dict[Version, int] = {}
        """Ticks pinned in this process, and how often."""
        self._times: dict[Version, float] = {}
        self._needs: dict[Version, set[str]] = {}
        self._floor = 0
        """Ticks before this have been given up, even if their files are still there for their extents."""

    def committed(self, manifest: Manifest) -> None:
        """One more tick."""
        version = manifest.tick, manifest.revision
        self._times[version], self._needs[version] = manifest.time, manifest.files()
        self._floor = max(self._floor, manifest.oldest)

    def oldest(self, tick: int, now: float) -> int:
        """The oldest tick that the policy keeps once `tick` is committed."""
        times = {v: t for v, t in self._times.items() if v[0] >= self._floor}
        return min(t for t, _ in self.keep.kept({**times, (tick, 0): now}, now))

    def run(self, newest: Version | None) -> list[str]:
        """Remove what nobody needs; returns the names of what is gone."""
        names = self._files.names()
        there = {v for name in names if (v := version_of(name)) is not None}
        kept = self._kept(there, newest, names)
        if kept is None:
            return []
        needed = {name_of(*v) for v in kept}.union(*(self._needs[v] for v in kept))
        removed = []
        for name in sorted(names):
            ours = ASIDE in name or name.startswith(BATCH_PREFIX) or has_extents(name)
            if not ours or name in needed:
                continue
            try:
                self._files.remove(name)
            except OSError as error:
                _log.warning("%s is not needed and could not be removed: %s", self._files.where(name), error)
                continue
            removed.append(name)
        for version in set(self._times) - kept:
            del self._times[version], self._needs[version]
        return removed

    def _kept(self, there: set[Version], newest: Version | None, names: list[str]) -> set[Version] | None:
        """The ticks that are kept; None where it cannot be told."""
        held = {*pinned_versions(self._files, names), *self.held}
        now = time.time()
        unreadable = False
        for version in sorted(there, reverse=True):
            if version in self._times:
                continue
            if version not in held and (
                version[0] < self._floor or version not in self.keep.kept({**self._times, version: now}, now)
            ):
                continue
            try:
                self.committed(self._read(version))
            except (CorruptFileError, FileNotFoundError) as error:
                _log.warning("nothing is removed, because a tick that is kept cannot be read: %s", error)
                unreadable = True
        if unreadable:
            return None
        times = {v: t for v, t in self._times.items() if v[0] >= self._floor}
        kept = self.keep.kept(times, now) | (held & set(self._times))
        return kept | ({newest} if newest is not None else set())


__all__ = ["BATCH_PREFIX", "Keep", "Retirement"]
