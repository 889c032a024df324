"""The commands: what they refuse before Spark is started, and what they do with it."""

import io
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner, Result

from dbspark import Pipeline
from dbspark.cli import app
from dbspark.cli.output import show_arrow
from dbspark.cli.programs import read_program
from dbspark.cli.statements import Shell, prompt
from dbspark.cli.status import read_status
from dbspark.errors import ConfigError, DbsparkError, StoreError
from dbspark.sql.explain import in_bytes

EXAMPLES = Path(__file__).parents[2] / "examples"


def invoke(*args: object, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def pipeline(folder: Path, spec: str, files: dict[str, str]) -> Path:
    for name, text in {"spark-pipeline.yml": spec, **files}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


class TestHelp:
    @pytest.mark.parametrize("command", ["init", "run", "sql", "status", "explain", "demo"])
    def test_every_command_has_an_example(self, command: str) -> None:
        assert f"Example: dbspark {command}" in invoke(command, "--help").output


class TestPrograms:
    def test_init_makes_a_program_and_overwrites_nothing(self, tmp_path: Path) -> None:
        folder = tmp_path / "shop"
        assert "dbspark run" in invoke("init", folder).output
        assert read_program(folder).name == "shop"
        assert "dbspark run" in (folder / "README.md").read_text()
        with pytest.raises(ConfigError, match="choose another name"):
            invoke("init", folder)

    def test_files_of_a_directory_in_order(self, tmp_path: Path) -> None:
        (tmp_path / "2.sql").write_text("DROP VIEW b; -- ;\nDROP VIEW c")
        (tmp_path / "1.sql").write_text("DROP VIEW a;")
        assert [s for _, s in read_program(tmp_path).statements] == ["DROP VIEW a", "DROP VIEW b", "DROP VIEW c"]

    def test_a_declarative_pipeline(self, tmp_path: Path) -> None:
        spec = """
# a comment
name: "shop # 1"   # another
storage: state
catalog: local
schema: sales
configuration:
  spark.sql.shuffle.partitions: "2"
libraries:
  - glob:
      include: views/**
  - glob: # a file
      include: 'tables.sql'
"""
        files = {"views/deep/a.sql": "DROP VIEW a", "views/b.txt": "no", "tables.sql": "DROP VIEW t"}
        pipeline(tmp_path, spec, files)
        program = read_program(tmp_path)
        assert program.name == "shop # 1"
        assert program.location == str(tmp_path / "state")
        assert sorted(s for _, s in program.statements) == ["DROP VIEW a", "DROP VIEW t"]
        assert (program.catalog, program.database) == ("local", "sales")
        assert program.configuration == {"spark.sql.shuffle.partitions": "2"}
        assert read_program(tmp_path / "spark-pipeline.yml") == program

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("name: x\n", "no .sql files"),
            ("name: x\nstoreage: y\n", "line 2: no key `storeage`; there are name, storage, catalog"),
            ("configuration: [a]\n", "line 1: write the configuration as lines"),
            ("libraries: [a]\n", "line 1: write libraries as a list"),
            ("libraries:\n  - transformations\n", "line 2: `- transformations` is not understood"),
            ("libraries:\n  - file: a.sql\n", "line 2"),
            ("libraries:\n  - glob:\n      include: code/**\n", "Python are not there yet"),
        ],
    )
    def test_what_is_not_understood_is_named(self, tmp_path: Path, spec: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            read_program(pipeline(tmp_path, spec, {"code/a.py": ""}))

    def test_nothing_to_run(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no file or directory"):
            invoke("run", tmp_path / "nothing.sql")
        with pytest.raises(ConfigError, match=r"has no \.sql files"):
            invoke("run", tmp_path)

    @pytest.mark.parametrize(
        ("statement", "message"),
        [
            ("CREATE STREAMING TABLE s AS SELECT * FROM t", r"a\.sql: CREATE STREAMING TABLE s: .* reads no stream"),
            (
                "CREATE FLOW f AS AUTO CDC INTO t FROM STREAM s KEYS (a) SEQUENCE BY b",
                r"a\.sql: .*AUTO CDC is not there",
            ),
        ],
    )
    def test_what_flows_cannot_do_is_refused_first(self, tmp_path: Path, statement: str, message: str) -> None:
        file = tmp_path / "a.sql"
        file.write_text(f"CREATE TABLE t (a BIGINT);\n{statement};")
        with pytest.raises(DbsparkError, match=message):
            invoke("run", file, "--location", tmp_path / "state")
        assert not (tmp_path / "state").exists()

    def test_names_to_refresh_are_checked_first(self, tmp_path: Path) -> None:
        file = tmp_path / "a.sql"
        file.write_text("CREATE TABLE t (a INT); CREATE VIEW v AS SELECT * FROM t; CREATE STREAMING TABLE s (a INT)")
        with pytest.raises(ConfigError, match="--refresh v: not a streaming table of the program; there are s"):
            invoke("run", file, "--refresh", "s, v")
        with pytest.raises(ConfigError, match=r"--full-refresh t: not a streaming table or view .*; there are s, v"):
            invoke("run", file, "--full-refresh", "v,t")


class TestStatus:
    def test_without_spark_while_somebody_writes(self, tmp_path: Path) -> None:
        with Pipeline("shop", location=str(tmp_path)) as pipe:
            pipe.create_table("t", "a BIGINT, b STRING", primary_key=["a"])
            pipe.create_table("bag", "a BIGINT")
            for _ in range(3):
                with pipe.transaction() as tx:
                    tx.upsert("t", [(1, "x"), (2, "y")])
                    tx.insert("bag", [(7,), (7,)])
            output = invoke("status", tmp_path).output
            assert "Open for writing by process" in output
        assert "Pipeline shop at" in output
        assert "Tick 3" in output
        assert "t\ttable\t2\n" in output
        assert "bag\ttable\t6\n" in output
        status = read_status(str(tmp_path))
        assert status.writer is None
        assert status.size > 0

    def test_nothing_there(self, tmp_path: Path) -> None:
        for command in (["status"], ["sql"], ["explain"]):
            with pytest.raises(StoreError, match="check the location"):
                invoke(*command, tmp_path / "nothing", *(["v"] if command == ["explain"] else []))
        assert not (tmp_path / "nothing").exists()

    def test_sizes(self) -> None:
        assert [in_bytes(n) for n in (0, 1023, 1024, 5 << 20, 3 << 50)] == [
            "0 bytes", "1,023 bytes", "1.0 KiB", "5.0 MiB", "3,072.0 TiB",
        ]  # fmt: skip


class TestOutput:
    table = pa.table({"n": [1, 2, 3], "text": ["a\tb", None, "[red]c"]})

    def shown(self, terminal: bool, limit: int | None) -> str:
        out = io.StringIO()
        show_arrow(Console(file=out, force_terminal=terminal, color_system=None, width=60), self.table, limit)
        return out.getvalue()

    def test_lines_with_tabs_when_piped(self) -> None:
        assert self.shown(False, None) == "n\ttext\n1\ta\\tb\n2\tNULL\n3\t[red]c\n"

    def test_a_table_on_a_terminal(self) -> None:
        text = self.shown(True, 2)
        assert "NULL" in text
        assert "[red]c" not in text
        assert "the first 2 rows" in text


class TestWithSpark:
    def test_a_program_and_questions_to_it(self, spark: SparkSession, tmp_path: Path) -> None:
        folder, location = tmp_path / "shop", tmp_path / "state"
        invoke("init", folder)
        output = invoke("run", folder, "--location", location).output
        assert "region\torders\ttotal\nnorth\t2\t27.40\n" in output
        assert "revenue\t1\n" in output
        assert invoke("sql", location, "-e", "SELECT count(*) AS n FROM orders").output == "n\n2\n"
        invoke("sql", location, stdin="INSERT INTO orders VALUES (13, 2, 1.00); -- done")
        assert "revenue\tview\t2\n" in invoke("status", location).output
        assert "aggregate Sum: incremental" in invoke("explain", location, "revenue").output
        assert invoke("explain", location, "SELECT region FROM customers").output
        with pytest.raises(DbsparkError, match="no view 'nothing'"):
            invoke("explain", location, "nothing")
        with pytest.raises(DbsparkError, match="TABLE_OR_VIEW_NOT_FOUND"):
            invoke("sql", location, "-e", "SELECT * FROM nothing")
        assert spark.range(1).count() == 1, "a command stopped a session that is not its own"

    def test_reading_where_somebody_else_writes(self, spark: SparkSession, tmp_path: Path) -> None:
        with Pipeline("shop", location=str(tmp_path), spark=spark) as pipe:
            pipe.sql("CREATE TABLE t (a BIGINT); CREATE VIEW v AS SELECT sum(a) AS s FROM t; INSERT INTO t VALUES (4)")
            result = invoke("sql", tmp_path, "-e", "SELECT * FROM v")
            assert result.stdout == "s\n4\n"
            assert "Reading only, each query at the newest tick:" in result.stderr
            assert "is open for writing by" in result.stderr
            with pytest.raises(StoreError, match="is open for reading, and a transaction needs one that writes"):
                invoke("sql", tmp_path, "-e", "INSERT INTO t VALUES (5)")
            text = invoke("explain", tmp_path, "v").stdout
            assert "Kept of the view with its history: 3 rows, " in text
            assert "#1" in text
            out = io.StringIO()
            with Pipeline("shop", location=str(tmp_path), spark=spark, config={"read_only": True}) as reader:
                shell = Shell(reader, Console(file=out, width=200), limit=10)
                pipe.sql("INSERT INTO t VALUES (5)")
                shell.run("SELECT * FROM v")
            assert out.getvalue() == "s\n9\n"

    def test_a_location_stays_on_its_shards(self, spark: SparkSession, tmp_path: Path) -> None:
        file, location = tmp_path / "a.sql", tmp_path / "state"
        file.write_text("CREATE TABLE t (a BIGINT); INSERT INTO t VALUES (1), (2), (2)")
        invoke("run", file, "--location", location, "--shards", 2)
        output = invoke("status", location).output
        assert "on 2 shards" in output
        assert "t\ttable\t3\n" in output
        invoke("sql", location, "-e", "INSERT INTO t VALUES (3)")
        file.write_text("SELECT sum(a) AS s FROM t")
        assert "s\n8\n" in invoke("run", file, "--location", location).output
        assert read_status(str(location)).shards == 2

    def test_definitions_may_be_run_again(self, spark: SparkSession, tmp_path: Path) -> None:
        file, location = tmp_path / "a.sql", tmp_path / "state"
        program = "CREATE TABLE t (a BIGINT PRIMARY KEY); CREATE VIEW v AS SELECT a FROM t;"
        for script in (program, program.replace(" AS SELECT", "\nAS  SELECT")):
            file.write_text(script)
            output = invoke("run", file, "--location", location).output
        assert output.count("there already") == 2
        for other in ("CREATE TABLE t (a INT)", "CREATE VIEW v AS SELECT a + 1 AS a FROM t", program + program):
            file.write_text(other)
            with pytest.raises(DbsparkError, match=r"a\.sql: there is a table or view '[tv]' already"):
                invoke("run", file, "--location", location)

    def test_a_declarative_pipeline_with_streams(self, spark: SparkSession, tmp_path: Path) -> None:
        folder = tmp_path / "program"
        (tmp_path / "in").mkdir()
        source = f"CREATE TABLE IF NOT EXISTS cli_source (a BIGINT) USING json LOCATION '{tmp_path / 'in'}'"
        files = {
            "1.sql": "CREATE FLOW more AS INSERT INTO log BY NAME SELECT 10 * a AS a FROM STREAM cli_source",
            "2.sql": "CREATE MATERIALIZED VIEW total AS SELECT sum(a) AS s FROM log",
            "3.sql": "CREATE STREAMING TABLE log AS SELECT a FROM STREAM cli_source",
            "4.sql": "CREATE STREAMING TABLE other AS SELECT a FROM STREAM cli_source; " + source,
        }
        spec = "name: log\nstorage: ../state\nlibraries:\n  - glob:\n      include: '*.sql'\n"
        pipeline(folder, spec, files)

        def total(*options: str) -> tuple[str, int]:
            output = invoke("run", folder, *options).output
            with Pipeline("log", location=str(tmp_path / "state"), config={"read_only": True}) as reader:
                counted = len(reader.table("other").to_arrow())
                return output, 1000 * counted + reader.view("total").to_arrow()["s"].to_pylist()[0]

        try:
            (tmp_path / "in" / "1.json").write_text('{"a": 1}\n')
            assert total()[1] == 1011
            (tmp_path / "in" / "2.json").write_text('{"a": 2}\n')
            assert total("--refresh", "log")[1] == 1033
            assert total()[1] == 2033
            files["2.sql"] = "CREATE MATERIALIZED VIEW total AS SELECT max(a) AS s FROM log"
            pipeline(folder, spec, files)
            with pytest.raises(DbsparkError, match="there is a table or view 'total' already"):
                total()
            output, found = total("--full-refresh", "total")
            assert "Made again: total" in output
            assert found == 2020
            (tmp_path / "in" / "1.json").unlink()
            files["1.sql"] = files["1.sql"].replace("10 *", "100 *")
            pipeline(folder, spec, files)
            output, found = total("--full-refresh", "log")
            assert "Made again: log, total" in output
            assert found == 2200
            assert total("--full-refresh-all")[1] == 1200
            with Pipeline("log", location=str(tmp_path / "state"), spark=spark) as pipe:
                pipe.create_view("mine", "SELECT count(*) AS n FROM log")
            with pytest.raises(ConfigError, match=r"a full refresh would drop mine, which .* is not in the program"):
                total("--full-refresh", "log")
        finally:
            spark.sql("DROP TABLE IF EXISTS cli_source")

    def test_the_examples(self, spark: SparkSession) -> None:
        output = invoke("run", EXAMPLES / "shop.sql").output
        assert "south\t3\t196.00" in output
        assert "south\t2\t49.00" in output
        assert "customer_id\tpeople\n1\t3\n2\t1\n" in output
        assert "regions\t0\n" in invoke("run", EXAMPLES / "declarative").output

    def test_a_definition_that_waits_for_ever(self, spark: SparkSession, tmp_path: Path) -> None:
        pipeline(
            tmp_path,
            "libraries:\n  - glob:\n      include: ./*.sql\n",
            {"a.sql": "CREATE VIEW a AS SELECT * FROM b", "b.sql": "CREATE VIEW b AS SELECT * FROM nothing"},
        )
        with pytest.raises(DbsparkError, match=r"b\.sql: .*nothing"):
            invoke("run", tmp_path)

    def test_the_prompt_goes_on_after_errors(self, spark: SparkSession) -> None:
        lines = iter([
            "", "CREATE TABLE t (a BIGINT);", "INSERT INTO t", "VALUES (1), (2);", "SELECT * FROM nothing;",
            "MERGE INTO t;", "CREATE STREAMING TABLE s;", "CREATE STREAMING TABLE r (a BIGINT);",
            "EXPLAIN SELECT sum(a) AS s FROM t;", "SHOW TABLES;",
            "SELECT sum(a) AS s FROM t;", "quit", "never read",
        ])  # fmt: skip
        out = io.StringIO()
        with Pipeline("shop", spark=spark) as pipe:
            prompt(Shell(pipe, Console(file=out, width=200), limit=10), lambda _: next(lines))
        text = out.getvalue()
        assert next(lines) == "never read"
        for said in (
            "TABLE_OR_VIEW_NOT_FOUND",
            "not a statement",
            "give its columns",
            "t\ttable\nr\ttable\n",
            "Sum: incremental",
        ):
            assert said in text
        assert text.endswith("s\n3\n")
