"""Silent clients."""

from __future__ import annotations

from skylarkmq.broker.housekeeping import ClientHousekeepingService
from tests.broker.group_rig import FakeConnection, GroupRig
from tests.broker.test_consumer_manager import Rig as ConsumerRig
from tests.broker.test_producer_manager import beat as beat_producer


def test_a_silent_client_is_closed_and_the_others_are_told() -> None:
    consumers = ConsumerRig()
    rig = GroupRig()
    clock = consumers.clock
    service = ClientHousekeepingService(clock, consumers.manager, rig.producers, rig.locks)
    service.start()
    silent, alive = FakeConnection("silent"), FakeConnection("alive")
    consumers.beat(silent, "T")
    for _ in range(4):
        consumers.beat(alive, "T")
        clock.advance(30)
    consumers.told()
    assert not silent.closed
    clock.advance(10)
    assert (silent.closed, silent.close_reason) == (True, "idle_timeout")
    assert consumers.told() == [("g", ["alive"])]
    assert not alive.closed
    service.stop()
    assert clock.pending_count == 0


def test_a_client_that_still_produces_keeps_its_connection() -> None:
    rig = GroupRig()
    consumers = ConsumerRig()
    clock = rig.clock
    service = ClientHousekeepingService(clock, consumers.manager, rig.producers, rig.locks)
    peer = FakeConnection()
    consumers.beat(peer, "T")
    consumers.clock.advance(130)
    clock.advance(130)
    beat_producer(rig.producers, peer)
    service.scan()
    assert not peer.closed
    assert consumers.manager.client_ids("g") == []
    clock.advance(130)
    service.scan()
    assert peer.closed


def test_locks_that_ran_out_are_forgotten() -> None:
    rig = GroupRig()
    service = ClientHousekeepingService(rig.clock, rig.consumers, rig.producers, rig.locks)
    service.start()
    rig.locks.try_lock("g", "T", 0, "a")
    rig.clock.advance(71)
    assert len(rig.locks) == 0
