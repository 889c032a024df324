"""Strings: lengths, characters, joining, padding, parts, case, formatting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.errors import EvaluationError
from dbspark.sql.expressions.characters import (
    BINARY,
    INT,
    STRING,
    STRINGS,
    Characters,
    all_of,
    by_pattern,
    cut,
    occurrences,
    offsets_and_bytes,
    strings,
)
from dbspark.sql.expressions.elements import without_nulls
from dbspark.sql.expressions.rules import ColumnFrame, Compiled, Context, Datum, as_array, calling, constant, rule
from dbspark.sql.expressions.vectors import (
    Vector,
    arrow_column,
    missing,
    null_intolerant,
    null_intolerant_arrays,
    numbers,
    numeric,
    text_of,
)
from dbspark.sql.plan import Call


@rule("Length")
def length(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type == STRING:
        return null_intolerant(INT, pc.utf8_length, args)
    return null_intolerant(INT, pc.binary_length, args) if args[0].type == BINARY else None


@rule("OctetLength", "BitLength")
def octet_length(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not all_of(args, STRING, BINARY):
        return None
    if call.name == "OctetLength":
        return null_intolerant(INT, pc.binary_length, args)
    return null_intolerant(INT, lambda v: pc.multiply(pc.binary_length(v), pa.scalar(8, INT)), args)


@rule("Ascii")
def ascii_(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not all_of(args, STRING):
        return None

    def run(value: pa.Array) -> pa.Array:
        offsets, data = offsets_and_bytes(value)
        padded = np.append(data, np.zeros(4, np.uint8)).astype(np.int64)
        at = offsets[:-1]
        a, b, c, d = (padded[at + i] for i in range(4))
        tail = 0x3F
        wide = np.select(
            [a < 0x80, a < 0xE0, a < 0xF0],
            [a, (a & 0x1F) << 6 | b & tail, (a & 0x0F) << 12 | (b & tail) << 6 | c & tail],
            (a & 0x07) << 18 | (b & tail) << 12 | (c & tail) << 6 | d & tail,
        )
        return arrow_column(INT, np.where(offsets[1:] > at, wide, 0), missing([value]))

    return null_intolerant_arrays(INT, run, args)


_LATIN = pa.array([chr(i) for i in range(256)] + [""])


@rule("Chr")
def chr_(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != pa.int64():
        return None
    at = numeric(pa.int64(), lambda gone, v: np.where(v < 0, 256, v & 0xFF), args)
    return Compiled(STRING, lambda frame: _LATIN.take(at.array(frame)), at.can_fail)


@rule("ConcatWs")
def concat_ws(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """NULLs are skipped, of arrays their elements."""
    if args[0].type != STRING or not all_of(args[1:], STRING, STRINGS):
        return None
    if len(args) == 1:
        return null_intolerant(STRING, lambda sep: pc.if_else(pc.is_valid(sep), "", pa.scalar(None, STRING)), args)

    def run(frame: ColumnFrame) -> Datum:
        sep, *values = (a.run(frame) for a in args)
        # Not by binary_join_element_wise with null_handling="skip": it drops rows in which all values are NULL.
        lists = without_nulls([as_array(v, frame.rows) for v in values])
        return pc.binary_join(lists, as_array(sep, frame.rows))

    return Compiled(STRING, run, any(a.can_fail for a in args))


def concat_strings(args: Sequence[Compiled]) -> Compiled | None:
    """Strings one after the other; used by the rule of Concat, which also takes arrays."""
    dtype = args[0].type
    if not all_of(args, dtype) or dtype not in (STRING, BINARY):
        return None
    empty = pa.scalar("" if dtype == STRING else b"", dtype)
    # Spark evaluates all arguments, those behind a NULL as well.
    return calling(dtype, lambda *values: pc.binary_join_element_wise(*values, empty), args)


@rule("StringRepeat")
def repeat(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != STRING or args[1].constant is None or args[1].type != INT:
        return None
    times = args[1].constant.as_py()
    if times is None:
        return constant(None, STRING)
    return null_intolerant(STRING, lambda v: pc.binary_repeat(v, max(times, 0)), args[:1]) if times <= 10_000 else None


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
    if not all_of(args[:1], STRING, BINARY) or not all_of(args[1:], INT):
        return None
    pos, size = (a.constant.as_py() if a.constant is not None else None for a in args[1:])
    if pos is not None and size is not None and pos > 0 and args[0].type == STRING:
        end = min(pos - 1 + size, 2**31 - 1) if size > 0 else pos - 1
        return null_intolerant(STRING, lambda v: pc.utf8_slice_codeunits(v, pos - 1, end), args[:1])

    def run(value: pa.Array, pos: pa.Array, size: pa.Array) -> pa.Array:
        gone = missing([value, pos, size])
        where, many = (numbers(a).astype(np.int64) for a in (pos, size))
        return _substring(value, where, many, gone)

    return null_intolerant_arrays(args[0].type, run, args)


@rule("Overlay")
def overlay(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not all_of(args[:2], STRING) or not all_of(args[2:], INT):
        return None

    def run(value: pa.Array, new: pa.Array, pos: pa.Array, size: pa.Array) -> pa.Array:
        gone = missing([value, new, pos, size])
        at, many = (numbers(a).astype(np.int64) for a in (pos, size))
        many = np.where(many >= 0, many, Characters(new).lengths())
        before = _substring(value, np.int64(1), at - 1, gone)
        behind = _substring(value, at + many, np.int64(2**31 - 1), gone)
        return pc.binary_join_element_wise(before, new, behind, "")

    return null_intolerant_arrays(STRING, run, args)


@rule("SubstringIndex")
def substring_index(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not all_of(args[:2], STRING) or args[2].constant is None or args[2].type != INT:
        return None
    count = args[2].constant.as_py()
    if count is None:
        return constant(None, STRING)

    def run(delimiter: str, value: pa.Array) -> pa.Array:
        gone = missing([value])
        offsets, _ = offsets_and_bytes(value)
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
    """The last position, up to `before`, at which the text begins."""
    return -1 if before < 0 else value.rfind(text, 0, before + len(text))


_TRIMS = {"StringTrim": pc.utf8_trim, "StringTrimLeft": pc.utf8_ltrim, "StringTrimRight": pc.utf8_rtrim}


@rule(*_TRIMS)
def trim(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not all_of(args, STRING):
        return None
    kernel = _TRIMS[call.name]
    if len(args) == 1:
        return null_intolerant(STRING, lambda v: kernel(v, " "), args)
    strip = {"StringTrim": str.strip, "StringTrimLeft": str.lstrip, "StringTrimRight": str.rstrip}[call.name]
    return by_pattern(STRING, lambda chars, v: kernel(v, chars) if chars else v, args, [1], plain=strip)


@rule("StringReplace")
def replace(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not all_of(args, STRING):
        return None

    def run(old: str, new: str, value: pa.Array) -> pa.Array:
        return pc.replace_substring(value, old, new) if old else value

    return by_pattern(STRING, run, args, [1, 2], plain=lambda v, old, new: v.replace(old, new) if old else v)


@rule("StringTranslate")
def translate(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    old, new = (text_of(a) for a in args[1:])
    if old is None or new is None or not old.isascii() or not new.isascii() or not all_of(args, STRING):
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
        offsets, data = offsets_and_bytes(value)
        used = data[offsets[0] : offsets[-1]]
        stays = kept[used]
        before = np.zeros(len(used) + 1, np.int64)
        np.cumsum(stays, out=before[1:])
        at = before[offsets - offsets[0]]
        return strings(STRING, at[1:] - at[:-1], table[used[stays]], missing([value]))

    return null_intolerant_arrays(STRING, run, args[:1])


@rule("Elt")
def elt(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != INT or not all_of(args[1:], STRING) or any(a.can_fail for a in args[1:]):
        return None
    fails = bool(call.option("failOnError", context.ansi))
    many = len(args) - 1

    def run(frame: ColumnFrame) -> Datum:
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
    if not all_of(args, STRING):
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

    return null_intolerant_arrays(STRING, run, args)


@rule("Reverse")
def reverse(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type == STRING:
        return null_intolerant(STRING, pc.utf8_reverse, args)
    if pa.types.is_list(args[0].type):
        from dbspark.sql.expressions.arrays import reversed_lists

        return null_intolerant_arrays(args[0].type, reversed_lists, args)
    return None


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

    def run(frame: ColumnFrame) -> Datum:
        pieces: list[Datum] = [pa.repeat(pa.scalar(parts[0]), frame.rows)]
        for arg, text in zip(given, parts[1:], strict=True):
            pieces.append(pc.fill_null(arg.array(frame).cast(STRING), "null"))
            pieces.append(pa.scalar(text))
        return pc.binary_join_element_wise(*pieces, "")

    return Compiled(STRING, run, any(a.can_fail for a in given)) if not any(a.can_fail for a in rest) else None
