"""SendMessage: messages of all types, checked, stored with the others of the turn, and answered.

All messages of a request are checked before one is stored; what is wrong with one refuses them all.
After that each has an answer of its own, sent when it is as durable as the flush mode makes it.

Compressed bodies may open to a thousand times their size. Of several messages as much is opened and
stored in a turn of the loop as one large message needs, OPENED_MAX times that in all, and of one
request at a time until it is answered.

    status           OK; MASTER_PERSISTENCE_TIMEOUT, SLAVE_PERSISTENCE_TIMEOUT, HA_NOT_AVAILABLE
                     for a message that is stored, but not as safely as the broker promises
    message id       as it was sent; the transaction's id names the broker, too
    offset           of its queue, of the half topic, or of where delayed messages wait
    recall handle    of a message that waits for its delivery time (`processor/recall.py`)

Unlike RocketMQ, which stores the messages of one request as a batch, so none of them can be delayed
or be half a transaction, and has one answer for all of them, with an id that none has.
Source: apache/rocketmq@rocketmq-all-5.3.3 proxy/.../grpc/v2/producer/SendMessageActivity.java,
proxy/.../processor/ProducerProcessor.java
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Final

from skylarkmq.broker.base.waiting import Outcome
from skylarkmq.broker.grpc.calls import (
    OK,
    Call,
    RpcHandlers,
    RpcRefused,
    common_status,
    failure,
    rpc,
    status,
)
from skylarkmq.broker.grpc.names import topic_of, transaction_id
from skylarkmq.broker.grpc.queue_choice import QueueChoice
from skylarkmq.broker.grpc.validation import Checked, MessageRules
from skylarkmq.broker.processor.recall import handle_of
from skylarkmq.broker.processor.send import Placed, Sender, SendProcessor
from skylarkmq.broker.processor.send_answers import CODES
from skylarkmq.broker.requests.processor import Context
from skylarkmq.broker.transaction.ledger import TransactionLedger
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.errors import LocalProtocolError, RemoteProtocolError
from skylarkmq.protocol.flags import RMQ_SYS_TRANS_HALF_TOPIC, is_writeable
from skylarkmq.protocol.headers.send import SendMessageRequestHeader
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.topic_attributes import message_types_of
from skylarkmq.protocol.v5.codes import Code, status_code
from skylarkmq.protocol.v5.schema_pb2 import (
    GZIP,
    Message,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
    Status,
)
from skylarkmq.store.results import TAKEN, PutMessageStatus

_LATE: Final = (
    "the message is stored, but not as safely as the broker promises within its time; to send it "
    "again may store it twice"
)
MESSAGES_MAX: Final = 1000
"""Messages of one request."""
OPENED_MAX: Final = 32
"""By so many times the largest body those of a request may grow when they are opened."""
NO_HOST: Final = HostAddress("0.0.0.0", 0).pack()
StoreResult = tuple[PutMessageStatus, str]
Begun = tuple[Placed, Outcome[StoreResult]]
"""Where a message will lie, and what has come of it."""


class SendHandlers(RpcHandlers):
    """Stores what is sent. Loop thread."""

    def __init__(self, context: Context, send: SendProcessor, ledger: TransactionLedger) -> None:
        """Store by a processor of sends.

        Args:
            ledger: told of half messages whose producers name no offsets.
        """
        self._loop: asyncio.AbstractEventLoop | None = None  # once something was sent
        self._config = context.config
        self._body_max = context.config.store.max_message_size
        self._opening = asyncio.Lock()  # of requests with several compressed bodies
        self._clock = context.clock
        self._topics = context.topics
        self._send = send
        self._ledger = ledger
        self._rules = MessageRules(context.config.store)
        self._choice = QueueChoice(context.topics)

    @rpc("SendMessage", SendMessageRequest, SendMessageResponse, needs_task=False)
    async def send_message(self, call: Call, request: SendMessageRequest) -> SendMessageResponse:
        """Check, store, and answer each message."""
        messages = request.messages
        if not messages:
            raise RpcRefused(Code.MESSAGE_CORRUPTED, "there is no message to send")
        if len(messages) > MESSAGES_MAX:
            raise RpcRefused(
                Code.PAYLOAD_TOO_LARGE,
                f"a request has {MESSAGES_MAX} messages at most, this one has {len(messages)}",
            )
        name = topic_of(messages[0].topic)
        if len(messages) > 1 and any(message.topic.name != name for message in messages):
            raise RpcRefused(
                Code.MESSAGE_CORRUPTED, "the messages of one request must have the same topic"
            )
        topic = self._writable(name)
        sender = Sender(packed_host(call.peer), call.peer)
        if len(messages) == 1:
            types = message_types_of(topic.attributes_map)
            checked = self._rules.check(messages[0], name, types, self._clock.now_ms())
            placed, outcome = self._begin(sender, topic, checked)
            entry = self._entry(checked, placed, await outcome)
            return SendMessageResponse(status=entry.status, entries=[entry])
        is_packed = any(message.system_properties.body_encoding == GZIP for message in messages)
        async with self._opening if is_packed else nullcontext():
            return await self._send_several(call, sender, topic, messages)

    async def _send_several(
        self, call: Call, sender: Sender, topic: TopicConfig, messages: Sequence[Message]
    ) -> SendMessageResponse:
        checked = await self._check_several(topic, messages)
        topic = self._writable(topic.topic_name)  # as it is now
        begun: list[Begun | Status] = []
        in_turn = 0
        for one in checked:
            begun.append(self._try(sender, topic, one, call))
            in_turn += len(one.body)
            if in_turn > self._body_max:
                in_turn = 0
                await asyncio.sleep(0)
        entries = [
            SendResultEntry(status=each)
            if isinstance(each, Status)
            else self._entry(one, each[0], await each[1])
            for one, each in zip(checked, begun, strict=True)
        ]
        return SendMessageResponse(
            status=common_status(entry.status for entry in entries), entries=entries
        )

    async def _check_several(
        self, topic: TopicConfig, messages: Sequence[Message]
    ) -> list[Checked]:
        types, now_ms = message_types_of(topic.attributes_map), self._clock.now_ms()
        checked: list[Checked] = []
        grown = in_turn = 0
        for message in messages:
            one = self._rules.check(message, topic.topic_name, types, now_ms)
            checked.append(one)
            growth = len(one.body) - len(message.body)
            grown += growth
            if grown > OPENED_MAX * self._body_max:
                raise RpcRefused(
                    Code.PAYLOAD_TOO_LARGE,
                    f"the compressed bodies of the request grow by more than {OPENED_MAX} times "
                    f"{self._body_max} bytes (maxMessageSize) when they are opened: send fewer",
                )
            in_turn += growth
            if in_turn > self._body_max:
                in_turn = 0
                await asyncio.sleep(0)
        return checked

    def _try(
        self, sender: Sender, topic: TopicConfig, checked: Checked, call: Call
    ) -> Begun | Status:
        try:
            return self._begin(sender, topic, checked)
        except RemoteProtocolError as error:
            return failure(error, "SendMessage", call)

    def _begin(self, sender: Sender, topic: TopicConfig, checked: Checked) -> Begun:
        """Store a message with the others of this turn.

        Raises:
            RemoteProtocolError: it is not taken.
        """
        name = topic.topic_name
        header = SendMessageRequestHeader(
            producer_group=name,
            topic=name,
            default_topic="",
            default_topic_queue_nums=0,
            queue_id=self._choice.choose(name, checked.group, topic.write_queue_nums),
            sys_flag=checked.sys_flag,
            born_timestamp=checked.born_ms,
            flag=0,
            properties=checked.properties,
        )
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        outcome: Outcome[StoreResult] = Outcome(loop=self._loop)
        placed = self._send.put(
            sender, checked.body, header, lambda status, why: outcome.tell((status, why))
        )
        if placed.inner.topic == RMQ_SYS_TRANS_HALF_TOPIC:
            self._ledger.keys.note(name, checked.message_id, placed.queue_offset)
        return placed, outcome

    def _entry(self, checked: Checked, placed: Placed, stored: StoreResult) -> SendResultEntry:
        put, why = stored
        if put not in TAKEN:
            return SendResultEntry(status=status(status_code(CODES[put]), why))
        entry = SendResultEntry(
            status=OK if put is PutMessageStatus.PUT_OK else status(status_code(CODES[put]), _LATE),
            message_id=checked.message_id,
            transaction_id=transaction_id(checked.message_id, self._config.broker_name),
            offset=placed.queue_offset,
        )
        handle = handle_of(placed.inner, placed.target.topic, self._config.broker_name)
        if handle is not None:
            entry.recall_handle = handle
        return entry

    def _writable(self, name: str) -> TopicConfig:
        """Return a topic that takes messages."""
        topic = self._topics.get(name)
        if topic is None:
            raise RpcRefused(Code.TOPIC_NOT_FOUND, f"topic {name} does not exist: make it first")
        perm = topic.perm & self._config.broker_permission
        if not is_writeable(perm) or topic.write_queue_nums < 1:
            raise RpcRefused(
                Code.FORBIDDEN,
                f"topic {name} has no writable queue: its permission is {topic.perm}, the "
                f"broker's {self._config.broker_permission}, it has {topic.write_queue_nums} "
                "write queues",
            )
        return topic


@lru_cache(maxsize=1024)
def packed_host(peer: str) -> bytes:
    """Return the `host:port` of a client as records keep it."""
    host, _, port = peer.rpartition(":")
    try:
        return HostAddress(host.strip("[]"), int(port)).pack()
    except (LocalProtocolError, ValueError):  # it has left, and nobody knows where it was
        return NO_HOST
