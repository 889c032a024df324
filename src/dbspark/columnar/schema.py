"""Schemas: Spark's types in Arrow's layout, one layout per type.

Every column has one canonical Arrow type (32-bit offsets, microsecond timestamps in UTC, no dictionaries), so that
kernels see few kinds of memory and a file written by one process means the same to another. Arrow data in another
layout of the same Spark type is cast on the way in; data of another type is refused, naming the column.

`Schema` also holds what kernels need to know of the columns: a *template* of the node table (see
`dbspark.kernels.memory.layout`). Schemas are interned, so comparing two is a pointer comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from dbspark.columnar.ddl import from_struct_type, parse_ddl
from dbspark.errors import SchemaError
from dbspark.kernels.memory import layout as nd

SchemaLike: TypeAlias = Any
"""A `Schema`, Spark DDL, a pyarrow schema or a Spark StructType: whatever `Schema.of` takes."""

_INTERNED: dict[bytes, Schema] = {}


@dataclass(frozen=True, slots=True)
class NodeForm:
    """One array of a column tree: its Arrow type and its line in the template."""

    type: pa.DataType
    kind: int
    width: int
    child: int


def canonical(dtype: pa.DataType, where: str) -> pa.DataType:
    """The one Arrow type in which values of this Spark type are kept."""
    t = pa.types
    if (
        t.is_boolean(dtype)
        or t.is_signed_integer(dtype)
        or t.is_date32(dtype)
        or t.is_null(dtype)
        or (t.is_floating(dtype) and dtype.bit_width > 16)
    ):
        return dtype
    if t.is_string(dtype) or t.is_large_string(dtype) or t.is_string_view(dtype):
        return pa.string()
    if t.is_binary(dtype) or t.is_large_binary(dtype) or t.is_fixed_size_binary(dtype) or t.is_binary_view(dtype):
        return pa.binary()
    if t.is_decimal(dtype):
        if dtype.precision <= 38:
            return pa.decimal128(dtype.precision, dtype.scale)
        raise SchemaError(f"{where}: {dtype} has more than the 38 digits that Spark keeps; cast it to decimal(38, s)")
    if t.is_timestamp(dtype):
        return pa.timestamp("us", tz=None if dtype.tz is None else "UTC")
    if t.is_date64(dtype):
        return pa.date32()
    if t.is_time(dtype):
        return pa.time64("ns")
    if t.is_duration(dtype):
        return pa.duration("us")
    if t.is_interval(dtype):
        return dtype
    if t.is_dictionary(dtype):
        return canonical(dtype.value_type, where)
    if t.is_struct(dtype):
        names = [f.name for f in dtype]
        if len(set(names)) != len(names):
            raise SchemaError(f"{where}: a struct has two fields of one name in {names}; rename one")
        return pa.struct([_canonical_field(f, where) for f in dtype])
    if t.is_map(dtype):
        key, value = dtype.key_field, dtype.item_field
        return pa.map_(
            pa.field("key", canonical(key.type, where), False, key.metadata),
            pa.field("value", canonical(value.type, where), value.nullable, value.metadata),
        )
    if t.is_list(dtype) or t.is_large_list(dtype) or t.is_fixed_size_list(dtype) or t.is_list_view(dtype):
        element = dtype.value_field
        return pa.list_(pa.field("element", canonical(element.type, where), element.nullable, element.metadata))
    hint = "cast it to a signed type" if t.is_unsigned_integer(dtype) else "cast it to a type that Spark SQL has"
    raise SchemaError(f"{where}: Arrow type {dtype} has no Spark SQL type; {hint}")


def _canonical_field(field: pa.Field, where: str) -> pa.Field:
    return pa.field(field.name, canonical(field.type, f"{where}.{field.name}"), field.nullable, field.metadata)


def _kind(dtype: pa.DataType) -> tuple[int, int]:
    t = pa.types
    if t.is_null(dtype):
        return nd.NULL, 0
    if t.is_boolean(dtype):
        return nd.BIT, 0
    if t.is_float32(dtype):
        return nd.FLOAT32, 4
    if t.is_float64(dtype):
        return nd.FLOAT64, 8
    if t.is_string(dtype) or t.is_binary(dtype):
        return nd.VARIABLE, 0
    if t.is_struct(dtype):
        return nd.STRUCT, dtype.num_fields
    if t.is_list(dtype) or t.is_map(dtype):
        return nd.LIST, 0
    return nd.FIXED, dtype.bit_width // 8


class Schema:
    """Names and types of the columns of a batch."""

    kind: ClassVar[str] = "schema"
    version: ClassVar[int] = 1

    __slots__ = (
        "arrow",
        "columns",
        "has_maps",
        "lines",
        "names",
        "needs_array_export",
        "nested",
        "node_count",
        "nodes",
        "packing",
        "required",
        "row_nodes",
        "selections",
        "template",
        "template_address",
        "types",
        "weighted_schemas",
    )  # fmt: skip

    arrow: pa.Schema
    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    columns: int
    nested: bool
    has_maps: bool
    needs_array_export: bool
    """Whether a column is nested or has no buffers at all, so that columns are exported to Arrow one by one."""
    nodes: tuple[NodeForm, ...]
    node_count: int
    template: Any
    template_address: int
    """The address of the template."""
    lines: list[int]
    """The template as a flat list of numbers, to be copied, filled in and packed."""
    packing: Struct
    row_nodes: Any
    required: tuple[int, ...]
    """The columns that are NOT NULL."""
    selections: dict[tuple[int, ...], Schema]
    """Cache of `select`."""
    weighted_schemas: dict[str, pa.Schema]
    """Cache of `weighted`."""

    def __new__(cls, arrow: pa.Schema) -> Schema:
        fields = []
        for f in arrow:
            dtype = canonical(f.type, f"column {f.name!r}")
            fields.append(pa.field(f.name, dtype, f.nullable, f.metadata))
        # Arrow types compare equal whatever the metadata of nested fields, but serialise to different bytes.
        key = pa.schema(fields).serialize().to_pybytes()
        found = _INTERNED.get(key)
        if found is not None:
            return found
        self = super().__new__(cls)
        self.arrow = pa.schema(fields)
        self.names = tuple(f.name for f in fields)
        if len(set(self.names)) != len(self.names):
            twice = sorted({n for n in self.names if self.names.count(n) > 1})
            raise SchemaError(f"column names are not unique: {', '.join(twice)}; rename them")
        self.types = tuple(f.type for f in fields)
        self.columns = len(fields)
        self.selections = {}
        self.weighted_schemas = {}
        self.required = tuple(i for i, f in enumerate(fields) if not f.nullable)
        self._lay_out()
        return _INTERNED.setdefault(key, self)

    def _lay_out(self) -> None:
        lanes = [NodeForm(pa.uint64(), nd.FIXED, 8, 0)] * 2 + [NodeForm(pa.int64(), nd.FIXED, 8, 0)] * (nd.LANES - 2)
        out: list[NodeForm] = list(lanes)
        pending: list[tuple[int, pa.DataType]] = []
        for dtype in self.types:
            kind, width = _kind(dtype)
            if kind in (nd.LIST, nd.STRUCT):
                pending.append((len(out), dtype))
            out.append(NodeForm(dtype, kind, width, 0))
        row_nodes = list(range(len(out)))
        while pending:
            index, dtype = pending.pop(0)
            node = out[index]
            out[index] = NodeForm(node.type, node.kind, node.width, len(out))
            for child in child_types(dtype):
                kind, width = _kind(child)
                if kind in (nd.LIST, nd.STRUCT):
                    pending.append((len(out), child))
                if node.kind == nd.STRUCT and index in row_nodes:
                    row_nodes.append(len(out))
                out.append(NodeForm(child, kind, width, 0))
        self.nodes = tuple(out)
        self.node_count = len(out)
        self.has_maps = any(pa.types.is_map(node.type) for node in out)
        self.row_nodes = np.array(row_nodes, np.int64)  # the nodes that have one row for each row of the batch
        self.nested = any(node.kind in (nd.LIST, nd.STRUCT) for node in out)
        self.needs_array_export = any(node.kind in (nd.LIST, nd.STRUCT, nd.NULL) for node in out)
        self.template = np.zeros((self.node_count, nd.FIELDS), np.int64)
        for i, node in enumerate(out):
            self.template[i, nd.KIND] = node.kind
            self.template[i, nd.WIDTH] = node.width
            self.template[i, nd.CHILD] = node.child
            self.template[i, nd.MASK] = -1
        self.template.setflags(write=False)
        self.template_address = self.template.ctypes.data
        self.lines = self.template.ravel().tolist()
        self.packing = Struct(f"{len(self.lines)}q")

    def weighted(self, name: str) -> pa.Schema:
        """The Arrow schema followed by a column of this name for the weights."""
        found = self.weighted_schemas.get(name)
        if found is None:
            found = self.weighted_schemas[name] = self.arrow.append(pa.field(name, pa.int64()))
        return found

    def fits(self, arrays: Sequence[pa.Array]) -> bool:
        """Whether flat columns have these types, and no NULLs where the schema says NOT NULL."""
        if self.nested or len(arrays) != self.columns:
            return False
        for array, dtype in zip(arrays, self.types, strict=True):
            if array.type != dtype:
                return False
        return not any(arrays[c].null_count for c in self.required)

    @staticmethod
    def parse(ddl: str) -> Schema:
        """A schema from Spark DDL, without a JVM.

        >>> Schema.parse("id BIGINT NOT NULL, amount DECIMAL(12, 2), tags ARRAY<STRING>").names
        ('id', 'amount', 'tags')
        """
        return Schema(parse_ddl(ddl))

    @staticmethod
    def of(schema: SchemaLike) -> Schema:
        """A schema from whatever a caller has: a Schema, DDL, an Arrow schema, or a Spark StructType."""
        if isinstance(schema, Schema):
            return schema
        if isinstance(schema, str):
            return Schema.parse(schema)
        if isinstance(schema, pa.Schema):
            return Schema(schema)
        if hasattr(schema, "jsonValue") and hasattr(schema, "fields"):
            return Schema(from_struct_type(schema))
        raise SchemaError(f"expected a schema (DDL string, StructType, pyarrow schema), not {type(schema).__name__}")

    def index(self, name: str) -> int:
        """The position of a column; an error lists the columns there are."""
        try:
            return self.names.index(name)
        except ValueError:
            raise SchemaError(f"no column {name!r}; the columns are {', '.join(self.names)}") from None

    def select(self, columns: Sequence[int]) -> Schema:
        """The schema of some of the columns."""
        chosen = tuple(columns)
        found = self.selections.get(chosen)
        if found is None:
            found = self.selections[chosen] = Schema(pa.schema([self.arrow.field(c) for c in chosen]))
        return found

    def parameters(self) -> tuple[Any, ...]:
        """Its columns, as they enter the identities of operators (`dbspark.identity`)."""
        return tuple(self.arrow)

    def __reduce__(self) -> Any:
        return Schema, (self.arrow,)

    def __repr__(self) -> str:
        return f"Schema({', '.join(f'{f.name}: {f.type}' for f in self.arrow)})"


def child_types(dtype: pa.DataType) -> Iterable[pa.DataType]:
    """Types of the child arrays of a nested type, in the order of their lines in the node table."""
    if pa.types.is_struct(dtype):
        return [f.type for f in dtype]
    if pa.types.is_map(dtype):
        return [pa.struct([dtype.key_field, dtype.item_field])]
    return [dtype.value_type]
