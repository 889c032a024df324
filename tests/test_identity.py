"""Identities: what they are made of, what makes a difference, and that names of classes make none."""

import datetime
import math
import re
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from enum import Enum
from itertools import combinations
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dbspark
from dbspark.circuit import Builder
from dbspark.circuit.graph import DELAY, SOURCE
from dbspark.columnar import Schema, SortKey
from dbspark.identity import Identified, digest, encoded, encoded_value, unshared
from dbspark.operators.aggregate import Average, Count, Sum
from dbspark.operators.external_function import ExternalFunction
from dbspark.operators.function import Function, identified
from dbspark.operators.join import Join
from dbspark.operators.linear import FlatMap, Scale
from dbspark.operators.range_join import RangeJoin
from dbspark.operators.top_k import TopK
from dbspark.operators.window import Frame, FrameSum
from tests.identities import declared

ORDERS = Schema.parse("id BIGINT, customer BIGINT, amount BIGINT")
BY_CUSTOMER = SortKey(ORDERS, [1], [(2, True, True)])

MADE = [
    Scale(ORDERS, 2),
    TopK(BY_CUSTOMER, 3, 1),
    Join(SortKey(ORDERS, [1]), SortKey(ORDERS, [0])),
    Count(1),
    Average(2, pa.int64()),
    Frame("rows", -1, 1),
    FrameSum(2, Frame("range", None, 0)),
    ORDERS,
    BY_CUSTOMER,
    Function(len, "length"),
]


# ---------------------------------------------------------------------- what is declared


def test_every_class_declares_a_kind_and_a_version_of_its_own():
    for cls, name in declared().items():
        own = vars(cls)
        assert "kind" in own, f"{name} declares no kind: a stable name in the field's own words (dbspark/identity.py)"
        assert "version" in own, f"{name} declares no version: 1, raised whenever its state's layout or meaning changes"
        assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", own["kind"]), f"{name}: kind {own['kind']!r}"
        assert type(own["version"]) is int, name
        assert own["version"] >= 1, name


def test_kinds_are_unique():
    kinds = Counter(vars(cls)["kind"] for cls in declared())
    kinds.update(kind for kind, _ in (SOURCE, DELAY))
    twice = {kind: [n for c, n in declared().items() if vars(c)["kind"] == kind] for kind, n in kinds.items() if n > 1}
    assert not twice, f"state of one would be taken for state of the other: {twice}"


def test_the_classes_that_are_declared_are_found():
    found = declared()
    assert {Join, RangeJoin, FlatMap, ExternalFunction, TopK, Count, FrameSum, Frame, Function, Schema, SortKey} <= set(
        found
    )
    assert len(found) > 60


def test_every_class_that_is_declared_says_what_it_is():
    for cls, name in declared().items():
        first = (cls.__doc__ or "").strip().splitlines()
        assert first, f"{name} has no docstring"
        assert not first[0].startswith("See "), f"{name}: {first[0]}"


# ---------------------------------------------------------------------- what makes a difference


@pytest.mark.parametrize("given", MADE, ids=lambda g: type(g).kind)
def test_the_name_of_a_class_makes_no_difference(given):
    """As a subclass of another name, in another module."""
    before = digest(given)
    if type(given) in (Schema, SortKey):
        renamed = type("Renamed", (), {"kind": given.kind, "version": given.version, "parameters": given.parameters})()
        assert digest(renamed) == before
        return
    body = {"__module__": "elsewhere", "__slots__": ()}
    renamed = type("Renamed", (type(given),), body)
    other = renamed.__new__(renamed)
    slots = [s for c in type(given).__mro__ for s in vars(c).get("__slots__", ())]
    for name in {*slots, *getattr(given, "__dict__", ())}:
        object.__setattr__(other, name, getattr(given, name))
    assert digest(other) == before


@pytest.mark.parametrize("given", MADE, ids=lambda g: type(g).kind)
def test_kind_version_and_parameters_make_a_difference(given):
    def like(**more):
        body = {"kind": given.kind, "version": given.version, "parameters": lambda self: given.parameters()}
        return digest(type("Other", (), {**body, **more})())

    ids = {
        digest(given),
        like(version=given.version + 1),
        like(kind=f"{given.kind}-2"),
        like(parameters=lambda self: (*given.parameters(), None)),
    }
    assert like() == digest(given)
    assert len(ids) == 4


def test_the_version_of_what_is_inside_makes_a_difference():
    """Of an aggregate's inner sum, of a frame in a window function."""

    class OtherSum(Sum):
        version: ClassVar[int] = Sum.version + 1

    plain, other = Average(2, pa.int64()), Average(2, pa.int64())
    other.sum = OtherSum(2, pa.int64())
    assert digest(plain) != digest(other)


def test_a_renamed_operator_is_the_same_node():
    class Turned(Scale):
        pass

    ids = []
    for cls in (Scale, Turned):
        b = Builder()
        stream = b.source("t", ORDERS)
        ids.append(b.graph.add(cls(ORDERS, -1), [stream], ["delta"], "delta").id)
    assert ids[0] == ids[1]


def test_another_version_of_an_operator_is_another_node():
    class Later(Scale):
        version: ClassVar[int] = Scale.version + 1

    b = Builder()
    stream = b.source("t", ORDERS)
    assert b.negate(stream).id != b.graph.add(Later(ORDERS, -1), [stream], ["delta"], "delta").id


class Colour(Enum):
    RED = "red"
    ONE = 1


DIFFERENT = [
    None, True, False, 1, 0, -1, 10**30, "1", "", "True", b"1", b"", 1.0, 0.0, -0.0, math.inf, math.nan,
    Decimal(1), Decimal("1.0"), (), (1,), ((1,),), (1, 1), ("1",), (None,), ((), ()), "a", ("a", "b"), ("ab",),
    datetime.date(1970, 1, 2), datetime.datetime(1970, 1, 2), datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC),
    datetime.time(0, 0, 1), datetime.timedelta(seconds=1), pa.int64(), pa.int32(), pa.timestamp("us"),
    pa.timestamp("us", "UTC"), pa.decimal128(10, 2), pa.decimal128(10, 3), pa.list_(pa.int64()),
    pa.struct([pa.field("a", pa.int64())]), pa.struct([pa.field("b", pa.int64())]),
    pa.struct([pa.field("a", pa.int64(), False)]), pa.map_(pa.string(), pa.int64()), pa.field("a", pa.int64()),
    pa.scalar(1), pa.scalar(1, pa.int32()), pa.scalar(None, pa.int32()), pa.scalar("1"),
    pa.scalar(datetime.date(2020, 1, 1)), pa.scalar(3_000_000, pa.int32()).cast(pa.date32()), pa.scalar([1, 2]),
    pa.scalar({"a": 1}), pa.month_day_nano_interval(),
]  # fmt: skip


def test_different_values_have_different_bytes():
    for one, other in combinations(DIFFERENT, 2):
        if one is not other:
            assert encoded(one) != encoded(other), (one, other)


def test_an_enum_is_its_value():
    assert encoded(Colour.RED) == encoded("red")
    assert encoded(Colour.ONE) == encoded(1)


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
)


def shape(value):
    """A value such that equal ones are equal in type as well."""
    if isinstance(value, tuple):
        return tuple, tuple(map(shape, value))
    return type(value), math.copysign(1, value) if isinstance(value, float) else 0, value


@given(one=plain_values, other=plain_values)
def test_bytes_are_equal_where_values_are(one, other):
    assert (encoded(one) == encoded(other)) == (shape(one) == shape(other))


@given(texts=st.lists(st.text(), min_size=1, max_size=4), cut=st.integers(0, 20))
def test_bytes_say_where_a_part_ends(texts, cut):
    """The same characters in other parts are another identity."""
    whole = "".join(texts)
    parts = (whole[:cut], whole[cut:])
    assert (encoded(parts) == encoded(tuple(texts))) == (parts == tuple(texts))


def test_rows_may_hold_lists_and_structs():
    rows = [[1, 2], [1, [2]], {"a": 1}, {"b": 1}, {"a": "1"}, (1, 2), [], {}, [None], [{}]]
    assert len({encoded_value(r) for r in rows}) == len(rows)


@pytest.mark.parametrize("given", [[1], {"a": 1}, {1}, object(), len, lambda: 1, int, Path("x"), range(3), 1j])
def test_whatever_has_no_canonical_form_is_refused_and_its_owner_is_named(given):
    class Odd:
        kind = "odd-operator"
        version = 1

        def parameters(self):
            return 1, (given,)

    with pytest.raises(TypeError, match=r"'odd-operator' \(class Odd\): a parameter of type .* has no canonical form"):
        digest("node", Odd())


def test_a_class_that_declares_nothing_is_refused():
    class Undeclared:
        def parameters(self):
            return ()

    with pytest.raises(TypeError, match="declare kind, version and parameters"):
        digest(Undeclared())
    assert not isinstance(Undeclared(), Identified)


def test_an_unshared_identity_is_never_that_of_another_process():
    program = "from dbspark.identity import digest, unshared; print(digest(unshared()), digest(unshared()))"
    source = str(Path(dbspark.__file__).parents[1])
    out = [
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONPATH": source}
        ).stdout.split()
        for _ in range(2)
    ]
    assert len({*out[0], *out[1], digest(unshared()), digest(unshared())}) == 6


# ---------------------------------------------------------------------- functions


def test_a_function_is_identified_by_its_name_or_by_what_it_declares():
    def one(columns):
        return columns[0]

    def other(columns):
        return columns[1]

    assert digest(Function(one, "f")) == digest(Function(other, "f"))
    assert digest(Function(one, "f")) != digest(Function(one, "g"))
    assert digest(Function(one)) != digest(Function(other))
    first, second, third = identified("f")(one), identified("f", 2)(other), identified("f")(lambda c: 3)
    assert digest(Function(first)) == digest(Function(third))
    assert digest(Function(first)) != digest(Function(second))
    assert digest(Function(lambda c: first(c))) != digest(Function(lambda c: second(c)))


def test_what_a_function_is_called_for_people_makes_no_difference():
    one, other = (Function(len, name, identity=("step", 1)) for name in ("one", "other"))
    assert digest(one) == digest(other)
    assert (one.name, other.name) == ("one", "other")
