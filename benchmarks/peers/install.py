"""`python -m benchmarks.peers.install [environment …]`: make environments of peers in `.peers`, all if none is named.

Each has the packages of `requirements-<environment>.txt`, exact versions, from the package registry that pip is set up
with. The file `.installed` is written last and holds what was installed, so that nothing is done twice and what was
interrupted is taken up again. A peer that cannot be installed here is named with the reason, and the others go on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.peers.registry import ENVIRONMENTS, STAMP, SYSTEMS

NEEDS: Final[dict[str, tuple[int, int]]] = {"pydbsp": (3, 12)}
"""The oldest Python that an environment works with, where that is newer than ours."""


def main(names: Sequence[str]) -> int:
    known = sorted({system.environment for system in SYSTEMS.values() if system.environment})
    for name in names or known:
        if name not in known:
            print(f"{name} is not one of {', '.join(known)}", file=sys.stderr)
            return 2
        problem = install(name)
        print(f"{name}: {problem}" if problem else f"{name}: installed", flush=True)
    return 0


def install(name: str) -> str:
    """Make one environment; why it cannot be made, if it cannot."""
    home, wanted = ENVIRONMENTS / name, Path(__file__).with_name(f"requirements-{name}.txt")
    stamp = home / STAMP
    if stamp.exists() and stamp.read_text() == wanted.read_text():
        return _more(name)
    python = _python(NEEDS.get(name, (3, 11)))
    if python is None:
        least = ".".join(map(str, NEEDS[name]))
        return f"skipped, it needs Python {least} or newer and there is none here"
    stamp.unlink(missing_ok=True)
    for command in (
        [python, "-m", "venv", "--clear", str(home)],
        [str(home / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", str(wanted)],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            last = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip has failed"]
            return f"skipped: {last[-1]}"
    stamp.write_text(wanted.read_text())
    return _more(name)


def _python(least: tuple[int, int]) -> str | None:
    """A Python that is new enough: ours, one on the path, or one that pyenv has but has not put there."""
    if sys.version_info[:2] >= least:
        return sys.executable
    names = [f"python3.{minor}" for minor in range(least[1], 20)]
    kept = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [shutil.which(name) for name in names] + [str(p) for n in names for p in sorted(kept.glob(f"*/bin/{n}"))]
    return next((python for python in found if python and _runs(python)), None)


def _runs(python: str) -> bool:
    """Whether it is a Python, and not a name for one that is not installed."""
    return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


def _more(name: str) -> str:
    """What has to be made beside the packages."""
    if name != "pyflink":
        return ""
    from benchmarks.peers.systems.flink import compile_connector

    return compile_connector()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
