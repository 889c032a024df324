"""Errors of tasks on their way to the driver."""

import pytest

from dbspark.errors import DbsparkError, SchemaError, TransactionError
from dbspark.runtime.task import failure, raise_first


def test_an_error_comes_to_the_driver_with_its_type():
    found = (SchemaError("late"), 2, 0), (TransactionError("first"), 1, 1), (DbsparkError("x"), 1, 2)
    payloads = [failure(*given) for given in found]
    with pytest.raises(TransactionError, match=r"^first$"):
        raise_first(payloads)

    class Unknown(SchemaError):
        pass

    payload = failure(Unknown("of a type that the driver has not loaded"), 0, 0).replace(b"Unknown", b"Nowhere")
    with pytest.raises(SchemaError, match="has not loaded"):
        raise_first([payload])
    raise_first([])
