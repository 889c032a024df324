"""The files of one location: put in place whole or not at all, never changed, removed when nobody needs them.

A store uses the file system only through `Files`, so a test can make each of its operations fail. Files are flat:
names, no folders. A name is given once; a second file of that name is refused.

On local disk a file is written aside, fsynced, linked to its name (which, unlike renaming, fails where the name is
taken) and the directory is fsynced: when `put` returns, it survives a crash of the machine. Files are read by mapping
them. Any other `pyarrow.fs` file system is written through its streams: object stores show an object when it is
complete, others get it by renaming. They are read by copying them to local disk first. pyarrow has no conditional
put, so there a name is looked up before it is given; the lock keeps writers apart.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from dbspark.columnar import Batch
from dbspark.columnar.batch_file import write_batch
from dbspark.errors import StoreError

ASIDE = ".aside-"
"""Marks the names of files that are being written."""
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
"""Errors by which file systems refuse hard links."""


class Files(ABC):
    """The files of one location. Errors of the file system are `OSError`s, as Python and pyarrow raise them."""

    location: str

    def where(self, name: str) -> str:
        """The path or URI of a file, for messages."""
        return f"{self.location}/{name}"

    @abstractmethod
    def put(self, name: str, parts: Sequence[Any]) -> None:
        """Put a file of these bytes in place: atomic, durable, `FileExistsError` where the name is taken."""

    @abstractmethod
    def put_batch(self, name: str, batch: Batch) -> int:
        """Write a batch file under a new, unique name; durable after `settle`. Returns its size."""

    @abstractmethod
    def put_part(self, name: str, parts: Sequence[Any]) -> None:
        """Write a file of these bytes under a new, unique name; durable after `settle`."""

    @abstractmethod
    def settle(self) -> None:
        """Make the names given so far durable, by whatever process."""

    @abstractmethod
    def read(self, name: str) -> pa.Buffer:
        """A whole file; `FileNotFoundError` where there is none."""

    @abstractmethod
    def path(self, name: str) -> Path:
        """The path of a file, or of a copy of it, on local disk, to be mapped."""

    @abstractmethod
    def names(self) -> list[str]:
        """All files there are."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is removed already."""

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Exclude other processes from their own `alone` blocks, where the file system has locks."""
        yield

    def opener(self) -> Callable[[], Files]:
        """A picklable function that opens the same files in another process, once however often it is called there."""
        return partial(_elsewhere, self.location, self._again())

    @abstractmethod
    def _again(self) -> Callable[[], Files]:
        """A picklable function that opens the same files anew."""

    def close(self) -> None:
        """Release what reading has allocated, such as local copies."""
        return


class LocalFiles(Files):
    """A directory on local disk. Each method that begins with an underscore is one call to the system.

    Without `durable` nothing is fsynced: for directories that do not outlive their process.
    """

    def __init__(self, directory: str | os.PathLike[str], durable: bool = True) -> None:
        self.directory = Path(directory)
        self.location = str(directory)
        self.durable = durable

    def _again(self) -> Callable[[], Files]:
        return partial(LocalFiles, os.path.abspath(self.directory), self.durable)

    def make(self) -> None:
        """Create the directory where it is missing."""
        if not self.directory.is_dir():
            self._make_directory()
            _sync(self.directory.parent)

    def put(self, name: str, parts: Sequence[Any]) -> None:
        aside = f"{name}{ASIDE}{uuid.uuid4().hex}"
        self._write(aside, parts)
        self._sync(aside)
        self._link(aside, name)
        self._unlink(aside)
        self._sync_directory()

    def put_batch(self, name: str, batch: Batch) -> int:
        return self._write_batch(name, batch)

    def put_part(self, name: str, parts: Sequence[Any]) -> None:
        self._write(name, parts)
        self._sync(name)

    def settle(self) -> None:
        self._sync_directory()

    def read(self, name: str) -> pa.Buffer:
        return self._map(name)

    def path(self, name: str) -> Path:
        return self.directory / name

    def names(self) -> list[str]:
        return self._list()

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._unlink(name)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        try:
            import fcntl
        except ImportError:  # not a POSIX system: the lock's file alone has to do
            yield
            return
        descriptor = os.open(self.directory / "lock.guard", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    # ------------------------------------------------------------------ one call each

    def _make_directory(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)

    def _write(self, name: str, parts: Sequence[Any]) -> None:
        with (self.directory / name).open("xb", buffering=1 << 18) as file:
            for part in parts:
                file.write(part)

    def _write_batch(self, name: str, batch: Batch) -> int:
        path = self.directory / name
        write_batch(batch, path)
        return path.stat().st_size

    def _sync(self, name: str) -> None:
        if self.durable:
            _sync(self.directory / name)

    def _link(self, aside: str, name: str) -> None:
        try:
            os.link(self.directory / aside, self.directory / name)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if (self.directory / name).exists():
                raise FileExistsError(errno.EEXIST, "there is such a file", name) from None
            os.rename(self.directory / aside, self.directory / name)

    def _unlink(self, name: str) -> None:
        (self.directory / name).unlink(missing_ok=ASIDE in name)

    def _sync_directory(self) -> None:
        if self.durable:
            _sync(self.directory)

    def _map(self, name: str) -> pa.Buffer:
        path = self.directory / name
        if path.stat().st_size == 0:  # an empty file cannot be mapped
            return pa.py_buffer(b"")
        with pa.memory_map(str(path)) as mapped:
            return mapped.read_buffer()

    def _list(self) -> list[str]:
        return [entry.name for entry in os.scandir(self.directory) if entry.is_file()]


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RemoteFiles(Files):
    """A folder of any other pyarrow file system."""

    def __init__(self, filesystem: pafs.FileSystem, folder: str) -> None:
        self.filesystem = filesystem
        self.folder = folder.rstrip("/")
        self.location = f"{filesystem.type_name}:{self.folder}"
        self._copies: Any = None
        self._whole = filesystem.type_name in ("s3", "gcs", "abfs")
        """Whether a file shows only when it is complete."""

    def _again(self) -> Callable[[], Files]:
        return partial(RemoteFiles, self.filesystem, self.folder)

    def make(self) -> None:
        self.filesystem.create_dir(self.folder, recursive=True)

    def put(self, name: str, parts: Sequence[Any]) -> None:
        if self._there(name):
            raise FileExistsError(errno.EEXIST, "there is such a file", self.where(name))
        self._upload(name, parts)

    def put_batch(self, name: str, batch: Batch) -> int:
        path = self._directory() / f"{name}{ASIDE}upload"
        write_batch(batch, path)
        size = path.stat().st_size
        with pa.memory_map(str(path)) as mapped:
            self._upload(name, [mapped.read_buffer()])
        path.rename(path.with_name(name))  # what is read back later is here already
        return size

    def put_part(self, name: str, parts: Sequence[Any]) -> None:
        self._upload(name, parts)

    def settle(self) -> None:
        """What has been put is durable already."""

    def read(self, name: str) -> pa.Buffer:
        if self._copies is not None and (self._directory() / name).exists():
            with pa.memory_map(str(self._directory() / name)) as mapped:
                return mapped.read_buffer()
        with self.filesystem.open_input_file(self._at(name)) as file:
            return file.read_buffer()

    def path(self, name: str) -> Path:
        path = self._directory() / name
        if not path.exists():
            try:
                with self.filesystem.open_input_file(self._at(name)) as file:
                    content = file.read_buffer()
            except FileNotFoundError:
                return path  # opening it raises the error for a missing file
            aside = path.with_name(name + ASIDE + uuid.uuid4().hex)
            aside.write_bytes(content)
            aside.rename(path)
        return path

    def names(self) -> list[str]:
        found = self.filesystem.get_file_info(pafs.FileSelector(self.folder, allow_not_found=True))
        return [info.base_name for info in found if info.type == pafs.FileType.File]

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(self._at(name))

    def close(self) -> None:
        if self._copies is not None:
            self._copies.cleanup()
            self._copies = None

    def _at(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def _there(self, name: str) -> bool:
        return bool(self.filesystem.get_file_info(self._at(name)).type != pafs.FileType.NotFound)

    def _upload(self, name: str, parts: Sequence[Any]) -> None:
        target = name if self._whole else f"{name}{ASIDE}{uuid.uuid4().hex}"
        with self.filesystem.open_output_stream(self._at(target)) as stream:
            for part in parts:
                stream.write(part)
        if target != name:
            self.filesystem.move(self._at(target), self._at(name))

    def _directory(self) -> Path:
        if self._copies is None:
            self._copies = tempfile.TemporaryDirectory(prefix="dbspark-")
        return Path(self._copies.name)


_opened: dict[str, Files] = {}
"""By location, the files that this process has opened through `opener`."""


def _elsewhere(location: str, make: Callable[[], Files]) -> Files:
    if location not in _opened:
        _opened[location] = make()
    return _opened[location]


def files_at(location: str | os.PathLike[str], filesystem: pafs.FileSystem | None = None, make: bool = True) -> Files:
    """The files of a location: a path, a URI that pyarrow knows, or a path inside a file system."""
    folder = os.fspath(location)
    if filesystem is None and "://" in folder:
        try:
            filesystem, folder = pafs.FileSystem.from_uri(folder)
        except (pa.ArrowException, ValueError) as error:
            raise StoreError(
                f"{folder} is not a location that pyarrow can open: {error}. Give a path, or a URI such as "
                "s3://bucket/folder"
            ) from None
    local = filesystem is None or isinstance(filesystem, pafs.LocalFileSystem)
    files: LocalFiles | RemoteFiles = LocalFiles(folder) if local else RemoteFiles(filesystem, folder)
    if make:
        files.make()
    return files


__all__ = ["ASIDE", "Files", "LocalFiles", "RemoteFiles", "files_at"]
