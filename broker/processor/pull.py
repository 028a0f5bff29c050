"""Pulling: codes 11 and 361 (5.x lite consumers, the same request under another number).

    check    broker, group, topic, queue, subscription, in RocketMQ's order
    read     the store's answer decides the code; the body is the stored records, untouched; what
             may have to come from the disk is read off the loop
    hold     nothing new, and the client lets us wait: kept until a message comes or time is up
    commit   the offset that rides on the request is stored, also when the pull is held

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/PullMessageProcessor.java
"""

from __future__ import annotations

import logging

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.groups.consumer_offset import ConsumerOffsetManager
from skylarkmq.broker.groups.offset_moved import OffsetMovedEvents
from skylarkmq.broker.groups.slow_consumers import SlowConsumerService
from skylarkmq.broker.groups.subscription_group import SubscriptionGroupManager
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.router import REMARK_MAX, Handler
from skylarkmq.broker.processor.pull_answers import MASTER_ID, PullAnswers
from skylarkmq.broker.processor.pull_subscription import PullSubscriptions
from skylarkmq.broker.pulling.cold_reads import ColdLine, Finished
from skylarkmq.broker.pulling.long_polling import HeldPull, PullRequestHoldService
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.group import SubscriptionGroupConfig
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import PullSysFlag, is_readable
from skylarkmq.protocol.headers.fields import decode_fields
from skylarkmq.protocol.headers.pull import PullMessageRequestHeader
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.read.message_reader import Filter
from skylarkmq.store.results import GetMessageResult, GetMessageStatus

log = logging.getLogger(__name__)

COUNT_MAX = 1024  # messages of one answer, whatever is asked
SUSPEND_MAX_MS = 300_000

_NO_NEW = frozenset({GetMessageStatus.OFFSET_FOUND_NULL, GetMessageStatus.OFFSET_OVERFLOW_ONE})
_EMPTY = frozenset({GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, GetMessageStatus.NO_MESSAGE_IN_QUEUE})
_MOVED = frozenset({GetMessageStatus.OFFSET_OVERFLOW_BADLY, GetMessageStatus.OFFSET_TOO_SMALL})


class PullProcessor:
    """Answers pulls, now or when there is something. Loop thread."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        subscriptions: PullSubscriptions,
        offsets: ConsumerOffsetManager,
        holding: PullRequestHoldService,
        answers: PullAnswers,
        moved: OffsetMovedEvents,
        slow: SlowConsumerService,
        clock: Clock,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._holding = holding
        self._answers = answers
        self._moved = moved
        self._slow = slow
        self._clock = clock
        self._cold = ColdLine(config.pull_thread_pool_queue_capacity, answers.stats)

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.PULL_MESSAGE: self.handle,
            RequestCode.LITE_PULL_MESSAGE: self.handle,
        }

    def handle(self, connection: Connection, request: RemotingCommand) -> None:
        """Answer a pull, or hold it."""
        header = decode_fields(PullMessageRequestHeader, request.ext_fields)
        group = self._check(header, connection.remote_address)
        matches = self._subscriptions.select(header, group)
        self._execute(connection, request, header, matches, header.queue_offset, hold=True)
        if header.sys_flag & PullSysFlag.FLAG_COMMIT_OFFSET and header.commit_offset >= 0:
            self._offsets.commit(
                connection.remote_address,
                header.consumer_group,
                header.topic,
                header.queue_id,
                header.commit_offset,
            )

    def _check(
        self, header: PullMessageRequestHeader, remote_address: str = ""
    ) -> SubscriptionGroupConfig:
        if not is_readable(self._config.broker_permission):
            raise RemoteProtocolError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_name}] pulling message is forbidden",
            )
        group = self._groups.find(header.consumer_group, remote_address)
        if group is None:
            raise RemoteProtocolError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumer_group[:64]}] does not exist; create it, or "
                "let the broker do so with autoCreateSubscriptionGroup=true",
            )
        if not group.consume_enable:
            raise RemoteProtocolError(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {header.consumer_group}",
            )
        topic = self._topics.table.get(header.topic)
        if topic is None:
            raise RemoteProtocolError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic[:64]}] not exist, apply first please!",
            )
        if not is_readable(topic.perm):
            raise RemoteProtocolError(
                ResponseCode.NO_PERMISSION,
                f"the topic[{header.topic}] pulling message is forbidden",
            )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise RemoteProtocolError(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] has "
                f"{topic.read_queue_nums} read queues",
            )
        return group

    def _execute(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: PullMessageRequestHeader,
        matches: Filter | None,
        offset: int,
        *,
        hold: bool,
    ) -> None:
        """Read from a queue offset on, and answer or hold.

        Args:
            offset: the client's, or one behind it when nothing between is wanted.
        """
        topic, queue_id = header.topic, header.queue_id
        count = min(max(header.max_msg_nums, 1), COUNT_MAX)
        store = self._store
        if not store.is_cold(topic, queue_id, offset):
            result = store.get_message(
                topic, queue_id, offset, count, header.max_msg_bytes, matches
            )
            self._finish(connection, request, header, matches, result, hold=hold)
            return
        if self._cold.is_full:
            connection.reply(request, self._cold.refusal(request))
            return

        def start(finished: Finished) -> None:
            def done(result: GetMessageResult | None, error: BaseException | None) -> None:
                try:
                    if result is None:
                        self._fail(connection, request, header, error)
                    elif not connection.closed:
                        self._check(header)  # the topic may have gone meanwhile
                        self._finish(connection, request, header, matches, result, hold=hold)
                except Exception as failure:
                    self._fail(connection, request, header, failure)
                finally:
                    finished()

            store.get_message_cold(
                topic, queue_id, offset, count, header.max_msg_bytes, matches, done
            )

        self._cold.run(connection, start)

    def _finish(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: PullMessageRequestHeader,
        matches: Filter | None,
        result: GetMessageResult,
        *,
        hold: bool,
    ) -> None:
        is_behind = result.next_begin_offset > header.queue_offset
        if result.status is GetMessageStatus.OFFSET_OVERFLOW_ONE and is_behind:
            result.status = GetMessageStatus.NO_MATCHED_MESSAGE  # all between was looked at
        code = _response_code(result.status, header.queue_offset)
        may_hold = (
            hold
            and code == ResponseCode.PULL_NOT_FOUND
            and header.sys_flag & PullSysFlag.FLAG_SUSPEND
            and not request.is_oneway
        )
        if may_hold and self._hold(connection, request, header, matches, result):
            return
        if code == ResponseCode.PULL_OFFSET_MOVED:
            self._moved.note(header, result.next_begin_offset)
        elif self._slow.enabled and result.count:
            self._slow.note(
                header.consumer_group, header.topic, header.queue_id, result.next_begin_offset
            )
        self._answers.send(connection, request, header, code, result, self._suggest(header, result))

    def _suggest(self, header: PullMessageRequestHeader, result: GetMessageResult) -> int:
        """The broker id that the client should pull from next."""
        group = self._groups.find(header.consumer_group) if self._config.slave_read_enable else None
        if group is None:
            return MASTER_ID
        slow = result.suggest_pulling_from_slave
        return group.which_broker_when_consume_slowly if slow else group.broker_id

    def _hold(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: PullMessageRequestHeader,
        matches: Filter | None,
        result: GetMessageResult,
    ) -> bool:
        timeout_ms = min(max(header.suspend_timeout_millis, 0), SUSPEND_MAX_MS)
        if not self._config.long_polling_enable:
            timeout_ms = self._config.short_polling_time_mills
        asked = header.queue_offset
        first = max(asked, result.max_offset)
        known = self._subscriptions.known(header)

        def wake(seen: int) -> None:
            is_same = self._subscriptions.known(header) is known
            # Where the hold began elsewhere, nobody looked at what lies between; nor did anyone
            # for a subscription that came meanwhile.
            offset = seen if first == asked and is_same else asked
            self._wake(connection, request, header, matches, offset, is_same=is_same)

        held = HeldPull(
            connection,
            header.topic,
            header.queue_id,
            first,
            matches,
            self._clock.monotonic() + timeout_ms / 1000,
            wake,
        )
        return self._holding.hold(held)

    def _wake(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: PullMessageRequestHeader,
        matches: Filter | None,
        offset: int,
        *,
        is_same: bool,
    ) -> None:
        """Run a held pull again. A failure is its own: this may be the turn of a sender.

        Args:
            is_same: whether the subscription is the one that the pull came with.
        """
        try:
            group = self._check(header)  # topic and group may have changed, or be gone
            if not is_same:
                matches = self._subscriptions.select(header, group)
            self._execute(connection, request, header, matches, offset, hold=False)
        except Exception as error:
            self._fail(connection, request, header, error)

    @staticmethod
    def _fail(
        connection: Connection,
        request: RemotingCommand,
        header: PullMessageRequestHeader,
        error: BaseException | None,
    ) -> None:
        if isinstance(error, RemoteProtocolError):
            connection.reply(request, request.reply(error.response_code, error.remark))
            return
        log.error("a pull of %s failed", header.topic, exc_info=error)
        why = f"{type(error).__name__}: {error}"[:REMARK_MAX]
        connection.reply(request, request.reply(ResponseCode.SYSTEM_ERROR, why))


def _response_code(status: GetMessageStatus, offset: int) -> ResponseCode:
    if status is GetMessageStatus.FOUND:
        return ResponseCode.SUCCESS
    if status in _NO_NEW or (status in _EMPTY and offset == 0):
        return ResponseCode.PULL_NOT_FOUND
    if status in _MOVED or status in _EMPTY:
        return ResponseCode.PULL_OFFSET_MOVED
    return ResponseCode.PULL_RETRY_IMMEDIATELY
