"""A sweep of the knobs: which configuration of the adaptive backend is best for which workload.

Around the defaults, one knob at a time, all values racing each other; then the best value of every knob that gained
something, all together, against the defaults. What wins is recorded. A gain within the noise is no gain: the defaults
are then the best configuration.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from benchmarks.harness import QUICK, race
from benchmarks.report import Target, save, show
from benchmarks.zset import gates
from benchmarks.zset.workload import JUDGED, Workload, matching
from dbspark.zset import current

GRID: Final[dict[str, tuple[float, ...]]] = (
    {"smallset_n": (64, 2048), "flush_size": (8192,), "level_fanout": (8,)}
    if QUICK
    else {
        "smallset_n": (0, 128, 2048),
        "flush_size": (4096, 16384, 262144),
        "flush_time_ms": (1, 5, 100),
        "level_fanout": (2, 8, 16),
        "compact_budget_ms": (0, 0.5, 8),
    }
)
GAIN: Final = 0.97
"""A value is better than the default if it takes less than this share of its time."""
CHOSEN: Final = (
    r"^points (random|hot-spot) (2|20)k|^points \+ lookups|^deltas (insert|cancel|skew) (1|100|1000) on (20k|100k)$"
    r"|^(scan|map_keys) after .* on (20k|100k)$|^union_many|^join .* arranged|^pipeline fresh (100k/100|300k/1000)$"
)
"""Workloads of the sweep, unless others are asked for: one or two of each kind."""


def sweep(workload: Workload, **options: Any) -> dict[str, Any]:
    """The times of all configurations on one workload, and the best of them."""
    default = replace(current(), backend=JUDGED)
    contenders = [workload.contender(default, "default")]
    knobs: dict[str, tuple[str, Any]] = {}
    for knob, values in GRID.items():
        for value in values:
            if value != getattr(default, knob):
                name = f"{knob}={value}"
                knobs[name] = (knob, value)
                contenders.append(workload.contender(replace(default, **{knob: value}), name))
    timings = race(contenders, judged="default", **options)
    micros = {name: workload.time(t) for name, t in timings.items()}
    best: dict[str, Any] = {}
    for knob in GRID:
        name = min((n for n in knobs if knobs[n][0] == knob), key=micros.__getitem__)
        if micros[name] < micros["default"] * GAIN:
            best[knob] = knobs[name][1]
    gain = 1.0
    if best:
        final = race(
            [workload.contender(default, "default"), workload.contender(replace(default, **best), "best")],
            judged="default",
            **options,
        )
        gain = workload.time(final["best"]) / workload.time(final["default"])
        if gain >= GAIN:
            best, gain = {}, 1.0
    return {"default": micros["default"], "best": best, "gain": gain, "micros": micros}


def run(only: str | None = None, **options: Any) -> list[Target]:
    """The suite; it has no targets."""
    chosen = matching(gates.workloads(), only or CHOSEN)
    options = {"budget": 0.1 if QUICK else 3.0, "rounds": 2 if QUICK else 4} | options
    if QUICK and only is None:
        chosen = chosen[::6]
    results, lines = {}, []
    for i, workload in enumerate(chosen):
        gates.progress(f"{i + 1}/{len(chosen)} {workload.name}")
        try:
            found = sweep(workload, **options)
        except Exception as error:
            results[workload.name] = {"error": f"{type(error).__name__}: {error}"}
            lines.append((workload.name, None, None, None, f"ERROR {type(error).__name__}: {error}"[:100]))
            continue
        results[workload.name] = found
        worst = max(found["micros"], key=found["micros"].__getitem__)
        text = ", ".join(f"{knob}={value}" for knob, value in found["best"].items()) or "the defaults"
        ratio = found["micros"][worst] / found["default"]
        lines.append((workload.name, found["default"], found["gain"], f"{worst} ({ratio:.2f}x)", text))
    show("Sweep of the knobs", ("µs per operation", "defaults", "best/defaults", "worst", "best"), lines)
    save("zset-sweep", {"grid": GRID, "results": results})
    return []
