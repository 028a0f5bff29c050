"""Brokers around one name server, and a client of the first one's endpoint."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc

from skylarkmq.broker.controller import BrokerController
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.record import decode_messages
from skylarkmq.protocol.v5 import schema_pb2 as v5
from skylarkmq.protocol.v5.codes import Code
from tests.broker.grpc.rig import METADATA, Client
from tests.broker.grpc.session_rig import resource
from tests.support.live_broker import live_broker, namesrv_of
from tests.support.patience import until

GROUP, TOPIC = "group", "orders"
QUEUES = 4
Metadata = Mapping[str, str]
NO_METADATA: Metadata = MappingProxyType({})


class Endpoint(Client):
    """A client of one endpoint."""

    async def send(self, *messages: v5.Message) -> v5.SendMessageResponse:
        request = v5.SendMessageRequest(messages=messages)
        answer: v5.SendMessageResponse = await self.call("SendMessage", request)
        return answer

    async def send_one(self, sent: v5.Message) -> v5.SendResultEntry:
        answer = await self.send(sent)
        assert answer.status.code == Code.OK, answer
        return answer.entries[0]

    def begin(self, broker_name: str = "", **fields: Any) -> Any:
        """Begin a receive; iterate over what it returns."""
        fields.setdefault("invisible_duration", {"seconds": 3600})
        fields.setdefault("batch_size", 32)
        request = v5.ReceiveMessageRequest(
            group=resource(GROUP),
            message_queue={"topic": {"name": TOPIC}, "broker": {"name": broker_name}},
            **fields,
        )
        return self.receive(request)

    async def take(self, broker_name: str = "", **fields: Any) -> list[v5.Message]:
        """Receive what is there, without waiting."""
        call = self.begin(broker_name, long_polling_timeout={}, **fields)
        frames = [frame async for frame in call]
        assert frames[0].status.code in (Code.OK, Code.MESSAGE_NOT_FOUND), frames[0]
        assert frames[-1].HasField("delivery_timestamp")
        return [frame.message for frame in frames[1:-1]]

    async def taken(self, broker_name: str) -> list[v5.Message]:
        """Receive until there is something."""
        found: list[v5.Message] = []

        async def is_there() -> bool:
            found.extend(await self.take(broker_name))
            return bool(found)

        await until(is_there)
        return found

    async def done(self, messages: Iterable[v5.Message], **options: Any) -> v5.AckMessageResponse:
        """Acknowledge, all in one call."""
        request = v5.AckMessageRequest(group=resource(GROUP), topic=resource(TOPIC))
        for message in messages:
            system = message.system_properties
            request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
        answer: v5.AckMessageResponse = await self.call("AckMessage", request, **options)
        return answer

    async def about(self, name: str, handle: str, **fields: Any) -> Any:
        """Make one of the calls about a message in hand."""
        made = getattr(v5, f"{name}Request")(
            group=resource(GROUP), topic=resource(TOPIC), receipt_handle=handle, **fields
        )
        return await self.call(name, made)

    async def end(self, transaction_id: str, message_id: str) -> int:
        """Commit a transaction; return the code."""
        request = v5.EndTransactionRequest(
            topic=resource(TOPIC),
            message_id=message_id,
            transaction_id=transaction_id,
            resolution=v5.COMMIT,
        )
        return int((await self.call("EndTransaction", request)).status.code)

    async def recall(self, handle: str) -> int:
        """Take a message back; return the code."""
        request = v5.RecallMessageRequest(topic=resource(TOPIC), recall_handle=handle)
        return int((await self.call("RecallMessage", request)).status.code)


class Cluster:
    """Some brokers; the topic is on all of them."""

    def __init__(self, brokers: Sequence[BrokerController]) -> None:
        self.brokers = brokers

    @asynccontextmanager
    async def client(
        self, number: int = 0, client_id: str = "host@1@0@abc", metadata: Metadata = NO_METADATA
    ) -> AsyncGenerator[Endpoint]:
        """Open a connection to one broker's endpoint."""
        address = self.brokers[number].grpc_address
        assert address is not None
        async with open_endpoint(f"127.0.0.1:{address[1]}", client_id, metadata) as client:
            yield client

    def seen(self, number: int, topic: str = TOPIC) -> list[MessageExt]:
        """Return what one broker has of a topic, queue by queue."""
        store, found = self.brokers[number].parts.store, list[MessageExt]()
        for queue_id in range(QUEUES):
            offset = 0
            while offset < store.max_offset(topic, queue_id):
                result = store.get_message(topic, queue_id, offset, 32)
                found += decode_messages(b"".join(result.views))
                offset = result.next_begin_offset
        return found

    def bodies(self, number: int, topic: str = TOPIC) -> list[str]:
        return [found.body.decode() for found in self.seen(number, topic)]

    def mark(self, number: int) -> int:
        """Return how many messages are done on one broker, of all queues."""
        offsets = self.brokers[number].parts.offsets
        return sum(max(0, offsets.query(GROUP, TOPIC, queue_id)) for queue_id in range(QUEUES))

    def waiting(self, number: int) -> int:
        """Return the polls that wait at one broker."""
        return self.brokers[number].parts.pop.receiver.waiting(GROUP, TOPIC)

    def forwarded(self) -> dict[tuple[str, int], int]:
        """Return what the first endpoint has forwarded."""
        endpoint = self.brokers[0].parts.grpc
        assert endpoint is not None
        return dict(endpoint.forwarded)


@asynccontextmanager
async def open_endpoint(
    target: str, client_id: str = "host@1@0@abc", metadata: Metadata = NO_METADATA
) -> AsyncGenerator[Endpoint]:
    """Open a connection to an endpoint."""
    said = (("x-mq-client-id", client_id), *METADATA[1:])
    options = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
    options += [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        yield Endpoint(channel, (*said, *metadata.items()))


@asynccontextmanager
async def open_cluster(
    root: Path, *modes: str, each: Sequence[dict[str, Any]] = (), **config: Any
) -> AsyncGenerator[Cluster]:
    """Start a broker for each mode, and have all of them know each other."""
    async with AsyncExitStack() as stack:
        brokers: list[BrokerController] = []
        for number, mode in enumerate(modes):
            name = f"broker-{'abcdef'[number]}"
            known = {"namesrv_addr": namesrv_of(brokers[0])} if brokers else {}
            changes = config | (each[number] if each else {})
            opened = live_broker(
                root / name,
                broker_name=name,
                grpc_listen_port=0,
                grpc_proxy_mode=mode,
                **known,
                **changes,
            )
            brokers.append(await stack.enter_async_context(opened))
        for broker in brokers:
            topic = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
            broker.parts.topics.update(topic)
        await until(lambda: _is_known(brokers[0], len(brokers)))
        yield Cluster(brokers)


def _is_known(broker: BrokerController, count: int) -> bool:
    assert broker.namesrv is not None
    route = broker.namesrv.routes.topic_route(TOPIC)
    return route is not None and len(route.queue_datas) == count
