import time, sys, statistics, logging
logging.basicConfig(level=logging.INFO, format="%(message)s")
logging.getLogger("py4j").setLevel(logging.WARNING)
import dbspark
from dbspark.spark import get_session
from benchmarks.circuit import w1
from benchmarks.sql.suites import VIEW, apply, tables_of
def main(orders=20000, changes=100, rounds=30, ex="resident"):
    s = get_session(cores=2, worker_slots=2, config={"spark.python.worker.faulthandler.enabled":"true"})
    work = w1.generate(orders, changes, rounds)
    kw = dict(shards=2, exchange=ex) if ex != "embedded" else {}
    with dbspark.Pipeline("w1", spark=s.spark, **kw) as pipe:
        pipe.create_table("orders", w1.ORDERS); pipe.create_table("customers", w1.CUSTOMERS)
        pipe.create_view("v", VIEW)
        t=time.perf_counter(); apply(pipe, tables_of(work.base)); print("load", time.perf_counter()-t)
        ts=[]
        for c in work.ticks:
            tt = tables_of(c); t=time.perf_counter(); apply(pipe, tt); ts.append(time.perf_counter()-t)
        columns = [c.to_pylist() for c in pipe.view("v").to_arrow().columns]
        assert {r: (c, t) for r, c, t in zip(*columns, strict=True)} == work.views[-1]
        print(ex, orders, changes, "median ms", 1e3*statistics.median(ts[3:]), "min", 1e3*min(ts), pipe.last_progress["durationMs"])
        if ex=="resident": print(pipe._runtime._transport.figures)
    s.close()
if __name__ == "__main__":
    main(int(sys.argv[2]), int(sys.argv[3]), 30 if sys.argv[1]!="shuffle" else 5, sys.argv[1])
