"""Every code of a broker and of a name server, with what no honest client sends.

The codes come from the handlers (`tests/support/hostile_requests.py`): a new one is here by itself,
and whatever it keeps of unknown names shows in the census.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand, encode_command
from skylarkmq.protocol.flags import validate_topic
from tests.support.amounts import slow
from tests.support.hostile_frames import NAMES, VALUES, hostile_items
from tests.support.hostile_requests import (
    CLIENT,
    GROUP,
    TOPIC,
    Shape,
    broker_requests,
    namesrv_requests,
)
from tests.support.hostile_rig import HostileRig
from tests.support.raw_client import send_fields

SEED = int(os.environ.get("SKYLARKMQ_SEED", "1"))
REMARK_MAX = 1100  # bytes that an answer may say
NAMED = {TOPIC, GROUP, CLIENT, "pg", "x"}
# Codes that are there to make something: what they keep has limits of its own.
MAKERS = {
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.REGISTER_BROKER,
    RequestCode.PUT_KV_CONFIG,
}
CLOSED = {"auto_create_topic_enable": False, "auto_create_subscription_group": False}


@pytest.fixture(scope="module")
def rig() -> Iterator[HostileRig]:
    with HostileRig() as made:
        yield made


def _request(code: int, fields: dict[str, str], body: Any, opaque: int = 1) -> RemotingCommand:
    data = b"" if body is None else json.dumps(body).encode()
    return RemotingCommand.request(code, fields, data, opaque=opaque)


def _all_requests() -> list[tuple[bool, int, Shape]]:
    return [
        *((False, code, shape) for code, shape in broker_requests().items()),
        *((True, code, shape) for code, shape in namesrv_requests().items()),
    ]


def test_the_table_knows_what_handlers_read() -> None:
    requests = broker_requests()
    assert requests[RequestCode.GET_MAX_OFFSET] == Shape({"topic": TOPIC, "queueId": "0"}, None)
    heartbeat = requests[RequestCode.HEART_BEAT].body
    assert heartbeat["clientID"] == CLIENT
    assert heartbeat["consumerDataSet"][0]["subscriptionDataSet"][0]["topic"] == TOPIC
    assert set(namesrv_requests()) >= {103, 104, 105, 106}


@pytest.mark.parametrize("count", [800, pytest.param(30_000, marks=pytest.mark.fault)])
def test_no_frame_breaks_a_handler(count: int) -> None:
    items = hostile_items(Random(SEED))
    with HostileRig() as rig:
        for number in range(count):
            name, data = next(items)
            try:
                answers = rig.feed(data, part=Random(number).choice((1 << 18, 1000, 77)))
                rig.feed(data, namesrv=True)
                rig.check_defects()
            except Exception as error:
                raise AssertionError(f"{number}: {name} {data[:200]!r}") from error
            said = max((len((answer.remark or "").encode()) for answer in answers), default=0)
            assert said <= REMARK_MAX
            if number % 100 == 0:
                rig.check()
        rig.check()
        _check_disk(rig)


def test_every_value_in_every_field_is_answered(rig: HostileRig) -> None:
    for code, shape in broker_requests().items():
        for name in shape.fields:
            requests = [
                _request(code, {**shape.fields, name: value}, shape.body, opaque)
                for opaque, value in enumerate(VALUES)
                if value.isascii()  # the others in `test_no_frame_breaks_a_handler`
            ]
            told = rig.exchange(*requests)
            rig.check_defects()
            for opaque, answer in told.items():
                assert len(answer.remark or "") <= REMARK_MAX, (code, name, opaque)
    rig.check()


def test_no_name_leaves_the_folder_it_is_for(rig: HostileRig) -> None:
    for code, shape in broker_requests().items():
        for name in [name for name, value in shape.fields.items() if value in NAMED]:
            for hostile in NAMES:
                if len(hostile) < 32_768:
                    fields = {**shape.fields, name: hostile}
                    rig.feed(encode_command(_request(code, fields, shape.body)))
        if shape.body is not None:
            for hostile in NAMES:
                rig.feed(encode_command(_request(code, shape.fields, _named(shape.body, hostile))))
        rig.check_defects()
    rig.check()
    _check_disk(rig)


def _named(value: Any, name: str) -> Any:
    """A body with every name in it replaced."""
    if isinstance(value, dict):
        return {_named(key, name): _named(item, name) for key, item in value.items()}
    if isinstance(value, list):
        return [_named(item, name) for item in value]
    return name if isinstance(value, str) and value in NAMED else value


def _check_disk(rig: HostileRig) -> None:
    """Every folder of a queue is called as a topic may be, and so is what the tables hold."""
    rig.advance(11)
    for folder in ("consumequeue", "consumequeue_ext"):
        path = rig.disk.root / folder
        for topic in rig.disk.list(path) if rig.disk.exists(path) else ():
            assert validate_topic(topic) is None, topic
            assert all(queue.isdigit() for queue in rig.disk.list(path / topic))
    assert not [topic for topic in rig.parts.topics.table if validate_topic(topic)]
    assert not [group for group in rig.parts.groups.table if validate_topic(group)]


# Nothing is kept


@pytest.mark.parametrize("every", [3, slow(1)])
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "auto"])
def test_unknown_names_are_not_kept(closed: bool, every: int) -> None:
    """Of thirty requests with names that nobody knows, nothing is left when their peers have gone.

    With automatic creation a group may be made, of which there is a limited number, and what also
    makes a topic or a member is left out.
    """
    with HostileRig(**CLOSED if closed else {}) as rig:
        for namesrv, code, shape in _all_requests()[::every]:
            if code in MAKERS or (not closed and _creates(code)):
                continue
            _ask_unknown(rig, namesrv, code, shape, range(5))
            before = rig.census()
            _ask_unknown(rig, namesrv, code, shape, range(100, 130))
            grown = {
                place: (before.get(place, 0), size)
                for place, size in rig.census().items()
                if size > before.get(place, 0) + 5 and (closed or place != "state.groups.table")
            }
            assert not grown, f"code {code} keeps {grown}"


def _creates(code: int) -> bool:
    return code in {
        *(10, 310, 320, 324, 325),
        *(RequestCode.HEART_BEAT, RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE),
        *(RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.CHECK_CLIENT_CONFIG),
    }


def _ask_unknown(rig: HostileRig, namesrv: bool, code: int, shape: Shape, numbers: range) -> None:
    for number in numbers:
        fields = {
            name: f"{value}-{number}" if value in NAMED else value
            for name, value in shape.fields.items()
        }
        if "queueId" in fields:
            fields["queueId"] = str(number)
        body = _numbered(shape.body, number)
        rig.feed(encode_command(_request(code, fields, body)), namesrv=namesrv)
    rig.check_defects()
    rig.advance(61)


def _numbered(value: Any, number: int) -> Any:
    if isinstance(value, dict):
        return {_numbered(key, number): _numbered(item, number) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbered(item, number) for item in value]
    return f"{value}-{number}" if isinstance(value, str) and value in NAMED else value


@pytest.mark.parametrize("queue_id", ["1", "1024", "2147483647", "-1", "-2147483648"])
def test_unknown_queues_of_a_known_topic_are_not_kept(rig: HostileRig, queue_id: str) -> None:
    rig.ask(RequestCode.SEND_MESSAGE_V2, send_fields(TOPIC), b"body")
    queues = len(rig.parts.store.queues.queues)
    for code, shape in broker_requests().items():
        if "queueId" in shape.fields and code not in (10, 324):
            rig.feed(encode_command(_request(code, {**shape.fields, "queueId": queue_id}, None)))
    assert len(rig.parts.store.queues.queues) == queues


# One answer each


def test_each_request_is_answered_once_and_no_one_way_request(rig: HostileRig) -> None:
    rng = Random(SEED)
    shapes = list(broker_requests().items())
    for _ in range(60):
        requests: list[RemotingCommand] = []
        for opaque in range(rng.choice((1, 5, 40))):
            code, shape = rng.choice(shapes)
            requests.append(_request(code, dict(shape.fields), shape.body, opaque))
            requests[-1].flag = 2 if rng.random() < 0.2 else 0
        data = b"".join(map(encode_command, requests))
        told = rig.feed(data, part=rng.choice((1 << 18, 500, 13)), wait_s=25)
        answered = Counter(answer.opaque for answer in told if answer.is_response)
        wanted = {request.opaque: request.code for request in requests if not request.is_oneway}
        assert answered == Counter(wanted.keys()), {
            opaque: (wanted.get(opaque), answered[opaque])
            for opaque in answered.keys() | wanted.keys()
            if answered[opaque] != 1 or opaque not in wanted
        }
    rig.check()


def test_a_body_that_is_no_message_has_a_limit(rig: HostileRig) -> None:
    body = b'{"clientID":"c","consumerDataSet":[' + b" " * (1 << 20) + b"]}"
    answer = rig.ask(RequestCode.HEART_BEAT, {}, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"the body has {len(body)} bytes, at most 1048576 are read"
    assert rig.ask(RequestCode.SEND_MESSAGE_V2, send_fields("T"), bytes(30_000)).code == 0


# The checks themselves


def test_a_handler_with_a_defect_is_noticed() -> None:
    def broken(*_: object) -> RemotingCommand:
        raise ZeroDivisionError

    with HostileRig() as rig:
        rig.router.handlers[RequestCode.GET_MAX_OFFSET] = broken
        rig.ask(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})
        with pytest.raises(AssertionError, match="ZeroDivisionError"):
            rig.check()


def test_a_table_that_keeps_names_is_noticed() -> None:
    with HostileRig() as rig:
        kept = rig.parts.locks.kept = []  # type: ignore[attr-defined]
        before = rig.census()
        kept += ["name"] * 10
        assert sum(rig.census().values()) == sum(before.values()) + 10
