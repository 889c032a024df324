"""Files of compiled kernels: what is damaged or not ours is never read."""

from __future__ import annotations

import os
import pickle
import threading
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.kernels import objects, target
from dbspark.kernels.objects import MAGIC, CompiledUnit, parse_unit, write_unit

UNIT = CompiledUnit(b"machine code" * 100, b"declarations", [], {"a": "b"}, [])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder that kernels are read from."""
    monkeypatch.setattr(objects, "writable_folder", lambda: tmp_path)
    monkeypatch.setattr(objects, "PACKAGED", "nowhere")
    return tmp_path


def test_a_unit_is_read_as_it_was_written(folder: Path) -> None:
    assert objects.read_unit("u") is None
    assert not objects.has_unit("u")
    write_unit(folder / "u.unit", UNIT)
    assert objects.read_unit("u") == UNIT
    assert objects.has_unit("u")
    assert [path.name for path in folder.iterdir()] == ["u.unit"]


@pytest.mark.parametrize("length", [0, 5, len(MAGIC), len(MAGIC) + 32, 200])
def test_a_file_that_is_too_short_counts_as_none(folder: Path, length: int) -> None:
    write_unit(folder / "u.unit", UNIT)
    os.truncate(folder / "u.unit", length)
    assert objects.read_unit("u") is None


@given(st.data())
def test_a_file_with_a_flipped_bit_counts_as_none(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("flipped") / "u.unit"
    write_unit(path, UNIT)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    assert parse_unit(bytes(content)) is None


class Trap:
    """Fails the test if it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return pytest.fail, ("a damaged file was unpickled",)


def test_nothing_is_unpickled_before_the_digest_is_checked() -> None:
    content = pickle.dumps(Trap())
    assert parse_unit(MAGIC + b"\0" * 32 + content) is None
    assert parse_unit(b"another format 1\n" + blake2b(content, digest_size=32).digest() + content) is None


def test_what_is_not_a_unit_counts_as_none() -> None:
    content = pickle.dumps("something else")
    assert parse_unit(MAGIC + blake2b(content, digest_size=32).digest() + content) is None


def test_several_writers_do_no_harm(folder: Path) -> None:
    def write(number: int) -> None:
        for _ in range(20):
            write_unit(folder / "u.unit", CompiledUnit(b"%d" % number * 10_000, b"", [], {}, []))

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        unit = objects.read_unit("u")
        assert unit is None or len(set(unit.machine_code)) == 1
    assert [path.name for path in folder.iterdir()] == ["u.unit"]


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    assert objects._trusted(tmp_path)
    tmp_path.chmod(0o777)
    assert not objects._trusted(tmp_path)


def test_the_key_depends_on_sources_and_not_on_where_they_lie(tmp_path: Path) -> None:
    for name, text in (("one", b"a = 1"), ("two", b"a = 1"), ("three", b"a = 2")):
        (tmp_path / name / "sort").mkdir(parents=True)
        (tmp_path / name / "sort" / "radix.py").write_bytes(text)
        (tmp_path / name / "__pycache__").mkdir()
    one, two, three = (sorted(target._sources(tmp_path / name, "")) for name in ("one", "two", "three"))
    assert one == two == [("/sort/radix.py", b"a = 1")]
    assert one != three


def test_a_package_says_what_its_kernels_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unfit() -> str | None:
        objects.unfit_package.cache_clear()
        return objects.unfit_package()

    assert unfit() is None
    monkeypatch.setattr(objects, "files", lambda package: tmp_path)
    assert unfit() is None
    (tmp_path / "compiled" / "kernels-0123").mkdir(parents=True)
    (tmp_path / "compiled" / objects.DESCRIPTION).write_text("numba 0.1\n")
    assert unfit() == "numba 0.1"
    (tmp_path / "compiled" / target.cache_key()).mkdir()
    assert unfit() is None
    monkeypatch.undo()
    objects.unfit_package.cache_clear()
