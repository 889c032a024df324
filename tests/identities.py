"""What tests of identities share: which classes declare one, what an identity is made of, and golden files."""

import importlib
import inspect
import json
import os
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dbspark
from dbspark.identity import Identified

REWRITE = "DBSPARK_REWRITE_GOLDEN"
"""The variable of the environment with which a golden file is written rather than compared."""


def declared() -> dict[type, str]:
    """Every class of dbspark that takes part in identities and is not only a base of others, with its full name."""
    for module in pkgutil.walk_packages(dbspark.__path__, "dbspark."):
        importlib.import_module(module.name)
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "dbspark":
            for cls in vars(module).values():
                if inspect.isclass(cls) and cls.__module__ == name and callable(getattr(cls, "parameters", None)):
                    found[cls] = f"{name}.{cls.__qualname__}"
    found.pop(Identified, None)
    bases = {base for cls in found for base in cls.__mro__[1:]}
    return {c: n for c, n in found.items() if not inspect.isabstract(c) and ("kind" in vars(c) or c not in bases)}


def parts(value: Any) -> Iterator[Any]:
    """The identified objects that an identity is made of."""
    if isinstance(value, tuple):
        for item in value:
            yield from parts(item)
    elif isinstance(value, Identified):
        yield value
        yield from parts(value.parameters())


def compare(path: Path, found: Mapping[str, str]) -> None:
    """Compare digests with those of a golden file, and say what to do where they differ."""
    if os.environ.get(REWRITE):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")
    golden = json.loads(path.read_text())
    changed = sorted(n for n in golden.keys() & found.keys() if golden[n] != found[n])
    gone, new = sorted(golden.keys() - found.keys()), sorted(found.keys() - golden.keys())
    assert not [*changed, *gone, *new], (
        f"node ids are not those of {path.name}: changed {changed}, gone {gone}, new {new}.\n"
        "A node whose id changes finds no state in any location that exists: its views are filled again.\n"
        "- Renamed, moved or refactored something? Then ids must not change: find what has entered an identity by "
        "accident (see dbspark/identity.py), or whose kind or parameters() were changed, and take it back.\n"
        "- Changed the layout or the meaning of some state? Then raise the `version` of that operator, and no other.\n"
        "- Added a case? Then nothing but the new name may differ.\n"
        f"Only with one of the last two reasons, named in the commit message, run the test with {REWRITE}=1 and commit "
        f"{path.name}; a view whose plan has changed (a new Spark, a new rule) is such a reason as well."
    )
