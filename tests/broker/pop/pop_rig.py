"""Pop consumption over a real store and real tables; clock, disk and workers are the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.pop.handles import Receipt
from skylarkmq.broker.pop.requests import Popped, PopRequest
from skylarkmq.broker.pop.service import PopService
from skylarkmq.protocol.bodies.group import SubscriptionGroupConfig
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.record import decode_message
from skylarkmq.protocol.tags_code import tags_code
from skylarkmq.store.pop.journal_records import Clean, PopState, Record, State, Whole
from tests.broker.group_rig import GroupRig
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import settle

GROUP, TOPIC = "G", "T"
RETRY = "%RETRY%G_T"
PLUS_RETRY = "%RETRY%G+T"
DEAD = "%DLQ%G"


class MemoryJournal:
    """Keeps what is noted; durable when the test says so, at once unless it wants to know."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.is_quick = True
        self.error: BaseException | None = None
        self.why: str | None = None
        self._waiting: list[Callable[[BaseException | None], None]] = []

    def note(self, record: Any) -> None:
        self.records.append(record)

    def load(self) -> PopState:
        return self.state()

    def discard(self) -> None:
        self.records.clear()

    def begin(self, state: PopState, live: Any) -> None:
        self.records = [State(key, found) for key, found in state.keys.items()]
        self.records.append(Whole(state.last_serial))
        self.live = live

    async def stop(self) -> None:
        self.records.append(Clean())

    def after(
        self, done: Callable[[BaseException | None], None], *, is_synced: bool = False
    ) -> None:
        if self.is_quick:
            done(self.error)
        else:
            self._waiting.append(done)

    def sync(self) -> None:
        """Make what was noted durable."""
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(self.error)

    def refusal(self) -> str | None:
        return self.why

    def state(self) -> PopState:
        """What the records add up to."""
        state = PopState()
        for record in self.records:
            state.apply(record)
        return state


class PopRig(GroupRig):
    """A broker's pop consumption, and a client's calls."""

    def __init__(self, files: CrashDisk | None = None, **config: Any) -> None:
        super().__init__(files, **config)
        self.journal: Any = MemoryJournal()
        self.stats = BrokerStats()
        self.pop = PopService(self.context, self.journal, self.clock, self.stats)

    def start(self, queues: int = 1, retry_max_times: int = 16) -> PopRig:
        super().start()
        self.topic(TOPIC, queues)
        self.group(retry_max_times=retry_max_times)
        self.pop.start()
        return self

    async def stop_pop(self) -> None:
        """Stop pop consumption cleanly."""
        stopping = asyncio.create_task(self.pop.stop())
        await self.rest()
        assert stopping.done()
        await self.pop.close()

    def restart(self) -> None:
        """Begin anew with what the journal and the tables say."""
        self.pop.in_flight.timeouts.stop()
        self.pop.registry.groups.clear()
        self.pop.registry.by_topic.clear()
        self.pop = PopService(self.context, self.journal, self.clock, self.stats)
        self.pop.load()
        self.pop.start()

    def group(self, name: str = GROUP, **changes: Any) -> None:
        """Make or change a group."""
        group = SubscriptionGroupConfig(group_name=name)
        self.groups.update(msgspec.structs.replace(group, **changes))

    def send(
        self, body: bytes, queue_id: int = 0, topic: str = TOPIC, tag: str = "", **changes: Any
    ) -> None:
        """Store a message."""
        text = f"TAGS\x01{tag}\x02".encode() if tag else b""
        changes.setdefault("properties", text + b"UNIQ_KEY\x01" + body)
        changes.setdefault("tags_code", tags_code(tag) if tag else 0)
        assert self.put(topic, queue_id, body, **changes) is not None

    def send_all(self, count: int, queue_id: int = 0, topic: str = TOPIC) -> None:
        """Store messages `b"0"` and so on."""
        for number in range(count):
            self.send(b"%d" % number, queue_id, topic)

    def request(self, count: int = 32, wait_s: float = 0, **changes: Any) -> PopRequest:
        """A receive."""
        values: dict[str, Any] = {"group": GROUP, "topic": TOPIC, "invisible_ms": 10_000, **changes}
        until_s = self.clock.monotonic() + wait_s
        return PopRequest(count=count, until_s=until_s, **values)

    async def receive(self, count: int = 32, wait_s: float = 0, **changes: Any) -> list[Popped]:
        """Receive what is there; workers do what they are asked to."""
        task = self.begin(count, wait_s, **changes)
        await self.rest()
        assert task.done(), "a receive that need not wait waits"
        return task.result()

    def begin(
        self, count: int = 32, wait_s: float = 20, **changes: Any
    ) -> asyncio.Task[list[Popped]]:
        """Begin a receive, which may wait."""
        return asyncio.create_task(
            self.pop.receiver.receive(self.request(count, wait_s, **changes))
        )

    async def bodies(self, count: int = 32, **changes: Any) -> list[bytes]:
        """Receive, and return the bodies."""
        return [message_of(popped).body for popped in await self.receive(count, **changes)]

    async def ack(self, receipt: Receipt, group: str = GROUP, topic: str = TOPIC) -> bool:
        """Acknowledge."""
        return await self.pop.settlement.ack(group, topic, receipt)

    async def rest(self) -> None:
        """Let tasks and workers do all that they can do now."""
        await settle(5)
        while not all(worker.idle for worker in self.workers.all()):
            self.workers.run_all()
            await settle(5)

    async def advance(self, seconds: float) -> None:
        """Let time go by, in steps in which everybody can work."""
        target_s = self.clock.monotonic() + seconds
        while (due_s := self.clock.next_timer_s()) is not None and due_s <= target_s:
            self.clock.advance(max(0.0, due_s - self.clock.monotonic()))
            await self.rest()
        self.clock.advance(max(0.0, target_s - self.clock.monotonic()))
        await self.rest()

    def mark(self, queue_id: int = 0, topic: str = TOPIC, group: str = GROUP) -> int:
        """The group's offset."""
        return self.offsets.query(group, topic, queue_id)

    def stored(self, topic: str, queue_id: int = 0) -> list[MessageExt]:
        """All messages of a queue."""
        result = self.store.get_message(topic, queue_id, 0, 1000)
        messages: list[MessageExt] = []
        for view in result.views:
            data, position = bytes(view), 0
            while position < len(data):
                messages.append(decode_message(data, position))
                position += int.from_bytes(data[position : position + 4], "big")
        return messages


def message_of(popped: Popped) -> MessageExt:
    """The message that a client gets."""
    return decode_message(bytes(popped.record))


def ignore(_: BaseException | None) -> None:
    """Be told, and do nothing."""
