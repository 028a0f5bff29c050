"""What is bounded, what is first, and reads that wait for the disk."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.broker.metrics.pop_families import pop_families
from skylarkmq.broker.pop import delivering, moves, receiving, taking
from skylarkmq.broker.pop.consumption import PopGroup, Source
from skylarkmq.broker.pop.deliveries import Delivery, PopQueue
from skylarkmq.broker.pop.handles import Receipt, parse
from skylarkmq.broker.pop.requests import Popped, pop_filter
from skylarkmq.broker.tables.persist import TableFile
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.store.read.cold_reads import ColdReads
from skylarkmq.store.read.message_reader import MessageReader
from tests.broker.pop.pop_rig import DEAD, GROUP, RETRY, TOPIC, PopRig, message_of
from tests.support.manual_clock import settle


async def test_a_full_queue_waits_for_acknowledgements() -> None:
    rig = PopRig(pop_inflight_max_per_queue=4).start()
    rig.send_all(10)
    popped = await rig.receive()
    assert len(popped) == 4
    task = rig.begin()
    await rig.rest()
    assert not task.done()
    await rig.ack(popped[3].receipt)
    await rig.rest()
    assert [message_of(one).body for one in task.result()] == [b"4"]


@pytest.mark.parametrize("key", ["pop_inflight_max_per_group", "pop_inflight_max"])
async def test_a_full_group_waits_for_acknowledgements(key: str) -> None:
    rig = PopRig(None, **{key: 8}).start(queues=2)
    rig.send_all(6, queue_id=0)
    rig.send_all(6, queue_id=1)
    popped = await rig.receive()
    assert len(popped) == 8
    assert await rig.receive() == []
    task = rig.begin()
    await rig.rest()
    for one in popped[:2]:
        await rig.ack(one.receipt)
    await rig.rest()
    assert len(task.result()) == 2


async def test_an_offset_above_the_end_of_its_queue_counts_as_the_end() -> None:
    """The queue was made anew: what comes is not passed over until it reaches the old offset."""
    rig = PopRig()
    rig.offsets.advance(GROUP, TOPIC, 0, 5)
    rig.start()
    rig.send_all(2)
    assert await rig.receive() == []
    rig.send(b"new")
    assert await rig.bodies() == [b"new"]


async def test_a_reset_makes_room() -> None:
    rig = PopRig(pop_inflight_max=4).start(queues=2)
    rig.send_all(4, queue_id=0)
    rig.send(b"other", queue_id=1)
    assert len(await rig.receive()) == 4
    task = rig.begin()
    await rig.rest()
    rig.offsets.keep("admin", GROUP, TOPIC, 0, 4)
    rig.offsets.keep("admin", GROUP, TOPIC, 1, 1)
    rig.send(b"new", queue_id=1)
    await rig.rest()
    assert task.done()


async def test_too_many_waiting_receives_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "WAITING_MAX", 3)
    rig = PopRig().start()
    tasks = [rig.begin() for _ in range(4)]
    await rig.rest()
    assert [task.done() for task in tasks] == [False, False, False, True]
    with pytest.raises(RemoteProtocolError) as caught:
        tasks[3].result()
    assert caught.value.response_code == ResponseCode.SYSTEM_BUSY
    assert "polling full" in caught.value.remark
    for task in tasks[:3]:
        task.cancel()
    await rig.rest()
    assert rig.pop.receiver.waiting_count == 0
    assert rig.clock.pending_count <= 10


async def test_past_the_bound_the_address_with_most_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By whichever protocol it came, and whatever group it is of."""
    monkeypatch.setattr(receiving, "WAITING_IN_ALL_MAX", 10)
    rig = PopRig().start()

    def begin(address: str, group: str = GROUP) -> asyncio.Task[list[Popped]]:
        request = rig.request(wait_s=20, group=group)
        return asyncio.create_task(rig.pop.receiver.receive(request, f"{address}:4711"))

    async def is_waiting(task: asyncio.Task[list[Popped]]) -> bool:
        await rig.rest()
        return not task.done()

    hosts = ["198.51.100.1", "198.51.100.1", "2001:db8::1"]
    strangers = [begin(hosts[number % 3], f"g{number % 2}") for number in range(10)]
    honest: list[asyncio.Task[list[Popped]]] = []
    for _ in range(3):
        honest.append(begin("192.0.2.7"))
        assert await is_waiting(honest[-1])
    for refused in (begin("192.0.2.7"), begin("2001:db8::ffff"), begin("198.51.100.1")):
        assert not await is_waiting(refused)
        with pytest.raises(RemoteProtocolError, match="polling full"):
            refused.result()
    over = [number for number, task in enumerate(strangers) if task.done()]
    assert over == [0, 1, 3], "the oldest of 7"
    assert [strangers[number].result() for number in over] == [[], [], []]
    assert rig.pop.receiver.waiting_count == 10
    looking = asyncio.create_task(
        rig.pop.receiver.wait_ready(rig.request(wait_s=20), "192.0.2.8:1")
    )
    await rig.rest()
    assert strangers[4].done()
    for task in (*strangers, *honest, looking):
        task.cancel()
    await rig.rest()
    assert rig.pop.receiver.waiting_count == 0


async def test_too_many_queues_make_room_of_idle_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    from skylarkmq.broker.pop import registry

    monkeypatch.setattr(registry, "QUEUES_MAX", 2)
    rig = PopRig().start(queues=1)
    for name in ("A", "B", "C"):
        rig.topic(name, 1)
        rig.send(b"x", topic=name)
        (one,) = await rig.receive(topic=name)
        assert await rig.ack(one.receipt, topic=name)
    held: list[Receipt] = []
    for name in ("A", "B"):
        rig.send(b"y", topic=name)
        held += [one.receipt for one in await rig.receive(topic=name)]
    with pytest.raises(RemoteProtocolError) as caught:
        await rig.pop.receiver.receive(rig.request(1, 0, topic="C"))
    assert caught.value.response_code == ResponseCode.SYSTEM_BUSY
    assert await rig.ack(held[0], topic="A")


async def test_a_full_disk_refuses_receives_alone() -> None:
    rig = PopRig().start()
    rig.send_all(2)
    (one,) = await rig.receive(count=1)
    rig.journal.why = "the disk is full"
    with pytest.raises(RemoteProtocolError) as caught:
        await rig.pop.receiver.receive(rig.request())
    assert caught.value.response_code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert await rig.ack(one.receipt)


async def test_an_acknowledgement_waits_for_the_journal() -> None:
    rig = PopRig().start()
    rig.send_all(2)
    first, second = await rig.receive()
    rig.journal.is_quick = False
    task = asyncio.create_task(rig.ack(first.receipt))
    await rig.rest()
    assert not task.done()
    rig.journal.sync()
    await rig.rest()
    assert task.result()
    rig.journal.error = OSError("full")
    task = asyncio.create_task(rig.ack(second.receipt))
    await rig.rest()
    rig.journal.sync()
    await rig.rest()
    with pytest.raises(RemoteProtocolError):
        task.result()


async def test_queues_take_turns() -> None:
    rig = PopRig().start(queues=3)
    for queue_id in range(3):
        rig.send_all(4, queue_id=queue_id)
    queues = [(await rig.receive(count=1))[0].receipt.queue_id for _ in range(6)]
    assert sorted(queues[:3]) == [0, 1, 2]
    assert queues[3:] == queues[:3]


async def test_one_queue_alone_may_be_asked_for() -> None:
    rig = PopRig().start(queues=3)
    for queue_id in range(3):
        rig.send(b"%d" % queue_id, queue_id=queue_id)
    assert await rig.bodies(queue_id=2) == [b"2"]
    task = rig.begin(queue_id=2)
    await rig.rest()
    assert not task.done()
    rig.send(b"new", queue_id=2)
    await rig.rest()
    assert task.done()
    assert await rig.receive(queue_id=9) == []


async def test_a_receive_has_a_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "SIZE_MAX", 10_000)
    rig = PopRig().start(queues=4)
    for queue_id in range(4):
        rig.send(bytes(8000), queue_id=queue_id, properties=b"")
    assert len(await rig.receive()) == 2


async def test_a_new_group_begins_with_the_first_message_of_a_young_queue() -> None:
    rig = PopRig().start()
    rig.send_all(3)
    assert await rig.bodies() == [b"0", b"1", b"2"]


def _is_old(_: int) -> bool:
    return False


def _is_old_place(*_: object) -> bool:
    return False


async def test_a_new_group_begins_with_the_last_message_of_an_old_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = PopRig().start()
    rig.send_all(3)
    monkeypatch.setattr(rig.store, "is_in_memory", _is_old)
    assert await rig.bodies() == [b"2"]
    assert rig.mark() == 2
    rig.group("H")
    assert await rig.bodies(group="H", from_min=True) == [b"0", b"1", b"2"]


async def test_a_name_too_long_for_a_topic_of_retries_comes_again_in_place() -> None:
    rig = PopRig().start(retry_max_times=1)
    group = "g" * 120
    rig.group(group, retry_max_times=1)
    rig.send(b"x")
    attempts: list[int] = []
    for _ in range(4):
        attempts += [one.attempt for one in await rig.receive(group=group)]
        await rig.advance(10.2)
    assert attempts == [1, 2]
    assert [message.body for message in rig.stored(f"%DLQ%{group}")] == [b"x"]
    assert rig.mark(group=group) == 1


async def test_copies_that_are_refused_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = PopRig().start()
    rig.send(b"x")
    (one,) = await rig.receive()
    monkeypatch.setattr(rig.store.cleaning.disk, "refusal", lambda: "the disk is full")
    await rig.advance(15)
    assert rig.mark() == 0
    assert not await rig.ack(one.receipt)
    monkeypatch.undo()
    await rig.advance(1.2)
    assert rig.mark() == 1
    assert [again.attempt for again in await rig.receive()] == [2]


async def test_a_dead_letter_that_is_refused_leaves_the_handle_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = PopRig().start()
    rig.send(b"x")
    (one,) = await rig.receive()
    monkeypatch.setattr(rig.store.cleaning.disk, "refusal", lambda: "the disk is full")
    task = asyncio.create_task(rig.pop.settlement.forward_to_dlq(GROUP, TOPIC, one.receipt))
    await rig.rest()
    with pytest.raises(RemoteProtocolError):
        task.result()
    monkeypatch.undo()
    task = asyncio.create_task(rig.pop.settlement.forward_to_dlq(GROUP, TOPIC, one.receipt))
    await rig.rest()
    assert task.result()
    assert len(rig.stored(DEAD)) == 1


@pytest.fixture
def _cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take all messages for old."""

    def is_cold(self: Any, topic: str, queue_id: int, offset: int) -> bool:
        queue = self._queues.get(topic, queue_id)
        return queue is not None and offset < queue.max_offset

    monkeypatch.setattr(MessageReader, "is_in_memory", _is_old_place)
    monkeypatch.setattr(ColdReads, "is_cold", is_cold)


@pytest.mark.usefixtures("_cold")
async def test_old_messages_are_read_off_the_loop() -> None:
    rig = PopRig().start(queues=2)
    rig.send_all(3, queue_id=0)
    rig.send(b"other", queue_id=1)
    first = rig.begin(from_min=True)
    second = rig.begin()
    await asyncio.sleep(0)
    assert not first.done()
    await rig.rest()
    bodies = sorted(message_of(one).body for one in first.result() + second.result())
    assert bodies == [b"0", b"1", b"2", b"other"]
    await rig.advance(11)
    retries = rig.begin()
    await rig.rest()
    assert [one.attempt for one in retries.result()] == [2, 2, 2, 2]


@pytest.mark.usefixtures("_cold")
async def test_a_receive_that_is_cancelled_while_it_reads_has_nothing() -> None:
    rig = PopRig().start()
    rig.send_all(3)
    task = rig.begin(from_min=True)
    await asyncio.sleep(0)
    task.cancel()
    await rig.rest()
    assert task.cancelled()
    assert await rig.bodies() == [b"0", b"1", b"2"]


async def test_a_dead_letter_that_a_cancelled_receive_has_found_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = PopRig().start(queues=2)
    assert await rig.receive() == []
    rig.send(b"dead", queue_id=0, reconsume_times=17)
    rig.send(b"cold", queue_id=1)
    monkeypatch.setattr(rig.store, "is_cold", lambda _topic, queue_id, _offset: queue_id == 1)
    task = rig.begin()
    await asyncio.sleep(0)
    task.cancel()
    await rig.rest()
    assert task.cancelled()
    assert [message.body for message in rig.stored(DEAD)] == [b"dead"]
    await rig.advance(1)
    assert rig.mark() == 1


@pytest.mark.usefixtures("_cold")
async def test_a_receive_that_is_to_wait_no_more_while_it_reads_ends_with_the_read() -> None:
    rig = PopRig().start()
    task = rig.begin(matches=pop_filter("TAG", "wanted"))
    await rig.rest()
    rig.send(b"x", tag="other")
    await settle(3)
    (queue,) = rig.pop.registry.queues()
    assert queue.is_reading
    assert rig.pop.receiver.end_polls_of({TOPIC}) == 1
    await rig.rest()
    assert task.result() == []


async def test_wait_ready_takes_nothing() -> None:
    rig = PopRig().start()
    request = rig.request(1, 20)
    task = asyncio.create_task(rig.pop.receiver.wait_ready(request))
    await rig.rest()
    assert rig.pop.receiver.waiting(GROUP, TOPIC) == 1
    rig.send(b"x")
    await rig.rest()
    assert task.result()
    assert await rig.pop.receiver.wait_ready(rig.request())
    assert await rig.bodies() == [b"x"]
    task = asyncio.create_task(rig.pop.receiver.wait_ready(rig.request(1, 2)))
    await rig.advance(2.1)
    assert not task.result()


async def test_receives_that_wait_for_a_topic_are_answered_when_that_is_to_move() -> None:
    rig = PopRig().start()
    looks = asyncio.create_task(rig.pop.receiver.wait_ready(rig.request(1, 20)))
    tasks = [rig.begin(), rig.begin()]
    await rig.rest()
    assert rig.pop.receiver.end_polls_of({"other"}) == 0
    assert rig.pop.receiver.end_polls_of({TOPIC}) == 3
    await rig.rest()
    assert not looks.result()
    assert [task.result() for task in tasks] == [[], []]
    assert rig.pop.receiver.waiting_count == 0
    again = rig.begin()
    await rig.rest()
    assert rig.pop.receiver.waiting_count == 1, "who comes again waits as ever"
    rig.send(b"x")
    await rig.rest()
    assert len(again.result()) == 1


async def test_a_wait_that_takes_nothing_does_not_keep_others_from_it() -> None:
    rig = PopRig().start()
    looks = asyncio.create_task(rig.pop.receiver.wait_ready(rig.request(1, 20)))
    await rig.rest()
    task = rig.begin()
    await rig.rest()
    rig.send(b"x")
    await rig.rest()
    assert looks.result()
    assert len(task.result()) == 1


def test_handles_say_what_they_were_made_of() -> None:
    receipt = Receipt(1, 3, 5_000_000_000, 1_700_000_000_123)
    for name in ("broker-a", "b.1@home", "Ä"):
        text = receipt.to_text(name)
        assert text.startswith("s1.1.3.5000000000.1700000000123.")
        assert parse(text) == (receipt, name)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s1",
        "s1.0.0.0.0.00000000",
        "s2.0.0.0.1.deadbeef.b",
        "s1.0.0.0.1.deadbeef",
        "0 1 2 3 4 5 6 7",
        "s1." * 1000,
        "é",
    ],
)
def test_other_texts_are_no_handles(text: str) -> None:
    with pytest.raises(ValueError, match="no receipt handle"):
        parse(text)


def test_a_changed_handle_is_none() -> None:
    text = Receipt(0, 1, 2, 3).to_text("broker-a")
    for place, letter in enumerate(text):
        other = "1" if letter != "1" else "2"
        with pytest.raises(ValueError, match="no receipt handle"):
            parse(text[:place] + other + text[place + 1 :])


async def test_retries_are_looked_at_first_by_one_of_five() -> None:
    rig = PopRig().start()
    rig.send_all(5)
    await rig.receive(invisible_ms=10_000)
    await rig.advance(11)
    rig.send_all(20)
    found = [(await rig.receive(count=1))[0] for _ in range(10)]
    assert [one.attempt for one in found].count(2) == 2


async def test_a_dead_letter_needs_no_receive() -> None:
    rig = PopRig().start(retry_max_times=0)
    rig.send(b"x")
    await rig.receive(invisible_ms=10_000)
    await rig.advance(10.2)
    assert [message.body for message in rig.stored(DEAD)] == [b"x"]
    assert RETRY not in rig.topics.table


async def test_a_copy_waits_for_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = PopRig().start()
    rig.send(b"x")
    await rig.receive(invisible_ms=10_000)
    steps: list[str] = []
    durable, put = moves.durable, rig.store.put_messages

    async def made(*tables: TableFile) -> None:
        steps.append("topic")
        await durable(*tables)

    def stored(*given: Any) -> None:
        steps.append("copy")
        put(*given)

    monkeypatch.setattr(moves, "durable", made)
    monkeypatch.setattr(rig.store, "put_messages", stored)
    await rig.advance(10.2)
    assert steps == ["topic", "copy"]


def test_a_pinned_mark_takes_no_room_for_what_is_done() -> None:
    queue = PopQueue(Source(PopGroup(GROUP), TOPIC, 0, TOPIC), 0, 0)
    for offset in range(10_000):
        queue.add(Delivery(queue, TOPIC, offset, offset, 1))
        if offset:
            assert not queue.remove(queue.in_flight[offset])
    assert queue.mark == 0
    assert len(getattr(queue, "_order")) < 200  # noqa: B009
    assert queue.remove(queue.in_flight[0])
    queue.next_offset = 10_000
    assert queue.mark == 10_000


@pytest.mark.usefixtures("_cold")
async def test_one_reads_of_a_queue_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = PopRig().start()
    rig.send_all(3)
    reads = 0
    read = rig.store.get_message_cold

    def counted(*given: Any) -> None:
        nonlocal reads
        reads += 1
        read(*given)

    monkeypatch.setattr(rig.store, "get_message_cold", counted)
    tasks = [rig.begin(from_min=True, wait_s=2) for _ in range(3)]
    await rig.rest()
    assert sorted(len(task.result()) for task in tasks if task.done()) == [3]
    assert reads == 1
    await rig.advance(2.1)


@pytest.mark.usefixtures("_cold")
@pytest.mark.parametrize("target", [0, 2])
async def test_a_reset_while_the_disk_is_read_wins(target: int) -> None:
    rig = PopRig().start()
    rig.send_all(3)
    task = rig.begin(from_min=True)
    await asyncio.sleep(0)
    rig.offsets.keep("admin", GROUP, TOPIC, 0, target)
    await rig.rest()
    assert [message_of(one).body for one in task.result()] == [b"0", b"1", b"2"][target:]


@pytest.mark.usefixtures("_cold")
async def test_who_parks_an_old_retry_wakes_who_waits_for_it() -> None:
    rig = PopRig().start()
    rig.topic("U", 1)
    rig.topic("%RETRY%G", 1)
    rig.send(b"U1", topic="%RETRY%G", properties=b"RETRY_TOPIC\x01U", reconsume_times=1)
    one = rig.begin(wait_s=2)
    await asyncio.sleep(0)
    other = rig.begin(topic="U")
    await rig.rest()
    assert [message_of(popped).body for popped in other.result()] == [b"U1"]
    one.cancel()


async def test_the_figures_of_a_group() -> None:
    rig = PopRig().start()
    rig.send_all(5)
    popped = await rig.receive(count=3, invisible_ms=10_000)
    await rig.ack(popped[0].receipt)
    rig.topic("U", 1)
    waits = rig.begin(topic="U")
    await rig.rest()
    found = {
        (metric.name, sample.labels.get("topic")): sample.value
        for metric in pop_families(rig.pop, 10, FamilyMaker({}))
        for sample in metric.samples
    }
    assert found == {
        ("skylarkmq_pop_in_flight_messages", TOPIC): 2,
        ("skylarkmq_pop_ready_messages", TOPIC): 2,
        ("skylarkmq_pop_waiting_receives", TOPIC): 0,
        ("skylarkmq_pop_redelivered_messages", TOPIC): 0,
        ("skylarkmq_pop_in_flight_messages", "U"): 0,
        ("skylarkmq_pop_ready_messages", "U"): 0,
        ("skylarkmq_pop_waiting_receives", "U"): 1,
        ("skylarkmq_pop_redelivered_messages", "U"): 0,
        ("skylarkmq_pop_moving_messages", None): 0,
    }
    waits.cancel()
    await rig.advance(11)
    (main, _) = rig.pop.registry.all()
    assert rig.pop.receiver.ready_of(main) == 4
    await rig.receive()
    assert (main.in_flight, main.redelivered, rig.pop.receiver.ready_of(main)) == (4, 2, 0)
    assert rig.stats.pulled_by(TOPIC, GROUP) == {0: 5}
    assert rig.pop.receiver.waiting("none", TOPIC) == 0


async def test_long_ids_are_refused_and_places_below_zero_are_none() -> None:
    rig = PopRig().start()
    rig.send(b"x")
    for changes in ({"attempt_id": "a" * 256}, {"client_id": "a" * 256}):
        with pytest.raises(RemoteProtocolError) as caught:
            await rig.pop.receiver.receive(rig.request(1, 0, **changes))
        assert caught.value.response_code == ResponseCode.MESSAGE_ILLEGAL
    (one,) = await rig.receive()
    assert not await rig.ack(one.receipt._replace(queue_id=-1))
    assert not await rig.ack(one.receipt._replace(offset=-1))
    assert not await rig.ack(one.receipt._replace(kind=7, queue_id=9))
    assert await rig.ack(one.receipt)


async def test_a_thousand_waiting_receives_cost_an_arrival_one_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = PopRig().start()
    tasks = [rig.begin(count=1) for _ in range(1000)]
    await rig.rest()
    looks = 0
    take = taking.Taker.take

    def counted(taker: taking.Taker, one: delivering.Take) -> None:
        nonlocal looks
        looks += 1
        take(taker, one)

    monkeypatch.setattr(taking.Taker, "take", counted)
    rig.send_all(3)
    await rig.rest()
    assert [task.done() for task in tasks[:4]] == [True, True, True, False]
    assert looks == 3
    for task in tasks:
        task.cancel()
    await rig.rest()
    assert rig.pop.receiver.waiting_count == 0
