"""Messages that clients of RocketMQ 5 send: as they are stored, and what is answered."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from typing import Any

import pytest

from skylarkmq.broker.grpc import sending
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.message_id import offset_message_id
from skylarkmq.protocol.topic_attributes import DeduplicationWindow
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from skylarkmq.protocol.v5.schema_pb2 import SendMessageRequest
from skylarkmq.store.results import TAKEN, PutMessageStatus
from tests.broker.grpc.sending_rig import (
    ID,
    PEER,
    TOPIC,
    TRANSACTION_ID,
    SendingRig,
    half,
    message,
    sending_rig,
)
from tests.store.support import HOST
from tests.support.manual_clock import settle

OK = (Code.OK, "OK")
WHEEL = "rmq_sys_wheel_timer"


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def flush(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def rig_with_topic(kind: str = "MIXED", queues: int = 4, **config: Any) -> SendingRig:
    rig = await sending_rig(**config)
    rig.add_topic(kind=kind, queues=queues)
    return rig


async def test_a_message_is_stored_with_all_that_it_says(flush: str) -> None:
    rig = await rig_with_topic(flush_disk_type=flush)
    entry = await rig.send_one(
        message(
            b"\x00body",
            tag="red",
            keys=["k1", "k2"],
            properties={"colour": "grün", "n": "1"},
            born_ms=1_234_567_890_123,
            born_host="host-1",
            trace_context="00-abc",
            queue_id=3,
        )
    )
    assert (entry.message_id, entry.transaction_id, entry.offset) == (ID, TRANSACTION_ID, 0)
    assert (entry.status.code, entry.status.message, entry.recall_handle) == (*OK, "")
    (stored,) = rig.all_seen()
    assert (stored.body, stored.sys_flag, stored.flag, stored.queue_id) == (b"\x00body", 0, 0, 0)
    assert stored.born_timestamp == 1_234_567_890_123
    assert (str(stored.born_host), stored.store_host.pack()) == (PEER, HOST)
    assert stored.properties == {
        "colour": "grün", "n": "1", "TAGS": "red", "KEYS": "k1 k2", "UNIQ_KEY": ID,
        "__BORNHOST": "host-1", "TRACE_CONTEXT": "00-abc", "CLUSTER": "DefaultCluster",
    }  # fmt: skip
    (unit,) = rig.store.queue_units(TOPIC, 0, 0, 1)
    assert unit.tags_code == 112785  # Java's "red".hashCode()
    assert rig.counts.topic_in(TOPIC).count == 1


async def test_the_id_of_a_client_of_rocketmq_4_passes_unchanged() -> None:
    rig = await rig_with_topic()
    old = offset_message_id(HOST, 17)
    assert (await rig.send_one(message(message_id=old))).message_id == old


async def test_a_message_without_a_time_is_born_now() -> None:
    rig = await rig_with_topic()
    await rig.send_one(message())
    await rig.send_one(message(born_ms=1 << 50))
    assert [stored.born_timestamp for stored in rig.all_seen()] == [rig.clock.now_ms()] * 2


async def test_messages_without_a_group_go_round_the_queues() -> None:
    rig = await rig_with_topic(queues=3)
    for number in range(7):
        await rig.send_one(message(b"%d" % number))
    queues = [[found.body for found in rig.seen(TOPIC, at)] for at in range(3)]
    assert queues == [[b"0", b"3", b"6"], [b"1", b"4"], [b"2", b"5"]]


async def test_messages_of_a_group_stay_in_its_queue_whatever_the_client_says() -> None:
    rig = await rig_with_topic(kind="FIFO", queues=8)
    for number in range(20):
        await rig.send_one(message(b"%d" % number, message_group="g1", queue_id=number % 8))
    (queue_id,) = {found.queue_id for found in rig.all_seen()}
    assert [found.body for found in rig.seen(TOPIC, queue_id)] == [b"%d" % n for n in range(20)]
    assert {found.properties["__SHARDINGKEY"] for found in rig.all_seen()} == {"g1"}


async def test_sends_of_one_turn_share_a_commit() -> None:
    rig = await rig_with_topic()
    commits = rig.store.stats.append_duration.counts
    before = sum(commits)
    tasks = [
        rig.begin("SendMessage", SendMessageRequest(messages=[message(b"%d" % number)]))
        for number in range(50)
    ]
    await rig.work()
    assert {task.result().status.code for task in tasks} == {Code.OK}
    assert sum(commits) == before + 1
    assert len(rig.all_seen()) == 50


async def test_an_answer_waits_for_the_sync() -> None:
    rig = await rig_with_topic(flush_disk_type="SYNC_FLUSH")
    task = rig.begin("SendMessage", SendMessageRequest(messages=[message()]))
    await settle(20)
    assert not task.done() and rig.all_seen() == []
    await rig.work()
    assert task.result().status.code == Code.OK


async def test_a_client_that_gives_up_leaves_the_message() -> None:
    rig = await rig_with_topic(flush_disk_type="SYNC_FLUSH")
    task = rig.begin("SendMessage", SendMessageRequest(messages=[half()]))
    await settle(20)
    task.cancel()
    await rig.work()
    assert task.cancelled()
    assert await rig.end_key() == OK
    assert [found.body for found in rig.all_seen()] == [b"body"]


# A delivery time


async def test_a_message_is_delivered_at_its_time_and_not_before(flush: str) -> None:
    rig = await rig_with_topic(kind="DELAY", flush_disk_type=flush)
    due_ms = rig.clock.now_ms() + 7_000
    entry = await rig.send_one(message(deliver_ms=due_ms))
    assert entry.recall_handle and entry.offset == 0
    assert len(rig.seen(WHEEL, 0)) == 1
    await rig.advance(6.5)
    assert rig.all_seen() == []
    await rig.advance(2)
    (delivered,) = rig.all_seen()
    assert (delivered.body, delivered.properties["UNIQ_KEY"]) == (b"body", ID)
    assert rig.counts.topic_in(TOPIC, "delay").count == 1


async def test_any_time_will_do_that_the_timer_keeps() -> None:
    rig = await rig_with_topic(kind="DELAY")
    now_ms = rig.clock.now_ms()
    assert (await rig.send_one(message(deliver_ms=now_ms + 259_200_000))).recall_handle
    code, why = await rig.refused(message(deliver_ms=now_ms + 259_202_000))
    assert code == Code.ILLEGAL_DELIVERY_TIME and "timerMaxDelaySec" in why


@pytest.mark.parametrize("ago_ms", [0, 1, 10_000_000, 1 << 60])
async def test_a_time_that_is_over_means_now(ago_ms: int) -> None:
    rig = await rig_with_topic(kind="DELAY")
    due_ms = rig.clock.now_ms() - ago_ms
    entry = await rig.send_one(message(deliver_ms=due_ms))
    assert [found.body for found in rig.all_seen()] == [b"body"]
    assert entry.recall_handle == ""


async def test_without_timers_a_delivery_time_is_refused_with_the_key_that_is_off() -> None:
    rig = await rig_with_topic(timer_wheel_enable=False)
    code, why = await rig.refused(message(deliver_ms=rig.clock.now_ms() + 5000))
    assert code == Code.NOT_IMPLEMENTED and "timerWheelEnable" in why


# Types


@pytest.mark.parametrize("kind", ["NORMAL", "FIFO", "DELAY", "TRANSACTION"])
async def test_a_topic_of_one_type_takes_no_other(kind: str) -> None:
    rig = await rig_with_topic(kind=kind)
    sent = {
        "NORMAL": message(),
        "FIFO": message(message_group="g"),
        "DELAY": message(message_group="g", deliver_ms=rig.clock.now_ms() + 5000),
        "TRANSACTION": half(),
    }
    await rig.send_one(sent.pop(kind))
    for other in sent.values():
        code, why = await rig.refused(other)
        assert code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert f"takes {kind}" in why and "message.type" in why


@pytest.mark.parametrize("attributes", [{}, {"message.type": "MIXED"}])
async def test_a_topic_that_says_no_type_takes_all(attributes: dict[str, str]) -> None:
    rig = await sending_rig()
    rig.topics.update(TopicConfig(topic_name=TOPIC, attributes=attributes))
    rig.workers.run_all()
    due_ms = rig.clock.now_ms() + 5000
    for sent in (message(), message(message_group="g"), message(deliver_ms=due_ms), half()):
        await rig.send_one(sent)


@pytest.mark.parametrize("kind", [schema_pb2.FIFO, schema_pb2.DELAY, 99])
async def test_a_type_that_the_message_does_not_bear_out_is_normal(kind: int) -> None:
    rig = await rig_with_topic(kind="NORMAL")
    await rig.send_one(message(message_type=kind))


async def test_a_priority_is_the_queue() -> None:
    rig = await rig_with_topic(kind="PRIORITY", queues=4)
    for priority in (3, 9, 0, 2**31 - 1):
        await rig.send_one(message(priority=priority))
    ends = [rig.store.max_offset(TOPIC, queue_id) for queue_id in range(4)]
    assert ends == [1, 0, 0, 3]


async def test_half_a_transaction_cannot_wait_as_well() -> None:
    rig = await rig_with_topic()
    code, why = await rig.refused(half(deliver_ms=rig.clock.now_ms() + 5000))
    assert code == Code.BAD_REQUEST and "cannot be delayed" in why


# Several messages


async def test_each_of_several_messages_has_an_answer_of_its_own(flush: str) -> None:
    rig = await rig_with_topic(flush_disk_type=flush, queues=1)
    due_ms = rig.clock.now_ms() + 5000
    answer = await rig.send_all(
        [
            message(b"0", message_id="m0"),
            half(b"1", message_id="m1"),
            message(b"2", message_id="m2", deliver_ms=due_ms),
            message(b"3", message_id="m3"),
        ]
    )
    assert answer.status.code == Code.OK
    assert [entry.message_id for entry in answer.entries] == ["m0", "m1", "m2", "m3"]
    assert [entry.offset for entry in answer.entries] == [0, 0, 0, 1]
    assert [bool(entry.recall_handle) for entry in answer.entries] == [False, False, True, False]
    assert [found.body for found in rig.all_seen()] == [b"0", b"3"]


async def test_what_is_wrong_with_one_message_refuses_all() -> None:
    rig = await rig_with_topic()
    assert (await rig.refused(message(), message(b"")))[0] == Code.MESSAGE_BODY_EMPTY
    assert (await rig.refused(message(), message(topic="other")))[0] == Code.MESSAGE_CORRUPTED
    assert (await rig.refused())[0] == Code.MESSAGE_CORRUPTED


async def test_a_message_that_the_store_refuses_has_its_own_status() -> None:
    rig = await rig_with_topic(queues=1)
    due_ms = rig.clock.now_ms() + 5000
    answer = await rig.send_all([message(message_id="m0"), half(deliver_ms=due_ms), message()])
    assert answer.status.code == Code.MULTIPLE_RESULTS
    codes = [entry.status.code for entry in answer.entries]
    assert codes == [Code.OK, Code.BAD_REQUEST, Code.OK]
    assert len(rig.all_seen()) == 2


async def test_a_request_has_a_bounded_number_of_messages(monkeypatch: Any) -> None:
    monkeypatch.setattr(sending, "MESSAGES_MAX", 3)
    rig = await rig_with_topic()
    assert (await rig.refused(*[message()] * 4))[0] == Code.PAYLOAD_TOO_LARGE
    assert len((await rig.send_all([message()] * 3)).entries) == 3


# What the store says


@pytest.mark.parametrize(
    ("put", "code"),
    [
        (PutMessageStatus.FLUSH_DISK_TIMEOUT, Code.MASTER_PERSISTENCE_TIMEOUT),
        (PutMessageStatus.FLUSH_SLAVE_TIMEOUT, Code.SLAVE_PERSISTENCE_TIMEOUT),
        (PutMessageStatus.SLAVE_NOT_AVAILABLE, Code.HA_NOT_AVAILABLE),
        (PutMessageStatus.UNCONFIRMED, Code.INTERNAL_SERVER_ERROR),
        (PutMessageStatus.SERVICE_NOT_AVAILABLE, Code.INTERNAL_SERVER_ERROR),
    ],
)
async def test_what_has_come_of_a_message_is_its_status(
    put: PutMessageStatus, code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await rig_with_topic()
    commit = rig.store.commit

    def told(done: Any, written: Any = None) -> bool:
        return commit(lambda _: done(put), written)

    monkeypatch.setattr(rig.store, "commit", told)
    answer = await rig.send_all([message()])
    (entry,) = answer.entries
    assert (answer.status.code, entry.status.code) == (code, code)
    is_stored = put in TAKEN
    assert entry.message_id == (ID if is_stored else "")
    assert ("is stored, but" in entry.status.message) is is_stored


async def test_a_failed_disk_is_an_answer() -> None:
    rig = await rig_with_topic()
    rig.store.fail(OSError(5, "the disk is gone"))
    code, why = await rig.refused(message())
    assert code == Code.INTERNAL_SERVER_ERROR and "the disk is gone" in why


async def test_a_disk_that_cannot_keep_up_slows_clients_down() -> None:
    rig = await rig_with_topic(flush_disk_type="SYNC_FLUSH", send_thread_pool_queue_capacity=2)
    waiting = [rig.begin("SendMessage", SendMessageRequest(messages=[message()])) for _ in range(2)]
    await settle(20)
    late = rig.begin("SendMessage", SendMessageRequest(messages=[message()]))
    await settle(20)
    assert late.result().status.code == Code.TOO_MANY_REQUESTS
    assert "2 sends wait for the disk" in late.result().status.message
    await rig.work()
    assert [task.result().status.code for task in waiting] == [Code.OK] * 2
    await rig.send_one(message())


# Topics


async def test_topics_that_are_none_are_refused() -> None:
    rig = await sending_rig()
    assert await rig.refused(message()) == (
        Code.TOPIC_NOT_FOUND,
        f"topic {TOPIC} does not exist: make it first",
    )
    for name in ("", "a b", "TBW102", WHEEL, "RMQ_SYS_TRANS_HALF_TOPIC", "x" * 128, "a/b"):
        assert (await rig.refused(message(topic=name)))[0] == Code.ILLEGAL_TOPIC, name
    assert TOPIC not in rig.topics.table


@pytest.mark.parametrize(("queues", "perm", "broker"), [(4, 4, 6), (0, 6, 6), (4, 6, 4)])
async def test_a_topic_without_a_writable_queue_is_forbidden(
    queues: int, perm: int, broker: int
) -> None:
    rig = await sending_rig(broker_permission=broker)
    rig.add_topic(queues=queues, perm=perm)
    assert (await rig.refused(message()))[0] == Code.FORBIDDEN


async def test_a_namespace_makes_no_difference() -> None:
    rig = await rig_with_topic()
    sent = message()
    sent.topic.resource_namespace = "NS1"
    await rig.send_all([sent, message()])
    assert len(rig.all_seen()) == 2


async def test_a_message_that_is_stored_already_is_not_stored_again() -> None:
    rig = await sending_rig()
    rig.add_topic(queues=4)
    rig.store.deduplication.want(TOPIC, DeduplicationWindow(60))
    first = await rig.send_one(message())
    second = await rig.send_one(message(b"again"))
    assert (first.offset, second.offset) == (0, 0)
    assert [found.body for found in rig.all_seen()] == [b"body"]
    await rig.send_one(message(b"other", message_id="other"))
    assert len(rig.all_seen()) == 2


# Bodies


@pytest.mark.parametrize("size", [100, 32_768])
async def test_gzip_is_opened_so_that_consumers_of_4_can_read_it(size: int) -> None:
    rig = await rig_with_topic()
    await rig.send_one(message(gzip.compress(b"x" * size), body_encoding=schema_pb2.GZIP))
    (stored,) = rig.all_seen()
    assert (stored.body, stored.sys_flag) == (b"x" * size, 0)


async def test_zlib_stays_as_it_is() -> None:
    rig = await rig_with_topic()
    body = zlib.compress(b"x" * 100)
    await rig.send_one(message(body, body_encoding=schema_pb2.GZIP))
    (stored,) = rig.all_seen()
    assert (stored.body, stored.sys_flag) == (body, 1)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"plain", Code.MESSAGE_CORRUPTED),
        (b"\x1f\x8bxxxx", Code.MESSAGE_CORRUPTED),
        (gzip.compress(b"x" * 1000, mtime=0)[:-9], Code.MESSAGE_CORRUPTED),
        (gzip.compress(b"", mtime=0), Code.MESSAGE_BODY_EMPTY),
        (gzip.compress(b"\0" * (32_769), mtime=0), Code.MESSAGE_BODY_TOO_LARGE),
    ],
)
async def test_a_body_that_is_not_what_it_says_is_refused(body: bytes, code: Code) -> None:
    rig = await rig_with_topic()
    assert (await rig.refused(message(body, body_encoding=schema_pb2.GZIP)))[0] == code


async def test_a_body_that_claims_gigabytes_takes_no_memory() -> None:
    rig = await rig_with_topic()
    bomb = message(gzip.compress(b"\0" * (32 << 20)), body_encoding=schema_pb2.GZIP)
    assert len(bomb.body) < 40_000
    tracemalloc.start()
    try:
        assert (await rig.refused(bomb))[0] in {Code.MESSAGE_BODY_TOO_LARGE}
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_peer_without_an_address_has_none() -> None:
    assert sending.packed_host("nobody") == sending.packed_host("") == sending.NO_HOST
    assert sending.packed_host("::1:80") == sending.packed_host("[::1]:80")
