"""Answers of sends: gathered through one turn of the loop, released when their batch is stored.

    unwaited    WAIT=false: answered as soon as the batch is written
    waiting     answered when the batch is stored, and is where it must be: on a slave of a
                SYNC_MASTER, under failover on all replicas in sync
    fresh       their topic was just made: answered when, besides, `topics.json` is on the disk

An answer is written with its message, as if all went well. In the rare other case its frame is
read again, and says what went wrong. Senders that speak another protocol are told what has come of
their messages, and write their answers themselves.

Every success carries MSG_REGION and TRACE_ON, without which Java clients fail on it.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/SendMessageProcessor.java
(handlePutMessageResult)
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from operator import itemgetter

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.command import CODECS, RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.frame import FrameDecoder, SerializeType, encode_frame
from skylarkmq.protocol.headers.send import UNCONFIRMED_FIELD
from skylarkmq.remoting.connection import CODEC_FIELD, CODEC_OFFER
from skylarkmq.store.results import TAKEN, Committed, PutMessageResult, PutMessageStatus

CODES = {
    PutMessageStatus.PUT_OK: ResponseCode.SUCCESS,
    PutMessageStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    # Unlike RocketMQ 5, whose controller mode answers 12: clients take that for stored.
    PutMessageStatus.UNCONFIRMED: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutMessageStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
}
_REFUSED = "the store has failed or is full; the message is not stored safely, send it elsewhere"
_UNCONFIRMED = (
    "not acknowledged: not all replicas in sync confirmed it in time, or this broker does not lead "
    "any more; it may be stored: try again"
)
_TOPIC_NOT_DURABLE = (
    "not acknowledged: the message is stored, but its new topic is not safe yet, for the topic "
    "table could not be written; try again: "
)
_MSG_ID = "msgId"
_QUEUE_ID = "queueId"
_QUEUE_OFFSET = "queueOffset"
_RECALL_HANDLE = "recallHandle"
_MSG_REGION = "MSG_REGION"
_TRACE_ON = "TRACE_ON"


# Stored sends that want an answer, as a plain tuple because one is made for nearly every message:
# (who wants them, serialize type, how many, frames that say SUCCESS)
Sent = tuple[Connection, int, int, bytes]
Callback = Callable[[PutMessageStatus, str], object]
"""Called once with what has come of a message, and why it is not stored, if it is not."""
_connection_of = itemgetter(0)


class SendTurn:
    """The answers of one batch."""

    __slots__ = (
        "_answers",
        "_callbacks",
        "_fresh",
        "_fresh_callbacks",
        "_is_committed",
        "_unwaited",
        "_waiting",
    )

    def __init__(
        self,
        answers: SendAnswers,
        waiting: list[Sent],
        unwaited: list[Sent],
        fresh: list[Sent],
        callbacks: list[Callback],
        fresh_callbacks: list[Callback],
    ) -> None:
        self._answers = answers
        self._waiting = waiting
        self._unwaited = unwaited
        self._fresh = fresh
        self._callbacks = callbacks
        self._fresh_callbacks = fresh_callbacks
        self._is_committed = False

    def committed(self) -> None:
        """Note that the batch is committed: who was not answered by now waits."""
        self._is_committed = True
        self._answers.waiting_count += len(self._callbacks) + len(self._fresh_callbacks)
        for entries in (self._waiting, self._fresh):
            if entries:
                self._park(entries, 1)

    def _park(self, entries: list[Sent], sign: int) -> None:
        total = 0
        for connection, _, count, _ in entries:
            # As `Connection.park`, whose call would cost more than what it mostly does.
            connection.parked += sign * count
            if connection.reading_paused:
                connection.park(0)
            total += count
        self._answers.waiting_count += sign * total

    @property
    def waits(self) -> bool:
        """True when a send waits for the disk."""
        return bool(self._waiting or self._fresh or self._callbacks or self._fresh_callbacks)

    def answer(self, status: PutMessageStatus) -> None:
        """Answer who waits: the batch is where it must be, late, or lost."""
        waiting, self._waiting = self._waiting, []
        callbacks, self._callbacks = self._callbacks, []
        why = _UNCONFIRMED if status is PutMessageStatus.UNCONFIRMED else _REFUSED
        self._release(waiting, status, why)
        self._call_back(callbacks, status, why)
        if self._fresh or self._fresh_callbacks:
            if status is PutMessageStatus.SERVICE_NOT_AVAILABLE:
                self._release_fresh(status, why)
            else:
                self._answers.topics.persisted(
                    lambda error: self._topics_written(status, why, error)
                )

    def _topics_written(
        self, status: PutMessageStatus, why: str, error: BaseException | None
    ) -> None:
        if error is None:
            self._release_fresh(status, why)
        else:
            why = f"{_TOPIC_NOT_DURABLE}{error}"
            self._release_fresh(PutMessageStatus.UNCONFIRMED, why)  # the message is in the log

    def _release_fresh(self, status: PutMessageStatus, why: str) -> None:
        fresh, self._fresh = self._fresh, []
        callbacks, self._fresh_callbacks = self._fresh_callbacks, []
        self._release(fresh, status, why)
        self._call_back(callbacks, status, why)

    @property
    def unwaited(self) -> Committed | None:
        """What to call when the batch is written, or refused; None without WAIT=false."""
        return self._written if self._unwaited else None

    def _written(self, status: PutMessageStatus) -> None:
        self._send(self._unwaited, status, _REFUSED)

    def _release(self, entries: list[Sent], status: PutMessageStatus, why: str) -> None:
        if self._is_committed:
            self._park(entries, -1)
        self._send(entries, status, why)

    def _call_back(self, callbacks: list[Callback], status: PutMessageStatus, why: str) -> None:
        if self._is_committed:
            self._answers.waiting_count -= len(callbacks)
        for callback in callbacks:
            callback(status, why)

    def _send(self, entries: list[Sent], status: PutMessageStatus, why: str) -> None:
        # What the commit itself answers is all that the turn has; a sync ends many batches, and a
        # slave's report some.
        at_once = not self._is_committed or not self._answers.waiting_count
        for connection, sent in groupby(entries, _connection_of):
            if not connection.closed:
                connection.send(self._answers.frames(list(sent), status, why), at_once=at_once)


def remark_of(result: PutMessageResult) -> str | None:
    """Return what an answer says of a message that was not simply stored; None of others."""
    if result.status is PutMessageStatus.PUT_OK:
        return None
    why = _UNCONFIRMED if result.status is PutMessageStatus.UNCONFIRMED else result.why
    return f"{result.status.value}: {why}" if why else result.status.value


def send_extras(config: BrokerConfig) -> dict[str, str]:
    """Return the fields of every answer to a send: what clients want to know of the broker."""
    return {_MSG_REGION: config.region_id, _TRACE_ON: trace_text(config)}


def trace_text(config: BrokerConfig) -> str:
    """Return what answers say of the clients' tracing, which may change at any time."""
    return "true" if config.trace_on else "false"


class SendAnswers:
    """Gathers and encodes the answers of sends. Loop thread.

    Attributes:
        waiting_count: sends that wait for the disk or for replicas, of all connections.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_host: bytes,
        stats: BrokerStats,
        topics: TopicConfigManager,
    ) -> None:
        self.topics = topics
        self.waiting_count = 0
        self._config = config
        self.id_prefix = store_host.hex().upper().encode()
        self._parts: dict[tuple[int, str], tuple[bytes, ...]] = {
            (kind, trace_on): codec.send_response_parts(config.region_id, trace_on)
            for kind, codec in CODECS.items()
            for trace_on in ("true", "false")
        }
        self._encoders = {
            (kind, trace_on): CODECS[kind].send_response_encoder(parts)
            for (kind, trace_on), parts in self._parts.items()
        }
        self._stats = stats
        self._fresh_topics: set[str] = set()
        self._waiting: list[Sent] = []
        self._unwaited: list[Sent] = []
        self._fresh: list[Sent] = []
        self._callbacks: list[Callback] = []
        self._fresh_callbacks: list[Callback] = []

    def extras(self, request: RemotingCommand) -> dict[str, str]:
        """Return the extra fields of every answer to a send, refusals included."""
        extras = send_extras(self._config)
        if self.codec(request):
            extras[CODEC_FIELD] = CODEC_OFFER
        return extras

    @staticmethod
    def codec(request: RemotingCommand) -> bool:
        """Return whether the answer must say that we read the msgpack codec."""
        return (
            request.ext_fields.get(CODEC_FIELD) == CODEC_OFFER
            and request.serialize_type == SerializeType.JSON
        )

    def parts(self, kind: int) -> tuple[bytes, ...]:
        """Return what stands in an answer of one codec around its numbers."""
        return self._parts[kind, trace_text(self._config)]

    def of_message(
        self, kind: int, opaque: int, physical_offset: int, queue_id: int, queue_offset: int
    ) -> bytes:
        """Return the frame that says where a message is stored."""
        msg_ids = message_ids(self.id_prefix, [physical_offset])
        encode = self._encoders[kind, trace_text(self._config)]
        return encode_frame(kind, encode(opaque, msg_ids, queue_id, queue_offset))

    def of_request(
        self,
        request: RemotingCommand,
        physical_offsets: list[int],
        queue_id: int,
        queue_offset: int,
        recall_handle: str | None = None,
    ) -> bytes:
        """Return the frame that says where the message of a request is stored, or its batch."""
        kind, msg_ids = request.serialize_type, message_ids(self.id_prefix, physical_offsets)
        if recall_handle is None and not self.codec(request):
            encode = self._encoders[kind, trace_text(self._config)]
            return encode_frame(kind, encode(request.opaque, msg_ids, queue_id, queue_offset))
        answer = request.reply(ResponseCode.SUCCESS, None, self.extras(request))
        answer.ext_fields[_MSG_ID] = msg_ids.decode()
        answer.ext_fields[_QUEUE_ID] = str(queue_id)
        answer.ext_fields[_QUEUE_OFFSET] = str(queue_offset)
        if recall_handle is not None:
            answer.ext_fields[_RECALL_HANDLE] = recall_handle
        return encode_command(answer)

    def note_fresh(self, topic: str) -> None:
        """Note a topic that was just made: its acknowledgements wait for the topic table."""

        def written(error: BaseException | None) -> None:
            if error is None:  # else it stays fresh: its next send has the table written again
                self._fresh_topics.discard(topic)

        self._fresh_topics.add(topic)
        self.topics.persisted(written)

    def add(self, sent: Sent, wait: bool, topic: str) -> None:
        """Note a stored message that wants an answer."""
        if self._fresh_topics and self.is_fresh(topic):
            self._fresh.append(sent)
        elif wait:
            self._waiting.append(sent)
        else:
            self._unwaited.append(sent)

    def add_callback(self, callback: Callback, topic: str) -> None:
        """Note a stored message whose sender writes its answer itself, and waits for the disk."""
        if self._fresh_topics and self.is_fresh(topic):
            self._fresh_callbacks.append(callback)
        else:
            self._callbacks.append(callback)

    def add_waiting(self, sent: list[Sent]) -> None:
        """Note stored messages of topics that are not fresh, whose senders wait for the disk."""
        self._waiting += sent

    def is_fresh(self, topic: str) -> bool:
        """Return whether a topic was made lately and is not on the disk yet."""
        if not self.topics.pending:
            self._fresh_topics.clear()
        return topic in self._fresh_topics

    @property
    def has_some(self) -> bool:
        """True when something was gathered through this turn."""
        return bool(
            self._waiting
            or self._callbacks
            or self._unwaited
            or self._fresh
            or self._fresh_callbacks
        )

    def take(self) -> SendTurn:
        """Hand over what was gathered through this turn."""
        turn = SendTurn(
            self, self._waiting, self._unwaited, self._fresh, self._callbacks, self._fresh_callbacks
        )
        self._waiting, self._unwaited, self._fresh = [], [], []
        self._callbacks, self._fresh_callbacks = [], []
        return turn

    def frames(self, entries: list[Sent], status: PutMessageStatus, why: str) -> bytes:
        """Return the frames that answer the entries, all of one connection."""
        _, kind, count, data = entries[0]
        if len(entries) > 1:
            data = b"".join([entry[3] for entry in entries])
            count = sum([entry[2] for entry in entries])
        if status is not PutMessageStatus.PUT_OK:
            data = _with_status(data, status, why)
        traffic = self._stats.frames_out[kind]
        traffic.count += count
        traffic.bytes += len(data)
        return data


def message_ids(prefix: bytes, physical_offsets: list[int]) -> bytes:
    """Return offset ids, joined by commas; `prefix` is the store host in hexadecimal digits."""
    return b",".join([b"%b%016X" % (prefix, offset) for offset in physical_offsets])


def _with_status(frames: bytes, status: PutMessageStatus, why: str) -> bytes:
    """Return answers that say SUCCESS with what has come of their messages instead."""
    out: list[bytes] = []
    for frame in FrameDecoder(len(frames)).feed(frames):
        answer = decode_command(frame)
        answer.code = CODES[status]
        if status not in TAKEN:
            answer.remark = why
            for name in (_MSG_ID, _QUEUE_ID, _QUEUE_OFFSET, _RECALL_HANDLE):
                answer.ext_fields.pop(name, None)
        if status is PutMessageStatus.UNCONFIRMED:
            answer.ext_fields[UNCONFIRMED_FIELD] = "true"
        out.append(encode_command(answer))
    return b"".join(out)
