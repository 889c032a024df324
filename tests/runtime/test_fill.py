"""A view that shares nodes with another starts from what is kept of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dbspark
from dbspark.circuit import Builder
from dbspark.columnar.delta import Delta
from dbspark.operators.join import Join
from dbspark.operators.operator import Arrange
from dbspark.pipeline import pipeline
from dbspark.reporting import Activity
from dbspark.runtime import embedded
from dbspark.runtime.fill import fill_states
from dbspark.runtime.state import state_of
from tests.pipeline.queries import query, tables, without_spark
from tests.pipeline.test_circuits import Inputs, delayed, joined, recursive

__all__ = ["without_spark"]


@query
def joined_rows(b: Any, s: Any) -> Any:
    return b.join(s["orders"], s["customers"], on=["customer"])


@query
def other_join(b: Any, s: Any) -> Any:
    return b.join(s["orders"], s["customers"], on=["customer"], how="anti")


@query
def most(b: Any, s: Any) -> Any:
    """Keeps the rows of the join by region, in order."""
    return b.aggregate(joined_rows(b, s), ["region"], most=("max", "amount"))


@query
def by_customer(b: Any, s: Any) -> Any:
    return b.top(joined_rows(b, s), ["customer"], [("amount", "desc"), "id"], 1)


@query
def sums(b: Any, s: Any) -> Any:
    return b.aggregate(joined_rows(b, s), ["region"], total=("sum", "amount"))


@query
def of_sums(b: Any, s: Any) -> Any:
    return b.filter(sums(b, s), lambda c: c[1].is_valid())


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """Rows that operators have taken in, by operator."""
    rows = Counter[Any]()
    for kind in (Arrange, Join):

        def stepped(self: Any, state: Any, inputs: Any, step: Any = kind.step) -> Any:
            rows[self] += sum(i.rows for i in inputs)
            return step(self, state, inputs)

        monkeypatch.setattr(kind, "step", stepped)
    return rows


def shop(rows: int = 200) -> Any:
    pipe = dbspark.Pipeline("shop")
    tables(pipe)
    with pipe.transaction() as tx:
        tx.insert("orders", [(i, i % 17, i * 37 % 101) for i in range(rows)])
        tx.insert("customers", [(c, "north" if c % 3 else "south") for c in range(12)])
    return pipe


def nodes(pipe: Any, view: str) -> dict[str, Any]:
    """The nodes that a view needs, by id."""
    from dbspark.circuit.graph import Graph

    graph, part = pipe._program.builder.graph, Graph()
    part.nodes, part.outputs = graph.nodes, {view: graph.outputs[view]}
    return dict(part.pruned().nodes)


def rows_of(pipe: Any, view: str) -> Counter[Any]:
    return Counter(tuple(r.values()) for r in pipe.view(view).to_arrow().to_pylist())


SHARED = [
    ("sums", "other_join", {"arrange"}),  # only what is arranged
    ("joined_rows", "sums", {"arrange", "join"}),  # the first view is the join
    ("most", "by_customer", {"arrange", "join"}),  # the join is kept in another order
    ("sums", "of_sums", {"arrange", "join"}),  # the first view is the aggregate
    ("sums", "sums", {"arrange", "join"}),
    ("by_customer", "joined_rows", {"arrange", "join"}),
]


@pytest.mark.parametrize(("first", "second", "spared"), SHARED)
def test_what_another_view_keeps_takes_in_nothing_again(
    without_spark: None, taken: Counter[Any], first: str, second: str, spared: set[str]
) -> None:
    pipe = shop()
    pipe.create_view("first", first)
    before = state_of(pipe._runtime._circuit)
    taken.clear()
    pipe.create_view("second", second)
    shared = [n for i, n in nodes(pipe, "first").items() if i in nodes(pipe, "second") and n.operator is not None]
    assert any(isinstance(n.operator, Arrange) for n in shared)
    for node in shared:
        if isinstance(node.operator, Arrange) or "join" in spared:
            assert taken[node.operator] == 0, node.label
    after = state_of(pipe._runtime._circuit)
    assert all(after[n][0].entries == s[0].entries for n, s in before.items())  # as it was, and not a copy
    check(pipe)


def check(pipe: Any) -> None:
    """Views are what they are when they are made from nothing, now and after further ticks."""
    for tick in range(4):
        fresh = dbspark.Pipeline("fresh")
        tables(fresh)
        with fresh.transaction() as tx:
            for name in pipe.tables:
                tx.insert(name, pipe.table(name).to_arrow())
        for name in pipe.views:
            fresh.create_view(name, pipe._definitions[name]["query"])
            assert rows_of(pipe, name) == rows_of(fresh, name), (name, tick)
        with pipe.transaction() as tx:
            tx.upsert("orders", [(7 * tick + i, (tick + i) % 19, -i) for i in range(20)])
            tx.delete_keys("orders", [(100 + tick,), (3 * tick,)])
            tx.insert("customers", [(12 + tick, "west")])


def test_views_in_any_order(without_spark: None) -> None:
    names = ["joined_rows", "other_join", "most", "by_customer", "sums", "of_sums", "totals", "large", "customers_of"]
    for seed in range(6):
        random.Random(seed).shuffle(names)
        pipe = shop(60)
        for at, name in enumerate(names):
            pipe.create_view(name, name)
            if at % 2:
                with pipe.transaction() as tx:
                    tx.insert("orders", [(1000 + at, at, at)])
            if at == 5:
                pipe.drop_view(names[0] if names[0] != "sums" else names[1])
        check(pipe)


@pytest.mark.parametrize("build", [joined, recursive])
def test_states_that_are_missing_are_filled_as_if_they_had_been_there(build: Any) -> None:
    """Whichever states there are, the others are what they would be."""
    shape = {joined: {"orders": (300, 9, 20), "customers": (9, "abc")}, recursive: {"edges": (7, 7)}}[build]
    b = Builder()
    build(b)
    circuit, inputs = b.circuit(), Inputs(shape, 5)
    integrals: dict[str, Any] = {name: Counter() for name in shape}
    for _ in range(12):
        change = inputs.tick()
        for name, rows in change.items():
            for row, weight in rows.items():
                integrals[name][row] += weight
        circuit.tick(change)
    states = state_of(circuit)
    sources = {n.id: delta_of(n, integrals[n.name]) for n in circuit.graph if n.role == "source"}
    rng = random.Random(3)
    for _ in range(12):
        kept = {n: s for n, s in states.items() if rng.random() < 0.6}
        report = Report("filling", None, "rows")
        filled = fill_states(circuit.graph, kept, list(circuit.graph.outputs), sources, report)
        assert filled is not None
        assert report.done == report.total  # what was expected at the end is what has come
        assert all(done <= total for done, total in report.seen)
        assert filled.states.keys() == states.keys() - kept.keys()
        for node, state in filled.states.items():
            assert [held(s) for s in state] == [held(s) for s in states[node]], node


class Report(Activity):
    """An activity that notes how much was done, of how much."""

    def __init__(self, label: str, total: int | None, unit: str) -> None:
        super().__init__(label, total, unit)
        self.seen: list[tuple[int, int]] = []

    def advance(self, amount: int = 1) -> None:
        super().advance(amount)
        self.seen.append((self.done, self.total or 0))


def test_a_fill_reports_the_rows_that_go_into_its_nodes(without_spark: Any) -> None:
    with dbspark.Pipeline("shop") as pipe:
        tables(pipe)
        with pipe.transaction() as tx:
            tx.insert("customers", [(i, "north") for i in range(3)])
            tx.insert("orders", [(i, i % 3, i) for i in range(50)])
        runtime = pipe._runtime
        pipe.create_view("sums", "sums")
        report = Report("filling", None, "rows")
        runtime._computed(["sums"], {}, ["sums"], report)  # type: ignore[attr-defined]
        # Two arrangements take in the rows of the tables, the join takes theirs, and the aggregate its result.
        assert report.seen[-1][0] == report.total
        assert report.total == 53 + 53 + 50


def test_filling_views_and_opening_a_location_are_shown(
    without_spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Activity] = []

    @contextmanager
    def noted(label: str, total: int | None = None, unit: str = "rows") -> Iterator[Activity]:
        shown.append(Activity(label, total, unit))
        yield shown[-1]

    monkeypatch.setattr(embedded, "activity", noted)
    monkeypatch.setattr(pipeline, "activity", noted)
    location = str(tmp_path / "shop")
    with dbspark.Pipeline("shop", location=location) as pipe:
        tables(pipe)
        with pipe.transaction() as tx:
            tx.insert("customers", [(i, "north") for i in range(3)])
            tx.insert("orders", [(i, i % 3, i) for i in range(50)])
        assert not shown
        pipe.create_view("sums", "sums")
        pipe.create_views({"most": "most", "of_sums": "of_sums"})
    assert [each.label for each in shown] == ["filling view sums", "filling 2 views"]
    assert (shown[0].done, shown[0].total, shown[0].unit) == (156, 156, "rows")
    shown.clear()
    with dbspark.Pipeline("shop", location=location):
        pass
    assert [(each.label, each.done, each.total, each.unit) for each in shown] == [("opening shop", 3, 3, "views")]


def held(spine: Any) -> Counter[Any]:
    return Counter(tuple(row.values()) for row in spine.consolidated().to_arrow(weights="w").to_pylist())


def delta_of(node: Any, rows: Counter[Any]) -> Any:
    from dbspark.circuit.executor import as_delta

    return lambda: as_delta({row: n for row, n in rows.items() if n}, node)


def test_a_graph_that_remembers_the_order_of_its_changes_is_not_filled() -> None:
    b = Builder()
    delayed(b)
    graph = b.circuit().graph
    sources = {n.id: lambda node=n: Delta.empty(node.schema) for n in graph if n.role == "source"}
    assert fill_states(graph, {}, list(graph.outputs), sources) is None


@pytest.mark.spark
def test_a_view_that_shares_nodes_gives_what_spark_gives(spark: Any, taken: Counter[Any]) -> None:
    queries = {
        "joined": "SELECT id, region, amount FROM orders JOIN customers USING (customer)",
        "revenue": "SELECT region, sum(amount) AS total FROM orders JOIN customers USING (customer) GROUP BY region",
        "best": "SELECT region, max(amount) AS best FROM joined GROUP BY region",
        "ranks": "SELECT id, rank() OVER (PARTITION BY region ORDER BY amount DESC, id) AS r FROM joined",
    }
    with dbspark.Pipeline("shop", spark=spark) as pipe:
        tables(pipe)
        with pipe.transaction() as tx:
            tx.insert("orders", [(i, i % 17, i * 37 % 101) for i in range(200)])
            tx.insert("customers", [(c, "north" if c % 3 else "south") for c in range(12)])
        for at, (name, text) in enumerate(queries.items()):
            taken.clear()
            pipe.create_view(name, text)
            if name in ("best", "ranks"):
                arranged = [n for n in nodes(pipe, "joined").values() if isinstance(n.operator, Arrange | Join)]
                assert arranged
                assert not any(taken[n.operator] for n in arranged)
            with pipe.transaction() as tx:
                tx.upsert("orders", [(7 * at + i, (at + i) % 19, -i) for i in range(20)])
        frames = {n: spark.createDataFrame(pipe.table(n).to_arrow()) for n in pipe.tables}
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        spark.sql(queries["joined"]).createOrReplaceTempView("joined")
        try:
            for name, text in queries.items():
                assert rows_of(pipe, name) == Counter(tuple(r.values()) for r in spark.sql(text).toArrow().to_pylist())
        finally:
            for name in [*frames, "joined"]:
                spark.catalog.dropTempView(name)
