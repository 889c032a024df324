"""Finding strings in strings: containing, LIKE, regular expressions, positions, splitting and replacing by pattern."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.errors import EvaluationError
from dbspark.sql.expressions import patterns
from dbspark.sql.expressions.characters import (
    BOOLEAN,
    INT,
    STRING,
    STRINGS,
    Characters,
    all_of,
    by_pattern,
    cut,
    occurrences,
    offsets_and_bytes,
)
from dbspark.sql.expressions.rules import Compiled, Context, Datum, constant, rule
from dbspark.sql.expressions.vectors import (
    Vector,
    arrow_column,
    missing,
    null_intolerant,
    null_intolerant_arrays,
    numbers,
    text_of,
)
from dbspark.sql.plan import Call


@rule("StartsWith", "EndsWith", "Contains")
def contains(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not all_of(args, STRING):
        return None
    kernel = {"StartsWith": pc.starts_with, "EndsWith": pc.ends_with, "Contains": pc.match_substring}[call.name]
    if args[1].constant is not None:
        text = text_of(args[1])
        return (
            constant(None, BOOLEAN) if text is None else null_intolerant(BOOLEAN, lambda v: kernel(v, text), args[:1])
        )
    if call.name == "Contains":
        return by_pattern(BOOLEAN, lambda text, v: kernel(v, text), args, [1], plain=lambda v, text: text in v)

    def run(value: pa.Array, part: pa.Array) -> pa.Array:
        offsets, _ = offsets_and_bytes(value)
        at, _ = offsets_and_bytes(part)
        size = np.minimum(at[1:] - at[:-1], offsets[1:] - offsets[:-1])
        gone = missing([value])
        if call.name == "StartsWith":
            ends = cut(value, offsets[:-1], offsets[:-1] + size, gone)
        else:
            ends = cut(value, offsets[1:] - size, offsets[1:], gone)
        return pc.equal(ends, part)  # a value that is too short is cut too short

    return null_intolerant_arrays(BOOLEAN, run, args)


@rule("Like")
def like(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not all_of(args, STRING):
        return None
    escape = _escape(call)

    def run(pattern: str, value: pa.Array) -> pa.Array:
        translated = patterns.like(pattern, escape)
        if translated is None:
            if value.null_count == len(value):
                return pa.nulls(len(value), BOOLEAN)
            raise EvaluationError(f"[INVALID_FORMAT.ESC_AT_THE_END] The format is invalid: '{pattern}'.")
        return pc.match_substring_regex(value, translated)

    fixed = text_of(args[1])
    can_fail = fixed is None or patterns.like(fixed, escape) is None
    return by_pattern(BOOLEAN, run, args, [1], can_fail)


def _escape(call: Call) -> str:
    """The escape character, which Catalyst's JSON leaves out."""
    given = call.option("escapeChar")
    if given is None and call.origin is not None:
        given = call.origin.jvm().escapeChar()
    return "\\" if given is None else str(given)


@rule("LikeAll", "LikeAny", "NotLikeAll", "NotLikeAny")
def like_many(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """Constant patterns, which Catalyst's JSON leaves out."""
    if call.origin is None or not all_of(args, STRING):
        return None
    java_patterns = call.origin.jvm().patterns()
    given = [java_patterns.apply(i) for i in range(java_patterns.size())]
    regexes = [None if g is None else patterns.like(str(g.toString()), "\\") for g in given]
    if any(t is None and g is not None for t, g in zip(regexes, given, strict=True)):
        return None
    negated = call.name.startswith("Not")
    combine = pc.and_kleene if call.name.endswith("All") else pc.or_kleene

    def run(value: Datum) -> Datum:
        out: Datum | None = None
        for pattern in regexes:
            one: Datum = pa.scalar(None, BOOLEAN) if pattern is None else pc.match_substring_regex(value, pattern)
            one = pc.invert(one) if negated else one
            out = one if out is None else combine(out, one)
        return pc.if_else(pc.is_valid(value), out, pa.scalar(None, BOOLEAN))

    return null_intolerant(BOOLEAN, run, args)


@rule("RLike")
def rlike(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    pattern = text_of(args[1])
    regex = None if pattern is None else patterns.java(pattern)
    if regex is None or not all_of(args, STRING):
        return None
    text = regex.text()
    return null_intolerant(BOOLEAN, lambda v: pc.match_substring_regex(v, text), args[:1])


def _first_at(array: pa.Array, text: bytes, start: int) -> Vector:
    """The number (from 1) of the character where the text first is, not before the character `start`; 0 if nowhere."""
    characters = Characters(array)
    offsets = characters.offsets
    if start == 0:
        after = numbers(pc.fill_null(pc.find_substring(array, text), -1)).astype(np.int64)
        if characters.ascii:
            return after + 1
        at = np.where(after < 0, 2**62, offsets[:-1] + after)
        here = characters.number(offsets)
    else:
        here = characters.number(offsets)
        begin = here[:-1] + np.minimum(start, here[1:] - here[:-1])
        found = np.append(occurrences(array, text), np.int64(2**62))
        at = found[np.searchsorted(found, characters.position(begin))]
    inside = at < offsets[1:]
    return np.where(inside, characters.number(np.where(inside, at, offsets[:-1])) - here[:-1] + 1, 0)


@rule("StringInstr")
def instr(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not all_of(args, STRING):
        return None

    def run(text: str, value: pa.Array) -> pa.Array:
        gone = missing([value])
        if not text:
            return arrow_column(INT, np.ones(len(value), np.int64), gone)
        return arrow_column(INT, _first_at(value, text.encode(), 0), gone)

    return by_pattern(INT, run, args, [1], plain=lambda v, text: v.find(text) + 1)


@rule("StringLocate")
def locate(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not all_of(args[:2], STRING) or args[2].constant is None or args[2].type != INT:
        return None
    start = args[2].constant.as_py()
    if start is None:
        return constant(0, INT)

    def run(text: str, value: pa.Array) -> pa.Array:
        gone = missing([value])
        if start < 1:
            return arrow_column(INT, np.zeros(len(value), np.int64), gone)
        if not text:
            return arrow_column(INT, np.ones(len(value), np.int64), gone)
        return arrow_column(INT, _first_at(value, text.encode(), start - 1), gone)

    def plain(text: str, value: str) -> int:
        return 0 if start < 1 else 1 if not text else value.find(text, start - 1) + 1

    return by_pattern(INT, run, args[:2], [0], plain=plain)


def _as_list_column(lists: pa.Array) -> pa.Array:
    """Lists with the field name that ours have."""
    return lists.cast(STRINGS)


@rule("StringSplit")
def split(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    pattern, limit = text_of(args[1]), args[2].constant
    if pattern is None or limit is None or not limit.is_valid or not all_of(args[:1], STRING):
        return None
    most = limit.as_py()
    text = patterns.literal(pattern)
    if not pattern or most == 1:
        return None
    splits = most - 1 if most > 0 else None
    if text:
        return null_intolerant_arrays(
            STRINGS, lambda v: _as_list_column(pc.split_pattern(v, text, max_splits=splits)), args[:1]
        )
    regex = patterns.java(pattern)
    if regex is None or regex.nullable or regex.ends:
        return None
    regex_text = regex.text()
    return null_intolerant_arrays(
        STRINGS, lambda v: _as_list_column(pc.split_pattern_regex(v, regex_text, max_splits=splits)), args[:1]
    )


@rule("StringSplitSQL")
def split_sql(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not all_of(args, STRING):
        return None

    def run(delimiter: str, value: pa.Array) -> pa.Array:
        if delimiter:
            return _as_list_column(pc.split_pattern(value, delimiter))
        gone = missing([value])
        offsets = pa.array(np.arange(len(value) + 1, dtype=np.int32))
        return pa.ListArray.from_arrays(offsets, value, type=STRINGS, mask=None if gone is None else pa.array(gone))

    return by_pattern(STRINGS, run, args, [1], plain=lambda v, d: v.split(d) if d else [v])


@rule("RegExpExtract")
def regexp_extract(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    pattern, group = text_of(args[1]), args[2].constant
    if pattern is None or group is None or not group.is_valid or not all_of(args[:1], STRING):
        return None
    regex = patterns.java(pattern)
    wanted = group.as_py()
    if regex is None or not 0 <= wanted <= regex.groups or wanted in regex.repeated:
        return None
    regex_text = regex.text(wanted)

    def run(value: pa.Array) -> pa.Array:
        found = pc.extract_regex(value, regex_text)
        part = found.field(0) if isinstance(found, pa.StructArray) else found.combine_chunks().field(0)
        text = pc.if_else(pc.is_valid(found), pc.fill_null(part, ""), "")
        return pc.if_else(pc.is_valid(value), text, pa.scalar(None, STRING))

    return null_intolerant_arrays(STRING, run, args[:1])


@rule("RegExpReplace")
def regexp_replace(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    pattern, new, start = text_of(args[1]), text_of(args[2]), args[3].constant
    if pattern is None or new is None or start is None or start.as_py() != 1 or not all_of(args[:1], STRING):
        return None
    regex = patterns.java(pattern)
    if regex is None or regex.nullable or regex.ends:
        return None
    put = patterns.replacement(new, regex.groups)
    if put is None or (regex.repeated and "\\" in put):
        return None
    regex_text = regex.text()
    return null_intolerant(STRING, lambda v: pc.replace_substring_regex(v, regex_text, put), args[:1])
