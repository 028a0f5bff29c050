"""A store with transactions over it: producers that are asked, ends, and what consumers see."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any, NamedTuple

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.processor.end_transaction import EndTransactionProcessor
from skylarkmq.broker.transaction.check_service import (
    TransactionCheckService,
)
from skylarkmq.broker.transaction.ledger import TransactionLedger
from skylarkmq.broker.transaction.messages import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC, half_of
from skylarkmq.broker.transaction.verdicts import Verdicts
from skylarkmq.protocol.codes import LanguageCode, RequestCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.message_id import offset_message_id
from skylarkmq.protocol.record import decode_message
from skylarkmq.store.results import PutMessageResult
from tests.broker.group_rig import FakeConnection, GroupRig, ask, begin, request
from tests.store.support import HOST, inner, messages_of
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import settle

TOPIC, QUEUE_ID, GROUP = "orders", 3, "producers"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


class Half(NamedTuple):
    """Where a half message is, as its producer was told."""

    queue_offset: int
    physical_offset: int


class Producer(FakeConnection):
    """A client of a producer group."""

    def __init__(self, name: str = "192.0.2.1:1") -> None:
        super().__init__(name)
        self.paused_since_s = 0.0

    def questions(self) -> list[tuple[Half, MessageExt]]:
        """What it was asked: where each half message is, and the message. Forgets them."""
        pushes, self.pushes = self.pushes, []
        assert all(push.code == RequestCode.CHECK_TRANSACTION_STATE for push in pushes)
        assert all(push.is_oneway for push in pushes)
        return [(place_of(push), decode_message(push.body)) for push in pushes]


def place_of(push: RemotingCommand) -> Half:
    """The place that a question names."""
    fields = push.ext_fields
    return Half(int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"]))


class TransactionRig(GroupRig):
    """The parts of transactions over a real store; nothing moves by itself."""

    def __init__(self, files: CrashDisk | None = None, **config: Any) -> None:
        super().__init__(files, **config)
        self._build()

    def _build(self) -> None:
        self.ledger = TransactionLedger(self.store, self.topics, self.offsets, self.clock)
        self.checks = TransactionCheckService(self.config, self.ledger, self.producers, self.clock)
        self.counts = BrokerStats()
        self.verdicts = Verdicts(self.store, self.ledger, self.clock, self.counts)
        self.processor = EndTransactionProcessor(self.context, self.ledger, self.verdicts)
        self.connection: Any = FakeConnection("192.0.2.9:9")

    async def go(self) -> TransactionRig:
        """Start everything, and let the services find out what is open."""
        self.start()
        self.offsets.start()
        self.ledger.start()
        self.checks.start()
        await self.work()
        return self

    async def work(self) -> None:
        """Let threads and tasks do what there is to do now."""
        for _ in range(6):
            await settle(4)
            self.workers.run_all()
        await settle(4)

    async def advance(self, seconds: float, step_s: float = 0.5) -> None:
        """Let time pass in small steps, the threads working in between."""
        for _ in range(round(seconds / step_s)):
            self.clock.advance(step_s)
            await self.work()

    def producer(self, name: str = "192.0.2.1:1", group: str = GROUP) -> Producer:
        """A client of the group joins."""
        producer = Producer(name)
        connection: Any = producer
        self.producers.register(connection, name, LanguageCode.JAVA, 409, group)
        return producer

    def half(self, body: bytes = b"body", properties: bytes = b"", **changes: Any) -> Half:
        """Store a half message; under SYNC_FLUSH its place is known when the workers have run."""
        self.ledger.expect()
        text = b"TRAN_MSG\x01true\x02PGROUP\x01" + GROUP.encode()
        text += b"\x02UNIQ_KEY\x01" + body[:16].hex().encode()
        text += b"\x02" + properties if properties else b""
        message = inner(TOPIC, QUEUE_ID, body, properties=text)
        changes.setdefault("born_timestamp", self.clock.now_ms())
        message = replace(half_of(message, 0), **changes)
        results: list[PutMessageResult] = []
        self.store.put_message(message, results.append)
        if not results:
            self.workers.run_all()
        return Half(results[0].queue_offset, results[0].physical_offset)

    def ending(self, half: Half, verdict: int = COMMIT, **changes: Any) -> RemotingCommand:
        """The request that ends a transaction."""
        return request(
            RequestCode.END_TRANSACTION,
            {
                "producerGroup": GROUP,
                "tranStateTableOffset": half.queue_offset,
                "commitLogOffset": half.physical_offset,
                "commitOrRollback": verdict,
                "fromTransactionCheck": "false",
                "msgId": "id",
                **changes,
            },
        )

    async def end(self, half: Half, verdict: int = COMMIT, **changes: Any) -> RemotingCommand:
        """End a transaction, and return the answer."""
        return await ask(
            self, self.processor, self.connection, self.ending(half, verdict, **changes)
        )

    def begin_end(self, half: Half, verdict: int = COMMIT) -> asyncio.Future[RemotingCommand]:
        """Send the end of a transaction; the workers do nothing yet."""
        task: asyncio.Future[RemotingCommand] = begin(
            self.processor, self.connection, self.ending(half, verdict)
        )
        return task

    async def resume(self, physical_offset: int) -> RemotingCommand:
        """Give a half message another chance (323)."""
        fields = {"msgId": offset_message_id(HOST, physical_offset)}
        command = request(RequestCode.RESUME_CHECK_HALF_MESSAGE, fields)
        return await ask(self, self.processor, self.connection, command)

    def seen(self, topic: str = TOPIC, queue_id: int = QUEUE_ID) -> list[MessageExt]:
        """All visible messages of a queue."""
        return messages_of(self.store, topic, queue_id)

    def bodies(self) -> list[bytes]:
        """What consumers of the topic see."""
        return [message.body for message in self.seen()]

    def halves(self) -> list[MessageExt]:
        """The half topic."""
        return self.seen(HALF_TOPIC, 0)

    def ops(self) -> list[bytes]:
        """The bodies of the op topic."""
        return [message.body for message in self.seen(OP_TOPIC, 0)]

    def given_up(self) -> list[MessageExt]:
        """What nobody is asked about any more."""
        return self.seen(GIVEN_UP_TOPIC, 0)

    @property
    def saved(self) -> tuple[int, int]:
        """The offsets of the half and op topics that another start would begin at."""
        half, op = (
            self.offsets.query("CID_RMQ_SYS_TRANS", topic, 0) for topic in (HALF_TOPIC, OP_TOPIC)
        )
        return half, op

    async def stop_all(self) -> None:
        """A clean stop."""
        stopping = asyncio.ensure_future(self._stop_services())
        while not stopping.done():
            await asyncio.sleep(0)
            self.clock.advance(0.05)
            self.workers.run_all()
        await stopping
        self.stop()

    async def _stop_services(self) -> None:
        await self.checks.stop()
        await self.ledger.stop()
        await self.offsets.stop()
        await self.topics.flush()

    def file(self) -> dict[str, dict[str, int]]:
        """What `consumerOffset.json` says."""
        text = self.files.read_all(self.store.paths.config / "consumerOffset.json")
        table: dict[str, dict[str, int]] = json.loads(text)["offsetTable"]
        return table
