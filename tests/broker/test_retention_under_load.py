"""Fault test S15: log files are removed under load, and under readers of the oldest messages.

A reader gets right bytes, or is told where to go on; what is still in the log is never passed over.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylarkmq.broker.controller import BrokerController
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.message_id import decode_offset_message_id
from skylarkmq.protocol.record import decode_messages
from skylarkmq.store.upkeep.queue_cleaner import QueueCleaner
from tests.support.amounts import slow
from tests.support.live_broker import live_broker
from tests.support.patience import LIMIT_S, is_slow_disk, until
from tests.support.raw_client import RawClient, pull_fields, send_fields

pytestmark = pytest.mark.timing

SEND, PULL = 310, 11
FILE_SIZE = 1 << 19
BODY_SIZE = 20_000


class Reader:
    """Reads queue 0 of `T` from its first message on, again and again from the oldest."""

    def __init__(self, client: RawClient, controller: BrokerController) -> None:
        self._client = client
        self._store = controller.parts.store
        self.places: list[int] = []  # where each message is in the log, by its queue offset
        self.offset = 0
        self.read_count = 0
        self.moved_count = 0

    async def pull(self) -> None:
        """One pull, and what it must be."""
        first = self._store.min_offset("T", 0)
        answer = await self._client.call(PULL, pull_fields("T", offset=self.offset, sysFlag="4"))
        following = int(answer.ext_fields["nextBeginOffset"])
        if answer.code == ResponseCode.SUCCESS:
            messages = decode_messages(answer.body)  # checksums included
            numbers = [int(message.body[:8]) for message in messages]
            assert numbers == [message.queue_offset for message in messages]
            start = numbers[0]
            assert numbers == list(range(start, start + len(numbers)))
            if start != self.offset:
                gone = self.places[start - 1]
                left = self._store.commit_log.min_offset
                assert gone < left, "what is still there was left out"
            self.read_count += len(numbers)
        elif answer.code == ResponseCode.PULL_OFFSET_MOVED:
            assert first <= following <= self._store.min_offset("T", 0)
            self.moved_count += 1
        else:
            assert answer.code in (
                ResponseCode.PULL_NOT_FOUND,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
            ), answer.remark
        self.offset = following


async def _send(client: RawClient, number: int, places: list[int]) -> None:
    body = b"%08d" % number + bytes(BODY_SIZE)
    answer = await client.call(SEND, send_fields("T"), body)
    while is_slow_disk(answer.remark):
        answer = await client.call(SEND, send_fields("T"), body)
    assert (answer.code, answer.ext_fields["queueOffset"]) == (0, str(number)), answer.remark
    places.append(decode_offset_message_id(answer.ext_fields["msgId"])[1])


async def _rounds(root: Path, count: int, *, cold: bool, follows: bool = True) -> tuple[int, int]:
    """Send, read and remove; how many messages were read, how often the reader was moved."""
    sizes = {"mapped_file_size_commit_log": FILE_SIZE, "max_message_size": 1 << 16}
    rules = {
        "file_reserved_time": 0,
        "delete_when": "0;1;2;3;4;5;6;7;8;9;10;11;12;13;14;15;16;17;18;19;20;21;22;23",
        "flush_interval_consume_queue": 20,
        "flush_consume_queue_thorough_interval": 50,
        "delete_commit_log_files_interval": 0,
        "flush_consume_queue_least_pages": 0,
    }
    async with live_broker(root, **sizes, **rules) as controller:
        store = controller.parts.store
        if cold:
            store._reader._memory_span = 0
        sender = await RawClient.open(controller.listen_address)
        client = await RawClient.open(controller.listen_address)
        reader, number = Reader(client, controller), 0

        def first_left() -> int:
            return store.commit_log.min_offset

        for _ in range(count):
            removed = store.stats.log_files_deleted
            async with asyncio.timeout(LIMIT_S):
                while store.stats.log_files_deleted == removed:
                    store.cleaning.clean_now()
                    for _ in range(10):
                        await asyncio.gather(_send(sender, number, reader.places), reader.pull())
                        number += 1
                if follows:  # a moment later; only then is the reader's place gone
                    await until(lambda: reader.places[store.min_offset("T", 0)] >= first_left())
                reader.offset = max(0, store.min_offset("T", 0) - 3)
        for opened in (sender, client):
            await opened.close()
    return reader.read_count, reader.moved_count


@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
@pytest.mark.parametrize("rounds", [slow(3), pytest.param(25, marks=pytest.mark.fault)])
async def test_readers_of_the_oldest_get_right_bytes_or_are_moved(
    tmp_path: Path, rounds: int, cold: bool
) -> None:
    read, moved = await _rounds(tmp_path, rounds, cold=cold)
    assert read > 10 * rounds
    assert moved >= rounds - 1


@pytest.mark.slow
async def test_a_queue_that_does_not_follow_its_log_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QueueCleaner, "expire", lambda self, log_min_offset: None)
    with pytest.raises((AssertionError, TimeoutError)):
        _, moved = await _rounds(tmp_path, 3, cold=False, follows=False)
        assert moved >= 2
