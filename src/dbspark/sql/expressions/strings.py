"""Strings: search, parts, padding, case, splitting, LIKE and regular expressions.

Positions and lengths count code points; comparison and search go by bytes, which find the same in UTF-8. Where Arrow
has no kernel (positions that are columns, the n-th occurrence), columns are worked on as their bytes and offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.sql.expressions import patterns
from dbspark.sql.expressions.rules import Compiled, Context, Datum, EvaluationError, Frame, as_array, constant, rule
from dbspark.sql.expressions.vectors import (
    Vector,
    made,
    missing,
    numbers,
    numeric,
    strict,
    strict_arrays,
    text_of,
)
from dbspark.sql.plan import Call

STRING = pa.string()
BINARY = pa.binary()
BOOLEAN = pa.bool_()
INT = pa.int32()
_STRINGS = pa.list_(pa.field("element", STRING))


# ---------------------------------------------------------------------- bytes and offsets


def layout(array: pa.Array) -> tuple[Vector, Vector]:
    """Offsets (one more than rows, into the bytes) and the bytes of a column of strings."""
    _, offsets, data = array.buffers()
    if offsets is None or not len(array):
        at = np.zeros(len(array) + 1, np.int64)
    else:
        at = np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset).astype(np.int64)
    return at, np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)


def strings(dtype: pa.DataType, lengths: Vector, data: Vector, gone: Vector | None) -> pa.Array:
    """A column from the bytes of its values one after the other."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > 2**31 - 1:
        raise EvaluationError("strings of a batch take more than 2 GB; use smaller ticks")
    valid = None if gone is None or not gone.any() else pa.array(~gone).buffers()[1]
    buffers = [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(dtype, len(lengths), buffers)


def cut(array: pa.Array, begin: Vector, end: Vector, gone: Vector | None) -> pa.Array:
    """The bytes from `begin` to `end` of the column's data, for each row."""
    _, data = layout(array)
    lengths = end - begin
    if gone is not None:
        lengths = np.where(gone, 0, lengths)
    before = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    at = np.repeat(begin - before, lengths) + np.arange(total)
    return strings(array.type, lengths, data[at], gone)


class Characters:
    """Where the characters of a column begin."""

    def __init__(self, array: pa.Array) -> None:
        self.offsets, data = layout(array)
        self.first, self.last = int(self.offsets[0]), int(self.offsets[-1])
        heads = (data[self.first : self.last] & 0xC0) != 0x80
        self.ascii = bool(heads.all()) or pa.types.is_binary(array.type)
        if not self.ascii:
            self.starts = np.append(np.flatnonzero(heads) + self.first, self.last)
            before = np.zeros(len(heads) + 1, np.int64)
            np.cumsum(heads, out=before[1:])
            self.before = before

    def number(self, position: Vector) -> Vector:
        """The number of the character at a position in bytes."""
        return position - self.first if self.ascii else self.before[position - self.first]

    def position(self, number: Vector) -> Vector:
        """Where the character of a number begins."""
        return number + self.first if self.ascii else self.starts[number]

    def lengths(self) -> Vector:
        at = self.number(self.offsets)
        return at[1:] - at[:-1]


def occurrences(array: pa.Array, text: bytes) -> Vector:
    """Positions in the column's data where the text is, inside of one row; overlapping ones too."""
    offsets, data = layout(array)
    first, last = int(offsets[0]), int(offsets[-1])
    size = len(text)
    if last - first < size:
        return np.zeros(0, np.int64)
    window = last - first - size + 1
    found = np.flatnonzero(data[first : first + window] == text[0])
    for i in range(1, size):
        found = found[data[found + (first + i)] == text[i]]
    found = found + first
    row = np.searchsorted(offsets, found, side="right") - 1
    return found[found + size <= offsets[row + 1]]


_FEW = 16
"""As many different patterns are worth a kernel call each."""


def by_pattern(
    dtype: pa.DataType,
    function: Callable[..., pa.Array],
    args: Sequence[Compiled],
    chosen: Sequence[int],
    can_fail: bool = False,
    plain: Callable[..., Any] | None = None,
) -> Compiled:
    """A function that takes some arguments, the `chosen`, as one Python value; it is called once for each of them.

    The function takes the Python values, then the columns of the other arguments. Where there are many different
    values, `plain` is quicker: the same for one row, of all arguments in order.
    """
    if all(args[i].constant is not None for i in chosen):
        values = [args[i].constant.as_py() for i in chosen]
        if any(v is None for v in values):
            return constant(None, dtype)
        rest = [a for i, a in enumerate(args) if i not in chosen]
        return strict_arrays(dtype, lambda *arrays: function(*values, *arrays), rest, can_fail)

    def run(*arrays: pa.Array) -> pa.Array:
        gone = missing(arrays)
        keys = [arrays[i] for i in chosen]
        rest = [a for i, a in enumerate(arrays) if i not in chosen]
        codes = np.zeros(len(arrays[0]), np.int64)
        for key in keys:
            encoded = key.dictionary_encode()
            codes = codes * (len(encoded.dictionary) + 1) + numbers(encoded.indices.fill_null(0))
        live = np.arange(len(codes)) if gone is None else np.flatnonzero(~gone)
        order = live[np.argsort(codes[live], kind="stable")]
        bounds = np.flatnonzero(np.diff(codes[order])) + 1
        if plain is not None and len(bounds) >= _FEW:
            rows_ = zip(*(a.to_pylist() for a in arrays), strict=True)
            return pa.array([None if None in row else plain(*row) for row in rows_], dtype)
        parts = [pa.nulls(len(codes) - len(order), dtype)]
        for rows in np.split(order, bounds) if len(order) else []:
            at = pa.array(rows)
            values = [key[int(rows[0])].as_py() for key in keys]
            parts.append(function(*values, *(a.take(at) for a in rest)))
        dead = np.zeros(0, np.int64) if gone is None else np.flatnonzero(gone)
        back = np.empty(len(codes), np.int64)
        back[np.concatenate([dead, order])] = np.arange(len(codes))
        return pa.concat_arrays(parts).take(pa.array(back))

    return strict_arrays(dtype, run, args, can_fail)


def _all(args: Sequence[Compiled], *types: pa.DataType) -> bool:
    return all(a.type in types for a in args)


# ---------------------------------------------------------------------- search


@rule("StartsWith", "EndsWith", "Contains")
def contains(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not _all(args, STRING):
        return None
    kernel = {"StartsWith": pc.starts_with, "EndsWith": pc.ends_with, "Contains": pc.match_substring}[call.name]
    if args[1].constant is not None:
        text = text_of(args[1])
        return constant(None, BOOLEAN) if text is None else strict(BOOLEAN, lambda v: kernel(v, text), args[:1])
    if call.name == "Contains":
        return by_pattern(BOOLEAN, lambda text, v: kernel(v, text), args, [1], plain=lambda v, text: text in v)

    def run(value: pa.Array, part: pa.Array) -> pa.Array:
        offsets, _ = layout(value)
        at, _ = layout(part)
        size = np.minimum(at[1:] - at[:-1], offsets[1:] - offsets[:-1])
        gone = missing([value])
        if call.name == "StartsWith":
            ends = cut(value, offsets[:-1], offsets[:-1] + size, gone)
        else:
            ends = cut(value, offsets[1:] - size, offsets[1:], gone)
        return pc.equal(ends, part)  # a value that is too short is cut too short

    return strict_arrays(BOOLEAN, run, args)


@rule("Like")
def like(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not _all(args, STRING):
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
    if call.origin is None or not _all(args, STRING):
        return None
    listed = call.origin.jvm().patterns()
    given = [listed.apply(i) for i in range(listed.size())]
    told = [None if g is None else patterns.like(str(g.toString()), "\\") for g in given]
    if any(t is None and g is not None for t, g in zip(told, given, strict=True)):
        return None
    negated = call.name.startswith("Not")
    combine = pc.and_kleene if call.name.endswith("All") else pc.or_kleene

    def run(value: Datum) -> Datum:
        out: Datum | None = None
        for pattern in told:
            one: Datum = pa.scalar(None, BOOLEAN) if pattern is None else pc.match_substring_regex(value, pattern)
            one = pc.invert(one) if negated else one
            out = one if out is None else combine(out, one)
        return pc.if_else(pc.is_valid(value), out, pa.scalar(None, BOOLEAN))

    return strict(BOOLEAN, run, args)


@rule("RLike")
def rlike(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    pattern = text_of(args[1])
    regex = None if pattern is None else patterns.java(pattern)
    if regex is None or not _all(args, STRING):
        return None
    text = regex.text()
    return strict(BOOLEAN, lambda v: pc.match_substring_regex(v, text), args[:1])


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
    if not _all(args, STRING):
        return None

    def run(text: str, value: pa.Array) -> pa.Array:
        gone = missing([value])
        if not text:
            return made(INT, np.ones(len(value), np.int64), gone)
        return made(INT, _first_at(value, text.encode(), 0), gone)

    return by_pattern(INT, run, args, [1], plain=lambda v, text: v.find(text) + 1)


@rule("StringLocate")
def locate(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not _all(args[:2], STRING) or args[2].constant is None or args[2].type != INT:
        return None
    start = args[2].constant.as_py()
    if start is None:
        return constant(0, INT)

    def run(text: str, value: pa.Array) -> pa.Array:
        gone = missing([value])
        if start < 1:
            return made(INT, np.zeros(len(value), np.int64), gone)
        if not text:
            return made(INT, np.ones(len(value), np.int64), gone)
        return made(INT, _first_at(value, text.encode(), start - 1), gone)

    def plain(text: str, value: str) -> int:
        return 0 if start < 1 else 1 if not text else value.find(text, start - 1) + 1

    return by_pattern(INT, run, args[:2], [0], plain=plain)


# ---------------------------------------------------------------------- lengths and characters


@rule("Length")
def length(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type == STRING:
        return strict(INT, pc.utf8_length, args)
    return strict(INT, pc.binary_length, args) if args[0].type == BINARY else None


@rule("OctetLength", "BitLength")
def octet_length(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not _all(args, STRING, BINARY):
        return None
    if call.name == "OctetLength":
        return strict(INT, pc.binary_length, args)
    return strict(INT, lambda v: pc.multiply(pc.binary_length(v), pa.scalar(8, INT)), args)


@rule("Ascii")
def ascii_(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not _all(args, STRING):
        return None

    def run(value: pa.Array) -> pa.Array:
        offsets, data = layout(value)
        padded = np.append(data, np.zeros(4, np.uint8)).astype(np.int64)
        at = offsets[:-1]
        a, b, c, d = (padded[at + i] for i in range(4))
        tail = 0x3F
        wide = np.select(
            [a < 0x80, a < 0xE0, a < 0xF0],
            [a, (a & 0x1F) << 6 | b & tail, (a & 0x0F) << 12 | (b & tail) << 6 | c & tail],
            (a & 0x07) << 18 | (b & tail) << 12 | (c & tail) << 6 | d & tail,
        )
        return made(INT, np.where(offsets[1:] > at, wide, 0), missing([value]))

    return strict_arrays(INT, run, args)


_LATIN = pa.array([chr(i) for i in range(256)] + [""])


@rule("Chr")
def chr_(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != pa.int64():
        return None
    at = numeric(pa.int64(), lambda gone, v: np.where(v < 0, 256, v & 0xFF), args)
    return Compiled(STRING, lambda frame: _LATIN.take(at.array(frame)), at.can_fail)


# ---------------------------------------------------------------------- joining


@rule("ConcatWs")
def concat_ws(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """NULLs are skipped, of arrays their elements."""
    if args[0].type != STRING or not _all(args[1:], STRING, _STRINGS):
        return None
    if len(args) == 1:
        return strict(STRING, lambda sep: pc.if_else(pc.is_valid(sep), "", pa.scalar(None, STRING)), args)

    def run(frame: Frame) -> Datum:
        sep, *values = (a.run(frame) for a in args)
        # Not by binary_join_element_wise with null_handling="skip": it drops rows in which all values are NULL.
        from dbspark.sql.expressions.collections import present

        lists = present([as_array(v, frame.rows) for v in values])
        return pc.binary_join(lists, as_array(sep, frame.rows))

    return Compiled(STRING, run, any(a.can_fail for a in args))


def concat(args: Sequence[Compiled]) -> Compiled | None:
    """Strings one after the other; used by the rule of Concat, which also takes arrays."""
    dtype = args[0].type
    if not _all(args, dtype) or dtype not in (STRING, BINARY):
        return None
    empty = pa.scalar("" if dtype == STRING else b"", dtype)
    return strict(dtype, lambda *values: pc.binary_join_element_wise(*values, empty), args)


@rule("StringRepeat")
def repeat(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != STRING or args[1].constant is None or args[1].type != INT:
        return None
    times = args[1].constant.as_py()
    if times is None:
        return constant(None, STRING)
    return strict(STRING, lambda v: pc.binary_repeat(v, max(times, 0)), args[:1]) if times <= 10_000 else None


@rule("StringSpace")
def space(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    return None  # a number of spaces is rarely bounded


@rule("StringLPad", "StringRPad")
def pad(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != STRING or args[2].type != STRING or args[1].constant is None:
        return None
    width = args[1].constant.as_py()
    if width is None:
        return constant(None, STRING)
    if width > 10_000:
        return None

    def run(filler: str, value: pa.Array) -> pa.Array:
        kept = pc.utf8_slice_codeunits(value, 0, max(width, 0))
        if not filler or width <= 0:
            return kept
        whole = (filler * (width // len(filler) + 1))[:width]
        fillers = pa.array([whole[:n] for n in range(width + 1)], STRING)
        added = fillers.take(pc.subtract(pa.scalar(width, INT), pc.utf8_length(kept)))
        both = (added, kept) if call.name == "StringLPad" else (kept, added)
        return pc.binary_join_element_wise(*both, "")

    def plain(value: str, filler: str) -> str:
        kept = value[: max(width, 0)]
        more = max(width, 0) - len(kept)
        added = (filler * (more // len(filler) + 1))[:more] if filler else ""
        return added + kept if call.name == "StringLPad" else kept + added

    return by_pattern(STRING, run, [args[0], args[2]], [1], plain=plain)


# ---------------------------------------------------------------------- parts


def _substring(value: pa.Array, pos: Vector, size: Vector, gone: Vector | None) -> pa.Array:
    """From a position (from 1, or from the end if negative), so many characters."""
    characters = Characters(value)
    here = characters.number(characters.offsets)
    total = here[1:] - here[:-1]
    start = np.where(pos > 0, pos - 1, np.where(pos < 0, total + pos, 0))
    end = np.clip(start + size, -(2**31), 2**31 - 1)
    begin = np.clip(start, 0, total)
    end = np.maximum(np.clip(end, 0, total), begin)
    return cut(value, characters.position(here[:-1] + begin), characters.position(here[:-1] + end), gone)


@rule("Substring")
def substring(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not _all(args[:1], STRING, BINARY) or not _all(args[1:], INT):
        return None
    pos, size = (a.constant.as_py() if a.constant is not None else None for a in args[1:])
    if pos is not None and size is not None and pos > 0 and args[0].type == STRING:
        end = min(pos - 1 + size, 2**31 - 1) if size > 0 else pos - 1
        return strict(STRING, lambda v: pc.utf8_slice_codeunits(v, pos - 1, end), args[:1])

    def run(value: pa.Array, pos: pa.Array, size: pa.Array) -> pa.Array:
        gone = missing([value, pos, size])
        where, many = (numbers(a).astype(np.int64) for a in (pos, size))
        return _substring(value, where, many, gone)

    return strict_arrays(args[0].type, run, args)


@rule("Overlay")
def overlay(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not _all(args[:2], STRING) or not _all(args[2:], INT):
        return None

    def run(value: pa.Array, new: pa.Array, pos: pa.Array, size: pa.Array) -> pa.Array:
        gone = missing([value, new, pos, size])
        at, many = (numbers(a).astype(np.int64) for a in (pos, size))
        many = np.where(many >= 0, many, Characters(new).lengths())
        before = _substring(value, np.int64(1), at - 1, gone)
        behind = _substring(value, at + many, np.int64(2**31 - 1), gone)
        return pc.binary_join_element_wise(before, new, behind, "")

    return strict_arrays(STRING, run, args)


@rule("SubstringIndex")
def substring_index(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not _all(args[:2], STRING) or args[2].constant is None or args[2].type != INT:
        return None
    count = args[2].constant.as_py()
    if count is None:
        return constant(None, STRING)

    def run(delimiter: str, value: pa.Array) -> pa.Array:
        gone = missing([value])
        offsets, _ = layout(value)
        begin, end = offsets[:-1], offsets[1:]
        if not delimiter or count == 0:
            return cut(value, begin, begin, gone)
        text = delimiter.encode()
        found = np.append(occurrences(value, text), np.int64(2**62))
        if count > 0:
            first = np.searchsorted(found, begin)
            at = found[np.minimum(first + count - 1, len(found) - 1)]
            return cut(value, begin, np.where(at < end, at, end), gone)
        last = np.searchsorted(found, end)
        which = last + count
        at = found[np.maximum(which, 0)]
        inside = (which >= 0) & (at >= begin) & (at < end)
        return cut(value, np.where(inside, at + len(text), begin), end, gone)

    def plain(value: str, delimiter: str) -> str:
        if not delimiter or count == 0:
            return ""
        at = -1 if count > 0 else len(value) - len(delimiter) + 1
        for _ in range(abs(count)):
            # Occurrences may overlap.
            at = value.find(delimiter, at + 1) if count > 0 else _last(value, delimiter, at - 1)
            if at < 0:
                return value
        return value[:at] if count > 0 else value[at + len(delimiter) :]

    return by_pattern(STRING, run, args[:2], [1], plain=plain)


def _last(value: str, text: str, before: int) -> int:
    """Where the text last begins, not behind a position."""
    return -1 if before < 0 else value.rfind(text, 0, before + len(text))


_TRIMS = {"StringTrim": pc.utf8_trim, "StringTrimLeft": pc.utf8_ltrim, "StringTrimRight": pc.utf8_rtrim}


@rule(*_TRIMS)
def trim(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not _all(args, STRING):
        return None
    kernel = _TRIMS[call.name]
    if len(args) == 1:
        return strict(STRING, lambda v: kernel(v, " "), args)
    strip = {"StringTrim": str.strip, "StringTrimLeft": str.lstrip, "StringTrimRight": str.rstrip}[call.name]
    return by_pattern(STRING, lambda chars, v: kernel(v, chars) if chars else v, args, [1], plain=strip)


@rule("StringReplace")
def replace(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not _all(args, STRING):
        return None

    def run(old: str, new: str, value: pa.Array) -> pa.Array:
        return pc.replace_substring(value, old, new) if old else value

    return by_pattern(STRING, run, args, [1, 2], plain=lambda v, old, new: v.replace(old, new) if old else v)


@rule("StringTranslate")
def translate(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    old, new = (text_of(a) for a in args[1:])
    if old is None or new is None or not old.isascii() or not new.isascii() or not _all(args, STRING):
        return None
    table = np.arange(256, dtype=np.uint8)
    kept = np.ones(256, np.bool_)
    done: set[str] = set()
    for i, c in enumerate(old):
        if c in done:
            continue
        done.add(c)
        if i < len(new) and new[i] != "\0":
            table[ord(c)] = ord(new[i])
        else:
            kept[ord(c)] = False

    def run(value: pa.Array) -> pa.Array:
        offsets, data = layout(value)
        used = data[offsets[0] : offsets[-1]]
        stays = kept[used]
        before = np.zeros(len(used) + 1, np.int64)
        np.cumsum(stays, out=before[1:])
        at = before[offsets - offsets[0]]
        return strings(STRING, at[1:] - at[:-1], table[used[stays]], missing([value]))

    return strict_arrays(STRING, run, args[:1])


@rule("Elt")
def elt(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != INT or not _all(args[1:], STRING) or any(a.can_fail for a in args[1:]):
        return None
    fails = bool(call.option("failOnError", context.ansi))
    many = len(args) - 1

    def run(frame: Frame) -> Datum:
        at, *values = (a.array(frame) for a in args)
        number = numbers(at).astype(np.int64)
        outside = (number < 1) | (number > many)
        gone = missing([at])
        if fails and np.any(outside if gone is None else outside & ~gone):
            raise EvaluationError(f"[INVALID_ARRAY_INDEX] The index is out of bounds. The array has {many} elements.")
        gone = outside if gone is None else outside | gone
        which = pa.array(np.where(gone, 0, number - 1), mask=gone)
        return pc.choose(which, *values)

    return Compiled(STRING, run, fails or args[0].can_fail)


# ---------------------------------------------------------------------- case and order


_NEWER = {
    0x1C89: 0x1C8A, 0xA7CB: 0x0264, 0xA7CC: 0xA7CD, 0xA7CE: 0xA7CF, 0xA7D2: 0xA7D3, 0xA7D4: 0xA7D5, 0xA7DA: 0xA7DB,
    0xA7DC: 0x019B, **{0x10D50 + i: 0x10D70 + i for i in range(22)}, **{0x16EA0 + i: 0x16EBB + i for i in range(25)},
}  # fmt: skip
"""Capital and small letters of Unicode 16 and 17, which Spark's tables have and those of older Pythons do not."""
_NEWER_UP = {small: capital for capital, small in _NEWER.items()}


def lower(text: str) -> str:
    return text.lower().translate(_NEWER)


def upper(text: str) -> str:
    return text.upper().translate(_NEWER_UP)


def initcap(text: str) -> str:
    """The first letter of each word as in titles, where only spaces part words."""
    return " ".join(
        word[:1].title().translate(_NEWER_UP) + lower(word)[len(word[:1].lower()) :] for word in text.split(" ")
    )


def _by_value(value: pa.Array, function: Callable[[str], str]) -> pa.Array:
    """A function of Python, for different values once."""
    encoded = value.dictionary_encode()
    texts = pa.array([function(v) for v in encoded.dictionary.to_pylist()], STRING)
    return texts.take(encoded.indices)


@rule("Lower", "Upper", "InitCap")
def case(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """ASCII by Arrow; what is not, by Python, whose rules are Unicode's as Spark's are."""
    if not _all(args, STRING):
        return None
    kernel, function = {
        "Lower": (pc.ascii_lower, lower), "Upper": (pc.ascii_upper, upper), "InitCap": (None, initcap)
    }[call.name]  # fmt: skip

    def run(value: pa.Array) -> pa.Array:
        if kernel is None:
            return _by_value(value, function)
        plain = pc.string_is_ascii(value)
        if pc.all(plain).as_py() is not False:
            return kernel(value)
        others = pc.if_else(plain, pa.scalar(None, STRING), value)
        return pc.if_else(plain, kernel(pc.if_else(plain, value, "")), _by_value(others, function))

    return strict_arrays(STRING, run, args)


@rule("Reverse")
def reverse(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type == STRING:
        return strict(STRING, pc.utf8_reverse, args)
    if pa.types.is_list(args[0].type):
        from dbspark.sql.expressions.arrays import reversed_lists

        return strict_arrays(args[0].type, reversed_lists, args)
    return None


# ---------------------------------------------------------------------- splitting and regular expressions


def _listed(lists: pa.Array) -> pa.Array:
    """Lists with the field name that ours have."""
    return lists.cast(_STRINGS)


@rule("StringSplit")
def split(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    pattern, limit = text_of(args[1]), args[2].constant
    if pattern is None or limit is None or not limit.is_valid or not _all(args[:1], STRING):
        return None
    most = limit.as_py()
    text = patterns.literal(pattern)
    if not pattern or most == 1:
        return None
    splits = most - 1 if most > 0 else None
    if text:
        return strict_arrays(_STRINGS, lambda v: _listed(pc.split_pattern(v, text, max_splits=splits)), args[:1])
    regex = patterns.java(pattern)
    if regex is None or regex.nullable or regex.ends:
        return None
    told = regex.text()
    return strict_arrays(_STRINGS, lambda v: _listed(pc.split_pattern_regex(v, told, max_splits=splits)), args[:1])


@rule("StringSplitSQL")
def split_sql(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not _all(args, STRING):
        return None

    def run(delimiter: str, value: pa.Array) -> pa.Array:
        if delimiter:
            return _listed(pc.split_pattern(value, delimiter))
        gone = missing([value])
        offsets = pa.array(np.arange(len(value) + 1, dtype=np.int32))
        return pa.ListArray.from_arrays(offsets, value, type=_STRINGS, mask=None if gone is None else pa.array(gone))

    return by_pattern(_STRINGS, run, args, [1], plain=lambda v, d: v.split(d) if d else [v])


@rule("RegExpExtract")
def regexp_extract(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    pattern, group = text_of(args[1]), args[2].constant
    if pattern is None or group is None or not group.is_valid or not _all(args[:1], STRING):
        return None
    regex = patterns.java(pattern)
    wanted = group.as_py()
    if regex is None or not 0 <= wanted <= regex.groups or wanted in regex.repeated:
        return None
    told = regex.text(wanted)

    def run(value: pa.Array) -> pa.Array:
        found = pc.extract_regex(value, told)
        part = found.field(0) if isinstance(found, pa.StructArray) else found.combine_chunks().field(0)
        text = pc.if_else(pc.is_valid(found), pc.fill_null(part, ""), "")
        return pc.if_else(pc.is_valid(value), text, pa.scalar(None, STRING))

    return strict_arrays(STRING, run, args[:1])


@rule("RegExpReplace")
def regexp_replace(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    pattern, new, start = text_of(args[1]), text_of(args[2]), args[3].constant
    if pattern is None or new is None or start is None or start.as_py() != 1 or not _all(args[:1], STRING):
        return None
    regex = patterns.java(pattern)
    if regex is None or regex.nullable or regex.ends:
        return None
    put = patterns.replacement(new, regex.groups)
    if put is None or (regex.repeated and "\\" in put):
        return None
    told = regex.text()
    return strict(STRING, lambda v: pc.replace_substring_regex(v, told, put), args[:1])


# ---------------------------------------------------------------------- formatting


@rule("FormatString")
def format_string(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """Only %s of strings and %d of integers, without widths or flags."""
    pattern = text_of(args[0])
    if pattern is None:
        return None
    parts: list[str] = [""]
    given: list[Compiled] = []
    i = 0
    while i < len(pattern):
        if pattern[i] != "%":
            parts[-1] += pattern[i]
            i += 1
            continue
        kind = pattern[i + 1 : i + 2]
        i += 2
        if kind == "%":
            parts[-1] += "%"
        elif kind == "n":
            parts[-1] += "\n"
        elif kind in ("s", "d") and len(given) < len(args) - 1:
            arg = args[1 + len(given)]
            if not (pa.types.is_integer(arg.type) or (kind == "s" and arg.type == STRING)):
                return None
            given.append(arg)
            parts.append("")
        else:
            return None
    if not given:
        return None
    rest = args[1 + len(given) :]

    def run(frame: Frame) -> Datum:
        pieces: list[Datum] = [pa.repeat(pa.scalar(parts[0]), frame.rows)]
        for arg, text in zip(given, parts[1:], strict=True):
            pieces.append(pc.fill_null(arg.array(frame).cast(STRING), "null"))
            pieces.append(pa.scalar(text))
        return pc.binary_join_element_wise(*pieces, "")

    return Compiled(STRING, run, any(a.can_fail for a in given)) if not any(a.can_fail for a in rest) else None
