"""Messages by key, id, place and time; dead letters and their redrive; traces.

A redrive of a dead letter sends a copy, under the message's own id: to the group's retry topic,
from which this group alone gets it, or to the topic that it was sent to first, where all groups get
it. The dead letter itself stays in the log. The caller keeps which letters were sent, and, to send
each once, where a copy goes before it is sent: `find_copy` looks there after a kill or a time-out.

Clients with tracing on write a trace some moments after the event. They need a broker with
`traceTopicEnable`, or a trace topic of their own.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/MQAdminImpl.java (queryMessage,
viewMessage, queryMessageByUniqKey), broker/.../processor/SendMessageProcessor.java
(asyncConsumerSendMsgBack, handleRetryAndDLQ), tools/.../message/QueryMsgTraceByIdSubCommand.java
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from skylarkmq.client.admin.base import AdminBase, TopicPlace, from_ms
from skylarkmq.client.admin.reading import MessageScan
from skylarkmq.client.admin.results import Result
from skylarkmq.client.clock import ceil_ms, floor_ms
from skylarkmq.client.errors import (
    BrokerError,
    ConnectionFailed,
    NotConfirmed,
    NotFound,
    RocketMQError,
    RouteNotFound,
)
from skylarkmq.client.message_view import StoredMessage, stored_message
from skylarkmq.client.producer.lanes import by_hash
from skylarkmq.client.producer.trace import TRACE_TOPIC
from skylarkmq.client.producer.trace_records import (
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceContextCode,
    TraceMessageType,
    TraceRecord,
    decode_traces,
)
from skylarkmq.client.send_result import STORED_CODES
from skylarkmq.client.wire.api_send import send_refusal, stored_answer
from skylarkmq.client.wire.ask import read_messages
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.bodies.route import TopicRouteData
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError, WireError
from skylarkmq.protocol.flags import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    DEFAULT_PRODUCER_GROUP,
    RETRY_GROUP_TOPIC_PREFIX,
    MessageSysFlag,
    dlq_topic,
    retry_topic,
)
from skylarkmq.protocol.headers.fields import LONG_MAX
from skylarkmq.protocol.headers.pull import QueryMessageRequestHeader
from skylarkmq.protocol.headers.send import SendMessageRequestHeader, encode_send_header_v2
from skylarkmq.protocol.message import MessageExt, MessageQueue
from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.remoting_command import RemotingCommand

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
UNIQUE_KEY_MAX: Final = 32
QUERY_TIMEOUT_S: Final = 15.0
HAVE_OR_NOT: Final = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND)})
RedriveTarget = Literal["group", "topic"]
DROPPED_NAMES: Final = frozenset(
    {
        names.DELAY, names.RECONSUME_TIME, names.MAX_RECONSUME_TIMES, names.CLUSTER, names.WAIT,
        names.REAL_TOPIC, names.REAL_QID, names.TRAN_MSG, names.PGROUP, names.MSG_REGION,
        names.TRACE_ON, names.MIN_OFFSET, names.MAX_OFFSET, names.CONSUME_START_TIME,
        names.TRAN_PREPARED_QUEUE_OFFSET, names.TRANSACTION_CHECK_TIMES, names.TIMER_DELIVER_MS,
        names.TIMER_DELAY_MS, names.TIMER_DELAY_SEC, names.TIMER_OUT_MS, names.TIMER_ENQUEUE_MS,
        names.TIMER_DEQUEUE_MS, names.TIMER_ROLL_TIMES,
    }
)  # fmt: skip
"""Of the first delivery alone; what the application put there stays."""
KEPT_FLAGS: Final = MessageSysFlag.COMPRESSED_FLAG | MessageSysFlag.COMPRESSION_MASK
RETRY_QUEUES: Final = 1
NO_ROUTE: Final = TopicRouteData(queue_datas=[], broker_datas=[])
TRACE_MESSAGES_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class CopyPlace(Result):
    """Where the copy of a dead letter is, or is looked for."""

    queue: MessageQueue
    """As brokers know it."""
    offset: int
    """Of a copy that is stored: its own. Before that: where the queue ended."""


@dataclass(frozen=True, slots=True)
class RedriveOutcome(Result):
    """What became of one dead letter.

    `sent`: its copy is stored, at `place`. `failed`: no copy is stored; `error` says why.
    `unknown`: no answer came, or replicas did not confirm it. `find_copy` finds out, with `place`.
    """

    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    target: str
    """The topic of the copy, as the application knows it."""
    status: Literal["sent", "failed", "unknown"]
    error: str = ""
    place: CopyPlace | None = None


@dataclass(frozen=True, slots=True)
class SendTrace(Result):
    """One send, by its producer. `kind` is normal, half, commit or delayed."""

    at: datetime | None
    group: str
    topic: str
    tags: str
    keys: str
    store_host: str
    client_host: str
    size: int
    cost_ms: int
    kind: str
    offset_msg_id: str
    success: bool


@dataclass(frozen=True, slots=True)
class DeliveryTrace(Result):
    """One delivery to a handler. `outcome` is success, time_out, exception, returned_null or
    failed; empty while the handler has not ended, or its client has not told."""

    group: str
    started_at: datetime | None
    retries: int
    cost_ms: int | None = None
    success: bool | None = None
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class EndTrace(Result):
    """How a transaction ended, by its producer; `state` is RocketMQ's name."""

    at: datetime | None
    group: str
    topic: str
    transaction_id: str
    state: str
    from_check: bool


@dataclass(frozen=True, slots=True)
class MessageTrace(Result):
    """All that is known of a message, the oldest first; three empty parts when that is nothing."""

    msg_id: str
    sends: tuple[SendTrace, ...]
    deliveries: tuple[DeliveryTrace, ...]
    ends: tuple[EndTrace, ...]


class MessageAdmin(AdminBase):
    """The part of Admin for messages, dead letters and traces."""

    async def query(
        self,
        topic: str,
        *,
        key: str | None = None,
        msg_id: str | None = None,
        start: datetime | None = None,
        stop: datetime | None = None,
        limit: int = 64,
    ) -> list[StoredMessage]:
        """Return messages of a topic, the oldest first, `limit` at most: of many, the newest ones
        by key or id, the first ones by time alone.

        Keys and ids come from the brokers' index, which forgets old ones and is a moment late;
        by time alone the queues are read, so `scan` is better for many.

        Args:
            key: one of a message's keys.
            msg_id: the id that the producer gave; retries and dead letters, which keep it, are in
                their own topics.
            start, stop: stored at `start` or later, before `stop`.

        Raises:
            RouteNotFound: there is no such topic.
            ValueError: both `key` and `msg_id`, or nothing to look for.
        """
        if limit < 1:
            raise ValueError("limit is 1 or more")
        if key is not None and msg_id is not None:
            raise ValueError("key or msg_id, not both")
        wanted = key if msg_id is None else msg_id
        if wanted is not None:
            place = await self._place(self._topic(topic))
            found = await self._by_key(place, wanted, msg_id is not None, start, stop, limit)
            return found[-limit:]
        if start is None and stop is None:
            raise ValueError("query wants a key, a msg_id, or a time")
        scan = self.scan(topic, start=start, stop=stop)
        messages: list[StoredMessage] = []
        async for message in scan:
            insort(messages, message, key=_stored_ms)
            if len(messages) > limit:
                messages.pop()
                if _stored_ms(message) >= _stored_ms(messages[-1]):
                    scan.skip_queue()  # what follows in it is younger still
        return messages

    async def message(self, offset_msg_id: str) -> StoredMessage | None:
        """Return the message at a place, which an offset id names; None when it is gone.

        The id has the address that the broker had when it stored the message. Where no broker has
        it now, as the broker is registered by a host name, has moved, or another one leads in its
        place, all brokers are asked: whoever has the message has its id, too.

        Raises:
            ValueError: no offset id.
            RocketMQError: a broker does not answer, and none of the others has the message.
        """
        try:
            found = await self._find_message(offset_msg_id)
        except RemoteProtocolError as error:
            hint = "an id that a producer made is found by query(topic, msg_id=...)"
            raise ValueError(f"{error.remark}; {hint}") from error
        return None if found is None else stored_message(found[2], found[0], self._namespace)

    def scan(
        self,
        topic: str,
        *,
        start: datetime | None = None,
        stop: datetime | None = None,
        after: Mapping[MessageQueue, int] | None = None,
    ) -> MessageScan:
        """Go through a topic, queue after queue: `async for message in admin.scan(...)`.

        It ends where each queue ended when it began, holds one page of messages at a time, joins
        no group and commits nothing. `progress` of what is returned tells how far it is.

        Args:
            start, stop: stored at `start` or later, before `stop`.
            after: go on there, in these queues only: `progress.positions` of an earlier scan.

        Raises:
            RouteNotFound: there is no such topic; at the first message.
            NotFound: a queue of `after` is not there, for instance while its broker is away; at the
                first message.
        """
        return self._scan(self._topic(topic), start, stop, after)

    # Inside: scans and queries

    def _scan(
        self,
        topic: str,
        start: datetime | None,
        stop: datetime | None,
        after: Mapping[MessageQueue, int] | None,
        *,
        may_be_absent: bool = False,
    ) -> MessageScan:
        find = self._place_if_any if may_be_absent else self._place
        return MessageScan(
            self._services,
            self._api.timeout_s,
            lambda: find(topic),
            None if start is None else floor_ms(start),
            None if stop is None else ceil_ms(stop),
            after,
            self._unanswered,
        )

    async def _place_if_any(self, topic: str) -> TopicPlace | None:
        """Return where a topic lives; None when the brokers that there are have none.

        Raises:
            RouteNotFound: there are no brokers.
        """
        place = await self._find_place(topic)
        if place is None and not (await self._cluster_info()).broker_addr_table:
            hint = f"No broker is registered with {', '.join(self._name_servers)} (yet)"
            raise RouteNotFound(topic, "no_broker", hint)
        return place

    async def _by_key(
        self,
        place: TopicPlace,
        key: str,
        unique: bool,
        start: datetime | None,
        stop: datetime | None,
        limit: int,
    ) -> list[StoredMessage]:
        header = QueryMessageRequestHeader(
            topic=place.topic,
            key=key,
            max_num=UNIQUE_KEY_MAX if unique else limit,
            begin_timestamp=0 if start is None else floor_ms(start),
            end_timestamp=LONG_MAX if stop is None else ceil_ms(stop) - 1,
        )

        async def ask(broker: str, address: str) -> list[StoredMessage]:
            answer = await self._api.call(
                address,
                RequestCode.QUERY_MESSAGE,
                header,
                extra={UNIQUE_KEY_QUERY: "true" if unique else "false"},
                accepted=HAVE_OR_NOT,
                timeout_s=max(QUERY_TIMEOUT_S, self._timeout_s),
            )
            found = read_messages(answer, address) if answer.code == ResponseCode.SUCCESS else []
            return [
                stored_message(message, broker, self._namespace)
                for message in found
                if message.topic == place.topic and _has(message, key, unique)
            ]

        lists = await self._ask(ask, place.masters)
        return sorted(
            (message for found in lists.values() for message in found),
            key=_stored_ms,
        )

    def dead_letters(
        self,
        group: str,
        *,
        start: datetime | None = None,
        stop: datetime | None = None,
        after: Mapping[MessageQueue, int] | None = None,
    ) -> MessageScan:
        """Go through a group's dead letters: `async for letter in admin.dead_letters(...)`.

        A group without any has none, which is no error.

        Args:
            start, stop: given up at `start` or later, before `stop`.
            after: go on there: `progress.positions` of an earlier scan.

        Raises:
            NotFound: a queue of `after` is not there, as while its broker is away; at the first
                letter.
            RouteNotFound: no broker is registered with the name server; at the first letter.
        """
        topic = dlq_topic(self._group(group))
        return self._scan(topic, start, stop, after, may_be_absent=True)

    async def plan_copy(
        self, letter: StoredMessage, group: str, *, to: RedriveTarget = "group"
    ) -> CopyPlace:
        """Return the queue that a copy of a group's dead letter goes to, and where it ends now.

        Args:
            to: "group": this group alone gets the copy, whatever the topic; "topic": it goes to the
                topic that the letter was sent to first, where every group gets it.

        Raises:
            NotFound: there is nowhere to send it.
            RocketMQError: a server refuses or does not answer.
        """
        queue, address = await self._copy_queue(letter, self._copy_topic(letter, group, to))
        end = await self._services.consumer_api.max_offset(address, queue, self._timeout_s)
        return CopyPlace(queue, max(0, end))

    async def redrive_dead_letter(
        self,
        letter: StoredMessage,
        group: str,
        *,
        to: RedriveTarget = "group",
        place: CopyPlace | None = None,
    ) -> RedriveOutcome:
        """Send a dead letter of a group again. A failure is an outcome.

        The copy has the letter's id, keys, tags, properties and body, and its full number of tries.

        Args:
            to: see `plan_copy`.
            place: what `plan_copy` returned; None: it is asked now.
        """
        target = self._copy_topic(letter, group, to)
        status: Literal["sent", "failed", "unknown"] = "failed"
        error = ""
        try:
            if place is None:
                place = await self.plan_copy(letter, group, to=to)
            address = (await self._masters(brokers=[place.queue.broker_name])).popitem()[1]
            place = CopyPlace(place.queue, await self._send_copy(letter, place.queue, address))
            status = "sent"
        except _UnknownError as unknown:
            status, error = "unknown", str(unknown)
        except RocketMQError as failure:
            error = str(failure)
        return RedriveOutcome(
            letter.msg_id,
            letter.offset_msg_id,
            letter.queue,
            letter.queue_offset,
            self._namespace.unwrap(target),
            status,
            error,
            place,
        )

    async def find_copy(
        self, letter: StoredMessage, place: CopyPlace, *, taken: Collection[CopyPlace] = ()
    ) -> CopyPlace | None:
        """Return where the copy of a dead letter is, None when it is not there.

        Args:
            place: what `plan_copy` returned before the copy was sent.
            taken: copies of other letters: two letters may have the same id.

        Raises:
            NotFound: it cannot be told, because the queue is gone, or no longer goes back so far.
            RocketMQError: the broker does not answer.
        """
        queue = place.queue
        masters = await self._masters(brokers=[queue.broker_name])
        address, api = masters[queue.broker_name], self._services.consumer_api
        cannot_tell = NotFound(
            f"queue {queue.queue_id} of {queue.topic} on {queue.broker_name} has no offset "
            f"{place.offset} any more, so whether the copy is there cannot be told"
        )
        if place.offset > await api.max_offset(address, queue, self._timeout_s):
            raise cannot_tell

        async def find() -> TopicPlace:  # the route may not have a new retry topic yet
            return TopicPlace(queue.topic, NO_ROUTE, masters, (queue,), ())

        after = {self._namespace.unwrap_queue(queue): place.offset}
        async for message in MessageScan(self._services, self._timeout_s, find, None, None, after):
            copy = CopyPlace(queue, message.queue_offset)
            # One that was consumed and failed again is a later copy, which counts its tries.
            is_first = message.reconsume_times == 0
            if message.msg_id == letter.msg_id and is_first and copy not in taken:
                return copy
        if place.offset < await api.min_offset(address, queue, self._timeout_s):
            raise cannot_tell
        return None

    # Inside: copies of dead letters, and traces

    def _copy_topic(self, letter: StoredMessage, group: str, to: RedriveTarget) -> str:
        """Return where a letter's copy goes, as brokers know it; empty: the letter does not say."""
        if to not in ("group", "topic"):
            raise ValueError(f"to is group or topic, not {to!r}")
        wrapped = self._group(group)
        if letter.topic != self._namespace.unwrap(dlq_topic(wrapped)):
            raise ValueError(f"{letter.offset_msg_id} is no dead letter of {group}")
        if to == "group":
            return retry_topic(wrapped)
        return letter.stored.properties.get(names.RETRY_TOPIC, "")

    async def _copy_queue(self, letter: StoredMessage, target: str) -> tuple[MessageQueue, str]:
        """Return where the copy goes, on the letter's own broker where it can, and the address."""
        if not target:
            raise NotFound("the letter does not say which topic it was sent to first")
        place = await self._find_place(target)
        queues = [] if place is None else [q for q in place.write_queues if q[1] in place.masters]
        if place is None or not queues:
            if not target.startswith(RETRY_GROUP_TOPIC_PREFIX):
                raise NotFound(f"topic {target} has no queue to write to any more")
            # Brokers make a retry topic when something is sent to it.
            broker = letter.queue.broker_name
            masters = await self._masters(brokers=[broker])
            return MessageQueue(target, broker, 0), masters[broker]
        key = letter.stored.properties.get(names.SHARDING_KEY)
        queue = queue_of_copy(queues, key, letter.queue.broker_name, letter.queue_offset)
        return queue, place.masters[queue.broker_name]

    async def _send_copy(self, letter: StoredMessage, queue: MessageQueue, address: str) -> int:
        """Send a copy; return its queue offset.

        Raises:
            _UnknownError: it is stored, or not.
            RocketMQError: it is not stored.
        """
        stored = letter.stored
        properties = {
            name: value for name, value in stored.properties.items() if name not in DROPPED_NAMES
        }
        # Very old clients gave none, and without it a copy could not be found.
        properties.setdefault(names.UNIQ_KEY, letter.msg_id)
        if queue.topic == properties.get(names.RETRY_TOPIC):
            del properties[names.RETRY_TOPIC]
            properties.pop(names.ORIGIN_MESSAGE_ID, None)
            properties[names.STORE_AGAIN] = "true"  # the topic may know the letter's id
        header = header_of_copy(
            queue,
            properties,
            born_ms=stored.born_timestamp,
            flag=stored.flag,
            sys_flag=stored.sys_flag & KEPT_FLAGS,
        )
        fields = encode_send_header_v2(header)
        command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, fields, stored.body)
        try:
            answer = await self._services.remoting.call(address, command, self._timeout_s)
            if answer.code in STORED_CODES:
                return stored_answer(answer)[4]
        except RocketMQError as error:
            if isinstance(error, ConnectionFailed) and not error.reached:
                raise
            raise _UnknownError(str(error)) from error
        refusal = send_refusal(answer, address)
        # A broker answers SYSTEM_ERROR for any fault, before its store and after it.
        is_any = type(refusal) is BrokerError and answer.code == ResponseCode.SYSTEM_ERROR
        if is_any or isinstance(refusal, NotConfirmed):
            raise _UnknownError(str(refusal))
        raise refusal

    async def trace(self, msg_id: str, *, topic: str = TRACE_TOPIC) -> MessageTrace:
        """Return what clients told of the message with this `msg_id`.

        Args:
            topic: where they tell it, as brokers know it: namespaces do not part traces.

        Raises:
            RouteNotFound: there is no trace topic.
        """
        place = await self._place(topic)
        told = await self._by_key(place, msg_id, False, None, None, TRACE_MESSAGES_MAX)
        records: list[TraceRecord] = []
        for message in told:
            try:
                found = decode_traces(message.body)
            except WireError:
                continue  # somebody else's message
            records += [record for record in found if record.msg_id == msg_id]
        sends = [record for record in records if isinstance(record, PubTrace)]
        ends = [record for record in records if isinstance(record, EndTransactionTrace)]
        return MessageTrace(
            msg_id,
            tuple(self._send(one) for one in sorted(sends, key=lambda one: one.timestamp_ms)),
            tuple(self._deliveries(records)),
            tuple(self._end(one) for one in sorted(ends, key=lambda one: one.timestamp_ms)),
        )

    def _send(self, record: PubTrace) -> SendTrace:
        return SendTrace(
            from_ms(record.timestamp_ms),
            self._namespace.unwrap(record.group),
            self._namespace.unwrap(record.topic),
            record.tags,
            record.keys,
            record.store_host,
            record.client_host,
            record.body_size,
            record.cost_ms,
            _kind(record.message_type),
            record.offset_msg_id,
            record.success,
        )

    def _deliveries(self, records: list[TraceRecord]) -> list[DeliveryTrace]:
        """Join the begin and the end of each delivery."""
        befores = {
            record.request_id: record for record in records if isinstance(record, SubBeforeTrace)
        }
        afters = {
            record.request_id: record for record in records if isinstance(record, SubAfterTrace)
        }
        found: list[tuple[int, DeliveryTrace]] = []
        for request_id in befores.keys() | afters.keys():
            before, after = befores.get(request_id), afters.get(request_id)
            group = before.group if before is not None else after.group if after is not None else ""
            started_ms = before.timestamp_ms if before is not None else 0
            one = DeliveryTrace(
                self._namespace.unwrap(group),
                from_ms(started_ms),
                before.retry_times if before is not None else 0,
                after.cost_ms if after is not None else None,
                after.success if after is not None else None,
                _outcome(after.context_code) if after is not None else "",
            )
            found.append((started_ms, one))
        return [one for _, one in sorted(found, key=lambda item: item[0])]

    def _end(self, record: EndTransactionTrace) -> EndTrace:
        return EndTrace(
            from_ms(record.timestamp_ms),
            self._namespace.unwrap(record.group),
            self._namespace.unwrap(record.topic),
            record.transaction_id,
            record.state,
            record.from_check,
        )


class _UnknownError(Exception):
    """Whether a copy is stored is not known."""


def queue_of_copy(
    queues: Sequence[MessageQueue], sharding_key: str | None, broker_name: str, queue_offset: int
) -> MessageQueue:
    """Return where the copy of a dead letter goes, of a topic's writable queues, at least one.

    By its sharding key, as its producer chose; else on the letter's own broker, in turn.
    """
    if sharding_key is not None:
        return by_hash(queues, sharding_key)
    near = [queue for queue in queues if queue.broker_name == broker_name] or queues
    return near[queue_offset % len(near)]


def header_of_copy(
    queue: MessageQueue, properties: Mapping[str, str], *, born_ms: int, flag: int, sys_flag: int
) -> SendMessageRequestHeader:
    """Return the header with which the copy of a dead letter is sent to a queue."""
    return SendMessageRequestHeader(
        producer_group=DEFAULT_PRODUCER_GROUP,
        topic=queue.topic,
        default_topic=AUTO_CREATE_TOPIC_KEY_TOPIC,
        default_topic_queue_nums=RETRY_QUEUES,
        queue_id=queue.queue_id,
        sys_flag=sys_flag,
        born_timestamp=born_ms,
        flag=flag,
        properties=encode_properties(properties),
        # Without a number the group's own counts, and a group with 0 retries would make it a dead
        # letter at once.
        max_reconsume_times=1 if queue.topic.startswith(RETRY_GROUP_TOPIC_PREFIX) else None,
        broker_name=queue.broker_name,
    )


def _stored_ms(message: StoredMessage) -> int:
    return message.stored.store_timestamp


def _has(message: MessageExt, key: str, unique: bool) -> bool:
    """Return whether the message has the key; the index knows hashes of keys only."""
    return message.unique_key == key if unique else key in message.keys.split()


def _kind(number: int) -> str:
    known = TraceMessageType._value2member_map_.get(number)
    return known.name.lower() if isinstance(known, TraceMessageType) else str(number)


def _outcome(number: int) -> str:
    known = TraceContextCode._value2member_map_.get(number)
    return known.name.lower() if isinstance(known, TraceContextCode) else str(number)
