"""The harness beside peers: what a case holds, that a wrong view is noticed, that workloads are what they say."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections import Counter
from pathlib import Path

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest

from benchmarks.peers import joined, nexmark, reach, runs, turns
from benchmarks.peers.case import Case, at_tick, read_arrow, write_arrow
from benchmarks.peers.compare import difference
from benchmarks.peers.contender import Contender, NotExpressible, Recomputing
from benchmarks.peers.install import NEEDS
from benchmarks.peers.registry import SYSTEMS, System
from benchmarks.peers.systems.hand import ByHand
from benchmarks.peers.systems.search import Search
from benchmarks.workloads import nexmark as queries


def rows_of(table):
    return Counter(zip(*(c.to_pylist() for c in table.columns), strict=True))


@pytest.fixture
def w1(tmp_path):
    return joined.cases(tmp_path, [200], {1: 12, 20: 5})


@pytest.fixture
def w2(tmp_path):
    graphs = {"closure": reach.Graph(40, 50, None), "few": reach.Graph(40, 80, 3)}
    return reach.cases(tmp_path, graphs, {1: 6, 10: 4})


# ---------------------------------------------------------------------- cases


def test_a_case_is_read_as_it_was_written(w1):
    for case in w1:
        assert Case.read(case.folder) == case
        assert case.rows(0, case.ticks + 1) == sum(
            sum(len(t) for t in case.open()[i].values()) for i in range(case.ticks + 1)
        )


def test_the_expected_view_of_w1_is_what_its_tables_hold(w1):
    for case in w1:
        held = {name: Counter() for name in case.tables}
        source, expected = case.open(), case.expected()
        for tick in range(case.ticks + 1):
            for name, table in source[tick].items():
                for *row, weight in zip(*(c.to_pylist() for c in table.columns), strict=True):
                    held[name][tuple(row)] += weight
                    assert held[name][tuple(row)] >= 0, (
                        "what goes comes before what comes, so nothing is negative for long"
                    )
            region = {customer: r for (customer, r), n in held["customers"].items() if n}
            sums = Counter(), Counter()
            for (_, customer, amount, status), n in held["orders"].items():
                if n and status < 8:
                    sums[0][region[customer]] += 1
                    sums[1][region[customer]] += amount
            counted = Counter((r, n, sums[1][r]) for r, n in sums[0].items())
            assert rows_of(at_tick(expected, tick)) == counted


def test_single_changes_of_w1_are_of_every_kind(tmp_path):
    (case,) = joined.cases(tmp_path, [100], {1: 100})
    kinds = set()
    for tick in range(1, case.ticks + 1):
        kinds.add(tuple(sorted((name, tuple(t["w"].to_pylist())) for name, t in case.open()[tick].items())))
    assert kinds == {
        (("customers", (-1, 1)),), (("orders", (1,)),), (("orders", (-1,)),), (("orders", (-1, 1)),),
    }  # fmt: skip


def test_the_expected_pairs_of_w2_are_those_of_networkx(w2):
    for case in w2:
        graph, source = nx.DiGraph(), case.open()
        sources = source[0]["sources"]["src"].to_pylist() if "sources" in case.tables else None
        for tick in range(case.ticks + 1):
            for src, dst, weight in zip(*(c.to_pylist() for c in source[tick]["edges"].columns), strict=True):
                assert graph.has_edge(src, dst) == (weight < 0)
                (graph.add_edge if weight > 0 else graph.remove_edge)(src, dst)
            if tick in case.checked:
                pairs = set(nx.transitive_closure(graph, reflexive=False).edges)
                wanted = {(a, b) for a, b in pairs if sources is None or a in sources}
                assert rows_of(at_tick(case.expected(), tick)) == Counter(wanted)


def test_every_query_of_w3_names_the_columns_that_it_reads():
    assert set(nexmark.READ) == set(queries.QUERIES)
    for query, read in nexmark.READ.items():
        for table, columns in read.items():
            for column in columns.split():
                assert column == "seq" or column in queries.QUERIES[query], (query, table, column)


# ---------------------------------------------------------------------- comparing


def test_views_are_compared_without_order_names_and_widths():
    a = pa.table({"n": pa.array([1, 2, 2], pa.int32()), "x": pa.array([0.5, 1.5, 1.5])})
    b = pa.table({"other": pa.array([2, 1, 2]), "y": pa.array([1.5, 0.5, 1.5 + 1e-13])})
    assert difference(a, b) == ""


@pytest.mark.parametrize(
    "wrong",
    [{"n": [1, 2]}, {"n": [1, 2, 3]}, {"n": [1, 1, 2]}, {"n": ["1", "2", "2"]}, {"n": [1, 2, 2], "m": [1, 2, 2]}],
    ids=["missing", "other", "multiplicity", "type", "columns"],
)
def test_what_differs_is_said(wrong):
    assert difference(pa.table(wrong), pa.table({"n": [1, 2, 2]}))


def test_times_and_decimals_are_compared_by_value():
    times = pa.array([1_000_000, 2_000_000]).cast(pa.timestamp("us", "UTC"))
    assert difference(pa.table({"t": pa.array([1_000_000, 2_000_000])}), pa.table({"t": times})) == ""
    prices = pa.array([1, 2]).cast(pa.decimal128(22, 3))
    assert difference(pa.table({"p": pa.array([1.0, 2.0])}), pa.table({"p": prices})) == ""


# ---------------------------------------------------------------------- contenders


def test_programs_by_hand_give_the_expected_views(w1, w2, tmp_path):
    for kind, cases in ((ByHand, w1), (Search, w2)):
        for case in cases:
            outcome = kind(tmp_path).run(case, budget=60.0)
            assert outcome.complete
            assert len(outcome.ticks) == case.ticks
            given = pa.concat_tables(outcome.views)
            for tick in case.checked:
                assert difference(at_tick(given, tick), at_tick(case.expected(), tick)) == ""


def test_who_recomputes_stops_when_the_budget_is_spent_and_is_compared_all_the_same(w2, tmp_path):
    case = w2[0]
    outcome = Search(tmp_path).run(case, budget=-1.0)
    assert not outcome.complete
    assert outcome.ticks == []
    assert difference(at_tick(outcome.views[-1], case.ticks), at_tick(case.expected(), case.ticks)) == ""


def test_all_systems_are_there_with_pinned_packages():
    folder = Path(runs.__file__).parent
    for name, system in SYSTEMS.items():
        kind = system.load()
        assert issubclass(kind, Contender), name
        assert kind.workloads <= {"w1", "w2", "w3"}
        if system.environment:
            lines = (folder / f"requirements-{system.environment}.txt").read_text().split()
            assert lines, name
            assert all(line.count("==") == 1 and "/" not in line for line in lines), name
    assert set(NEEDS) <= {system.environment for system in SYSTEMS.values()}


def test_polars_and_duckdb_know_every_query():
    duckdb = importlib.import_module("benchmarks.peers.systems.duckdb")
    for query, text in queries.QUERIES.items():
        case = Case("w3", query, text, {}, {}, [])
        said = duckdb.dialect(case)
        assert "window(" not in said, query
        assert "date_format" not in said, query


# ---------------------------------------------------------------------- runs


class Wrong(Recomputing):
    """Gives an empty view, whatever comes."""

    name = "wrong"
    workloads = frozenset({"w2"})

    def open(self, case):
        pass

    def apply(self, given):
        pass

    def compute(self):
        return pa.table({"src": pa.array([], pa.int64()), "dst": pa.array([], pa.int64())})

    def result(self):
        return self.view


class Refusing(Wrong):
    name = "refusing"

    def open(self, case):
        raise NotExpressible("there is no way to say this")


def in_process(monkeypatch, kinds):
    """Run jobs in this process, with these classes as systems."""
    from benchmarks.peers import child

    class Here(System):
        def load(self):
            return kinds[self.cls]

    systems = {name: Here(name, name) for name in kinds}
    for module in (child, runs):
        monkeypatch.setattr(module, "SYSTEMS", systems)
    monkeypatch.setattr(runs, "_process", lambda name, job, timeout: child.main(json.loads(job.read_text())) or "")


def test_a_wrong_view_has_no_time_and_the_others_go_on(monkeypatch, w2, capsys):
    in_process(monkeypatch, {"search": Search, "wrong": Wrong, "refusing": Refusing, "hand": ByHand})
    done, versions = runs.run(["search", "wrong", "refusing", "hand"], w2, rounds=2, budget=60.0)
    by = {(r.system, r.case.name): r for r in done}
    for case in w2:
        right, wrong = by["search", case.name], by["wrong", case.name]
        assert right.best is not None
        assert len(right.rounds) == 2
        assert right.rate > 0
        assert right.median > 0
        assert wrong.best is None
        assert "a wrong view after tick 0: 0 rows instead of" in wrong.problem
        assert by["refusing", case.name].as_json()["problem"] == "there is no way to say this"
        assert by["hand", case.name].problem == "not written for this workload"
    assert "wrong view" in capsys.readouterr().out
    assert "numba" in versions["search"]
    json.dumps([r.as_json() for r in done])


def test_a_peer_that_is_not_installed_is_skipped_with_a_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("benchmarks.peers.registry.ENVIRONMENTS", tmp_path)
    assert runs.present(["dbspark", "duckdb"]) == ["dbspark"]
    assert capsys.readouterr().out.count("\n") == 1


def test_arrow_files_keep_what_they_are_given(tmp_path):
    table = pa.table({"n": np.arange(5), "s": ["a", None, "c", "", "e"]})
    write_arrow(tmp_path / "deep" / "t.arrow", table)
    assert read_arrow(tmp_path / "deep" / "t.arrow").equals(table)


def test_a_case_is_compared_with_another_round_by_round(w1):
    small, large = runs.Run("dbspark", w1[0]), runs.Run("dbspark", w1[1])
    for drift in (1, 1, 3):  # the machine is slow in the last round, and both feel it
        small.rounds.append({"ticks": [drift * 0.1] * 2, "rows": 10, "continuous": None})
        large.rounds.append({"ticks": [drift * 0.11] * 20, "rows": 100, "continuous": None})
    assert large.slower_than(small) == pytest.approx(1.1)


def test_a_case_can_have_a_process_of_its_own(w1, monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(runs, "_batch", lambda name, cases, *rest, **named: ran.append([c.folder for c in cases]) or {})
    runs.run(["hand"], w1[:2], rounds=1, budget=1.0, in_turns=lambda case: case.name)
    runs.run(["hand"], w1[:2], rounds=1, budget=1.0)
    runs.run(["hand"], w1[:2], rounds=1, budget=1.0, in_turns=lambda case: case.workload)
    both = [w1[0].folder, w1[1].folder]
    assert ran == [[w1[0].folder], [w1[1].folder], both, both]
    said = capsys.readouterr().out
    assert said.count("round 1 of 1: hand") == len(ran), "who runs it for hours sees how far it is"


def test_cases_take_turns_and_only_one_runs_at_a_time(w1, tmp_path):
    log = tmp_path / "log"
    work = (
        "import sys, time\n"
        "from benchmarks.peers.turns import pause\n"
        "name, stretches = sys.argv[1], int(sys.argv[2])\n"
        "for _ in range(stretches):\n"
        "    pause()\n"
        f"    with open({str(log)!r}, 'a') as out:\n"
        "        out.write(name)\n"
        "        out.flush()\n"
        "        time.sleep(0.02)\n"
        "        out.write(name)\n"
        "sys.exit('no more')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(runs.ROOT)}
    processes = [
        turns.Process([sys.executable, "-c", work, name, stretches], tmp_path, environment, tmp_path / name)
        for name, stretches in (("a", "3"), ("b", "2"))
    ]
    assert not log.exists(), "nobody runs before the first turn"
    turns.take_turns(processes, timeout=60.0)
    assert log.read_text() == "aabbbbaaaa"
    assert [p.last_words() for p in processes] == ["no more", "no more"]


def test_turns_are_taken_by_whole_runs(w1, monkeypatch):
    small, large = w1
    for case, turn in ((small, 6), (large, 5)):
        case.turn, case.repeat = turn, 2
        case.save()
    done, versions = runs.run(["hand"], w1, rounds=1, budget=60.0, in_turns=lambda case: case.workload)
    assert [(r.problem, len(r.rounds), len(r.rounds[0]["ticks"])) for r in done] == [("", 1, 24), ("", 1, 10)]
    assert "numba" in versions["hand"]


def test_systems_that_are_not_waited_for_are_not_run(w1, monkeypatch):
    ran = []
    monkeypatch.setattr(
        runs, "_batch", lambda name, cases, *rest, **named: ran.extend((name, c.folder) for c in cases) or {}
    )
    done, _ = runs.run(
        ["dbspark", "hand"], w1, rounds=1, budget=1.0, waited_for=lambda system, case: system == "hand" or case is w1[0]
    )
    assert ran == [("dbspark", w1[0].folder), ("hand", w1[0].folder), ("hand", w1[1].folder)]
    assert [(r.system, r.case.folder) for r in done] == [("dbspark", w1[0].folder), *ran[1:]]
