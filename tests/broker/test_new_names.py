"""How many topics and groups one address may make by using them."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.broker.tables.config_table import ADDRESSES_MAX, BURST_S, NewNames
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from tests.broker.group_rig import GroupRig
from tests.support.manual_clock import ManualClock


def test_an_address_may_make_a_burst_and_then_so_many_a_second() -> None:
    clock = ManualClock()
    names = NewNames(clock, 5)

    def made(count: int, address: str) -> int:
        for number in range(count):
            try:
                names.check(address, f"t{number}")
            except RemoteProtocolError as error:
                assert error.response_code == ResponseCode.SYSTEM_ERROR
                assert "newNamesPerSecond=5" in error.remark
                return number
        return count

    assert made(100, "192.0.2.1:1000") == 5 * BURST_S
    assert made(100, "192.0.2.1:1001") == 0, "another connection of the same address"
    assert made(100, "192.0.2.2:1000") == 5 * BURST_S
    assert made(100, "2001:db8::1:1000") == 5 * BURST_S
    assert made(100, "2001:db8::ffff:1000") == 0, "whoever has one of a network has all"
    clock.advance(2.0)
    assert made(100, "192.0.2.1:1002") == 10


def test_any_number_and_any_number_of_addresses() -> None:
    names = NewNames(ManualClock(), 0)
    for number in range(10_000):
        names.check("192.0.2.1:1", f"t{number}")
    names = NewNames(ManualClock(), 1)
    for number in range(3 * ADDRESSES_MAX):
        names.check(f"192.0.{number // 256}.{number % 256}:1", "t")
    assert len(names._buckets) <= ADDRESSES_MAX


async def test_topics_and_groups_are_counted_when_peers_make_them() -> None:
    rig = GroupRig(new_names_per_second=1)
    rig.start()
    for number in range(BURST_S):
        rig.topics.create_in_send(f"t{number}", "TBW102", 4, "192.0.2.1:1")
        rig.groups.find(f"g{number}", "192.0.2.1:1")
    with pytest.raises(RemoteProtocolError, match="t is not made"):
        rig.topics.create_in_send("t", "TBW102", 4, "192.0.2.1:1")
    with pytest.raises(RemoteProtocolError, match="g is not made"):
        rig.groups.find("g", "192.0.2.1:1")
    assert "t" not in rig.topics.table
    assert "g" not in rig.groups.table
    assert rig.topics.create_in_send("t1", "TBW102", 4, "192.0.2.1:1") is not None
    assert rig.groups.find("g1", "192.0.2.1:1") is not None
    rig.groups.find("g")  # an administrator
    rig.topic("t")


async def test_accounts_are_not_counted() -> None:
    rig = GroupRig(new_names_per_second=1, acl_enable=True, rocketmq_home=Path("/"))
    rig.start()
    for number in range(3 * BURST_S):
        rig.topics.create_in_send(f"t{number}", "TBW102", 4, "192.0.2.1:1")
        rig.groups.find(f"g{number}", "192.0.2.1:1")
    assert {"t29"} <= rig.topics.table.keys()
    assert {"g29"} <= rig.groups.table.keys()
