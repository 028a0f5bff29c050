"""What a producer answers when a broker asks how a transaction of its group ended.

The broker's question (39), and a producer's answers:

    39 --> CheckRouter --group--> Checks of one producer    (client/wire/pushes.py)
             what this process decided itself    answered at once
             a transaction still open here       UNKNOWN, at once: its end is yet to come
             anything else                       the application's check, then its verdict

The question is one-way; the answer is an END_TRANSACTION (37) with `fromTransactionCheck`. What
goes wrong is an UNKNOWN or no answer at all, after which the broker asks again: every
`transactionCheckInterval` (60 s), `transactionCheckMax` (15) times; then it gives the message up.

Unlike RocketMQ, where the application is asked in every case: one that is asked while its own
transaction is open finds no trace of it, and would roll back what is about to be committed.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/producer/DefaultMQProducerImpl.java
(checkTransactionState), client/.../impl/ClientRemotingProcessor.java (checkTransactionState)
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, NamedTuple

from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.message_view import MessageView
from skylarkmq.client.observe.hooks import TransactionEnd, each
from skylarkmq.client.services import Services
from skylarkmq.client.wire.pushes import BROKER_NAME_FIELD, Question
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.protocol.headers.send import EndTransactionRequestHeader
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.properties import TRANSACTION_CHECK_TIMES
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.waiting import within

log = logging.getLogger(__name__)
CHECKS_AT_ONCE: Final = 16
"""Checks of the application that run at the same time, for each producer."""
WAITING_MAX: Final = 2000
"""Questions that wait for a check; more than that are left for the broker's next round."""
CHECK_TIMEOUT_S: Final = 60.0
"""A check that takes longer is cancelled: by then the broker asks anew."""
STOP_TIMEOUT_S: Final = 3.0
"""How long a stop waits for checks that it has cancelled."""
REMEMBERED_MAX: Final = 10_000
"""Ends of transactions that are remembered, so that a lost verdict is given again."""


class TransactionState(Enum):
    """How a transaction ended. The values are RocketMQ's names."""

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    UNKNOWN = "UNKNOW"
    """Not known yet: the broker asks again later."""


class HalfMessage(MessageView):
    """The message of a transaction whose end the broker asks for."""

    __slots__ = ()

    @property
    def transaction_id(self) -> str:
        """The id that the producer gave the message, as `Transaction.transaction_id`."""
        return self.msg_id

    @property
    def check_count(self) -> int:
        """How many times the broker has asked, this time included."""
        text = self.properties.get(TRANSACTION_CHECK_TIMES, "1")
        return int(text) if text.isdecimal() else 1


_WIRE: Final = {
    TransactionState.COMMIT: MessageSysFlag.TRANSACTION_COMMIT_TYPE,
    TransactionState.ROLLBACK: MessageSysFlag.TRANSACTION_ROLLBACK_TYPE,
    TransactionState.UNKNOWN: MessageSysFlag.TRANSACTION_NOT_TYPE,
}
Check = Callable[[HalfMessage], Awaitable[TransactionState] | TransactionState]
"""Looks up how the transaction of a message ended. It is asked by any process of the group, also
by one that knows nothing but what is on disk; UNKNOWN means: ask again later."""


class Ended(NamedTuple):
    """What is remembered of a transaction that this process began."""

    state: TransactionState
    check: Check | None


class Checks:
    """Answers the questions about the transactions of one producer."""

    def __init__(self, services: Services, group: str, check: Check | None) -> None:
        """Take the producer's group, as brokers know it, and what answers for all of it."""
        self.group = group
        self.check = check
        self.open: dict[str, Check | None] = {}
        """Transactions at work in this process, by unique id, each with its own check."""
        self.dropped_count = 0
        """Questions left for the broker's next round."""
        self._services = services
        self._ended: OrderedDict[str, Ended] = OrderedDict()
        self._waiting: OrderedDict[str, Question] = OrderedDict()
        self._workers: set[asyncio.Task[None]] = set()
        # Checks at work.
        self._asked_count = 0

    def remember(self, unique_id: str, state: TransactionState) -> None:
        """Note how a transaction of this process ended; it is open no more."""
        check = self.open.pop(unique_id, None)
        if unique_id in self._ended:
            check = self._ended.pop(unique_id).check
        self._ended[unique_id] = Ended(state, check)
        if len(self._ended) > REMEMBERED_MAX:
            self._ended.popitem(last=False)

    @property
    def has_check(self) -> bool:
        """True when it can answer for any transaction of its group."""
        return self.check is not None

    def knows(self, unique_id: str) -> bool:
        """Return whether this process began that transaction."""
        return unique_id in self.open or unique_id in self._ended

    def ask(self, question: Question) -> None:
        """Answer a question, now or after the application has been asked."""
        unique_id = question.message.unique_key or ""
        ended = self._ended.get(unique_id)
        if unique_id in self.open:
            self._answer(question, TransactionState.UNKNOWN)
        elif ended is not None and ended.state is not TransactionState.UNKNOWN:
            self._answer(question, ended.state)
        elif self._check_of(unique_id) is None:
            log.warning(
                "asked about transaction %s of group %s, which has no check here",
                unique_id, self.group,
            )  # fmt: skip
        elif unique_id not in self._waiting and len(self._waiting) >= WAITING_MAX:
            self.dropped_count += 1
            log.warning("%d transactions wait for a check, %s is left out", WAITING_MAX, unique_id)
        else:
            # Of two questions about one message the later one names the place where it is now.
            self._waiting[unique_id] = question
            if len(self._workers) < min(CHECKS_AT_ONCE, self._asked_count + len(self._waiting)):
                self._hire()

    async def stop(self) -> None:
        """Cancel the checks at work; the broker asks another member of the group."""
        self._waiting.clear()
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        if not workers:
            return
        try:
            await within(self._services.clock, STOP_TIMEOUT_S, asyncio.wait(workers))
        except TimeoutError:
            log.warning("a check of group %s does not end when it is cancelled", self.group)

    def _hire(self) -> None:
        worker = asyncio.create_task(self._work(), name=f"skylarkmq-check-{self.group}")
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        while self._waiting:
            unique_id, question = self._waiting.popitem(last=False)
            check = self._check_of(unique_id)
            if check is None:
                continue
            self._asked_count += 1
            try:
                state = await self._verdict(check, question.message)
            finally:
                self._asked_count -= 1
            ended = self._ended.get(unique_id)
            if ended is not None and ended.state is not TransactionState.UNKNOWN:
                state = ended.state  # decided here while the check looked: it could not know
            self._answer(question, state)
        task = asyncio.current_task()
        if task is not None:  # at once: a question that comes before its end needs another
            self._workers.discard(task)

    def _check_of(self, unique_id: str) -> Check | None:
        ended = self._ended.get(unique_id)
        return ended.check if ended is not None and ended.check is not None else self.check

    async def _verdict(self, check: Check, message: MessageExt) -> TransactionState:
        """Ask the application; what it cannot say is UNKNOWN."""
        topic = self._services.namespace.unwrap(message.topic)
        half = HalfMessage(message, topic)
        try:
            state = check(half)
            if inspect.isawaitable(state):
                state = await within(self._services.clock, CHECK_TIMEOUT_S, state)
            return _checked(state)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            log.warning("the check of transaction %s was cancelled: not known", half.msg_id)
            return TransactionState.UNKNOWN
        except Exception:
            log.exception("the check of transaction %s failed: not known", half.msg_id)
            return TransactionState.UNKNOWN

    def _answer(self, question: Question, state: TransactionState) -> None:
        message, header = question.message, question.header
        unique_id = message.unique_key or header.msg_id or ""
        command = end_command(
            self.group,
            state,
            unique_id,
            queue_offset=header.tran_state_table_offset,
            physical_offset=header.commit_log_offset,
            transaction_id=header.transaction_id,
            broker_name=question.broker_name,
            from_check=True,
        )
        try:
            question.connection.post(command)
        except RocketMQError as error:
            log.warning("transaction %s: %s; the broker will ask again", unique_id, error)
            return
        services = self._services
        if services.hooks:
            end = TransactionEnd(
                services.namespace.unwrap(self.group),
                services.namespace.unwrap(message.topic),
                unique_id,
                header.offset_msg_id or "",
                message.tags or "",
                message.keys,
                state.value,
                from_check=True,
                broker_addr=question.connection.address,
                transaction_id=header.transaction_id or "",
            )
            each(services.hooks, lambda hook: hook.transaction_ended(end))


def _checked(state: object) -> TransactionState:
    if not isinstance(state, TransactionState):
        raise TypeError(f"a check returns a TransactionState, not {type(state).__name__}")
    return state


def end_command(
    group: str,
    state: TransactionState,
    unique_id: str,
    *,
    queue_offset: int,
    physical_offset: int,
    transaction_id: str | None,
    broker_name: str | None,
    from_check: bool,
) -> RemotingCommand:
    """Return the request that tells the broker how a transaction ended (37, one-way).

    Args:
        group: the producer group, as brokers know it.
        queue_offset, physical_offset: where the half message is.
    """
    header = EndTransactionRequestHeader(
        producer_group=group,
        tran_state_table_offset=queue_offset,
        commit_log_offset=physical_offset,
        commit_or_rollback=_WIRE[state],
        from_transaction_check=from_check,
        msg_id=unique_id,
        transaction_id=transaction_id,
    )
    fields = encode_fields(header)
    if broker_name is not None:
        fields[BROKER_NAME_FIELD] = broker_name
    return RemotingCommand.request(RequestCode.END_TRANSACTION, fields, oneway=True)
