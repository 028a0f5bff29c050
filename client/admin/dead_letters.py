"""Dead letters: messages that a group gave up. List them, and give them back.

A replay sends a copy, under the message's own id: to the group's retry topic, from which this
group alone gets it, or to the topic that it was sent to first, where all groups get it. The dead
letter itself stays, as nothing in a log goes before its time; where a replay has come to is the
caller's to keep.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/SendMessageProcessor.java
(asyncConsumerSendMsgBack, handleRetryAndDLQ)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, Self

from skylarkmq.client.admin.base import TopicPlace
from skylarkmq.client.admin.queries import QueryAdmin
from skylarkmq.client.admin.results import Result
from skylarkmq.client.admin.scan import MessageScan, ScanProgress
from skylarkmq.client.admin.stored_message import StoredMessage
from skylarkmq.client.errors import NotFound, RocketMQError
from skylarkmq.client.producer.queue_selector import by_hash
from skylarkmq.client.producer.send_result import STORED_CODES
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.codes import RequestCode
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

Target = Literal["group", "topic"]
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
class ReplayOutcome(Result):
    """What became of one dead letter.

    `would_replay`: it was a dry run. `failed`: `error` says why; a time-out or a lost connection
    leaves open whether a copy is there.
    """

    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    target: str
    """The topic of the copy, as brokers know it."""
    status: Literal["replayed", "would_replay", "failed"]
    error: str = ""


class DeadLetterReplay:
    """An async iterator of outcomes; each step replays one dead letter. One task at a time.

    `progress.positions` is where it would go on: keep it, and give it as `after` to a later replay.
    A letter whose step was cancelled is not passed, so it may be replayed twice.
    """

    def __init__(
        self, admin: DeadLetterAdmin, scan: MessageScan, group: str, to: Target, dry_run: bool
    ) -> None:
        self._admin = admin
        self._scan = scan
        self._group = group
        self._to: Target = to
        self._dry_run = dry_run
        self._pending: StoredMessage | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReplayOutcome:
        if self._pending is None:
            self._pending = await self._scan.__anext__()
        outcome = await self._admin.replay_one(
            self._pending, self._group, self._to, dry_run=self._dry_run
        )
        self._pending = None
        return outcome

    @property
    def progress(self) -> ScanProgress:
        """How far it is; a letter without outcome counts as not done."""
        progress, pending = self._scan.progress, self._pending
        if pending is None:
            return progress
        positions = {**(progress.positions or {}), pending.queue: pending.queue_offset}
        return ScanProgress(progress.scanned - 1, progress.total, positions)


class DeadLetterAdmin(QueryAdmin):
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
            RouteNotFound: no broker is registered with the name server; likewise.
        """
        topic = dlq_topic(self._group(group))
        return self._scan(topic, start, stop, after, may_be_absent=True)

    def replay_dead_letters(
        self,
        group: str,
        *,
        to: Target = "group",
        start: datetime | None = None,
        stop: datetime | None = None,
        after: Mapping[MessageQueue, int] | None = None,
        dry_run: bool = False,
    ) -> DeadLetterReplay:
        """Send dead letters again: `async for outcome in admin.replay_dead_letters(...)`.

        Letters that are given up while it runs are left out. A failure is an outcome, and the next
        letter follows. Each copy has the letter's id, keys, tags, properties and body, and its full
        number of tries.

        Args:
            to: "group": this group alone gets them, whatever the topic; "topic": they go to the
                topic they were sent to first, where every group gets them.
            start, stop: given up at `start` or later, before `stop`.
            after: go on there: `progress.positions` of an earlier replay.
            dry_run: tell what would be sent where, and send nothing.
        """
        if to not in ("group", "topic"):
            raise ValueError(f"to is group or topic, not {to!r}")
        scan = self.dead_letters(group, start=start, stop=stop, after=after)
        return DeadLetterReplay(self, scan, self._group(group), to, dry_run)

    async def replay_one(
        self, letter: StoredMessage, group: str, to: Target, *, dry_run: bool
    ) -> ReplayOutcome:
        """Replay one dead letter of a group, as brokers know it; for DeadLetterReplay."""
        target = (
            retry_topic(group)
            if to == "group"
            else letter.stored.properties.get(names.RETRY_TOPIC, "")
        )
        status: Literal["replayed", "would_replay", "failed"] = "would_replay"
        error = ""
        try:
            if not target:
                raise NotFound("the letter does not say which topic it was sent to first")
            place = await self._find_place(target)
            queue, address = await self._replay_queue(letter, target, place)
            if not dry_run:
                await self._send_copy(letter, queue, address)
                status = "replayed"
        except RocketMQError as failure:
            status, error = "failed", str(failure)
        return ReplayOutcome(
            letter.msg_id,
            letter.offset_msg_id,
            letter.queue,
            letter.queue_offset,
            self.names.unwrap(target),
            status,
            error,
        )

    # Inside

    async def _replay_queue(
        self, letter: StoredMessage, target: str, place: TopicPlace | None
    ) -> tuple[MessageQueue, str]:
        """Return where the copy goes: to the letter's own broker where it can."""
        queues = [] if place is None else [q for q in place.write_queues if q[1] in place.masters]
        if place is None or not queues:
            if not target.startswith(RETRY_GROUP_TOPIC_PREFIX):
                raise NotFound(f"topic {target} has no queue to write to any more")
            # Brokers make a retry topic when something is sent to it.
            broker = letter.queue.broker_name
            masters = await self._masters(brokers=[broker])
            return MessageQueue(target, broker, 0), masters[broker]
        key = letter.stored.properties.get(names.SHARDING_KEY)
        if key is not None:
            queue = by_hash(queues, key)
        else:
            near = [queue for queue in queues if queue.broker_name == letter.queue.broker_name]
            queue = (near or queues)[letter.queue_offset % len(near or queues)]
        return queue, place.masters[queue.broker_name]

    async def _send_copy(self, letter: StoredMessage, queue: MessageQueue, address: str) -> None:
        stored = letter.stored
        properties = {
            name: value for name, value in stored.properties.items() if name not in DROPPED_NAMES
        }
        if queue.topic == properties.get(names.RETRY_TOPIC):
            del properties[names.RETRY_TOPIC]
            properties.pop(names.ORIGIN_MESSAGE_ID, None)
        header = SendMessageRequestHeader(
            producer_group=DEFAULT_PRODUCER_GROUP,
            topic=queue.topic,
            default_topic=AUTO_CREATE_TOPIC_KEY_TOPIC,
            default_topic_queue_nums=RETRY_QUEUES,
            queue_id=queue.queue_id,
            sys_flag=stored.sys_flag & KEPT_FLAGS,
            born_timestamp=stored.born_timestamp,
            flag=stored.flag,
            properties=encode_properties(properties),
            broker_name=queue.broker_name,
        )
        await self._api.call(
            address,
            RequestCode.SEND_MESSAGE_V2,
            extra=encode_send_header_v2(header),
            body=stored.body,
            accepted=frozenset(STORED_CODES),
        )
