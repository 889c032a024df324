"""Patterns of LIKE and of Java's regular expressions as patterns of RE2, which Arrow matches by.

The two libraries agree on a subset, once differences are written out: what `.` and `\\s` stand for, and `$`, which in
Java is also before a last line terminator. Of two ways to match, both take the one that backtracking finds first.
Outside of the subset there is None: look-around, back references, possessive quantifiers, flags, `\\b` and the like.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_LINE_ENDS = r"\n\r\x{85}\x{2028}\x{2029}"
_AT_END = rf"(?:\r\n|[{_LINE_ENDS}])?\z"
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t\n\x0b\f\r "}
_CONTROLS = {"t": r"\t", "n": r"\n", "r": r"\r", "f": r"\f"}


class _Unknown(Exception):
    """Something outside the subset."""


def quoted(text: str) -> str:
    """A pattern that matches just the text."""
    return "".join(c if c.isalnum() or ord(c) > 127 else f"\\x{{{ord(c):x}}}" for c in text)


def like(pattern: str, escape: str) -> str | None:
    """A LIKE pattern for whole strings; None if Spark refuses it."""
    out = []
    i = 0
    while i < len(pattern):
        c = pattern[i]
        if c == escape:
            i += 1
            if i == len(pattern) or pattern[i] not in ("_", "%", escape):
                return None
            out.append(quoted(pattern[i]))
        else:
            out.append("." if c == "_" else ".*" if c == "%" else quoted(c))
        i += 1
    return rf"(?s)\A{''.join(out)}\z"


@dataclass
class Regex:
    """A regular expression of RE2 that finds what Java's finds."""

    parts: list[str] = field(default_factory=list)
    groups: int = 0
    nullable: bool = False
    """Whether it can match the empty string."""
    ends: bool = False
    """Whether it goes on to the end of the string, beyond what Java's would have matched."""
    repeated: set[int] = field(default_factory=set)
    """Groups inside of something that can be repeated."""

    def text(self, wanted: int | None = None) -> str:
        """The pattern; with a group wanted, that one alone captures, under the name g."""
        if wanted is None:
            return "".join(self.parts)
        out = []
        count = 0
        for part in self.parts:
            if part == "(":
                count += 1
                out.append("(?P<g>" if count == wanted else "(?:")
            else:
                out.append(part)
        if wanted == 0:
            body = out[:-1] if self.ends else out
            tail = out[-1:] if self.ends else []
            return f"(?P<g>{''.join(body)}){''.join(tail)}"
        return "".join(out)


def java(pattern: str) -> Regex | None:
    """A regular expression of Java in RE2's terms, if it is in the subset."""
    try:
        return _Parser(pattern).parse()
    except (_Unknown, IndexError):
        return None


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.out = Regex()
        self.takes_return = False
        """Whether something matches a carriage return, so that `$` could be asked for between it and a line feed."""

    def parse(self) -> Regex:
        if self.pattern.endswith("$") and not self.pattern.endswith("\\$"):
            body = self.pattern[:-1]
            if "|" in body or body.endswith(("^", "$")):
                raise _Unknown  # the end would belong to the last alternative only
            self.pattern = body
            self.out.ends = True
        self.out.nullable = self.alternatives()
        if self.at != len(self.pattern):
            raise _Unknown
        if self.out.ends:
            if self.takes_return:
                raise _Unknown
            self.out.parts.append(_AT_END)
        return self.out

    def peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def alternatives(self) -> bool:
        nullable = self.sequence()
        while self.peek() == "|":
            self.at += 1
            self.out.parts.append("|")
            nullable = self.sequence() or nullable
        return nullable

    def sequence(self) -> bool:
        nullable = True
        while self.peek() not in ("", "|", ")"):
            first, groups = len(self.out.parts), self.out.groups
            empty = self.atom()
            anchor = self.out.parts[first] == r"\A"
            more = self.quantifier()
            if more is not None:
                if empty or anchor:
                    raise _Unknown  # the libraries differ in loops over the empty string
                text, optional = more
                self.out.parts.append(text)
                if not text.startswith("?"):
                    self.out.repeated.update(range(groups + 1, self.out.groups + 1))
                empty = optional
            nullable = nullable and empty
        return nullable

    def atom(self) -> bool:
        c = self.peek()
        self.at += 1
        if c == "(":
            if self.peek() == "?":
                if self.pattern[self.at : self.at + 2] != "?:":
                    raise _Unknown
                self.at += 2
                self.out.parts.append("(?:")
            else:
                self.out.groups += 1
                self.out.parts.append("(")
            nullable = self.alternatives()
            if self.peek() != ")":
                raise _Unknown
            self.at += 1
            self.out.parts.append(")")
            return nullable
        if c == "^":
            self.out.parts.append(r"\A")
            return True
        if c in "$*+?{}]":
            raise _Unknown
        if c == ".":
            self.out.parts.append(f"[^{_LINE_ENDS}]")
        elif c == "[":
            self.out.parts.append(self.character_class())
        elif c == "\\":
            self.out.parts.append(self.escape())
        else:
            self.takes_return = self.takes_return or c == "\r"
            self.out.parts.append(quoted(c))
        return False

    def escape(self) -> str:
        c = self.pattern[self.at]
        self.at += 1
        if c.lower() in _CLASSES:
            self.takes_return = self.takes_return or c in "sWD"
            return f"[{'^' if c.isupper() else ''}{_CLASSES[c.lower()]}]"
        if c in _CONTROLS:
            self.takes_return = self.takes_return or c == "r"
            return _CONTROLS[c]
        if c.isascii() and not c.isalnum():
            return quoted(c)
        raise _Unknown

    def character_class(self) -> str:
        out = ["["]
        if self.peek() == "^":
            self.at += 1
            out.append("^")
            self.takes_return = True
        items = 0
        while self.pattern[self.at] != "]":
            low = self.class_item()
            items += 1
            if self.peek() == "-" and self.pattern[self.at + 1] != "]":
                self.at += 1
                high = self.class_item()
                if len(low) != 1 or len(high) != 1 or low > high:
                    raise _Unknown
                out.append(f"{quoted(low)}-{quoted(high)}")
                self.takes_return = self.takes_return or low <= "\r" <= high
            elif len(low) == 1:
                self.takes_return = self.takes_return or low == "\r"
                out.append(quoted(low))
            else:
                out.append(low)
        self.at += 1
        if not items:
            raise _Unknown
        return "".join([*out, "]"])

    def class_item(self) -> str:
        """One character, or the ranges that an escape stands for."""
        c = self.pattern[self.at]
        self.at += 1
        if c in "[&^" or c == "]":
            raise _Unknown
        if c != "\\":
            return c
        c = self.pattern[self.at]
        self.at += 1
        if c in _CLASSES:
            self.takes_return = self.takes_return or c == "s"
            return _CLASSES[c]
        if c in _CONTROLS:
            return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}[c]
        if c.isascii() and not c.isalnum():
            return c
        raise _Unknown

    def quantifier(self) -> tuple[str, bool] | None:
        match = re.compile(r"[?*+]|\{(\d{1,3})(,?)(\d{0,3})\}").match(self.pattern, self.at)
        if match is None:
            return None
        self.at = match.end()
        text = match.group()
        if match.group(1) is not None and match.group(3) and int(match.group(3)) < int(match.group(1)):
            raise _Unknown
        optional = text in "?*" or (match.group(1) is not None and int(match.group(1)) == 0)
        if self.peek() == "+" or (self.peek() in ("*", "{")):
            raise _Unknown
        if self.peek() == "?":
            self.at += 1
            text += "?"
        if self.peek() in ("?", "*", "+", "{") and self.peek():
            raise _Unknown
        return text, optional


def literal(pattern: str) -> str | None:
    """The text that a regular expression stands for, if it stands for one text alone."""
    out = []
    i = 0
    while i < len(pattern):
        c = pattern[i]
        if c == "\\" and i + 1 < len(pattern) and pattern[i + 1].isascii() and not pattern[i + 1].isalnum():
            out.append(pattern[i + 1])
            i += 2
        elif c == "[" and pattern[i + 2 : i + 3] == "]" and pattern[i + 1] not in "^\\[&":
            out.append(pattern[i + 1])
            i += 3
        elif c in "\\^$.|?*+()[]{}":
            return None
        else:
            out.append(c)
            i += 1
    return "".join(out)


def replacement(text: str, groups: int) -> str | None:
    """A replacement text of Java as a replacement text of RE2."""
    out = []
    i = 0
    while i < len(text):
        c = text[i]
        following = text[i + 1 : i + 2]
        if c == "\\":
            if not following:
                return None
            out.append("\\\\" if following == "\\" else following)
            i += 2
        elif c == "$":
            if not (following.isascii() and following.isdigit()) or int(following) > groups:
                return None
            if text[i + 2 : i + 3].isdigit():
                return None
            out.append(f"\\{following}")
            i += 2
        else:
            out.append(c)
            i += 1
    return "".join(out)
