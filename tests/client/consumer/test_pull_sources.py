"""Where queues are pulled from: the master, a slave that it suggests, any while it is away."""

from __future__ import annotations

from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import PullSysFlag
from tests.client.consumer.support import Group
from tests.support.fake_cluster import FakeBroker

PULL = RequestCode.PULL_MESSAGE


def pulls(broker: FakeBroker) -> int:
    return len([each for each in broker.of_code(PULL) if each.ext_fields["topic"] == "orders"])


async def test_a_suggested_slave_is_asked_until_it_suggests_the_master_again() -> None:
    it = Group({"orders": 1})
    slave = it.cluster.slave(it.broker)
    it.broker.add("orders", 0, *[b"%d" % n for n in range(96)])
    it.broker.suggested_broker_id = slave.suggested_broker_id = 1
    consumer = await it.consumer()
    await it.pass_time(1)
    assert pulls(it.broker) == 1
    assert pulls(slave) >= 2
    bodies = [(await it.wait(consumer.getone())).body for _ in range(96)]
    assert bodies == [b"%d" % n for n in range(96)]
    await it.wait(consumer.commit())
    assert it.offset(0) == 96, "commits go to the master"
    assert slave.offsets == {}
    slave.release_pulls()
    await it.pass_time(1)
    flags = {int(each.ext_fields["sysFlag"]) for each in slave.of_code(PULL)}
    assert not any(flag & PullSysFlag.FLAG_COMMIT_OFFSET for flag in flags)
    slave.suggested_broker_id = it.broker.suggested_broker_id = 0
    slave.release_pulls()
    await it.pass_time(1)
    it.broker.add("orders", 0, b"new")
    assert (await it.wait(consumer.getone())).body == b"new"
    assert pulls(it.broker) >= 2
    await it.stop(consumer)


async def test_a_slave_that_fails_sends_the_reader_back_to_the_master() -> None:
    it = Group({"orders": 1})
    slave = it.cluster.slave(it.broker)
    slave.connect_error = ConnectionRefusedError("down")
    it.broker.add("orders", 0, *[b"%d" % n for n in range(40)])
    it.broker.suggested_broker_id = 1
    consumer = await it.consumer()
    bodies = [(await it.wait(consumer.getone(timeout=15))).body for _ in range(40)]
    assert bodies == [b"%d" % n for n in range(40)]
    await it.stop(consumer)


async def test_reading_goes_on_at_a_slave_while_the_master_is_away() -> None:
    it = Group({"orders": 1})
    slave = it.cluster.slave(it.broker)
    it.broker.add("orders", 0, b"0")
    it.broker.offsets["billing", "orders", 0] = 0
    consumer = await it.consumer()
    assert (await it.wait(consumer.getone())).body == b"0"
    it.broker.has_master = False
    it.broker.connect_error = ConnectionRefusedError("down")
    it.broker.lose_all()
    await it.pass_time(40)
    slave.add("orders", 0, b"1")
    assert (await it.wait(consumer.getone(timeout=10))).body == b"1"
    it.broker.connect_error = None
    it.broker.has_master = True
    await it.stop(consumer)


async def test_a_slave_that_has_not_heard_of_the_topic_moves_nothing() -> None:
    it = Group({"orders": 1})
    slave = it.cluster.slave(it.broker)
    it.broker.add("orders", 0, *[b"%d" % n for n in range(40)])
    it.broker.suggested_broker_id = slave.suggested_broker_id = 1
    slave.refuse(PULL, ResponseCode.TOPIC_NOT_EXIST)
    consumer = await it.consumer()
    bodies = [(await it.wait(consumer.getone(timeout=15))).body for _ in range(40)]
    assert bodies == [b"%d" % n for n in range(40)]
    asked = [each.ext_fields for each in it.broker.of_code(PULL) + slave.of_code(PULL)]
    begun = [each for each in asked if each["topic"] == "orders" and each["queueOffset"] == "0"]
    assert len(begun) == 1
    await it.stop(consumer)
