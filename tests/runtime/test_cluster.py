"""A pipeline on a real cluster: tasks fail, hang and are run again, a worker dies, and every tick happens once."""

import json
import subprocess
import sys

import pytest

import dbspark
from tests.runtime.cluster import ROOT, check, cluster, environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="every worker has a loopback address of its own")


def test_a_worker_is_killed_during_a_tick(spark, tmp_path):
    with cluster(tmp_path) as (url, workers):
        done = subprocess.run(
            [sys.executable, "-m", "tests.runtime.cluster", url, str(tmp_path)],
            cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-5000:]
        assert sorted(w.poll() is None for w in workers) == [False, True], "one of them has been killed"
    held = json.loads((tmp_path / "held.json").read_text())
    with dbspark.Pipeline("shop", location=str(tmp_path / "state"), spark=spark) as pipe:
        assert pipe.tick == held.pop("tick") == 5
        check(spark, pipe, held)
