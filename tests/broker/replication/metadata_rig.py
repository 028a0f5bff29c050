"""Replicas without a network: brokers' parts over disks of their own, one clock for all."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from skylarkmq.broker.components import BrokerParts
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.replication.metadata.metadata_follower import Folded
from skylarkmq.broker.replication.metadata.metadata_record import MetadataRecord, decode_metadata
from skylarkmq.protocol.bodies.group import SubscriptionGroupConfig
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.flags import SYS_METADATA_TOPIC
from skylarkmq.protocol.message import MessageExt
from skylarkmq.store.results import PutMessageResult
from tests.store.support import HOST, inner, messages_of, store_config
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import ManualClock
from tests.support.workers import manual_store_workers, rest

MEMORY_SIZE = 1 << 33
LEVELS = "1s 5s 10s 30s"


class Replica:
    """One broker of a pair; it moves only when the test says so."""

    def __init__(self, clock: ManualClock, disk: CrashDisk | None = None, **config: Any) -> None:
        self.clock = clock
        self.disk = disk or CrashDisk()
        self.workers = manual_store_workers()
        values: dict[str, Any] = {
            "message_delay_level": LEVELS,
            "mapped_file_size_consume_queue": 200_000,
            "broker_role": "SLAVE",
            **config,
        }
        broker_id = 1 if values["broker_role"] == "SLAVE" else 0
        self.parts = BrokerParts(
            BrokerConfig(
                store=store_config(self.disk.root, **values),
                broker_name="broker-a",
                broker_id=broker_id,
            ),
            self.disk,
            clock,
            self.workers.workers,
            MEMORY_SIZE,
        )
        self.store = self.parts.store
        self.results: list[PutMessageResult] = []

    # Life

    def start(self) -> Folded:
        """Load, fold, and follow."""
        self.parts.store.load()
        self.parts.load_tables()
        folded = self.parts.metadata.fold()
        self.store.start()
        self.parts.deletion.start()
        self.parts.metadata.follow()
        return folded

    async def lead(self, term: int = 1) -> Replica:
        """Become the master, with all that runs there."""
        if self.store.commit_log.mapped_files.last is None:
            self.store.commit_log.open_first()
        starting = asyncio.ensure_future(self.parts.metadata.start_as_master(term, HOST))
        await self.rest()
        await starting
        self.parts.schedule.start()
        self.parts.timer.start()
        self.parts.transactions.start()
        await self.rest()
        return self

    async def rest(self) -> None:
        """Let everything happen that needs no time."""
        await rest(self.workers)

    async def advance(self, seconds: float, step_s: float = 0.25) -> None:
        for _ in range(round(seconds / step_s)):
            self.clock.advance(step_s)
            await self.rest()

    async def stop(self) -> CrashDisk:
        """A clean stop, as a broker's; return the disk."""
        stopping = asyncio.ensure_future(self.parts.stop_services())
        for _ in range(1000):
            if stopping.done():
                break
            self.clock.advance(0.05)
            await self.rest()
        await stopping
        self.store.stop_writing()
        for worker in self.workers.all():
            worker.stop()
            while worker.deliver():
                pass
        self.store.close()
        return self.disk

    # What happens to it

    def topic(self, name: str, queues: int = 4) -> None:
        self.parts.topics.update(
            TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
        )

    def group(self, name: str, **values: Any) -> None:
        self.parts.groups.update(SubscriptionGroupConfig(group_name=name, **values))

    def put(self, *args: Any, **changes: Any) -> None:
        self.store.put_message(inner(*args, **changes), self.results.append)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        assert self.parts.offsets.commit("peer", group, topic, queue_id, offset)

    # What it has

    def messages(self, topic: str, queue_id: int = 0) -> list[MessageExt]:
        return messages_of(self.store, topic, queue_id)

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        return [message.body for message in self.messages(topic, queue_id)]

    def records(self) -> list[MetadataRecord]:
        return [decode_metadata(message.body) for message in self.messages(SYS_METADATA_TOPIC)]

    def tables(self) -> dict[str, Any]:
        """Everything that goes over, as plain values."""
        parts = self.parts
        return {
            "topics": dict(parts.topics.table),
            "groups": dict(parts.groups.table),
            "offsets": {key: dict(row) for key, row in parts.offsets.table.items()},
            "delay": parts.delay_offsets.rows(),
            "config": dict(parts.live_config.kept),
            "deleting": set(parts.deletion.begun),
        }


def copy(
    source: Replica, target: Replica, rng: Random | None = None, *, upto: int | None = None
) -> None:
    """Give a replica the master's log, in parts of any size, up to a place of it."""
    log, rng = source.store.commit_log, rng or Random(1)
    offset = max(target.store.received.next_offset, log.min_offset)
    while True:
        size = rng.choice((100, 3000, 1 << 20))
        if upto is not None:
            size = min(size, upto - offset)
        part = log.part(offset, size) if size > 0 else b""
        if not part:
            return
        target.store.take_records(offset, bytes(part))
        offset += len(part)
