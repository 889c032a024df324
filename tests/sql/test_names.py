"""Names by Spark's rules: case, backticks, and columns that cannot be told apart."""

from __future__ import annotations

import pytest

from dbspark.errors import SchemaError
from dbspark.sql.names import backquoted, check_columns, check_name, find_name, nearest, occurs_in, sql_name, unquoted


def test_names_ignore_case_unless_they_are_told_apart() -> None:
    assert find_name("T", ["t", "u"]) == "t"
    assert find_name("T", ["t", "T"]) == "T"
    assert find_name("T", ["t"], case_sensitive=True) is None
    assert find_name("`my View`", ["My view"]) == "My view"
    assert find_name("x", ["t"]) is None


@pytest.mark.parametrize("name", ["t", "my view", "a.b", "a`b", "größe", "`", "1x"])
def test_backticks_come_and_go(name: str) -> None:
    assert unquoted(backquoted(name)) == name
    assert unquoted(name) == name
    assert find_name(backquoted(name), [name]) == name
    assert occurs_in(name, f"SELECT * FROM {sql_name(name)}")


def test_a_name_within_another_word_does_not_occur() -> None:
    assert not occurs_in("t", "SELECT 1 FROM total")


def test_the_nearest_name_is_offered() -> None:
    assert nearest("ordrs", ["orders", "customers"]) == " (did you mean 'orders'?)"
    assert nearest("zzz", ["orders"]) == ""


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "`\t`"])
def test_a_name_needs_something_to_read(name: str) -> None:
    with pytest.raises(SchemaError, match="is not a name"):
        check_name(name, "table")


def test_columns_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(SchemaError, match=r"'a' and 'A', which Spark cannot tell apart.*AS"):
        check_columns("view 'v'", ["a", "b", "A"], case_sensitive=False)
    check_columns("view 'v'", ["a", "b", "A"], case_sensitive=True)
    with pytest.raises(SchemaError, match="_Weight AS Weight"):
        check_columns("view 'v'", ["a", "_Weight"], case_sensitive=False)
