"""Values of Catalyst as Python and pyarrow take them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa

from dbspark.columnar.frames import is_variant


def from_jvm(value: Any, spark_type: Any, dtype: pa.DataType) -> Any:
    """A value of Catalyst as pyarrow takes it."""
    t = pa.types
    if value is None:
        return None
    if is_variant(dtype):
        return {"value": bytes(value.getValue()), "metadata": bytes(value.getMetadata())}
    if t.is_list(dtype):
        inner = spark_type.elementType()
        return [_item(value, i, inner, dtype.value_type) for i in range(value.numElements())]
    if t.is_map(dtype):
        sides = [
            [_item(side, i, kind, inner) for i in range(value.numElements())]
            for side, kind, inner in (
                (value.keyArray(), spark_type.keyType(), dtype.key_type),
                (value.valueArray(), spark_type.valueType(), dtype.item_type),
            )
        ]
        return list(zip(*sides, strict=True))
    if is_variant(dtype):
        raise TypeError("a literal of type variant")
    if t.is_struct(dtype):
        fields = spark_type.fields()
        return {f.name: _item(value, i, fields[i].dataType(), f.type) for i, f in enumerate(dtype)}
    if t.is_string(dtype):
        return value if isinstance(value, str) else str(value.toString())
    if t.is_decimal(dtype):
        return Decimal(str(value.toString()))
    if t.is_boolean(dtype) or t.is_integer(dtype) or t.is_floating(dtype) or t.is_date(dtype) or t.is_timestamp(dtype):
        return value
    raise TypeError(f"a literal of type {dtype}")


def _item(data: Any, at: int, spark_type: Any, dtype: pa.DataType) -> Any:
    return None if data.isNullAt(at) else from_jvm(data.get(at, spark_type), spark_type, dtype)
