"""Tests mirror the code: `tests/<package>/test_<module>.py`, or another file where a module means nothing by itself."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "dbspark"

TESTED_BY = {
    "errors": "test_package",
    "lazy": "columnar/test_batch",
    "notebook_html": "pipeline/test_readings",
    "cli/*": "cli/test_commands",
    "circuit/builder": "circuit/test_graphs",
    "columnar/batch_file": "trace/test_files",
    "columnar/chunk": "columnar/test_batch",
    "connectors/feed": "connectors/test_source",
    "connectors/stored_tables": "connectors/test_source",
    # Parts of compiled code, which kernels are made of.
    "kernels/compiler": "kernels/test_units",
    "kernels/cpython": "columnar/test_row_codec",
    "kernels/jit": "kernels/test_units",
    "kernels/memory/intrinsics": "kernels/test_gather",
    "kernels/memory/layout": "kernels/test_gather",
    "kernels/memory/nodes": "kernels/test_gather",
    "kernels/package": "kernels/test_units",
    "kernels/target": "kernels/test_objects",
    "kernels/vm/registers": "kernels/test_interpreter",
    # Parts of operators, which are tested as wholes in circuits.
    "operators/accumulator_kernel": "operators/test_aggregate",
    "operators/arranged": "operators/test_dispatch",
    "operators/bucket": "runtime/test_partial_aggregation",
    "operators/constant": "circuit/test_nested",
    "operators/external_function": "runtime/test_planner",
    "operators/function": "sql/test_identity",
    "operators/instruction": "circuit/test_vm",
    "operators/integral": "circuit/test_graphs",
    "operators/keyed": "operators/test_aggregate",
    "operators/keys": "operators/test_distinct",
    "operators/nested": "circuit/test_nested",
    "operators/operator": "operators/test_dispatch",
    "operators/partial": "runtime/test_partial_aggregation",
    "operators/temporal": "circuit/test_differentiate",
    "pipeline/handle_mapping": "pipeline/test_readings",
    "pipeline/handles": "pipeline/test_pipeline",
    "pipeline/monitoring": "runtime/test_progress",
    "pipeline/named_parts": "pipeline/test_names",
    "pipeline/sink_keeper": "connectors/test_sinks",
    "pipeline/statements": "pipeline/test_flows",
    "runtime/active_levels": "runtime/test_sharded",
    "runtime/embedded": "runtime/test_runtime",
    "runtime/resident": "runtime/test_sharded",
    "runtime/sizes": "pipeline/test_explain",
    "runtime/table_steps": "runtime/test_sharded",
    "runtime/transport": "runtime/test_exchange",
    "runtime/wire": "runtime/test_sharded",
    "runtime/worker*": "runtime/test_sharded",
    "spark/launcher": "spark/test_java",
    # Spark is the oracle: of expressions by the examples of the page on SQL, of plans by queries.
    "sql/expressions/*": "sql/test_catalogue",
    "sql/catalyst": "sql/test_catalyst_nodes",
    "sql/catalyst_tree": "sql/test_catalyst_nodes",
    "sql/determinism": "sql/test_catalyst_nodes",
    "sql/explain": "pipeline/test_explain",
    "sql/*": "sql/test_views",
    "storage/files": "storage/test_faults",
    "storage/manifest": "storage/test_damage",
    "storage/pins": "storage/test_retirement",
    "storage/segment": "storage/test_store",
    "storage/writing": "storage/test_store",
    "trace/agent": "trace/test_trace",
    "trace/background_merges": "trace/test_threads",
    "trace/bloom_filter": "trace/test_spine",
    "trace/config": "trace/test_spine",
    "trace/cursor": "trace/test_trace",
    "trace/lookup": "trace/test_trace",
    "trace/merge_state": "trace/test_spine",
    "trace/statistics": "trace/test_spine",
    "zset/arrow_input": "zset/test_laws",
    "zset/config": "zset/test_adaptive",
    "zset/payload": "zset/test_equivalence",
    "zset/policy": "zset/test_adaptive",
    "zset/sorted_part": "zset/test_adaptive",
    "zset/weights": "zset/test_errors",
    "zset/zset": "zset/test_laws",
}
"""By module (without `dbspark`), the file that tests it together with others."""


def modules() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name != "__init__.py":
            yield path.relative_to(SOURCE).with_suffix("").as_posix()


def own_test(module: str) -> Path:
    """`tests/<package>/test_<module>.py`; modules of inner packages stand under the outer one."""
    package, _, name = f"/{module}".rpartition("/")
    return TESTS / package.lstrip("/").split("/")[0] / f"test_{name}.py"


def test_every_module_has_a_file_of_tests_or_says_where_it_is_tested() -> None:
    assert [file for file in TESTED_BY.values() if not (TESTS / f"{file}.py").exists()] == []
    without = [m for m in modules() if not own_test(m).exists() and not any(fnmatch(m, p) for p in TESTED_BY)]
    assert without == [], "add tests/<package>/test_<module>.py"


def test_every_entry_is_about_a_module() -> None:
    here = list(modules())
    assert [pattern for pattern in TESTED_BY if not any(fnmatch(module, pattern) for module in here)] == []
