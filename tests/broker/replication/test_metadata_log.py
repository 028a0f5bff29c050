"""What a master writes of its tables, and what its followers have of it: all that was answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import ModuleType
from unittest.mock import Mock

import pytest

from skylarkmq.broker.processor.admin.topic import AdminTopicProcessor
from skylarkmq.broker.processor.send_checks import SendChecks
from skylarkmq.broker.replication.metadata import metadata_changes, metadata_queue
from skylarkmq.broker.topics.topic_deletion import RETRY_S
from skylarkmq.common.errors import StoreError
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import SYS_METADATA_TOPIC
from skylarkmq.protocol.headers.send import SendMessageRequestHeader
from skylarkmq.store.results import PutMessageResult, PutMessageStatus
from tests.broker.group_rig import FakeConnection, begin, request
from tests.broker.replication.metadata_rig import Replica, copy
from tests.store.support import confirm_alone
from tests.support.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def pair(clock: ManualClock) -> tuple[Replica, Replica]:
    """A master and an empty follower."""
    master, follower = Replica(clock), Replica(clock)
    master.start()
    follower.start()
    return await master.lead(), follower


@contextmanager
def refusing(replica: Replica) -> Iterator[None]:
    """Its machine lets no record be stored."""
    answer = PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, -1, why="no descriptor")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica.store.writer, "put_messages", lambda _, done: done([answer]))
        yield


async def test_a_broker_without_a_controller_writes_nothing(clock: ManualClock) -> None:
    broker = Replica(clock, broker_role="ASYNC_MASTER")
    broker.parts.store.load()
    broker.parts.load_tables()
    broker.store.start()
    broker.topic("T")
    broker.commit("cg", "T", 0, 0)
    await broker.advance(20)
    assert broker.store.commit_log.wrote_offset == 0
    assert not broker.records()


async def test_a_follower_has_the_tables_of_its_master(clock: ManualClock) -> None:
    master, follower = await pair(clock)
    master.topic("T")
    master.topic("Old")
    master.group("cg", retry_max_times=3)
    master.group("gone")
    await master.rest()
    for number in range(5):
        master.put("T", 1, b"%d" % number)
    master.commit("cg", "T", 1, 3)
    master.parts.topics.delete("Old")
    master.parts.groups.delete("gone")
    await master.advance(6)
    copy(master, follower)
    await follower.rest()
    assert follower.tables() == master.tables()
    assert "T" in follower.parts.topics.table
    assert "Old" not in follower.parts.topics.table
    assert follower.parts.offsets.query("cg", "T", 1) == 3
    assert follower.parts.groups.table["cg"].retry_max_times == 3


async def test_an_answered_change_is_in_the_log(clock: ManualClock) -> None:
    master, follower = await pair(clock)
    master.topic("T")
    answered = asyncio.ensure_future(master.parts.topics.durable())
    for _ in range(10):
        await asyncio.sleep(0)
    copy(master, follower)
    assert "T" in follower.parts.topics.table
    await master.rest()
    assert answered.done()


async def test_changes_of_one_turn_are_one_record(clock: ManualClock) -> None:
    master, _ = await pair(clock)
    before = len(master.records())
    for number in range(50):
        master.topic(f"T{number}")
        master.group(f"g{number}")
    await master.rest()
    records = master.records()[before:]
    assert len(records) == 1
    assert len(records[0].rows) == 100


async def test_offsets_go_at_their_interval_and_with_a_deletion(clock: ManualClock) -> None:
    master, _ = await pair(clock)
    master.topic("T")
    for number in range(9):
        master.put("T", 0, b"%d" % number)
    await master.advance(10)
    before = len(master.records())

    def told() -> list[str]:
        rows = [row for record in master.records()[before:] for row in record.rows]
        return [row.table for row in rows if row.table in ("offsets", "topics")]

    for number in range(1, 9):
        master.commit("cg", "T", 0, number)
        master.topic(f"T{number}")
        await master.advance(0.5)
    assert told() == ["topics"] * 8
    await master.advance(2)
    assert told() == ["topics"] * 8 + ["offsets"]
    master.commit("cg", "T", 0, 2)
    deleting = master.parts.deletion.delete("T")
    await master.rest()
    assert await deleting is None
    assert told()[9:] == ["topics", "offsets"]


async def test_a_record_that_was_refused_is_owed(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, follower = await pair(clock)
    await master.advance(2)
    put = master.store.writer.put_messages
    refused: list[int] = []

    def refuse(inners: object, done: object) -> None:
        refused.append(1)
        master.store.state, state = type(master.store.state).STOPPING, master.store.state
        master.store.put_messages(inners, done)  # type: ignore[arg-type]
        master.store.state = state

    monkeypatch.setattr(master.store.writer, "put_messages", refuse)
    master.topic("T")
    answered = asyncio.ensure_future(master.parts.topics.durable())
    await master.rest()
    assert refused
    with pytest.raises(Exception, match="SERVICE_NOT_AVAILABLE"):
        await answered
    flushed = asyncio.ensure_future(master.parts.topics.flush())
    await master.rest()
    await flushed  # a stop goes on
    monkeypatch.setattr(master.store.writer, "put_messages", put)
    await master.advance(2)
    copy(master, follower)
    assert "T" in follower.parts.topics.table
    again = asyncio.ensure_future(master.parts.topics.durable())
    await master.rest()
    await again


@pytest.mark.parametrize(
    ("module", "broken"),
    [(metadata_changes, "encode_value"), (metadata_queue, "encode_metadata")],
)
async def test_what_an_error_keeps_from_the_log_is_owed(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, module: ModuleType, broken: str
) -> None:
    """It was forgotten, and who waited for it waited for ever."""
    master, follower = await pair(clock)
    await master.advance(2)
    with monkeypatch.context() as patch:
        patch.setattr(module, broken, Mock(side_effect=ValueError("cannot be encoded")))
        master.topic("T")
        master.group("cg")
        answered = asyncio.ensure_future(master.parts.topics.durable())
        await master.rest()
        with pytest.raises(StoreError, match="cannot be encoded"):
            await answered
        await master.advance(2)
    await master.advance(2)
    copy(master, follower)
    assert "T" in follower.parts.topics.table and "cg" in follower.parts.groups.table
    again = asyncio.ensure_future(master.parts.topics.durable())
    await master.rest()
    await again


async def test_an_error_at_the_store_is_an_outcome(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, follower = await pair(clock)
    await master.advance(2)
    with monkeypatch.context() as patch:
        patch.setattr(master.store.writer, "put_messages", Mock(side_effect=RuntimeError("hm")))
        master.topic("T")
        await master.rest()
    await master.advance(2)
    copy(master, follower)
    assert "T" in follower.parts.topics.table


async def test_a_removal_whose_record_was_refused_is_owed(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a follower keeps the queues, and gives the new topic's messages no place in them."""
    master, follower = await pair(clock)
    master.topic("T")
    master.put("T", 0, b"old")
    await master.advance(2)
    copy(master, follower)
    journal = master.parts.metadata._changes
    removed = journal.removed

    def refused(topic: str, end_offset: int) -> None:
        with refusing(master):
            removed(topic, end_offset)

    monkeypatch.setattr(journal, "removed", refused)
    deleting = master.parts.deletion.delete("T")
    await master.rest()
    await deleting
    await master.advance(10)
    master.topic("T")
    master.put("T", 0, b"new")
    await master.advance(2)
    copy(master, follower)
    await follower.rest()
    assert follower.bodies("T") == master.bodies("T") == [b"new"]


async def test_a_deletion_that_the_others_could_not_be_told_goes_on(clock: ManualClock) -> None:
    """The topic was gone, and could not be made again before somebody deleted it once more."""
    master, follower = await pair(clock)
    master.topic("T")
    master.put("T", 0, b"old")
    await master.advance(2)
    with refusing(master):
        deleting = master.parts.deletion.delete("T")
        await master.rest()
        assert "no descriptor" in str(await deleting)
    await master.advance(RETRY_S + 1)
    assert "T" not in master.parts.topics.deleting
    copy(master, follower)
    await follower.rest()
    assert master.bodies("T") == follower.bodies("T") == []


async def test_behind_a_gate_a_change_that_is_not_confirmed_is_no_success(
    clock: ManualClock,
) -> None:
    master = Replica(clock)
    master.store.gate()
    master.start()
    end = confirm_alone(master.store)
    await master.lead()
    end()
    master.topic("T")
    answered = asyncio.ensure_future(master.parts.topics.durable())
    await master.advance(2)
    assert not answered.done()
    await master.advance(2)
    with pytest.raises(Exception, match="not all replicas in sync have confirmed"):
        await answered
    confirm_alone(master.store)
    await master.advance(2)
    again = asyncio.ensure_future(master.parts.topics.durable())
    await master.rest()
    await again


async def test_a_replica_that_starts_anew_folds_from_the_last_snapshot(clock: ManualClock) -> None:
    master, follower = await pair(clock)
    for number in range(200):
        master.topic(f"T{number}", queues=1 + number % 8)
        master.group(f"g{number}")
        await master.rest()
    for number in range(100):
        master.put(f"T{number}", 0, b"x" * 20_000)  # over several files
        master.commit(f"g{number}", f"T{number}", 0, 1)
        await master.advance(0.25)
    await master.advance(10)
    assert sum(record.is_last for record in master.records()) > 2
    copy(master, follower)
    await follower.rest()
    again = Replica(clock, await follower.stop())
    folded = again.start()
    assert folded.is_whole
    assert folded.term == 1
    assert folded.cut_to is None
    assert again.tables() == master.tables()


async def test_the_topic_is_no_clients_topic(clock: ManualClock) -> None:
    master, _ = await pair(clock)
    assert SYS_METADATA_TOPIC not in master.parts.topics.table
    assert not master.parts.deletion.unknown_topics()
    admin = AdminTopicProcessor(
        master.parts.context, master.parts.deletion, master.parts.deduplication
    )
    fields = {
        "topic": SYS_METADATA_TOPIC, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG",
    }  # fmt: skip
    for code in (RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_TOPIC_IN_BROKER):
        answer = begin(admin, FakeConnection(), request(code, fields))
        assert answer.code != 0
        assert "system topic" in answer.remark
    checks = SendChecks(master.parts.config, master.parts.topics, master.parts.groups, Random(1))
    header = SendMessageRequestHeader(
        producer_group="pg", topic=SYS_METADATA_TOPIC, default_topic="TBW102",
        default_topic_queue_nums=4, queue_id=0, sys_flag=0, born_timestamp=0, flag=0,
    )  # fmt: skip
    with pytest.raises(RemoteProtocolError, match="forbidden"):
        checks.target(header, "192.0.2.1:1")


async def test_a_key_that_was_not_kept_has_its_old_value_after_a_cut(clock: ManualClock) -> None:
    master, follower = await pair(clock)
    live = master.parts.live_config
    before = master.parts.config.max_topics
    # It is in force here, and deposed before its record is written.
    setting = asyncio.ensure_future(live.update({"maxTopics": "77"}))
    assert master.parts.config.max_topics == 77
    master.parts.metadata.stop_as_master()
    await master.rest()
    await setting
    assert master.parts.metadata.fold().is_whole
    assert master.parts.config.max_topics == before
    assert live.kept == follower.parts.live_config.kept == {}
