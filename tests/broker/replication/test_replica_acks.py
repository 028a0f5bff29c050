"""SYNC_MASTER: a send is answered when a slave has its message, or says that none has it yet."""

from __future__ import annotations

from typing import Any

import pytest

from skylarkmq.store.results import PutMessageStatus
from tests.broker.replication.ha_rig import MasterRig, Slave
from tests.store.support import inner

OK = PutMessageStatus.PUT_OK
NO_SLAVE = PutMessageStatus.SLAVE_NOT_AVAILABLE
LATE_SLAVE = PutMessageStatus.FLUSH_SLAVE_TIMEOUT
LATE_DISK = PutMessageStatus.FLUSH_DISK_TIMEOUT
LOST = PutMessageStatus.SERVICE_NOT_AVAILABLE


def rig(**config: Any) -> MasterRig:
    master = MasterRig(broker_role="SYNC_MASTER", **config)
    master.start()
    return master


def statuses(master: MasterRig) -> list[PutMessageStatus]:
    return [result.status for result in master.results]


def end_of(master: MasterRig) -> int:
    return master.store.commit_log.wrote_offset


def confirm(master: MasterRig, slave: Slave, offset: int | None = None) -> None:
    """The slave takes what there is, and says that its log ends at an offset."""
    master.clock.advance(0)
    slave.report(end_of(master) if offset is None else offset)


def test_a_send_is_answered_when_a_slave_has_it() -> None:
    master = rig()
    slave = master.follow(0)
    for number in range(3):
        master.put(body=b"%d" % number)
        master.turn()
        assert len(master.results) == number
        confirm(master, slave)
        assert statuses(master) == [OK] * (number + 1)
    assert master.acks.waiting == 0


def test_one_report_answers_all_that_it_covers() -> None:
    master = rig()
    slave = master.follow(0)
    ends = list[int]()
    for _ in range(5):
        master.put()
        ends.append(end_of(master))
    confirm(master, slave, ends[2] - 1)
    assert statuses(master) == [OK] * 2
    confirm(master, slave, ends[3])
    assert statuses(master) == [OK] * 4
    confirm(master, slave, ends[2])  # an older one changes nothing
    assert master.acks.waiting == 1


def test_one_slave_of_several_is_enough() -> None:
    master = rig()
    _, quick = master.follow(0), master.follow(0)
    master.put()
    confirm(master, quick)
    assert statuses(master) == [OK]


def test_without_a_slave_the_answer_comes_at_once() -> None:
    master = rig()
    master.put()
    assert statuses(master) == [NO_SLAVE]
    assert master.results[0].queue_offset == 0  # it is stored
    master.connect()  # has not said yet where it stands
    master.put()
    assert statuses(master) == [NO_SLAVE] * 2


def test_a_slave_too_far_behind_is_not_waited_for() -> None:
    master = rig(ha_slave_fallbehind_max=1000)
    slave = master.follow(0)
    master.put(body=b"x" * 500)
    assert master.results == []
    master.put(body=b"x" * 500)
    assert statuses(master) == [NO_SLAVE]
    confirm(master, slave)
    master.put()
    assert statuses(master) == [NO_SLAVE, OK]
    assert master.acks.waiting == 1


def test_from_so_many_bytes_on_a_slave_is_too_far_behind() -> None:
    probe = rig()
    probe.put()
    size = end_of(probe)
    for more, expected in ((0, [NO_SLAVE]), (1, [])):
        master = rig(ha_slave_fallbehind_max=size + more)
        master.follow(0)
        master.put()
        assert end_of(master) == size
        assert statuses(master) == expected


def test_a_slave_that_is_silent_too_long() -> None:
    master = rig()
    slave = master.follow(0)
    master.put()
    master.clock.advance(2)
    master.put()
    master.clock.advance(0.9)
    assert master.results == []
    master.clock.advance(0.1)
    assert statuses(master) == [LATE_SLAVE]
    assert master.results[0].queue_offset == 0
    master.clock.advance(2)
    assert statuses(master) == [LATE_SLAVE] * 2
    confirm(master, slave)
    assert statuses(master) == [LATE_SLAVE] * 2


def test_a_slave_that_comes_back_in_time_confirms_what_waits() -> None:
    master = rig()
    slave = master.follow(0)
    master.put()
    slave.leave()
    assert master.results == []
    master.clock.advance(2)
    slave = master.follow(1)
    assert statuses(master) == []  # it has only asked
    slave.report(end_of(master))
    assert statuses(master) == [OK]


def test_who_does_not_wait_is_answered_at_once() -> None:
    master = rig()
    master.follow(0)
    master.put(wait_store_ok=False)
    assert statuses(master) == [OK]
    assert master.acks.waiting == 0


def test_both_the_sync_and_the_slave_are_waited_for() -> None:
    master = rig(flush_disk_type="SYNC_FLUSH")
    slave = master.follow(0)
    master.put()
    master.turn()
    assert master.results == []
    confirm(master, slave)
    assert statuses(master) == [OK]


@pytest.mark.parametrize(
    ("has_slave", "disk_s", "expected"),
    [(False, 6, NO_SLAVE), (True, 6, LATE_SLAVE), (True, 1, LATE_SLAVE)],
)
def test_where_disk_and_slave_are_late_the_answer_tells_of_the_slave(
    has_slave: bool, disk_s: int, expected: PutMessageStatus
) -> None:
    """The disk has 5 s, the slave 3 s; it gets what is synced, so a late disk makes both late."""
    master = rig(flush_disk_type="SYNC_FLUSH")
    if has_slave:
        master.follow(0)
    master.put()
    for second in range(10):
        if second == disk_s:
            master.turn()
        master.clock.advance(1)
    assert statuses(master) == [expected]


def test_a_late_disk_alone_is_told_when_the_slave_has_it() -> None:
    master = rig(flush_disk_type="SYNC_FLUSH", slave_timeout=60_000)
    slave = master.follow(0)
    master.put()
    master.clock.advance(6)
    assert master.results == []
    master.turn()
    confirm(master, slave)
    assert statuses(master) == [LATE_DISK]


def test_a_failed_disk_answers_at_once() -> None:
    master = rig(flush_disk_type="SYNC_FLUSH")
    master.follow(0)
    master.put()
    master.store.fail(OSError("the disk"))
    assert statuses(master) == [LOST]
    master.clock.advance(10)
    assert statuses(master) == [LOST]


def test_a_failed_disk_is_told_also_without_a_slave() -> None:
    master = rig(flush_disk_type="SYNC_FLUSH")
    master.put()
    assert master.results == []
    master.store.fail(OSError("the disk"))
    assert statuses(master) == [LOST]


def test_settling_comes_after_all_that_wait() -> None:
    master, order = rig(), list[str]()
    slave = master.follow(0)
    master.store.settle(lambda _: order.append("nothing waits"))
    master.store.put_message(inner(), lambda _: order.append("message"))
    master.store.settle(lambda _: order.append("settled"))
    assert order == ["nothing waits"]
    confirm(master, slave)
    assert order == ["nothing waits", "message", "settled"]
    assert master.acks.waiting == 0
