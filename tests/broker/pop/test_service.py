"""Receive, acknowledge, change: one ordinary group."""

from __future__ import annotations

import asyncio

import pytest

from skylarkmq.broker.pop.handles import RETRY as RETRY_KIND
from skylarkmq.broker.pop.requests import pop_filter
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.store.pop.journal_records import Key, Left
from tests.broker.pop.pop_rig import DEAD, GROUP, RETRY, TOPIC, PopRig, message_of
from tests.store.clean_rig import RARE_TIMERS

KEY = Key(GROUP, TOPIC, 0, 0)


async def test_a_message_is_handed_out_once_and_done_when_it_is_acknowledged() -> None:
    rig = PopRig().start()
    rig.send_all(3)
    popped = await rig.receive()
    assert [message_of(one).body for one in popped] == [b"0", b"1", b"2"]
    assert [one.attempt for one in popped] == [1, 1, 1]
    assert await rig.receive() == []
    assert rig.mark() == 0
    assert await rig.ack(popped[1].receipt)
    assert rig.mark() == 0  # the first one is in hand
    assert await rig.ack(popped[0].receipt)
    assert rig.mark() == 2
    assert await rig.ack(popped[2].receipt)
    assert rig.mark() == 3
    await rig.advance(60)
    assert await rig.receive() == []


async def test_what_nobody_acknowledges_comes_again_through_the_topic_of_retries() -> None:
    rig = PopRig().start()
    rig.send(b"body", tag="a")
    (first,) = await rig.receive(invisible_ms=10_000)
    await rig.advance(9.9)
    assert await rig.receive() == []
    await rig.advance(0.3)
    (again,) = await rig.receive()
    assert (again.attempt, again.receipt.kind) == (2, RETRY_KIND)
    assert rig.mark() == 0  # a power cut may take the copy
    await rig.advance(0.5)
    assert rig.mark() == 1  # the copy is what waits
    message = message_of(again)
    assert (message.topic, message.body, message.reconsume_times) == (RETRY, b"body", 1)
    assert message.properties["UNIQ_KEY"] == "body"
    assert message.properties["1ST_POP_TIME"]
    assert not await rig.ack(first.receipt)
    assert await rig.ack(again.receipt)
    await rig.advance(60)
    assert await rig.receive() == []
    assert rig.mark(topic=RETRY) == 1


async def test_after_the_last_attempt_a_message_is_a_dead_letter() -> None:
    rig = PopRig().start(retry_max_times=2)
    rig.send(b"poison")
    attempts: list[int] = []
    for _ in range(5):
        attempts += [one.attempt for one in await rig.receive()]
        await rig.advance(10.2)
    assert attempts == [1, 2, 3]
    (dead,) = rig.stored(DEAD)
    assert dead.body == b"poison"
    assert dead.properties["RETRY_TOPIC"] == TOPIC
    assert dead.properties["DLQ_ORIGIN_TOPIC"] == TOPIC
    assert dead.properties["DLQ_ORIGIN_MESSAGE_ID"] == "poison"
    assert rig.stats.dead_letter(TOPIC, GROUP).count == 1


async def test_a_stored_message_with_too_many_attempts_is_not_handed_out() -> None:
    rig = PopRig().start(retry_max_times=2)
    rig.send(b"old", reconsume_times=3)
    rig.send(b"last", reconsume_times=2)
    assert await rig.bodies() == [b"last"]
    assert [message.body for message in rig.stored(DEAD)] == [b"old"]


async def test_a_receive_waits_and_is_woken_by_a_message() -> None:
    rig = PopRig().start()
    task = rig.begin()
    await rig.rest()
    assert not task.done()
    rig.send(b"now")
    await rig.rest()
    assert [message_of(one).body for one in task.result()] == [b"now"]


async def test_a_receive_waits_and_is_woken_by_a_retry() -> None:
    rig = PopRig().start()
    rig.send(b"again")
    await rig.receive(invisible_ms=10_000)
    task = rig.begin(wait_s=60)
    await rig.advance(9)
    assert not task.done()
    await rig.advance(1.2)
    (again,) = task.result()
    assert again.attempt == 2


async def test_a_receive_ends_with_its_time() -> None:
    rig = PopRig().start()
    task = rig.begin(wait_s=5)
    await rig.advance(4.9)
    assert not task.done()
    await rig.advance(0.2)
    assert task.result() == []
    assert rig.pop.receiver.waiting_count == 0


async def test_those_who_wait_are_served_in_their_order() -> None:
    rig = PopRig().start()
    tasks = [rig.begin(count=1) for _ in range(4)]
    await rig.rest()
    rig.send_all(3)
    await rig.rest()
    assert [task.done() for task in tasks] == [True, True, True, False]
    bodies = [message_of(task.result()[0]).body for task in tasks[:3]]
    assert bodies == [b"0", b"1", b"2"]
    rig.send(b"3")
    await rig.rest()
    assert tasks[3].done()


async def test_a_cancelled_receive_passes_its_turn_on() -> None:
    rig = PopRig().start()
    first, second = rig.begin(), rig.begin()
    await rig.rest()
    rig.send(b"one")
    await asyncio.sleep(0)  # the first one is told
    first.cancel()
    await rig.rest()
    assert first.cancelled()
    assert [message_of(one).body for one in second.result()] == [b"one"]


async def test_change_gives_a_new_handle_and_ends_the_old_one() -> None:
    rig = PopRig().start()
    rig.send(b"x")
    (one,) = await rig.receive(invisible_ms=10_000)
    changed = await rig.pop.settlement.change_invisible(GROUP, TOPIC, one.receipt, 30_000)
    assert changed is not None
    assert changed.serial > one.receipt.serial
    assert not await rig.ack(one.receipt)
    await rig.advance(20)
    assert await rig.receive() == []
    assert await rig.ack(changed)
    assert await rig.pop.settlement.change_invisible(GROUP, TOPIC, changed, 0) is None
    await rig.advance(20)
    assert await rig.receive() == []


async def test_change_to_nothing_brings_it_at_once() -> None:
    rig = PopRig().start()
    rig.send(b"x")
    (one,) = await rig.receive()
    assert await rig.pop.settlement.change_invisible(GROUP, TOPIC, one.receipt, 0) is not None
    task = rig.begin(wait_s=5)
    await rig.advance(0.2)
    assert task.result()[0].attempt == 2


async def test_a_suspended_delivery_does_not_count() -> None:
    rig = PopRig().start()
    rig.send(b"x")
    for _ in range(20):  # of more than its group has attempts
        (one,) = await rig.receive(invisible_ms=60_000)
        assert one.attempt == 1
        changed = await rig.pop.settlement.change_invisible(
            GROUP, TOPIC, one.receipt, 5000, suspends=True
        )
        assert changed is not None
        assert not await rig.ack(changed), "nobody has it"
        await rig.advance(4.8)
        assert await rig.receive() == []
        await rig.advance(0.4)
    (one,) = await rig.receive()
    assert await rig.ack(one.receipt)


async def test_a_repeated_acknowledgement_is_no_error() -> None:
    rig = PopRig().start()
    rig.send(b"x")
    (one,) = await rig.receive()
    assert await rig.ack(one.receipt)
    assert await rig.ack(one.receipt)
    assert not await rig.ack(one.receipt._replace(serial=one.receipt.serial + 1))
    assert not await rig.ack(one.receipt._replace(queue_id=7))
    assert not await rig.ack(one.receipt, topic="other")
    assert not await rig.ack(one.receipt, group="other")


async def test_what_was_not_handed_over_comes_again_after_a_second_and_is_not_counted() -> None:
    rig = PopRig().start()
    rig.send_all(2)
    popped = await rig.receive()
    rig.pop.settlement.give_back(GROUP, TOPIC, [one.receipt for one in popped])
    assert not await rig.ack(popped[0].receipt)
    assert await rig.receive() == []
    task = rig.begin(wait_s=5)
    await rig.advance(1.2)
    again = task.result()
    assert [(message_of(one).body, one.attempt) for one in again] == [(b"0", 1), (b"1", 1)]
    for one in again:
        assert await rig.ack(one.receipt)
    assert rig.mark() == 2


async def test_what_a_client_has_in_hand_comes_again_when_it_is_gone() -> None:
    rig = PopRig().start()
    rig.send_all(2)
    await rig.receive(count=1, client_id="a", is_renewed=True)
    await rig.receive(count=1, client_id="b", is_renewed=True)
    rig.pop.settlement.release_client("a", GROUP)
    await rig.advance(1.2)
    assert await rig.bodies() == [b"0"]


async def test_what_has_a_time_of_its_own_keeps_it_when_its_client_is_gone() -> None:
    rig = PopRig().start()
    rig.send(b"x")
    (one,) = await rig.receive(client_id="a", invisible_ms=30_000)
    rig.pop.settlement.release_client("a", GROUP)
    await rig.advance(20)
    assert await rig.receive() == []
    assert await rig.ack(one.receipt)


async def test_renewed_deliveries_are_prolonged_while_the_client_is_there() -> None:
    rig = PopRig(**RARE_TIMERS).start()
    rig.send(b"long")
    await rig.receive(client_id="a", invisible_ms=60_000, is_renewed=True)
    await rig.advance(3600)
    assert await rig.receive() == []
    rig.pop.settlement.release_client("a", GROUP)
    await rig.advance(1.2)
    assert [again.attempt for again in await rig.receive()] == [2]


async def test_a_renewal_ends_after_three_hours() -> None:
    rig = PopRig(**RARE_TIMERS).start()
    rig.send(b"long")
    await rig.receive(client_id="a", invisible_ms=60_000, is_renewed=True)
    task = rig.begin(wait_s=4 * 3600)
    await rig.advance(3 * 3600 - 5)
    assert not task.done()
    await rig.advance(10)
    assert [again.attempt for again in task.result()] == [2]


async def test_a_message_is_forwarded_to_the_dead_letters_once() -> None:
    rig = PopRig().start()
    rig.send(b"bad")
    (one,) = await rig.receive()
    tasks = [
        asyncio.create_task(rig.pop.settlement.forward_to_dlq(GROUP, TOPIC, one.receipt))
        for _ in range(2)
    ]
    await rig.rest()
    assert [task.result() for task in tasks] == [True, True]
    assert await rig.pop.settlement.forward_to_dlq(GROUP, TOPIC, one.receipt)
    assert [message.body for message in rig.stored(DEAD)] == [b"bad"]
    await rig.advance(0.5)
    assert rig.mark() == 1


async def test_until_the_log_is_synced_the_journal_says_where_a_copy_lies() -> None:
    rig = PopRig().start()
    rig.send_all(2)
    await rig.receive(invisible_ms=1000)
    await rig.advance(1.1)
    state = rig.journal.state().keys[KEY]
    copies = [row.copy_physical for row in state.rows.values()]
    assert copies == [message.physical_offset for message in rig.stored(RETRY)]
    live = rig.journal.live.state_of(KEY)
    assert [row.copy_physical for row in live.rows.values()] == copies
    rig.workers.flush.run_all()
    await rig.advance(0.5)
    assert rig.journal.state().keys[KEY].rows == {}


async def test_a_stop_waits_until_copies_are_on_the_disk() -> None:
    rig = PopRig().start()
    rig.send_all(2)
    await rig.receive(invisible_ms=1000)
    await rig.advance(1.1)
    assert rig.mark() == 0
    stopping = asyncio.create_task(rig.pop.stop())
    await rig.rest()
    await stopping
    assert rig.mark() == 2
    await rig.advance(0.5)


async def test_under_sync_flush_a_copy_is_on_the_disk_when_it_is_stored() -> None:
    rig = PopRig(flush_disk_type="SYNC_FLUSH").start()
    rig.put(TOPIC, 0, b"0")
    await rig.rest()
    await rig.receive(invisible_ms=1000)
    await rig.advance(1.1)
    assert rig.mark() == 1
    assert not any(isinstance(record, Left) for record in rig.journal.records)


async def test_filters_by_tag_are_exact() -> None:
    rig = PopRig().start()
    rig.send(b"1", tag="Aa")
    rig.send(b"2", tag="BB")  # the same hash
    rig.send(b"3", tag="other")
    assert await rig.bodies(matches=pop_filter("TAG", "BB || C")) == [b"2"]
    assert await rig.receive() == []  # what is not wanted is passed over
    assert rig.mark() == 1


async def test_filters_by_properties() -> None:
    rig = PopRig().start()
    for number in range(4):
        rig.send(b"%d" % number, properties=b"n\x01%d" % number)
    matches = pop_filter("SQL92", "n > 1")
    assert matches is pop_filter("SQL92", "n > 1")
    assert await rig.bodies(matches=matches) == [b"2", b"3"]


async def test_a_filter_that_wants_nothing_moves_the_group_on() -> None:
    rig = PopRig().start()
    rig.send_all(5)
    task = rig.begin(matches=pop_filter("TAG", "none"), wait_s=2)
    await rig.advance(2.1)
    assert task.result() == []
    assert rig.mark() == 5


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "none"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"group": "off"}, ResponseCode.NO_PERMISSION),
        ({"topic": "closed"}, ResponseCode.NO_PERMISSION),
    ],
)
async def test_refusals(changes: dict[str, str], code: int) -> None:
    rig = PopRig(auto_create_subscription_group=False).start()
    rig.group("off", consume_enable=False)
    rig.topic("closed", perm=2)
    with pytest.raises(RemoteProtocolError) as caught:
        await rig.pop.receiver.receive(rig.request(1, 0, **changes))
    assert caught.value.response_code == code
    assert not list(rig.pop.registry.all())
