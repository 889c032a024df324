"""The package as a whole: what importing it costs, and what it exports."""

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import dbspark

HEAVY = ("pyspark", "numba", "llvmlite", "pyarrow", "pandas", "numpy")


def modules_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("statement", ["import dbspark", "import dbspark; dir(dbspark); dbspark.DbsparkError"])
def test_importing_dbspark_loads_nothing_heavy(statement: str) -> None:
    assert modules_after(statement).isdisjoint(HEAVY)


@pytest.mark.parametrize("module", ["dbspark.spark", "dbspark.cli"])
def test_spark_and_cli_load_without_spark_or_numba(module: str) -> None:
    assert modules_after(f"import {module}").isdisjoint({"pyspark", "numba", "llvmlite"})


def test_reports_load_nothing_before_they_are_shown() -> None:
    assert modules_after("from dbspark.reporting import activity\nwith activity('x'): pass").isdisjoint(
        (*HEAVY, "rich")
    )


def test_zsets_load_without_spark() -> None:
    assert "pyspark" not in modules_after("from dbspark import ZSet, IndexedZSet")


def test_version_is_the_installed_one() -> None:
    assert dbspark.__version__ == importlib.metadata.version("dbspark")


def test_every_exported_name_resolves() -> None:
    for name in dbspark.__all__:
        assert getattr(dbspark, name) is not None
        assert name in dir(dbspark)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Zset'"):
        _ = dbspark.Zset


def test_every_error_is_a_dbspark_error() -> None:
    from dbspark import errors

    for name in errors.__all__:
        assert issubclass(getattr(errors, name), dbspark.DbsparkError | UserWarning)


LAYERS = (
    "kernels", "columnar", "trace", "zset", "storage", "operators", "circuit", "sql", "spark", "runtime", "connectors",
    "pipeline", "cli",
)  # fmt: skip
"""As the architecture has them: a package imports only from those before it."""


ANYBODYS = ("errors", "identity", "lazy", "notebook_html", "reporting")
"""Modules that every package may import."""
NOBODYS = ("warm",)
"""Modules that no package imports, and that may import every one."""


def upward_imports(package: str, source: str) -> list[str]:
    """What a module of a package imports from packages above its own, in functions and under TYPE_CHECKING as well."""
    wrong = []
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            first, _, rest = f"{name}.".partition(".")
            below = rest.split(".")[0]
            if first != "dbspark" or below in ANYBODYS or below.startswith("__"):
                continue
            if below not in LAYERS or LAYERS.index(below) > LAYERS.index(package):
                wrong.append(name)
    return wrong


def test_packages_import_only_from_those_below() -> None:
    source = Path(dbspark.__file__).parent
    wrong = []
    for file in sorted(source.rglob("*.py")):
        place = file.relative_to(source)
        if len(place.parts) == 1:
            assert place.stem in (*ANYBODYS, *NOBODYS, "__init__"), f"{place}: say who may import it"
            continue
        assert place.parts[0] in LAYERS, f"{place.parts[0]}: say which packages it may import"
        wrong += [f"{place} imports {name}" for name in upward_imports(place.parts[0], file.read_text())]
    assert not wrong


@pytest.mark.parametrize("line", [
    "from dbspark.sql import plan", "import dbspark.pipeline.pipeline as p", "from dbspark import Pipeline",
    "def f():\n    from dbspark.cli import demo", "if TYPE_CHECKING:\n    from dbspark.runtime.runtime import Runtime",
    "import dbspark", "from dbspark import warm",
])  # fmt: skip
def test_imports_from_above_are_found_wherever_they_stand(line: str) -> None:
    assert upward_imports("trace", line)
    assert not upward_imports(
        "trace", "from dbspark.columnar import Batch\nfrom dbspark import errors\nimport dbsparkling"
    )
