"""Settings of a pipeline: defaults, and what is refused."""

import pytest

from dbspark.errors import ConfigError
from dbspark.pipeline.settings import DEFAULTS, parse_bytes, validated_settings


def test_settings_that_are_left_out_have_their_defaults():
    assert validated_settings({}) == DEFAULTS
    assert validated_settings({"history": 3}) == {**DEFAULTS, "history": 3}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"histroy": 1}, "no setting 'histroy'"),
        ({"history": -1}, "not a number of ticks"),
        ({"read_only": "yes"}, "True or False"),
        ({"reserve": "much"}, "not an amount of memory"),
    ],
)
def test_other_settings_are_refused_by_name(config, message):
    with pytest.raises(ConfigError, match=message):
        validated_settings(config)


def test_amounts_of_memory_are_written_as_for_java():
    assert [parse_bytes(a) for a in (7, "7", "2k", "2KB", "3m", "1g", "1t")] == [
        7,
        7,
        2048,
        2048,
        3 << 20,
        1 << 30,
        1 << 40,
    ]
