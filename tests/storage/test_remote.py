"""Other file systems: through pyarrow's streams, without mapping, links or fsync. S3 where `moto` is installed."""

import uuid

import pyarrow.fs as pafs
import pytest

from dbspark.errors import LockError, StoreError
from dbspark.storage import Keep, Store, writing
from dbspark.storage.files import RemoteFiles, files_at
from dbspark.trace import Spine
from tests.storage.model import BY_KEY, SMALL, contents, numbered


@pytest.fixture(scope="module")
def s3():
    server = pytest.importorskip("moto.server", reason="S3 is tested where moto and flask are installed")
    running = server.ThreadedMotoServer(port=0)
    running.start()
    host, port = running.get_host_and_port()
    filesystem = pafs.S3FileSystem(
        access_key="x", secret_key="y", region="us-east-1", scheme="http", endpoint_override=f"{host}:{port}",
        allow_bucket_creation=True,
    )  # fmt: skip
    filesystem.create_dir("bucket")
    yield filesystem
    running.stop()


@pytest.fixture(params=["streams", "s3"])
def remote(request, tmp_path):
    """(file system, folder)."""
    if request.param == "s3":
        return request.getfixturevalue("s3"), f"bucket/{uuid.uuid4().hex}"
    return pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), "state"


@pytest.mark.parametrize("inline", [0, 4 << 20])
def test_a_store_on_another_file_system(remote, inline, monkeypatch):
    monkeypatch.setattr(writing, "MAX_INLINE_BATCH_BYTES", inline)
    filesystem, folder = remote
    spine, history = Spine(BY_KEY, config=SMALL), {}
    with Store.open(folder, filesystem=filesystem, keep=Keep(2)) as store:
        assert isinstance(store.files, RemoteFiles)
        for tick in range(1, 20):
            spine = spine.insert(numbered(tick * 10, 7))
            store.commit(tick, {"n": (spine,)}, {"p": 1})
            history[tick] = contents(spine)
        store.retire()
        assert store.ticks() == [18, 19]
        with pytest.raises(LockError, match="this process"):
            Store.open(folder, filesystem=filesystem)
    for tick in (18, 19):
        with Store.open(folder, write=False, filesystem=filesystem, tick=tick) as reader:
            loaded = reader.load(verify=True)
            assert contents(loaded.states["n"][0]) == history[tick]
    with Store.open(folder, filesystem=filesystem, keep=Keep(2)) as store:
        spine = store.load().states["n"][0].insert(numbered(0, 3))
        store.commit(20, {"n": (spine,)}, {"p": 1})
        assert contents(store.load().states["n"][0]) == contents(spine)


def test_a_name_is_given_once(remote):
    filesystem, folder = remote
    files = files_at(folder, filesystem)
    files.put("a", [b"1", b"2"])
    with pytest.raises(FileExistsError):
        files.put("a", [b"3"])
    assert files.read("a").to_pybytes() == b"12"
    assert files.names() == ["a"]
    files.remove("a")
    files.remove("a")
    assert files.names() == []
    with pytest.raises(FileNotFoundError):
        files.read("a")


def test_a_uri_that_pyarrow_does_not_know_is_refused():
    with pytest.raises(StoreError, match="ftp://x"):
        files_at("ftp://x/y")


def test_a_local_uri_is_local_disk(tmp_path):
    with Store.open((tmp_path / "state").as_uri()) as store:
        store.commit(1, {})
    assert (tmp_path / "state").is_dir()
