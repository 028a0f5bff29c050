"""A slave's copy of its master's tables: what is not in the log.

    21   topics            under the master's version, when that is another
    43   consumer offsets  } when this log has reached the end that the master's
    45   delay offsets     } had after it was asked for them; with 45 a SkylarkMQ master tells how
                             far messages with a time of their own are delivered
    201  groups            under the master's version, when that is another
    28   where the master's log ends

First 3 s after the start, then every 10 s. An offset speaks of messages. So offsets wait until
those are here: a slave that becomes the master hands no message to nobody, it repeats some. While
they wait, no newer ones are asked for, so a slave that is always a little behind gets offsets too.

Topics that the master does not have stay as long as this log has messages of them: the master may
have lost its table, and a slave deletes nothing. Offsets that the master does not have stay, too.

Without its master a slave keeps what it has, and what consumers commit here meanwhile. The master's
offsets replace them when it is back, as RocketMQ's do.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../slave/SlaveSynchronize.java,
broker/.../BrokerController.java (handleSlaveSynchronize)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec

from skylarkmq.broker.base.waiting import result_of
from skylarkmq.broker.delay.delay_offsets import DelayOffsetTable
from skylarkmq.broker.groups.subscription_group import groups_of
from skylarkmq.broker.replication.ha.master_address import MasterAddress
from skylarkmq.broker.requests.processor import Context
from skylarkmq.broker.tables.json_table import ROWS_MAX
from skylarkmq.broker.timer.service import TimerMessageService
from skylarkmq.broker.topics.topic_config import topics_of
from skylarkmq.common.clock import Clock
from skylarkmq.common.throttled_log import ThrottledLog
from skylarkmq.common.worker import Worker
from skylarkmq.protocol.bodies.group import (
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
    TimerProgressBody,
)
from skylarkmq.protocol.bodies.route import KVTable
from skylarkmq.protocol.bodies.text import decode_body
from skylarkmq.protocol.bodies.topic import TopicConfigSerializeWrapper
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, WireError, shown
from skylarkmq.remoting.client import RemotingClient
from skylarkmq.remoting.errors import RocketMQError
from skylarkmq.remoting.waiting import sleep
from skylarkmq.store.timer.checkpoint import TimerProgress

log = logging.getLogger(__name__)

FIRST_S: Final = 3.0
INTERVAL_S: Final = 10.0
LOOK_S: Final = 1.0
"""How often a slave looks whether its log has reached what offsets wait for."""
CALL_TIMEOUT_S: Final = 10.0
_LOG_END: Final = "commitLogMaxOffset"
_C: Final = RequestCode

T = TypeVar("T", bound=msgspec.Struct)


class _Offsets(NamedTuple):
    """Offsets of a master that wait for the log.

    Attributes:
        end: of the master's log, bytes.
    """

    address: str
    consumers: ConsumerOffsetSerializeWrapper
    delays: DelayOffsetSerializeWrapper
    end: int


class SlaveSync:
    """Copies the tables of the master between `start` and `stop`. Loop thread.

    Attributes:
        round_count: rounds in which every table was copied, or had not changed.
    """

    def __init__(
        self,
        context: Context,
        delay_offsets: DelayOffsetTable,
        timer: TimerMessageService,
        master: MasterAddress,
        remoting: RemotingClient,
        worker: Worker,
        clock: Clock,
    ) -> None:
        """Prepare; nothing is asked yet.

        Args:
            worker: reads the bodies of answers, which may have megabytes.
            clock: what intervals are measured by.
        """
        self._context = context
        self._delay_offsets = delay_offsets
        self._timer = timer
        self._master = master
        self._remoting = remoting
        self._worker = worker
        self._clock = clock
        self._waiting: _Offsets | None = None
        self._throttled = ThrottledLog(clock, log)
        self._is_missed = False  # the last round did not know the master's address
        self._task: asyncio.Task[None] | None = None
        self.round_count = 0

    def start(self) -> None:
        """Begin. The store has started, the tables are loaded."""
        self._task = asyncio.create_task(self._run(), name="skylarkmq-slave-sync")

    async def stop(self) -> None:
        """Copy no more. What waits for the log is left: the next start asks again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._remoting.stop()

    async def _run(self) -> None:
        await sleep(self._clock, FIRST_S)
        while True:  # until `stop` cancels the task
            next_s = self._clock.monotonic() + INTERVAL_S
            await self._round()
            self._take_reached()
            while (left_s := next_s - self._clock.monotonic()) > 0:
                await sleep(self._clock, min(LOOK_S, left_s))
                self._take_reached()

    async def _round(self) -> None:
        address = self._master.address
        if address is None:
            if self._is_missed:  # not at once: the master may be starting, too
                why = "no name server has told where the master is: see namesrvAddr"
                self._note("tables", why)
            self._is_missed = True
            return
        self._is_missed = False
        waiting = self._waiting
        if waiting is not None and waiting.address != address:
            self._waiting = None
        steps: list[tuple[str, Callable[[str], Awaitable[None]]]] = [
            ("topics", self._copy_topics),
            ("offsets", self._ask_for_offsets),
            ("groups", self._copy_groups),
        ]
        is_whole = True
        for kind, step in steps:
            try:
                await step(address)
            except RocketMQError as error:  # it is not there
                self._note("tables", str(error) or type(error).__name__)
                return
            except WireError as error:
                self._note(kind, f"{shown(address)} answers: {error}")
                is_whole = False
            except Exception:
                log.exception("the master's %s could not be copied; going on", kind)
                is_whole = False
            else:
                self._throttled.forget(kind)
        self._throttled.forget("tables")
        self.round_count += is_whole

    async def _copy_topics(self, address: str) -> None:
        told = await self._ask(address, _C.GET_ALL_TOPIC_CONFIG, TopicConfigSerializeWrapper)
        topics = self._context.topics
        if told.data_version == topics.data_version:
            return
        rows = topics_of(told, f"master {shown(address)}")
        stored = {topic for topic, _ in self._context.store.queues.queues}
        kept = {
            name: topic
            for name, topic in topics.table.items()
            if name not in rows and name in stored
        }
        if kept:
            log.warning(
                "%d topics have messages here, and the master does not know them any more: they "
                "stay: %s",
                len(kept),
                ", ".join(sorted(kept)[:5]) + (", ..." if len(kept) > 5 else ""),
            )
        topics.take_over(rows | kept, told.data_version)

    async def _copy_groups(self, address: str) -> None:
        told = await self._ask(
            address, _C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupWrapper
        )
        groups = self._context.groups
        if told.data_version != groups.data_version:
            groups.take_over(groups_of(told, f"master {shown(address)}"), told.data_version)

    async def _ask_for_offsets(self, address: str) -> None:
        if self._waiting is not None:
            return
        consumers = await self._ask(
            address, _C.GET_ALL_CONSUMER_OFFSET, ConsumerOffsetSerializeWrapper
        )
        delays = await self._ask(address, _C.GET_ALL_DELAY_OFFSET, DelayOffsetSerializeWrapper)
        info = await self._ask(address, _C.GET_BROKER_RUNTIME_INFO, KVTable)
        text = info.table.get(_LOG_END, "")
        if not (text.isascii() and text.isdigit()):
            why = f"it does not tell where its log ends: {_LOG_END}={shown(text)}"
            raise RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)
        self._waiting = _Offsets(address, consumers, delays, int(text))

    def _take_reached(self) -> None:
        """Take offsets whose messages are here."""
        waiting = self._waiting
        if waiting is None or self._context.store.writer.published_offset < waiting.end:
            return
        self._waiting = None
        self._context.offsets.take_over(waiting.consumers.offset_table)
        for level, offset in waiting.delays.offset_table.items():
            if level > 0 and offset >= 0:
                self._delay_offsets.set(level, offset)
        found = waiting.delays.timer_progress
        if isinstance(found, TimerProgressBody):
            self._timer.file.keep_progress(
                TimerProgress(
                    found.queue_offset, found.void_below, list(found.messages), list(found.cancels)
                )
            )

    async def _ask(self, address: str, code: RequestCode, body: type[T]) -> T:
        """Return a table of the master.

        Raises:
            RocketMQError, WireError: there is no answer, or none that can be read.
        """
        request = RemotingCommand.request(code)
        answer = await self._remoting.call(address, request, CALL_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            raise RemoteProtocolError(answer.code, shown(answer.remark or ""))
        read = partial(decode_body, body, answer.body, node_count_max=ROWS_MAX)
        return await result_of(lambda done: self._worker.submit(read, done))

    def _note(self, kind: str, why: str) -> None:
        self._throttled.tell(kind, f"the master's {kind} are not copied: {why}; trying again")
