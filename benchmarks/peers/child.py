"""`python -m benchmarks.peers.child job.json`: some cases with one system, in the Python of that system's environment.

The job names the system, the folders of the cases, the budget of seconds for the ticks of a case, and where the outcome
goes: `<i>.json` and `<i>.arrow` for the i-th case, `versions.json` for the packages. A system that cannot express a
view says so in `refused`; one that fails says how in `failed`, and the next case is tried. With `turns` it waits
for its turn before every stretch of ticks (`benchmarks.peers.turns`).
"""

from __future__ import annotations

import json
import platform
import sys
import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.peers import turns
from benchmarks.peers.case import Case, write_arrow
from benchmarks.peers.contender import NotExpressible
from benchmarks.peers.registry import SYSTEMS


def main(job: dict[str, Any]) -> None:
    out = Path(job["out"])
    kind = SYSTEMS[job["system"]].load()
    contender = kind(out / "scratch")
    if job.get("turns"):
        contender.pause = turns.pause
    contender.scratch.mkdir(parents=True, exist_ok=True)
    versions = {"python": platform.python_version(), **kind.versions()}
    (out / "versions.json").write_text(json.dumps(versions))
    contender.start()
    try:
        for i, folder in enumerate(job["cases"]):
            case = Case.read(Path(folder))
            try:
                outcome = contender.run(case, job["budget"])
            except NotExpressible as why:
                content: dict[str, Any] = {"refused": str(why)}
            except Exception as error:
                traceback.print_exc()
                content = {"failed": f"{type(error).__name__}: {error}"[:500]}
            else:
                content = outcome.as_json()
                write_arrow(out / f"{i}.arrow", pa.concat_tables(outcome.views))
            (out / f"{i}.json").write_text(json.dumps(content))
    finally:
        contender.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
