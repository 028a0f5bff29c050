"""Verdicts: what ends a transaction by its producer, and where the half message of one is found.

By its place (37), or by topic and unique key, as clients of RocketMQ 5's gRPC protocol name it. The
half message of a key is looked for

    in `HalfKeys`              those that this broker has stored since its start, and those that
                               were open then; a verdict that is repeated is known there, too
    in the key index           where the table had no room, or the transaction ended before a start
    among all that are open    where the index is switched off or not whole, one search at a time

A check that has stored a half message anew, or a start, does not matter to that.

Unlike RocketMQ, whose proxy knows the place of a half message for 30 s, and forgets it when it is
started again. There an answer does not say that the end is stored.
Source: apache/rocketmq@rocketmq-all-5.3.3
proxy/.../service/transaction/AbstractTransactionService.java, proxy/.../ProducerProcessor.java
"""

from __future__ import annotations

import asyncio
from typing import Final

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.base.waiting import records, result_of
from skylarkmq.broker.delay.delayed_message import Parked, ParkedReader, Place
from skylarkmq.broker.transaction.ledger import End, TransactionLedger
from skylarkmq.broker.transaction.messages import (
    HALF_TOPIC,
    QUEUE_ID,
    final_of,
    first_offset_of,
    keyed_by,
    topic_of,
)
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.flags import MessageSysFlag, transaction_type
from skylarkmq.protocol.properties import UNIQ_KEY, find_property
from skylarkmq.protocol.record import RecordStatus, RecordView, read_record
from skylarkmq.store.index.service import IndexAnswer
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.results import STORED, PutMessageResult

SEARCHES_MAX: Final = 64
"""Verdicts that may wait for a search among all that is open."""
_FOREVER_MS: Final = (1 << 63) - 1
_UNIQUE: Final = UNIQ_KEY.encode() + b"\x01"


class UnknownTransactionError(RemoteProtocolError):
    """No transaction is open by that key, or it has ended the other way."""

    def __init__(self, why: str) -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, why)


class Verdicts:
    """Ends transactions as their producers want. Loop thread."""

    def __init__(
        self, store: MessageStore, ledger: TransactionLedger, clock: Clock, counts: BrokerStats
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._clock = clock
        self._counts = counts
        self._reader = ParkedReader(store.commit_log, HALF_TOPIC, QUEUE_ID)
        self._ending: dict[tuple[str, str], asyncio.Event] = {}  # by topic and key
        self._search = asyncio.Lock()
        self._searches = 0

    # By place

    async def end(self, place: Place, half: Parked, *, commits: bool) -> PutMessageResult | None:
        """End the transaction of a half message; None when there was nothing to store.

        Args:
            place: where the half message was read, now or before a check stored it again.

        Raises:
            RemoteProtocolError: it has ended already, or cannot be published.
            OSError: the disk has failed.
        """
        ledger = self._ledger
        first = first_offset_of(half, place.queue_offset)
        offset = await ledger.place_of(place.queue_offset, first)
        late = first in ledger.given_up
        if ledger.table.is_ended(offset) and not late:
            raise _refused(
                f"the transaction at {place.queue_offset} has ended already, or its "
                "producer is asked about it anew"
            )
        try:
            follows = final_of(half, place.physical_offset) if commits else None
        except ValueError as error:
            raise _refused(f"the half message cannot be published: {error}") from error
        if late:
            del ledger.given_up[first]  # before anything else can happen: one verdict is enough
        if late and not commits:
            result = None
        else:
            (result,) = await ledger.end([End(offset, first, follows, half.store_host)])
            if late and result.status not in STORED:
                ledger.given_up[first] = None
        if result is None or result.status in STORED:
            self._count(half, commits=commits)
        return result

    def _count(self, half: Parked, *, commits: bool) -> None:
        stats, ends = self._ledger.stats, self._counts.transactions_of(topic_of(half))
        if commits:
            stats.committed += 1
            ends.committed += 1
            age_ms = max(0, self._clock.now_ms() - half.born_timestamp)
            ends.finish_s.observe(age_ms // 1000)
        else:
            stats.rolled_back += 1
            ends.rolled_back += 1

    # By key

    async def end_key(self, topic: str, key: str, *, commits: bool) -> PutMessageResult | None:
        """End the transactions of a unique key; None when they have ended so already.

        Of several half messages one is published, the one stored last. The others are rolled back
        before, so that a crash in between shows none twice.

        Raises:
            UnknownTransactionError: none is open, and that it has ended so is not known.
            RemoteProtocolError: as `end`, or too many searches wait.
            OSError: the disk has failed.
        """
        ledger, name = self._ledger, (topic, key)
        await ledger.ready()
        while (other := self._ending.get(name)) is not None:
            await other.wait()
        self._ending[name] = asyncio.Event()
        try:
            return await self._end_key(topic, key, commits=commits)
        except RemoteProtocolError:
            ledger.stats.refused += 1
            raise
        finally:
            self._ending.pop(name).set()

    async def _end_key(self, topic: str, key: str, *, commits: bool) -> PutMessageResult | None:
        keys = self._ledger.keys
        verdict = keys.verdict(topic, key)
        found = [] if verdict is not None else await self._find(topic, key)
        if not found:
            if verdict is None:
                verdict = await self._former_verdict(topic, key)
            if verdict is commits:
                return None
            raise UnknownTransactionError(_why_unknown(key, verdict))
        result: PutMessageResult | None = None
        for number, (place, half) in enumerate(found, 1):
            is_last = number == len(found)
            result = await self.end(place, half, commits=commits and is_last)
            if result is not None and result.status not in STORED:
                return result
        keys.note_end(topic, key, committed=commits)
        return result

    async def _find(self, topic: str, key: str) -> list[tuple[Place, Parked]]:
        """Return the open half messages of a key, the one stored last at the end."""
        keys = self._ledger.keys
        found = await self._open_ones(topic, key, [(at, at) for at in keys.find(topic, key)])
        if found or keys.is_whole:
            return found
        answer = await self._ask_index(HALF_TOPIC, key)
        found = await self._open_ones(topic, key, await self._indexed(topic, key, answer))
        if found or not answer.missing:
            return found
        return await self._search_open(topic, key)

    async def _open_ones(
        self, topic: str, key: str, offsets: list[tuple[int, int]]
    ) -> list[tuple[Place, Parked]]:
        """Return those half messages of a key that are open, each where it is now.

        Args:
            offsets: pairs of queue offsets: where one was stored first, where it was seen.
        """
        ledger, found = self._ledger, list[tuple[Place, Parked]]()
        for first, seen in sorted({*offsets}):
            await ledger.visible(first)
            offset = await ledger.place_of(seen, first)
            if ledger.table.is_ended(offset) and first not in ledger.given_up:
                continue
            place = ledger.halves.place(offset)
            if place is None:
                continue
            (read,) = await ledger.halves.read([place])
            if read.message is None:
                raise _refused(f"the half message at {offset} cannot be read now: {read.why}")
            if keyed_by(read.message) == (topic, key):
                found.append((place, read.message))
        return found

    async def _indexed(self, topic: str, key: str, answer: IndexAnswer) -> list[tuple[int, int]]:
        """Return the half messages of a key that the index has, as `_open_ones` takes them."""
        newest: dict[int, int] = {}
        for record, view in await self._read(answer):
            place = Place(view.physical_offset, view.size, view.queue_offset)
            try:
                half = self._reader.parse(record, place)
            except ValueError:
                continue  # of another topic
            if keyed_by(half) == (topic, key):
                first = first_offset_of(half, place.queue_offset)
                newest[first] = max(newest.get(first, 0), place.queue_offset)
        return [*newest.items()]

    async def _search_open(self, topic: str, key: str) -> list[tuple[Place, Parked]]:
        """Return the same, found among all half messages that are open; one search at a time."""
        if self._searches >= SEARCHES_MAX:
            why = f"{self._searches} searches for half messages wait; messageIndexEnable is false"
            raise RemoteProtocolError(ResponseCode.SYSTEM_BUSY, why)
        self._searches += 1
        try:
            async with self._search:
                offsets: list[tuple[int, int]] = []
                ledger, at = self._ledger, self._ledger.table.start
                # Up to the end of each moment: a check may store one again meanwhile.
                while page := ledger.open_page(at, ledger.halves.end, with_ending=True):
                    for place, half, _ in await ledger.halves.read(page):
                        if half is not None and keyed_by(half) == (topic, key):
                            first = first_offset_of(half, place.queue_offset)
                            offsets.append((first, place.queue_offset))
                    at = page[-1].queue_offset + 1
                    await asyncio.sleep(0)
                return await self._open_ones(topic, key, offsets)
        finally:
            self._searches -= 1

    async def _former_verdict(self, topic: str, key: str) -> bool | None:
        """Return how a transaction ended before this start: what the index has tells that."""
        if not self._store.index.enabled:
            return None
        for _, view in await self._read(await self._ask_index(topic, key)):
            if (
                transaction_type(view.sys_flag) == MessageSysFlag.TRANSACTION_COMMIT_TYPE
                and view.topic == topic.encode()
                and find_property(view.properties, _UNIQUE) == key.encode()
            ):
                return True
        answer = await self._ask_index(HALF_TOPIC, key)
        return False if await self._indexed(topic, key, answer) else None

    async def _ask_index(self, topic: str, key: str) -> IndexAnswer:
        query, count = self._store.index.query, self._store.config.max_msgs_num_batch
        if not self._store.index.enabled:
            return IndexAnswer([], 0, 0, "off")
        try:
            return await result_of(lambda done: query(topic, key, count, 0, _FOREVER_MS, done))
        except Exception as error:
            raise _refused(f"the key index cannot be read: {error}") from error

    async def _read(self, answer: IndexAnswer) -> list[tuple[bytes, RecordView]]:
        """Return the sound records that an answer names."""
        found: list[tuple[bytes, RecordView]] = []
        for offset, record in zip(
            answer.offsets, await result_of(records(self._store, answer.offsets)), strict=True
        ):
            if record is not None:
                view = read_record(record, 0, physical_offset=offset)
                if view.status is RecordStatus.MESSAGE:
                    found.append((record, view))
        return found


def _why_unknown(key: str, verdict: bool | None) -> str:
    if verdict is None:
        return f"no transaction with id {shown(key)} is open"
    return f"the transaction {shown(key)} was {'committed' if verdict else 'rolled back'} already"


def _refused(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)
