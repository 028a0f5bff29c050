"""Reader of Java properties, the format of `broker.conf`.

    # a comment, also with !               name = value      name: value      name value
    long = first part \\                   a line that ends in an odd number of backslashes goes on
        second part                        in the next one, whose leading blanks are dropped
    path = C\\:\\\\data  \\u0041 \\t       escapes, in names and in values

Text is read as UTF-8, or as ISO-8859-1 when it is none (Java writes other characters as \\uXXXX).
Unlike Java, blanks at the end of a value are dropped: there `listenPort=10911 ` is no number.
Source: java.util.Properties, load(Reader)
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_BLANKS: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE_END: Final = re.compile(r"\r\n|\n|\r")
_UNICODE: Final = re.compile(r"[0-9a-fA-F]{4}")


class Property(NamedTuple):
    """One pair; `line` is the number of the line that it starts in, the first being 1."""

    key: str
    value: str
    line: int


class PropertiesError(ValueError):
    """The text can not be read at a line."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")
        self.line = line


def read_properties(data: bytes) -> list[Property]:
    """Return the pairs in the order of the file; a key that stands twice is returned twice.

    Raises:
        PropertiesError: a malformed \\uXXXX.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("iso-8859-1")
    return [_split(line, number) for number, line in _logical_lines(text)]


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Join continued lines; drop comments and empty lines."""
    lines: list[tuple[int, str]] = []
    parts: list[str] = []
    start = 0
    for number, natural in enumerate(_LINE_END.split(text), 1):
        line = natural.lstrip(_BLANKS)
        if not parts:
            if not line or line[0] in "#!":
                continue
            start = number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            parts.append(line[:-1])
            continue
        parts.append(line)
        lines.append((start, "".join(parts)))
        parts = []
    if parts:
        lines.append((start, "".join(parts)))
    return lines


def _split(line: str, number: int) -> Property:
    end = 0
    while end < len(line) and line[end] not in "=:" and line[end] not in _BLANKS:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return Property(_unescape(line[:end], number), _unescape(rest, number).rstrip(), number)


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    position = 0
    while (mark := text.find("\\", position)) >= 0:
        parts.append(text[position:mark])
        letter = text[mark + 1 : mark + 2]
        position = mark + 2
        if letter == "u":
            digits = text[position : position + 4]
            if _UNICODE.fullmatch(digits) is None:
                raise PropertiesError(number, f"\\u{digits} is no character: write 4 hex digits")
            parts.append(chr(int(digits, 16)))
            position += 4
        else:
            parts.append(_ESCAPES.get(letter, letter))
    parts.append(text[position:])
    # Pairs of surrogates are one character, as Java has it.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
