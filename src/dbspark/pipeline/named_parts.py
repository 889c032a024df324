"""The tables and views of a pipeline by name.

Names ignore case as Spark's do, and follow its setting `spark.sql.caseSensitive`. Looking one up never starts Spark: a
name as it was created is found without asking, and before there is a session its defaults hold.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

from dbspark.columnar.user_data import system_zone
from dbspark.errors import DbsparkError
from dbspark.pipeline.handle_mapping import HandleMapping
from dbspark.pipeline.handles import Kind, PipelineCore, Table, View
from dbspark.runtime.runtime import StateReader
from dbspark.sql.names import find_name, is_case_sensitive, nearest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dbspark.spark import SessionHandle


class NamedParts:
    """The part of a pipeline that finds tables and views."""

    _state_reader: StateReader
    _definitions: dict[str, dict[str, Any]]
    _given_session: SparkSession | None
    _session: SessionHandle | None

    def table(self, name: str) -> Table:
        """The table `name`. Names ignore case, as Spark's do."""
        return Table(cast(PipelineCore, self), self._resolve(name, "table"))

    def view(self, name: str) -> View:
        """The view `name`. Names ignore case, as Spark's do."""
        return View(cast(PipelineCore, self), self._resolve(name, "view"))

    def _find(self, name: str, kind: Kind) -> str | None:
        """The name of the table or view that `name` means, as it was created; None if there is none."""
        known = self._state_reader.tables if kind == "table" else self._definitions
        if not isinstance(name, str) or name in known:  # as it was created: Spark is not asked about case
            return name if isinstance(name, str) else None
        return find_name(name, known, self._case_sensitive())

    def _resolve(self, name: str, kind: Kind) -> str:
        """`_find`, or an error that says what there is."""
        found = self._find(name, kind)
        if found is not None:
            return found
        if not isinstance(name, str):
            raise DbsparkError(f"the name of a {kind} is text, not {name!r} ({type(name).__name__})")
        known = self.tables if kind == "table" else self.views
        other: Kind = "view" if kind == "table" else "table"
        there = self._find(name, other)
        hint = f"; {there!r} is a {other}" if there is not None else nearest(name, known)
        raise DbsparkError(f"no {kind} {name!r}{hint}; the {kind}s are {', '.join(known) or 'none'}")

    def _present_session(self) -> SparkSession | None:
        """The session that the pipeline uses or would use, if there is one already."""
        own = self._given_session if self._session is None else self._session.spark
        if own is None and "pyspark.sql" in sys.modules:
            own = sys.modules["pyspark.sql"].SparkSession.getActiveSession()
        return own

    def _case_sensitive(self) -> bool:
        """Whether names are told apart by case; asked without starting Spark."""
        return is_case_sensitive(self._present_session())

    def _time_zone(self) -> str:
        """The session's time zone; before there is a session, that of the system, which Spark would take."""
        spark = self._present_session()
        return system_zone() if spark is None else str(spark.conf.get("spark.sql.session.timeZone"))

    @property
    def tables(self) -> HandleMapping[Table]:
        """The tables by name, in the order of their creation."""
        return HandleMapping(lambda: self._state_reader.tables, self.table)

    @property
    def views(self) -> HandleMapping[View]:
        """The views by name, in the order of their creation."""
        return HandleMapping(lambda: self._definitions, self.view)


__all__ = ["NamedParts"]
