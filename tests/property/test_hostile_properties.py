"""Whatever fields, bodies and properties a request has, it is answered, and nothing breaks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skylarkmq.protocol.command import RemotingCommand, encode_command
from skylarkmq.protocol.errors import LocalProtocolError
from skylarkmq.protocol.frame import SerializeType
from tests.support.hostile_frames import NAMES, PROPERTIES, VALUES
from tests.support.hostile_requests import Shape, broker_requests, namesrv_requests
from tests.support.hostile_rig import HostileRig
from tests.support.raw_client import send_fields

TEXT = st.one_of(
    st.sampled_from(VALUES),
    st.sampled_from(NAMES),
    st.integers(-(2**65), 2**65).map(str),
    st.text(max_size=40),
)
JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
KINDS = st.sampled_from([SerializeType.JSON, SerializeType.ROCKETMQ, SerializeType.MSGPACK])
KNOWN_PROPERTIES = st.sampled_from(
    [
        *("KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG"),
        *("PGROUP", "MIN_OFFSET", "UNIQ_KEY", "CLUSTER", "MSG_TYPE", "REPLY_TO_CLIENT", "TTL"),
        *("TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DEL_UNIQKEY"),
        *("TIMER_OUT_MS", "TIMER_ROLL_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS", "DUP_INFO"),
        *("INNER_MULTI_DISPATCH", "TRANSACTION_CHECK_TIMES", "CORRELATION_ID", "MSG_REGION"),
        *("MAX_RECONSUME_TIMES", "RECONSUME_TIME", "ORIGIN_MESSAGE_ID", "__STARTDELIVERTIME"),
    ]
)
COUNTS = [
    pytest.param(25),
    pytest.param(3000, marks=pytest.mark.fault),
]


@pytest.fixture(scope="module")
def rig() -> Iterator[HostileRig]:
    with HostileRig() as made:
        yield made


@st.composite
def requests(draw: st.DrawFn, shapes: dict[int, Shape]) -> RemotingCommand:
    """A request with some fields and part of its body replaced."""
    code = draw(st.sampled_from(sorted(shapes)))
    shape = shapes[code]
    fields = dict(shape.fields)
    if fields:
        for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=3)):
            fields[name] = draw(TEXT)
        for name in draw(st.lists(st.sampled_from(sorted(shape.fields)), max_size=1)):
            fields.pop(name, None)
    fields |= draw(st.dictionaries(st.text(max_size=8), TEXT, max_size=1))
    body = b"" if shape.body is None else json.dumps(draw(_spoiled(shape.body))).encode()
    if draw(st.integers(0, 9)) == 0:
        body = draw(st.binary(max_size=60))
    return RemotingCommand.request(
        code,
        fields,
        body,
        opaque=draw(st.integers(-(2**31), 2**31 - 1)),
        serialize_type=draw(KINDS),
    )


@st.composite
def _spoiled(draw: st.DrawFn, value: Any) -> Any:
    if isinstance(value, dict) and value and draw(st.integers(0, 9)):
        key = draw(st.sampled_from(sorted(value)))
        return {**value, key: draw(_spoiled(value[key]))}
    if isinstance(value, list) and value and draw(st.integers(0, 9)):
        return [draw(_spoiled(value[0])), *value[1:]]
    return draw(JSON_VALUE)


def _feed(rig: HostileRig, request: RemotingCommand, *, namesrv: bool = False) -> None:
    try:
        data = encode_command(request)
    except (LocalProtocolError, UnicodeEncodeError):
        return  # a text that no codec carries
    answers = [each for each in rig.feed(data, namesrv=namesrv) if each.is_response]
    rig.check_defects()
    assert len(answers) <= 1
    for answer in answers:
        assert answer.opaque == request.opaque
        assert len((answer.remark or "").encode(errors="replace")) <= 1100


@pytest.mark.parametrize("count", COUNTS)
def test_any_request_of_a_broker(rig: HostileRig, count: int) -> None:
    @_examples(count)
    @given(requests(broker_requests()))
    def run(request: RemotingCommand) -> None:
        _feed(rig, request)

    run()
    rig.check()


@pytest.mark.parametrize("count", COUNTS)
def test_any_request_of_a_name_server(rig: HostileRig, count: int) -> None:
    @_examples(count)
    @given(requests(namesrv_requests()))
    def run(request: RemotingCommand) -> None:
        _feed(rig, request, namesrv=True)

    run()
    rig.check()


@pytest.mark.parametrize("count", COUNTS)
def test_any_properties_of_a_message(rig: HostileRig, count: int) -> None:
    pair = st.tuples(KNOWN_PROPERTIES, TEXT).map(lambda item: f"{item[0]}\x01{item[1]}\x02")
    text = st.lists(pair | st.sampled_from(PROPERTIES), max_size=5).map("".join)

    @_examples(count)
    @given(text, KINDS, st.sampled_from([310, 10, 320]), st.binary(max_size=40))
    def run(properties: str, kind: int, code: int, body: bytes) -> None:
        fields = dict(broker_requests()[code].fields)
        fields["i" if code != 10 else "properties"] = properties
        _feed(rig, RemotingCommand.request(code, fields, body, opaque=1, serialize_type=kind))

    run()
    rig.check()
    rig.advance(120)  # what was to be delivered later is
    rig.feed(encode_command(RemotingCommand.request(310, send_fields("T"), b"x", opaque=1)))
    rig.check()


def _examples(count: int) -> Any:
    return settings(max_examples=count, suppress_health_check=list(HealthCheck), database=None)
