"""Compile every kernel once: `python -m dbspark.warm`.

Programs do this themselves when kernels are not there, and wait for it. Here it happens at another moment, such as
building an image or the start of a test run.
"""

from __future__ import annotations

import sys
import time

from dbspark.kernels import preload


def main() -> None:
    """Compile all kernels and print how long it took."""
    started = time.perf_counter()
    preload.begin()
    preload.wait()
    failed = preload.unready_units()
    if failed:
        sys.exit(f"kernels could not be compiled: {', '.join(failed)}")
    sys.stdout.write(f"kernels ready in {time.perf_counter() - started:.1f} s\n")


if __name__ == "__main__":
    main()
