"""`python -m benchmarks.zset profile WORKLOAD [BACKEND]`: where a workload spends its time.

With cProfile by default: functions by their own time. With `--spy FILE`, py-spy samples the process, native frames
included, and writes a flame graph, so that the inside of kernels and of Arrow is seen too.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import shutil
import subprocess
import sys
import time
from dataclasses import replace

from benchmarks.harness import no_gc
from benchmarks.zset.workload import JUDGED, Workload
from dbspark.zset import BACKENDS, current


def _find(name: str) -> Workload:
    from benchmarks.zset import gates

    known = gates.workloads()
    for w in known:
        if w.name == name:
            return w
    close = [w for w in known if name in w.name]
    if len(close) == 1:
        return close[0]
    raise SystemExit(f"{'several' if close else 'no'} workloads {name!r}: {', '.join(w.name for w in close or known)}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zset profile", description=__doc__)
    parser.add_argument("workload")
    parser.add_argument("backend", nargs="?", default=JUDGED, choices=BACKENDS)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--top", type=int, default=30)
    parser.add_argument("--sort", default="tottime", choices=("tottime", "cumtime", "ncalls"))
    parser.add_argument("--spy", metavar="FILE", help="record with py-spy to this SVG file")
    given = parser.parse_args(arguments)
    workload = _find(given.workload)
    contender = workload.contender(replace(current(), backend=given.backend), given.backend)
    profile = cProfile.Profile()
    rounds, seconds = 0, 0.0
    spy = None
    with no_gc():
        for _ in range(2):
            contender.run(contender.setup())
        if given.spy:
            spy = _spy(given.spy, given.seconds)
        while seconds < given.seconds or rounds == 0:
            state = contender.setup()
            begin = time.perf_counter()
            if spy is None:
                profile.enable()
            contender.run(state)
            profile.disable()
            seconds += time.perf_counter() - begin
            rounds += 1
    per_op = seconds / rounds / workload.ops * 1e6
    print(f"{workload.name}, {given.backend}: {rounds} rounds of {workload.ops} operations, {per_op:.2f} µs each")
    if spy is None:
        pstats.Stats(profile, stream=sys.stdout).strip_dirs().sort_stats(given.sort).print_stats(given.top)
    else:
        spy.wait()
        print(f"written to {given.spy}")
    return 0


def _spy(path: str, seconds: float) -> subprocess.Popen[bytes]:
    program = shutil.which("py-spy") or os.path.join(os.path.dirname(sys.executable), "py-spy")
    if not os.path.exists(program):
        raise SystemExit("py-spy is not installed; leave --spy out, or: pip install py-spy")
    options = ["--native", "--rate", "500", "--duration", str(max(1, int(seconds))), "--output", path]
    return subprocess.Popen([program, "record", *options, "--pid", str(os.getpid())])
