"""Pulling: codes 11 and 361 (5.x lite consumers, the same request under another number).

    check    broker, group, topic, queue, subscription, in RocketMQ's order
    read     the store's answer decides the code; the body is the stored records, untouched; what
             may have to come from the disk is read off the loop
    hold     nothing new, and the client lets us wait: kept until a message comes or time is up
    commit   the offset that rides on the request is stored, also when the pull is held; not by
             a slave

A slave does not put an offset right, unless offsetCheckInSlave says so: its log may be behind its
master's, or have begun later. It sends the client to the master, which knows. Unlike RocketMQ's, it
lets a pull from beyond its log wait for a while first: mostly the message is on its way.

Two topics in which messages wait are read although they are not in the table of topics, so that
administrators can list what waits: PARKED.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/PullMessageProcessor.java
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.filter.pull_subscription import PullSubscriptions
from skylarkmq.broker.groups.offset_moved import OffsetMovedEvents
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.handlers import Handler, refused
from skylarkmq.broker.net.router import REMARK_MAX
from skylarkmq.broker.processor.plain_pulls import PlainPulls
from skylarkmq.broker.pulling.cold_pulls import ColdPulls, Finished
from skylarkmq.broker.pulling.long_polling import HeldPull, PullRequestHoldService
from skylarkmq.broker.requests.processor import Context, Processor
from skylarkmq.broker.requests.read_checks import check_read
from skylarkmq.common.clock import Clock
from skylarkmq.protocol import header_json
from skylarkmq.protocol.bodies.group import SubscriptionGroupConfig
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import CODECS, RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import (
    MASTER_ID,
    RMQ_SYS_TRANS_OP_HALF_TOPIC,
    RMQ_SYS_WHEEL_TIMER_TOPIC,
    PermName,
    PullSysFlag,
)
from skylarkmq.protocol.frame import PREFIX, PREFIX_SIZE, SerializeType
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.protocol.headers.pull import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    decode_pull_header,
)
from skylarkmq.remoting.connection import CODEC_FIELD, CODEC_OFFER
from skylarkmq.store.read.message_reader import Filter
from skylarkmq.store.results import GetMessageResult, GetMessageStatus

log = logging.getLogger(__name__)

COUNT_MAX = 1024  # messages of one answer, whatever is asked
SUSPEND_MAX_MS = 300_000
BEHIND_MAX_MS = 5000  # that a slave waits for a message that its master may have

PARKED = {
    name: TopicConfig(
        topic_name=name, read_queue_nums=1, write_queue_nums=0, perm=PermName.PERM_READ
    )
    for name in (RMQ_SYS_TRANS_OP_HALF_TOPIC, RMQ_SYS_WHEEL_TIMER_TOPIC)
}

_NO_NEW = frozenset({GetMessageStatus.OFFSET_FOUND_NULL, GetMessageStatus.OFFSET_OVERFLOW_ONE})
_EMPTY = frozenset({GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, GetMessageStatus.NO_MESSAGE_IN_QUEUE})
_MOVED = frozenset({GetMessageStatus.OFFSET_OVERFLOW_BADLY, GetMessageStatus.OFFSET_TOO_SMALL})
_ENCODERS = {kind: codec.encode_pull_response for kind, codec in CODECS.items()}
_RESULTS = {
    ResponseCode.SUCCESS: "found",
    ResponseCode.PULL_NOT_FOUND: "no_new",
    ResponseCode.PULL_RETRY_IMMEDIATELY: "no_matched",
    ResponseCode.PULL_OFFSET_MOVED: "offset_moved",
}


class _Pull(NamedTuple):
    """A pull that was checked."""

    connection: Connection
    request: RemotingCommand
    header: PullMessageRequestHeader
    matches: Filter | None  # None: every message

    def fail(self, error: BaseException | None) -> None:
        """Answer with an error."""
        request = self.request
        if isinstance(error, RemoteProtocolError):
            answer = request.reply(error.response_code, error.remark)
        else:
            log.error("a pull of %s failed", self.header.topic, exc_info=error)
            why = f"{type(error).__name__}: {error}"[:REMARK_MAX]
            answer = request.reply(ResponseCode.SYSTEM_ERROR, why)
        self.connection.reply(request, answer)


class PullProcessor(Processor):
    """Answers pulls, now or when there is something. Loop thread."""

    def __init__(
        self,
        context: Context,
        subscriptions: PullSubscriptions,
        holding: PullRequestHoldService,
        moved: OffsetMovedEvents,
        stats: BrokerStats,
        peer_clock: Clock,
        plain: PlainPulls,
    ) -> None:
        super().__init__(context)
        self._context = context
        self._plain = plain
        self._subscriptions = subscriptions
        self._holding = holding
        self._answers = PullAnswers(stats)
        self._moved = moved
        self._peer_clock = peer_clock
        self._cold = ColdPulls(context.config.pull_thread_pool_queue_capacity, stats)

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.PULL_MESSAGE: self.handle,
            RequestCode.LITE_PULL_MESSAGE: self.handle,
        }

    def handle(self, connection: Connection, request: RemotingCommand) -> None:
        """Answer a pull, or hold it."""
        header = decode_pull_header(request.ext_fields)
        group = self._check(header, connection.remote_address)
        matches = self._subscriptions.select(header, group)
        pull = _Pull(connection, request, header, matches)
        if not self._send_on(pull):
            self._read(pull, header.queue_offset, hold=True)
            self._plain.open(connection, header, matches)
        commits = header.sys_flag & PullSysFlag.FLAG_COMMIT_OFFSET and header.commit_offset >= 0
        if commits and not self._store.follows:
            self._commit(connection, header)

    def _commit(self, connection: Connection, header: PullMessageRequestHeader) -> None:
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        offset = header.commit_offset
        if self._earlier.may_commit(connection, group, (topic, queue_id), offset):
            self._offsets.commit(connection.remote_address, group, topic, queue_id, offset)

    def _check(
        self, header: PullMessageRequestHeader, remote_address: str = ""
    ) -> SubscriptionGroupConfig:
        group, topic = check_read(
            self._context, header.consumer_group, header.topic, remote_address, PARKED
        )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise refused(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] has "
                f"{topic.read_queue_nums} read queues",
            )
        return group

    def _send_on(self, pull: _Pull) -> bool:
        """Answer a pull from an offset of an earlier life of the log; False: it is none."""
        header = pull.header
        place = self._earlier.place_of(pull.connection, header)
        if place is None:
            return False
        queue = header.topic, header.queue_id
        begin, end = self._store.min_offset(*queue), self._store.max_offset(*queue)
        moved = GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, place, begin, end)
        self._finish(pull, moved, hold=False)
        return True

    def _read(self, pull: _Pull, offset: int, *, hold: bool) -> None:
        """Read from a queue offset on, and answer or hold.

        Args:
            offset: the client's, or a later one when nothing in between is wanted.
        """
        header = pull.header
        topic, queue_id, max_size = header.topic, header.queue_id, header.max_msg_bytes
        count = min(max(header.max_msg_nums, 1), COUNT_MAX)
        store = self._store
        if not store.is_cold(topic, queue_id, offset):
            result = store.get_message(topic, queue_id, offset, count, max_size, pull.matches)
            self._finish(pull, result, hold=hold)
            return
        connection, request = pull.connection, pull.request
        if self._cold.is_full:
            connection.reply(request, self._cold.refusal(request))
            return

        def start(finished: Finished) -> None:
            def done(result: GetMessageResult | None, error: BaseException | None) -> None:
                try:
                    if result is None:
                        pull.fail(error)
                    elif not connection.closed:
                        self._check(header)  # the topic may have gone meanwhile
                        self._plain.keep_units(header, offset, result.units)
                        self._finish(pull, result, hold=hold)
                except Exception as failure:
                    pull.fail(failure)
                finally:
                    finished()

            store.get_message_cold(topic, queue_id, offset, count, max_size, pull.matches, done)

        self._cold.run(connection, start)

    def _finish(self, pull: _Pull, result: GetMessageResult, *, hold: bool) -> None:
        connection, request, header, _ = pull
        is_past = result.next_begin_offset > header.queue_offset
        if result.status is GetMessageStatus.OFFSET_OVERFLOW_ONE and is_past:
            result.status = GetMessageStatus.NO_MATCHED_MESSAGE  # all between was looked at
        code = _response_code(result.status, header.queue_offset)
        may_hold = (
            hold
            and code == ResponseCode.PULL_NOT_FOUND
            and header.sys_flag & PullSysFlag.FLAG_SUSPEND
            and not request.is_oneway
        )
        if may_hold and self._hold(pull, result):
            return
        if code == ResponseCode.PULL_OFFSET_MOVED and self._store.follows:
            if not self._config.store.offset_check_in_slave:
                self._send_to_master(pull, result, hold=hold)
                return
        elif code == ResponseCode.PULL_OFFSET_MOVED:
            self._moved.note(header, result.next_begin_offset)
        self._answers.send(connection, request, header, code, result, self._suggest(header, result))

    def _send_to_master(self, pull: _Pull, result: GetMessageResult, *, hold: bool) -> None:
        """Answer a pull at an offset that this slave does not have, or hold it for a while."""
        connection, request, header, _ = pull
        is_beyond = result.status is not GetMessageStatus.OFFSET_TOO_SMALL
        suspends = header.sys_flag & PullSysFlag.FLAG_SUSPEND and not request.is_oneway
        if hold and is_beyond and suspends and self._hold(pull, result, BEHIND_MAX_MS):
            return
        result.next_begin_offset = header.queue_offset
        group = self._groups.find(header.consumer_group)
        code, suggested_id = ResponseCode.PULL_RETRY_IMMEDIATELY, MASTER_ID
        if group is not None:
            suggested_id = group.broker_id
        self._answers.send(connection, request, header, code, result, suggested_id)

    def _suggest(self, header: PullMessageRequestHeader, result: GetMessageResult) -> int:
        """Return the id of the broker that the client should pull from next."""
        group = self._groups.find(header.consumer_group) if self._config.slave_read_enable else None
        if group is None:
            return MASTER_ID
        slow = result.suggest_pulling_from_slave
        return group.which_broker_when_consume_slowly if slow else group.broker_id

    def _hold(self, pull: _Pull, result: GetMessageResult, limit_ms: int = SUSPEND_MAX_MS) -> bool:
        header = pull.header
        timeout_ms = min(max(header.suspend_timeout_millis, 0), limit_ms)
        if not self._config.long_polling_enable:
            timeout_ms = self._config.short_polling_time_mills
        asked = header.queue_offset
        first = max(asked, result.max_offset)
        known = self._subscriptions.known(header)

        def wake(seen: int) -> None:
            is_same = self._subscriptions.known(header) is known
            # Where the hold began at another offset, or for a new subscription, the messages in
            # between were not looked at.
            offset = seen if first == asked and is_same else asked
            self._wake(pull, offset, is_same=is_same)

        held = HeldPull(
            pull.connection,
            header.topic,
            header.queue_id,
            first,
            pull.matches,
            self._peer_clock.monotonic() + timeout_ms / 1000,
            wake,
        )
        return self._holding.hold(held)

    def _wake(self, pull: _Pull, offset: int, *, is_same: bool) -> None:
        """Run a held pull again. A failure is its own: this may be the turn of a sender.

        Args:
            is_same: the subscription is the one that the pull came with.
        """
        try:
            group = self._check(pull.header)  # topic and group may have changed, or be gone
            if not is_same:
                pull = pull._replace(matches=self._subscriptions.select(pull.header, group))
            if not self._send_on(pull):  # this broker may have become the master
                self._read(pull, offset, hold=False)
        except Exception as error:
            pull.fail(error)


def _response_code(status: GetMessageStatus, offset: int) -> ResponseCode:
    if status is GetMessageStatus.FOUND:
        return ResponseCode.SUCCESS
    if status in _NO_NEW or (status in _EMPTY and offset == 0):
        return ResponseCode.PULL_NOT_FOUND
    if status in _MOVED or status in _EMPTY:
        return ResponseCode.PULL_OFFSET_MOVED
    return ResponseCode.PULL_RETRY_IMMEDIATELY


class PullAnswers:
    """Encodes and counts. Loop thread."""

    def __init__(self, stats: BrokerStats) -> None:
        self.stats = stats

    def send(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: PullMessageRequestHeader,
        code: ResponseCode,
        result: GetMessageResult,
        suggested_id: int = MASTER_ID,
    ) -> None:
        """Answer `request` with what was read; nothing for a one-way request or a lost peer.

        Args:
            suggested_id: of the broker to pull from next.
        """
        self.stats.pull_results[_RESULTS[code]] += 1
        if connection.closed or request.is_oneway:
            return
        pulled = self.stats.pulled_by(header.topic, header.consumer_group)
        pulled[header.queue_id] = result.next_begin_offset
        if result.count:
            traffic = self.stats.topic_out(header.topic, header.consumer_group)
            traffic.count += result.count
            traffic.bytes += result.size
        data = self._encode(request, code, result, suggested_id)
        counter = self.stats.frames_out[request.serialize_type]
        counter.count += 1
        counter.bytes += len(data)
        connection.send(data)

    @staticmethod
    def _encode(
        request: RemotingCommand, code: ResponseCode, result: GetMessageResult, suggested_id: int
    ) -> bytes:
        kind = request.serialize_type
        if kind == SerializeType.JSON and CODEC_FIELD in request.ext_fields:
            head = _encode_with_codec(request, code, result, suggested_id)
        else:
            head = _ENCODERS[kind](
                code,
                request.opaque,
                result.status.value,
                suggested_id,
                result.next_begin_offset,
                result.min_offset,
                result.max_offset,
            )
        length = PREFIX_SIZE - 4 + len(head) + result.size
        return b"".join((PREFIX.pack(length, kind << 24 | len(head)), head, *result.views))


def _encode_with_codec(
    request: RemotingCommand, code: ResponseCode, result: GetMessageResult, suggested_id: int
) -> bytes:
    fields = encode_fields(
        PullMessageResponseHeader(
            suggest_which_broker_id=suggested_id,
            next_begin_offset=result.next_begin_offset,
            min_offset=result.min_offset,
            max_offset=result.max_offset,
        )
    )
    if request.ext_fields[CODEC_FIELD] == CODEC_OFFER:
        fields[CODEC_FIELD] = CODEC_OFFER
    return header_json.encode_header(request.reply(code, result.status.value, fields))
