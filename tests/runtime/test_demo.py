"""The demo and the command line: the generated logs make sense, and a wrong view is noticed."""

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
from dbspark.cli.demo import TABLES, VIEWS, Workload, differences, logs
from dbspark.errors import JavaNotFoundError

SMALL = Workload(rows=500, ticks=2, changes=300)


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark computes the views at the end only."""
    monkeypatch.setattr(demo_module, "MAX_RECOMPUTATIONS", 1)


def test_the_logs_insert_update_and_delete_what_is_there(spark: SparkSession) -> None:
    for name, log in logs(spark, SMALL).items():
        present: set[int] = set()
        seen: Counter[str] = Counter()
        rows = log.orderBy("tick").collect()
        for row in rows:
            key = row[TABLES[name].key]
            assert (key in present) == (row.kind != "insert"), "inserted twice, or changed and not there"
            (present.discard if row.kind == "delete" else present.add)(key)
            seen[row.kind] += row.tick > 0
        assert len({(row.tick, row[TABLES[name].key]) for row in rows}) == len(rows), "a key twice in a tick"
        assert seen["update"] >= SMALL.ticks
        assert name != "orders" or min(seen.values()) > 20


@pytest.mark.usefixtures("once")
def test_the_demo_agrees_with_spark_and_is_plain_when_piped(spark: SparkSession) -> None:
    out = io.StringIO()
    assert demo_module.run_demo(SMALL, Console(file=out, width=120))
    assert "Checked: every view is what Spark computes" in out.getvalue()
    assert all(f"View {name} is filled" in out.getvalue() for name in VIEWS)
    assert "\x1b" not in out.getvalue()
    assert spark.range(1).count() == 1, "the demo stopped a session that is not its own"
    left = {row.tableName for row in spark.sql("SHOW TABLES").collect()}
    assert not left & {*TABLES, *VIEWS}, "the demo left names behind"


@pytest.mark.usefixtures("once")
def test_the_demo_notices_a_change_that_was_not_applied(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver = demo_module._Shop.deliver

    def forgetful(shop: demo_module._Shop, tick: int) -> None:
        if tick == 2:
            for file in (shop.folder / "written" / "orders").glob(f"tick={tick}/*.parquet"):
                file.unlink()
        deliver(shop, tick)

    monkeypatch.setattr(demo_module._Shop, "deliver", forgetful)
    out = io.StringIO()
    assert not demo_module.run_demo(SMALL, Console(file=out, width=120), shards=None)
    assert "MISMATCH in spending: only Spark has" in out.getvalue()


def test_spark_is_measured_a_few_times_and_at_the_end() -> None:
    assert Workload(ticks=20).measured == {10, 20}
    assert Workload(ticks=2).measured == {1, 2}
    assert Workload(ticks=1).measured == {1}


def test_differences_sees_rows_and_repetition() -> None:
    expected = pa.table({"a": [1, 2, 3, 3], "b": ["x", None, "y", "y"]})
    assert differences(expected.take([3, 1, 0, 2]).select(["b", "a"]), expected) == []
    assert differences(expected.slice(1), expected)
    assert differences(expected.slice(0, 3), expected)
    assert differences(expected.take([0, 1, 2, 3, 3]), expected)
    assert any("(4, 'y')" in line for line in differences(expected, pa.table({"a": [1, 2, 3, 4], "b": expected["b"]})))


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
        monkeypatch.setattr(demo_module, "run_demo", lambda *args, **kwargs: False)
        assert CliRunner().invoke(app, ["demo"]).exit_code == 1

    def test_our_errors_are_messages_and_not_tracebacks(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail(*args: object, **kwargs: object) -> bool:
            raise JavaNotFoundError("No Java [local] was found.")

        monkeypatch.setattr(demo_module, "run_demo", fail)
        monkeypatch.setattr("sys.argv", ["dbspark", "demo"])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 1
        assert capsys.readouterr().err == "JavaNotFoundError: No Java [local] was found.\n"
