"""Generators: every row becomes any number of rows.

A generator takes the columns of its input and gives the columns that it makes, with the row that each made row comes
from. With `outer`, a row that makes none makes one of NULLs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.columnar.memory import Int64s
from dbspark.operators.function import Columns
from dbspark.sql import plan as p
from dbspark.sql.expressions.compiler import ExpressionCompiler
from dbspark.sql.expressions.rules import ColumnFrame, Compiled
from dbspark.sql.spark_evaluator import SparkEvaluator, SparkFunction

Generator: TypeAlias = Callable[[Columns], tuple[list[pa.Array], Int64s]]


def compile_generator(node: p.Generate, compiler: ExpressionCompiler) -> Generator | None:
    """A generator by our own kernels, or None."""
    call = node.generator
    args = [compiler.native(a) for a in call.args]
    if any(a is None for a in args):
        return None
    given = [a for a in args if a is not None]
    if call.name in ("Explode", "PosExplode", "Inline"):
        dtype = given[0].type
        if not (pa.types.is_list(dtype) or pa.types.is_map(dtype)):
            return None
        return _exploding(given[0], call.name, node.outer, [c.type for c in node.columns])
    if call.name == "Stack":
        count = call.args[0]
        if not isinstance(count, p.Constant) or node.outer:
            return None
        return _stacking(int(count.value), given[1:], [c.type for c in node.columns])
    if call.name == "ReplicateRows":
        return _replicating(given)
    return None


def _exploding(value: Compiled, name: str, outer: bool, types: Sequence[pa.DataType]) -> Generator:
    def generate(columns: Columns) -> tuple[list[pa.Array], Int64s]:
        rows = len(columns[0])
        lists = value.array(ColumnFrame(columns, rows))
        lengths = pc.fill_null(pc.list_value_length(_as_list(lists)), 0).to_numpy().astype(np.int64)
        flat = _as_list(lists).flatten()
        made = [flat] if name != "Inline" and pa.types.is_list(lists.type) else list(_fields(flat))
        counts = np.maximum(lengths, 1) if outer else lengths
        origin = np.repeat(np.arange(rows), counts)
        starts = np.cumsum(counts) - counts
        within = np.arange(len(origin)) - starts[origin]
        empty = lengths[origin] == 0
        if outer and empty.any():
            at = np.cumsum(~empty) - 1
            take = pa.array(np.where(empty, 0, at), mask=empty)
            made = [m.take(take) for m in made]
        if name == "PosExplode":
            made = [pa.array(within.astype(np.int32), mask=empty if outer else None), *made]
        return [m.cast(t) for m, t in zip(made, types, strict=True)], origin

    return generate


def _as_list(array: pa.Array) -> pa.Array:
    """Maps as the lists of entries that they are."""
    if not pa.types.is_map(array.type):
        return array
    entries = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
    offsets = array.offsets
    mask = array.is_null() if array.null_count else None
    if array.offset or len(entries) != len(array.items):
        array = pa.concat_arrays([array])
    first = offsets[0].as_py() if len(offsets) else 0
    if first:
        offsets = pc.subtract(offsets, first)
    return pa.ListArray.from_arrays(offsets, entries, mask=mask)


def _fields(structs: pa.Array) -> list[pa.Array]:
    """The columns of structs; NULL where the struct is."""
    return [pc.struct_field(structs, i) for i in range(structs.type.num_fields)]


def _stacking(count: int, values: Sequence[Compiled], types: Sequence[pa.DataType]) -> Generator:
    width = len(types)

    def generate(columns: Columns) -> tuple[list[pa.Array], Int64s]:
        rows = len(columns[0])
        frame = ColumnFrame(columns, rows)
        order = np.arange(rows * count).reshape(count, rows).T.ravel()
        made = []
        for c in range(width):
            parts = []
            for r in range(count):
                at = r * width + c
                parts.append(values[at].array(frame).cast(types[c]) if at < len(values) else pa.nulls(rows, types[c]))
            made.append(pa.concat_arrays(parts).take(pa.array(order)))
        return made, np.repeat(np.arange(rows), count)

    return generate


def _replicating(values: Sequence[Compiled]) -> Generator:
    def generate(columns: Columns) -> tuple[list[pa.Array], Int64s]:
        frame = ColumnFrame(columns, len(columns[0]))
        times = np.maximum(pc.fill_null(values[0].array(frame), 0).to_numpy(), 0)
        origin = np.repeat(np.arange(frame.rows), times)
        rows = pa.array(origin)
        return [v.array(frame).take(rows) for v in values[1:]], origin

    return generate


def generator_by_spark(
    node: p.Generate, ids: Sequence[int], kept: Sequence[int], spark: SparkEvaluator, as_read: bool = True
) -> SparkFunction:
    """A generator that Spark runs; unless it is `as_read`, over columns and constants instead of its arguments."""
    if as_read:
        return spark.flat_map(node.origin, ids, kept, node.columns)
    at = [ids.index(a.id) if isinstance(a, p.Column) else None for a in node.generator.args]
    return spark.flat_map(node.origin, ids, kept, node.columns, at)
