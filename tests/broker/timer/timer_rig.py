"""A store with a timer service over it, and what a test wants to know of them."""

from __future__ import annotations

import asyncio
from typing import Any

from skylarkmq.broker.timer.service import TimerMessageService
from skylarkmq.common.table_file import TableWriter
from skylarkmq.protocol.message import MessageExt
from skylarkmq.store.timer.rules import TimerRules
from tests.store.support import StoreRig, inner, messages_of
from tests.support.crash_disk import CrashDisk
from tests.support.workers import rest

TOPIC = "TopicTest"
WHEEL = "rmq_sys_wheel_timer"


class TimerRig(StoreRig):
    """A store with timed messages."""

    def __init__(self, files: CrashDisk | None = None, **config: Any) -> None:
        super().__init__(files, **{"mapped_file_size_consume_queue": 200_000, **config})
        writer = TableWriter(self.files, self.workers.tables, self.store.fail)
        self.service = TimerMessageService(
            self.store, self.files, self.clock, self.workers.timer, writer
        )
        self.rules = TimerRules(self.store.config, self.clock.now_ms)

    def start(self) -> TimerRig:
        self.store.load()
        self.service.load()
        self.store.start()
        self.service.start()
        return self

    def send(self, body: bytes = b"body", properties: bytes = b"", **changes: Any) -> None:
        """Send with the properties that ask for a delay."""
        message = inner(TOPIC, 2, body, properties=properties, **changes)
        self.store.put_message(self.rules.redirect(message), self.results.append)

    def after(self, delay_ms: int, body: bytes = b"body", more: bytes = b"") -> None:
        """Send with a delay."""
        self.send(body, b"TIMER_DELAY_MS\x01%d" % delay_ms + more)

    def at(self, due_ms: int, body: bytes = b"body", more: bytes = b"") -> None:
        """Send for a time."""
        self.send(body, b"TIMER_DELIVER_MS\x01%d" % due_ms + more)

    def cancel(self, due_ms: int, key: bytes, topic: str = TOPIC) -> None:
        """Take a message back."""
        text = b"TIMER_DELIVER_MS\x01%d\x02TIMER_DEL_UNIQKEY\x01%s" % (due_ms, key)
        message = inner(topic, 0, b"0", properties=text)
        self.store.put_message(self.rules.redirect(message), self.results.append)

    async def advance(self, seconds: float, step_s: float = 0.1) -> None:
        """Let time pass in small steps, the threads working in between."""
        for _ in range(round(seconds / step_s)):
            self.clock.advance(step_s)
            await rest(self.workers)

    async def catch_up(self, limit: int = 10_000) -> None:
        """Let everything happen that needs no time."""
        for _ in range(limit):
            await rest(self.workers)
            due_s = self.clock.next_timer_s()
            if due_s is None or due_s > self.clock.monotonic():
                return
            self.clock.advance(0)
        raise AssertionError("never comes to rest")

    def delivered(self, topic: str = TOPIC, queue_id: int = 2) -> list[MessageExt]:
        return messages_of(self.store, topic, queue_id)

    def bodies(self) -> list[bytes]:
        return [message.body for message in self.delivered()]

    async def stop_all(self) -> None:
        """A clean stop of both."""
        stopping = asyncio.ensure_future(self.service.stop())
        for _ in range(10_000):
            await asyncio.sleep(0)
            if stopping.done():
                break
            self.clock.advance(0.05)
            await rest(self.workers)
        await stopping
        self.stop()
