"""One writer per location.

The lock is a file that says who holds it: host, process, when the process started, and a token. A lock whose process
is gone from this host is stale and is taken over; so is one from before the host was booted. Nobody can tell from here
whether a process on another host is alive, so such a lock is respected, and the error says which file to remove.

Process ids are reused, so the process's start time tells it from a later one of the same id. Containers may share a
host's name but not its processes, so the name of the host goes together with that of its process namespace.
Looking and taking are one step under `Files.alone`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dbspark.errors import LockError
from dbspark.storage.files import Files

NAME = "lock.json"
_READING = "config={'read_only': True}, or write=False of a store"


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, as others can recognise it."""

    host: str
    namespace: str
    boot: str
    pid: int
    started: str
    token: str
    since: float

    @staticmethod
    def current() -> Owner:
        pid = os.getpid()
        return Owner(
            socket.gethostname(), _namespace(), _boot(), pid, _started(pid) or "", uuid.uuid4().hex, time.time()
        )

    @staticmethod
    def from_json(text: bytes) -> Owner | None:
        """Who it is; None where the text does not say."""
        try:
            given: dict[str, Any] = json.loads(text)
            owner = Owner(**{name: given[name] for name in Owner.__slots__})
            return owner if isinstance(owner.pid, int) and isinstance(owner.since, int | float) else None
        except (KeyError, TypeError, ValueError):
            return None

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    def here(self) -> bool:
        """Whether this process can tell if that one is alive."""
        return self.host == socket.gethostname() and (self.namespace == _namespace() or self.boot != _boot())

    def gone(self) -> bool:
        """Whether the process is known to be dead."""
        if not self.here():
            return False
        if self.boot != _boot():
            return True
        started = _started(self.pid)
        return started is None or (started != "" and started != self.started)

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host} (since {since})"


class Lock:
    """The right to write to a location, until it is released."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.owner = Owner.current()
        with files.alone():
            holder = self._holder()
            if holder is not None:
                if not holder.gone():
                    raise LockError(self._refusal(holder))
                files.remove(NAME)
            elif NAME in files.names():  # cut short by a crash while it was written
                files.remove(NAME)
            try:
                files.put(NAME, [self.owner.to_json()])
            except FileExistsError:
                raise LockError(f"another process has just locked {files.where(NAME)}; open it again later") from None
            if (now := self._holder()) is None or now.token != self.owner.token:  # another process won a race
                raise LockError(f"another process has just locked {files.where(NAME)}; open it again later")

    def _holder(self) -> Owner | None:
        try:
            return Owner.from_json(self._files.read(NAME).to_pybytes())
        except FileNotFoundError:
            return None

    def _refusal(self, holder: Owner) -> str:
        told = f"{self._files.location} is open for writing by {holder}"
        if holder.pid == os.getpid() and holder.here():
            return f"{told}, which is this process; close it there, or open it for reading ({_READING})"
        if holder.here():
            return f"{told}; stop that process, or open the location for reading ({_READING})"
        return (
            f"{told}, and this host cannot tell whether it is alive. If it is not, remove "
            f"{self._files.where(NAME)}; or open the location for reading ({_READING})"
        )

    def release(self) -> None:
        """Let others write. A lock that has been taken away meanwhile is left to whoever has it."""
        with contextlib.suppress(OSError), self._files.alone():
            holder = self._holder()
            if holder is not None and holder.token == self.owner.token:
                self._files.remove(NAME)


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _namespace() -> str:
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""


def _started(pid: int) -> str | None:
    """When a process started, None if there is none, '' if it cannot be told."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
        fields = status.rpartition(")")[2].split()  # the name before it may hold anything
        return None if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return ""


__all__ = ["Lock", "Owner"]
