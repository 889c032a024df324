"""Workers are killed and stopped at random moments while ticks run: `python -m tests.runtime.kill_workers SEED KILLS`.

After each hit the tables and views are compared with a dict. Prints how many hits there were, how many workers were
replaced, and the longest tick. It takes a second or two for each hit.
"""

import os
import random
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress

import pytest

from dbspark.runtime import worker_pool
from tests.runtime.workers import shop

SIGNALS = signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP


def soak(seed, hits):
    chance = random.Random(seed)
    rows, stopped, worst = {}, [], 0.0
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(worker_pool, "SILENT_SECONDS", 1.5)
    with tempfile.TemporaryDirectory() as folder, shop(monkeypatch, 3, f"{folder}/state") as pipe:
        for _ in range(hits):
            pid = chance.choice(pipe.transport.status()["workers"] or [{"pid": 0}])["pid"]
            hit = chance.choice(SIGNALS)
            thread = threading.Thread(target=strike, args=(pid, hit, chance.uniform(0, 0.03)))
            thread.start()
            if hit == signal.SIGSTOP:
                stopped.append(pid)
            for _ in range(chance.randrange(1, 5)):
                count = chance.choice([1, 20, 400])
                upserts = {chance.randrange(6000): chance.randrange(60) for _ in range(count)}
                begun = time.perf_counter()
                pipe.apply("upsert", list(upserts.items()))
                worst = max(worst, time.perf_counter() - begun)
                rows |= upserts
            thread.join()
            assert pipe.rows("orders") == sorted(rows.items())
            assert pipe.rows() == sorted({(customer,) for customer in rows.values()})
            if stopped and chance.random() < 0.5:
                strike(stopped.pop(), signal.SIGCONT)
        restarts = pipe.transport.status()["restarts"]
    for pid in stopped:
        strike(pid, signal.SIGCONT)
    monkeypatch.undo()
    print(f"{hits} hits, {restarts} workers replaced, {pipe.tick} ticks, the longest took {worst:.1f} s")  # noqa: T201


def strike(pid, hit, delay=0.0):
    time.sleep(delay)
    with suppress(ProcessLookupError):
        if pid:
            os.kill(pid, hit)


if __name__ == "__main__":
    soak(int(sys.argv[1]), int(sys.argv[2]))
