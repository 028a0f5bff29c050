"""A reader, and a small writer, of fastjson's dialect of JSON.

RocketMQ writes some bodies that are not JSON:

    {0:"192.0.2.20:10911"}                            numbers as keys
    {{"brokerName":"b","queueId":0,"topic":"T"}:5}    objects as keys
    {"$ref":"$.consumerDataSet[0]"}                   the same object once more

and reads single quotes, bare names as keys and surplus commas too. Here a number or a bare name as
a key becomes text, like in JSON proper; an object as a key becomes a `FrozenObject`; references
are put in place of what they point at. The reader is slow (about 1 us a value) and is for what
`msgspec` refuses; nothing on the hot path comes here.

Hostile input is bounded by depth, by the count of values (references counted as often as they are
used) and by the digits of a number. A reference to something around it would make an endless
structure and is refused, as are lone surrogates, NaN and comments.

Source: apache/rocketmq@rocketmq-all-4.9.8 remoting/.../protocol/RemotingSerializable.java, and
observation of what fastjson 1.2.69 writes and reads
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn, cast

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError, shown

DEPTH_MAX: Final = 64
NODE_COUNT_MAX: Final = 50_000
NUMBER_SIZE_MAX: Final = 400
PATH_SIZE_MAX: Final = 1024

_skip_blanks = re.compile(r"[ \t\r\n\f\b]*").match
_skip_commas = re.compile(r"[ \t\r\n\f\b,]*").match
_match_number = re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?").match
_match_name = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*").match
_match_bare_key = re.compile(r"-?[0-9]+|[A-Za-z_$][A-Za-z0-9_$]*").match
_STRINGS: Final = {
    '"': re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL).match,
    "'": re.compile(r"'([^'\\]*(?:\\.[^'\\]*)*)'", re.DOTALL).match,
}
_sub_escape = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL).sub
_ESCAPES: Final = {
    **{digit: chr(int(digit)) for digit in "01234567"},
    "b": "\b",
    "t": "\t",
    "n": "\n",
    "v": "\v",
    "f": "\f",
    "F": "\f",
    "r": "\r",
    '"': '"',
    "'": "'",
    "/": "/",
    "\\": "\\",
}
_WORDS: Final[dict[str, bool | None]] = {
    "true": True,
    "false": False,
    "null": None,
    "undefined": None,
}
_path_steps = re.compile(r"\.((?:[^.\[\\]|\\.)+)|\[([0-9]{1,9})\]|\['([^']*)'\]").finditer


class FrozenObject(tuple[tuple[str, Any], ...]):
    """An object that stands as a key: its members as pairs, sorted by name; values are scalars."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the members as an ordinary dict."""
        return dict(self)


def freeze(members: Mapping[str, Any]) -> FrozenObject:
    """Return `members` as a key; the values must be hashable."""
    return FrozenObject(sorted(members.items()))


def _refuse(why: str) -> NoReturn:
    raise RemoteProtocolError(ResponseCode.SYSTEM_ERROR, f"the body is not JSON: {why}")


def loads(
    data: bytes | str, *, keep_nulls: bool = True, node_count_max: int = NODE_COUNT_MAX
) -> Any:
    """Return what `data` says, as dict, list, str, int, float, bool and None.

    Without `keep_nulls`, members of objects that are null are left out.

    Raises:
        RemoteProtocolError: SYSTEM_ERROR; not even this dialect, or over a limit.
    """
    if isinstance(data, bytes):
        try:
            text = data.decode()
        except UnicodeDecodeError:
            _refuse("not UTF-8")
    else:
        text = data
    reader = _Reader(text.removeprefix("\ufeff"), keep_nulls, node_count_max)
    value = reader.read_document()
    if "$ref" in text:
        value = _Resolver(value, node_count_max).resolve()
    return value


class _Reader:
    """Recursive descent over `text`, at most DEPTH_MAX deep."""

    __slots__ = ("_keep_nulls", "_nodes_left", "_position", "_text")

    def __init__(self, text: str, keep_nulls: bool, node_count_max: int) -> None:
        self._text = text
        self._position = 0
        self._keep_nulls = keep_nulls
        self._nodes_left = node_count_max

    def read_document(self) -> Any:
        self._blanks()
        value = self._value(0)
        self._blanks()
        if self._position != len(self._text):
            self._refuse_here("something follows the value")
        return value

    def _refuse_here(self, why: str) -> NoReturn:
        near = self._text[self._position : self._position + 16]
        _refuse(f"{why} at {self._position}, near {shown(near)}")

    def _blanks(self) -> str:
        """Skip blanks; return the character that follows, empty at the end."""
        match = _skip_blanks(self._text, self._position)
        assert match is not None  # the pattern matches nothing too
        self._position = match.end()
        return self._text[self._position : self._position + 1]

    def _commas(self) -> str:
        """Skip blanks and commas; return the character that follows, empty at the end."""
        match = _skip_commas(self._text, self._position)
        assert match is not None  # the pattern matches nothing too
        self._position = match.end()
        return self._text[self._position : self._position + 1]

    def _value(self, depth: int) -> Any:
        self._nodes_left -= 1
        if self._nodes_left < 0:
            _refuse("too many values")
        first = self._text[self._position : self._position + 1]
        if first == "{":
            return self._object(depth + 1)
        if first == "[":
            return self._array(depth + 1)
        if first in _STRINGS:
            return self._string(first)
        name = _match_name(self._text, self._position)
        if name is not None and name.group() in _WORDS:
            self._position = name.end()
            return _WORDS[name.group()]
        return self._number()

    def _number(self) -> int | float:
        match = _match_number(self._text, self._position)
        if match is None:
            self._refuse_here("no value")
        if match.end() - match.start() > NUMBER_SIZE_MAX:
            self._refuse_here("a number of too many digits")
        self._position = match.end()
        if match.group(1) is None and match.group(2) is None:
            return int(match.group())
        number = float(match.group())
        if not math.isfinite(number):
            self._refuse_here("a number out of range")
        return number

    def _string(self, quote: str) -> str:
        match = _STRINGS[quote](self._text, self._position)
        if match is None:
            self._refuse_here("an unfinished string")
        self._position = match.end()
        text = match.group(1)
        if "\\" in text:
            text = _sub_escape(self._unescape, text)
            if not text.isascii():
                text = self._joined_surrogates(text)
        return text

    def _unescape(self, match: re.Match[str]) -> str:
        code = match.group(1)
        if len(code) > 1:
            return chr(int(code[1:], 16))
        character = _ESCAPES.get(code)
        if character is None:
            self._refuse_here("an unknown escape")
        return character

    def _joined_surrogates(self, text: str) -> str:
        try:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            self._refuse_here("a lone surrogate")

    def _array(self, depth: int) -> list[Any]:
        if depth > DEPTH_MAX:
            self._refuse_here("too deep")
        self._position += 1
        items: list[Any] = []
        following = self._commas()
        while following != "]":
            items.append(self._value(depth))
            following = self._after_item("]")
        self._position += 1
        return items

    def _after_item(self, end: str) -> str:
        """Skip to the next item or to `end`; there must be a comma before an item."""
        if self._blanks() not in (",", end):
            self._refuse_here("no comma")
        return self._commas()

    def _object(self, depth: int) -> dict[Any, Any]:
        if depth > DEPTH_MAX:
            self._refuse_here("too deep")
        self._position += 1
        members: dict[Any, Any] = {}
        following = self._commas()
        while following != "}":
            key = self._key(following, depth)
            if self._blanks() != ":":
                self._refuse_here("no colon")
            self._position += 1
            self._blanks()
            value = self._value(depth)
            if value is not None or self._keep_nulls:
                members[key] = value
            following = self._after_item("}")
        self._position += 1
        return members

    def _key(self, first: str, depth: int) -> str | FrozenObject:
        if first in _STRINGS:
            return self._string(first)
        if first == "{":
            members = self._object(depth + 1)
            try:
                key = freeze(members)
                hash(key)
            except TypeError:
                self._refuse_here("a key that is more than a flat object")
            return key
        match = _match_bare_key(self._text, self._position)
        if match is None:
            self._refuse_here("no key")
        if match.end() - match.start() > NUMBER_SIZE_MAX:
            self._refuse_here("a key too long")
        self._position = match.end()
        return match.group()


class _Resolver:
    """Puts what a reference points at in its place, in the tree below `root`.

    A shared part is shared in the result too, so the work is linear in the text; the size and
    height that the result would have as a tree are what the limits are held against.
    """

    __slots__ = ("_measures", "_node_count_max", "_root", "_steps_left")

    def __init__(self, root: Any, node_count_max: int) -> None:
        self._root = root
        self._steps_left = node_count_max  # all paths together
        self._node_count_max = node_count_max
        # From the identity of a container to (values, height) of the tree below; None: being done.
        self._measures: dict[int, tuple[int, int] | None] = {}

    def resolve(self) -> Any:
        if self._path_of(self._root) is not None:
            _refuse("a reference to itself")
        self._measure(self._root, 0)
        return self._root

    def _measure(self, value: Any, depth: int) -> tuple[int, int]:
        if not isinstance(value, dict | list):
            return 1, 0
        container = cast("dict[Any, object] | list[object]", value)
        identity = id(container)
        if identity in self._measures:
            measure = self._measures[identity]
            if measure is None:
                _refuse("a reference to what is around it")
            if depth + measure[1] > DEPTH_MAX:
                _refuse("too deep")
            return measure
        if depth > DEPTH_MAX:
            _refuse("too deep")
        self._measures[identity] = None
        size, height = 1, 0
        places: Any = list(container) if isinstance(container, dict) else range(len(container))
        for place in places:
            target = self._followed(container[place])
            container[place] = target
            below_size, below_height = self._measure(target, depth + 1)
            size += below_size
            height = max(height, below_height + 1)
            if size > self._node_count_max:
                _refuse("too many values")
        self._measures[identity] = size, height
        return size, height

    @staticmethod
    def _path_of(value: Any) -> str | None:
        if isinstance(value, dict):
            members = cast("dict[object, object]", value)
            if len(members) == 1:
                path = members.get("$ref")
                return path if isinstance(path, str) else None
        return None

    def _followed(self, value: Any) -> Any:
        for _ in range(DEPTH_MAX):
            path = self._path_of(value)
            if path is None:
                return value
            value = self._at(path)
        _refuse("a chain of references")

    def _at(self, path: str) -> Any:
        """Return the value at `path`; `@`, `..` and `$` alone name something around it."""
        if path in ("@", "..", "$"):
            _refuse("a reference to what is around it")
        if len(path) > PATH_SIZE_MAX or not path.startswith("$"):
            _refuse(f"a reference to {shown(path)}")
        value = self._root
        position = 1
        for step in _path_steps(path, 1):
            if step.start() != position:
                break
            self._steps_left -= 1
            if self._steps_left < 0:
                _refuse("too many references")
            position = step.end()
            name, index, quoted = step.groups()
            try:
                if index is None:
                    value = value[quoted if name is None else re.sub(r"\\(.)", r"\1", name)]
                else:
                    value = value[int(index)]
            except (LookupError, TypeError):
                _refuse(f"a reference to nothing, {shown(path)}")
        if position != len(path):
            _refuse(f"a reference to {shown(path)}")
        return value


def dumps(value: Any) -> bytes:
    """Return `value` as Java would write it: no blanks, objects as keys where keys are frozen."""
    parts: list[str] = []
    _write(value, parts)
    return "".join(parts).encode()


def _write(value: Any, parts: list[str]) -> None:
    if isinstance(value, FrozenObject):
        _write(value.as_dict(), parts)
    elif isinstance(value, dict):
        separator = "{"
        for key, member in cast("dict[object, object]", value).items():
            parts.append(separator)
            _write(key, parts)
            parts.append(":")
            _write(member, parts)
            separator = ","
        parts.append("}" if separator == "," else "{}")
    elif isinstance(value, list | tuple):
        separator = "["
        for item in cast("list[object]", value):
            parts.append(separator)
            _write(item, parts)
            separator = ","
        parts.append("]" if separator == "," else "[]")
    else:
        parts.append(json.dumps(value, ensure_ascii=False))
