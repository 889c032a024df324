"""Times are a lattice, frontiers are antichains in it, and advancing is what its definition says.

Everything is compared with brute force over a small grid, where "at or above" can be asked of every time there is.
"""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.errors import TimeError
from dbspark.trace import Antichain, Description, MutableAntichain, ProductTime, Time, TotalTime, advance_by

SIDE = {1: 12, 2: 6, 3: 4}
"""Values of each coordinate, by the number of coordinates."""


def grid(width):
    return [Time(t) for t in itertools.product(range(SIDE[width]), repeat=width)]


def made(coordinates):
    """A time of the type that its width calls for; three coordinates nest to the left or to the right."""
    if len(coordinates) == 1:
        return TotalTime(*coordinates)
    if len(coordinates) == 2:
        return ProductTime(*coordinates)
    a, b, c = coordinates
    return ProductTime(ProductTime(a, b), c) if (a + b + c) % 2 else ProductTime(TotalTime(a), ProductTime(b, c))


def times(width):
    return st.tuples(*[st.integers(0, SIDE[width] - 1)] * width).map(made)


def antichains(width, empty=True):
    return st.lists(times(width), min_size=0 if empty else 1, max_size=4).map(Antichain)


@st.composite
def some(draw, *kinds):
    """Things of one width: "t" a time, "f" a frontier, "F" one that is not empty, "l" a list of times."""
    width = draw(st.integers(1, 3))
    strategies = {
        "t": times(width),
        "f": antichains(width),
        "F": antichains(width, empty=False),
        "l": st.lists(times(width), max_size=6),
    }
    return tuple(draw(strategies[kind]) for kind in kinds)


def above(frontier, width):
    """Every time of the grid at or above a frontier, told by the definition."""
    return {t for t in grid(width) if any(all(a <= b for a, b in zip(e, t, strict=True)) for e in frontier)}


def width_of(*things):
    for thing in things:
        for t in [thing] if isinstance(thing, Time) else thing:
            return len(t)
    return 1


# ---------------------------------------------------------------------- times


@given(some("t", "t", "t"))
def test_times_are_partially_ordered(given):
    a, b, c = given
    assert a.less_equal(a)
    assert not (a.less_equal(b) and b.less_equal(a)) or a == b
    assert not (a.less_equal(b) and b.less_equal(c)) or a.less_equal(c)
    assert a.less_equal(b) == all(x <= y for x, y in zip(a, b, strict=True))


@given(some("t", "t", "t"))
def test_join_and_meet_are_a_distributive_lattice(given):
    a, b, c = given
    for one, other in ((Time.join, Time.meet), (Time.meet, Time.join)):
        assert one(a, b) == one(b, a)
        assert one(a, one(b, c)) == one(one(a, b), c)
        assert one(a, a) == a
        assert one(a, other(a, b)) == a
        assert one(a, other(b, c)) == other(one(a, b), one(a, c))
    assert a.less_equal(b) == (a.join(b) == b) == (a.meet(b) == a)


@given(some("t", "t"))
def test_join_is_the_least_above_both_and_meet_the_greatest_below_both(given):
    a, b = given
    everything = grid(len(a))
    uppers = [t for t in everything if a.less_equal(t) and b.less_equal(t)]
    assert a.join(b) in uppers
    assert all(a.join(b).less_equal(t) for t in uppers)
    lowers = [t for t in everything if t.less_equal(a) and t.less_equal(b)]
    assert a.meet(b) in lowers
    assert all(t.less_equal(a.meet(b)) for t in lowers)


@given(some("t", "t"))
def test_operations_keep_the_type_of_the_time(given):
    a, b = given
    for result in (a.join(b), a.meet(b), advance_by(a, Antichain([b]))):
        assert type(result) is type(a)
        assert result.width == len(a)


def test_ticks_are_totally_ordered():
    for a, b in itertools.product(grid(1), repeat=2):
        assert a.less_equal(b) or b.less_equal(a)


def test_nesting_to_the_left_and_to_the_right_is_the_same_time():
    assert ProductTime(ProductTime(1, 2), 3) == ProductTime(1, ProductTime(2, 3)) == Time((1, 2, 3))
    assert hash(ProductTime(ProductTime(1, 2), 3)) == hash(ProductTime(1, ProductTime(2, 3)))
    assert ProductTime(TotalTime(1), TotalTime(2)) == ProductTime(1, 2)
    assert TotalTime(4) == Time((4,))


def test_scopes_nest_no_deeper_than_batches_have_lanes():
    with pytest.raises(TimeError, match="nest"):
        ProductTime(ProductTime(1, 2), ProductTime(3, 4))


def test_times_of_different_scopes_do_not_mix():
    for call in (TotalTime(1).less_equal, TotalTime(1).join, TotalTime(1).meet, Antichain([TotalTime(1)]).less_equal):
        with pytest.raises(TimeError, match="coordinates"):
            call(ProductTime(1, 2))


def test_a_time_is_made_from_what_a_caller_has():
    assert Time.of(3) == TotalTime(3)
    assert Time.of((3, 4)) == ProductTime(3, 4)
    assert Time.of(ProductTime(3, 4)) == ProductTime(3, 4)
    assert TotalTime(3).less_equal(4)
    assert ProductTime(3, 4).join((5, 1)) == ProductTime(5, 4)
    assert repr(ProductTime(TotalTime(3), 4)) == "ProductTime(3, 4)"
    assert repr(TotalTime(3)) == "TotalTime(3)"


# ---------------------------------------------------------------------- antichains


@given(some("l"))
def test_an_antichain_holds_the_minimal_times_once_each(given):
    (listed,) = given
    frontier = Antichain(listed)
    assert set(frontier) == {t for t in listed if not any(s != t and s.less_equal(t) for s in listed)}
    assert len(frontier) == len(set(frontier))
    assert not any(a.less_equal(b) for a, b in itertools.permutations(frontier, 2))
    assert above(frontier, width_of(listed)) == above(listed, width_of(listed))
    assert bool(frontier) == bool(listed)


@given(some("l"), st.randoms(use_true_random=False))
def test_an_antichain_does_not_depend_on_the_order_of_its_times(given, random):
    (listed,) = given
    mixed = list(listed)
    random.shuffle(mixed)
    assert Antichain(mixed) == Antichain(listed)
    assert hash(Antichain(mixed)) == hash(Antichain(listed))


@given(some("f", "t", "l"))
def test_inserting_and_extending_add_what_is_above_the_new_times(given):
    frontier, time, listed = given
    width = len(time)
    inserted = frontier.insert(time)
    assert above(inserted, width) == above(frontier, width) | above([time], width)
    assert (inserted is frontier) == frontier.less_equal(time), "a time that is above adds nothing"
    assert above(frontier.extend(listed), width) == above(frontier, width) | above(listed, width)
    assert frontier.extend(()) is frontier


@given(some("f", "t"))
def test_a_time_is_at_or_above_a_frontier_if_an_element_is_at_or_below_it(given):
    frontier, time = given
    assert frontier.less_equal(time) == (time in above(frontier, len(time)))
    assert frontier.less_than(time) == (frontier.less_equal(time) and time not in set(frontier))


@given(some("f", "f"))
def test_a_frontier_dominates_those_that_are_not_before_it(given):
    a, b = given
    width = width_of(a, b)
    assert a.dominates(b) == (above(b, width) <= above(a, width))
    assert (a.dominates(b) and b.dominates(a)) == (a == b)
    assert a.dominates(Antichain()), "nothing is later than the end of time"


@given(some("f", "f"))
def test_join_and_meet_of_frontiers_are_intersection_and_union_of_what_is_above(given):
    a, b = given
    width = width_of(a, b)
    assert above(a.join(b), width) == above(a, width) & above(b, width)
    assert above(a.meet(b), width) == above(a, width) | above(b, width)


@given(some("f", "f", "f"))
def test_frontiers_are_a_distributive_lattice(given):
    a, b, c = given
    for one, other in ((Antichain.join, Antichain.meet), (Antichain.meet, Antichain.join)):
        assert one(a, b) == one(b, a)
        assert one(a, one(b, c)) == one(one(a, b), c)
        assert one(a, a) == a
        assert one(a, other(a, b)) == a
        assert one(a, other(b, c)) == other(one(a, b), one(a, c))
    assert a.dominates(b) == (a.join(b) == b) == (a.meet(b) == a)


def test_the_empty_frontier_is_the_end_of_time():
    end, some_time = Antichain(), Antichain([TotalTime(3)])
    assert not end
    assert not end.less_equal(0)
    assert end.join(some_time) == end
    assert end.meet(some_time) == some_time
    assert some_time.dominates(end)
    assert not end.dominates(some_time)
    assert end.dominates(end)
    with pytest.raises(TimeError, match="end of time"):
        end.meet_of_all()


@given(some("F"))
def test_the_meet_of_all_is_the_greatest_time_below_every_element(given):
    (frontier,) = given
    lowers = [t for t in grid(width_of(frontier)) if all(t.less_equal(e) for e in frontier)]
    assert frontier.meet_of_all() in lowers
    assert all(t.less_equal(frontier.meet_of_all()) for t in lowers)


# ---------------------------------------------------------------------- advancing


@given(some("t", "F"))
def test_advancing_is_the_meet_over_the_frontier_of_the_joins(given):
    time, frontier = given
    expected, *others = [time.join(s) for s in frontier]
    for other in others:
        expected = expected.meet(other)
    assert advance_by(time, frontier) == expected
    assert time.advance_by(frontier) == expected


@given(some("t", "F"))
def test_no_reader_at_or_above_the_frontier_can_tell_an_advanced_time(given):
    time, frontier = given
    advanced = advance_by(time, frontier)
    assert time.less_equal(advanced)
    assert advance_by(advanced, frontier) == advanced
    for reader in above(frontier, len(time)):
        assert time.less_equal(reader) == advanced.less_equal(reader)


@given(some("t", "t", "F"))
def test_times_that_no_reader_can_tell_apart_are_advanced_to_one(given):
    a, b, frontier = given
    same = all(a.less_equal(reader) == b.less_equal(reader) for reader in readers(frontier))
    assert (advance_by(a, frontier) == advance_by(b, frontier)) == same


def readers(frontier):
    """Times at or above a frontier, on a grid that reaches beyond all times of the tests."""
    width = width_of(frontier)
    everything = itertools.product(range(SIDE[width] + 1), repeat=width)
    return [Time(t) for t in everything if frontier.less_equal(t)]


@given(some("t", "t", "F"))
def test_advancing_keeps_the_order(given):
    a, b, frontier = given
    if a.less_equal(b):
        assert advance_by(a, frontier).less_equal(advance_by(b, frontier))


def test_advancing_to_the_end_of_time_changes_nothing():
    assert advance_by(ProductTime(3, 7), Antichain()) == ProductTime(3, 7)


def test_golden_values_of_advancing_joining_and_meeting():
    """D-11: the examples of the lattice's documentation."""
    assert advance_by(ProductTime(3, 7), Antichain([ProductTime(4, 8), ProductTime(5, 3)])) == ProductTime(4, 7)
    one, other = Antichain([ProductTime(3, 7), ProductTime(5, 6)]), Antichain([ProductTime(4, 6)])
    assert one.join(other) == Antichain([ProductTime(4, 7), ProductTime(5, 6)])
    assert one.meet(other) == Antichain([ProductTime(3, 7), ProductTime(4, 6)])


# ---------------------------------------------------------------------- counted frontiers

CHANGES = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.lists(st.tuples(times(width), st.integers(-2, 3)), max_size=4), max_size=8)
)


@given(CHANGES)
def test_a_mutable_antichain_is_the_frontier_of_its_positive_counts(rounds):
    held, counts = MutableAntichain(), Counter()
    for changes in rounds:
        before = held.frontier
        reported = held.update(changes)
        for time, change in changes:
            counts[time] += change
        assert held.frontier == Antichain(t for t, n in counts.items() if n > 0)
        assert all(held.count(t) == n for t, n in counts.items())
        followed = Counter(before)
        followed.update(dict(reported))
        assert sorted(followed.elements()) == sorted(held.frontier), "what is reported leads from one to the other"
        assert all(change in (-1, 1) for _, change in reported)
        assert len({t for t, _ in reported}) == len(reported)


def test_golden_values_of_counting():
    """D-10, A4.2: a frontier moves when the last hold on it goes."""
    held = MutableAntichain([1])
    assert held.update([(1, -1), (2, 7)]) == [(TotalTime(1), -1), (TotalTime(2), 1)]
    assert held.frontier == Antichain([TotalTime(2)])
    assert held.count(2) == 7
    twice = MutableAntichain([1, 1])
    assert twice.update([(1, -1)]) == []
    assert twice.update([(1, -1)]) == [(TotalTime(1), -1)]
    assert twice.frontier == Antichain()


def test_a_change_that_is_undone_in_the_same_update_is_not_reported():
    held = MutableAntichain([ProductTime(1, 2)])
    assert held.update([(ProductTime(1, 2), -1), (ProductTime(1, 2), 1)]) == []
    assert held.update([(ProductTime(0, 0), 1), (ProductTime(0, 0), -1)]) == []
    assert held.frontier == Antichain([ProductTime(1, 2)])


# ---------------------------------------------------------------------- descriptions


@given(some("f", "f", "f"))
def test_a_description_survives_json(frontiers):
    described = Description(*frontiers)
    back = Description.from_json(described.to_json())
    assert back == described
    assert hash(back) == hash(described)
