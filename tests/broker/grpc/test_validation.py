"""The table of what may be sent: each row with its code, and just inside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skylarkmq.broker.grpc.calls import RpcRefused
from skylarkmq.broker.grpc.validation import Checked, MessageRules
from skylarkmq.protocol.properties import RESERVED_NAMES_5, decode_properties
from skylarkmq.protocol.topic_attributes import MESSAGE_TYPES, PRIORITY_TYPE
from skylarkmq.protocol.v5.codes import Code
from skylarkmq.protocol.v5.schema_pb2 import LITE, PRIORITY, Message
from skylarkmq.store.config import StoreConfig
from tests.broker.grpc.sending_rig import TOPIC, half, message

NOW_MS = 1_700_000_000_000
RULES = MessageRules(StoreConfig(store_path_root_dir=Path("unused")))


def check(sent: Message, types: tuple[str, ...] = MESSAGE_TYPES) -> Checked:
    return RULES.check(sent, TOPIC, types, NOW_MS)


def refusal(sent: Message, types: tuple[str, ...] = MESSAGE_TYPES) -> tuple[int, str]:
    with pytest.raises(RpcRefused) as refused:
        check(sent, types)
    assert refused.value.message.isprintable()
    return refused.value.code, refused.value.message


def properties(count: int, size: int = 1) -> dict[str, str]:
    return {f"{number:05}": "v" * size for number in range(count)}


def later(field: bytes) -> Message:
    """A message with a field of a later RocketMQ in its system properties."""
    sent = message()
    sent.system_properties.MergeFromString(field)
    return sent


def typed(kind: int) -> Message:
    sent = message()
    sent.system_properties.message_type = kind  # type: ignore[assignment]
    return sent


OTHER_TYPE = Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
BODY, SIZE = Code.MESSAGE_BODY_TOO_LARGE, Code.MESSAGE_PROPERTIES_TOO_LARGE
NAME, TAG, KEY = (
    Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
    Code.ILLEGAL_MESSAGE_TAG,
    Code.ILLEGAL_MESSAGE_KEY,
)
ID, GROUP = Code.ILLEGAL_MESSAGE_ID, Code.ILLEGAL_MESSAGE_GROUP
ROWS = [
    (message(b""), Code.MESSAGE_BODY_EMPTY),
    (message(b"x" * 4_194_305), BODY),
    (message(properties=properties(129)), SIZE),
    (message(properties={"n": "v" * 16_384}), SIZE),
    (message(properties={"n": "é" * 8_192}), SIZE),
    (message(tag="t" * 10_000, keys=["k" * 6_385]), SIZE),
    *[(message(properties={name: "v"}), NAME) for name in sorted(RESERVED_NAMES_5)],
    (message(properties={"__SHARDINGKEY": "g"}), NAME),
    (message(properties={"TIMER_DELAY_MS": "5000"}), NAME),
    (message(properties={"a\x01b": "v"}), NAME),
    (message(properties={"n": "v\x02TRAN_MSG\x01true"}), NAME),
    (message(properties={"n": "\x7f"}), NAME),
    (message(properties={"n": "\x9f"}), NAME),
    (message(properties={"n": "\0"}), NAME),
    (message(tag=" "), TAG),
    (message(tag="a|b"), TAG),
    (message(tag="a\tb"), TAG),
    (message(keys=["k", ""]), KEY),
    (message(keys=["  "]), KEY),
    (message(keys=["a\nb"]), KEY),
    (message(message_id=""), ID),
    (message(message_id=" "), ID),
    (message(message_id="x\x02TIMER_DELAY_SEC\x015"), ID),
    (message(deliver_ms=NOW_MS + 259_201_000), Code.ILLEGAL_DELIVERY_TIME),
    (message(deliver_ms=(1 << 62)), Code.ILLEGAL_DELIVERY_TIME),
    (half(recovery_s=3601), Code.BAD_REQUEST),
    (half(recovery_s=-1), Code.BAD_REQUEST),
    (half(recovery_s=1 << 62), Code.BAD_REQUEST),
    (message(message_group=" "), GROUP),
    (message(message_group="g" * 64), GROUP),
    (message(message_group="é" * 32), GROUP),
    (message(message_group="a\rb"), GROUP),
    (message(trace_context="\x01"), Code.BAD_REQUEST),
    (message(born_host="\x02"), Code.BAD_REQUEST),
    (typed(LITE), OTHER_TYPE),
    (typed(PRIORITY), OTHER_TYPE),
    (later(b"\xaa\x01\x01a"), OTHER_TYPE),  # lite_topic
    (message(priority=-1), Code.BAD_REQUEST),
    (message(priority=1), OTHER_TYPE),  # for a topic of any other type
    (message(priority=1, message_group="g"), OTHER_TYPE),
    (message(priority=1, deliver_ms=NOW_MS + 1000), OTHER_TYPE),
    (half(priority=1), OTHER_TYPE),
]


@pytest.mark.parametrize(("sent", "code"), ROWS, ids=range(len(ROWS)))
def test_what_is_refused(sent: Message, code: Code) -> None:
    assert refusal(sent)[0] == code


@pytest.mark.parametrize(
    "sent",
    [
        message(b"x" * 4_194_304),
        message(properties=properties(128)),
        message(properties={"n": "v" * 16_383}),
        message(tag="t" * 10_000, keys=["k" * 6_384]),
        message(properties={"n": "~ \xa0 日本 👍", "TRACE_CONTEXT": "mine"}),
        message(tag="a b", keys=["k"]),
        message(deliver_ms=NOW_MS + 259_200_000),
        half(recovery_s=3600),
        half(recovery_s=0),
        message(message_group="g" * 63),
    ],
)
def test_what_passes_just_so(sent: Message) -> None:
    check(sent)


ORDER: list[tuple[dict[str, Any], Code]] = [
    ({"body": b""}, Code.MESSAGE_BODY_EMPTY),
    ({"properties": {"TAGS": "x"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ({"tag": "|"}, Code.ILLEGAL_MESSAGE_TAG),
    ({"keys": [" "]}, Code.ILLEGAL_MESSAGE_KEY),
    ({"message_id": " "}, Code.ILLEGAL_MESSAGE_ID),
    ({"deliver_ms": 1 << 50}, Code.ILLEGAL_DELIVERY_TIME),
    ({"message_group": " "}, Code.ILLEGAL_MESSAGE_GROUP),
]


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_of_several_faults_the_first_is_told(first: int) -> None:
    faults: dict[str, Any] = {}
    for fault, _ in ORDER[first:]:
        faults |= fault
    assert refusal(message(**faults), ("TRANSACTION",))[0] == ORDER[first][1]


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (message(), "NORMAL"),
        (message(message_group="g"), "FIFO"),
        (message(message_group="g", deliver_ms=NOW_MS + 1), "DELAY"),
        (half(message_group="g", deliver_ms=NOW_MS + 1), "TRANSACTION"),
    ],
)
def test_the_type_follows_from_what_a_message_carries(sent: Message, kind: str) -> None:
    assert check(sent, (kind,)).kind == kind
    others = tuple(other for other in MESSAGE_TYPES if other != kind)
    code, why = refusal(sent, others)
    assert code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert f"type {kind}" in why


def test_half_a_transaction_names_its_topic_and_when_it_may_be_asked_about() -> None:
    made = check(half(recovery_s=30))
    stored = decode_properties(made.properties)
    assert made.sys_flag == 4
    assert (stored["TRAN_MSG"], stored["PGROUP"]) == ("true", TOPIC)
    assert stored["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "30"
    assert "CHECK_IMMUNITY_TIME_IN_SECONDS" not in decode_properties(check(half()).properties)
    other = decode_properties(check(message(recovery_s=30)).properties)
    assert not {"TRAN_MSG", "PGROUP", "CHECK_IMMUNITY_TIME_IN_SECONDS"} & other.keys()


def test_a_refusal_shows_little_of_what_was_sent() -> None:
    assert len(refusal(message(properties={"n" * 9000: "\x01"}))[1]) < 200


@pytest.mark.parametrize("born_ms", [-5, 1 << 62, -(1 << 62)])
def test_a_birth_that_no_clock_shows_is_now(born_ms: int) -> None:
    assert check(message(born_ms=born_ms)).born_ms == NOW_MS


@pytest.mark.parametrize("priority", [0, 7, 2**31 - 1])
def test_a_priority_is_kept_as_it_is(priority: int) -> None:
    checked = check(message(priority=priority), (PRIORITY_TYPE,))
    assert checked.kind == PRIORITY_TYPE
    assert decode_properties(checked.properties)["_SYS_MSG_PRIORITY_"] == str(priority)


def test_a_priority_goes_before_a_lite_topic() -> None:
    sent = later(b"\xaa\x01\x01a")
    sent.system_properties.priority = 1
    assert check(sent, (PRIORITY_TYPE,)).kind == PRIORITY_TYPE


@pytest.mark.parametrize(
    "sent", [message(), message(message_group="g", priority=1), half(priority=1)]
)
def test_a_topic_with_priorities_takes_nothing_else(sent: Message) -> None:
    assert refusal(sent, (PRIORITY_TYPE,))[0] == OTHER_TYPE
