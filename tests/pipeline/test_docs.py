"""The examples of docs/pipeline.md run, one after the other, as they stand there."""

import re
from pathlib import Path
from typing import Any

import pytest

import dbspark

DOCUMENT = Path(__file__).parents[2] / "docs" / "pipeline.md"


def test_the_examples_run(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert examples
    names: dict[str, Any] = {"dbspark": dbspark, "spark": spark}
    for example in examples:
        exec(compile(example, str(DOCUMENT), "exec"), names)
