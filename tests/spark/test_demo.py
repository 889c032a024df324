"""The demo and the command line: the generated log makes sense, and a wrong Z-set is noticed."""

import io
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner

import dbspark
from dbspark.cli import app, main
from dbspark.cli import demo as demo_module
from dbspark.cli.demo import Workload, change_log, differences
from dbspark.errors import JavaNotFoundError

SMALL = Workload(rows=500, ticks=6, changes=200)


def test_the_log_inserts_updates_and_deletes_what_is_there(spark: SparkSession) -> None:
    table: Counter[tuple[object, ...]] = Counter()
    seen: Counter[str] = Counter()
    rows = change_log(spark, SMALL).orderBy("tick").collect()
    for tick in range(SMALL.ticks + 1):
        removed, added = set(), set()
        for row in rows:
            if row.tick == tick:
                table[tuple(row[1:-1])] += row.w
                (added if row.w > 0 else removed).add(row.order_id)
        assert set(table.values()) <= {0, 1}, "a row that is not there was deleted, or one that is was inserted"
        present = [row[0] for row, weight in table.items() if weight]
        assert len(present) == len(set(present)), "two rows of one order"
        seen.update(inserts=len(added - removed), updates=len(added & removed), deletes=len(removed - added))
    assert min(seen.values()) > 20


def test_the_demo_agrees_with_spark_and_is_plain_when_piped(spark: SparkSession) -> None:
    out = io.StringIO()
    assert demo_module.run(SMALL, Console(file=out, width=120))
    assert "Checked: the Z-set is the table that Spark computes" in out.getvalue()
    assert "\x1b" not in out.getvalue()
    assert spark.range(1).count() == 1, "the demo stopped a session that is not its own"


def test_the_demo_notices_a_change_that_was_not_applied(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    apply = demo_module._apply
    calls: list[pa.Table] = []

    def forgetful(state: dbspark.ZSet, change: pa.Table) -> tuple[dbspark.ZSet, int]:
        calls.append(change)
        return (state, state.count) if len(calls) == 3 else apply(state, change)

    monkeypatch.setattr(demo_module, "_apply", forgetful)
    out = io.StringIO()
    assert not demo_module.run(SMALL, Console(file=out, width=120))
    assert "MISMATCH: only Spark has" in out.getvalue()


def test_differences_sees_rows_weights_and_repetition() -> None:
    expected = pa.table({"a": [1, 2, 3], "w": [1, 1, 2]})
    assert differences(pa.table({"w": [2, 1, 1], "a": [3, 2, 1]}), expected) == []
    assert differences(expected.slice(1), expected)
    assert differences(pa.concat_tables([expected, expected.slice(2)]), expected)
    assert any("(3, 1)" in line for line in differences(pa.table({"a": [1, 2, 3], "w": [1, 1, 1]}), expected))


class TestCommandLine:
    def test_version(self) -> None:
        result = CliRunner().invoke(app, ["--version"])
        assert (result.exit_code, result.output) == (0, f"dbspark {dbspark.__version__}\n")

    @pytest.mark.parametrize("command", [[], ["demo"]])
    def test_help_has_an_example(self, command: list[str]) -> None:
        result = CliRunner().invoke(app, [*command, "--help"])
        assert result.exit_code == 0
        assert "Example: dbspark demo" in result.output

    def test_a_bad_option_is_a_usage_error(self) -> None:
        assert CliRunner().invoke(app, ["demo", "--ticks", "0"]).exit_code == 2

    def test_a_mismatch_is_an_exit_code(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(demo_module, "run", lambda *args, **kwargs: False)
        assert CliRunner().invoke(app, ["demo"]).exit_code == 1

    def test_our_errors_are_messages_and_not_tracebacks(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail(*args: object, **kwargs: object) -> bool:
            raise JavaNotFoundError("No Java [local] was found.")

        monkeypatch.setattr(demo_module, "run", fail)
        monkeypatch.setattr("sys.argv", ["dbspark", "demo"])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 1
        assert capsys.readouterr().err == "JavaNotFoundError: No Java [local] was found.\n"
