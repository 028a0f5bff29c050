"""What the processors of clients and groups stand on: real tables and a real store, a fake peer."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import msgspec

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.groups.client_calls import ClientCalls
from skylarkmq.broker.groups.consumer_manager import ConsumerManager
from skylarkmq.broker.groups.consumer_offset import ConsumerOffsetManager
from skylarkmq.broker.groups.earlier_lives import EarlierLives
from skylarkmq.broker.groups.producer_manager import ProducerManager
from skylarkmq.broker.groups.rebalance_lock import RebalanceLockManager
from skylarkmq.broker.groups.subscription_group import SubscriptionGroupManager
from skylarkmq.broker.requests.processor import Context
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.common.table_file import TableWriter
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.store.config import StoreConfig
from tests.store.support import StoreRig
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import settle


class FakeConnection:
    """A peer as the managers see it; `pushes` are what it was sent unasked."""

    def __init__(self, name: str = "192.0.2.1:1") -> None:
        self.remote_address = name
        self.host_bytes = b"\xc0\x00\x02\x01\x00\x00\x00\x01"
        self.closed = False
        self.close_reason = ""
        self.account: object = None
        self.pushes: list[RemotingCommand] = []
        self.listeners: list[Callable[[Any], None]] = []

    def push(self, command: RemotingCommand) -> None:
        if not self.closed:
            self.pushes.append(command)

    def add_close_listener(self, listener: Callable[[Any], None]) -> None:
        self.listeners.append(listener)

    def remove_close_listener(self, listener: Callable[[Any], None]) -> None:
        if listener in self.listeners:  # as `Connection` does
            self.listeners.remove(listener)

    def close(self, reason: str) -> None:
        if not self.closed:
            self.closed = True
            self.close_reason = reason
            listeners, self.listeners = self.listeners, []
            for listener in listeners:
                listener(self)

    def notified(self) -> list[str]:
        """The groups whose change this peer was told of; forgets them."""
        pushes, self.pushes = self.pushes, []
        assert all(push.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED for push in pushes)
        assert all(push.is_oneway for push in pushes)
        return [push.ext_fields["consumerGroup"] for push in pushes]


class GroupRig(StoreRig):
    """Tables, managers and a store; nothing moves by itself."""

    def __init__(self, files: CrashDisk | None = None, **config: Any) -> None:
        config.setdefault("broker_name", "broker-a")
        store_keys = StoreConfig.__dataclass_fields__.keys()
        store = {key: config.pop(key) for key in store_keys & config.keys()}
        super().__init__(files, **store)
        self.config = BrokerConfig(store=self.store.config, **config)
        writer = TableWriter(self.files, self.workers.tables)
        parts = self.config, self.files, writer, self.clock
        self.topics = TopicConfigManager(*parts)
        self.groups = SubscriptionGroupManager(*parts)
        self.offsets = ConsumerOffsetManager(*parts, self.store)
        self.consumers = ConsumerManager(
            self.clock, ClientCalls(lambda group: True).notify_consumer_ids_changed
        )
        self.producers = ProducerManager(self.clock)
        self.locks = RebalanceLockManager(self.clock)
        self.rng = random.Random(1)
        self.stats = BrokerStats()
        self.earlier = EarlierLives(
            self.store, self.consumers, self.offsets, self.stats, self.clock
        )

    @property
    def context(self) -> Context:
        """What processors share."""
        return Context(
            self.config,
            self.clock,
            self.store,
            self.topics,
            self.groups,
            self.offsets,
            self.consumers,
            self.producers,
            self.earlier,
        )

    def start(self) -> GroupRig:
        super().start()
        self.topics.load()
        self.groups.load()
        self.offsets.load()
        return self

    def topic(self, name: str, queues: int = 4, perm: int = 6, kind: str = "") -> None:
        """Make a topic, durable; `kind` is its type of messages."""
        config = TopicConfig(
            topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm
        )
        if kind:
            config = msgspec.structs.replace(config, attributes={"message.type": kind})
        self.topics.update(config)
        self.workers.run_all()


def request(
    code: int, fields: dict[str, Any] | None = None, body: bytes = b"", version: int = 409
) -> RemotingCommand:
    """A request as a Java client would send it."""
    texts = {name: str(value) for name, value in (fields or {}).items()}
    command = RemotingCommand.request(code, texts, body, opaque=5)
    command.version = version
    return command


async def ask(
    rig: GroupRig, processor: Any, connection: Any, command: RemotingCommand
) -> RemotingCommand:
    """The answer to a request, the workers doing what they are asked to meanwhile."""
    pending = begin(processor, connection, command)
    if isinstance(pending, RemotingCommand):
        return pending
    for _ in range(20):
        await settle(3)
        if pending.done():
            break
        rig.workers.run_all()
    assert pending.done(), "the answer never comes"
    answer: RemotingCommand = pending.result()
    return answer


def begin(processor: Any, connection: Any, command: RemotingCommand) -> Any:
    """Start a request: its answer, or a task that will have it."""
    import asyncio

    try:
        result = processor.handlers()[command.code](connection, command)
    except RemoteProtocolError as error:
        return command.reply(error.response_code, error.remark)
    if not inspect.iscoroutine(result):
        return result

    async def answer() -> RemotingCommand:
        try:
            response: RemotingCommand = await result
        except RemoteProtocolError as error:
            return command.reply(error.response_code, error.remark)
        return response

    return asyncio.ensure_future(answer())
