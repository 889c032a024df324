"""`python -m benchmarks`: run every suite of every package."""

from __future__ import annotations

import sys

from benchmarks.zset.__main__ import main as zset

if __name__ == "__main__":
    sys.exit(zset(sys.argv[1:]))
