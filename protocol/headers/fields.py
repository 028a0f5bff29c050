"""Between typed headers and the text map of a command.

Every header field travels as text: decimal digits, `true` or `false`, or the text itself. A typed
header is a `msgspec.Struct` whose field types say how its text is read: `str`, `bool`, `JavaInt`
(32 bits), `JavaLong` (64 bits), each optionally `| None`. A field without a default is mandatory.

Unlike RocketMQ, which notices a missing or ill-typed field only when something later trips over
it, the answer here is SYSTEM_ERROR with a remark that names header and field.

Source: apache/rocketmq@rocketmq-all-4.9.8 remoting/.../protocol/RemotingCommand.java
(makeCustomHeaderToNet, decodeCommandCustomHeader)
"""

import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError, shown

INT_MIN: Final = -(2**31)
INT_MAX: Final = 2**31 - 1
LONG_MIN: Final = -(2**63)
LONG_MAX: Final = 2**63 - 1

JavaInt = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]
JavaLong = Annotated[int, msgspec.Meta(ge=LONG_MIN, le=LONG_MAX)]

T = TypeVar("T", bound=msgspec.Struct)


class Header(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """What every typed header is: fields by name, in Java's spelling on the wire."""


# int() alone would take "1_000", " 1" and the digits of other scripts.
_is_integer = re.compile(r"[+-]?[0-9]{1,19}").fullmatch
# Fewer digits than these, without a sign, are in range whatever they are.
INT_DIGITS: Final = len(str(INT_MAX))
LONG_DIGITS: Final = len(str(LONG_MAX))
# The numbers that most fields hold, without a regular expression or a parse.
_SMALL_INTEGERS: Final = {str(number): number for number in range(-1, 1025)}
_small_integer = _SMALL_INTEGERS.get


def java_int(text: str, name: str) -> int:
    """Return the 32 bit number in `text`; `name` says in the remark what it is.

    Raises:
        RemoteProtocolError: other than ASCII digits with an optional sign, or out of range.
    """
    small = _small_integer(text)
    if small is not None:
        return small
    if len(text) < INT_DIGITS and text.isdecimal() and text.isascii():
        return int(text)
    if _is_integer(text) is None or not INT_MIN <= (number := int(text)) <= INT_MAX:
        raise _ill_typed(name, "a 32 bit integer", text)
    return number


def java_long(text: str, name: str) -> int:
    """Return the 64 bit number in `text`; `name` says in the remark what it is.

    Raises:
        RemoteProtocolError: other than ASCII digits with an optional sign, or out of range.
    """
    small = _small_integer(text)
    if small is not None:
        return small
    if len(text) < LONG_DIGITS and text.isdecimal() and text.isascii():
        return int(text)
    if _is_integer(text) is None or not LONG_MIN <= (number := int(text)) <= LONG_MAX:
        raise _ill_typed(name, "a 64 bit integer", text)
    return number


def java_boolean(text: str, name: str) -> bool:
    """Return whether `text` is `true` in any case; as in Java, anything else is false."""
    return text == "true" or text.lower() == "true"


def _java_string(text: str, name: str) -> str:
    return text


def _ill_typed(name: str, wanted: str, text: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        ResponseCode.SYSTEM_ERROR, f"the field {name} is not {wanted}: {shown(text)}"
    )


class Field(NamedTuple):
    """How one field of a header is read and written."""

    attribute: str
    wire_name: str
    full_name: str  # "SendMessageRequestHeader.queueId", for remarks
    read: Callable[[str, str], Any]
    required: bool
    kind: object


Plan = tuple[Field, ...]

_READERS: Final[dict[object, Callable[[str, str], Any]]] = {
    str: _java_string,
    bool: java_boolean,
    JavaInt: java_int,
    JavaLong: java_long,
}
_plans: dict[type[msgspec.Struct], Plan] = {}


def _without_none(kind: Any) -> object:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(kind) if member is not type(None)]
        if len(members) == 1:
            return members[0]
    return kind


def plan_of(cls: type[msgspec.Struct], wire_names: Mapping[str, str] | None = None) -> Plan:
    """Return how the fields of `cls` are read and written; worked out once for each class.

    `wire_names`, from attribute to wire name, takes the place of the names in the class.
    """
    fields: list[Field] = []
    for info in msgspec.structs.fields(cls):
        wire_name = info.encode_name if wire_names is None else wire_names[info.name]
        kind = _without_none(info.type)
        fields.append(
            Field(
                info.name,
                wire_name,
                f"{cls.__name__}.{wire_name}",
                _READERS[kind],
                info.required,
                kind,
            )
        )
    return tuple(fields)


def _cached_plan(cls: type[msgspec.Struct]) -> Plan:
    plan = _plans.get(cls)
    if plan is None:
        plan = _plans[cls] = plan_of(cls)
    return plan


def decode_fields(cls: type[T], ext_fields: Mapping[str, str], plan: Plan | None = None) -> T:
    """Return the header `cls` out of the text map of a command; extras in the map are ignored.

    Args:
        plan: of `plan_of`, for a class with other names on the wire than its own.

    Raises:
        RemoteProtocolError: SYSTEM_ERROR; a mandatory field is missing, or a text is ill-typed.
    """
    plan = plan or _cached_plan(cls)
    values: dict[str, Any] = {}
    get = ext_fields.get
    for attribute, wire_name, full_name, read, required, _ in plan:
        text = get(wire_name)
        if text is not None:
            values[attribute] = read(text, full_name)
        elif required:
            raise RemoteProtocolError(
                ResponseCode.SYSTEM_ERROR, f"the field {full_name} is missing"
            )
    return cls(**values)


def encode_fields(header: msgspec.Struct, plan: Plan | None = None) -> dict[str, str]:
    """Return the text map of `header`: fields in declared order, None left out."""
    ext_fields: dict[str, str] = {}
    for attribute, wire_name, _, _, _, kind in plan or _cached_plan(type(header)):
        value = getattr(header, attribute)
        if value is None:
            continue
        if kind is str:
            ext_fields[wire_name] = value
        elif kind is bool:
            ext_fields[wire_name] = "true" if value else "false"
        else:
            ext_fields[wire_name] = str(value)
    return ext_fields
