"""Dead letters of a group, and their redrive.

A redrive of a dead letter sends a copy, under the message's own id: to the group's retry topic,
from which this group alone gets it, or to the topic that it was sent to first, where all groups get
it. The dead letter itself stays in the log. The caller keeps which letters were sent, and, to send
each once, where a copy goes before it is sent: `find_copy` looks there after a kill or a time-out.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/SendMessageProcessor.java
(asyncConsumerSendMsgBack, handleRetryAndDLQ)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from skylarkmq.client.admin.base import NO_ROUTE, TopicPlace
from skylarkmq.client.admin.messages import MessageAdmin
from skylarkmq.client.admin.reading import MessageScan
from skylarkmq.client.admin.results import Result
from skylarkmq.client.errors import (
    BrokerError,
    ConnectionFailed,
    NotConfirmed,
    NotFound,
    RocketMQError,
)
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.client.producer.lanes import by_hash
from skylarkmq.client.send_result import STORED_CODES
from skylarkmq.client.wire.api_send import send_refusal, stored_answer
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    DEFAULT_PRODUCER_GROUP,
    RETRY_GROUP_TOPIC_PREFIX,
    MessageSysFlag,
    dlq_topic,
    retry_topic,
)
from skylarkmq.protocol.headers.send import SendMessageRequestHeader, encode_send_header_v2
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.protocol.topic_attributes import has_priorities

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


class DeadLetterAdmin(MessageAdmin):
    """The part of Admin for dead letters."""

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
            to: "group": this group alone gets the copy, whatever the topic, and in no order of
                priority; "topic": it goes to the topic that the letter was sent to first, where
                every group gets it.

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
            place = await self._send_copy(letter, place.queue, address)
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

    # Inside

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
        queue = _queue_of_copy(queues, letter)
        address = place.masters[queue.broker_name]
        if target.startswith(RETRY_GROUP_TOPIC_PREFIX):
            return queue, address
        # Of a topic with priorities the broker chooses the queue, by the message's level, and
        # `find_copy` has to look there. RocketMQ's does so with a priority alone, and does not tell
        # which topics these are.
        priority = letter.priority
        if priority is None and has_priorities(await self._topic_attributes(address, target)):
            priority = 0
        if priority is not None:
            levels = [each for each in queues if each.broker_name == queue.broker_name]
            queue = levels[min(priority, len(levels) - 1)]
        return queue, address

    async def _send_copy(
        self, letter: StoredMessage, queue: MessageQueue, address: str
    ) -> CopyPlace:
        """Send a copy; return where the broker stored it.

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
        header = _header_of_copy(
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
                _, _, _, queue_id, offset, *_ = stored_answer(answer)
                return CopyPlace(queue._replace(queue_id=queue_id), offset)
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


class _UnknownError(Exception):
    """Whether a copy is stored is not known."""


def _queue_of_copy(queues: Sequence[MessageQueue], letter: StoredMessage) -> MessageQueue:
    """Return where the copy of a dead letter goes, of a topic's writable queues, at least one.

    By its sharding key, as its producer chose; else on the letter's own broker, in turn.
    """
    sharding_key = letter.stored.properties.get(names.SHARDING_KEY)
    if sharding_key is not None:
        return by_hash(queues, sharding_key)
    near = [queue for queue in queues if queue.broker_name == letter.queue.broker_name] or queues
    return near[letter.queue_offset % len(near)]


def _header_of_copy(
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
