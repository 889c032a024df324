"""Compile every kernel once: `python -m dbspark.kernels.warm`.

Not needed for anything to work; it moves the seconds that a first use costs to a moment of one's choosing, such as
building an image or the start of a test run.
"""

from __future__ import annotations

import sys
import time


def main() -> None:
    started = time.perf_counter()
    from dbspark.circuit.warm import warm as warm_circuits
    from dbspark.kernels.panes import window_bounds
    from dbspark.kernels.preload import compile_machine
    from dbspark.pipeline.warm import warm as warm_pipelines
    from dbspark.zset.warm import warm as warm_zsets

    compile_machine()  # the circuits use it
    warm_zsets()
    warm_circuits()
    warm_pipelines()
    window_bounds(0, 0, 0, 1, 0, 0)
    sys.stdout.write(f"kernels ready in {time.perf_counter() - started:.1f} s\n")


if __name__ == "__main__":
    main()
