"""YAML as the files of access control use it: maps, lists and texts, and nothing else.

Made of the parser's events, so no type is guessed: `secretKey: 12345678` is these eight characters,
and `0012345678` keeps its zeros. There are no objects, no references, no second document, and a key
stands in a map once. The text's size and depth, and how many values it has, are bounded before
anything is built of it: a file that is there to cost time is refused after a second or two at most.
PyYAML's own loaders build first, and take the last of two equal keys.

Unlike RocketMQ, whose reader takes the last of two equal keys and makes numbers of digits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from skylarkmq.common.first_use import on_first_use

if TYPE_CHECKING:
    import yaml
else:  # for a broker with access control
    yaml = on_first_use("yaml")

SIZE_MAX: Final = 1 << 20
DEPTH_MAX: Final = 8
VALUES_MAX: Final = 1 << 17
"""Maps, lists and texts of one file, keys among them; 10,000 accounts need about half."""

Value = None | str | list[Any] | dict[str, Any]
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})


class YamlError(ValueError):
    """A text that cannot be read; says where and why, and repeats nothing of it: it has secrets."""


def read_yaml(data: bytes) -> Value:
    """Return what a text holds: None for an empty one, and for what is left out.

    Raises:
        YamlError: it is no YAML, or more than maps, lists and texts.
    """
    if len(data) > SIZE_MAX:
        raise YamlError(f"it has {len(data)} bytes, {SIZE_MAX} are read")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise YamlError(f"byte {error.start} is no UTF-8") from None
    parser: Any = yaml
    loader = getattr(parser, "CSafeLoader", parser.SafeLoader)
    builder = _Builder()
    try:
        for event in parser.parse(text, Loader=loader):
            builder.take(event)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        raise YamlError(f"{where}it is no YAML") from None
    return builder.result


def write_yaml(value: Value) -> bytes:
    """Return the text of a value."""
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return text.encode()


class _Builder:
    """Makes a value of the parser's events."""

    def __init__(self) -> None:
        self.result: Value = None
        self._document_count = 0
        self._value_count = 0
        # Each open map or list, with the key of a map that waits for its value.
        self._open: list[tuple[list[Any] | dict[str, Any], list[str]]] = []

    def take(self, event: Any) -> None:
        """Take the next event.

        Raises:
            YamlError: it is of a kind that these files do not have.
        """
        if isinstance(event, yaml.ScalarEvent):
            self._refuse_marks(event)
            is_null = not event.style and event.value in _NULLS  # the parser in C says "" for none
            self._add(None if is_null else event.value, event)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._refuse_marks(event)
            if len(self._open) >= DEPTH_MAX:
                raise _error(event, f"it is nested deeper than {DEPTH_MAX}")
            made: list[Any] | dict[str, Any] = {}
            if isinstance(event, yaml.SequenceStartEvent):
                made = []
            self._add(made, event)
            self._open.append((made, []))
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._open.pop()
        elif isinstance(event, yaml.AliasEvent):
            raise _error(event, "a reference (*) stands there; write the value out")
        elif isinstance(event, yaml.DocumentStartEvent):
            self._document_count += 1
            if self._document_count > 1:
                raise _error(event, "a second document begins; use one file for each")

    @staticmethod
    def _refuse_marks(event: Any) -> None:
        if event.anchor is not None:
            raise _error(event, "a name for references (&) stands there; remove it")
        if event.tag is not None and event.tag != "!":
            raise _error(event, "a tag (!) stands there; remove it")

    def _add(self, value: Value, event: Any) -> None:
        self._value_count += 1
        if self._value_count > VALUES_MAX:
            raise _error(event, f"there are more than {VALUES_MAX} values; use several files")
        if not self._open:
            self.result = value
            return
        owner, keys = self._open[-1]
        if isinstance(owner, list):
            owner.append(value)
        elif keys:
            owner[keys.pop()] = value
        elif not isinstance(value, str):
            raise _error(event, "a key is a name")
        elif value in owner:
            raise _error(event, "the key stands there twice")
        else:
            keys.append(value)
            owner[value] = None


def _error(event: Any, why: str) -> YamlError:
    return YamlError(f"line {event.start_mark.line + 1}: {why}")
