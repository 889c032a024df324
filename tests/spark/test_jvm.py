"""The JVM that dbspark starts logs to a file; its terminal is the program's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dbspark.errors import ConfigError
from dbspark.spark import jvm

ROOT = Path(__file__).parents[2]


def run_program(code: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program as a user would, with a cache folder of its own."""
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **variables}
    if "DBSPARK_LOG" not in variables:
        env.pop("DBSPARK_LOG", None)
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True, timeout=300
    )


def test_the_first_example_prints_what_readme_shows_and_nothing_else(tmp_path: Path) -> None:
    shown = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown is not None
    done = run_program(shown[1], tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.rstrip() for line in done.stdout.strip().splitlines()] == shown[2].strip().splitlines()
    assert done.stderr == ""
    (log,) = (tmp_path / "cache" / "dbspark" / "log").glob("spark-*.log")
    assert "log4j" in log.read_text()


def test_a_jvm_that_does_not_start_says_why(tmp_path: Path) -> None:
    code = "from dbspark.spark import get_session; get_session(config={'spark.driver.memory': 'lots'})"
    done = run_program(code, tmp_path)
    assert done.returncode == 1
    said = done.stderr[done.stderr.index("dbspark.errors.SparkStartError: ") :]
    (log,) = (tmp_path / "cache" / "dbspark" / "log").glob("spark-*.log")
    assert f"Spark could not be started. The end of its log, {log}, says:\n" in said
    assert "Invalid maximum heap size: -Xmxlots" in said


def test_old_logs_are_removed_and_foreign_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "dbspark" / "log"
    folder.mkdir(parents=True)
    (folder / "notes.log").touch()
    for day in range(1, jvm.LOGS_KEPT + 6):
        (folder / f"spark-202601{day:02}-000000-1-x.log").touch()
    path, file = jvm._new_log()
    file.close()
    assert path.parent == folder
    names = sorted(file.name for file in folder.iterdir())
    assert len(names) == jvm.LOGS_KEPT + 1
    assert "notes.log" in names
    assert path.name in names
    assert "spark-20260106-000000-1-x.log" not in names


def test_without_a_cache_folder_logs_are_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dbspark").touch()  # not a folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jvm, "_temporary_folder", lambda: tmp_path / "temporary")
    path, file = jvm._new_log()
    file.close()
    assert path.parent == tmp_path / "temporary"
    monkeypatch.setattr(jvm, "_temporary_folder", lambda: tmp_path / "dbspark" / "temporary")
    path, file = jvm._new_log()
    file.close()
    assert path == Path(os.devnull)


def test_the_variable_is_debug_or_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBSPARK_LOG", " DEBUG ")
    assert jvm.shows_everything()
    monkeypatch.setenv("DBSPARK_LOG", "")
    assert not jvm.shows_everything()
    monkeypatch.setenv("DBSPARK_LOG", "verbose")
    with pytest.raises(ConfigError, match="DBSPARK_LOG is 'verbose'"):
        jvm.shows_everything()
