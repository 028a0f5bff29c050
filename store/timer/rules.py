"""Delays that a message names itself: what a producer may ask for, and where the message waits.

    property           value                          looked at
    TIMER_DELAY_SEC    seconds from now               first
    TIMER_DELAY_MS     milliseconds from now          without the one above
    TIMER_DELIVER_MS   a time, ms since the epoch     without both
    TIMER_DEL_UNIQKEY  the key of a waiting message   with one of the three, which must name the
                                                      time that the waiting one has

The due time is rounded up to `timerPrecisionMs`. A message whose time has come is an ordinary one.
One that waits is stored in queue 0 of rmq_sys_wheel_timer, its due time in TIMER_OUT_MS, its target
in REAL_TOPIC and REAL_QID. A message with a delay level has only that: its timer goes.

A message that has TIMER_OUT_MS already has waited, and is not delayed again.

Unlike RocketMQ, whose TIMER_OUT_MS is a step of `timerPrecisionMs` below the time at which it
delivers; both deliver at the same moment.

Pure, except for the clock that is handed in. Loop thread.
Source: apache/rocketmq@rocketmq-all-5.3.3 broker/.../util/HookUtils.java (handleScheduleMessage,
checkIfTimerMessage, transformTimerMessage)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from skylarkmq.protocol import properties as names
from skylarkmq.protocol.flags import RMQ_SYS_WHEEL_TIMER_TOPIC
from skylarkmq.protocol.properties import (
    MAX_PROPERTIES_SIZE,
    NAME_SEPARATOR,
    find_property,
    long_value,
    with_property,
    without_property,
)
from skylarkmq.store.config import StoreConfig
from skylarkmq.store.results import MessageInner

TIMER_QUEUE_ID: Final = 0
DELIVERY_ROOM: Final = 128
"""Bytes of properties that a delivery adds at most: two times and a counter, with their names."""

_MS_PER_S: Final = 1000


def _prefix(name: str) -> bytes:
    return (name + NAME_SEPARATOR).encode()


_DELAY_SEC: Final = _prefix(names.TIMER_DELAY_SEC)
_DELAY_MS: Final = _prefix(names.TIMER_DELAY_MS)
_DELIVER_MS: Final = _prefix(names.TIMER_DELIVER_MS)
_DEL_UNIQKEY: Final = _prefix(names.TIMER_DEL_UNIQKEY)
_OUT_MS: Final = _prefix(names.TIMER_OUT_MS)
_ASKED: Final = (names.TIMER_DELIVER_MS, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS)


class TimerRefusedError(ValueError):
    """A message asks for a delay that this broker does not give.

    Attributes:
        is_illegal: the message is wrong; else timers are switched off.
    """

    def __init__(self, why: str, *, is_illegal: bool = True) -> None:
        super().__init__(why)
        self.is_illegal = is_illegal


def asks_for_timer(properties: bytes) -> bool:
    """Return whether an encoded text asks for a delay of its own."""
    return find_property(properties, _OUT_MS) is None and any(
        find_property(properties, prefix) is not None
        for prefix in (_DELAY_SEC, _DELAY_MS, _DELIVER_MS)
    )


def without_timer(properties: bytes) -> bytes:
    """Return the encoded text without what asks for a delay; TIMER_DEL_UNIQKEY stays."""
    for name in _ASKED:
        properties = without_property(properties, name.encode())
    return properties


class TimerRules:
    """Finds the due time of a message and moves it to where it waits."""

    __slots__ = ("_enabled", "_max_delay_ms", "_now_ms", "_precision_ms")

    def __init__(self, config: StoreConfig, now_ms: Callable[[], int]) -> None:
        self._enabled = config.timer_wheel_enable
        self._precision_ms = config.timer_precision_ms
        self._max_delay_ms = config.timer_max_delay_sec * _MS_PER_S
        self._now_ms = now_ms

    def redirect(self, inner: MessageInner) -> MessageInner:
        """Return the message as it is stored: itself, or on the way to where it waits.

        Raises:
            TimerRefusedError: what it asks for is not to be had.
        """
        properties = inner.properties
        if not asks_for_timer(properties):
            return inner
        if not self._enabled:
            raise TimerRefusedError(
                "accurate timer message is not enabled, timerWheelEnable is false", is_illegal=False
            )
        now_ms = self._now_ms()
        deliver_ms = _deliver_ms(properties, now_ms)
        if deliver_ms <= now_ms:
            if find_property(properties, _DEL_UNIQKEY) is not None:
                raise TimerRefusedError(
                    f"{names.TIMER_DEL_UNIQKEY} needs the time that the waiting message has, and "
                    "that is over"
                )
            return inner
        if deliver_ms - now_ms > self._max_delay_ms:
            raise TimerRefusedError(
                "timer message illegal, the delay time should not be bigger than the max delay "
                f"{self._max_delay_ms}ms (timerMaxDelaySec)"
            )
        due_ms = -(-deliver_ms // self._precision_ms) * self._precision_ms
        properties = with_property(properties, names.TIMER_OUT_MS.encode(), b"%d" % due_ms)
        properties = with_property(properties, names.REAL_TOPIC.encode(), inner.topic.encode())
        properties = with_property(properties, names.REAL_QID.encode(), b"%d" % inner.queue_id)
        if len(properties) > MAX_PROPERTIES_SIZE - DELIVERY_ROOM:
            raise TimerRefusedError(
                f"the properties of a timed message have {MAX_PROPERTIES_SIZE - DELIVERY_ROOM} "
                f"bytes at most, these have {len(properties)} with the broker's own"
            )
        return dataclasses.replace(
            inner,
            topic=RMQ_SYS_WHEEL_TIMER_TOPIC,
            queue_id=TIMER_QUEUE_ID,
            properties=properties,
        )


def due_of(properties: bytes) -> int | None:
    """Return the due time in a waiting message's text, ms; None when it names none."""
    return long_value(find_property(properties, _OUT_MS))


def cancelled_key(properties: bytes) -> bytes | None:
    """Return the key of the waiting message that this one takes back; None for an ordinary one."""
    return find_property(properties, _DEL_UNIQKEY)


def _deliver_ms(properties: bytes, now_ms: int) -> int:
    for prefix, unit_ms in ((_DELAY_SEC, _MS_PER_S), (_DELAY_MS, 1)):
        value = find_property(properties, prefix)
        if value is not None:
            return now_ms + _parse(prefix, value) * unit_ms
    return _parse(_DELIVER_MS, find_property(properties, _DELIVER_MS) or b"")


def _parse(prefix: bytes, value: bytes) -> int:
    number = long_value(value)
    if number is None:
        name, shown = prefix[:-1].decode(), value[:32].decode("utf-8", "replace")
        raise TimerRefusedError(f"the property {name} is {shown!a}, not a number")
    return number
