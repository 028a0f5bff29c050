"""What others change while messages are in hand: offsets, topics, groups; and a restart."""

from __future__ import annotations

import asyncio

import pytest

from skylarkmq.broker.pop.handles import OLD_RETRY
from skylarkmq.broker.pop.handles import PLUS_RETRY as PLUS_KIND
from skylarkmq.broker.pop.handles import RETRY as RETRY_KIND
from skylarkmq.broker.pop.requests import pop_filter
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.properties import MAX_PROPERTIES_SIZE
from skylarkmq.store.read.cold_reads import GotRecords
from tests.broker.pop.pop_rig import (
    DEAD,
    GROUP,
    PLUS_RETRY,
    RETRY,
    TOPIC,
    PopRig,
    ignore,
    message_of,
)


@pytest.mark.parametrize("target", [0, 2, 4, 5])
async def test_a_reset_wins_and_ends_what_is_in_hand(target: int) -> None:
    rig = PopRig().start()
    rig.send_all(5)
    popped = await rig.receive(count=4)
    assert await rig.ack(popped[0].receipt)
    assert rig.offsets.commit("admin", GROUP, TOPIC, 0, target)
    assert not await rig.ack(popped[1].receipt)
    change = rig.pop.settlement.change_invisible
    assert await change(GROUP, TOPIC, popped[2].receipt, 1000) is None
    assert rig.mark() == target
    assert await rig.bodies() == [b"%d" % number for number in range(target, 5)]
    await rig.advance(20)
    assert rig.mark() == 5  # what lapsed went on to the retries
    state = rig.journal.state().keys
    assert not any(found.rows for key, found in state.items() if key.kind == 0)


async def test_a_reset_is_on_the_disk_when_the_journal_has_it() -> None:
    """Else a start after a power cut would take the journal's older word for a newer one."""
    rig = PopRig().start()
    rig.send_all(5)
    await rig.receive()
    rig.journal.is_quick = False
    rig.offsets.keep("admin", GROUP, TOPIC, 0, 0)
    task = asyncio.create_task(rig.offsets.durable())
    await rig.rest()
    assert not task.done()
    rig.journal.sync()
    await rig.rest()
    assert task.done()
    rig.offsets.advance(GROUP, TOPIC, 0, 1)  # which the journal knows by itself
    task = asyncio.create_task(rig.offsets.durable())
    await rig.rest()
    assert task.done()


async def test_a_reset_wakes_who_waits() -> None:
    rig = PopRig().start()
    rig.send_all(2)
    for one in await rig.receive():
        await rig.ack(one.receipt)
    task = rig.begin()
    await rig.rest()
    rig.offsets.keep("admin", GROUP, TOPIC, 0, 1)
    await rig.rest()
    assert [message_of(one).body for one in task.result()] == [b"1"]


async def test_a_deleted_topic_takes_what_is_in_hand_with_it() -> None:
    rig = PopRig().start()
    rig.send_all(2)
    popped = await rig.receive(count=1)
    task = rig.begin(count=32, wait_s=20, queue_id=0)
    await rig.rest()
    (last,) = task.result()
    waits = rig.begin()
    await rig.rest()
    rig.topics.delete(TOPIC)
    await rig.rest()
    with pytest.raises(RemoteProtocolError) as caught:
        waits.result()
    assert caught.value.response_code == ResponseCode.TOPIC_NOT_EXIST
    assert not await rig.ack(popped[0].receipt)
    assert not await rig.ack(last.receipt)
    await rig.advance(60)
    assert RETRY not in rig.topics.table
    assert rig.pop.in_flight.room.count == 0
    assert not rig.journal.state().keys


@pytest.mark.parametrize("plus", [False, True])
async def test_a_deleted_topic_takes_its_retries_with_it(plus: bool) -> None:
    rig = PopRig(enable_retry_topic_v2=plus).start()
    rig.send(b"old")
    await rig.receive()
    await rig.advance(11)
    assert rig.stored(PLUS_RETRY if plus else RETRY)
    rig.topics.delete(TOPIC)
    rig.store.remove_topic(TOPIC, ignore)
    rig.offsets.remove_topic(TOPIC)
    await rig.advance(1)
    rig.topic(TOPIC, 1)
    assert await rig.receive() == []
    rig.send(b"new")
    assert await rig.bodies() == [b"new"]
    await rig.advance(11)
    assert await rig.bodies() == [b"new"], "its own retries come"


async def test_a_deleted_group_takes_what_is_in_hand_with_it() -> None:
    rig = PopRig().start()
    rig.send_all(2)
    popped = await rig.receive()
    rig.groups.delete(GROUP)
    assert not await rig.ack(popped[0].receipt)
    await rig.advance(60)
    assert RETRY not in rig.topics.table
    assert not rig.journal.state().keys
    rig.group()
    assert await rig.bodies() == [b"0", b"1"]  # it goes on where its offset is


async def test_a_deleted_topic_of_retries_is_made_again() -> None:
    rig = PopRig().start()
    rig.send(b"x")
    await rig.receive()
    await rig.advance(11)
    (again,) = await rig.receive()
    rig.topics.delete(RETRY)
    rig.store.remove_topic(RETRY, ignore)
    rig.offsets.remove_topic(RETRY)
    assert not await rig.ack(again.receipt)
    rig.send(b"y")
    await rig.rest()
    await rig.receive()
    await rig.rest()
    rig.store.removal.release(RETRY, ignore)
    await rig.rest()
    await rig.advance(15)
    assert await rig.bodies() == [b"y"]


async def test_more_queues_are_read_as_soon_as_there_are_some() -> None:
    rig = PopRig().start()
    assert await rig.receive() == []
    rig.send(b"0", queue_id=0)
    task = rig.begin()
    await rig.rest()
    assert task.done()
    task = rig.begin()
    await rig.rest()
    rig.topic(TOPIC, 2)
    rig.send(b"1", queue_id=1)
    await rig.rest()
    assert [message_of(one).body for one in task.result()] == [b"1"]


# A group that comes from the 4.x protocol


def given_back(rig: PopRig, body: bytes, topic: str | None, times: int = 1) -> None:
    properties = b"" if topic is None else f"RETRY_TOPIC\x01{topic}\x02TAGS\x01a".encode()
    rig.send(body, topic="%RETRY%G", properties=properties, reconsume_times=times)


async def test_what_4x_consumers_gave_back_comes_by_its_own_topic() -> None:
    rig = PopRig().start()
    rig.topic("U", 1)
    rig.topic("%RETRY%G", 1)
    given_back(rig, b"T1", TOPIC)
    given_back(rig, b"U1", "U")
    given_back(rig, b"T2", TOPIC)
    popped = await rig.receive()
    assert [message_of(one).body for one in popped] == [b"T1", b"T2"]
    assert {(one.attempt, one.receipt.kind) for one in popped} == {(2, OLD_RETRY)}
    for one in popped:
        assert await rig.ack(one.receipt)
    assert rig.mark(topic="%RETRY%G") == 1  # U1 waits for its own
    (other,) = await rig.receive(topic="U")
    assert message_of(other).body == b"U1"
    assert await rig.ack(other.receipt, topic="U")
    assert rig.mark(topic="%RETRY%G") == 3


async def test_an_old_retry_that_waits_for_its_topic_comes_once_after_a_stop() -> None:
    rig = PopRig().start()
    rig.topic("U", 1)
    rig.topic("%RETRY%G", 1)
    given_back(rig, b"U1", "U")
    assert await rig.receive() == []
    stopping = asyncio.create_task(rig.pop.stop())
    await rig.rest()
    assert stopping.done()
    rig.pop.start()
    await rig.advance(1)
    assert [message_of(one).body for one in await rig.receive(topic="U")] == [b"U1"]
    assert await rig.receive(topic="U") == []


async def test_an_old_retry_that_lapses_goes_to_the_new_topic_of_retries() -> None:
    rig = PopRig().start()
    rig.topic("%RETRY%G", 1)
    task = rig.begin()
    await rig.rest()
    given_back(rig, b"x", TOPIC)
    await rig.rest()
    assert [one.attempt for one in task.result()] == [2]
    await rig.advance(11)
    assert rig.mark(topic="%RETRY%G") == 1
    assert [one.attempt for one in await rig.receive()] == [3]


async def test_an_old_retry_wakes_the_receive_of_its_topic() -> None:
    rig = PopRig().start()
    rig.topic("U", 1)
    one, other = rig.begin(), rig.begin(topic="U")
    await rig.rest()
    rig.topic("%RETRY%G", 1)
    given_back(rig, b"U1", "U")
    await rig.rest()
    assert [message_of(popped).body for popped in other.result()] == [b"U1"]
    assert not one.done()
    one.cancel()


async def test_old_retries_of_topics_that_are_no_more_are_dead_letters() -> None:
    rig = PopRig().start()
    rig.topic("%RETRY%G", 1)
    rig.topic("gone", 1)
    given_back(rig, b"never", "none")
    given_back(rig, b"later", "gone")
    given_back(rig, b"nobody's", None)
    given_back(rig, b"unwanted", TOPIC)
    matches = pop_filter("TAG", "b")
    assert await rig.receive(matches=matches) == []
    assert [message.body for message in rig.stored(DEAD)] == [b"never"]
    await rig.advance(0.5)  # the copy is synced
    assert rig.mark(topic="%RETRY%G") == 1
    rig.topics.delete("gone")
    await rig.rest()
    assert [message.body for message in rig.stored(DEAD)] == [b"never", b"later"]
    await rig.advance(0.5)
    assert rig.mark(topic="%RETRY%G") == 4


# A restart


async def test_handles_outlast_a_restart_and_what_was_acknowledged_stays_away() -> None:
    rig = PopRig().start(queues=2)
    rig.send_all(4)
    rig.send(b"other", queue_id=1)
    popped = await rig.receive(invisible_ms=30_000)
    (by_body) = {message_of(one).body: one.receipt for one in popped}
    assert await rig.ack(by_body[b"1"])
    changed = await rig.pop.settlement.change_invisible(GROUP, TOPIC, by_body[b"2"], 60_000)
    assert changed is not None
    await rig.pop.stop()
    rig.restart()
    assert await rig.receive() == []
    assert not await rig.ack(by_body[b"2"])
    assert await rig.ack(changed)
    assert await rig.ack(by_body[b"0"])
    assert rig.mark() == 3
    await rig.advance(31)
    bodies = await rig.bodies()
    assert sorted(bodies) == [b"3", b"other"]
    serials = [one.receipt.serial for one in popped]
    rig.send(b"new")
    (new,) = await rig.receive()
    assert new.receipt.serial > max(*serials, changed.serial)


async def test_serials_grow_whatever_the_clock_says() -> None:
    rig = PopRig().start()
    rig.send_all(2)
    (one,) = await rig.receive(count=1)
    rig.clock.step_wall(-3600)
    (second,) = await rig.receive(count=1)
    assert second.receipt.serial > one.receipt.serial
    for popped in (one, second):
        await rig.ack(popped.receipt)
    rig.restart()
    rig.send(b"new")
    (third,) = await rig.receive()
    assert third.receipt.serial > second.receipt.serial


async def test_what_was_given_back_comes_again_after_a_restart_not_counted() -> None:
    rig = PopRig().start()
    rig.send_all(2)
    popped = await rig.receive()
    rig.pop.settlement.give_back(GROUP, TOPIC, [popped[0].receipt])
    await rig.ack(popped[1].receipt)
    rig.restart()
    assert [one.attempt for one in await rig.receive()] == [1]


async def test_old_retries_outlast_a_restart() -> None:
    rig = PopRig().start()
    rig.topic("U", 1)
    rig.topic("%RETRY%G", 1)
    given_back(rig, b"T1", TOPIC)
    given_back(rig, b"U1", "U")
    (one,) = await rig.receive()
    rig.restart()
    (other,) = await rig.receive(topic="U")
    assert message_of(other).body == b"U1"
    assert await rig.ack(other.receipt, topic="U")
    await rig.advance(11)
    (second,) = await rig.receive()
    assert (message_of(second).body, second.attempt) == (b"T1", 3)
    assert not await rig.ack(one.receipt)
    assert await rig.ack(second.receipt)
    assert rig.mark(topic="%RETRY%G") == 2


async def test_what_topic_or_group_are_no_more_is_forgotten_at_the_start() -> None:
    rig = PopRig().start()
    rig.send_all(2)
    await rig.receive()
    rig.topics.table.pop(TOPIC)
    rig.restart()
    assert not list(rig.pop.registry.all())
    assert not rig.journal.state().keys


async def test_a_pause_loses_nothing() -> None:
    """A hand-over that fails stops the master's services and starts them again."""
    rig = PopRig().start()
    rig.send_all(2)
    popped = await rig.receive(invisible_ms=10_000)
    waits = rig.begin()
    await rig.rest()
    await rig.pop.stop()
    await rig.rest()
    assert waits.result() == []
    with pytest.raises(RemoteProtocolError):
        await rig.receive()
    with pytest.raises(RemoteProtocolError):
        await rig.ack(popped[0].receipt)
    await rig.advance(11)
    rig.pop.start()
    await rig.rest()
    await rig.advance(0.2)
    assert [one.attempt for one in await rig.receive()] == [2, 2]


@pytest.mark.parametrize("plus", [False, True])
async def test_retries_of_both_names_are_read_and_new_ones_go_where_the_key_says(
    plus: bool,
) -> None:
    rig = PopRig(enable_retry_topic_v2=plus).start()
    names = [RETRY, PLUS_RETRY]
    for name in names:  # as a broker with the key, and one without, have left them
        rig.topic(name, 1)
        rig.send(name.encode(), topic=name, properties=b"RETRY_TOPIC\x01T", reconsume_times=1)
    rig.send(b"new")
    popped = {message_of(one).body: one for one in await rig.receive()}
    assert [popped[name.encode()].attempt for name in names] == [2, 2]
    kinds = [popped[name.encode()].receipt.kind for name in names]
    assert kinds == [RETRY_KIND, PLUS_KIND]
    for name in names:
        assert await rig.ack(popped[name.encode()].receipt)
        assert rig.mark(topic=name) == 1
    await rig.advance(11)
    (copy,) = rig.stored(names[plus])[1:]
    assert (copy.body, copy.reconsume_times) == (b"new", 1)
    assert not rig.stored(names[not plus])[1:]
    (again,) = await rig.receive()
    rig.restart()
    assert await rig.ack(again.receipt)
    assert rig.mark(topic=names[plus]) == 2
    await rig.advance(11)
    assert await rig.receive() == []


async def test_with_the_newer_name_nobody_else_has_the_topic_of_retries(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = PopRig(enable_retry_topic_v2=True).start()
    for group, topic in (("a", "b_c"), ("a_b", "c"), ("a_b_c", TOPIC)):
        rig.group(group)
        rig.topic(topic, 1)
    rig.send(b"of b_c", topic="b_c")
    assert await rig.bodies(group="a", topic="b_c") == [b"of b_c"]
    await rig.advance(11)
    assert [message.body for message in rig.stored("%RETRY%a+b_c")] == [b"of b_c"]
    assert "%RETRY%a_b_c" not in rig.topics.table
    assert await rig.bodies(group="a", topic="b_c") == [b"of b_c"]
    assert "enableRetryTopicV2" not in caplog.text


async def test_a_retry_that_names_no_topic_goes_to_nobody_where_the_name_means_several(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As copies of RocketMQ 5: without another group of the name they are handed out."""
    rig = PopRig().start()
    rig.topic("%RETRY%a_b_c", 1)
    for group, topic in (("a", "b_c"), ("a_b", "c")):
        rig.group(group)
        rig.topic(topic, 1)
    rig.send(b"alone", topic="%RETRY%a_b_c", properties=b"")
    assert await rig.bodies(group="a", topic="b_c") == [b"alone"]
    assert not caplog.records
    assert await rig.receive(group="a_b", topic="c") == []
    assert "group a_b in c and of another group" in caplog.text
    assert "enableRetryTopicV2=true" in caplog.text
    rig.send(b"whose", topic="%RETRY%a_b_c", properties=b"")
    rig.send(b"of b_c", topic="%RETRY%a_b_c", properties=b"RETRY_TOPIC\x01b_c")
    assert await rig.bodies(group="a", topic="b_c") == [b"of b_c"]
    assert await rig.receive(group="a_b", topic="c") == []
    assert caplog.text.count("that name no topic") == 1


async def test_a_retry_without_room_to_name_its_topic_comes_again_in_place() -> None:
    rig = PopRig().start()
    rig.send(b"full", properties=b"a\x01" + b"x" * (MAX_PROPERTIES_SIZE - 10))
    (first,) = await rig.receive()
    await rig.advance(11)
    (again,) = await rig.receive()
    assert (again.attempt, again.receipt.kind) == (2, first.receipt.kind)
    assert not rig.stored(RETRY)
    assert await rig.ack(again.receipt)


async def test_a_reset_while_such_a_retry_is_read_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = PopRig().start()
    rig.send(b"full", properties=b"a\x01" + b"x" * (MAX_PROPERTIES_SIZE - 10))
    await rig.receive()
    read = rig.store.read_records

    def reset_first(places: list[int], done: GotRecords) -> None:
        assert rig.offsets.commit("admin", GROUP, TOPIC, 0, 1)
        read(places, done)

    monkeypatch.setattr(rig.store, "is_in_memory", lambda _: False)
    monkeypatch.setattr(rig.store, "read_records", reset_first)
    await rig.advance(11)
    assert await rig.receive() == []
    assert rig.mark() == 1
    assert rig.pop.in_flight.room.count == 0


async def test_topics_of_retries_that_have_one_name_do_not_mix() -> None:
    """`%RETRY%a_b_c` is that of a in b_c, of a_b in c, and of the pull consumers of a_b_c."""
    rig = PopRig().start()
    places = [("a", "b_c"), ("a_b", "c"), ("a_b_c", TOPIC)]
    for group, topic in places:
        rig.group(group)
        rig.topic(topic, 1)
        assert await rig.receive(group=group, topic=topic) == []
    rig.send(b"of b_c", topic="b_c")
    rig.send(b"of c", topic="c", properties=b"RETRY_TOPIC\x01b_c")  # a lie of its producer
    for group, topic in places[:2]:
        assert len(await rig.receive(group=group, topic=topic)) == 1
    await rig.advance(11)
    assert rig.topics.table["%RETRY%a_b_c"]
    for restarts in (False, True):
        if restarts:
            rig.restart()
        found = {
            (group, topic): [message_of(one).body for one in
                             await rig.receive(group=group, topic=topic, invisible_ms=1000)]
            for group, topic in places
        }  # fmt: skip
        assert found == {places[0]: [b"of b_c"], places[1]: [b"of c"], places[2]: []}
        await rig.advance(2)
