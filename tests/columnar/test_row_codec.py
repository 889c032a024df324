"""Encoding single rows. That a row is found by it is tested in `tests/zset/test_row_lookup.py`."""

from __future__ import annotations

import pytest

from dbspark.columnar import Schema
from dbspark.columnar.row_codec import MAX_TEXT_BYTES, UNENCODABLE, codec_of, hash_mask
from dbspark.columnar.sort_key import weakened_hash

SCHEMA = Schema.parse("k BIGINT, s STRING, d DECIMAL(10, 2)")


def test_types_that_are_not_encoded_have_no_codec() -> None:
    for ddl in ("a ARRAY<INT>", "k BIGINT, t TIME", "i INTERVAL"):
        assert codec_of(Schema.parse(ddl)) is None


def test_a_null_needs_the_encoder_for_nulls() -> None:
    codec = codec_of(SCHEMA)
    assert codec is not None
    row = (1, None, None)
    with pytest.raises(UNENCODABLE):
        codec.plain.encode(row)
    encoded = codec.encode(row)
    assert encoded is not None
    assert encoded[1] is codec.nullable.pool


def test_a_row_that_does_not_fit_is_not_encoded_and_its_buffer_returns_to_the_pool() -> None:
    codec = codec_of(SCHEMA)
    assert codec is not None
    buffers = [len(e.pool) for e in (codec.plain, codec.nullable)]
    for row in ((1, "x" * (MAX_TEXT_BYTES + 1), None), (1 << 63, "x", None)):
        assert codec.encode(row) is None
    assert all(len(e.pool) >= n for e, n in zip((codec.plain, codec.nullable), buffers, strict=True))


def test_a_buffer_is_reused_once_it_is_in_the_pool() -> None:
    codec = codec_of(Schema.parse("only_in_this_test BIGINT"))
    assert codec is not None
    first = codec.encode((1,))
    second = codec.encode((2,))
    assert first is not None
    assert second is not None
    assert first[0] is not second[0]
    first[1].append(first[0])
    third = codec.encode((3,))
    assert third is not None
    assert third[0] is first[0]


def test_the_hash_mask_is_all_ones_unless_hashes_are_weakened() -> None:
    assert hash_mask() == -1
    with weakened_hash(7):
        assert hash_mask() == 7
