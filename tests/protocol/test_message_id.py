"""Offset ids that anyone can take apart, unique ids that nobody makes twice."""

from datetime import datetime
from typing import Any

import pytest

from skylarkmq.protocol.errors import LocalProtocolError, RemoteProtocolError
from skylarkmq.protocol.message import HostAddress
from skylarkmq.protocol.message_id import (
    UniqueIdGenerator,
    decode_offset_message_id,
    offset_message_id,
)
from tests.protocol.message_vectors import FRAMES, STORE
from tests.support.manual_clock import ManualClock


@pytest.mark.parametrize("vector", STORE["messages"])
def test_rocketmqs_offset_ids(vector: dict[str, Any]) -> None:
    host = HostAddress(*vector["storeHost"])
    text = offset_message_id(host.pack(), vector["physicalOffset"])
    assert text == vector["offsetMsgId"]
    assert decode_offset_message_id(text) == (host, vector["physicalOffset"])
    assert decode_offset_message_id(text.lower()) == (host, vector["physicalOffset"])


@pytest.mark.parametrize("name", ["stored_record_ipv4", "stored_record_ipv6"])
def test_the_java_encoders_offset_ids(name: str) -> None:
    decoded = FRAMES[name]["decoded"]
    host, offset = decode_offset_message_id(decoded["offsetMsgId"])
    assert str(host) == decoded["storeHost"]
    assert offset == decoded["physicalOffset"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "7F00000100002A9F000000000000000",
        "7F00000100002A9F00000000000000000",
        "7F00000100002A9F0000000000000000,7F00000100002A9F0000000000000001",
        "G" * 32,
        " " * 32,
        "7F 0000100002A9F 00000000000000 0",
        "0x00000100002A9F0000000000000000",
        "-F00000100002A9F0000000000000000",
        "\uff17" * 32,
        "\u0661" * 32,
        "7F00000100002A9F8000000000000000",
        "F" * 56,
        "A" * 100_000,
    ],
)
def test_what_is_no_offset_id_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_offset_message_id(text)
    assert len(caught.value.remark) <= 1024
    assert caught.value.remark.isascii()


@pytest.fixture(name="clock")
def fixture_clock() -> ManualClock:
    return ManualClock()


def month_start_ms(now_ms: int) -> int:
    now = datetime.fromtimestamp(now_ms / 1000)
    return int(datetime(now.year, now.month, 1).timestamp() * 1000)


def test_the_parts_of_a_unique_id(clock: ManualClock) -> None:
    generator = UniqueIdGenerator(bytes([192, 0, 2, 10]), 0x1_3039, 0x1B2C3D4E, clock)
    text = generator.next()
    elapsed_ms = clock.now_ms() - month_start_ms(clock.now_ms())
    assert text == f"C000020A30391B2C3D4E{elapsed_ms:08X}0000"
    assert generator.next() == text[:-4] + "0001"


def test_an_ipv6_producer_has_longer_ids(clock: ManualClock) -> None:
    text = UniqueIdGenerator(bytes(16), 1, -1, clock).next()
    assert len(text) == 56
    assert text.startswith("0" * 32 + "0001" + "FFFFFFFF")


def test_no_id_comes_twice_within_a_millisecond(clock: ManualClock) -> None:
    generator = UniqueIdGenerator(bytes(4), 1, 2, clock)
    ids = [generator.next() for _ in range(0x10000)]
    assert len(set(ids)) == len(ids)
    assert generator.next() == ids[0]
    clock.advance(0.001)
    assert generator.next() not in ids


def test_a_new_month_begins_at_zero(clock: ManualClock) -> None:
    generator = UniqueIdGenerator(bytes(4), 1, 2, clock)
    generator.next()
    for _ in range(14):
        clock.advance(31 * 86400)
        elapsed_ms = clock.now_ms() - month_start_ms(clock.now_ms())
        assert int(generator.next()[20:28], 16) == elapsed_ms


def test_a_clock_set_back_over_the_month_counts_from_zero(clock: ManualClock) -> None:
    clock.step_wall((month_start_ms(clock.now_ms()) - clock.now_ms()) / 1000)
    generator = UniqueIdGenerator(bytes(4), 1, 2, clock)
    clock.step_wall(-5)
    assert generator.next()[20:] == "000000000000"
    assert generator.next()[20:] == "000000000001"


@pytest.mark.parametrize("ip", [b"", bytes(3), bytes(5), bytes(20)])
def test_an_address_has_four_or_sixteen_bytes(ip: bytes, clock: ManualClock) -> None:
    with pytest.raises(LocalProtocolError):
        UniqueIdGenerator(ip, 1, 2, clock)
