"""Where time windows begin and end (`dbspark.sql.timewindows`), and the conversion that they are made with."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dbspark.columnar.memory import allocate
from dbspark.kernels.aggregate.time_windows import window_bounds
from dbspark.sql.expressions.calendar import LONG, NTZ, TIMESTAMP
from dbspark.sql.expressions.rules import ColumnFrame, Compiled, Datum, as_array, calling, raw_rule
from dbspark.sql.plan import Call
from dbspark.sql.timewindows import boundary


@raw_rule("PreciseTimestampConversion")
def precise(call: Call, compiler: Any) -> Compiled | None:
    to = {"timestamp": TIMESTAMP, "timestamp_ntz": NTZ, "long": LONG}.get(str(call.option("toType")))
    given: Compiled = compiler.compile(call.args[0])
    if to is None or given.type not in (TIMESTAMP, NTZ, LONG):
        return None
    general = calling(
        to, lambda micros: micros.cast(to) if isinstance(micros, pa.Scalar) else as_array(micros, 0).view(to), [given]
    )
    found = boundary(call)
    if found is None or max(map(abs, found[1:])) >= 1 << 60:
        return general
    time, origin, slide, more = found
    return _boundaries(compiler.compile(time), (origin, slide, more), general)


def _boundaries(time: Compiled, constants: tuple[int, int, int], general: Compiled) -> Compiled:
    """Where windows begin or end, by one kernel; by `general` if a time is near the ends of the range of int64."""

    def run(frame: ColumnFrame) -> Datum:
        times = time.array(frame)
        rows = len(times)
        out = allocate(8 * rows)
        address = times.buffers()[1].address + 8 * times.offset if rows else 0
        if not window_bounds(address, rows, *constants, out.address):
            return general.run(frame)
        made = pa.Array.from_buffers(general.type, rows, [None, out])
        return pc.if_else(pc.is_valid(times), made, pa.scalar(None, general.type)) if times.null_count else made

    return Compiled(general.type, run, general.can_fail)
