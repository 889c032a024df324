"""Damage: a file that is altered, cut short, missing or another one is refused by name; other ticks stay readable."""

import json
import shutil
import struct

import pytest

from dbspark.errors import CorruptFileError
from dbspark.storage import Store, writing
from dbspark.storage import manifest as mf
from dbspark.trace import Spine
from tests.storage.model import BY_KEY, contents, numbered


def build(where, ticks=3):
    spine, history = Spine(BY_KEY), {}
    with Store.open(where) as store:
        for tick in range(1, ticks + 1):
            spine = spine.insert(numbered(tick * 1000, 10 * 4 ** (ticks - tick)))  # never merged
            store.commit(tick, {"n": (spine,)}, {"p": 1})
            history[tick] = contents(spine)
    return history


def name_of(tick):
    return mf.name_of(tick, 0)


def refused(where, name, tick=None, verify=False):
    with pytest.raises(CorruptFileError) as caught, Store.open(where, write=False, tick=tick) as store:
        store.load(verify)
    assert str(where / name) in str(caught.value), "the error names the file"
    return str(caught.value)


def readable(where, history, ticks):
    for tick in ticks:
        with Store.open(where, write=False, tick=tick) as store:
            assert contents(store.load(verify=True).states["n"][0]) == history[tick]


def test_a_damaged_newest_manifest_is_an_error_and_older_ticks_are_readable(tmp_path):
    history = build(tmp_path)
    path = tmp_path / name_of(3)
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[-32:-24])
    places = [*range(len(content) - 32 - length, len(content), 7), 0, 5]
    for at in places:
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1 :])
        assert "tick=2" in refused(tmp_path, name_of(3))
        with pytest.raises(CorruptFileError, match=name_of(3)):
            Store.open(tmp_path)
    readable(tmp_path, history, [1, 2])
    path.rename(tmp_path / "away")
    with Store.open(tmp_path) as store:
        assert store.tick == 2
        store.commit(3, store.load().states)


def test_a_manifest_cut_short_anywhere_is_refused(tmp_path):
    history = build(tmp_path)
    path = tmp_path / name_of(3)
    content = path.read_bytes()
    for length in [*range(0, len(content), 61), *range(len(content) - 40, len(content))]:
        path.write_bytes(content[:length])
        refused(tmp_path, name_of(3))
    path.write_bytes(content + b"\0")
    refused(tmp_path, name_of(3))
    readable(tmp_path, history, [1, 2])


def test_a_byte_altered_anywhere_in_an_extent_is_refused(tmp_path):
    history = build(tmp_path)
    path = tmp_path / name_of(3)
    content = path.read_bytes()
    with Store.open(tmp_path, write=False) as store:
        places = [p for p in store._manifest_now.places() if p.file == name_of(3)]
    assert places
    for place in places:
        for at in range(place.at, place.at + place.size, 11):
            path.write_bytes(content[:at] + bytes([content[at] ^ 0x01]) + content[at + 1 :])
            assert "1, 2" in refused(tmp_path, name_of(3))
    readable(tmp_path, history, [1, 2])


def test_damage_in_an_old_file_stops_the_ticks_that_need_it_only(tmp_path):
    build(tmp_path)
    with Store.open(tmp_path) as store:
        store.commit(4, {"n": (Spine(BY_KEY).insert(numbered(0, 5)),)}, {"p": 2})
    (tmp_path / name_of(1)).unlink()
    for tick in (2, 3):
        assert "missing" in refused(tmp_path, name_of(1), tick)
    readable(tmp_path, {4: contents(Spine(BY_KEY).insert(numbered(0, 5)))}, [4])


def test_a_newer_format_is_refused_and_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(mf, "FORMAT", 99)
    build(tmp_path)
    monkeypatch.undo()
    message = refused(tmp_path, name_of(3))
    assert "format 99" in message
    assert "Upgrade" in message


def test_damaged_batch_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "MAX_INLINE_BATCH_BYTES", 0)
    history = build(tmp_path / "a")
    where = tmp_path / "a"
    with Store.open(where, write=False, tick=1) as store:
        (first,) = (p.file for p in store._manifest_now.places() if p.file.startswith("batch-"))
    with Store.open(where, write=False) as store:
        newest = [p.file for p in store._manifest_now.places() if p.file.startswith("batch-")][-1]
    assert first != newest
    path = where / newest
    content = path.read_bytes()
    for altered in (content[:-1], content[: len(content) // 2], b""):
        path.write_bytes(altered)
        refused(where, newest)
    middle = len(content) // 3
    path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    refused(where, newest, verify=True)
    shutil.copy(where / first, path)
    assert "another batch file" in refused(where, newest)
    path.unlink()
    assert "missing" in refused(where, newest)
    readable(where, history, [1, 2])


def test_manifests_are_the_same_for_the_same_state(tmp_path):
    texts = []
    for name in ("a", "b"):
        with Store.open(tmp_path / name) as store:
            states = {n: (Spine(BY_KEY).insert(numbered(0, 50)),) for n in ("x", "y")}
            store.commit(1, states if name == "a" else dict(reversed(states.items())), {"b": 1, "a": [2]})
        content = (tmp_path / name / name_of(1)).read_bytes()
        (length,) = struct.unpack("<Q", content[-32:-24])
        document = json.loads(content[-32 - length : -32])
        assert document.pop("time") > 0
        texts.append(document)
    assert texts[0]["traces"].keys() == texts[1]["traces"].keys()
    assert [p[2:] for p in _places(texts[0])] == [p[2:] for p in _places(texts[1])]


def _places(document):
    return [e[0] for node in sorted(document["traces"]) for r in document["traces"][node] for e in r["entries"]]
