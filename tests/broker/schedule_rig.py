"""A store with a schedule service over it, and what a test wants to know of them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from skylarkmq.broker.delay.delay_offsets import FILE_NAME, DelayOffsetTable
from skylarkmq.broker.delay.schedule_service import ScheduleMessageService
from skylarkmq.common.table_file import TableWriter
from skylarkmq.protocol.message import MessageExt
from tests.store.support import StoreRig, inner, messages_of
from tests.support.crash_disk import CrashDisk
from tests.support.workers import rest

TOPIC = "TopicTest"
SCHEDULE = "SCHEDULE_TOPIC_XXXX"


class Rig(StoreRig):
    """A store with a schedule service over it."""

    def __init__(self, files: CrashDisk | None = None, **config: Any) -> None:
        super().__init__(files, **config)
        writer = TableWriter(self.files, self.workers.tables)
        self.table = DelayOffsetTable(self.files, writer, self.clock, self.store)
        self.service = ScheduleMessageService(self.store, self.clock, self.table)

    def start(self) -> Rig:
        super().start()
        self.table.load()
        self.service.start()
        return self

    def park(
        self, level: int, body: bytes = b"body", properties: bytes = b"TAGS\x01t", **changes: Any
    ) -> None:
        message = inner(
            TOPIC, 2, body, properties=properties + b"\x02DELAY\x01%d" % level, **changes
        )
        self.store.put_message(
            self.store.delay_levels.redirect(message, level), self.results.append
        )

    async def advance(self, seconds: float) -> None:
        """Let time pass in small steps, the threads working in between."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            await rest(self.workers)

    def delivered(self, topic: str = TOPIC, queue_id: int = 2) -> list[MessageExt]:
        return messages_of(self.store, topic, queue_id)

    def bodies(self) -> list[bytes]:
        return [message.body for message in self.delivered()]

    async def stop_all(self) -> None:
        """A clean stop of both."""
        stopping = asyncio.ensure_future(self.service.stop())
        while not stopping.done():
            await asyncio.sleep(0)
            self.clock.advance(0.05)
            await rest(self.workers)
        await stopping
        self.stop()

    def file(self) -> dict[str, int]:
        text = self.files.read_all(self.store.paths.config / FILE_NAME)
        table: dict[str, int] = json.loads(text)["offsetTable"]
        return table
