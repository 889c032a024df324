"""Spark's types, as its JSON names them, as Arrow types."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dbspark.errors import SchemaError
from dbspark.sql.types import from_json


def map_of(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def test_maps_have_keys_that_are_there() -> None:
    found = from_json(map_of("string", {"type": "array", "elementType": "void", "containsNull": True}))
    assert found.key_type == pa.string()
    assert not found.key_field.nullable
    assert found.item_type == pa.list_(pa.field("element", pa.null()))


@pytest.mark.parametrize("around", [lambda inner: inner, lambda inner: map_of("integer", inner)])
def test_a_map_whose_keys_have_no_type_is_refused_with_what_to_do(around: Any) -> None:
    with pytest.raises(SchemaError, match=r"keys have no type.*CAST\(map\(\) AS MAP"):
        from_json(around(map_of("void", "void")))
