"""The layout of columns in memory, as kernels address it: nodes, chunks, lanes, positions.

A **node** is one line of `FIELDS` int64 values that describes one Arrow array:

    KIND    what its values are (below)
    WIDTH   bytes per value (fixed-width kinds), number of fields (structs)
    DATA    address of the values, or of the bytes of a variable-width column
    VALID   address of the validity bitmap, 0 when no value is NULL
    OFFSETS address of the int32 offsets of variable-width and list columns
    START   rows to skip in every buffer: an Arrow slice keeps its buffers and moves START
    CHILD   index of the first child node (lists, structs)
    MASK    -1, or 0 for a lane whose one value stands for every row

A **chunk** is a table of nodes: first the lanes HASH (row hash), KEY (key hash), WEIGHT and TIME (`TIMES` coordinates,
zero where unused), then the columns of the schema, then the descendants of nested columns. A *lane* is a column of
8-byte values that every chunk has beside those of its schema. The fields of a struct are neighbours and share the
struct's row numbers; CHILD of a list is its element, whose rows are numbered by the offsets; a map is a list of
structs. A lane with MASK 0 costs eight bytes for the whole chunk: usually all weights are 1 and all rows have the same
time.

Rows are ordered by KEY, HASH, values, TIME. Where a sort key has order columns, HASH is not a hash but the *order word*
of the first of them (`kernels.sort.row_order.order_words`), and the CHILD field of its line is the address of the
*order spec*: a count, then (node, descending, nulls last) for each order column. Values are then compared by the order
columns first.

A **position** is `chunk << 32 | row`. Kernels take several chunks as an array of the addresses of their node tables,
`tables`, so that one call reads all batches of a spine.
"""

from __future__ import annotations

from typing import Final

FIELDS: Final = 8
"""Number of int64 values in a node."""
NODE_BYTES: Final = FIELDS * 8

KIND: Final = 0
WIDTH: Final = 1
DATA: Final = 2
VALID: Final = 3
OFFSETS: Final = 4
START: Final = 5
CHILD: Final = 6
MASK: Final = 7

FIXED: Final = 0
FLOAT32: Final = 1
FLOAT64: Final = 2
BIT: Final = 3
VARIABLE: Final = 4
LIST: Final = 5
STRUCT: Final = 6
NULL: Final = 7

HASH: Final = 0
KEY: Final = 1
WEIGHT: Final = 2
TIME: Final = 3
TIMES: Final = 3
"""The most coordinates of a time: the depth to which scopes nest."""
LANES: Final = TIME + TIMES
"""Nodes before the first column of the schema."""

ROW_BITS: Final = 32
ROW_MASK: Final = (1 << ROW_BITS) - 1

ALIGN: Final = 64
"""Bytes: buffers inside an arena start at multiples of this, as the Arrow format recommends."""

OFFSET_MAX: Final = 2147483647
"""The largest 32-bit offset; a chunk whose variable-width column has more bytes, or list more elements, is split."""

OVERFLOW: Final = -1
"""Returned instead of a number of rows where a weight, a sum of weights or a product of two lies outside
-(2**63 - 1) … 2**63 - 1. Nothing else that the kernel has written may be used then."""
