"""Options of a Spark reader or writer: each declared once, found whatever its case, checked.

    class ReadSettings:
        pull_count: int = number("pullBatchSize", 1024, "messages of one pull", low=1, high=4096)

declares an option as a field of the dataclass that holds its value: name, kind, default, bounds and
what the reference page says of it. `OptionReader.values(ReadSettings)` reads all options of the
class. A `special` option is read by hand, because its value depends on others. One without a field
is an `Option`.

Spark hands options over with keys in lower case, as texts. A reader of options knows all names of
its format and refuses any other with the nearest that it knows. No error shows a secret value.

Pure; driver and executors alike. Imports no pyspark.
Source: apache/spark@v4.3.0 python/pyspark/sql/datasource.py (CaseInsensitiveDict),
core/.../internal/config/package.scala (spark.redaction.regex)
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeVar, cast

C = TypeVar("C", bound=str)
Only = Literal["", "stream", "batch"]
"""Which reads an option is for; empty: all."""

SPARK_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark itself reads and hands on to the format as well; lower case."""

_SECRET: Final = re.compile(r"(?i)secret|password|token|access[.]?key")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_DURATION: Final = re.compile(r"([0-9]{1,19})\s*(ms|s|m|min|h|d)?", re.ASCII | re.IGNORECASE)
_SIZE: Final = re.compile(r"([0-9]{1,19})\s*(b|k|kb|kib|m|mb|mib|g|gb|gib)?", re.ASCII | re.I)
_MILLISECONDS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_BYTES: Final = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_SIMILARITY: Final = 0.5
_SHOWN_MAX: Final = 80
INT64_MAX: Final = 2**63 - 1
KIB: Final = 1024
MIB: Final = 1024 * KIB
TRUE_FALSE: Final = "`true`, `false`"
_FIELD: Final = "option"


class OptionError(ValueError):
    """An option is unknown, missing, of a wrong form, or contradicts another.

    `option` is its name as documented, empty where several are meant.
    """

    def __init__(self, text: str, option: str = "") -> None:
        super().__init__(text)
        self.option = option


def is_secret(name: str) -> bool:
    """Return whether Spark hides this option's value in plans; so does every text of ours."""
    return _SECRET.search(name) is not None


def shown(name: str, value: str) -> str:
    """Return the value as an error may show it: quoted, cut short, and no secret."""
    if is_secret(name):
        return "(hidden)"
    return repr(value if len(value) <= _SHOWN_MAX else value[:_SHOWN_MAX] + "...")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most like this one, or None when none is like it."""
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=_SIMILARITY)
    return by_lower[found[0]] if found else None


def check_known(given: Iterable[str], known: Iterable[str], hints: Mapping[str, str]) -> None:
    """Refuse the first unknown option.

    `hints` has what to do instead for names that people are likely to try; keys in lower case.

    Raises:
        OptionError: an unknown option; the text names the nearest known one.
    """
    names = tuple(known)
    lower = {name.lower() for name in names} | SPARK_OWN
    for key in given:
        if key.lower() in lower:
            continue
        hint = hints.get(key.lower())
        if hint is None:
            near = nearest(key, names)
            hint = f"did you mean {near}?" if near else f"known are {', '.join(sorted(names))}"
        raise OptionError(f"unknown option {key}: {hint}", key)


def refuse_catalog_tables(given: Mapping[str, str], source: str) -> None:
    """Refuse what stands in Spark's catalog: it hands a Python source none of its table's options.

        CREATE TABLE t USING source OPTIONS (...)         asks the source for its columns, with
                                                          `provider` among the table's properties
        CREATE TABLE t (body binary) USING source ...     asks nothing; a read comes without options

    Raises:
        OptionError: the text says what to do instead.
    """
    instead = f"use CREATE TEMPORARY VIEW ... USING {source} OPTIONS (...)"
    if "provider" in given:
        raise OptionError(
            f"CREATE TABLE ... USING {source} would make a table that cannot be read: Spark's "
            f"catalog keeps its options from a Python data source, and secrets in plain text: "
            f"{instead}"
        )
    if not given:
        raise OptionError(
            f"{source} got no option: a table of Spark's catalog (CREATE TABLE, saveAsTable) has "
            f"none for a Python data source: {instead}, or spark.read and write with options"
        )


class OptionReader:
    """The options of one read or write. Every getter may raise OptionError, naming the option.

    An option that is given but empty counts as absent.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        known: Iterable[str],
        *,
        hints: Mapping[str, str] | None = None,
        others_allowed: bool = False,
    ) -> None:
        """Take the options; `known` are names in their documented case.

        With `others_allowed` unknown ones are passed over: another reader has checked them.

        Raises:
            OptionError: an unknown option.
        """
        if not others_allowed:
            check_known(given, known, hints or {})
        self._values = {key.lower(): str(value).strip() for key, value in given.items()}

    def __repr__(self) -> str:
        return f"OptionReader({', '.join(sorted(self._values))})"

    def given(self, name: str) -> bool:
        """Return whether the option is there and not empty."""
        return bool(self._values.get(name.lower()))

    def text(self, name: str, default: str = "") -> str:
        """Return the option's text without blanks around it."""
        return self._values.get(name.lower()) or default

    def required(self, name: str, why: str = "") -> str:
        """Return the option's text; it must be there."""
        if not self.given(name):
            raise OptionError(f"option {name} is missing{': ' + why if why else ''}", name)
        return self.text(name)

    def listing(self, name: str, separators: str = ",") -> tuple[str, ...]:
        """Return the parts of a list, without blanks, empty parts and repeats, in their order."""
        parts = re.split(f"[{re.escape(separators)}]", self.text(name))
        return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))

    def integer(
        self, name: str, default: int | None, low: int = 0, high: int = INT64_MAX
    ) -> int | None:
        """Return a whole number between `low` and `high`, both allowed."""
        if not self.given(name):
            return default
        text = self.text(name)
        if not _NUMBER.fullmatch(text):
            raise self.wrong(name, "a whole number")
        return self._within(name, int(text), low, high, "")

    def milliseconds(self, name: str, default: int, *, low: int = 0, high: int = INT64_MAX) -> int:
        """Return a duration: milliseconds, or with a unit as in `500ms`, `15s`, `15m`, `2h`."""
        if not self.given(name):
            return default
        found = _DURATION.fullmatch(self.text(name))
        if found is None:
            raise self.wrong(name, "milliseconds, or a number with ms, s, m, h or d as in 15m")
        count = int(found[1]) * _MILLISECONDS[(found[2] or "ms").lower()]
        return self._within(name, count, low, high, " ms")

    def size(self, name: str, default: int, *, low: int = 1, high: int = INT64_MAX) -> int:
        """Return a size in bytes, given so or with a unit as in `256KiB`, `4m`; units are 1024s."""
        if not self.given(name):
            return default
        found = _SIZE.fullmatch(self.text(name))
        if found is None:
            raise self.wrong(name, "bytes, or a number with KiB, MiB or GiB as in 4MiB")
        count = int(found[1]) * _BYTES[(found[2] or "b")[0].lower()]
        return self._within(name, count, low, high, " bytes")

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        if not self.given(name):
            return default
        text = self.text(name).lower()
        if text not in _TRUE and text not in _FALSE:
            raise self.wrong(name, "true or false")
        return text in _TRUE

    def choice(self, name: str, choices: Iterable[C], default: C) -> C:
        """Return one of the choices, in the case they are documented in."""
        if not self.given(name):
            return default
        by_lower = {choice.lower(): choice for choice in choices}
        found = by_lower.get(self.text(name).lower())
        if found is None:
            raise self.wrong(name, f"one of {', '.join(by_lower.values())}")
        return found

    def json_object(self, name: str, example: str) -> dict[str, Any]:
        """Return the object of a JSON text; `example` is shown when it is not one.

        A key that stands twice in one object is refused.
        """
        try:
            value = json.loads(self.text(name), object_pairs_hook=_without_repeats)
        except (ValueError, RecursionError) as error:
            raise self.wrong(name, f"JSON such as {example} ({error})") from error
        if not isinstance(value, dict):
            raise self.wrong(name, f"a JSON object such as {example}")
        return cast("dict[str, Any]", value)

    def exactly_one(self, *names: str) -> str:
        """Return which of the options is given: one of them must be, and no other may."""
        found = self.at_most_one(*names)
        if found is None:
            raise OptionError(f"one of the options {_either(names)} is needed")
        return found

    def at_most_one(self, *names: str) -> str | None:
        """Return which of the options is given, None when none is; two are a contradiction."""
        found = [name for name in names if self.given(name)]
        if len(found) > 1:
            raise OptionError(f"options {' and '.join(found)} exclude each other: give one of them")
        return found[0] if found else None

    def values(self, declared: type) -> dict[str, Any]:
        """Return the values of the options that a dataclass declares, by field.

        Those that are read by hand are not among them.
        """
        found = {each.name: each.metadata.get(_FIELD) for each in fields(declared)}
        return {name: option.read(self) for name, option in found.items() if option and option.read}

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Refuse options that make no sense here, with the reason."""
        for name in names:
            if self.given(name):
                raise OptionError(f"option {name} {why}", name)

    def wrong(self, name: str, wanted: str) -> OptionError:
        """Return the error for a value that its option does not take."""
        return OptionError(f"option {name} is {wanted}, not {shown(name, self.text(name))}", name)

    def _within(self, name: str, value: int, low: int, high: int, unit: str) -> int:
        if value < low:
            raise self.wrong(name, f"at least {low}{unit}")
        if value > high:
            raise self.wrong(name, f"at most {high}{unit}")
        return value


# Declarations


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of an option beside its value; the texts are for the reference page."""

    name: str
    meaning: str
    takes: str = "text"
    default: str = ""
    only: Only = ""
    read: Callable[[OptionReader], Any] | None = None
    """None: it is read by hand."""


def options_of(*sources: type | Option) -> tuple[Option, ...]:
    """Return the options that the fields of dataclasses declare, and those given as they are."""
    found: list[Option] = []
    for source in sources:
        declared = () if isinstance(source, Option) else fields(source)
        found += [each.metadata[_FIELD] for each in declared if _FIELD in each.metadata]
        found += [source] if isinstance(source, Option) else []
    return tuple(found)


def special(name: str, value: Any, meaning: str, takes: str, shown: str = "") -> Any:
    """Declare an option that is read by hand; `shown` is its default as the page shows it."""
    return _declared(Option(name, meaning, takes, shown), value, None)


def string(name: str, default: str | None, meaning: str) -> Any:
    """Declare a text; the default stands for an empty one as well."""
    return _declared(Option(name, meaning), default, lambda given: given.text(name) or default)


def number(
    name: str,
    default: int | None,
    meaning: str,
    low: int = 0,
    high: int = INT64_MAX,
    only: Only = "",
) -> Any:
    """Declare a whole number between `low` and `high`."""
    shown = "" if default is None else str(default)
    option = Option(name, meaning, _bounds(low, high, str), shown, only)
    return _declared(option, default, lambda given: given.integer(name, default, low, high))


def seconds(name: str, default_ms: int, meaning: str, low: int = 0, only: Only = "") -> Any:
    """Declare a duration, which users give in ms or with a unit; its value is in seconds."""
    option = Option(name, meaning, "ms, or with a unit as in `15m`", str(default_ms), only)
    return _declared(
        option,
        default_ms / 1000,
        lambda given: given.milliseconds(name, default_ms, low=low) / 1000,
    )


def size(name: str, default: int, meaning: str, low: int = 1, high: int = INT64_MAX) -> Any:
    """Declare a number of bytes, which users may give with a unit."""
    option = Option(name, meaning, _bounds(low, high, size_text), size_text(default))
    return _declared(option, default, lambda given: given.size(name, default, low=low, high=high))


def flag(name: str, default: bool, meaning: str) -> Any:
    """Declare true or false."""
    option = Option(name, meaning, TRUE_FALSE, str(default).lower())
    return _declared(option, default, lambda given: given.flag(name, default))


def choice(name: str, default: str, choices: tuple[str, ...], meaning: str) -> Any:
    """Declare one of several words."""
    option = Option(name, meaning, words(choices), default)
    return _declared(option, default, lambda given: given.choice(name, choices, default))


def listing(name: str, meaning: str, only: Only = "") -> Any:
    """Declare a list separated by commas; empty by default."""
    option = Option(name, meaning, "a list", only=only)
    return _declared(option, (), lambda given: given.listing(name))


def words(choices: Iterable[str]) -> str:
    """Return words as the reference page shows them."""
    return ", ".join(f"`{each}`" for each in choices)


def _declared(option: Option, default: Any, read: Callable[[OptionReader], Any] | None) -> Any:
    shown = not is_secret(option.name)
    return field(default=default, repr=shown, metadata={_FIELD: replace(option, read=read)})


def _bounds(low: int, high: int, shown: Callable[[int], str]) -> str:
    return f"{shown(low)} or more" if high == INT64_MAX else f"{shown(low)} to {shown(high)}"


def size_text(count: int) -> str:
    """Return a number of bytes with the largest unit that divides it."""
    if count and count % MIB == 0:
        return f"{count // MIB} MiB"
    return f"{count // KIB} KiB" if count and count % KIB == 0 else str(count)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key!r} stands there twice")
        found[key] = value
    return found


def _either(names: tuple[str, ...]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last
