"""A directory with a `bin/java` that Spark can use as JAVA_HOME, in front of a Java that it could not.

The launcher is a POSIX shell script that drops the one option a jlinked runtime refuses and replaces itself
by the real `java`, so signals, streams and the exit code are the JVM's own.

Invariant: a launcher is whole from the moment it has its name. It is written aside and renamed, and its
directory is named by a hash of its content, which holds the path of the real Java. So any number of processes
may make the same launcher at once, an upgraded or moved Java gets another one, and none is ever changed.
It lives in the user's cache directory. Where that cannot be written to, or programs there cannot be run, it
lives in a private temporary directory that goes away with the process; a well-known name in a shared one
would let another user plant a program there.
"""

import atexit
import hashlib
import os
import shlex
import shutil
import tempfile
from functools import cache
from pathlib import Path

__all__ = ["VECTOR_MODULE_OPTION", "cache_folder", "launcher_home"]

VECTOR_MODULE_OPTION = "--add-modules=jdk.incubator.vector"
"""Spark's launcher passes this always and in this spelling; only mllib's linear algebra profits from it."""


def launcher_home(java: Path, *, drop_vector_module: bool) -> Path:
    """A directory whose `bin/java` runs `java`. Raises OSError if it can be written nowhere."""
    script = _script(java, drop_vector_module)
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    try:
        return _install(cache_folder() / "java" / name, script)
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory to expand ~ to
        return _install(_process_dir() / name, script)


def _script(java: Path, drop_vector_module: bool) -> str:
    lines = ["#!/bin/sh", "# Written by dbspark: see dbspark.spark.launcher."]
    if drop_vector_module:
        lines += [
            "for arg do",
            "  shift",
            f'  [ "$arg" = {shlex.quote(VECTOR_MODULE_OPTION)} ] || set -- "$@" "$arg"',
            "done",
        ]
    lines.append(f'exec {shlex.quote(str(java))} "$@"')
    return "\n".join(lines) + "\n"


def _install(home: Path, script: str) -> Path:
    target = home / "bin" / "java"
    if not _usable(target, script):
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(prefix=".java-", dir=target.parent)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(script)
            os.chmod(aside, 0o755)
            os.replace(aside, target)
        except BaseException:
            os.unlink(aside)
            raise
        if not _usable(target, script):  # a file system mounted without the right to execute
            raise PermissionError(f"{target} cannot be executed")
    return home


def _usable(target: Path, script: str) -> bool:
    try:
        return target.read_text() == script and os.access(target, os.X_OK)
    except (OSError, UnicodeDecodeError):
        return False


def cache_folder() -> Path:
    """Where dbspark keeps what can be made again, for this user. Raises RuntimeError if there is no home folder."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    return (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "dbspark"


@cache
def _process_dir() -> Path:
    directory = tempfile.mkdtemp(prefix="dbspark-java-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)
