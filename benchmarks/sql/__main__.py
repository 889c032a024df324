"""`python -m benchmarks.sql [suite …]`: run suites of the SQL benchmarks; all of them if none is named."""

from __future__ import annotations

import sys

from benchmarks.command import command
from benchmarks.sql.suites import SUITES, run


def main(arguments: list[str] | None = None) -> int:
    return command("sql", SUITES, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
