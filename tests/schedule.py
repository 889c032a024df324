"""Which process runs which module when the suite runs in several: `pytest -n 2 --dist loadfile`.

1. One process runs all tests of a module, because they share fixtures: pipelines, Spark jobs, compiled circuits.
2. The longest modules go first, so that all processes end at about the same time.
3. A process has one Spark session, which takes seconds to start and longer to get warm. So the first process begins
   with the modules that need Spark, and the others with those that do not. Who has done all of one kind goes on with
   the other, but starts Spark only where more is left to do than that is worth.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling

ROOT: Final = Path(__file__).parents[1]
NEEDS_SPARK: Final = re.compile(r"def \w+\([^)]*\bspark\b|mark\.spark\b")

SECONDS: Final[dict[str, float]] = {
    "tests/sql/test_evaluation.py": 76,
    "tests/runtime/test_sharded.py": 59,
    "tests/runtime/test_cluster.py": 50,
    "tests/cli/test_demo_act.py": 43,
    "tests/sql/test_views.py": 40,
    "tests/zset/test_laws.py": 35,
    "tests/sql/test_workloads_views.py": 90,
    "tests/pipeline/test_drivers.py": 30,
    "tests/sql/test_nested.py": 30,
    "tests/sql/test_catalogue.py": 29,
    "tests/sql/test_fuzz.py": 25,
    "tests/operators/test_range_join.py": 20,
    "tests/operators/test_join.py": 18,
    "tests/operators/test_aggregate.py": 18,
    "tests/sql/test_identity.py": 16,
    "tests/runtime/test_runtime.py": 16,
    "tests/trace/test_write_buffer.py": 16,
    "tests/sql/test_workloads.py": 15,
    "tests/operators/test_collect.py": 15,
    "tests/runtime/test_state.py": 14,
    "tests/cli/test_commands.py": 13,
    "tests/sql/test_catalyst_nodes.py": 13,
    "tests/sql/test_spark_evaluator.py": 13,
    "tests/connectors/test_source.py": 12,
    "tests/operators/test_window.py": 11,
    "tests/operators/test_statistics.py": 10,
    "tests/circuit/test_graphs.py": 10,
    "tests/runtime/test_planner.py": 10,
    "tests/pipeline/test_crashes.py": 10,
    "tests/pipeline/test_types.py": 10,
    "tests/storage/test_faults.py": 10,
    "tests/runtime/test_fixpoint.py": 10,
    "tests/pipeline/test_docs.py": 9,
    "tests/connectors/test_streams.py": 9,
    "tests/circuit/test_optimise.py": 9,
    "tests/zset/test_key_index.py": 8,
    "tests/kernels/test_row_order.py": 8,
    "tests/trace/test_trace.py": 8,
    "tests/operators/test_top_k.py": 7,
    "tests/benchmarks/test_peers.py": 7,
    "tests/operators/test_dispatch.py": 7,
    "tests/sql/test_analysis_session.py": 7,
    "tests/columnar/test_collisions.py": 7,
    "tests/trace/test_spine.py": 6,
    "tests/columnar/test_batch.py": 5,
    "tests/storage/test_store.py": 5,
    "tests/pipeline/test_names.py": 5,
}
"""CPU seconds of the modules that take more than `USUAL`. They set the order and nothing else, so they may be old."""
USUAL: Final = 1.5
ANOTHER_SESSION: Final = 40.0
"""CPU seconds of modules that must be left for one more session: starting and warming it takes some 20."""


@cache
def needs_spark(module: str) -> bool:
    """Whether a test of the module asks for the session, as its text has it."""
    return NEEDS_SPARK.search((ROOT / module).read_text(encoding="utf-8")) is not None


def seconds(module: str) -> float:
    return SECONDS.get(module, USUAL)


class Schedule(LoadScopeScheduling):
    """Gives whole modules to processes (`node`), chosen for each as it asks for more."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sessions: set[Any] = set()
        """The processes that have been given a module which needs Spark."""

    def choose(self, node: Any) -> str | None:
        """The next module for a process; None if what is left is better run by others."""
        longest = sorted(self.workqueue, key=seconds, reverse=True)
        with_spark = [m for m in longest if needs_spark(m)]
        without = [m for m in longest if not needs_spark(m)]
        if node in self.sessions:
            return next(iter(with_spark + without), None)
        served = any(other in self.sessions and not other.shutting_down for other in self.nodes)
        if not served:
            return next(iter(with_spark + without), None)
        if without:
            return without[0]
        return with_spark[0] if sum(map(seconds, with_spark)) > ANOTHER_SESSION else None

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.split("::", 1)[0]

    def _assign_work_unit(self, node: Any) -> None:
        module = self.choose(node)
        if module is None:
            return
        if needs_spark(module):
            self.sessions.add(node)
        self.workqueue.move_to_end(module, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        busy = self._pending_of(self.assigned_work[node]) > 2
        if self.workqueue and not busy and not node.shutting_down and self.choose(node) is None:
            node.shutdown()
        else:
            super()._reschedule(node)
