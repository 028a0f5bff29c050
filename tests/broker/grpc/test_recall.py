"""Messages that are taken back before their time."""

from __future__ import annotations

import base64
import random
from typing import Any

import pytest

from skylarkmq.broker.processor.recall import parse_handle, recall_handle
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from tests.broker.grpc.sending_rig import ID, TOPIC, SendingRig, message, sending_rig
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import settle

BROKER = "broker-a"


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def flush(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def rig_with_topic(
    files: CrashDisk | None = None, kind: str = "DELAY", **config: Any
) -> SendingRig:
    rig = await sending_rig(files, **config)
    if TOPIC not in rig.topics.table:
        rig.add_topic(kind=kind)
    return rig


async def waiting(rig: SendingRig, seconds: float = 10, message_id: str = ID) -> str:
    """Send a message that waits, and return its handle."""
    due_ms = rig.clock.now_ms() + round(seconds * 1000)
    entry = await rig.send_one(
        message(message_id.encode(), message_id=message_id, deliver_ms=due_ms)
    )
    return entry.recall_handle


def bodies(rig: SendingRig) -> list[bytes]:
    return [found.body for found in rig.all_seen()]


async def test_a_handle_names_what_rocketmqs_does() -> None:
    rig = await rig_with_topic()
    handle = await waiting(rig)
    text = base64.urlsafe_b64decode(handle).decode()
    assert text == f"v1 {TOPIC} {BROKER} {rig.clock.now_ms() + 10_000} {ID}"


@pytest.mark.parametrize("kind", ["DELAY", "MIXED"])
async def test_a_recalled_message_is_not_delivered_and_others_are(kind: str, flush: str) -> None:
    rig = await rig_with_topic(kind=kind, flush_disk_type=flush)
    handle = await waiting(rig, 10.25)
    await waiting(rig, 10.25, "other")
    answer = await rig.recall(handle)
    assert (answer.status.code, answer.status.message, answer.message_id) == (20000, "OK", ID)
    await rig.advance(15)
    assert bodies(rig) == [b"other"]
    assert rig.timer.messages.cancelled_count == 1


async def test_a_message_can_be_recalled_at_the_last_moment() -> None:
    rig = await rig_with_topic()
    handle = await waiting(rig, 5)
    rig.clock.advance(4.999)
    assert (await rig.recall(handle)).status.code == Code.OK
    await rig.advance(3)
    assert bodies(rig) == []


@pytest.mark.parametrize("clean", [True, False])
async def test_a_start_does_not_bring_a_recalled_message_back(flush: str, *, clean: bool) -> None:
    rig = await rig_with_topic(flush_disk_type=flush)
    before = await waiting(rig)
    await waiting(rig, message_id="other")
    if clean:
        assert (await rig.recall(before)).status.code == Code.OK
        await rig.stop_all()
    else:
        assert (await rig.recall(before)).status.code == Code.OK
    files = rig.files if clean else rig.files.snapshot()
    again = await rig_with_topic(files, flush_disk_type=flush)
    await again.advance(15)
    assert bodies(again) == [b"other"]


@pytest.mark.parametrize("seed", range(5))
async def test_after_a_power_cut_what_was_acknowledged_stands(seed: int) -> None:
    rng = random.Random(seed)
    rig = await rig_with_topic(flush_disk_type="SYNC_FLUSH")
    handles = [await waiting(rig, 10 + number, f"id {number}") for number in range(6)]
    recalled = rng.sample(range(6), 3)
    for number in recalled:
        request = schema_pb2.RecallMessageRequest(
            topic={"name": TOPIC}, recall_handle=handles[number]
        )
        task = rig.begin("RecallMessage", request)
        await settle(20)
        while not task.done():
            rig.workers.run_all()
            await settle(20)
        assert task.result().status.code == Code.OK
    disk = rig.files.snapshot()  # no more was done than what the answers waited for
    kept = sorted(b"id %d" % number for number in range(6) if number not in recalled)
    for state in disk.crash_states(rng, 2):
        again = await rig_with_topic(disk.crash(state, rng), flush_disk_type="SYNC_FLUSH")
        again.clock.step_wall(3)
        await again.advance(20)
        assert sorted(bodies(again)) == kept


async def test_a_message_of_an_earlier_life_can_be_recalled(flush: str) -> None:
    rig = await rig_with_topic(flush_disk_type=flush)
    handle = await waiting(rig)
    await rig.stop_all()
    again = await rig_with_topic(rig.files, flush_disk_type=flush)
    assert (await again.recall(handle)).status.code == Code.OK
    await again.advance(15)
    assert bodies(again) == []


async def test_a_recall_is_answered_when_it_is_durable() -> None:
    rig = await rig_with_topic(flush_disk_type="SYNC_FLUSH")
    handle = await waiting(rig)
    request = schema_pb2.RecallMessageRequest(topic={"name": TOPIC}, recall_handle=handle)
    task = rig.begin("RecallMessage", request)
    await settle(20)
    assert not task.done()
    await rig.work()
    assert task.result().status.code == Code.OK


async def test_a_recall_may_be_repeated_and_is_no_message_of_the_topic() -> None:
    rig = await rig_with_topic()
    handle = await waiting(rig)
    counted = rig.counts.topic_in(TOPIC, "delay").count
    for _ in range(3):
        assert (await rig.recall(handle)).status.code == Code.OK
    await rig.advance(15)
    assert bodies(rig) == []
    assert rig.counts.topic_in(TOPIC, "delay").count == counted


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


NONSENSE = [
    "",
    "nonsense",
    "a",
    "====",
    "\0",
    "日本",
    "x" * 100_000,
    encoded("v1"),
    encoded(f"v2 {TOPIC} {BROKER} 9999999999999 {ID}"),
    encoded(f"v1 {TOPIC} {BROKER} soon {ID}"),
    encoded(f"v1 {TOPIC} {BROKER} -1 {ID}"),
    encoded(f"v1 {TOPIC} {BROKER} ²²²²²²²²²²²²² {ID}"),
    encoded(f"v1 {TOPIC} {BROKER} {'9' * 400} {ID}"),
    encoded(f"v1 {TOPIC} {BROKER} 9999999999999"),
    encoded(f"v1 {TOPIC} {BROKER} 9999999999999  "),
    encoded(f"v1 {TOPIC} {BROKER} 9999999999999 a\x02TRAN_MSG\x01true"),
    base64.urlsafe_b64encode(b"v1 \xff \xff 1 x").decode(),
]


@pytest.mark.parametrize("handle", NONSENSE, ids=range(len(NONSENSE)))
async def test_what_is_no_handle_is_refused(handle: str) -> None:
    rig = await rig_with_topic()
    before = rig.store.commit_log.wrote_offset
    answer = await rig.recall(handle)
    assert (answer.status.code, answer.message_id) == (Code.BAD_REQUEST, "")
    assert "handle" in answer.status.message and len(answer.status.message) < 200
    assert rig.store.commit_log.wrote_offset == before


async def test_a_handle_counts_for_its_topic_its_broker_and_its_time() -> None:
    rig = await rig_with_topic()
    rig.add_topic("others")
    handle = await waiting(rig)
    now_ms = rig.clock.now_ms()
    for wrong, topic, why in (
        (handle, "others", "another topic"),
        (recall_handle(TOPIC, "broker-b", now_ms + 5000, ID), TOPIC, "another broker"),
        (recall_handle(TOPIC, BROKER, now_ms, ID), TOPIC, "recalled any more"),
        (recall_handle(TOPIC, BROKER, now_ms + 260_000_000, ID), TOPIC, "timerMaxDelaySec"),
    ):
        answer = await rig.recall(wrong, topic)
        assert answer.status.code == Code.BAD_REQUEST and why in answer.status.message
    await rig.advance(15)
    assert bodies(rig) == [ID.encode()]
    answer = await rig.recall(handle)
    assert answer.status.code == Code.BAD_REQUEST and "is over" in answer.status.message


@pytest.mark.parametrize("kind", ["NORMAL", "FIFO", "TRANSACTION"])
async def test_only_topics_of_delayed_messages_have_something_to_recall(kind: str) -> None:
    rig = await rig_with_topic(kind=kind)
    handle = recall_handle(TOPIC, BROKER, rig.clock.now_ms() + 5000, ID)
    code = (await rig.recall(handle)).status.code
    assert code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert (await rig.recall(handle, "missing")).status.code == Code.TOPIC_NOT_FOUND
    assert (await rig.recall(handle, "rmq_sys_wheel_timer")).status.code == Code.ILLEGAL_TOPIC


async def test_without_timers_and_with_a_failed_disk_the_cause_is_told() -> None:
    rig = await rig_with_topic(timer_wheel_enable=False)
    handle = recall_handle(TOPIC, BROKER, rig.clock.now_ms() + 5000, ID)
    answer = await rig.recall(handle)
    assert answer.status.code == Code.NOT_IMPLEMENTED
    assert "timerWheelEnable" in answer.status.message
    rig = await rig_with_topic()
    rig.store.fail(OSError(5, "the disk is gone"))
    answer = await rig.recall(handle)
    assert answer.status.code == Code.INTERNAL_SERVER_ERROR
    assert "the disk is gone" in answer.status.message


def test_an_id_with_blanks_comes_back_whole() -> None:
    handle = recall_handle(TOPIC, BROKER, 17, "a b c")
    assert parse_handle(handle) == (TOPIC, BROKER, 17, "a b c")
