"""The calls about messages at an endpoint that stands for several brokers (grpcProxyMode=CLUSTER).

Each is handled by the broker whose message it is, here or by `Forwarder`:

    ReceiveMessage                     the broker of the queue; without one this broker, or one of
                                       those that have the topic
    AckMessage, ChangeInvisible-       the one that the receipt handle names
    Duration, ForwardMessage...
    EndTransaction, RecallMessage      the one that the transaction's id, the recall handle names
    SendMessage                        of a message group always the same (`broker_of_group`); else
                                       one after the other, and the next one where a broker was
                                       surely not reached

Messages of one request that belong to several brokers are handed to each of them, and the answer
has all of them in order. Then what is wrong with one message refuses those of its broker alone.

What is handled here is refused while this broker does not lead; what was forwarded to this broker
is never forwarded again. A broker that cannot be reached is INTERNAL_SERVER_ERROR, also one that no
name server knows: it may come back, and clients try again.

When a client breaks a receive off, so does this endpoint, and the other broker gives the messages
back. Where that has sent all of them already, their invisible time is ended from here; such a
delivery counts as an attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

from skylarkmq.broker.forwarding.forwarder import Forwarder, NotForwarded, is_forwarded
from skylarkmq.broker.grpc.calls import (
    RECEIVE,
    Call,
    Rpc,
    RpcHandlers,
    RpcRefused,
    Send,
    common_status,
    failure,
    rpc,
    rpc_table,
)
from skylarkmq.broker.grpc.endpoint import REMOTING_CODES, SEND, Refusal
from skylarkmq.broker.grpc.names import group_of, split_transaction_id, topic_of
from skylarkmq.broker.grpc.other_brokers import OtherBroker, OtherBrokers
from skylarkmq.broker.grpc.receiving import ENTRIES_MAX, NoteReceive
from skylarkmq.broker.grpc.sending import MESSAGES_MAX
from skylarkmq.broker.pop.handles import parse
from skylarkmq.broker.processor.recall import parse_handle
from skylarkmq.protocol.bodies.route import QueueData
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.errors import shown
from skylarkmq.protocol.flags import is_readable, is_writeable
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code

log = logging.getLogger(__name__)

TURNS_MAX: Final = 10_000
"""Topics of which is kept which broker has its turn."""
GIVING_MAX: Final = 1_000
"""Receives that broke off, whose messages are being given back."""
AGAIN_MAX: Final = 10
"""How often a broker that is not found is looked for again, twice a second: an election's time."""
ANY: Final = ""
"""Stands for the broker of messages that any broker may have; no broker has an empty name."""
ACK: Final = "AckMessage"
CHANGE: Final = "ChangeInvisibleDuration"
FORWARD: Final = "ForwardMessageToDeadLetterQueue"
END: Final = "EndTransaction"
RECALL: Final = "RecallMessage"
Target = OtherBroker | None  # None: this broker
OwnTopic = Callable[[str], TopicConfig | None]


@lru_cache(maxsize=4096)
def broker_of_group(group: str, names: tuple[str, ...]) -> str:
    """Return which of some brokers a message group belongs to.

    The group's hash with each name, of which the greatest wins: whichever broker comes or goes,
    the groups of the others stay where they are. The hash that chooses a queue inside the broker
    is another one, so that a broker's groups are spread over all its queues.
    """
    return max(names, key=lambda name: blake2b(f"{name}\n{group}".encode(), digest_size=8).digest())


class ClusterRpcs(RpcHandlers):
    """Handles calls here or forwards them. Loop thread."""

    def __init__(
        self,
        local: Iterable[RpcHandlers],
        forwarder: Forwarder,
        other_brokers: OtherBrokers,
        own_name: str,
        own_topic: OwnTopic,
        refusal: Refusal,
        note_receive: NoteReceive,
    ) -> None:
        """Stand before the handlers of this broker.

        Args:
            local: handle what is for this broker.
            other_brokers: knows the other brokers, and whether this one leads.
            own_name: of this broker.
            own_topic: returns a topic of this broker as clients may be told of it.
            refusal: tells by a request code of remoting what this broker refuses just now.
            note_receive: told of each receive that is forwarded; may refuse it.
        """
        self._local = rpc_table(local)
        self._forwarder = forwarder
        self._other_brokers = other_brokers
        self._own_name = own_name
        self._own_topic = own_topic
        self._refusal = refusal
        self._note_receive = note_receive
        self._turns: dict[str, int] = {}  # by topic
        self._giving: set[asyncio.Task[None]] = set()  # back, of receives that broke off

    # To whom

    async def _named(self, call: Call, broker_name: str, topic: schema_pb2.Resource) -> Target:
        """Return the broker of a name; an empty one is this broker's.

        Raises:
            NotForwarded: no replica of this broker leads, which has the topic.
            RpcRefused: there is no such broker, or the topic is none.
        """
        name = broker_name or self._own_name
        if is_forwarded(call) or self._other_brokers.is_own(name):
            return None
        wanted = topic_of(topic)
        found = await self._other_brokers.find(name, wanted)
        if found is None:
            why = (
                f"no endpoint of a broker {shown(name)} with topic {topic.name} is known; it may "
                "come back"
            )
            if name == self._own_name and self._own_topic(wanted) is not None:
                # Another replica of it may come to lead.
                raise NotForwarded(Code.INTERNAL_SERVER_ERROR, why, reached=False)
            raise RpcRefused(Code.INTERNAL_SERVER_ERROR, why)
        return found

    async def _brokers(self, topic: str, *, writes: bool) -> dict[str, Target]:
        """Return the brokers where a topic may be written or read, by name, in their order."""
        other_brokers = self._other_brokers.known(topic)
        if other_brokers is None:
            other_brokers = await self._other_brokers.of(topic)
        found: dict[str, Target] = {
            each.name: each for each in other_brokers if _may_use(each.queues, writes=writes)
        }
        if self._other_brokers.is_own(self._own_name):
            found.pop(self._own_name, None)
            own = self._own_topic(topic)
            if own is not None and _may_use(own, writes=writes):
                found[self._own_name] = None
        return {name: found[name] for name in sorted(found)}

    def _in_turn(self, topic: str, brokers: Mapping[str, Target]) -> list[Target]:
        """Return brokers, beginning with another one each time."""
        targets = list(brokers.values())
        turn = self._turns.pop(topic, 0) % len(targets)
        if len(self._turns) >= TURNS_MAX:
            self._turns.clear()
        self._turns[topic] = turn + 1
        return targets[turn:] + targets[:turn]

    # How

    def _here(self, name: str) -> Rpc:
        """Return the handler of this broker.

        Raises:
            RemoteProtocolError: it does not do such things just now.
        """
        refusal = self._refusal(REMOTING_CODES[name])
        if refusal is not None:
            raise refusal
        return self._local[name]

    async def _answer(self, name: str, target: Target, call: Call, request: Any) -> Any:
        if target is None:
            return await self._here(name).handler(call, request)
        return await self._forwarder.unary(self._local[name], target, call, request)

    async def _named_answer(
        self, name: str, call: Call, broker_name: str, topic: schema_pb2.Resource, request: Any
    ) -> Any:
        failed_count = 0
        while True:
            try:
                target = await self._named(call, broker_name, topic)
                return await self._answer(name, target, call, request)
            except NotForwarded as error:
                failed_count += 1
                if not await self._may_be_found(error, failed_count, call, topic_of(topic)):
                    raise

    async def _may_be_found(
        self, error: NotForwarded, failed_count: int, call: Call, topic: str
    ) -> bool:
        """Return whether to try a call again that did not arrive: another replica may lead now."""
        may = not error.reached and failed_count <= AGAIN_MAX
        return may and await self._other_brokers.again(topic, call.deadline_s)

    async def _joined(
        self,
        name: str,
        call: Call,
        entries: Sequence[Any],
        pieces: Iterable[tuple[str, Sequence[int], Any]],
        answered: Callable[[str, Any], Awaitable[Any]],
    ) -> Any:
        """Return one answer made of those of several brokers, its entries in order.

        Args:
            entries: one for each of the request's, which stands where its broker gives none.
            pieces: of `_pieces`.
            answered: has one broker answer its piece.
        """

        async def part(broker_name: str, places: Sequence[int], piece: Any) -> None:
            answer: Any
            try:
                answer = await answered(broker_name, piece)
            except Exception as error:
                answer = self._local[name].answer(failure(error, name, call))
            for number, place in enumerate(places):
                if number < len(answer.entries):
                    entries[place].CopyFrom(answer.entries[number])
                else:
                    entries[place].status.CopyFrom(answer.status)

        await asyncio.gather(*(part(*each) for each in pieces))
        status = common_status(entry.status for entry in entries)
        return self._local[name].response(status=status, entries=entries)

    # Of consumers

    @rpc(RECEIVE, schema_pb2.ReceiveMessageRequest, schema_pb2.ReceiveMessageResponse)
    async def receive_message(
        self, call: Call, request: schema_pb2.ReceiveMessageRequest, send: Send
    ) -> None:
        """Send messages of one broker."""
        queue = request.message_queue
        target = None
        if queue.broker.name:
            target = await self._named(call, queue.broker.name, queue.topic)
        elif not is_forwarded(call):
            topic = topic_of(queue.topic)
            brokers = await self._brokers(topic, writes=False)
            if self._own_name in brokers:
                target = brokers[self._own_name]
            elif brokers:
                target = self._in_turn(topic, brokers)[0]
        if target is None:
            await self._here(RECEIVE).handler(call, request, send)
        else:
            topic, group = topic_of(queue.topic), group_of(request.group)
            self._note_receive(call, group, topic, request.filter_expression)
            await self._receive(target, call, request, send)

    async def _receive(
        self,
        target: OtherBroker,
        call: Call,
        request: schema_pb2.ReceiveMessageRequest,
        send: Send,
    ) -> None:
        code, handles = 0, list[str]()

        def read(data: bytes) -> schema_pb2.ReceiveMessageResponse:
            answer: schema_pb2.ReceiveMessageResponse
            answer = schema_pb2.ReceiveMessageResponse.FromString(data)
            if answer.HasField("message"):
                handles.append(answer.message.system_properties.receipt_handle)
            return answer

        async with self._forwarder.stream(self._local[RECEIVE], target, call) as stream:
            await stream.write(request.SerializeToString())
            stream.end()
            try:
                data = await self._forwarder.polled(stream)
                while data is not None:
                    answer = read(data)
                    if answer.HasField("status"):
                        code = answer.status.code
                    await send(answer)
                    data = await stream.read()
            except BaseException:
                if stream.has_ended:  # else it gives all of them back by itself
                    while (data := await stream.read()) is not None:
                        read(data)
                    self._give_back(target, call, request, handles)
                raise
        self._forwarder.count(target, code)

    def _give_back(
        self,
        target: OtherBroker,
        call: Call,
        request: schema_pb2.ReceiveMessageRequest,
        handles: Sequence[str],
    ) -> None:
        """Have another broker's messages come again that a client did not take."""
        if len(self._giving) < GIVING_MAX:
            giving = self._given_back(target, replace(call, deadline_s=None), request, handles)
            task = asyncio.ensure_future(giving)
            self._giving.add(task)
            task.add_done_callback(self._giving.discard)

    async def _given_back(
        self,
        target: OtherBroker,
        call: Call,
        request: schema_pb2.ReceiveMessageRequest,
        handles: Sequence[str],
    ) -> None:
        for handle in handles:
            change = schema_pb2.ChangeInvisibleDurationRequest(
                group=request.group, topic=request.message_queue.topic, receipt_handle=handle
            )
            try:
                await self._forwarder.unary(self._local[CHANGE], target, call, change)
            except NotForwarded as error:  # they come again when their time is over
                log.info("messages are not given back: %s", error.message)
                return

    @rpc(ACK, schema_pb2.AckMessageRequest, schema_pb2.AckMessageResponse)
    async def ack_message(self, call: Call, request: schema_pb2.AckMessageRequest) -> Any:
        """Note messages of any brokers as done."""
        entries, topic = request.entries, request.topic
        parts = _places(_broker_of_handle(entry.receipt_handle) for entry in entries)
        if len(parts) != 1 and not 0 < len(entries) <= ENTRIES_MAX:
            parts = {"": [0]}  # this broker refuses it as a whole
        if len(parts) == 1 or is_forwarded(call):
            return await self._named_answer(ACK, call, next(iter(parts)), topic, request)

        async def answered(broker_name: str, piece: Any) -> Any:
            return await self._named_answer(ACK, call, broker_name, topic, piece)

        results = [
            schema_pb2.AckMessageResultEntry(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle
            )
            for entry in entries
        ]
        pieces = _pieces(request, "entries", parts)
        return await self._joined(ACK, call, results, pieces, answered)

    @rpc(
        CHANGE,
        schema_pb2.ChangeInvisibleDurationRequest,
        schema_pb2.ChangeInvisibleDurationResponse,
    )
    async def change_invisible_duration(
        self, call: Call, request: schema_pb2.ChangeInvisibleDurationRequest
    ) -> Any:
        """Let a message come again after another time."""
        broker_name = _broker_of_handle(request.receipt_handle)
        return await self._named_answer(CHANGE, call, broker_name, request.topic, request)

    @rpc(
        FORWARD,
        schema_pb2.ForwardMessageToDeadLetterQueueRequest,
        schema_pb2.ForwardMessageToDeadLetterQueueResponse,
    )
    async def forward_message_to_dead_letter_queue(
        self, call: Call, request: schema_pb2.ForwardMessageToDeadLetterQueueRequest
    ) -> Any:
        """Move a message to the group's dead letters."""
        broker_name = _broker_of_handle(request.receipt_handle)
        return await self._named_answer(FORWARD, call, broker_name, request.topic, request)

    # Of producers

    @rpc(SEND, schema_pb2.SendMessageRequest, schema_pb2.SendMessageResponse)
    async def send_message(self, call: Call, request: schema_pb2.SendMessageRequest) -> Any:
        """Store messages of one topic on the brokers that they belong to."""
        messages = request.messages
        if is_forwarded(call):
            return await self._here(SEND).handler(call, request)
        topics = {message.topic.name for message in messages}
        if len(topics) != 1 or len(messages) > MESSAGES_MAX:
            return await self._local[SEND].handler(call, request)  # who refuses it
        topic = topic_of(messages[0].topic)
        brokers = await self._brokers(topic, writes=True)
        if not brokers:
            return await self._named_answer(SEND, call, "", messages[0].topic, request)
        names = tuple(brokers)
        groups = [message.system_properties.message_group for message in messages]
        parts = _places(broker_of_group(group, names) if group else ANY for group in groups)
        if len(parts) == 1:
            return await self._sent(call, topic, brokers, next(iter(parts)), request)

        async def answered(broker_name: str, piece: Any) -> Any:
            return await self._sent(call, topic, brokers, broker_name, piece)

        results = [schema_pb2.SendResultEntry() for _ in messages]
        pieces = _pieces(request, "messages", parts)
        return await self._joined(SEND, call, results, pieces, answered)

    async def _sent(
        self,
        call: Call,
        topic: str,
        brokers: Mapping[str, Target],
        broker_name: str,
        request: schema_pb2.SendMessageRequest,
    ) -> Any:
        """Return the answer of a broker, or of the first one that is reached in time."""
        failed_count = 0
        while True:
            try:
                return await self._sent_once(call, topic, brokers, broker_name, request)
            except NotForwarded as error:
                failed_count += 1
                if not await self._may_be_found(error, failed_count, call, topic):
                    raise
                found = await self._brokers(topic, writes=True)
                if not found:
                    named = request.messages[0].topic
                    return await self._named_answer(SEND, call, "", named, request)
                if broker_name not in (ANY, *found):
                    raise
                brokers = found

    async def _sent_once(
        self,
        call: Call,
        topic: str,
        brokers: Mapping[str, Target],
        broker_name: str,
        request: schema_pb2.SendMessageRequest,
    ) -> Any:
        """As `_sent`, where brokers are said to be."""
        if broker_name != ANY:
            return await self._answer(SEND, brokers[broker_name], call, request)
        failed: Exception | None = None
        for target in self._in_turn(topic, brokers):
            refusal = self._refusal(REMOTING_CODES[SEND]) if target is None else None
            if refusal is not None:
                failed = refusal
                continue
            try:
                return await self._answer(SEND, target, call, request)
            except NotForwarded as error:
                if error.reached:
                    raise
                failed = error
        assert failed is not None  # there is a broker
        raise failed

    @rpc(END, schema_pb2.EndTransactionRequest, schema_pb2.EndTransactionResponse)
    async def end_transaction(self, call: Call, request: schema_pb2.EndTransactionRequest) -> Any:
        """Commit or roll back a transaction."""
        _, broker_name = split_transaction_id(request.transaction_id)
        return await self._named_answer(END, call, broker_name, request.topic, request)

    @rpc(RECALL, schema_pb2.RecallMessageRequest, schema_pb2.RecallMessageResponse)
    async def recall_message(self, call: Call, request: schema_pb2.RecallMessageRequest) -> Any:
        """Take a message back that waits for its time."""
        broker_name = parse_handle(request.recall_handle).broker_name
        return await self._named_answer(RECALL, call, broker_name, request.topic, request)


def _may_use(queues: QueueData | TopicConfig, *, writes: bool) -> bool:
    if writes:
        return is_writeable(queues.perm) and queues.write_queue_nums > 0
    return is_readable(queues.perm) and queues.read_queue_nums > 0


def _broker_of_handle(text: str) -> str:
    """Return the broker's name in a receipt handle; empty: no broker has made it."""
    try:
        return parse(text)[1]
    except ValueError:
        return ""


def _places(names: Iterable[str]) -> dict[str, list[int]]:
    """Return the places of each name."""
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(name, []).append(place)
    return places


def _pieces(
    request: Any, field: str, parts: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, Sequence[int], Any]]:
    """Yield each broker's name, its entries' places, and a request with these alone."""
    entries = list(getattr(request, field))
    rest = type(request)()
    rest.CopyFrom(request)
    rest.ClearField(field)
    for name, places in parts.items():
        piece = type(request)()
        piece.CopyFrom(rest)
        getattr(piece, field).extend(entries[place] for place in places)
        yield name, places, piece
