"""Schemas and tables as JSON beside the state."""

import json

from dbspark.columnar.schema import Schema
from dbspark.runtime.catalog import decode_schema, decode_tables, encode_schema
from dbspark.runtime.tables import TableDefinition
from dbspark.storage.store import Committed

SCHEMA = Schema.parse("k BIGINT NOT NULL, d DECIMAL(12, 2), s STRUCT<a: INT, b: ARRAY<STRING>>")


def test_a_schema_is_the_same_after_json():
    assert decode_schema(json.loads(json.dumps(encode_schema(SCHEMA)))) == SCHEMA


def test_tables_of_a_program_that_does_not_say_when_they_were_created():
    table = {"name": "t", "schema": encode_schema(SCHEMA), "key": ["k"]}
    found = decode_tables(Committed(7, program={"tables": [table, {**table, "name": "u", "created": 5}]}))
    assert found == [TableDefinition("t", SCHEMA, ("k",), 0), TableDefinition("u", SCHEMA, ("k",), 5)]
