"""Operations of a transaction on their way to the shards and together again."""

from collections import Counter
from functools import partial

import pytest

from dbspark.columnar.schema import Schema
from dbspark.runtime import routing
from dbspark.runtime.level_plan import Level
from dbspark.runtime.routing import RoutedOperation, received_operations, to_operation
from dbspark.runtime.stage import StageTask
from dbspark.runtime.tables import TableDefinition
from dbspark.runtime.task import TickContext
from dbspark.storage.files import files_at

TABLE = TableDefinition("t", Schema.parse("k BIGINT, v STRING"), ("k",))
OPERATIONS = [
    ("insert", [(k, "a") for k in range(40)]),
    ("upsert", [(k, "b") for k in range(0, 40, 3)]),
    ("delete keys", [(k,) for k in range(0, 40, 5)]),
    ("delete", [(1, "a")]),
]


def rows_of(operation):
    table = operation.rows.to_arrow(weights="w")
    return Counter(zip(*(c.to_pylist() for c in table.columns), strict=True))


@pytest.mark.parametrize("limit", [routing.MAX_ROUTED_ROWS, 4])
@pytest.mark.parametrize("shards", [1, 3])
def test_every_row_is_on_one_shard_and_operations_keep_their_order(shards, limit, tmp_path, monkeypatch):
    monkeypatch.setattr(routing, "MAX_ROUTED_ROWS", limit)
    received = [{} for _ in range(shards)]
    expected = []
    for number, (kind, rows) in enumerate(OPERATIONS):
        operation = to_operation(TABLE, kind, rows, None)
        expected.append((kind, rows_of(operation)))
        for shard, slot, payload in RoutedOperation(TABLE, number, operation).rows(shards):
            received[shard].setdefault(slot, []).append(payload)
    context = TickContext(1, shards, partial(files_at, str(tmp_path)))
    found = [
        received_operations(StageTask(context, 0, Level(), shard, {}, slots), TABLE)
        for shard, slots in enumerate(received)
    ]
    order = [kind for kind, _ in OPERATIONS]
    for operations in found:
        numbers = [order.index(o.kind) for o in operations]
        assert numbers == sorted(numbers)
    for kind, rows in expected:
        assert sum((rows_of(o) for operations in found for o in operations if o.kind == kind), Counter()) == rows
