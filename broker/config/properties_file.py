"""Reader of Java properties, the format of `broker.conf`, and a writer that changes single values.

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
from collections.abc import Mapping
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
    text, _ = _decoded(data)
    return [_split(line, number) for number, line in _logical_lines(text)]


def edit_properties(data: bytes, changes: Mapping[str, str]) -> bytes:
    """Return the text with other values for some keys; all else stays as it is.

    A key's last line counts and is replaced, with the lines that it goes on in. What is not there
    is added at the end.

    Raises:
        PropertiesError: the text can not be read.
    """
    text, encoding = _decoded(data)
    lines = _LINE_END.split(text)
    places = {item.key: item.line for item in read_properties(data)}
    added: list[str] = []
    edited: dict[int, tuple[int, str]] = {}  # first line -> (lines that it takes, the new one)
    for key, value in changes.items():
        line = f"{key}=" + value.replace("\\", "\\\\")
        first = places.get(key)
        if first is None:
            added.append(line)
            continue
        last = first
        while last < len(lines) and _goes_on(lines[last - 1]):
            last += 1
        edited[first] = last - first + 1, line
    result: list[str] = []
    number = 1
    while number <= len(lines):
        count, line = edited.get(number, (1, lines[number - 1]))
        result.append(line)
        number += count
    if added:
        if result and not result[-1]:
            result.pop()
        if result and _goes_on(result[-1]):
            result.append("")
        result += [*added, ""]
    return "\n".join(result).encode(encoding)


def _decoded(data: bytes) -> tuple[str, str]:
    try:
        return data.decode("utf-8-sig"), "utf-8"
    except UnicodeDecodeError:
        return data.decode("iso-8859-1"), "iso-8859-1"


def _goes_on(line: str) -> bool:
    """Whether a line ends in an odd number of backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


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
        if _goes_on(line):
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
