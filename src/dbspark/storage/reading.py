"""Opening what a manifest names.

Batch files and the files of ticks are mapped, not read: what is read is what says where the data is, and the extents of
small batches for their checksums. A file that is missing, damaged, or another one than was written, is refused by name.
"""

from __future__ import annotations

import pyarrow as pa

from dbspark.batch import Arrangement, Batch
from dbspark.batch.file import open_batch
from dbspark.errors import CorruptFileError
from dbspark.storage.files import Files
from dbspark.storage.manifest import Place, TraceRecord, has_extents
from dbspark.storage.segment import checked, decoded
from dbspark.trace.spine import Spine


def seal_of(files: Files, name: str) -> str:
    """What tells a batch file from all others: the checksums that it ends with."""
    return bytes(pa.ipc.open_file(files.read(name)).metadata[b"dbspark.seal"]).decode()


class Reading:
    """Opens what a manifest names; every file is mapped once."""

    def __init__(self, files: Files, verify: bool) -> None:
        self._files = files
        self._verify = verify
        self._mapped: dict[str, pa.Buffer] = {}

    def extent(self, place: Place) -> pa.Buffer:
        where = self._files.where(place.file)
        try:
            if place.file not in self._mapped:
                self._mapped[place.file] = self._files.read(place.file)
            return checked(self._mapped[place.file], place.at, place.size, place.check)
        except FileNotFoundError:
            raise CorruptFileError(f"{where} is missing") from None
        except ValueError as error:
            raise CorruptFileError(f"{where} is damaged: {error}") from None

    def spine(self, record: TraceRecord, arrangement: Arrangement) -> Spine:
        entries = []
        for entry in record.entries:
            batch = Batch.empty(arrangement) if entry.place is None else self._batch(entry.place, arrangement)
            if entry.description is not None:
                batch = batch.described(entry.description)
            if entry.place is not None:
                batch.__dict__["place"] = entry.place
            entries.append(batch)
        return Spine(arrangement, tuple(entries), compaction=record.compaction)

    def _batch(self, place: Place, arrangement: Arrangement) -> Batch:
        where = self._files.where(place.file)
        if has_extents(place.file):
            extent = self.extent(place)
            try:
                return decoded(extent, arrangement)
            except (pa.ArrowException, KeyError, IndexError, TypeError, ValueError) as error:
                raise CorruptFileError(f"{where} is damaged: {error or type(error).__name__}") from None
        try:
            batch, _ = open_batch(self._files.path(place.file), self._verify)
        except CorruptFileError as error:
            raise CorruptFileError(str(error) if where in str(error) else f"{where}: {error}") from None
        if (
            batch.arrangement is not arrangement
            or batch.rows != place.rows
            or seal_of(self._files, place.file) != place.check
        ):
            raise CorruptFileError(f"{where} is another batch file than the one that was written under this name")
        return batch


__all__ = ["Reading", "seal_of"]
