"""Batches that stay open between readings."""

from dbspark.storage import Store
from dbspark.storage.reading import BatchCache, ManifestReader
from dbspark.trace import Spine
from tests.storage.model import BY_KEY, contents, numbered


def test_a_batch_is_opened_once_and_placed_by_whoever_asks(tmp_path):
    with Store.open(tmp_path) as store:
        store.commit(1, {"a": (Spine(BY_KEY).insert(numbered(0, 9)),)})
        (record,) = store.records().states["a"]
        opened = BatchCache(1 << 20)
        one, other = (ManifestReader(store.files, False, opened).spine(record, BY_KEY) for _ in range(2))
        assert contents(one) == contents(other) == contents(store.spine(record))
        assert one.batches[0].chunks[0] is other.batches[0].chunks[0]
        assert one.batches[0] is not other.batches[0], "where it is stored may differ between them"


def test_what_was_looked_at_longest_ago_is_forgotten():
    opened = BatchCache(3)
    batches = [numbered(i, 1) for i in range(4)]
    for i, batch in enumerate(batches[:3]):
        opened.add((i,), batch, 1)
    assert opened.get((0,)) is batches[0]
    opened.add((3,), batches[3], 1)
    assert [opened.get((i,)) for i in range(4)] == [batches[0], None, batches[2], batches[3]]
    opened.add((4,), batches[0], 4)
    assert opened.get((4,)) is None, "it is more than all may be"
