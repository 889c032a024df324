"""Each backend in turn as that of Z-sets without a configuration of their own.

A test that makes such Z-sets asks for `each_backend`, and runs once with each. Those that name their backend, or do
not depend on one, run once. With DBSP_BACKEND in the environment, all run with that backend alone.
"""

import os
from collections.abc import Iterator

import pytest

from dbspark.zset import BACKENDS, configured

CHOSEN = os.environ.get("DBSP_BACKEND")


# Of the module, because hypothesis refuses fixtures of a function: they would be set up once for all of its examples.
@pytest.fixture(scope="module", params=[CHOSEN] if CHOSEN else BACKENDS)
def each_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The default backend for the extent of the test."""
    with configured(backend=request.param):
        yield request.param
