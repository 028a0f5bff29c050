"""What a producer may ask for, to the millisecond."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skylarkmq.common.config_fields import ConfigError
from skylarkmq.protocol.properties import decode_properties
from skylarkmq.store.timer.rules import (
    DELIVERY_ROOM,
    TimerRefusedError,
    TimerRules,
    asks_for_timer,
    due_of,
)
from tests.store.support import inner, store_config

NOW_MS = 1_700_000_000_500
ROOT = Path("/nowhere")


def rules(**config: Any) -> TimerRules:
    return TimerRules(store_config(ROOT, **config), lambda: NOW_MS)


def due(text: bytes, **config: Any) -> int | None:
    """The due time of a message with these properties, None when it does not wait."""
    message = inner("T", 3, properties=text)
    timed = rules(**config).redirect(message)
    if timed is message:
        return None
    assert (timed.topic, timed.queue_id) == ("rmq_sys_wheel_timer", 0)
    properties = decode_properties(timed.properties.decode())
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("T", "3")
    assert int(properties["TIMER_OUT_MS"]) == due_of(timed.properties)
    return due_of(timed.properties)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"TIMER_DELAY_SEC\x011", NOW_MS + 1500),
        (b"TIMER_DELAY_MS\x01500", NOW_MS + 500),  # a whole second already
        (b"TIMER_DELAY_MS\x01501", NOW_MS + 1500),
        (b"TIMER_DELAY_MS\x011", NOW_MS + 500),
        (b"TIMER_DELIVER_MS\x011700000001000", 1_700_000_001_000),
        (b"TIMER_DELIVER_MS\x011700000001001", 1_700_000_002_000),
        (b"TIMER_DELAY_SEC\x01+3", NOW_MS + 3500),
        (b"TIMER_DELAY_SEC\x01259200", NOW_MS + 259_200_500),
        (b"TIMER_DELAY_MS\x01259200000", NOW_MS + 259_200_500),
        # SEC goes before MS, which goes before DELIVER_MS
        (b"TIMER_DELAY_SEC\x012\x02TIMER_DELAY_MS\x01x", NOW_MS + 2500),
        (b"TIMER_DELAY_MS\x01600\x02TIMER_DELIVER_MS\x011", NOW_MS + 1500),
    ],
)
def test_due_times_are_rounded_up(text: bytes, expected: int) -> None:
    assert due(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"TIMER_DELAY_SEC\x010",
        b"TIMER_DELAY_MS\x010",
        b"TIMER_DELAY_MS\x01-5",
        b"TIMER_DELAY_SEC\x01-9223372036854775808",
        b"TIMER_DELIVER_MS\x011700000000500",
        b"TIMER_DELAY_SEC\x015\x02TIMER_OUT_MS\x015",  # it has waited
        b"TIMER_DEL_UNIQKEY\x01K",
        b"MY_TIMER_DELAY_SEC\x015",
        b"TIMER_ENQUEUE_MS\x015",
    ],
)
def test_what_needs_no_waiting_is_left_alone(text: bytes) -> None:
    assert due(text) is None


@pytest.mark.parametrize(
    "text",
    [
        b"TIMER_DELAY_SEC\x01259201",
        b"TIMER_DELAY_MS\x01259200001",
        b"TIMER_DELIVER_MS\x019223372036854775807",
        b"TIMER_DELAY_SEC\x019223372036854775807",
        b"TIMER_DELAY_SEC\x019223372036854775808",
        b"TIMER_DELAY_SEC\x01soon",
        b"TIMER_DELAY_SEC\x011.5",
        b"TIMER_DELAY_MS\x01 5",
        b"TIMER_DELIVER_MS\x01\xd9\xa1",
        b"TIMER_DELAY_MS\x01-5\x02TIMER_DEL_UNIQKEY\x01K",
    ],
)
def test_what_is_not_to_be_had_is_refused(text: bytes) -> None:
    with pytest.raises(TimerRefusedError) as caught:
        due(text)
    assert caught.value.is_illegal


def test_precision_and_limit_are_configured() -> None:
    assert due(b"TIMER_DELAY_MS\x011", timer_precision_ms=100) == NOW_MS + 100
    assert due(b"TIMER_DELAY_SEC\x01300000", timer_max_delay_sec=300_000) == NOW_MS + 300_000_500
    with pytest.raises(TimerRefusedError, match="2000ms"):
        due(b"TIMER_DELAY_SEC\x013", timer_max_delay_sec=2)
    with pytest.raises(ConfigError, match="timerPrecisionMs"):
        store_config(ROOT, timer_precision_ms=0)
    with pytest.raises(ConfigError, match="timerMaxDelaySec"):
        store_config(ROOT, timer_max_delay_sec=10**9)


def test_switched_off_only_timers_are_refused() -> None:
    assert due(b"TAGS\x01a", timer_wheel_enable=False) is None
    with pytest.raises(TimerRefusedError) as caught:
        due(b"TIMER_DELAY_SEC\x013", timer_wheel_enable=False)
    assert not caught.value.is_illegal


def test_room_is_kept_for_what_a_delivery_adds() -> None:
    short = b"TIMER_DELAY_SEC\x013\x02a\x01"
    added = len(rules().redirect(inner("T", 3, properties=short + b"v")).properties) - len(short)
    room = 32_767 - DELIVERY_ROOM - len(short) - added + 1
    assert due(short + b"v" * room) is not None
    with pytest.raises(TimerRefusedError, match="bytes"):
        due(short + b"v" * (room + 1))
    longest = b"\x02TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02TIMER_ROLL_TIMES\x01999999"
    assert len(longest % (10**13, 10**13) + b"\x02WAIT\x01false") <= DELIVERY_ROOM


def test_asking_is_seen_in_the_text_as_a_reader_sees_it() -> None:
    assert asks_for_timer(b"a\x01b\x02TIMER_DELAY_SEC\x01x")
    assert not asks_for_timer(b"a\x01TIMER_DELAY_SEC\x02TIMER_DELAY_SEC\x01")
