"""A master's port for slaves: the log goes out byte for byte, and strangers are turned away."""

from __future__ import annotations

import logging
from random import Random
from typing import Any

import pytest

from skylarkmq.broker.base.ha_protocol import LogPart
from skylarkmq.broker.replication.ha import slave_connection
from skylarkmq.broker.replication.ha.ha_server import SLAVES_MAX
from skylarkmq.common.throttled_log import INTERVAL_S
from skylarkmq.common.worker import Done
from tests.broker.replication.ha_rig import MasterRig, Slave
from tests.store.support import LOG_SIZE
from tests.support.manual_clock import ManualClock

PART_SIZE = 1000
BODY = b"0123456789" * 90


def rig(count: int = 3, **config: Any) -> MasterRig:
    """A master with messages, and parts that are shorter than their records at times."""
    master = MasterRig(ha_transfer_batch_size=PART_SIZE, **config)
    master.start()
    put(master, count)
    return master


def put(master: MasterRig, count: int, **changes: Any) -> None:
    for number in range(count):
        master.put("T", number % 4, BODY[: 1 + 97 * number % 900], **changes)
    master.workers.run_all()


def end_of(master: MasterRig) -> int:
    return master.store.commit_log.stored_offset


# Following


def test_a_slave_gets_the_log_from_where_it_asks() -> None:
    master = rig(10)
    for offset in (1, 77, end_of(master) - 1, end_of(master)):
        slave = master.follow(offset)
        assert slave.data == master.log_bytes[offset:]
        assert all(len(part.data) <= PART_SIZE for part in slave.parts)
    put(master, 5)
    master.turn()
    assert slave.data == master.log_bytes[offset:]


def test_zero_begins_at_the_last_file_as_in_rocketmq() -> None:
    master = rig(400)
    begin = end_of(master) - end_of(master) % LOG_SIZE
    assert begin > 0
    slave = master.follow(0)
    assert slave.data == master.log_bytes[begin:]
    assert slave.parts[0].offset == begin


def test_nothing_goes_out_before_the_first_report() -> None:
    master = rig()
    slave = master.connect()
    put(master, 3)
    master.clock.advance(6)  # a heartbeat would be due
    assert slave.read() == []
    assert master.server.slaves == []
    assert master.server.acknowledged == slave_connection.UNKNOWN


def test_no_part_spans_two_files() -> None:
    master = rig(700)
    slave = master.follow(1)
    assert slave.data == master.log_bytes[1:]
    assert len(slave.data) > 2 * LOG_SIZE
    for part in slave.parts:
        assert part.offset // LOG_SIZE == (part.offset + len(part.data) - 1) // LOG_SIZE


def test_many_slaves_at_many_places() -> None:
    master, random = rig(20), Random(5)
    slaves = [(master.follow(offset), offset) for offset in random.sample(range(1, 9000), 8)]
    for _ in range(5):
        put(master, 30)
        master.turn()
    for slave, offset in slaves:
        assert slave.data == master.log_bytes[offset:]


@pytest.mark.parametrize("mode", ["pwrite", "mapped"])
def test_every_way_to_write_wakes_a_slave(mode: str) -> None:
    master = rig(1, commit_log_write_mode=mode)
    slave = master.follow(1)
    put(master, 300)
    master.turn()
    assert slave.data == master.log_bytes[1:]


@pytest.mark.parametrize("mode", ["pwrite", "mapped"])
def test_a_sync_master_sends_with_the_commit(mode: str) -> None:
    master = rig(1, broker_role="SYNC_MASTER", commit_log_write_mode=mode)
    slave = master.follow(1)
    body, last = BODY, -1
    while end_of(master) < 3 * LOG_SIZE:
        master.put(body=body)
        if end_of(master) // LOG_SIZE == last // LOG_SIZE:  # else the file is sent to its end first
            assert len(slave.data) == end_of(master) - 1
        last = end_of(master)
        master.turn()
        slave.report(last)
        body = BODY[: len(body) * 7 % 901] * 3
    assert slave.data == master.log_bytes[1:]
    assert all(len(part.data) <= PART_SIZE for part in slave.parts)
    assert all(part.offset % LOG_SIZE + len(part.data) <= LOG_SIZE for part in slave.parts)


def test_slaves_have_the_bytes_of_a_commit_before_its_messages_are_shown() -> None:
    master = rig(1, broker_role="SYNC_MASTER")
    slave, sizes = master.follow(1), list[int]()
    master.store.add_arrival_listener(lambda *_: sizes.append(len(slave.data)))
    put(master, 1)
    assert sizes == [end_of(master) - 1]


def test_a_slave_that_cannot_be_written_to_harms_no_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master = rig(1, broker_role="SYNC_MASTER")
    slave, other = master.follow(1), master.follow(1)

    def fail(_: object) -> None:
        raise RuntimeError("the transport is closed")

    monkeypatch.setattr(slave.transport, "writelines", fail)
    put(master, 1)
    assert (slave.ended, other.ended) == ("abort", "")
    assert other.data == master.log_bytes[1:]
    assert master.server.acknowledged == 1  # the other one's
    other.report(end_of(master))
    assert len(master.results) == 2


def test_only_synced_bytes_go_out_under_sync_flush() -> None:
    master = MasterRig(flush_disk_type="SYNC_FLUSH")
    master.start()
    slave = master.follow(0)
    master.put(body=BODY)
    other = master.connect()
    other.report(0)
    for _ in range(10):
        master.clock.advance(0.005)
    assert slave.read() == other.read() == []
    master.turn()
    assert slave.data == other.data == master.log_bytes
    assert len(slave.data) > len(BODY)


def test_only_committed_bytes_go_out_with_the_pool() -> None:
    master = MasterRig(transient_store_pool_enable=True, transient_store_pool_size=2)
    master.start()
    slave = master.follow(0)
    master.put(body=BODY)
    log = master.store.commit_log
    assert log.max_offset < log.wrote_offset
    for _ in range(10):
        master.clock.advance(0.005)
    assert slave.read() == []
    master.clock.advance(1)
    master.turn()
    assert slave.data == master.log_bytes
    assert len(slave.data) > len(BODY)


def test_batches_of_a_turn_go_out_in_one_write() -> None:
    master = rig()
    slave = master.follow(end_of(master))
    put(master, 8)
    before = len(slave.transport.writes)
    master.turn()
    assert len(slave.transport.writes) == before + 1


def test_a_master_without_slaves_is_not_woken() -> None:
    master = rig()
    assert master.store.writer.on_stored is None
    slave = master.follow(end_of(master))
    assert master.store.writer.on_stored is not None
    slave.leave()
    put(master, 2)
    assert master.store.writer.on_stored is None


def test_a_sync_master_sends_in_the_same_turn() -> None:
    master = rig(broker_role="SYNC_MASTER")
    slave = master.follow(end_of(master))
    for _ in range(3):
        begin = end_of(master)
        put(master, 1)
        master.clock.advance(0)
        assert [part.offset for part in slave.read()] == [begin]


# Old parts


def test_old_bytes_are_read_by_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    master = rig(700)

    def is_young(offset: int) -> bool:
        return offset > 2 * LOG_SIZE

    monkeypatch.setattr(master.store, "is_in_memory", is_young)
    reads: list[int] = []
    read_part = master.store.read_part

    def read(offset: int, size: int, done: Done[bytes]) -> None:
        reads.append(offset)
        read_part(offset, size, done)

    monkeypatch.setattr(master.store, "read_part", read)
    slave = master.follow(1)
    assert slave.data == master.log_bytes[1:]
    assert reads == [1, LOG_SIZE, 2 * LOG_SIZE]
    put(master, 5)
    master.turn()
    assert slave.data == master.log_bytes[1:]
    assert len(reads) == 3


def test_a_file_that_expires_while_it_is_sent_is_sent_whole() -> None:
    master = rig(300)
    log = master.store.commit_log
    slave = master.connect()
    slave.transport.keeps = True
    pieces: list[memoryview] = []
    slave.transport.writelines = pieces.extend  # type: ignore[method-assign, assignment]
    expected = master.log_bytes[1:LOG_SIZE]
    slave.report(1)
    master.clock.advance(0.005)
    log.mapped_files.drop_first().close()
    data = b"".join(pieces[1::2])
    assert data.startswith(expected)


def test_a_slave_that_needs_expired_files_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    master = rig(300)
    slave = master.connect()
    slave.report(77)
    master.store.commit_log.mapped_files.drop_first().close()
    master.turn()
    assert slave.ended == "abort"
    assert f"wants the log from 77 on, and the oldest file begins at {LOG_SIZE}" in caplog.text
    assert "fileReservedTime" in caplog.text


def test_a_file_that_expires_under_a_slow_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: int) -> bool:
        return False

    master = rig(300)
    monkeypatch.setattr(master.store, "is_in_memory", never)
    slave = master.connect()
    slave.report(77)
    master.clock.advance(0.005)
    master.store.commit_log.mapped_files.drop_first().close()
    expected = LOG_SIZE - 77
    master.workers.run_all()
    assert len(slave.data) == expected


# Flow


def test_a_slave_that_does_not_read_gets_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_connection, "ROUND_SIZE", 20_000)
    master = rig(700)
    slave = master.connect()
    slave.transport.keeps = True
    slave.report(1)
    master.turn()
    limit = slave_connection.BUFFER_SIZE + 40_000
    assert slave_connection.BUFFER_SIZE < slave.transport.buffered < limit
    slave.transport.take_all()
    slave.transport.keeps = False
    master.turn()
    assert slave.data == master.log_bytes[1:]


# Silence


def test_heartbeats_when_nothing_is_sent() -> None:
    master = rig()
    slave = master.follow(end_of(master))
    start_s = master.clock.monotonic()
    for _ in range(3):
        master.clock.advance(5)
        assert slave.read() == [LogPart(end_of(master), b"")]
        slave.report(end_of(master))
    master.clock.advance(3)
    put(master, 1)
    master.turn()
    assert [len(part.data) > 0 for part in slave.read()] == [True]
    slave.report(end_of(master))
    master.clock.advance(2.5)  # less than 5 s since the write
    assert slave.read() == []
    assert master.clock.monotonic() - start_s > 20
    assert not slave.ended


def test_a_silent_peer_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    master = rig()
    mute, known = master.connect(), master.follow(1)
    master.clock.advance(19)
    assert not mute.ended and not known.ended
    known.report(1)
    master.clock.advance(1.5)
    assert mute.ended == "abort"
    assert "has not said where to begin for haHousekeepingInterval" in caplog.text
    assert not known.ended
    master.clock.advance(19)
    assert known.ended == "abort"


def test_no_timer_is_left_when_all_have_gone() -> None:
    master = rig()
    clock = ManualClock()
    master.server.clock = master.server.turns._clock = clock
    slaves = [master.follow(1), master.follow(1), master.connect()]
    clock.advance(0.01)
    assert clock.pending_count == len(slaves)
    for slave in slaves:
        slave.leave()
    put(master, 2)
    clock.advance(0.01)
    assert clock.pending_count == 0
    assert not master.server.connections


# Strangers


def test_a_slave_with_more_than_its_master_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    master = rig()
    slave = master.connect()
    slave.report(end_of(master) + 1)
    assert slave.ended == "abort"
    assert f"its log ends at {end_of(master) + 1} and this master's at {end_of(master)}" in (
        caplog.text
    )
    assert master.server.acknowledged == slave_connection.UNKNOWN


def test_a_later_report_above_the_end_is_refused() -> None:
    master = rig()
    slave = master.follow(1)
    slave.report(end_of(master))
    assert master.server.acknowledged == end_of(master)
    slave.report(end_of(master) + 1)
    assert slave.ended == "abort"
    slave.leave()
    assert master.server.acknowledged == slave_connection.UNKNOWN


def test_a_slave_confirms_no_more_than_it_was_sent() -> None:
    master = rig()
    slave = master.connect()
    slave.report(100)
    slave.report(end_of(master))
    assert master.server.acknowledged == 100
    master.turn()
    slave.report(end_of(master))
    assert master.server.acknowledged == end_of(master)


def test_the_first_report_only_asks_and_confirms_nothing() -> None:
    master = rig()
    confirmed: list[int] = []
    master.server.on_acknowledged = confirmed.append
    slave = master.follow(100)
    assert master.server.acknowledged == 100
    slave.report(100)  # again, as a heartbeat while it compares
    assert confirmed == []
    slave.report(end_of(master))
    assert confirmed == [end_of(master)]


def test_what_is_no_report_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    master = rig()
    slave = master.connect()
    slave.connection.data_received(b"\xff" * 8)
    assert slave.ended == "abort"
    assert "this is no slave" in caplog.text
    web = master.connect()
    web.connection.data_received(b"GET / HTTP/1.1\r\n\r\n")  # as a number, beyond every log
    assert web.ended == "abort"
    web.connection.data_received(b"\r\n" * 50)  # that was under way
    assert web.read() == []


def test_a_refusal_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    master = rig()
    for _ in range(12):
        slave = master.connect()
        slave.report(1 << 60)
        slave.leave()
        master.clock.advance(5)
    assert len(caplog.records) == 1
    master.clock.advance(INTERVAL_S)
    master.connect().report(1 << 60)
    assert len(caplog.records) == 2


def test_coming_and_going_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    master = rig()
    with caplog.at_level(logging.INFO):
        slave = master.follow(1)
        slave.report(end_of(master))
        slave.leave(ConnectionResetError("reset"))
        for _ in range(100):
            master.follow(1).leave()
    texts = [record.getMessage() for record in caplog.records]
    assert f"follows from offset 1 of the log, {end_of(master) - 1} bytes behind" in texts[0]
    assert f"is gone, it had the log up to offset {end_of(master)}: reset" in texts[1]
    assert len(texts) == 20


def test_the_number_of_connections_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    master = rig()
    slaves = [master.connect() for _ in range(SLAVES_MAX + 1)]
    assert [slave.ended for slave in slaves] == [""] * SLAVES_MAX + ["abort"]
    assert f"{SLAVES_MAX} connections are open" in caplog.text
    slaves[0].leave()
    slaves[-1].leave()
    assert not master.connect().ended


def test_a_peer_that_left_before_it_was_accepted() -> None:
    master = rig()
    assert Slave(master.server, None).ended == "abort"
    assert not master.server.connections


@pytest.mark.parametrize(
    ("broker", "host", "is_taken"),
    [
        ({}, "192.0.2.9", True),
        ({"ha_allowed_addresses": "192.0.2.*"}, "192.0.2.9", True),
        ({"ha_allowed_addresses": "192.0.2.*"}, "192.0.3.9", False),
        ({"ha_allowed_addresses": "192.0.2.*"}, "127.0.0.1", False),
        ({"acl_enable": True, "rocketmq_home": "/etc"}, "192.0.2.9", False),
        ({"acl_enable": True, "rocketmq_home": "/etc"}, "127.0.0.1", True),
        ({"acl_enable": True, "rocketmq_home": "/etc"}, "::ffff:127.0.0.1", True),
        (
            {"acl_enable": True, "rocketmq_home": "/etc", "ha_allowed_addresses": "192.0.2.9"},
            "192.0.2.9",
            True,
        ),
    ],
)
def test_who_may_copy_the_log(
    broker: dict[str, Any], host: str, is_taken: bool, caplog: pytest.LogCaptureFixture
) -> None:
    slave = MasterRig(broker=broker).connect(host)
    assert slave.ended == ("" if is_taken else "abort")
    assert ("haAllowedAddresses" in caplog.text) is not is_taken
