"""Counts, sums and a minimum or maximum of groups under random changes, against counters."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.circuit import Builder, Circuit
from dbspark.columnar.sort_key import weakened_hash
from tests.kernels.build import sum_of
from tests.zset.model import contents

ROW = st.tuples(st.none() | st.integers(0, 3), st.none() | st.integers(-(2**40), 2**40) | st.integers(-2, 2))
TICKS = st.lists(st.dictionaries(ROW, st.sampled_from([1, 1, 2, -1]), max_size=6), max_size=6)


def grouped(content: dict[Any, int], extreme: str) -> dict[Any, int]:
    groups: dict[Any, dict[Any, int]] = defaultdict(dict)
    for (key, value), weight in content.items():
        groups[key][value] = weight
    out = {}
    for key, values in groups.items():
        known = {v: w for v, w in values.items() if v is not None}
        total = sum(v * w for v, w in known.items()) if known else None
        best = (min if extreme == "min" else max)(known, default=None)
        out[key, sum(values.values()), sum(known.values()), total, best] = 1
    return out


@pytest.mark.parametrize("extreme", ["min", "max"])
@given(ticks=TICKS, mask=st.sampled_from([2**64 - 1, 1, 0]))
def test_groups_are_those_of_all_rows_so_far(extreme: str, ticks: Any, mask: int) -> None:
    """Weights are not negative after any tick, as in a table; in the end all rows are retracted."""
    b = Builder()
    source = b.source("t", "k BIGINT, n BIGINT")
    sums = {"rows": ("count", None), "numbers": ("count", "n"), "total": ("sum", "n")}
    b.output("groups", b.aggregate(source, ["k"], **sums, best=(extreme, "n")))
    with weakened_hash(mask):
        circuit = Circuit(b.graph, use_vm=False)
        content: dict[Any, int] = {}
        result: dict[Any, int] = {}
        for tick in [*ticks, None]:
            if tick is None:
                change = {row: -weight for row, weight in content.items()}
            else:
                change = {row: max(weight, -content.get(row, 0)) for row, weight in tick.items()}
            content = sum_of([content, change])
            found = circuit.tick({"t": {row: w for row, w in change.items() if w}})["groups"]
            result = sum_of([result, contents(found)])
            assert result == grouped(content, extreme)
        assert not any(circuit.state_rows().values())
