"""Functions that Spark compiles to calls of static methods (`StaticInvoke`), by class and method.

>>> @invoked("Encode.encode")
... def encode(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None: ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from dbspark.sql.expressions.rules import Compiled, Context, Rule, rule
from dbspark.sql.expressions.vectors import null_intolerant, text_of
from dbspark.sql.plan import Call

INVOKED: dict[str, Rule] = {}


def invoked(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for static methods, by the short name of the class and the name of the method."""

    def register(given: Rule) -> Rule:
        for name in names:
            if name in INVOKED:
                raise ValueError(f"there are two rules for {name}")
            INVOKED[name] = given
        return given

    return register


@rule("StaticInvoke")
def static_invoke(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    where = str(call.option("staticObject", "")).rsplit(".", 1)[-1].rstrip("$")
    known = INVOKED.get(f"{where}.{call.option('functionName')}")
    return None if known is None else known(call, args, context)


@invoked("Encode.encode")
def encode(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if (text_of(args[1]) or "").upper() != "UTF-8" or args[0].type != pa.string():
        return None
    return null_intolerant(pa.binary(), lambda v: v.cast(pa.binary()), args[:1])
