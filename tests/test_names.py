"""Modules import each other in one direction, and a name means one thing: both read from the syntax trees of `src`."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"

LOGICAL = "a node of the logical plan (`sql.plan`, used as `p.<name>`) has the name of the operator that computes it"
SAME_NAMES = {
    "Aggregate": LOGICAL,
    "Constant": LOGICAL,
    "Filter": LOGICAL,
    "Frame": LOGICAL,
    "Join": LOGICAL,
    "Project": LOGICAL,
    "Window": LOGICAL,
    "Table": "`pipeline.Table` is the handle that users have on what `sql.plan.Table` reads",
    "main": "the entry point of a command",
    "register": "registers the data sources of its module with a Spark session",
    "gather_pairs": "the function of `columnar` calls the kernel of that name",
    "times_at": "the function of `columnar` calls the kernel of that name",
    "distinct_keys": "the function of `operators` calls the kernel of that name",
    "pair_weights": "the function of `operators` calls the kernel of that name",
    "plan": "the first step of a kernel in two steps; used as `<module>.plan`",
    "fill": "the second step of a kernel in two steps; used as `<module>.fill`",
}
"""Names that stand in several modules on purpose, with the reason."""


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of every module, by its dotted name."""
    found = {}
    for path in sorted(SOURCE.glob("dbspark/**/*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text())
    return found


def imported(module: str, tree: ast.Module, modules: Mapping[str, object]) -> set[str]:
    """The modules that a module imports: at the top, in functions and under TYPE_CHECKING."""
    out = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}, line {node.lineno}: import by the absolute name"
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            out |= {name if name in modules else str(node.module) for name in full}
    return (out & modules.keys()) - {module}


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    out: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = lowest[node] = len(index)
        stack.append(node)
        for target in graph[node]:
            if target not in index:
                visit(target)
                lowest[node] = min(lowest[node], lowest[target])
            elif target in stack:
                lowest[node] = min(lowest[node], index[target])
        if lowest[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                out.append(sorted(stack[at:]))
            del stack[at:]

    for node in graph:
        if node not in index:
            visit(node)
    return out


def definitions(tree: ast.Module) -> Iterator[str]:
    """The classes and public functions of a module, without rules of expressions, which are found by Spark's names."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            called = [
                d.func.id for d in node.decorator_list if isinstance(d, ast.Call) and isinstance(d.func, ast.Name)
            ]
            if not {"rule", "raw_rule"} & set(called):
                yield node.name


def repeated() -> dict[str, set[str]]:
    """The modules of each name that more than one of them defines."""
    homes = defaultdict(set)
    for module, tree in trees().items():
        for name in definitions(tree):
            homes[name].add(module)
    return {name: modules for name, modules in homes.items() if len(modules) > 1}


def test_no_modules_import_each_other() -> None:
    graph = {module: imported(module, tree, trees()) for module, tree in trees().items()}
    found = cycles(graph)
    assert not found, f"these modules import each other; move what both need to a third: {found}"


def test_a_name_means_one_thing() -> None:
    new = {name: sorted(homes) for name, homes in repeated().items() if name not in SAME_NAMES}
    assert not new, f"give each its own name, or say in SAME_NAMES why they share it: {new}"


def test_cycles_are_found_through_functions_and_type_checking() -> None:
    sources = {
        "a": "def f():\n    import b",
        "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from c import X",
        "c": "import a",
        "d": "import a",
    }
    graph = {name: imported(name, ast.parse(source), sources) for name, source in sources.items()}
    assert cycles(graph) == [["a", "b", "c"]]


def test_rules_of_expressions_may_share_a_name_with_a_function() -> None:
    tree = ast.parse("@rule('Like')\ndef like(): ...\ndef other(): ...\ndef _private(): ...\nclass Thing: ...")
    assert list(definitions(tree)) == ["other", "Thing"]
