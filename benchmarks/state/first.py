"""`python -m benchmarks.state.first import|tick`: the seconds of the first import, or of a first pipeline of W1.

That one is timed from its creation to the end of its first tick, with a Spark session that is there already: making a
view runs kernels as well.
"""

from __future__ import annotations

import json
import sys
import time


def main(what: str) -> None:
    begun = time.perf_counter()
    import dbspark

    seconds = time.perf_counter() - begun
    if what == "tick":
        from benchmarks.circuit import w1
        from benchmarks.sql.suites import VIEW, apply, session, tables_of

        work = w1.generate(1000, 100, 1)
        with session() as spark:
            spark.sql("SELECT 1").collect()
            begun = time.perf_counter()
            with dbspark.Pipeline("first", spark=spark) as pipe:
                pipe.create_table("orders", w1.ORDERS)
                pipe.create_table("customers", w1.CUSTOMERS)
                pipe.create_view("revenue", VIEW)
                apply(pipe, tables_of(work.base))
                seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1])
