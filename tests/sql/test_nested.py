"""Structs, arrays and maps whose types differ only in what may be NULL inside them: compared, joined, put together."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sql.oracle import Oracle

TABLES = {
    "t": """id BIGINT, s STRUCT<a: BIGINT, b: STRING>, a ARRAY<BIGINT>, m MAP<BIGINT, BIGINT>,
            n STRUCT<p: STRUCT<a: BIGINT>, q: ARRAY<STRUCT<a: BIGINT>>>""",
    "w": """id BIGINT, s STRUCT<a: BIGINT NOT NULL, b: STRING> NOT NULL,
            n STRUCT<p: STRUCT<a: BIGINT NOT NULL> NOT NULL, q: ARRAY<STRUCT<a: BIGINT NOT NULL>>>""",
    "u": "id BIGINT, b STRING",
}
ONE = (1, (1, "a"), (1, 2), ((1, 1),), ((1,), ((1,),)))
TICKS: list[dict[str, Any]] = [
    {
        "t": {
            ONE: 1,
            (2, (2, "b"), (2, None), ((1, None),), ((2,), ((None,),))): 1,
            (3, None, None, None, None): 1,
            (4, (None, "a"), (1,), (), (None, None)): 1,
        },
        "w": {(1, (1, "a"), ((1,), ((1,),))): 1, (2, (3, None), ((2,), None)): 1},
        "u": {(1, "a"): 1, (2, "b"): 1, (2, None): 1},
    },
    {
        "t": {ONE: -1, (5, (2, "b"), (4, 2), ((1, 4),), ((2,), ((5,),))): 1},
        "w": {(1, (1, "a"), ((1,), ((1,),))): -1, (4, (2, "b"), ((2,), ((5,),))): 1},
        "u": {(1, "a"): -1, (4, "q"): 1},
    },
]
VIEWS = {
    "in a list": "SELECT id FROM t WHERE s IN (named_struct('a', 1L, 'b', 'a'), named_struct('a', 2L, 'b', 'x'))",
    "in a list of columns":
        "SELECT id, s IN (named_struct('a', 1L, 'b', 'a'), named_struct('a', id, 'b', 'b')) c FROM t",
    "not in a list": "SELECT id FROM t WHERE s NOT IN (named_struct('a', 1L, 'b', 'a'))",
    "array in a list": "SELECT id FROM t WHERE a IN (array(id, 2L), array(2L))",
    "array not in a list": "SELECT id FROM t WHERE a NOT IN (array(1L, 2L))",
    "column in a list": "SELECT t.id FROM t JOIN w ON t.id = w.id WHERE t.s IN (w.s, named_struct('a', 2L, 'b', 'b'))",
    "in": "SELECT id FROM t WHERE s IN (SELECT s FROM w)",
    "in turned round": "SELECT id FROM w WHERE s IN (SELECT s FROM t)",
    "in made": "SELECT id FROM t WHERE s IN (SELECT named_struct('a', id, 'b', b) FROM u)",
    "in nested": "SELECT id FROM t WHERE n IN (SELECT n FROM w)",
    "in nested made": "SELECT id FROM t WHERE n.q IN (SELECT array(named_struct('a', id)) FROM u)",
    "in of two": "SELECT id FROM t WHERE (id, s) IN (SELECT id, named_struct('a', id, 'b', 'b') FROM u)",
    "in of two columns": "SELECT id FROM t WHERE (n, s) IN (SELECT n, s FROM w)",
    "in of arrays": "SELECT id FROM t WHERE a IN (SELECT array(id, 2L) FROM u)",
    "in or": "SELECT id FROM t WHERE id = 3 OR s IN (SELECT s FROM w)",
    "not in": "SELECT id FROM t WHERE s NOT IN (SELECT s FROM w)",
    "not in turned round": "SELECT id FROM w WHERE s NOT IN (SELECT s FROM t WHERE s IS NOT NULL)",
    "not in made": "SELECT id FROM t WHERE s NOT IN (SELECT named_struct('a', id, 'b', 'a') FROM u)",
    "not in nested": "SELECT id FROM t WHERE n NOT IN (SELECT n FROM w)",
    "not in arrays": "SELECT id FROM t WHERE a NOT IN (SELECT array(id, 2L) FROM u)",
    "exists": "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM w WHERE w.s = t.s)",
    "exists nested": "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM w WHERE w.n = t.n AND w.s <=> t.s)",
    "exists or": "SELECT id FROM t WHERE id = 4 OR EXISTS (SELECT 1 FROM w WHERE w.n = t.n)",
    "not exists": "SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE array(u.id, 2L) = t.a)",
    "join": "SELECT t.id, w.id AS i, t.s, w.s AS r FROM t JOIN w ON t.s = w.s",
    "left join": "SELECT t.id, w.id AS i, w.n FROM t LEFT JOIN w ON t.n = w.n",
    "full join": "SELECT t.id, w.id AS i, w.s FROM t FULL JOIN w ON t.s <=> w.s",
    "range join": "SELECT t.id, w.id AS i FROM t JOIN w ON t.s < w.s",
    "residual": "SELECT t.id, w.id AS i FROM t JOIN w ON t.id = w.id AND t.s <> w.s",
    "lateral": "SELECT id, v FROM t, LATERAL (SELECT count(*) AS v FROM w WHERE w.s = t.s)",
    "lateral nested": "SELECT id, v FROM t, LATERAL (SELECT count(*) AS v FROM w WHERE w.n = t.n)",
    "lateral turned round": "SELECT id, v FROM w, LATERAL (SELECT max(id) AS v FROM t WHERE w.s = t.s)",
    "lateral made":
        "SELECT id, v FROM t, LATERAL (SELECT max(b) AS v FROM u WHERE named_struct('a', u.id, 'b', 'b') = t.s)",
    "lateral of rows":
        "SELECT id, v FROM w, LATERAL (SELECT named_struct('a', w.s.a, 'b', u.b) AS v FROM u WHERE u.id = w.id)",
    "lateral union": "SELECT id, v FROM w, LATERAL (SELECT w.s AS v UNION ALL SELECT named_struct('a', 1L, 'b', 'a'))",
    "lateral left": "SELECT id, v FROM t LEFT JOIN LATERAL (SELECT u.id AS v FROM u WHERE array(u.id, 2L) = t.a)",
    "lateral arrays": """SELECT id, v FROM (SELECT id, array(named_struct('a', id)) AS z FROM t) t,
        LATERAL (SELECT count(*) AS v FROM w WHERE w.n.q = t.z)""",
    "lateral map": "SELECT id, v FROM t, LATERAL (SELECT map(1L, sum(u.id)) AS v FROM u WHERE u.id = t.m[1L])",
    "map beside": "SELECT t.m, w.s FROM t JOIN w ON t.s = w.s",
    "scalar subquery": "SELECT id, (SELECT max(w.id) FROM w WHERE w.s = t.s) AS v FROM t",
    "union": "SELECT s FROM t UNION SELECT s FROM w",
    "union all": "SELECT n FROM t UNION ALL SELECT n FROM w",
    "intersect": "SELECT s FROM t INTERSECT SELECT s FROM w",
    "except": "SELECT n FROM t EXCEPT SELECT n FROM w",
    "except all": "SELECT s FROM w EXCEPT ALL SELECT s FROM t",
    "choice":
        "SELECT t.id, CASE WHEN t.id > 1 THEN t.s ELSE w.s END AS c, coalesce(t.n, w.n) AS d FROM t JOIN w USING (id)",
    "group": "SELECT s, count(*) AS c, max(n.p) AS d FROM w GROUP BY s",
    "window": "SELECT id, s, rank() OVER (PARTITION BY s ORDER BY id) AS r FROM w",
    "all columns": "SELECT * FROM w",
    "null struct": "SELECT id, CASE WHEN id > 3 THEN named_struct('x', 1, 'y', array(1)) END AS c FROM t",
    "null struct by Spark":
        "SELECT id, if(soundex(s.b) = 'B000', named_struct('x', 1, 'y', map(1, 2)), NULL) AS c FROM t",
    "null structs in an array":
        "SELECT id, array(CASE WHEN soundex(s.b) = 'B000' THEN named_struct('x', 1) END) AS c FROM t",
    "null struct of a group": "SELECT max(CASE WHEN id > 3 THEN named_struct('x', 1, 'y', 'a') END) AS c FROM t",
    "null struct of VALUES": "SELECT c.x FROM VALUES (named_struct('x', 1)), (NULL) AS v(c)",
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_types_that_differ_in_what_may_be_null(spark: Any, name: str) -> None:
    oracle = Oracle(spark, TABLES, {name: VIEWS[name]})
    for changes in TICKS:
        oracle.tick(changes)
    oracle.retract_all()
