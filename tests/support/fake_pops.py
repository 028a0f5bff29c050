"""Pop consumption of a scripted broker: messages in hand, handles, clients that wait to be told.

What was taken stays hidden until its client changes that; no time passes here.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from skylarkmq.protocol.codes import POLLING_TIMEOUT, RequestCode, ResponseCode
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from skylarkmq.protocol.pop import (
    OffsetKey,
    msg_offset_info,
    order_count_info,
    parse_checkpoint,
    start_offset_info,
)
from skylarkmq.protocol.remoting_command import RemotingCommand
from tests.support.fake_queues import record
from tests.support.scripted_stream import Answer, ScriptedStream

if TYPE_CHECKING:
    from tests.support.fake_cluster import FakeBroker

INVISIBLE_MS = 60_000
Place = tuple[str, str, int, int]  # group, topic, queue, offset


class HeldWait(NamedTuple):
    """A client that waits to be told."""

    request: RemotingCommand
    stream: ScriptedStream
    header: NotificationRequestHeader


class FakePops:
    """What pop consumers of one broker have done."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self.in_hand: dict[Place, int] = {}
        """The number of the delivery that each message is in the hands of."""
        self.done: set[Place] = set()
        self.deliveries: dict[Place, int] = defaultdict(int)
        """How often each was delivered."""
        self.changes: list[tuple[Place, int]] = []
        """Invisible times that were asked for, ms."""
        self.filters: list[tuple[str | None, str | None]] = []
        self.held: list[HeldWait] = []
        self.attempts: list[str | None] = []
        self._serial = 0

    def respond(self, request: RemotingCommand, stream: ScriptedStream) -> Answer:
        """Answer a request of pop consumption; None: later."""
        fields = request.ext_fields
        if request.code == RequestCode.POP_MESSAGE:
            return self._pop(request, decode_fields(PopMessageRequestHeader, fields))
        if request.code == RequestCode.NOTIFICATION:
            header = decode_fields(NotificationRequestHeader, fields)
            if header.topic not in self._broker.topics:
                return request.reply(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
            self.held.append(HeldWait(request, stream, header))
            self.serve()
            return None
        if request.code == RequestCode.ACK_MESSAGE:
            return self._ack(request, decode_fields(AckMessageRequestHeader, fields))
        return self._change(request, decode_fields(ChangeInvisibleTimeRequestHeader, fields))

    def serve(self, *, told: bool = False) -> None:
        """Tell those who wait that there is something, or with `told` all of them."""
        held, self.held = self.held, []
        for wait in held:
            header = wait.header
            if told or self._waiting(header.consumer_group, header.topic):
                answer = NotificationResponseHeader(has_msg=True)
                wait.stream.say(wait.request.reply(0, ext_fields=encode_fields(answer)))
            elif wait.stream.open:
                self.held.append(wait)

    def _waiting(self, group: str, topic: str) -> list[Place]:
        return [
            place
            for queue_id, queue in enumerate(self._broker.topics[topic].queues)
            for offset in range(len(queue))
            if (place := (group, topic, queue_id, offset)) not in self.done
            and place not in self.in_hand
        ]

    def _pop(self, request: RemotingCommand, header: PopMessageRequestHeader) -> Answer:
        if header.topic not in self._broker.topics:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        self.filters.append((header.exp_type, header.exp))
        self.attempts.append(header.attempt_id)
        found = self._waiting(header.consumer_group, header.topic)[: header.max_msg_nums]
        if not found:
            return request.reply(POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
        self._serial += 1
        offsets: dict[OffsetKey, list[int]] = defaultdict(list)
        counts: dict[OffsetKey, dict[int, int]] = defaultdict(dict)
        body = b""
        for place in found:
            _, topic, queue_id, offset = place
            offsets["0", queue_id].append(offset)
            counts["0", queue_id][offset] = self.deliveries[place]
            self.in_hand[place] = self._serial
            self.deliveries[place] += 1
            stored = self._broker.topics[topic].queues[queue_id][offset]
            key = self._broker.cluster.queue_key(topic, queue_id)
            body += record(key, topic, queue_id, offset, stored)
        answer = PopMessageResponseHeader(
            pop_time=self._serial,
            invisible_time=header.invisible_time,
            start_offset_info=start_offset_info({key: min(all_) for key, all_ in offsets.items()}),
            msg_offset_info=msg_offset_info(offsets),
            order_count_info=order_count_info(counts) if header.order else None,
        )
        return request.reply(0, ext_fields=encode_fields(answer), body=body)

    def _place(self, header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader) -> Place:
        """Return whose delivery it is; a KeyError for one that is over."""
        place = header.consumer_group, header.topic, header.queue_id, header.offset
        if self.in_hand[place] != parse_checkpoint(header.extra_info).pop_time:
            raise KeyError(place)
        return place

    def _ack(self, request: RemotingCommand, header: AckMessageRequestHeader) -> Answer:
        try:
            place = self._place(header)
        except KeyError:
            return request.reply(ResponseCode.NO_MESSAGE, "the delivery is over")
        del self.in_hand[place]
        self.done.add(place)
        return request.reply(0)

    def _change(self, request: RemotingCommand, header: ChangeInvisibleTimeRequestHeader) -> Answer:
        try:
            place = self._place(header)
        except KeyError:
            return request.reply(ResponseCode.NO_MESSAGE, "the delivery is over")
        self._serial += 1
        self.changes.append((place, header.invisible_time))
        if header.invisible_time:
            self.in_hand[place] = self._serial
        else:
            del self.in_hand[place]
        answer = ChangeInvisibleTimeResponseHeader(
            pop_time=self._serial, invisible_time=header.invisible_time
        )
        self.serve()
        return request.reply(0, ext_fields=encode_fields(answer))


POP_CODES = frozenset(
    {
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.NOTIFICATION,
    }
)
