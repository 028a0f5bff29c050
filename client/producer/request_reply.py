"""Request and reply over topics: a producer asks, a consumer answers, the broker joins the two.

    asking    message + CORRELATION_ID, REPLY_TO_CLIENT, TTL --310--> topic --> some consumer
    answering                        reply_table <--326-- broker <--325-- send_reply

A reply goes to the asking client alone, through a broker that knows it by its heartbeat; so a
client tells every broker who it is before its first request, and a reply is offered to the broker
that the request came through first, then to the others of its cluster.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/producer/DefaultMQProducerImpl.java
(request, prepareSendRequest), client/.../utils/MessageUtil.java (createReplyMessage)
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from skylarkmq.client.errors import (
    IllegalState,
    ReplyNotDelivered,
    RequestTimeout,
    RocketMQError,
    RouteNotFound,
    TooManyInFlight,
    broker_error,
)
from skylarkmq.client.producer.every_broker import EveryBroker
from skylarkmq.client.producer.reply_table import REQUESTS_MAX, Reply, WaitingRequest
from skylarkmq.client.producer.send_pipeline import Send
from skylarkmq.client.producer.sender import Sender
from skylarkmq.client.received_message import ReceivedMessage
from skylarkmq.client.services import Services
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.compression import CompressionKind, compress, compression_flags
from skylarkmq.protocol.flags import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    CLIENT_INNER_PRODUCER_GROUP,
    reply_topic,
)
from skylarkmq.protocol.headers.send import SendMessageRequestHeader, encode_send_header_v2
from skylarkmq.protocol.message import Message
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.waiting import fail_after, within

log = logging.getLogger(__name__)

REPLY_MARK: Final = "reply"
"""The value of MSG_TYPE that marks a reply."""
COMPRESS_OVER: Final = 4096
THREAD_OVER: Final = 256 * 1024
"""Bytes from which a reply is compressed in a thread."""
DEFAULT_QUEUE_COUNT: Final = 4
_STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)


class _Asking:
    """One request under way."""

    __slots__ = ("message", "owner", "send", "waiting")

    def __init__(self, owner: Requests, message: Message, waiting: WaitingRequest) -> None:
        self.owner = owner
        self.message = message
        self.waiting = waiting
        self.send: Send | None = None
        waiting.future.add_done_callback(self.ended)

    def sent(self, future: asyncio.Future[Any]) -> None:
        """The message is stored, or is not: then there will be no reply."""
        error = None if future.cancelled() else future.exception()
        if error is not None and not self.waiting.future.done():
            self.waiting.future.set_exception(error)

    def ended(self, future: asyncio.Future[Reply]) -> None:
        """There is a reply, or nobody waits for one any more."""
        self.owner.forget(self)
        in_vain = future.cancelled() or future.exception() is not None
        if in_vain and self.send is not None and not self.send.future.done():
            self.owner.sender.pipeline.abandon(self.send)


class Requests:
    """The requests of one producer. Loop thread."""

    def __init__(
        self,
        services: Services,
        sender: Sender,
        brokers: EveryBroker,
        send_heartbeats: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self.sender = sender
        self._services = services
        self._brokers = brokers
        self._send_heartbeats = send_heartbeats
        self._under_way: set[_Asking] = set()
        self._parked: deque[_Asking] = deque()
        self._introduced = False
        self._introducing: asyncio.Task[None] | None = None
        self._stopped = False

    async def request(self, message: Message, timeout_s: float) -> Reply:
        """Send a request once there is room, and return its reply; see `Producer.request`."""
        clock = self._services.clock
        deadline_s = clock.monotonic() + timeout_s
        try:
            async with fail_after(clock, timeout_s):
                future = await self._begin_with_room(message, deadline_s)
        except RequestTimeout:
            raise
        except TimeoutError as error:
            raise RequestTimeout(f"no room for a request to {message.topic} in time") from error
        return await future

    async def _begin_with_room(self, message: Message, deadline_s: float) -> asyncio.Future[Reply]:
        while True:
            await self._services.replies.room()
            await self.sender.pipeline.in_flight.room(len(message.body))
            try:
                return self.begin(message, deadline_s - self._services.clock.monotonic())
            except TooManyInFlight:  # others were quicker
                continue

    def begin(self, message: Message, timeout_s: float) -> asyncio.Future[Reply]:
        """Start a request; its future has the reply. When that is cancelled, so is the request.

        Raises:
            TooManyInFlight: too many requests wait, or too many messages are in flight.
            IllegalState: the producer has stopped.
        """
        if self._stopped:
            raise IllegalState("the producer has stopped")
        table = self._services.replies
        if table.is_full:
            raise TooManyInFlight(f"{REQUESTS_MAX} requests wait for their replies")
        correlation_id = str(UUID(int=self._services.random.getrandbits(128), version=4))
        waiting = table.add(correlation_id, message.topic, timeout_s)
        asking = _Asking(self, message, waiting)
        self._under_way.add(asking)
        if self._introduced and not self._parked:
            try:
                self._send(asking)
            except BaseException:
                waiting.future.cancel()
                raise
        else:
            self._parked.append(asking)
            if self._introducing is None:
                self._introducing = asyncio.create_task(
                    self._introduce(), name="skylarkmq-introduce"
                )
        return waiting.future

    def forget(self, asking: _Asking) -> None:
        """A request has ended."""
        self._services.replies.drop(asking.waiting)
        self._under_way.discard(asking)

    async def stop(self) -> None:
        """End all requests."""
        self._stopped = True
        for asking in list(self._under_way):
            if not asking.waiting.future.done():
                asking.waiting.future.set_exception(IllegalState("the producer has stopped"))
        task, self._introducing = self._introducing, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _send(self, asking: _Asking) -> None:
        waiting = asking.waiting
        remaining_s = waiting.deadline_s - self._services.clock.monotonic()
        properties = {
            names.CORRELATION_ID: waiting.correlation_id,
            names.REPLY_TO_CLIENT: self._services.client_id,
            names.TTL: str(round(waiting.timeout_s * 1000)),
        }
        choice = self.sender.choice(asking.message, None, None, None)
        asking.send = self.sender.start(asking.message, choice, remaining_s, properties, "request")
        asking.send.future.add_done_callback(asking.sent)

    async def _introduce(self) -> None:
        """Tell every broker who this client is; then the first requests may go."""
        try:
            self._brokers.start()
            await self._brokers.looked.wait()
            await self._send_heartbeats()
        except Exception:
            log.exception("brokers may not know this client yet, its requests go all the same")
        self._introduced = True
        while self._parked:
            asking = self._parked[0]
            future = asking.waiting.future
            try:
                if not future.done():
                    await self.sender.pipeline.in_flight.room(len(asking.message.body))
                if not future.done():
                    self._send(asking)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            self._parked.popleft()
        self._introducing = None


async def send_reply(
    services: Services,
    unique_id: str,
    request: ReceivedMessage,
    body: bytes | str,
    *,
    tags: str | None = None,
    keys: str | Iterable[str] = (),
    properties: Mapping[str, str] | None = None,
    timeout_s: float = 3.0,
) -> None:
    """Answer a request; its sender gets the reply, nobody else.

    Raises:
        IllegalState: the message is no request.
        ReplyNotDelivered: no broker could hand it on, mostly because the asking client is gone.
    """
    asked = request.properties
    cluster, correlation_id = asked.get(names.CLUSTER), asked.get(names.CORRELATION_ID)
    asker = asked.get(names.REPLY_TO_CLIENT)
    if not cluster or not correlation_id or not asker:
        raise IllegalState("the message is no request: it names nobody to reply to")
    message = Message(reply_topic(cluster), body, tags=tags, keys=keys, properties=properties)
    texts = {
        names.UNIQ_KEY: unique_id,
        **message.to_properties(),
        names.MSG_TYPE: REPLY_MARK,
        names.CORRELATION_ID: correlation_id,
        names.REPLY_TO_CLIENT: asker,
    }
    if names.TTL in asked:
        texts[names.TTL] = asked[names.TTL]
    try:
        await within(
            services.clock,
            timeout_s,
            _deliver(services, message, texts, request.queue.broker_name, timeout_s),
        )
    except RequestTimeout:
        raise
    except TimeoutError as error:
        raise RequestTimeout(f"the reply was not delivered within {timeout_s:g} s") from error


async def _deliver(
    services: Services, message: Message, texts: Mapping[str, str], first: str, timeout_s: float
) -> None:
    """Offer the reply to one broker after the other, the one of the request first."""
    packed, sys_flag = await _packed(message.body)
    route = await services.routes.for_publish(message.topic, DEFAULT_QUEUE_COUNT)
    queues = {queue.broker_name: queue for queue in reversed(route.publish_queues)}
    queues = {name: queues[name] for name in sorted(queues, key=lambda name: (name != first, name))}
    failure: RocketMQError | None = None
    for queue in queues.values():
        address = services.routes.master_address(queue.broker_name)
        if address is None:
            continue
        header = SendMessageRequestHeader(
            producer_group=CLIENT_INNER_PRODUCER_GROUP,
            topic=message.topic,
            default_topic=AUTO_CREATE_TOPIC_KEY_TOPIC,
            default_topic_queue_nums=DEFAULT_QUEUE_COUNT,
            queue_id=queue.queue_id,
            sys_flag=sys_flag,
            born_timestamp=services.clock.now_ms(),
            flag=message.flag,
            properties=names.encode_properties(texts),
            broker_name=queue.broker_name,
        )
        fields = encode_send_header_v2(header)
        command = RemotingCommand.request(RequestCode.SEND_REPLY_MESSAGE_V2, fields, packed)
        try:
            answer = await services.remoting.call(address, command, timeout_s)
            if answer.code in _STORED:
                return
            failure = broker_error(answer.code, answer.remark, address)
        except RocketMQError as error:
            failure = error
        log.debug("a reply was not taken: %s", failure)
    if failure is None:
        raise RouteNotFound(message.topic, "no_broker", "No broker of the cluster has a master")
    raise ReplyNotDelivered(str(failure)) from failure


async def _packed(body: bytes) -> tuple[bytes, int]:
    """Return the body as it travels, and its system flag: compressed when that makes it smaller."""
    if len(body) < COMPRESS_OVER:
        return body, 0
    work = asyncio.to_thread(compress, body) if len(body) >= THREAD_OVER else None
    packed = compress(body) if work is None else await work
    if len(packed) >= len(body):
        return body, 0
    return packed, compression_flags(CompressionKind.ZLIB)
