"""Deleting topics: what goes, what is answered when, and what a crash leaves."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from skylarkmq.broker.broker_metrics import removal_families
from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.broker.processor.admin.topic import AdminTopicProcessor
from skylarkmq.broker.processor.send import SendProcessor
from skylarkmq.broker.pulling.long_polling import HeldPull, PullRequestHoldService
from skylarkmq.broker.topics.deduplication import DeduplicationService
from skylarkmq.broker.topics.topic_deletion import RETRY_S, TopicDeletion
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.record import decode_messages
from tests.broker.group_rig import FakeConnection, GroupRig, ask, begin, request
from tests.support.crash_disk import CrashDisk
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, pull_fields, send_fields
from tests.support.workers import rest


class Rig(GroupRig):
    def __init__(self, files: CrashDisk | None = None) -> None:
        super().__init__(
            files, broker_cluster_name="C1", broker_name="broker-a", enable_property_filter=True
        )
        self.holding = PullRequestHoldService(self.store, self.clock, long_polling=True)
        self.deletion = TopicDeletion(
            self.store, self.topics, self.offsets, self.holding, self.clock
        )
        deduplication = DeduplicationService(self.config, self.store, self.topics, self.clock)
        self.processor = AdminTopicProcessor(self.context, self.deletion, deduplication)

    def start(self) -> Rig:
        super().start()
        self.deletion.load()
        self.deletion.start()
        return self

    def delete(self, topic: str = "T") -> Any:
        return begin(self.processor, FakeConnection(), request(215, {"topic": topic}))

    async def deleted(self, topic: str = "T") -> Any:
        return await ask(self, self.processor, FakeConnection(), request(215, {"topic": topic}))

    async def fill(self, topic: str = "T", count: int = 5) -> None:
        self.topic(topic)
        for number in range(count):
            self.put(topic, 0, f"{topic}-{number}".encode())
        self.offsets.commit("peer", "cg", topic, 0, count)
        await rest(self.workers)

    def table(self, name: str) -> dict[str, Any]:
        table: dict[str, Any] = json.loads(self.files.read_all(self.store.paths.config / name))
        return table


@pytest.fixture
async def rig() -> Rig:
    return Rig().start()


async def test_everything_of_a_topic_goes_before_the_answer(rig: Rig) -> None:
    await rig.fill()
    await rig.fill("U")
    waiting = rig.delete()
    assert rig.topics.get("T") is None
    assert rig.store.max_offset("T", 0) == 0
    assert rig.offsets.query("cg", "T", 0) == -1
    await asyncio.sleep(0)
    assert not waiting.done()
    await rest(rig.workers)
    assert (await waiting).code == 0
    assert "T" not in rig.table("topics.json")["topicConfigTable"]
    assert list(rig.table("consumerOffset.json")["offsetTable"]) == ["U@cg"]
    assert not [path for path in rig.files.contents() if "/T/" in path]
    assert rig.store.max_offset("U", 0) == 5


async def test_held_pulls_are_answered(rig: Rig) -> None:
    await rig.fill()
    woken: list[str] = []
    for topic in ("T", "U"):
        connection: Any = FakeConnection()
        held = HeldPull(
            connection, topic, 0, 5, None, 1e9, lambda *_, name=topic: woken.append(name)
        )
        assert rig.holding.hold(held)
    await rig.deleted()
    assert woken == ["T"]
    assert rig.holding.count == 1


async def test_the_topic_can_not_be_made_before_the_end(rig: Rig) -> None:
    await rig.fill()
    waiting = rig.delete()
    with pytest.raises(RemoteProtocolError, match="being deleted"):
        rig.topics.create_in_send("T", "TBW102", 4, "peer")
    with pytest.raises(RemoteProtocolError, match="being deleted"):
        rig.topic("T")
    await rest(rig.workers)
    await waiting
    rig.topic("T")
    rig.put("T", 0, b"new")
    assert rig.store.max_offset("T", 0) == 1


async def test_figures_of_what_is_left(rig: Rig) -> None:
    def seen() -> dict[str, float]:
        families = removal_families(rig.store.removal, FamilyMaker({}))
        return {s.labels["left"]: s.value for family in families for s in family.samples}

    await rig.fill()
    assert seen() == {"log": 0, "all": 0}
    waiting = rig.delete()
    assert seen() == {"log": 1, "all": 1}
    await rest(rig.workers)
    await waiting
    assert seen() == {"log": 1, "all": 0}


async def test_two_who_delete_at_once_get_one_deletion(rig: Rig) -> None:
    await rig.fill()
    first, second = rig.delete(), rig.delete()
    await rest(rig.workers)
    assert [(await first).code, (await second).code] == [0, 0]
    assert not rig.topics.deleting


async def test_a_topic_that_nobody_knows_is_no_error_and_leaves_no_trace(rig: Rig) -> None:
    rig.offsets.persisted(lambda error: None)
    await rest(rig.workers)
    before = rig.files.calls["rename"]
    version = rig.topics.data_version
    assert (await rig.deleted("nobody")).code == 0
    assert rig.files.calls["rename"] == before
    assert rig.topics.data_version == version
    assert not rig.topics.deleting
    assert not rig.store.queues.held


async def test_what_the_store_still_has_of_a_lost_topic_goes(rig: Rig) -> None:
    await rig.fill()
    del rig.topics.table["T"]
    assert (await rig.deleted()).code == 0
    assert not [path for path in rig.files.contents() if "/T/" in path]


@pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "C1", "broker-a", "rmq_sys_x"])
async def test_system_topics_stay(rig: Rig, name: str) -> None:
    answer = await rig.deleted(name)
    assert (answer.code, answer.remark) == (1, f"The topic[{name}] is conflict with system topic.")


@pytest.mark.parametrize("name", ["", "..", "a/b", "a" * 128])
async def test_what_can_be_no_topic_is_refused(rig: Rig, name: str) -> None:
    assert (await rig.deleted(name)).code == 1


async def test_a_full_disk_is_told_and_deleting_again_helps(rig: Rig) -> None:
    await rig.fill()
    rig.files.fail("rename", error=errno.ENOSPC, path="topics.json")
    answer = await rig.deleted()
    assert answer.code == 14
    assert "delete it again" in (answer.remark or "")
    assert rig.topics.get("T") is None
    assert (await rig.deleted()).code == 0
    assert not rig.topics.deleting
    rig.topic("T")


@pytest.mark.parametrize("path", ["topics.json", "removed-topics"])
async def test_what_a_full_disk_refused_is_done_when_there_is_room(rig: Rig, path: str) -> None:
    await rig.fill()
    rig.files.fail("pwrite", times=3, error=errno.ENOSPC, path=path)
    assert (await rig.deleted()).code == 14
    rig.put("T", 0, b"by a service that does not ask")
    for _ in range(5):
        rig.clock.advance(RETRY_S)
        await rest(rig.workers)
    assert not rig.topics.deleting
    assert not rig.store.queues.held
    assert "T" not in rig.table("topics.json")["topicConfigTable"]
    assert rig.store.max_offset("T", 0) == 1


async def test_over_the_wire(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        assert broker.namesrv_address is not None
        client = await RawClient.open(broker.listen_address)
        names = await RawClient.open(broker.namesrv_address)
        keyed = send_fields("T", 0, "KEYS\x01k1\x02")
        for body in (b"0", b"1"):
            assert (await client.call(310, keyed, body)).code == 0
        held = client.send(11, pull_fields("T", offset=2, sysFlag="6"))
        await client.call(30, {"topic": "T", "queueId": "0"})
        assert broker.parts.holding.count == 1
        assert (await names.call(105, {"topic": "T"})).code == 0
        assert (await client.call(215, {"topic": "T"})).code == 0
        assert (await client.answer(held)).code == 17
        assert (await names.call(105, {"topic": "T"})).code == 17
        assert (await client.call(11, pull_fields("T"))).code == 17
        answer = await client.call(310, keyed, b"new")
        assert (answer.code, answer.ext_fields["queueOffset"]) == (0, "0")
        assert (await names.call(105, {"topic": "T"})).code == 0
        query = {"topic": "T", "key": "k1", "maxNum": "9", "beginTimestamp": "0"}
        found = await client.call(12, {**query, "endTimestamp": str(1 << 62)})
        assert [message.body for message in decode_messages(found.body)] == [b"new"]
        await client.close()
        await names.close()


async def test_crash_at_each_step() -> None:
    rig = Rig().start()
    await rig.fill()
    await rig.fill("U")
    rig.offsets.persisted(lambda error: None)
    rig.clock.advance(1)
    await rest(rig.workers)
    done = asyncio.Event()
    moments: list[tuple[CrashDisk, bool]] = []

    def before_step(op: str, path: Path) -> None:
        moments.append((rig.files.snapshot(), done.is_set()))

    rig.files.before_step = before_step
    waiting = rig.delete()
    waiting.add_done_callback(lambda _: done.set())
    for _ in range(20):
        await asyncio.sleep(0)
        await rest(rig.workers)
    assert done.is_set()
    rig.topic("V")
    await rest(rig.workers)
    rig.files.before_step = None
    assert any(is_acked for _, is_acked in moments)
    rng = Random(7)
    seen: set[tuple[bool, bool, bool]] = set()
    for disk, is_acked in moments:
        for state in rng.sample(disk.crash_states(rng, 10), 2):
            seen.add(await _check_crashed(disk.crash(state, rng), is_acked))
    # All or nothing, but for the moment in which nothing of the store has gone yet.
    assert seen == {(True, True, True), (False, False, False)}


async def _check_crashed(disk: CrashDisk, is_acked: bool) -> tuple[bool, bool, bool]:
    rig = Rig(disk).start()
    await rest(rig.workers)
    assert rig.store.max_offset("U", 0) == 5
    assert rig.topics.get("U") is not None
    found = (
        rig.topics.get("T") is not None,
        rig.store.max_offset("T", 0) == 5,
        rig.offsets.query("cg", "T", 0) == 5,
    )
    assert not is_acked or not any(found)
    if not found[0]:
        rig.topic("T")
        result = rig.put("T", 0, b"new")
        assert result is not None
        assert result.queue_offset == 0
    return found


async def test_a_deleted_topic_leaves_nothing_in_memory_nor_in_metrics(tmp_path: Path) -> None:
    """Else every topic is counted as `__other__` after so many were ever made."""
    async with live_broker(tmp_path) as broker:
        stats, topics = broker.parts.stats, [f"passing{number}" for number in range(6)]
        stats.series_limit = 3
        client = await RawClient.open(broker.listen_address)
        for topic in topics:
            assert (await client.call(310, send_fields(topic), b"x")).code == 0
            assert (await client.call(11, pull_fields(topic))).code == 0
            assert (topic, "normal") in stats.topics_in
            broker.parts.windows.sample()
            assert (await client.call(215, {"topic": topic})).code == 0
        assert stats.topics_in == stats.topics_out == {}
        assert not any(stats.series_dropped.values())
        assert broker.parts.traffic.now().transferred == len(topics), "the sum stays"
        broker.parts.windows.sample()
        assert broker.parts.windows.per_second(topics[0], "g") == 0
        await client.close()
        senders = [each for each in gc.get_objects() if isinstance(each, SendProcessor)]
        assert senders
        assert not {topic for each in senders for topic, _ in each._lanes} & set(topics)
