"""Pop consumption by 5.x's remoting clients: take messages (200050), done (200051, several 200151),
another invisible time (200053), look without taking (200052), wait to be told (200054), how many
wait (200055).

What is handed out is `broker/pop/`'s; here it is put into RocketMQ's words. A client builds a
message's handle of the answer's pop time, the record's queue and the offset:

    pop time      the serial of the delivery; one for all messages of an answer
    retry         1 for a topic of retries, where the client says `%RETRY%<group>_<topic>`; 2 for
                  the one that it calls `%RETRY%<group>+<topic>`
    queue id      of the record; a message of the 4.x retry topic `%RETRY%<group>` comes with
                  OLD_RETRY_QUEUE added to it, else two messages could have one handle
    revive queue  999 for an ordered group, else 0

An answer that finds its connection closed gives its messages back; a client that waits and goes
takes none.

Unlike RocketMQ: a handle that says nothing any more is told so (208), also to an acknowledgement
that comes late; the clocks of clients need not agree with the broker's; a group's own flag makes
it an ordered one, whatever the request says; the attempt of a delivery stands in the record.

Source: apache/rocketmq@rocketmq-all-5.3.3 broker/.../processor/PopMessageProcessor.java,
AckMessageProcessor.java, ChangeInvisibleTimeProcessor.java, PeekMessageProcessor.java,
NotificationProcessor.java, PollingInfoProcessor.java
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any, Final

from skylarkmq.broker.base.waiting import result_of
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.handlers import UNANSWERED, Answer, Call, NoFields, handles, refused
from skylarkmq.broker.pop.handles import MAIN, OLD_RETRY, PLUS_RETRY, RETRY, Receipt
from skylarkmq.broker.pop.requests import COUNT_MAX, Popped, PopRequest, pop_filter
from skylarkmq.broker.pop.service import PopService
from skylarkmq.broker.requests.processor import Context, Processor, check_group, check_topic
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody
from skylarkmq.protocol.bodies.text import decode_body
from skylarkmq.protocol.codes import (
    POLLING_FULL,
    POLLING_TIMEOUT,
    RequestCode,
    ResponseCode,
)
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.flags import is_retry_topic
from skylarkmq.protocol.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from skylarkmq.protocol.pop import (
    NORMAL,
    ORDERED_QUEUE,
    RETRY_V2,
    OffsetKey,
    asked_topic,
    delivered,
    msg_offset_info,
    offsets_of,
    order_count_info,
    parse_checkpoint,
    retry_mark,
    start_offset_info,
)
from skylarkmq.protocol.pop import RETRY as RETRY_MARK
from skylarkmq.protocol.topic_attributes import has_priorities
from skylarkmq.store.results import GetMessageResult

OLD_RETRY_QUEUE: Final = 1 << 20
"""Added to the queue id of a message of `%RETRY%<group>`; more queues no topic has."""
INVISIBLE_MAX_MS: Final = 12 * 3600 * 1000
POLL_MAX_MS: Final = 300_000
ACKS_MAX: Final = 4096
"""Messages of one request 200151."""
INIT_AT_FIRST: Final = 0

FOUND: Final = "FOUND"
NOTHING: Final = "NO_MESSAGE_IN_QUEUE"
OVER: Final = "the handle says nothing any more: the message's time was over, or it was done"


class PopMessageProcessor(Processor):
    """Hands out messages and takes back what became of them. Loop thread."""

    def __init__(self, context: Context, pop: PopService, peer_clock: Clock) -> None:
        super().__init__(context)
        self._pop = pop
        self._peer_clock = peer_clock

    @handles(RequestCode.POP_MESSAGE, PopMessageRequestHeader)
    async def pop_message(self, call: Call[PopMessageRequestHeader]) -> Answer:
        """Hand out messages, or wait for one (200050).

        The code is 210 when the time is over without one, 209 when too many wait already, 29 for
        figures that cannot be meant.
        """
        connection, header = call.connection, call.header
        if call.request.is_oneway:
            return UNANSWERED
        if not 1 <= header.max_msg_nums <= COUNT_MAX:
            raise _invalid(
                f"pop message's num is {header.max_msg_nums}, 1 to {COUNT_MAX} are taken"
            )
        _check_invisible(header.invisible_time, least_ms=1)
        request = self._request(
            connection,
            header,
            matches=pop_filter(
                header.exp_type or "",
                header.exp or "",
                sql_enabled=self._config.enable_property_filter,
            ),
            count=header.max_msg_nums,
            invisible_ms=header.invisible_time,
            from_min=header.init_mode == INIT_AT_FIRST,
        )
        try:
            with _AsLongAsConnected(connection):
                popped = await self._pop.receiver.receive(request, connection.remote_address)
        except RemoteProtocolError as error:
            if error.response_code != ResponseCode.SYSTEM_BUSY:
                raise
            said = PopMessageResponseHeader(invisible_time=header.invisible_time)
            return Answer(header=said, remark=error.remark, code=POLLING_FULL)
        if not popped:
            said = PopMessageResponseHeader(
                pop_time=self._clock.now_ms(), invisible_time=header.invisible_time
            )
            return Answer(header=said, remark=NOTHING, code=POLLING_TIMEOUT)
        if connection.closed:
            receipts = [each.receipt for each in popped]
            self._pop.settlement.give_back(request.group, request.topic, receipts)
            return UNANSWERED
        said = self._said(popped, request)
        return Answer(b"".join(map(_record, popped)), said, FOUND)

    @handles(RequestCode.ACK_MESSAGE, AckMessageRequestHeader)
    async def ack_message(self, call: Call[AckMessageRequestHeader]) -> Answer:
        """Note that a message is done; the answer comes when that is durable (200051).

        The code is 208 when the handle says nothing any more.
        """
        header = call.header
        topic, receipt = self._named(
            header.consumer_group, header.topic, header.queue_id, header.extra_info, header.offset
        )
        if not await self._pop.settlement.ack(header.consumer_group, topic, receipt):
            raise refused(OVER, ResponseCode.NO_MESSAGE)
        return Answer()

    @handles(RequestCode.BATCH_ACK_MESSAGE, NoFields)
    async def batch_ack_message(self, call: Call[NoFields]) -> Answer:
        """Note that several messages are done (200151); 208 when no handle says anything."""
        acks = decode_body(BatchAckMessageRequestBody, call.request.body).acks
        receipts: dict[tuple[str, str], list[Receipt]] = defaultdict(list)
        left = ACKS_MAX
        for ack in acks:
            check_group(ack.consumer_group)
            check_topic(ack.topic)
            offsets = offsets_of(ack.bit_set, ack.start_offset)
            left -= len(offsets)
            if left < 0:
                raise _invalid(f"more than {ACKS_MAX} messages are acknowledged at once")
            receipts[ack.consumer_group, ack.topic] += _receipts(ack, offsets)
        known = [
            await self._pop.settlement.ack_all(group, topic, those)
            for (group, topic), those in receipts.items()
        ]
        if not any(map(any, known)):
            raise refused(OVER, ResponseCode.NO_MESSAGE)
        return Answer()

    @handles(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ChangeInvisibleTimeRequestHeader)
    async def change_invisible_time(self, call: Call[ChangeInvisibleTimeRequestHeader]) -> Answer:
        """Let a message come again at another time, and answer its new handle (200053).

        The code is 208 when the old one says nothing any more.
        """
        header = call.header
        _check_invisible(header.invisible_time, least_ms=0)
        group = header.consumer_group
        topic, receipt = self._named(
            group, header.topic, header.queue_id, header.extra_info, header.offset
        )
        changed = await self._pop.settlement.change_invisible(
            group, topic, receipt, header.invisible_time
        )
        if changed is None:
            raise refused(OVER, ResponseCode.NO_MESSAGE)
        return Answer(
            header=ChangeInvisibleTimeResponseHeader(
                pop_time=changed.serial,
                invisible_time=header.invisible_time,
                revive_qid=ORDERED_QUEUE if self._is_ordered(group) else 0,
            )
        )

    @handles(RequestCode.NOTIFICATION, NotificationRequestHeader)
    async def notification(self, call: Call[NotificationRequestHeader]) -> Answer:
        """Say when there is something to take; nothing is taken (200054)."""
        connection = call.connection
        if call.request.is_oneway:
            return UNANSWERED
        request = self._request(connection, call.header)
        try:
            with _AsLongAsConnected(connection):
                has_msg = await self._pop.receiver.wait_ready(request, connection.remote_address)
        except RemoteProtocolError as error:
            if error.response_code != ResponseCode.SYSTEM_BUSY:
                raise
            return Answer(header=NotificationResponseHeader(polling_full=True))
        return Answer(header=NotificationResponseHeader(has_msg=has_msg))

    @handles(RequestCode.POLLING_INFO, PollingInfoRequestHeader)
    def polling_info(self, call: Call[PollingInfoRequestHeader]) -> Answer:
        """Tell how many of a group wait for messages of a topic (200055)."""
        header = call.header
        check_group(header.consumer_group)
        self._find_topic(header.topic)
        count = self._pop.receiver.waiting(header.consumer_group, header.topic)
        return Answer(header=PollingInfoResponseHeader(polling_num=count))

    @handles(RequestCode.PEEK_MESSAGE, PeekMessageRequestHeader)
    async def peek_message(self, call: Call[PeekMessageRequestHeader]) -> Answer:
        """Show what a group would get next of a topic; nobody is kept from it (200052).

        Messages in hand, and those that wait to come again, are not shown.
        """
        header = call.header
        group, topic = header.consumer_group, header.topic
        if not 1 <= header.max_msg_nums <= COUNT_MAX:
            raise _invalid(f"peek message's num is {header.max_msg_nums}, 1 to {COUNT_MAX}")
        check_group(group)
        config = self._find_topic(topic)
        if group not in self._groups.table:
            raise refused(
                f"subscription group [{shown(group)}] does not exist",
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        queues = range(config.read_queue_nums)
        if header.queue_id >= config.read_queue_nums:
            raise _invalid(f"queueId[{header.queue_id}] is illegal, topic[{topic}]")
        if header.queue_id >= 0:
            queues = range(header.queue_id, header.queue_id + 1)
        elif has_priorities(config.attributes_map):
            queues = queues[::-1]
        body, left, rest = b"", header.max_msg_nums, 0
        for queue_id in queues:
            start = self._next_offset(group, topic, queue_id)
            rest += max(0, self._store.max_offset(topic, queue_id) - start)
            if left > 0:
                found = await self._read(topic, queue_id, start, left)
                left -= found.count
                body += b"".join(found.views)
        said = PopMessageResponseHeader(rest_num=rest)
        if not body:
            return Answer(header=said, remark=NOTHING, code=ResponseCode.PULL_NOT_FOUND)
        return Answer(body, said, FOUND)

    # Inside

    def _request(
        self,
        connection: Connection,
        header: PopMessageRequestHeader | NotificationRequestHeader,
        **more: Any,
    ) -> PopRequest:
        """Return what is asked for, checked as far as the service does not.

        Raises:
            RemoteProtocolError: the names or the queue cannot be meant, or members of the group
                pull.
        """
        group, topic = header.consumer_group, header.topic
        check_group(group)
        check_topic(topic)
        self._consumers.check_mode(group, pops=True)
        self._consumers.popped(connection, group)
        config = self._topics.get(topic)
        if config is not None and header.queue_id >= config.read_queue_nums:
            raise _invalid(
                f"queueId[{header.queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{config.read_queue_nums}]"
            )
        client = self._consumers.clients(group).get(connection)
        wait_s = min(max(header.poll_time, 0), POLL_MAX_MS) / 1000
        return PopRequest(
            group=group,
            topic=topic,
            client_id="" if client is None else client.client_id,
            until_s=self._peer_clock.monotonic() + wait_s if wait_s else 0.0,
            attempt_id=header.attempt_id or "",
            queue_id=max(header.queue_id, -1),
            is_fifo=header.order or self._is_ordered(group),
            **more,
        )

    def _is_ordered(self, group: str) -> bool:
        config = self._groups.table.get(group)
        return config is not None and config.is_orderly

    def _named(
        self, group: str, topic: str, queue_id: int, extra_info: str, offset: int
    ) -> tuple[str, Receipt]:
        """Return the delivery that a request names, with the topic that it was asked for by.

        Raises:
            RemoteProtocolError: it cannot be meant.
        """
        check_group(group)
        kind = MAIN
        if is_retry_topic(topic):
            kind, queue_id = _retries_of(retry_mark(topic), queue_id)
            topic = asked_topic(topic, group)
        config = self._find_topic(topic)
        if queue_id < 0 or (kind == MAIN and queue_id >= config.read_queue_nums):
            raise refused(
                f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{config.read_queue_nums}]",
                ResponseCode.MESSAGE_ILLEGAL,
            )
        serial = parse_checkpoint(extra_info).pop_time
        return topic, Receipt(kind, queue_id, offset, serial)

    def _said(self, popped: list[Popped], request: PopRequest) -> PopMessageResponseHeader:
        offsets: dict[OffsetKey, list[int]] = defaultdict(list)
        counts: dict[OffsetKey, dict[int, int]] = defaultdict(dict)
        for each in popped:
            key = _key(each.receipt)
            offsets[key].append(each.receipt.offset)
            counts[key][each.receipt.offset] = each.attempt - 1
        return PopMessageResponseHeader(
            pop_time=popped[0].receipt.serial,
            invisible_time=request.invisible_ms,
            revive_qid=ORDERED_QUEUE if request.is_fifo else 0,
            rest_num=self._rest(request.group, request.topic),
            start_offset_info=start_offset_info({key: min(all_) for key, all_ in offsets.items()}),
            msg_offset_info=msg_offset_info({key: sorted(all_) for key, all_ in offsets.items()}),
            order_count_info=order_count_info(counts) if request.is_fifo else None,
        )

    def _rest(self, group: str, topic: str) -> int:
        """Return how many messages of a topic no member of a group has seen yet."""
        config = self._topics.get(topic)
        if config is None:
            return 0
        return sum(
            max(0, self._store.max_offset(topic, each) - self._next_offset(group, topic, each))
            for each in range(config.read_queue_nums)
        )

    def _next_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return where a group goes on in a queue; what is in hand is below."""
        consumption = self._pop.registry.find(group, topic)
        if consumption is not None and queue_id < len(consumption.main.queues):
            return consumption.main.queues[queue_id].next_offset
        return max(self._offsets.query(group, topic, queue_id), 0)

    async def _read(self, topic: str, queue_id: int, start: int, count: int) -> GetMessageResult:
        start = max(start, self._store.min_offset(topic, queue_id))
        if not self._store.is_cold(topic, queue_id, start):
            return self._store.get_message(topic, queue_id, start, count)
        read = self._store.get_message_cold
        return await result_of(lambda done: read(topic, queue_id, start, count, None, None, done))


class _AsLongAsConnected:
    """Cancels the task that enters it when a connection closes meanwhile."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a coroutine always runs in a task"
        self._task = task
        if self._connection.closed:
            task.cancel()
        else:
            self._connection.add_close_listener(self._closed)

    def __exit__(self, *_: object) -> None:
        self._connection.remove_close_listener(self._closed)

    def _closed(self, _: object) -> None:
        self._task.cancel()


def _key(receipt: Receipt) -> OffsetKey:
    """Return the mark and the queue by which a client knows a message's queue."""
    if receipt.kind == MAIN:
        return NORMAL, receipt.queue_id
    if receipt.kind == PLUS_RETRY:
        return RETRY_V2, receipt.queue_id
    return RETRY_MARK, receipt.queue_id + (OLD_RETRY_QUEUE if receipt.kind == OLD_RETRY else 0)


def _retries_of(mark: str, queue_id: int) -> tuple[int, int]:
    """Return the kind and the queue of a message of retries, by what `_key` made of them."""
    if mark == RETRY_V2:
        return PLUS_RETRY, queue_id
    if queue_id >= OLD_RETRY_QUEUE:
        return OLD_RETRY, queue_id - OLD_RETRY_QUEUE
    return RETRY, queue_id


def _record(popped: Popped) -> bytes | memoryview:
    """Return a record as its client gets it."""
    return delivered(popped.record, _key(popped.receipt)[1], popped.attempt - 1)


def _receipts(ack: BatchAck, offsets: list[int]) -> list[Receipt]:
    kind, queue_id = MAIN, ack.queue_id
    if ack.retry != NORMAL:
        kind, queue_id = _retries_of(ack.retry, queue_id)
    return [Receipt(kind, queue_id, offset, ack.pop_time) for offset in offsets]


def _check_invisible(invisible_ms: int, *, least_ms: int) -> None:
    if not least_ms <= invisible_ms <= INVISIBLE_MAX_MS:
        raise _invalid(f"an invisible time is {least_ms} ms to 12 h, not {invisible_ms} ms")


def _invalid(why: str) -> RemoteProtocolError:
    return refused(why, ResponseCode.INVALID_PARAMETER)
