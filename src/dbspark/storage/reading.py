"""Opening what a manifest names.

Batch files and the files of ticks are mapped, not read; only metadata is read, and the extents of small batches for
their checksums. A file that is missing, damaged, or not the one that was written, is refused with its name.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.batch_file import open_batch
from dbspark.errors import CorruptFileError
from dbspark.storage.files import Files
from dbspark.storage.manifest import Place, TraceRecord, has_extents
from dbspark.storage.segment import decode_batch, verified_extent
from dbspark.trace.spine import Spine


def seal_of(files: Files, name: str) -> str:
    """The identity of a batch file: the checksums at its end."""
    return bytes(pa.ipc.open_file(files.read(name)).metadata[b"dbspark.seal"]).decode()


class BatchCache:
    """An LRU cache of opened batches, bounded by their bytes on disk."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._batches: dict[tuple[Any, ...], tuple[Batch, int]] = {}

    def get(self, key: tuple[Any, ...]) -> Batch | None:
        found = self._batches.pop(key, None)
        if found is None:
            return None
        self._batches[key] = found
        return found[0]

    def add(self, key: tuple[Any, ...], batch: Batch, size: int) -> None:
        self._batches[key] = batch, size
        self._bytes += size
        while self._bytes > self._limit:
            self._bytes -= self._batches.pop(next(iter(self._batches)))[1]


class ManifestReader:
    """Opens what a manifest names; every file is mapped once."""

    def __init__(self, files: Files, verify: bool, opened: BatchCache | None = None) -> None:
        self._files = files
        self._verify = verify
        self._opened = opened
        self._mapped: dict[str, pa.Buffer] = {}

    def extent(self, place: Place) -> pa.Buffer:
        where = self._files.where(place.file)
        try:
            if place.file not in self._mapped:
                self._mapped[place.file] = self._files.read(place.file)
            return verified_extent(self._mapped[place.file], place.at, place.size, place.check)
        except FileNotFoundError:
            raise CorruptFileError(f"{where} is missing") from None
        except ValueError as error:
            raise CorruptFileError(f"{where} is damaged: {error}") from None

    def spine(self, record: TraceRecord, sort_key: SortKey) -> Spine:
        entries = []
        for entry in record.entries:
            batch = Batch.empty(sort_key) if entry.place is None else self._known(entry.place, sort_key)
            if entry.description is not None:
                batch = batch.with_description(entry.description)
            if entry.place is not None:
                batch.__dict__["place"] = entry.place
            entries.append(batch)
        return Spine(sort_key, tuple(entries), compaction=record.compaction)

    def _known(self, place: Place, sort_key: SortKey) -> Batch:
        if self._opened is None:
            return self._batch(place, sort_key)
        key = self._files.location, place.file, place.at, place.size, place.check, sort_key
        batch = self._opened.get(key)
        if batch is None:
            batch = self._batch(place, sort_key)
            self._opened.add(key, batch, place.size)
        return batch.with_description(batch.description)  # a copy, because the caller sets the place where it is stored

    def _batch(self, place: Place, sort_key: SortKey) -> Batch:
        where = self._files.where(place.file)
        if has_extents(place.file):
            extent = self.extent(place)
            try:
                return decode_batch(extent, sort_key)
            except (pa.ArrowException, KeyError, IndexError, TypeError, ValueError) as error:
                raise CorruptFileError(f"{where} is damaged: {error or type(error).__name__}") from None
        try:
            batch, _ = open_batch(self._files.path(place.file), self._verify)
        except CorruptFileError as error:
            raise CorruptFileError(str(error) if where in str(error) else f"{where}: {error}") from None
        if (
            batch.sort_key is not sort_key
            or batch.rows != place.rows
            or seal_of(self._files, place.file) != place.check
        ):
            raise CorruptFileError(f"{where} is another batch file than the one that was written under this name")
        return batch


__all__ = ["BatchCache", "ManifestReader", "seal_of"]
