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
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE_END: Final = re.compile(r"\r\n|\n|\r")
# A logical line from its first character on: a comment, or a pair with the lines it goes on in.
_LOGICAL: Final = re.compile(
    r"[ \t\f]*(?:[#!][^\r\n]*|(?P<pair>(?:[^\\\r\n]|\\(?:\r\n|[\s\S]|\Z))*))(?P<end>\r\n|\n|\r|\Z)"
)
_GOES_ON: Final = re.compile(r"(?<!\\)(?:\\\\)*\\(?:\r\n|\n|\r)\Z")
_CONTINUED: Final = re.compile(r"(\\[^\r\n])|\\(?:(?:\r\n|\n|\r)[ \t\f]*|\Z)")
_PAIR: Final = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)


class Property(NamedTuple):
    """One pair; `line` is the number of the line that it starts in, the first being 1."""

    key: str
    value: str
    line: int


class PropertiesError(ValueError):
    """The text cannot be read at a line."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")
        self.line = line


def read_properties(data: bytes) -> list[Property]:
    """Return the pairs in the order of the file; a key that stands twice is returned twice.

    Raises:
        PropertiesError: a malformed \\uXXXX.
    """
    return [pair for pair, _ in _pairs(_decoded(data)[0])]


def edit_properties(data: bytes, changes: Mapping[str, str]) -> bytes:
    """Return the text with other values for some keys; all else stays as it is.

    A key's last line counts and is replaced, with the lines that it goes on in. A key that is not
    there is added at the end.

    Raises:
        PropertiesError: the text cannot be read.
    """
    text, encoding = _decoded(data)
    places = {pair.key: place for pair, place in _pairs(text)}
    lines = {key: f"{key}=" + value.replace("\\", "\\\\") for key, value in changes.items()}
    known = changes.keys() & places.keys()
    for start, end, key in sorted(((*places[key], key) for key in known), reverse=True):
        text = text[:start] + lines[key] + text[end:]
    added = [lines[key] for key in changes if key not in places]
    if added:
        if text and text[-1] not in "\r\n":
            text += "\n"
        if _GOES_ON.search(text):
            text += "\n"
        text += "".join(f"{line}\n" for line in added)
    return text.encode(encoding)


def _decoded(data: bytes) -> tuple[str, str]:
    try:
        return data.decode("utf-8-sig"), "utf-8"
    except UnicodeDecodeError:
        return data.decode("iso-8859-1"), "iso-8859-1"


def _pairs(text: str) -> Iterator[tuple[Property, tuple[int, int]]]:
    """Yield each pair, and where its logical line begins and ends in the text."""
    position, number = 0, 1
    while position < len(text):
        found = _LOGICAL.match(text, position)
        assert found is not None
        if found["pair"]:
            joined = _CONTINUED.sub(lambda part: part[1] or "", found["pair"])
            halves = _PAIR.fullmatch(joined)
            assert halves is not None
            key, value = (_unescaped(half, number) for half in halves.groups())
            yield Property(key, value.rstrip(), number), (position, found.start("end"))
        number += len(_LINE_END.findall(text, position, found.end()))
        position = found.end()


def _unescaped(text: str, number: int) -> str:
    def character(escape: re.Match[str]) -> str:
        if escape[1]:
            return chr(int(escape[1], 16))
        if escape[2] == "u":
            digits = text[escape.end() : escape.end() + 4]
            raise PropertiesError(number, f"\\u{digits} is no character: write 4 hex digits")
        return _ESCAPES.get(escape[2], escape[2])

    if "\\" not in text:
        return text
    # A pair of surrogates is one character, as Java has it.
    utf16 = _ESCAPED.sub(character, text).encode("utf-16", "surrogatepass")
    return utf16.decode("utf-16", "replace")
