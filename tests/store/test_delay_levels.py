"""Delay levels: the text, due times, and the parked form of a message."""

import json
from pathlib import Path

import pytest

from skylarkmq.protocol.properties import decode_properties
from skylarkmq.store.delay_levels import DelayLevels, parse_level, schedule_queue_id
from skylarkmq.store.results import MessageInner

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])


def inner(properties: bytes, topic: str = "TopicTest", queue_id: int = 3) -> MessageInner:
    return MessageInner(topic, queue_id, b"body", properties, HOST, HOST, 1_700_000_000_000)


def test_the_default_text_has_rocketmqs_eighteen_levels() -> None:
    levels = DelayLevels()
    seconds = [levels.delay_ms(level) // 1000 for level in range(1, levels.max_level + 1)]
    minutes = [60 * n for n in range(1, 11)]
    assert seconds == [1, 5, 10, 30, *minutes, 1200, 1800, 3600, 7200]


def test_units_and_any_blanks() -> None:
    levels = DelayLevels(" 2s  3m\t4h 5d ")
    assert [levels.delay_ms(n) for n in (1, 2, 3, 4)] == [2000, 180_000, 14_400_000, 432_000_000]


@pytest.mark.parametrize(
    "text", ["", "  ", "1", "s", "1x", "-1s", "+1s", "1.5s", "1_0s", "\u0661s", "1S", "1s,2s"]
)
def test_a_bad_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="messageDelayLevel"):
        DelayLevels(text)


def test_too_many_levels_are_refused() -> None:
    with pytest.raises(ValueError, match="1025 levels"):
        DelayLevels("1s " * 1025)


def test_due_times_are_clipped_at_the_last_level() -> None:
    levels = DelayLevels("1s 5s")
    assert levels.due_time(1, 1000) == 2000
    assert levels.due_time(2, 1000) == 6000
    assert levels.due_time(99, 1000) == 6000


def test_a_level_below_the_first_is_due_after_a_second() -> None:
    assert DelayLevels("9s").due_time(0, 1000) == 2000


@pytest.mark.parametrize(
    ("text", "level"),
    [
        (b"DELAY\x013", 3),
        (b"A\x01b\x02DELAY\x0199\x02", 18),
        (b"DELAY\x010", 0),
        (b"DELAY\x01-4", 0),
        (b"DELAY\x01abc", 0),
        (b"DELAY\x01" + b"9" * 4000, 0),
        (b"XDELAY\x013", 0),
        (b"", 0),
    ],
)
def test_the_level_of_stored_properties(text: bytes, level: int) -> None:
    assert DelayLevels().level_of(text) == level


@pytest.mark.parametrize("value", [b"", b" 1", b"1_0", b"2147483648", b"x", b"\xff", b"1" * 5000])
def test_a_delay_that_is_no_number_is_an_error(value: bytes) -> None:
    with pytest.raises(ValueError, match="DELAY"):
        parse_level(value)


def test_numbers_are_read_with_a_sign() -> None:
    assert [parse_level(value) for value in (b"+7", b"-7", b"007")] == [7, -7, 7]


def test_redirect_parks_the_message_and_remembers_its_target() -> None:
    message = inner(b"KEYS\x01k\x02DELAY\x013")
    parked = DelayLevels().redirect(message, 3)
    assert (parked.topic, parked.queue_id, parked.delay_level) == ("SCHEDULE_TOPIC_XXXX", 2, 3)
    assert decode_properties(parked.properties.decode()) == {
        "KEYS": "k",
        "DELAY": "3",
        "REAL_TOPIC": "TopicTest",
        "REAL_QID": "3",
    }
    assert (parked.body, parked.born_timestamp) == (message.body, message.born_timestamp)
    assert (message.topic, message.queue_id, message.delay_level) == ("TopicTest", 3, 0)


def test_redirect_clips_the_level_in_the_properties_too() -> None:
    parked = DelayLevels("1s 5s").redirect(inner(b"DELAY\x0177"), 77)
    assert (parked.queue_id, parked.delay_level) == (1, 2)
    assert decode_properties(parked.properties.decode())["DELAY"] == "2"


def test_a_target_that_the_sender_forged_is_replaced() -> None:
    forged = b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x019\x02DELAY\x011"
    parked = DelayLevels().redirect(inner(forged), 1)
    assert parked.properties.count(b"REAL_TOPIC\x01") == 1
    assert decode_properties(parked.properties.decode())["REAL_TOPIC"] == "TopicTest"
    assert decode_properties(parked.properties.decode())["REAL_QID"] == "3"


def test_due_times_of_a_running_broker() -> None:
    """The schedule records of the golden trace: their units carry store timestamp + delay."""
    path = Path(__file__).parents[1] / "golden" / "golden-store.json"
    levels = DelayLevels()
    rows = [
        row
        for row in json.loads(path.read_text())["brokerTrace"]
        if row["topic"] == "SCHEDULE_TOPIC_XXXX"
    ]
    assert rows
    for row in rows:
        level = int(dict(row["properties"])["DELAY"])
        assert levels.due_time(level, row["storeTimestamp"]) == row["tagsCode"]
        assert schedule_queue_id(level) == row["queueId"]
