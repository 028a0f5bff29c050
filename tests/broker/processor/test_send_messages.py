"""From a send to stored messages: which properties change, and what is refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.broker.processor import send_messages
from skylarkmq.broker.processor.send_checks import Target
from skylarkmq.broker.processor.send_messages import (
    BatchHead,
    BatchPart,
    SendMessages,
    take_wait,
)
from skylarkmq.protocol.batch import BatchItem, encode_batch
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.compression import compress
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers.send import SendMessageRequestHeader
from skylarkmq.protocol.message import Message
from skylarkmq.protocol.properties import decode_properties
from skylarkmq.protocol.tags_code import tags_code
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.timer.rules import TimerRules
from tests.protocol.message_vectors import STORE
from tests.store.support import BORN, HOST, LOG_SIZE, MESSAGE_MAX, store_config

CONFIG = store_config(Path("/nowhere"))
NOW_MS = 1_700_000_000_500
RULES = TimerRules(CONFIG, lambda: NOW_MS)
MAKER = SendMessages("C1", HOST, CONFIG, DelayLevels(), RULES)
ILLEGAL = ResponseCode.MESSAGE_ILLEGAL


def header(properties: str | None = "", **more: Any) -> SendMessageRequestHeader:
    values: dict[str, Any] = {
        "producer_group": "pg",
        "topic": "T",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 2,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_000,
        "flag": 7,
        **more,
    }
    return SendMessageRequestHeader(properties=properties, **values)


def target(topic: str = "T", *, to_dlq: bool = False, **config: Any) -> Target:
    return Target(topic, 2, TopicConfig(topic_name=topic, **config), fresh=False, to_dlq=to_dlq)


def single(properties: str | None = "", body: bytes = b"body", **more: Any) -> Any:
    return MAKER.single(BORN, body, header(properties, **more), target())


def stored(properties: str | None, **more: Any) -> dict[str, str]:
    return decode_properties(single(properties, **more).properties.decode())


# WAIT


@pytest.mark.parametrize(
    ("text", "rest", "wait"),
    [
        ("", "", True),
        ("A=1", "A=1", True),
        ("WAIT=true", "", True),
        ("WAIT=false", "", False),
        ("WAIT=True;A=1", "A=1", True),
        ("A=1;WAIT=false", "A=1", False),
        ("A=1;WAIT=false;B=2", "A=1;B=2", False),
        ("A=1;WAIT=no;", "A=1;", False),
        ("XWAIT=false", "XWAIT=false", True),
        ("XWAIT=x;WAIT=false", "XWAIT=x", False),
        ("WAIT=true;WAIT=false", "", False),
        ("WAIT=false;A=1;WAIT=true;B=2", "A=1;B=2", True),
        ("WAIT=", "", True),
        ("WAIT=;A=1", "A=1", True),
        ("WAIT", "WAIT", True),
        ("A=WAIT", "A=WAIT", True),
    ],
)
def test_wait_leaves_the_stored_text(text: str, rest: str, wait: bool) -> None:
    def raw(shown: str) -> bytes:
        return shown.replace("=", "\x01").replace(";", "\x02").encode()

    assert take_wait(raw(text)) == (raw(rest), wait)


def test_wait_is_taken_as_a_reader_of_the_text_would() -> None:
    rng = random.Random(4)
    for _ in range(2000):
        pairs = [
            (rng.choice(["WAIT", "XWAIT", "A", "WAITX"]), rng.choice(["true", "false", "1", ""]))
            for _ in range(rng.randrange(5))
        ]
        text = "\x02".join(f"{name}\x01{value}" for name, value in pairs)
        rest, wait = take_wait(text.encode())
        seen = decode_properties(text)
        assert wait is (seen.pop("WAIT", "true") == "true")
        assert decode_properties(rest.decode()) == seen


# One message


def test_a_plain_message_gets_its_cluster_and_nothing_else() -> None:
    inner = single("KEYS\x01k\x02TAGS\x01A")
    assert inner.properties == b"KEYS\x01k\x02TAGS\x01A\x02CLUSTER\x01C1"
    assert (inner.topic, inner.queue_id, inner.body) == ("T", 2, b"body")
    assert (inner.born_host, inner.store_host) == (BORN, HOST)
    assert (inner.flag, inner.sys_flag, inner.tags_code) == (7, 0, tags_code("A"))
    assert (inner.delay_level, inner.wait_store_ok) == (0, True)


@pytest.mark.parametrize("properties", [None, ""])
def test_a_message_without_properties(properties: str | None) -> None:
    assert single(properties).properties == b"CLUSTER\x01C1"


def test_a_cluster_of_the_clients_own_is_replaced() -> None:
    assert stored("CLUSTER\x01other\x02A\x01b") == {"A": "b", "CLUSTER": "C1"}


def split(
    body: bytes, of: SendMessageRequestHeader, to: Target, maker: SendMessages = MAKER
) -> tuple[BatchHead, list[BatchPart]]:
    """What the messages of a batch share, and the messages."""
    head = maker.batch_head(body, of, to)
    return head, maker.batch_parts(body, head)


PACKED = compress(b"body")


@pytest.mark.parametrize("body", [b"", b"body", PACKED[1:]])
def test_a_body_flagged_as_compressed_that_is_not_is_refused(body: bytes) -> None:
    for make in (
        lambda: single(body=body, sys_flag=1),
        lambda: split(encode_batch([Message("T", body)]), header(sys_flag=1), target()),
    ):
        with pytest.raises(RemoteProtocolError, match="flag says that the body is comp") as caught:
            make()
        assert caught.value.response_code == ILLEGAL


def test_the_topics_filter_type_goes_into_the_system_flag() -> None:
    inner = MAKER.single(BORN, PACKED, header(sys_flag=1), target(topic_filter_type="MULTI_TAG"))
    assert inner.sys_flag == 3


@pytest.mark.parametrize(("level", "used"), [("1", 1), ("18", 18), ("19", 18), ("2147483647", 18)])
def test_a_delayed_message_goes_to_the_schedule_topic(level: str, used: int) -> None:
    inner = single(f"DELAY\x01{level}\x02TAGS\x01A\x02WAIT\x01false")
    assert (inner.topic, inner.queue_id) == ("SCHEDULE_TOPIC_XXXX", used - 1)
    assert (inner.delay_level, inner.wait_store_ok) == (used, False)
    assert decode_properties(inner.properties.decode()) == {
        "DELAY": str(used),
        "TAGS": "A",
        "WAIT": "false",
        "CLUSTER": "C1",
        "REAL_TOPIC": "T",
        "REAL_QID": "2",
    }


def test_what_a_delayed_message_of_rocketmqs_own_has() -> None:
    """The same names as in the trace of a 4.9.8 broker; their order is a Java map's there."""
    traced = next(each for each in STORE["brokerTrace"] if "delayed send" in each["what"])
    sent = {name: value for name, value in traced["properties"] if "REAL" not in name}
    del sent["CLUSTER"]
    text = "\x02".join(f"{name}\x01{value}" for name, value in sent.items())
    assert stored(text).keys() == dict(traced["properties"]).keys()


@pytest.mark.parametrize("level", ["0", "-1", "-2147483648"])
def test_no_level_is_no_delay(level: str) -> None:
    inner = single(f"DELAY\x01{level}")
    assert (inner.topic, inner.delay_level) == ("T", 0)


@pytest.mark.parametrize("level", ["soon", "1.5", "2147483648", "99999999999999999999", " 1"])
def test_a_level_that_is_no_number_is_refused(level: str) -> None:
    with pytest.raises(RemoteProtocolError, match="DELAY") as caught:
        single(f"DELAY\x01{level}")
    assert caught.value.response_code == ILLEGAL


def test_a_message_with_a_delay_of_its_own_goes_to_the_timer_topic() -> None:
    inner = single("TIMER_DELAY_MS\x014000\x02TAGS\x01A\x02WAIT\x01false")
    assert (inner.topic, inner.queue_id, inner.delay_level) == ("rmq_sys_wheel_timer", 0, 0)
    assert not inner.wait_store_ok
    assert inner.tags_code == tags_code("A")
    assert decode_properties(inner.properties.decode()) == {
        "TIMER_DELAY_MS": "4000",
        "TAGS": "A",
        "WAIT": "false",
        "CLUSTER": "C1",
        "TIMER_OUT_MS": "1700000005000",
        "REAL_TOPIC": "T",
        "REAL_QID": "2",
    }


def test_a_level_goes_before_a_delay_of_its_own() -> None:
    text = "TIMER_DELAY_SEC\x015\x02TIMER_DELAY_MS\x01x\x02TIMER_DELIVER_MS\x011\x02DELAY\x013"
    inner = single(text)
    assert inner.topic == "SCHEDULE_TOPIC_XXXX"
    assert b"TIMER_" not in inner.properties
    assert single("TIMER_DELAY_SEC\x015\x02DELAY\x010").topic == "rmq_sys_wheel_timer"


@pytest.mark.parametrize(
    "properties",
    [
        "TIMER_DELAY_MS\x01soon",
        "TIMER_DELAY_SEC\x01259201",
        "TIMER_DELAY_MS\x015000\x02a\x01" + "v" * 32_560,
    ],
)
def test_a_timer_that_is_not_to_be_had_is_refused(properties: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        single(properties)
    assert caught.value.response_code == ILLEGAL


def test_timers_that_are_switched_off_are_refused() -> None:
    config = store_config(Path("/nowhere"), timer_wheel_enable=False)
    maker = SendMessages("C1", HOST, config, DelayLevels(), TimerRules(config, lambda: NOW_MS))
    with pytest.raises(RemoteProtocolError, match="timerWheelEnable") as caught:
        maker.single(BORN, b"x", header("TIMER_DELAY_MS\x015000"), target())
    assert caught.value.response_code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("inside", [True, False])
def test_a_batch_takes_no_timer(inside: bool) -> None:
    timer = {"TIMER_DELAY_MS": "5000"} if inside else {}
    body = encode_batch([Message("T", b"a"), Message("T", b"b", properties=timer)])
    text = "" if inside else "TIMER_DELIVER_MS\x015"
    with pytest.raises(RemoteProtocolError, match="batch") as caught:
        split(body, header(text), target())
    assert caught.value.response_code == ILLEGAL
    harmless = encode_batch([Message("T", b"TIMER_DELAY_MS\x015\x02")])
    assert len(split(harmless, header(""), target())[1]) == 1


def test_a_dead_letter_is_not_delayed() -> None:
    inner = MAKER.single(BORN, b"x", header("DELAY\x013"), target("%DLQ%g", to_dlq=True))
    assert inner.topic == "%DLQ%g"
    assert decode_properties(inner.properties.decode())["DELAY"] == "0"


@pytest.mark.parametrize(
    ("properties", "body", "code", "word"),
    [
        ("", bytes(MESSAGE_MAX + 1), ILLEGAL, str(MESSAGE_MAX)),
        ("a\x01" + "v" * 32_760, b"x", ILLEGAL, "32767"),
        ("DELAY\x011\x02a\x01" + "v" * 32_720, b"x", ILLEGAL, "32767"),
        ("a\x01v\0v", b"x", ILLEGAL, "zero"),
        ("a\x01\ud800", b"x", ILLEGAL, "UTF-8"),
        ("TRAN_MSG\x01TRUE", b"x", ILLEGAL, "PGROUP"),
        ("TRAN_MSG\x01true\x02PGROUP\x01p g", b"x", ILLEGAL, "PGROUP"),
        ("TRAN_MSG\x01true\x02PGROUP\x01pg\x02DELAY\x013", b"x", ILLEGAL, "delayed"),
        ("TRAN_MSG\x01true\x02PGROUP\x01pg\x02TIMER_DELAY_SEC\x013", b"x", ILLEGAL, "delayed"),
        ("TRAN_MSG\x01true\x02PGROUP\x01pg\x02a\x01" + "v" * 32_600, b"x", ILLEGAL, "32639"),
    ],
)
def test_what_can_not_be_stored_is_refused(
    properties: str, body: bytes, code: int, word: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=word) as caught:
        single(properties, body)
    assert caught.value.response_code == code


@pytest.mark.parametrize("sys_flag", [4, 12])
def test_a_flag_that_would_hide_the_message_is_refused(sys_flag: int) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        single(sys_flag=sys_flag)
    assert caught.value.response_code == ILLEGAL


TRANSACTION = "TRAN_MSG\x01True\x02PGROUP\x01pg"


@pytest.mark.parametrize(("text", "wait"), [("", "true"), ("\x02WAIT\x01false", "false")])
@pytest.mark.parametrize("sys_flag", [1, 5])
def test_the_first_half_of_a_transaction_goes_to_the_half_topic(
    text: str, wait: str, sys_flag: int
) -> None:
    inner = single(TRANSACTION + text, PACKED, sys_flag=sys_flag)
    assert (inner.topic, inner.queue_id, inner.sys_flag) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0, 1)
    assert inner.wait_store_ok == (wait == "true")
    assert decode_properties(inner.properties.decode()) == {
        "TRAN_MSG": "True", "PGROUP": "pg", "WAIT": wait, "CLUSTER": "C1", "REAL_TOPIC": "T",
        "REAL_QID": "2",
    }  # fmt: skip


def test_what_a_client_says_of_earlier_checks_is_taken_out() -> None:
    """Another's half message could be passed by with them."""
    text = "\x02TRANSACTION_CHECK_TIMES\x0199\x02TRAN_PREPARED_QUEUE_OFFSET\x010\x02REAL_QID\x019"
    properties = stored(TRANSACTION + text + "\x02DELAY\x010")
    assert "TRANSACTION_CHECK_TIMES" not in properties
    assert "TRAN_PREPARED_QUEUE_OFFSET" not in properties
    assert properties["REAL_QID"] == "2"


def test_a_retry_of_a_committed_message_is_no_transaction() -> None:
    """Clients under 4.6.1 send TRAN_MSG and the flag with it."""
    inner = single(TRANSACTION + "\x02DELAY\x013", sys_flag=4, reconsume_times=1)
    assert (inner.topic, inner.sys_flag) == ("SCHEDULE_TOPIC_XXXX", 0)
    dead = header(TRANSACTION, sys_flag=4, reconsume_times=16)
    inner = MAKER.single(BORN, b"x", dead, target("%DLQ%g", to_dlq=True))
    assert (inner.topic, inner.sys_flag) == ("%DLQ%g", 0)


def test_transactions_may_be_refused_altogether() -> None:
    config = store_config(Path("/nowhere"))
    maker = SendMessages(
        "C1", HOST, config, DelayLevels(), TimerRules(config, lambda: 0), transaction_refusal="no!"
    )
    with pytest.raises(RemoteProtocolError, match="no!") as caught:
        maker.single(BORN, b"x", header(TRANSACTION), target())
    assert caught.value.response_code == ResponseCode.NO_PERMISSION
    assert maker.single(BORN, b"x", header("TRAN_MSG\x01false"), target()).topic == "T"


def test_a_batch_is_no_transaction() -> None:
    body = encode_batch([Message("T", b"x")])
    for more in ({"properties": TRANSACTION}, {"sys_flag": 4}):
        with pytest.raises(RemoteProtocolError, match="transactional") as caught:
            split(body, header(**more), target())
        assert caught.value.response_code == ILLEGAL


def test_the_largest_message_is_taken() -> None:
    room = 32_767 - len("a\x01") - len("\x02CLUSTER\x01C1")
    assert len(single("a\x01" + "v" * room, bytes(MESSAGE_MAX)).properties) == 32_767


# Batches


def batch(messages: list[Message], properties: str = "", topic: str = "T", **more: Any) -> Any:
    return split(encode_batch(messages), header(properties, batch=True, **more), target(topic))


def test_a_batch_is_split_as_rocketmq_splits_it() -> None:
    golden = STORE["batch"]
    maker = SendMessages("DefaultCluster", HOST, CONFIG, DelayLevels(), RULES)
    body = bytes.fromhex(golden["requestBodyHex"])
    head, parts = split(body, header(), target("TopicTest"), maker)
    assert [(body.hex(), flag, code) for body, _, flag, code in parts] == [
        (each["bodyHex"], each["flag"], each["tagsCode"]) for each in golden["stored"]
    ]
    assert [text.decode().split("\x02") for _, text, _, _ in parts] == [
        [f"{name}\x01{value}" for name, value in each["properties"]] for each in golden["stored"]
    ]
    most = len(body) + len(parts) * head.extra_size
    assert most >= sum(each["size"] for each in golden["stored"])
    assert head.wait


def test_the_batchs_own_wait_decides() -> None:
    head, parts = batch([Message("T", b"x")], "WAIT\x01false\x02A\x01b")
    assert not head.wait
    ((_, text, _, _),) = parts
    assert decode_properties(text.decode())["A"] == "b"


@pytest.mark.parametrize(
    ("properties", "topic", "word"),
    [("DELAY\x011", "T", "delayed"), ("", "%RETRY%g", "retry"), ("DELAY\x01x", "T", "DELAY")],
)
def test_a_batch_is_neither_delayed_nor_a_retry(properties: str, topic: str, word: str) -> None:
    with pytest.raises(RemoteProtocolError, match=word) as caught:
        batch([Message("T", b"x")], properties, topic)
    assert caught.value.response_code == ILLEGAL


@pytest.mark.parametrize(
    ("properties", "word"),
    [
        ("DELAY\x011", "delayed"),
        ("DELAY\x01x", "DELAY is 'x', not the number"),
        ("TIMER_DELAY_MS\x015", "delayed"),
        ("TRAN_MSG\x01true\x02PGROUP\x01pg", "transactional"),
    ],
)
def test_a_message_of_a_batch_asks_for_no_more_than_to_be_stored(
    properties: str, word: str
) -> None:
    """It was delivered at once, whatever delay level it named, transaction or not."""
    part = BatchItem(0, b"x", f"a\x01b\x02{properties}".encode())
    with pytest.raises(RemoteProtocolError, match=word) as caught:
        split(encode_batch([Message("T", b"ok"), part]), header(batch=True), target())
    assert caught.value.response_code == ILLEGAL


@pytest.mark.parametrize(
    "text",
    [b"DELAY\x010", b"DELAY\x01-1", b"XDELAY\x011", b"DELAY\x01\x02a\x01b", b"TRAN_MSG\x01false"],
)
def test_what_asks_for_nothing_is_taken_in_a_batch(text: bytes) -> None:
    _, parts = split(encode_batch([BatchItem(0, b"x", text)]), header(batch=True), target())
    assert parts[0][1].startswith(text)


def test_a_receipt_that_a_sender_names_is_not_stored() -> None:
    """Who forwards a message that it has popped names the receipt that it had for it."""
    receipt = "POP_CK\x010 1 60000 0 0 broker-a 2 7"
    for text in (receipt, f"a\x01b\x02{receipt}\x02c\x01d", f"{receipt}\x02{receipt}"):
        assert "POP_CK" not in stored(text)
    item = BatchItem(0, b"x", f"a\x01b\x02{receipt}".encode())
    _, parts = split(encode_batch([item]), header(receipt, batch=True), target())
    assert decode_properties(parts[0][1].decode()) == {"a": "b", "CLUSTER": "C1"}
    assert stored("a\x01POP_CK\x02XPOP_CK\x011") == {"a": "POP_CK", "XPOP_CK": "1", "CLUSTER": "C1"}


@pytest.mark.parametrize("body", [b"", b"\0\0\0\1", b"\0\0\0\x20" + bytes(10), b"\xff" * 40])
def test_a_body_that_is_no_batch_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        split(body, header(batch=True), target())
    assert caught.value.response_code in (ILLEGAL, ResponseCode.SYSTEM_ERROR)


def test_one_bad_part_refuses_the_whole_batch() -> None:
    for bad, word in (("v" * 32_760, "length limit"), ("a\0b", "b'p.x01a' holds a zero byte")):
        part = BatchItem(0, b"x", f"a\x01b\x02p\x01{bad}".encode())
        with pytest.raises(RemoteProtocolError, match=word):
            split(encode_batch([Message("T", b"ok"), part]), header(batch=True), target())


def test_a_batch_of_very_many_tiny_messages_must_fit_a_log_file() -> None:
    with pytest.raises(RemoteProtocolError, match="split it") as caught:
        batch([Message("T", b"")] * (LOG_SIZE // 91))
    assert caught.value.response_code == ILLEGAL


def test_too_many_messages_are_refused_before_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """4 MiB of tiny ones took a quarter of a second of the loop, and were refused then."""
    monkeypatch.setattr(send_messages, "BATCH_COUNT_MAX", 100)
    assert len(batch([Message("T", b"")] * 100)[1]) == 100
    monkeypatch.setattr(send_messages, "split_batch", None)
    with pytest.raises(RemoteProtocolError, match="more than 100 messages; split it"):
        batch([Message("T", b"")] * 101)
