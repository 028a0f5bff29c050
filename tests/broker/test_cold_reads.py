"""Pulls and queries of old messages over the wire: off the loop, one pull of a peer at a time."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.processor.pull import PullAnswers
from skylarkmq.broker.pulling.cold_pulls import ColdPulls, Finished
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.record import decode_messages
from skylarkmq.store.read.cold_reads import GotMessages
from tests.support.failing_files import ALWAYS, FailingFiles
from tests.support.fake_transport import Owner, Transport, connect
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, pull_fields, send_fields

SEND, PULL, SEARCH, EARLIEST, STATS = 310, 11, 29, 32, 202
COUNT = 60


@pytest.fixture
def disk() -> FailingFiles:
    return FailingFiles()


@pytest.fixture
async def broker(tmp_path: Path, disk: FailingFiles) -> AsyncIterator[BrokerController]:
    """A broker with a topic `T` of which it takes nothing to be in memory."""
    async with live_broker(tmp_path, files=disk, slave_read_enable=True) as controller:
        client = await RawClient.open(controller.listen_address)
        for number in range(COUNT):
            await client.call(SEND, send_fields("T"), b"%06d" % number)
        await client.close()
        controller.parts.store._reader._memory_span = 0
        yield controller


async def test_all_of_an_old_topic_is_pulled_eight_at_a_time(
    broker: BrokerController, client: RawClient
) -> None:
    found: list[int] = []
    while len(found) < COUNT:
        answer = await client.call(PULL, pull_fields("T", offset=len(found)))
        assert answer.code == 0
        messages = decode_messages(answer.body)
        assert len(messages) <= 8
        found += [int(message.body) for message in messages]
        assert answer.ext_fields["nextBeginOffset"] == str(len(found))
    assert found == list(range(COUNT))
    assert broker.parts.store.stats.cold_reads == -(-COUNT // 8)


async def test_a_slow_group_is_sent_to_the_broker_that_it_names(
    broker: BrokerController, client: RawClient
) -> None:
    answer = await client.call(PULL, pull_fields("T"))
    assert answer.ext_fields["suggestWhichBrokerId"] == "1"
    group = broker.parts.groups.find("cg")
    assert group is not None
    changed = msgspec.structs.replace(group, which_broker_when_consume_slowly=3, broker_id=2)
    broker.parts.groups.update(changed)
    answer = await client.call(PULL, pull_fields("T"))
    assert answer.ext_fields["suggestWhichBrokerId"] == "3"
    broker.parts.store._reader._memory_span = 1 << 30
    answer = await client.call(PULL, pull_fields("T"))
    assert answer.ext_fields["suggestWhichBrokerId"] == "2"


async def test_pulls_of_one_peer_take_turns_and_each_is_answered(
    broker: BrokerController, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, under_way, most = broker.parts.store, 0, 0
    get = store.get_message_cold

    def counted(
        topic: str, queue: int, offset: int, count: int, size: int | None, matches: object,
        done: GotMessages,
    ) -> None:  # fmt: skip
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)

        def finished(*answer: object) -> None:
            nonlocal under_way
            under_way -= 1
            done(*answer)  # type: ignore[arg-type]

        get(topic, queue, offset, count, size, None, finished)

    monkeypatch.setattr(store, "get_message_cold", counted)
    asked = [client.send(PULL, pull_fields("T", offset=offset)) for offset in range(40)]
    for offset, opaque in enumerate(asked):
        answer = await client.answer(opaque)
        assert int(decode_messages(answer.body)[0].body) == offset
    assert (most, under_way) == (1, 0)


async def test_a_disk_that_can_not_read_is_told_and_the_next_pull_tries_again(
    client: RawClient, disk: FailingFiles
) -> None:
    disk.fail("pread", path="commitlog", error=errno.EIO, times=ALWAYS)
    answer = await client.call(PULL, pull_fields("T"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "Input/output error" in (answer.remark or "")
    answer = await client.call(SEARCH, {"topic": "T", "queueId": "0", "timestamp": "5"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    disk.heal()
    assert (await client.call(PULL, pull_fields("T"))).code == 0


async def test_a_topic_that_goes_while_the_disk_is_asked(
    broker: BrokerController, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = broker.parts.store.get_message_cold

    def late(*arguments: Any) -> None:
        broker.parts.topics.delete("T")
        get(*arguments)

    monkeypatch.setattr(broker.parts.store, "get_message_cold", late)
    answer = await client.call(PULL, pull_fields("T"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_what_fails_behind_the_read_is_answered(
    broker: BrokerController, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> None:
        raise OSError("the queue can not be read")

    monkeypatch.setattr(PullAnswers, "send", unreadable)
    for _ in range(2):
        answer = await client.call(PULL, pull_fields("T"))
        assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_times_of_old_messages(broker: BrokerController, client: RawClient) -> None:
    store = broker.parts.store
    first, last = store.message_time("T", 0, 0), store.message_time("T", 0, COUNT - 1)
    where = {"topic": "T", "queueId": "0"}
    assert (await client.call(EARLIEST, where)).ext_fields == {"timestamp": str(first)}
    answer = await client.call(SEARCH, {**where, "timestamp": str(last + 10**6)})
    assert answer.ext_fields == {"offset": str(COUNT - 1)}
    stats = await client.call(STATS, {"topic": "T"})
    assert str(last).encode() in stats.body


def test_what_waits_of_a_peer_that_left_is_forgotten() -> None:
    line, started = ColdPulls(5, BrokerStats()), list[Finished]()
    connection, _ = connect(Owner(), Transport())
    other, _ = connect(Owner(), Transport())
    for _ in range(3):
        line.run(connection, started.append)
    line.run(other, started.append)
    assert (len(started), connection.parked, other.parked) == (2, 3, 1)
    assert (line.count, line.is_full) == (4, False)
    line.run(other, started.append)
    assert line.is_full
    started[0]()
    assert (len(started), connection.parked) == (3, 2)
    connection.closed = True
    started[2]()
    assert (len(started), connection.parked, line.count) == (3, 0, 2)
    started[1]()
    line.run(other, started.append)
    assert (len(started), line.count) == (4, 2)
