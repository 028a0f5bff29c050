"""Topics with a deduplication window: a message of the same unique key is stored once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.metrics.deduplication_families import deduplication_families
from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.protocol.batch import BatchItem, encode_batch
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.message import Message
from skylarkmq.protocol.message_id import decode_offset_message_id
from tests.broker.deduplication.rig import (
    BATCH,
    KEYS,
    SECONDS,
    SEND,
    TOPIC,
    bodies,
    count,
    fields_of,
    hits,
    make_topic,
    open_client,
    place,
    send,
    window,
)
from tests.support.live_broker import live_broker
from tests.support.manual_clock import ManualClock
from tests.support.patience import until
from tests.support.raw_client import RawClient, send_fields

WRITE_MODES: list[dict[str, Any]] = [
    {},
    {"flush_disk_type": "SYNC_FLUSH"},
    {"transient_store_pool_enable": True, "transient_store_pool_size": 2},
]
each_write_mode = pytest.mark.parametrize(
    "broker", WRITE_MODES, ids=["async", "sync", "pool"], indirect=True
)


@pytest.fixture
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BrokerController]:
    async with live_broker(tmp_path, **getattr(request, "param", {})) as controller:
        yield controller


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[RawClient]:
    peer = await open_client(broker)
    yield peer
    await peer.close()


@each_write_mode
async def test_a_second_copy_is_answered_with_the_place_of_the_first(
    broker: BrokerController, client: RawClient
) -> None:
    await send(client, "other", b"other", 1)
    first = place(await send(client, "K1", b"first", 1))
    assert place(await send(client, "K1", b"second", 3)) == first
    assert place(await send(client, "K1", b"third", 1, WAIT="false")) == first
    assert place(await send(client, "K2", b"fourth", 1)) != first
    assert await bodies(client, broker, 1) == [b"other", b"first", b"fourth"]
    assert count(broker, 3) == 0
    assert hits(broker) == 2


@each_write_mode
@pytest.mark.parametrize("kind", list(SerializeType))
async def test_copies_that_come_in_one_read_are_stored_once(
    broker: BrokerController, client: RawClient, kind: SerializeType
) -> None:
    full = fields_of("K") | {"unknown": "field"}
    opaques = [
        client.send(SEND, full if number % 3 == 2 else fields_of("K"), b"%d" % number,
                    serialize_type=kind)
        for number in range(7)
    ]  # fmt: skip
    answers = [await client.answer(opaque) for opaque in opaques]
    assert len({place(answer) for answer in answers}) == 1
    assert await bodies(client, broker) == [b"0"]


async def test_a_key_is_any_text_and_a_message_without_one_is_always_stored(
    broker: BrokerController, client: RawClient
) -> None:
    for key in ("a", "A", "ä" * 300, "0" * 32, "order 7/2"):
        assert place(await send(client, key)) == place(await send(client, key))
    for _ in range(2):
        await client.call(SEND, send_fields(TOPIC), b"none")
        await client.call(SEND, send_fields(TOPIC, 0, "MY_UNIQ_KEY\x01a"), b"none")
    assert count(broker) == 5 + 4


async def test_topics_know_their_own_keys_alone(
    broker: BrokerController, client: RawClient
) -> None:
    await make_topic(client, "other")
    for topic in (TOPIC, "other", "plain", TOPIC, "other", "plain"):
        await client.call(SEND, fields_of("K", topic=topic), b"x")
    assert [count(broker, topic=topic) for topic in (TOPIC, "other", "plain")] == [1, 1, 2]


async def test_a_copy_that_says_so_is_stored_again(
    broker: BrokerController, client: RawClient
) -> None:
    first = place(await send(client, "K"))
    assert place(await send(client, "K", STORE_AGAIN="true")) != first
    assert place(await send(client, "K")) == first
    assert count(broker) == 2


@each_write_mode
async def test_one_way_copies_are_left_out(broker: BrokerController, client: RawClient) -> None:
    client.send(SEND, fields_of("K"), b"1", oneway=True)
    client.send(SEND, fields_of("K"), b"2", oneway=True)
    place(await send(client, "K", b"3"))
    assert await bodies(client, broker) == [b"1"]


async def test_sends_to_topics_with_and_without_a_window_in_one_read(
    broker: BrokerController, client: RawClient
) -> None:
    for _ in range(2):  # the second time all queues have lanes
        opaques: list[int] = []
        for number in range(12):
            topic = (TOPIC, "plain")[number // 2 % 2]
            fields = fields_of(f"{number % 8}", topic=topic)
            opaques.append(client.send(SEND, fields, b"%d" % number))
        await client.answer(opaques[-1])
    assert await bodies(client, broker) == [b"0", b"1", b"4", b"5"]
    assert count(broker, topic="plain") == 12


# Batches


def batch(*keys: str) -> bytes:
    messages = [(Message(TOPIC, key.encode()), key) for key in keys]
    return encode_batch([BatchItem.of(message, {"UNIQ_KEY": key}) for message, key in messages])


async def test_a_batch_that_comes_again_is_answered_as_the_first_time(
    broker: BrokerController, client: RawClient
) -> None:
    body = batch("a", "b", "c")
    first = place(await client.call(BATCH, send_fields(TOPIC, 1, m="true"), body))
    assert place(await client.call(BATCH, send_fields(TOPIC, 2, m="true"), body)) == first
    assert first[0] == "1"
    assert len(first[2].split(",")) == 3
    assert (count(broker, 1), count(broker, 2)) == (3, 0)


@each_write_mode
async def test_of_a_batch_that_is_partly_stored_the_rest_is_stored(
    broker: BrokerController, client: RawClient
) -> None:
    known = place(await send(client, "b", b"b", 3))
    answer = await client.call(BATCH, send_fields(TOPIC, 1, m="true"), batch("a", "b", "c", "a"))
    queue_id, queue_offset, ids = place(answer)
    assert (queue_id, queue_offset) == ("1", "-1")
    a, b, c, again = ids.split(",")
    assert (b, again) == (known[2], a)
    assert await bodies(client, broker, 1) == [b"a", b"c"]
    for key, msg_id in (("a", a), ("c", c)):
        assert place(await send(client, key, b"more"))[2] == msg_id
        _, offset = decode_offset_message_id(msg_id)
        message = await until(partial(broker.parts.store.look_message, offset))
        assert message is not None
        assert message.unique_key == key


@pytest.mark.parametrize("kind", list(SerializeType))
async def test_a_batch_whose_messages_do_not_follow_each_other_has_no_queue_offset(
    broker: BrokerController, client: RawClient, kind: SerializeType
) -> None:
    place(await send(client, "a", b"a", 3))
    fields = send_fields(TOPIC, 1, m="true")
    answer = await client.call(BATCH, fields, batch("a", "b"), serialize_type=kind)
    assert place(answer)[:2] == ("3", "-1")
    assert await bodies(client, broker, 1) == [b"b"]
    again = await client.call(BATCH, fields, batch("b"), serialize_type=kind)
    assert place(again)[:2] == ("1", "0")


# Changes of a topic


async def test_a_window_begins_when_the_topic_gets_it_and_ends_when_it_loses_it(
    broker: BrokerController, client: RawClient
) -> None:
    await make_topic(client, attributes=f"-{SECONDS},-{KEYS}")
    old = place(await send(client, "old"))
    assert place(await send(client, "old")) != old
    await make_topic(client)
    again = place(await send(client, "old"))
    assert again[1] == "2"
    assert place(await send(client, "old")) == again
    await make_topic(client, attributes=f"-{SECONDS},-{KEYS}")
    assert place(await send(client, "old")) != again


async def test_a_change_that_does_not_speak_of_the_window_leaves_it(
    broker: BrokerController, client: RawClient
) -> None:
    first = place(await send(client, "K"))
    for attributes in ("", "+message.type=NORMAL"):
        answer = await make_topic(client, perm="6", readQueueNums="8", attributes=attributes)
        assert answer.code == ResponseCode.SUCCESS
        assert place(await send(client, "K")) == first
    config = broker.parts.topics.table[TOPIC]
    assert config.attributes_map == {SECONDS: "60", KEYS: "1000", "message.type": "NORMAL"}
    assert config.read_queue_nums == 8


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        (f"+{SECONDS}=5", "has both"),
        (window(0), "out of range"),
        (window(keys=10**8), "out of range"),
        (f"+{SECONDS}=x,+{KEYS}=5", "out of range"),
        (f"{SECONDS}=5", "write +name=value"),
        ("+queue.type=BatchCQ", "unsupported attribute 'queue.type'"),
        (window(keys=1_000_000), "maxDeduplicationKeys=1000000"),
    ],
)
async def test_what_is_no_window_is_refused(client: RawClient, attributes: str, why: str) -> None:
    answer = await make_topic(client, "other", attributes=attributes)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert why in (answer.remark or "")


async def test_retry_topics_have_no_window(client: RawClient) -> None:
    answer = await make_topic(client, "%RETRY%g")
    assert "cannot have a deduplication window" in (answer.remark or "")


async def test_a_deleted_topic_forgets_its_keys(
    broker: BrokerController, client: RawClient
) -> None:
    await send(client, "K")
    await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    assert broker.parts.store.deduplication.windows == {}
    await make_topic(client)
    assert place(await send(client, "K"))[1] == "0"
    assert hits(broker) == 0


# Messages that come to their topic later


async def test_a_delayed_message_counts_when_it_is_delivered(tmp_path: Path) -> None:
    clock = ManualClock()
    async with live_broker(tmp_path, clock=clock, message_delay_level="1s 2s") as broker:
        client = await open_client(broker)
        parked = [place(await send(client, "K", b"later", DELAY="1")) for _ in range(2)]
        assert parked[0] != parked[1]
        now = place(await send(client, "L", b"now"))
        await send(client, "L", b"too late", DELAY="1")
        store = broker.parts.store
        await until(lambda: store.max_offset("SCHEDULE_TOPIC_XXXX", 0) == 3)
        for _ in range(100):
            if broker.parts.schedule.waiting_count == 0:
                break
            clock.advance(0.1)
            await until(lambda: True)
        await until(lambda: broker.parts.schedule.waiting_count == 0)
        assert await bodies(client, broker) == [b"now", b"later"]
        assert now[1] == "0"
        await client.close()


@each_write_mode
async def test_a_transaction_counts_when_it_is_committed(
    broker: BrokerController, client: RawClient
) -> None:
    async def half(body: bytes) -> dict[str, str]:
        fields = fields_of("K", 1, TRAN_MSG="true", PGROUP="g") | {"f": "4", "a": "g"}
        answer = await client.call(SEND, fields, body)
        _, offset = decode_offset_message_id(place(answer)[2])
        return {
            "producerGroup": "g", "tranStateTableOffset": answer.ext_fields["queueOffset"],
            "commitLogOffset": str(offset), "fromTransactionCheck": "false", "msgId": "K",
        }  # fmt: skip

    halves = [await half(body) for body in (b"rolled back", b"first", b"second")]
    for fields, decision in zip(halves, ("12", "8", "8"), strict=True):
        answer = await client.call(
            RequestCode.END_TRANSACTION, {**fields, "commitOrRollback": decision}
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert await bodies(client, broker, 1) == [b"first"]
    assert broker.parts.transactions.pending_count == 0
    await send(client, "K", b"third", 1)
    assert count(broker, 1) == 1


# Time, number and metrics


async def test_after_the_window_a_copy_is_stored(tmp_path: Path) -> None:
    clock = ManualClock()
    async with live_broker(tmp_path, clock=clock) as broker:
        client = await open_client(broker, window(seconds=10))
        first = place(await send(client, "K"))
        clock.advance(9.9)
        assert place(await send(client, "K")) == first
        clock.advance(0.1)
        second = place(await send(client, "K"))
        assert second != first
        assert place(await send(client, "K")) == second
        await client.close()


async def test_the_oldest_key_is_forgotten_when_there_are_too_many(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        client = await open_client(broker, window(keys=2))
        places = [place(await send(client, key)) for key in "abc"]
        assert place(await send(client, "b")) == places[1]
        assert place(await send(client, "a")) != places[0]
        known = broker.parts.store.deduplication.windows[TOPIC]
        assert (known.count, known.evictions) == (2, 2)
        await client.close()


async def test_the_metrics_tell_of_hits_keys_and_early_ends(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        client = await open_client(broker, window(seconds=60, keys=2))
        for key in "aabbbcc":
            await send(client, key)
        families = deduplication_families(broker.parts.store.deduplication.windows, FamilyMaker({}))
        found = {
            sample.name.removeprefix("skylarkmq_deduplication_"): sample.value
            for family in families
            for sample in family.samples
            if sample.labels == {"topic": TOPIC}
        }
        assert found.pop("bytes") > 2 * 96
        assert found == {
            "hits_total": 4, "evictions_total": 1, "keys": 2, "keys_limit": 2, "window_seconds": 60,
        }  # fmt: skip
        await client.close()
