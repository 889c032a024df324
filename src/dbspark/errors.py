"""The errors a user of dbspark can meet.

Every error dbspark raises on purpose is a `DbsparkError`, so one `except` clause catches them all. A message
is whole sentences that say what happened, where (table, column, setting, path) and what to do next. The
subclasses are few: one is added only where a caller would handle the error differently.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = [
    "CircuitError",
    "ConfigError",
    "CorruptFileError",
    "DbsparkError",
    "EvaluationError",
    "JavaNotFoundError",
    "LockError",
    "OpenAnswerWarning",
    "SchemaError",
    "SparkStartError",
    "StoreError",
    "TimeError",
    "TransactionError",
    "UnknownBackendError",
    "WeightOverflowError",
]


class DbsparkError(Exception):
    """Base of every error that dbspark raises on purpose."""


class ConfigError(DbsparkError):
    """A setting has a value that cannot be used; the message names the setting, the value and what is allowed."""


class UnknownBackendError(ConfigError):
    """There is no Z-set backend of the configured name; the message lists the names that exist."""


class JavaNotFoundError(DbsparkError):
    """No Java that can run Spark was found; the message says where it was searched for and how to install one."""


class SparkStartError(DbsparkError):
    """The JVM of Spark did not start; the message shows the end of its log."""


class SchemaError(DbsparkError):
    """Data does not fit a schema; the message names the column, the expected and the given type."""


class TransactionError(DbsparkError):
    """A transaction that violates a table. Nothing of it was applied; the message names the table and a row."""


class EvaluationError(DbsparkError):
    """What Spark would raise when it evaluates an expression: overflow, division by zero, a cast that fails.

    Where a view fails, the message names the view, the expression and a row; nothing of the transaction was applied.
    """

    describe: Callable[[], str] | None = None
    """Finds the expression and a row that shows the error; called at most once, and only if somebody will read it."""
    view: str | None = None
    """The view that the message names."""
    node: str | None = None
    """The id of the node that failed, set by a task, which does not know the view."""

    def of_view(self, view: str | None) -> EvaluationError:
        """The same error, with the view, the expression and a row in its message, as far as they are known."""
        if self.view is not None or (view is None and self.describe is None):
            return self
        place = "" if self.describe is None else self.describe()
        error = EvaluationError(("" if view is None else f"view {view!r}: ") + str(self) + place)
        error.view = view
        return error


class OpenAnswerWarning(UserWarning):
    """A view is defined by a query that has more than one right answer, so Spark's own may differ from the view's."""


class CircuitError(DbsparkError):
    """A circuit that cannot be built or cannot run; the message names the nodes."""


class TimeError(DbsparkError):
    """A time that a trace cannot be read at, or does not accept; the message names the frontier that excludes it."""


class CorruptFileError(DbsparkError):
    """A file of dbspark is missing, truncated, altered or of another format; the message names the file."""


class WeightOverflowError(DbsparkError):
    """The weight of a row leaves the range of int64. Nothing of the change was applied."""


class StoreError(DbsparkError):
    """Durable state cannot be read or written; the message names the location or file and what to do."""


class LockError(StoreError):
    """Another process holds the write lock of the location; the message names the location or its lock file."""
