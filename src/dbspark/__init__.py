"""dbspark: incremental views for Apache Spark.

Importing this package is cheap: it loads neither Spark nor numba and compiles nothing. The public names are
resolved on first use (PEP 562), so a program pays only for the parts that it touches.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dbspark import errors
from dbspark.errors import *  # noqa: F403 the errors are few, and all of them are public
from dbspark.errors import DbsparkError

if TYPE_CHECKING:
    from dbspark.connectors.stored_tables import register
    from dbspark.pipeline.handles import Subscription, Table, Transaction, View
    from dbspark.pipeline.pipeline import Pipeline
    from dbspark.zset import IndexedZSet, ZSet

__version__ = "0.1.0"

__all__ = [
    "DbsparkError", "IndexedZSet", "Pipeline", "Subscription", "Table", "Transaction", "View", "ZSet", "__version__",
    "register",
]  # fmt: skip
__all__ += [name for name in errors.__all__ if name not in __all__]

_LAZY = {
    "IndexedZSet": "dbspark.zset",
    "Pipeline": "dbspark.pipeline.pipeline",
    "Subscription": "dbspark.pipeline.handles",
    "Table": "dbspark.pipeline.handles",
    "Transaction": "dbspark.pipeline.handles",
    "View": "dbspark.pipeline.handles",
    "ZSet": "dbspark.zset",
    "register": "dbspark.connectors.stored_tables",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
