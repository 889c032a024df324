"""What batches must hold, worked out from Arrow data in plain Python, without anything of dbspark but its constants.

`rows` turns Arrow columns into hashable values that are equal exactly where Spark says so: NaN is one value, -0.0 is
0.0, maps are sets of entries, and times are the integers they are stored as. On them stand the three specifications
that `check` holds a batch against: a Z-set is a dict of rows to weights, `row_hash` is the hash as written down in
`dbspark.kernels.memory.hash`, and `order_key` the order as written down in `dbspark.kernels.sort.row_order`.
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from dbspark.columnar import Batch
from dbspark.columnar.chunk import Chunk
from dbspark.kernels.memory import layout as nd

Row = tuple[Any, ...]
ALL = 2**64 - 1
NAN = "NaN"

# ---------------------------------------------------------------------------------------------------- values


def column_values(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column, hashable, equal where Spark says so."""
    if isinstance(array, pa.ChunkedArray):
        return [v for chunk in array.chunks for v in column_values(chunk)]
    t = pa.types
    dtype = array.type
    valid = array.is_valid().to_pylist()
    found: list[Any]
    if t.is_struct(dtype):
        fields = [column_values(array.field(i)) for i in range(dtype.num_fields)]
        found = [tuple(f[i] for f in fields) for i in range(len(array))]
    elif t.is_list(dtype) or t.is_map(dtype):
        ends = array.offsets.to_pylist()
        if t.is_map(dtype):
            inner = list(zip(column_values(array.keys), column_values(array.items), strict=True))
        else:
            inner = column_values(array.values)
        found = [tuple(inner[low:high]) for low, high in pairwise(ends)]
        if t.is_map(dtype):
            assert all(len(set(entries)) == len(entries) for entries, v in zip(found, valid, strict=True) if v)
            found = [frozenset(entries) for entries in found]
    elif t.is_temporal(dtype) and not t.is_interval(dtype):
        found = array.cast(pa.int32() if t.is_date32(dtype) else pa.int64()).to_pylist()
    elif t.is_floating(dtype):
        found = [None if v is None else NAN if v != v else v + 0.0 for v in array.to_pylist()]
    else:
        found = array.to_pylist()
    return [v if there else None for v, there in zip(found, valid, strict=True)]


def rows(table: pa.Table) -> list[Row]:
    return list(zip(*(column_values(c) for c in table.columns), strict=True))


def zset(found: Iterable[Row], weights: Iterable[int]) -> dict[Row, int]:
    """The weight of each row; none is zero."""
    out: dict[Row, int] = {}
    for row, weight in zip(found, weights, strict=True):
        out[row] = out.get(row, 0) + int(weight)
    return {row: weight for row, weight in out.items() if weight}


def plus(*parts: dict[Row, int]) -> dict[Row, int]:
    return zset([r for p in parts for r in p], [w for p in parts for w in p.values()])


# ---------------------------------------------------------------------------------------------------- the hash

_M, _G, _K = 0xD6E8FEB86659FD93, 0x9E3779B97F4A7C15, 0x9FB21C651E98DF25
_SEED, _NULL = 0x2545F4914F6CDD1D, 0xA0761D6478BD642F
_LIST, _STRUCT = 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3


def _rotl(x: int, bits: int) -> int:
    return ((x << bits) | (x >> (64 - bits))) & ALL


def _mix(x: int) -> int:
    x ^= x >> 32
    x = x * _M & ALL
    x ^= x >> 32
    x = x * _M & ALL
    return x ^ x >> 32


def _fold(h: int, v: int) -> int:
    return _mix(_rotl(h, 25) ^ ((v + _G) & ALL))


def _bytes_word(b: bytes) -> int:
    n = len(b)
    s = n * _K & ALL
    words = [int.from_bytes(b[i : i + 8], "little") for i in range(0, n - 7, 8)]
    if n % 8:
        if n >= 8:
            words.append(int.from_bytes(b[-8:], "little"))
        elif n >= 4:
            words.append(int.from_bytes(b[:4], "little") | int.from_bytes(b[-4:], "little") << 32)
        else:
            words.append(b[0] | b[n // 2] << 8 | b[n - 1] << 16)
    for w in words:
        s = _mix(s ^ w)
    return s


def raw(value: Any, dtype: pa.DataType) -> bytes:
    """The bytes in which Arrow keeps a wide fixed-width value."""
    if pa.types.is_decimal(dtype):
        sign, digits, exponent = value.as_tuple()
        assert exponent == -dtype.scale
        whole = int("".join(map(str, digits)))
        return (-whole if sign else whole).to_bytes(16, "little", signed=True)
    return struct.pack("<iiq", *value)


def word(value: Any, dtype: pa.DataType) -> int:
    """The word of a value, as the preface of `dbspark.kernels.memory.hash` defines it."""
    t = pa.types
    if value is None:
        return _NULL
    if t.is_boolean(dtype):
        return int(value)
    if t.is_floating(dtype):
        if value == NAN:
            return 0x7FF8000000000000
        return int.from_bytes(struct.pack("<d", value), "little") if value != 0 else 0
    if t.is_decimal(dtype) or t.is_interval(dtype):
        b = raw(value, dtype)
        return _mix(_mix(int.from_bytes(b[:8], "little")) ^ int.from_bytes(b[8:], "little"))
    if t.is_string(dtype):
        return _bytes_word(value.encode())
    if t.is_binary(dtype):
        return _bytes_word(value)
    if t.is_struct(dtype):
        s = _STRUCT
        for v, f in zip(value, dtype, strict=True):
            s = _fold(s, word(v, f.type))
        return s
    if t.is_map(dtype) or t.is_list(dtype):
        s = _mix((len(value) + _LIST) & ALL)
        if t.is_map(dtype):
            entry = pa.struct([dtype.key_field, dtype.item_field])
            inner = [word(pair, entry) for pair in entries_in_order(value, dtype)]
        else:
            inner = [word(v, dtype.value_type) for v in value]
        for v in inner:
            s = _fold(s, v)
        return s
    return value & ALL


def row_hash(row: Sequence[Any], types: Sequence[pa.DataType], mask: int = ALL) -> int:
    h = _SEED
    for value, dtype in zip(row, types, strict=True):
        h = _fold(h, word(value, dtype))
    return h & mask


# ---------------------------------------------------------------------------------------------------- the order


def entries_in_order(value: frozenset[Any], dtype: pa.DataType) -> list[Any]:
    return sorted(value, key=lambda pair: order_key(pair[0], dtype.key_type))


def order_key(value: Any, dtype: pa.DataType) -> tuple[Any, ...]:
    """Sorts as `dbspark.kernels.sort.row_order` says: NULL first, NaN last, intervals as 16-byte integers,
    the rest by value."""
    t = pa.types
    if value is None:
        return (0,)
    if t.is_boolean(dtype):
        return 1, value
    if t.is_floating(dtype):
        return (2,) if value == NAN else (1, value)
    if t.is_decimal(dtype) or t.is_interval(dtype):
        return 1, int.from_bytes(raw(value, dtype), "little", signed=True)
    if t.is_string(dtype):
        return 1, value.encode()
    if t.is_binary(dtype):
        return 1, value
    if t.is_struct(dtype):
        return 1, tuple(order_key(v, f.type) for v, f in zip(value, dtype, strict=True))
    if t.is_map(dtype):
        entry = pa.struct([dtype.key_field, dtype.item_field])
        return 1, tuple(order_key(pair, entry) for pair in entries_in_order(value, dtype))
    if t.is_list(dtype):
        return 1, tuple(order_key(v, dtype.value_type) for v in value)
    return 1, value


# ---------------------------------------------------------------------------------------------------- batches


def contents(batch: Batch) -> dict[Row, int]:
    """Rows and weights of a batch; fails if a row occurs twice or a weight is zero."""
    found = rows(batch.to_arrow())
    weights = batch.weights().tolist()
    assert len(found) == len(weights) == len(batch)
    assert len(set(found)) == len(found), "a row occurs twice"
    assert 0 not in weights
    return dict(zip(found, weights, strict=True))


def check(batch: Batch, expected: dict[Row, int], mask: int = ALL) -> None:
    """A batch holds exactly these rows, keeps its invariants, and its lanes are the hashes of its rows."""
    table = batch.to_arrow()
    table.validate(full=True)
    assert table.schema.equals(batch.schema.arrow)
    assert contents(batch) == expected
    assert all(chunk.rows > 0 for chunk in batch.chunks)
    types = batch.schema.types
    key = range(len(types)) if batch.sort_key.key is None else batch.sort_key.key
    found = rows(table)
    hashes = [row_hash(row, types, mask) for row in found]
    key_hashes = [row_hash([row[c] for c in key], [types[c] for c in key], mask) for row in found]
    assert lane(batch, nd.HASH) == hashes
    assert lane(batch, nd.KEY) == key_hashes
    order = [
        (k, h, tuple(order_key(v, t) for v, t in zip(row, types, strict=True)))
        for k, h, row in zip(key_hashes, hashes, found, strict=True)
    ]
    assert all(a < b for a, b in pairwise(order)), "not strictly increasing"


def lane(batch: Batch, node: int) -> list[int]:
    return [int(v) for chunk in batch.chunks for v in chunk.lane(node)]


def in_chunks(batch: Batch, sizes: Iterable[int], own_memory: bool = False) -> Batch:
    """The same batch in chunks of the given sizes (the rest in one): slices, or copies in arenas of their own."""
    chunks: list[Chunk] = []
    at = 0
    for size in [*sizes, batch.rows]:
        part = batch.slice(at, size)
        if own_memory and part.rows:
            pos = [np.arange(n, dtype=np.int64) + (c << nd.ROW_BITS) for c, n in enumerate(part.lens.tolist())]
            part = part.select(np.concatenate(pos))
        chunks += part.chunks
        at += part.rows
    return Batch(batch.sort_key, chunks)
