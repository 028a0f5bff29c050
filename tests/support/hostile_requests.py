"""Sound requests for every code that a broker answers, made from what its handlers read.

The source of a handler names the header and body classes that it decodes, and those say what their
fields are. So a code that is new is among the hostile ones without a word here. `KNOWN` has what
types alone do not tell.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from skylarkmq.broker.components import BrokerParts, make_server
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.namesrv.processor import NamesrvProcessor
from skylarkmq.broker.namesrv.route_info import RouteInfoManager
from skylarkmq.broker.net.handlers import Handler
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand, encode_command
from tests.store.support import HOST, store_config
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import ManualClock
from tests.support.raw_client import pull_fields, send_fields
from tests.support.workers import manual_store_workers

TOPIC, GROUP, CLIENT = "hostile", "cg", "192.0.2.1@hostile"
DEPTH_MAX = 6  # of a body


class Shape(NamedTuple):
    """A sound request."""

    fields: dict[str, str]
    body: Any  # JSON; None where there is none


_V1_NAMES = (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag",
    "bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "batch",
)  # fmt: skip
_V1 = dict(zip(_V1_NAMES, send_fields(TOPIC).values(), strict=True))
KNOWN: dict[int, dict[str, str]] = {
    RequestCode.SEND_MESSAGE: _V1,
    RequestCode.SEND_MESSAGE_V2: send_fields(TOPIC),
    RequestCode.SEND_BATCH_MESSAGE: send_fields(TOPIC, m="true"),
    RequestCode.SEND_REPLY_MESSAGE: _V1,
    RequestCode.SEND_REPLY_MESSAGE_V2: send_fields(TOPIC),
    RequestCode.PULL_MESSAGE: pull_fields(TOPIC, sysFlag="4"),
    RequestCode.LITE_PULL_MESSAGE: pull_fields(TOPIC, sysFlag="4"),
}

# What the name of a field or member says about its value.
_TEXTS = (
    (re.compile("originMsgId|msgId|offsetMsgId", re.I), "7F00000100002A9F0000000000000000"),
    (re.compile("transactionId|uniqKey", re.I), "A" * 32),
    (re.compile("topicFilterType", re.I), "SINGLE_TAG"),
    (re.compile("consumeFromWhere", re.I), "CONSUME_FROM_LAST_OFFSET"),
    (re.compile("messageModel", re.I), "CLUSTERING"),
    (re.compile("consumeType", re.I), "CONSUME_PASSIVELY"),
    (re.compile("expressionType|^type$", re.I), "TAG"),
    (re.compile("subscription|subString|expression", re.I), "*"),
    (re.compile("topic", re.I), TOPIC),
    (re.compile("group", re.I), GROUP),
    (re.compile("client", re.I), CLIENT),
    (re.compile("broker", re.I), "broker-a"),
    (re.compile("addr", re.I), "192.0.2.1:10911"),
)
_NUMBERS = (
    (re.compile("QueueNums|readQueue|writeQueue", re.I), 1),
    (re.compile("perm", re.I), 6),
    (re.compile("commitOrRollback"), 8),  # who does not know yet gets no answer
)


@lru_cache(maxsize=1)
def broker_requests() -> dict[int, Shape]:
    """A sound request of each code of a broker."""
    config = BrokerConfig(store=store_config(CrashDisk().root), broker_name="broker-a")
    clock = ManualClock()
    state = BrokerParts(config, CrashDisk(), clock, manual_store_workers().workers, 1 << 33)
    _, router = make_server(state, clock, HOST, Random(1))
    known = {int(code): Shape(dict(KNOWN[code]), None) for code in router.codes & set(KNOWN)}
    return dict(sorted({**shapes_of(router.handlers), **known}.items()))


@lru_cache(maxsize=1)
def namesrv_requests() -> dict[int, Shape]:
    """A sound request of each code of a name server."""
    return shapes_of(NamesrvProcessor(RouteInfoManager(ManualClock())).handlers())


def sound_frame(code: int, shape: Shape) -> bytes:
    """A sound request as it goes over the wire."""
    body = b"" if shape.body is None else json.dumps(shape.body).encode()
    return encode_command(RemotingCommand.request(code, shape.fields, body, opaque=1))


def shapes_of(handlers: Mapping[int, Handler]) -> dict[int, Shape]:
    """Read from the handlers' sources what they take."""
    return {int(code): _shape(handlers[code]) for code in sorted(handlers)}


def _shape(handler: Handler) -> Shape:
    fields: dict[str, str] = {}
    body: Any = None
    for cls, is_body in _decoded(handler):
        if is_body:
            body = _sample(cls, "", DEPTH_MAX)
        else:
            fields |= _fields(cls)
    return Shape(fields, body)


def _decoded(handler: Handler) -> list[tuple[type[msgspec.Struct], bool]]:
    """The headers and bodies that a handler reads, by itself or by functions of its module."""
    function: Any = inspect.unwrap(getattr(handler, "__func__", handler))
    owner = type(getattr(handler, "__self__", None))
    ahead, seen = [function], set[Any]()
    found: dict[type[msgspec.Struct], bool] = {}
    while ahead:
        function = ahead.pop()
        if function in seen:
            continue
        seen.add(function)
        known, text = function.__globals__, inspect.getsource(function)
        bodies = set(re.findall(r"decode_body\(\s*(\w+)", text))
        for word in re.findall(r"[A-Za-z_]\w*", text):
            value = known.get(word) or getattr(owner, word, None)
            if isinstance(value, type) and issubclass(value, msgspec.Struct):
                if word in bodies or word.endswith("RequestHeader"):
                    found[value] = word in bodies
            elif isinstance(value, types.FunctionType) and value.__globals__ is known:
                ahead.append(value)
    return sorted(found.items(), key=lambda item: item[0].__name__)


def _fields(cls: type[msgspec.Struct]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for name, wanted in _members(cls):
        value = _sample(wanted, name, 1)
        fields[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return fields


def _members(cls: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    hints = typing.get_type_hints(cls, include_extras=False)
    names = zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True)
    return [(on_wire, hints[name]) for name, on_wire in names]


def _sample(wanted: Any, name: str, depth: int) -> Any:
    """A sound JSON value of a type."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is Annotated:
        return _sample(arguments[0], name, depth)
    if origin in (types.UnionType, typing.Union):
        return _sample(next(each for each in arguments if each is not type(None)), name, depth)
    if origin is Literal:
        return arguments[0]
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        if depth <= 0:
            return {}
        return {member: _sample(kind, member, depth - 1) for member, kind in _members(wanted)}
    if origin in (list, set, frozenset, tuple):
        return [_sample(arguments[0], name, depth - 1)] if arguments and depth > 0 else []
    if origin is dict:
        return {str(_sample(arguments[0], name, 0)): _sample(arguments[1], name, depth - 1)}
    return _plain(wanted, name)


def _plain(wanted: Any, name: str) -> Any:
    if wanted is bool:
        return "nable" in name
    if wanted is int:
        return next((number for pattern, number in _NUMBERS if pattern.search(name)), 0)
    if isinstance(wanted, type) and issubclass(wanted, int):
        return 0
    return next((text for pattern, text in _TEXTS if pattern.search(name)), "x")
