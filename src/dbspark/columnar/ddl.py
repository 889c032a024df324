"""Spark's DDL for schemas, read without a JVM: `a BIGINT NOT NULL, b ARRAY<STRUCT<x: INT>> COMMENT '…'`.

Only types are read here; Spark itself parses SQL. A Spark type without a counterpart in Arrow is stored as the nearest
Arrow type, and its name is in the field's metadata under `spark`, so that the schema can be turned back into Spark's.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from dbspark.errors import SchemaError

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([A-Za-z_0-9]+)|([<>(),:]))")

_SIMPLE = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
    "variant": pa.struct(
        [
            pa.field("value", pa.binary(), nullable=False),
            pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
        ]
    ),
}
TIME_DIGITS = 6
"""Digits of fractional seconds of TIME where the DDL gives none."""
_DAY_TIME = ("day", "hour", "minute", "second")


class _DdlParser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None:
                raise SchemaError(f"cannot read the schema at {text[at : at + 20]!r} in {text!r}")
            self.tokens.append(match.group().strip())
            at = match.end()
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at].lower() if self.at < len(self.tokens) else ""

    def next(self) -> str:
        if self.at >= len(self.tokens):
            raise SchemaError(f"the schema ends too early: {self.text!r}")
        self.at += 1
        return self.tokens[self.at - 1]

    def accept(self, word: str) -> bool:
        if self.peek() == word:
            self.at += 1
            return True
        return False

    def expect(self, word: str) -> None:
        found = self.next()
        if found.lower() != word:
            raise SchemaError(f"expected {word!r} but found {found!r} in the schema {self.text!r}")

    def name(self) -> str:
        token = self.next()
        return token[1:-1].replace("``", "`") if token.startswith("`") else token

    def number(self) -> int:
        token = self.next()
        if not token.isdigit():
            raise SchemaError(f"expected a number but found {token!r} in the schema {self.text!r}")
        return int(token)

    def field(self) -> pa.Field:
        name = self.name()
        try:
            return self._field(name)
        except SchemaError as error:
            raise SchemaError(f"column {name!r}: {error}") from None

    def _field(self, name: str) -> pa.Field:
        self.accept(":")
        dtype, spark = self.type()
        nullable = True
        while True:
            if self.accept("not"):
                self.expect("null")
                nullable = False
            elif self.accept("comment"):
                self.next()
            else:
                break
        return pa.field(name, dtype, nullable, _spark_metadata(spark))

    def unnamed(self, name: str) -> pa.Field:
        dtype, spark = self.type()
        return pa.field(name, dtype, True, _spark_metadata(spark))

    def type(self) -> tuple[pa.DataType, str]:
        """An Arrow type, and the name of the Spark type if Arrow has no counterpart for it, else an empty string."""
        word = self.next().lower()
        if word in _SIMPLE:
            if word == "string" and self.accept("collate"):
                check_collation(self.name())
            return _SIMPLE[word], ""
        if word in ("decimal", "dec", "numeric"):
            precision, scale = 10, 0
            if self.accept("("):
                precision = self.number()
                scale = self.number() if self.accept(",") else 0
                self.expect(")")
            if not (0 < precision <= 38 and scale <= precision):
                raise SchemaError(f"decimal({precision},{scale}) is not a Spark type; precision is 1 to 38")
            return pa.decimal128(precision, scale), ""
        if word in ("char", "character", "varchar"):
            self.expect("(")
            self.number()
            self.expect(")")
            if self.accept("collate"):
                check_collation(self.name())
            return pa.string(), ""
        if word == "time":
            digits = TIME_DIGITS
            if self.accept("("):
                digits = self.number()
                self.expect(")")
                if digits > 9:
                    raise SchemaError(f"time({digits}) is not a Spark type; its precision is 0 to 9")
            return pa.time64("ns"), "" if digits == TIME_DIGITS else f"time({digits})"
        if word == "interval":
            return self.interval()
        if word == "array":
            self.expect("<")
            element = self.unnamed("element")
            self.expect(">")
            return pa.list_(element), ""
        if word == "map":
            self.expect("<")
            key = self.unnamed("key").with_nullable(False)
            self.expect(",")
            value = self.unnamed("value")
            self.expect(">")
            return pa.map_(key, value), ""
        if word == "struct":
            self.expect("<")
            fields = []
            if self.peek() != ">":
                fields.append(self.field())
                while self.accept(","):
                    fields.append(self.field())
            self.expect(">")
            return pa.struct(fields), ""
        if word in ("geometry", "geography"):
            raise SchemaError(
                f"values of type {word} are not supported; keep them as BINARY, as ST_AsBinary gives them, and make "
                "them of it where they are needed"
            )
        raise SchemaError(f"unknown type {word!r} in the schema {self.text!r}")

    def interval(self) -> tuple[pa.DataType, str]:
        unit = self.peek()
        if unit in ("year", "month"):
            self.next()
            if self.accept("to"):
                self.expect("month")
                if unit == "month":
                    raise SchemaError("Spark has no interval month to month")
                unit = "year to month"
            return pa.int32(), f"interval {unit}"
        if unit in _DAY_TIME:
            self.next()
            if self.accept("to"):
                end = self.next().lower()
                if end not in _DAY_TIME or _DAY_TIME.index(end) <= _DAY_TIME.index(unit):
                    raise SchemaError(f"Spark has no interval {unit} to {end}")
                unit = f"{unit} to {end}"
            return pa.duration("us"), "" if unit == "day to second" else f"interval {unit}"
        return pa.month_day_nano_interval(), ""


def check_collation(name: str) -> None:
    """Raise for every collation but UTF8_BINARY, under which strings are equal if their bytes are."""
    if name.rsplit(".", 1)[-1].upper() != "UTF8_BINARY":
        raise SchemaError(
            f"strings of collation {name} are not supported: dbspark compares strings by their bytes (UTF8_BINARY), "
            "and equal ones of that collation may differ in them. Make the column a plain STRING; to compare without "
            "case, write lower(column); any other collation can be applied to what is read from the view, with COLLATE"
        )


def from_struct_type(struct: Any) -> pa.Schema:
    """The Arrow schema of a Spark StructType, by way of the names that its types have in DDL."""
    fields = []
    for f in struct.fields:
        try:
            fields.append(_spark_field(f.name, f.dataType, f.nullable))
        except SchemaError as error:
            raise SchemaError(f"column {f.name!r}: {error}") from None
    return pa.schema(fields)


def _spark_field(name: str, spark: Any, nullable: bool) -> pa.Field:
    kind = spark.typeName()
    if kind == "struct":
        dtype = pa.struct([_spark_field(f.name, f.dataType, f.nullable) for f in spark.fields])
    elif kind == "array":
        dtype = pa.list_(_spark_field("element", spark.elementType, spark.containsNull))
    elif kind == "map":
        key = _spark_field("key", spark.keyType, False)
        dtype = pa.map_(key, _spark_field("value", spark.valueType, spark.valueContainsNull))
    else:
        field = parse_ddl(f"`{name.replace('`', '``')}` {spark.simpleString()}").field(0)
        return field.with_nullable(nullable)
    return pa.field(name, dtype, nullable)


def _spark_metadata(spark: str) -> dict[bytes, bytes] | None:
    return {b"spark": spark.encode()} if spark else None


def parse_ddl(ddl: str) -> pa.Schema:
    parser = _DdlParser(ddl)
    if parser.peek() == "":
        raise SchemaError("the schema is empty; name at least one column, such as 'id BIGINT'")
    fields = [parser.field()]
    while parser.accept(","):
        fields.append(parser.field())
    if parser.peek():
        raise SchemaError(f"unexpected {parser.next()!r} in the schema {ddl!r}")
    return pa.schema(fields)
