"""Locks: one writer, any number of readers; the lock of a dead process is nobody's."""

import dataclasses
import json
import os
import subprocess
import sys
import threading

import pytest

from dbspark.errors import LockError
from dbspark.storage import Store
from dbspark.storage import lock as lock_module
from dbspark.storage.files import LocalFiles
from dbspark.storage.lock import Lock, Owner


def held_by(where, **changes):
    """A lock that somebody else left."""
    owner = dataclasses.replace(Owner.current(), **changes)
    (where / "lock.json").write_bytes(owner.to_json())
    return owner


def test_a_second_writer_is_refused_and_told_who_has_it(tmp_path):
    with Store.open(tmp_path) as store:
        store.commit(1, {})
        with pytest.raises(LockError, match=f"process {os.getpid()} .* which is this process"):
            Store.open(tmp_path)
        with Store.open(tmp_path, write=False) as one, Store.open(tmp_path, write=False) as two:
            assert (one.tick, two.tick) == (1, 1)
    with Store.open(tmp_path) as store:
        store.commit(2, {})


def test_a_writer_in_another_process_is_refused_until_the_first_is_gone(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys\nfrom dbspark.storage import Store\nStore.open(sys.argv[1])\n"
         "print('open', flush=True)\nsys.stdin.read()", str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout.readline().strip() == "open"
    with pytest.raises(LockError, match=f"process {child.pid} on .*stop that process"):
        Store.open(tmp_path)
    child.kill()
    child.wait()
    Store.open(tmp_path).close()


def test_a_process_id_that_has_come_again_is_another_process(tmp_path):
    if not Owner.current().started:
        pytest.skip("this system does not tell when a process started")
    held_by(tmp_path, started="1")
    Store.open(tmp_path).close()


def test_a_lock_from_before_the_host_was_booted_is_stale(tmp_path):
    held_by(tmp_path, boot="another", pid=1)
    Store.open(tmp_path).close()


@pytest.mark.parametrize("changes", [{"host": "elsewhere"}, {"namespace": "pid:[1]"}])
def test_a_lock_of_another_host_is_respected(tmp_path, changes):
    held_by(tmp_path, **changes)
    with pytest.raises(LockError, match="cannot tell whether it is alive") as caught:
        Store.open(tmp_path)
    assert str(tmp_path / "lock.json") in str(caught.value)
    (tmp_path / "lock.json").unlink()
    Store.open(tmp_path).close()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x"}'])
def test_a_lock_that_says_nothing_is_nobodys(tmp_path, content):
    (tmp_path / "lock.json").write_bytes(content)
    Store.open(tmp_path).close()


def test_a_lock_that_was_taken_away_is_left_to_its_new_owner(tmp_path):
    store = Store.open(tmp_path)
    other = held_by(tmp_path, host="elsewhere")
    store.close()
    assert json.loads((tmp_path / "lock.json").read_bytes())["token"] == other.token


def test_of_many_who_find_a_stale_lock_one_gets_it(tmp_path, monkeypatch):
    held_by(tmp_path, boot="another", pid=1)
    monkeypatch.setattr(lock_module.Owner, "here", lambda self: True)
    got, refused = [], []

    def attempt():
        try:
            got.append(Lock(LocalFiles(tmp_path)))
        except LockError:
            refused.append(1)

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(refused)) == (1, 7)


def test_an_opening_that_fails_releases_the_lock(tmp_path):
    with Store.open(tmp_path) as store:
        store.commit(1, {})
        name = next(n for n in store.files.names() if n.startswith("tick-"))
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(Exception, match=name):
        Store.open(tmp_path)
    assert not (tmp_path / "lock.json").exists()
