"""The examples of docs/pipeline.md run, one after the other, as they stand there."""

import re
from pathlib import Path
from typing import Any

import dbspark

DOCUMENT = Path(__file__).parents[2] / "docs" / "pipeline.md"


def test_the_examples_run(spark: Any, tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert examples
    names: dict[str, Any] = {"dbspark": dbspark, "spark": spark}
    for example in examples:  # in a folder of their own; Spark has begun in another one and stays there
        placed = example.replace('"state/', f'"{tmp_path}/state/')
        placed = placed.replace('Path("clicks")', f'Path("{tmp_path}/clicks")')
        exec(compile(placed, str(DOCUMENT), "exec"), names)
    programs = re.findall(r"```sql\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert programs
    try:
        for program in programs:
            with dbspark.Pipeline("program") as pipe:
                pipe.sql(program.replace("/data", str(tmp_path)))
                assert pipe.view("visitors").to_arrow().to_pylist() == [{"name": "Ada", "n": 1}]
    finally:
        spark.sql("DROP TABLE IF EXISTS raw_clicks")
