"""Crash tests for as long as wished: `make soak SECONDS=600 SEED=1`.

Each round does one of these, with its own seed: a process that commits to a store without end is killed; one that
applies transactions to a pipeline is; a call to the file system fails somewhere during a commit. What is there
afterwards is some prefix of the ticks, with every one whose commit had returned, and it goes on from there. The first
round that finds something else ends the soak: it prints its seed, and its folder is left.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dbspark import Pipeline
from dbspark.storage import store as store_module
from dbspark.storage import writing
from tests.storage.model import FaultyFiles
from tests.storage.test_faults import check, run

KEYS = 60
COMMITTING = """
import sys
from dbspark.storage import Keep, Store, writing
from tests.storage.model import small
from tests.storage.test_faults import advance, fresh

writing.MAX_INLINE_BATCH_BYTES = int(sys.argv[2])
store = Store.open(sys.argv[1], keep=Keep(2))
loaded = store.load()
states = small(loaded.states) if loaded.tick else fresh()
tick = loaded.tick
print("ready", flush=True)
while True:
    tick += 1
    states = advance(store, states, tick)
    print(tick, flush=True)
"""
APPLYING = """
import sys
from dbspark.storage import writing
from tests.pipeline.soak import applied, opened

writing.MAX_INLINE_BATCH_BYTES = int(sys.argv[2])
pipe = opened(sys.argv[1])
print("ready", flush=True)
while True:
    print(applied(pipe), flush=True)
"""


def killed(child: str, where: Path, pause: float, inline: int) -> int:
    """Run a process that prints the ticks that it has committed, kill it, and give the last of them."""
    process = subprocess.Popen(
        [sys.executable, "-c", child, str(where), str(inline)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        told = process.stdout.read().split("\n")[:-1]  # what follows the last line break may be half a number
    finally:
        process.kill()
        process.wait()
    return max([0, *(int(line) for line in told)])


# ---------------------------------------------------------------------- pipelines


def opened(where: Any) -> Pipeline:
    """A pipeline with a table, and a short history, so that old ticks are compacted."""
    pipe = Pipeline("soak", location=str(where), config={"history": 3})
    if "t" not in pipe.tables:
        pipe.create_table("t", "k BIGINT NOT NULL, v BIGINT", primary_key=["k"])
    return pipe


def operations(tick: int) -> tuple[list[tuple[int, int]], list[int]]:
    """What a tick does: rows that are put, and keys that go."""
    chance = random.Random(tick)
    return [(k, tick) for k in chance.sample(range(KEYS), 8)], chance.sample(range(KEYS), 3)


def applied(pipe: Pipeline) -> int:
    """One more transaction."""
    put, gone = operations(pipe.tick + 1)
    with pipe.transaction() as tx:
        tx.delete_keys("t", [(k,) for k in gone])
        tx.upsert("t", put)
    assert tx.tick is not None
    return tx.tick


def expected(tick: int) -> dict[int, int]:
    """What there is after so many ticks."""
    held: dict[int, int] = {}
    for t in range(1, tick + 1):
        put, gone = operations(t)
        for k in gone:
            held.pop(k, None)
        held.update(put)
    return held


def check_pipeline(where: Path, at_least: int) -> int:
    """The location holds some prefix, now and one tick earlier, and goes on."""
    with opened(where) as pipe:
        found = pipe.tick
        assert at_least <= found <= at_least + 1
        for tick in {found, max(found - 1, 0)}:
            table = pipe.table("t").as_of(tick).to_arrow()
            rows = dict(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True))
            assert rows == expected(tick), f"tick {tick}"
        applied(pipe)
        return pipe.tick


# ---------------------------------------------------------------------- rounds


def kill_committing(where: Path, chance: random.Random, times: int = 3) -> None:
    """Processes that commit to a store, one after the other."""
    last = 0
    for _ in range(times):
        returned = killed(COMMITTING, where, chance.uniform(0, 0.15), chance.choice([0, 4 << 20]))
        last = check(where, max(last, returned), max(last, returned) + 1) + 2


def kill_applying(where: Path, chance: random.Random, times: int = 3) -> None:
    """Processes that apply transactions to a pipeline, one after the other."""
    last = 0
    for _ in range(times):
        returned = killed(APPLYING, where, chance.uniform(0, 0.3), chance.choice([0, 4 << 20]))
        last = check_pipeline(where, max(last, returned))


def fail_anywhere(where: Path, chance: random.Random) -> None:
    """A call to the file system that goes wrong, in every way in turn."""
    with _form(chance):
        for kind in FaultyFiles.KINDS:
            folder = where / kind.replace(" ", "-")
            folder.mkdir()
            ended = run(folder, chance.randrange(1, 9), chance.randrange(12), kind, seed=chance.randrange(1 << 30))
            if ended is not None:
                check(folder, *ended)


@contextlib.contextmanager
def _form(chance: random.Random) -> Iterator[None]:
    """Batches in the file of the tick, in files of their own, or copied from tick to tick; no waiting for the disk."""
    places: list[tuple[Any, str, Any]] = [(os, "fsync", lambda _: None), (store_module, "RETIRE_EVERY", 2)]
    places += chance.choice([[], [(writing, "MAX_INLINE_BATCH_BYTES", 0)], [(writing, "MAX_TICK_FILES", 1)]])
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    for module, name, value in places:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    until, done = time.monotonic() + given.seconds, 0
    while time.monotonic() < until:
        seed = given.seed + done
        what = (fail_anywhere, kill_committing, kill_applying)[seed % 3]
        where = Path(tempfile.mkdtemp(prefix="dbspark-soak-"))
        try:
            what(where, random.Random(seed))
        except BaseException:
            told = f"{what.__name__} with --seed {seed}; its folder is {where}"
            sys.stderr.write(f"After {done} rounds: {told}\n")
            raise
        shutil.rmtree(where)
        done += 1
    sys.stdout.write(f"{done} rounds from seed {given.seed} on, and nothing was lost\n")


if __name__ == "__main__":
    main()
