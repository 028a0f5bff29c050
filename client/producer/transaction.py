"""Transactions: a message that appears exactly when a local transaction has happened.

    async with producer.transaction(message) as transaction:   half message stored, nobody sees it
        await database.commit(...)                             the local transaction
                                                               commit: consumers see the message
    the block ends       commit
    it raises            rollback: the message is never seen
    it is cancelled      UNKNOWN, because the local transaction may have happened: the check decides
    it says so itself    transaction.commit(), rollback() or unknown()

The verdict (37) is one-way, as in RocketMQ: whether it arrived is settled by the broker, which asks
the producer group about half messages without one (`checks.py`). So the process may die at any
step:

    dies before              broker has        the check, asked in another process of the group
    the half is stored       nothing           is never asked
    the local commit         a half message    finds no local transaction: ROLLBACK
    the verdict arrives      a half message    finds it: COMMIT

That holds for checks given to the Producer; one given to a single transaction dies with its
process. A check that finds nothing says ROLLBACK only when the transaction cannot be under way any
more in some other process; else it says UNKNOWN. The property CHECK_IMMUNITY_TIME_IN_SECONDS of a
message keeps the broker from asking for so long.

Unlike RocketMQ: a raised exception rolls back, where Java's listener leaves it to the check; and a
delayed message is refused, where Java drops the delay without a word.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/producer/DefaultMQProducerImpl.java
(sendMessageInTransaction, endTransaction, initTransactionEnv)
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Final, Self

from skylarkmq.client.errors import (
    IllegalState,
    NotDurableError,
    ProtocolError,
    RocketMQError,
    RouteNotFound,
    is_away,
)
from skylarkmq.client.observe.hooks import TransactionEnd, each
from skylarkmq.client.producer.checks import Check, Checks, TransactionState, end_command
from skylarkmq.client.producer.every_broker import EveryBroker
from skylarkmq.client.producer.outgoing import is_delayed
from skylarkmq.client.producer.send_pipeline import Send
from skylarkmq.client.producer.sender import Sender
from skylarkmq.client.send_result import SendResult, SendStatus
from skylarkmq.client.services import Services
from skylarkmq.protocol.errors import WireError
from skylarkmq.protocol.flags import DEFAULT_PRODUCER_GROUP, MessageSysFlag
from skylarkmq.protocol.message import Message
from skylarkmq.protocol.message_id import decode_offset_message_id
from skylarkmq.protocol.properties import PGROUP, TRAN_MSG
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.waiting import backoff_s, sleep, within

log = logging.getLogger(__name__)
END_TIMEOUT_S: Final = 3.0
END_RETRY_FIRST_S: Final = 0.1
END_RETRY_MAX_S: Final = 1.0
"""How long the verdict may look for a connection."""


class Transactions:
    """The transactions of one producer. Loop thread."""

    def __init__(
        self,
        services: Services,
        sender: Sender,
        brokers: EveryBroker,
        group: str,
        check: Check | None,
    ) -> None:
        """Take the producer's group, without a namespace."""
        self.services = services
        self.sender = sender
        self.group = group
        self.checks = Checks(services, services.namespace.wrap(group), check)
        self._brokers = brokers
        self._joined = False
        self._stopped = False
        if check is not None:
            self._join()

    def transaction(self, message: Message, check: Check | None) -> Transaction:
        """Return a transaction that has not begun.

        Raises:
            IllegalState: see `Producer.transaction`.
        """
        if check is None and self.checks.check is None:
            raise IllegalState(
                "a transaction has a check, which says how it ended when this process cannot",
                hint="Give Producer(check=...)",
            )
        if self.group == DEFAULT_PRODUCER_GROUP:
            raise IllegalState(
                "the broker asks any member of the producer group about a transaction",
                hint="Give the producer a group of its own: Producer(group=...)",
            )
        if is_delayed(message):
            raise IllegalState("a transaction takes no delayed message")
        return Transaction(self, message, check)

    def begin(self, send: Send, check: Check | None) -> None:
        """A half message is on its way."""
        self._join()
        self.checks.open[send.request.unique_key] = check

    async def stop(self) -> None:
        """Answer no more questions."""
        self._stopped = True
        if self._joined:
            self._joined = False
            self.services.check_listeners.leave(self.checks)
        await self.checks.stop()

    def _join(self) -> None:
        if not self._joined and not self._stopped:
            self._joined = True
            self.services.check_listeners.join(self.checks)
            self._brokers.start()


class Transaction:
    """One transaction; an asynchronous context manager, to be entered once."""

    def __init__(self, owner: Transactions, message: Message, check: Check | None) -> None:
        self.state: TransactionState | None = None
        """The verdict so far, None while there is none."""
        self._owner = owner
        self._message = message
        self._check = check
        self._unique_id = ""
        self._result: SendResult | None = None
        self._trouble: RocketMQError | None = None  # why the broker could not be told as yet
        self._entered = False

    @property
    def transaction_id(self) -> str:
        """What checks will be asked for, `HalfMessage.transaction_id`: the message's id."""
        return self._half.msg_id

    @property
    def result(self) -> SendResult:
        """Where the half message is. Consumers get the message under the same `msg_id`.

        Raises:
            IllegalState: it is not stored yet.
        """
        return self._half

    async def __aenter__(self) -> Self:
        """Send the half message.

        Cancelled or failed, it may be stored; then it is rolled back when the broker asks.

        Raises:
            NotDurableError: stored, but not confirmed durable, and so rolled back again: after a
                crash of the broker it might be missing while the local transaction has happened.
            RocketMQError: not stored, or not known to be.
        """
        if self._entered:
            raise IllegalState("a transaction is entered once")
        self._entered = True
        owner = self._owner
        properties = {TRAN_MSG: "true", PGROUP: owner.checks.group}
        prepared = MessageSysFlag.TRANSACTION_PREPARED_TYPE
        send = await owner.sender.begin(
            self._message,
            owner.sender.choice(self._message, None, None, None),
            properties=properties,
            sys_flag=prepared,
            kind="half",
        )
        self._unique_id = send.request.unique_key
        owner.begin(send, self._check)
        try:
            result = await send.future
        except BaseException as error:
            self._decide(TransactionState.ROLLBACK)
            if isinstance(error, asyncio.CancelledError):
                owner.sender.pipeline.abandon(send)
            elif isinstance(error, NotDurableError) and isinstance(error.result, SendResult):
                self._result = error.result
                await self._tell(TransactionState.ROLLBACK)
            raise
        self._result = result
        if result.status is not SendStatus.SEND_OK:
            await self._end(TransactionState.ROLLBACK)
            raise NotDurableError(result, result.status.name)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the verdict that the block has not given itself."""
        if self.state is not None:
            return
        if error is None:
            await self._end(TransactionState.COMMIT)
        elif isinstance(error, Exception):
            await self._end(TransactionState.ROLLBACK)
        else:  # at once, because this task should end: nothing is awaited
            self._decide(TransactionState.UNKNOWN)
            self._tell_now(TransactionState.UNKNOWN)

    async def commit(self) -> None:
        """Let consumers have the message. Never fails: a verdict that is lost is asked for.

        Raises:
            IllegalState: not begun, or rolled back before.
        """
        await self._end(TransactionState.COMMIT)

    async def rollback(self) -> None:
        """Let nobody have the message. Never fails: a verdict that is lost is asked for.

        Raises:
            IllegalState: not begun, or committed before.
        """
        await self._end(TransactionState.ROLLBACK)

    async def unknown(self) -> None:
        """Leave the verdict to the check, or to a later `commit` or `rollback`.

        Raises:
            IllegalState: not begun, or decided before.
        """
        await self._end(TransactionState.UNKNOWN)

    def __repr__(self) -> str:
        state = "open" if self.state is None else self.state.name
        return f"<Transaction {self._unique_id} of {self._message.topic}, {state}>"

    # Inside

    @property
    def _half(self) -> SendResult:
        if self._result is None:
            raise IllegalState("the transaction has not begun")
        return self._result

    async def _end(self, state: TransactionState) -> None:
        _ = self._half
        if self.state is state:
            return
        if self.state in (TransactionState.COMMIT, TransactionState.ROLLBACK):
            raise IllegalState(f"the transaction has ended already: {self.state.name}")
        self._decide(state)
        await self._tell(state)

    def _decide(self, state: TransactionState) -> None:
        """From here on the broker's question has this answer, whatever becomes of the verdict."""
        self.state = state
        self._owner.checks.remember(self._unique_id, state)

    async def _tell(self, state: TransactionState) -> None:
        self._trouble = None
        try:
            address = await within(self._owner.services.clock, END_TIMEOUT_S, self._post(state))
        except (RocketMQError, TimeoutError) as error:
            why = self._trouble or error
            log.warning("%r: the broker was not told, it will ask: %s", self, why)
        else:
            self._told(state, address)

    async def _post(self, state: TransactionState) -> str:
        """Tell the master, or the one that takes its place, once; return its address."""
        services = self._owner.services
        topic = services.namespace.wrap(self._message.topic)
        failed_count = 0
        while True:  # until the caller's time is up
            try:
                command, address = self._command(state)
                await services.remoting.post(address, command)
            except RocketMQError as error:
                if not is_away(error):
                    raise
                self._trouble = error
                services.doubt(topic)
            else:
                return address
            failed_count += 1
            await sleep(services.clock, backoff_s(failed_count, END_RETRY_FIRST_S, END_RETRY_MAX_S))

    def _tell_now(self, state: TransactionState) -> None:
        """Tell the broker if that needs no waiting."""
        try:
            command, address = self._command(state)
            connection = self._owner.services.remoting.ready(address)
            if connection is not None:
                connection.post(command)
                self._told(state, address)
        except RocketMQError as error:
            log.warning("%r: the broker was not told, it will ask: %s", self, error)

    def _command(self, state: TransactionState) -> tuple[RemotingCommand, str]:
        result = self._half
        try:
            _, physical_offset = decode_offset_message_id(result.offset_msg_id)
        except WireError as error:
            raise ProtocolError(f"the broker gave a half message no place: {error}") from error
        broker_name = result.queue.broker_name
        address = self._owner.services.routes.master_address(broker_name)
        if address is None:
            why = f"Broker {broker_name} has no master at the moment"
            raise RouteNotFound(self._message.topic, "no_broker", why)
        command = end_command(
            self._owner.checks.group,
            state,
            self._unique_id,
            queue_offset=result.queue_offset,
            physical_offset=physical_offset,
            transaction_id=result.transaction_id,
            broker_name=broker_name,
            from_check=False,
        )
        return command, address

    def _told(self, state: TransactionState, address: str) -> None:
        hooks = self._owner.services.hooks
        if not hooks:
            return
        message = self._message
        end = TransactionEnd(
            self._owner.group,
            message.topic,
            self._unique_id,
            self._half.offset_msg_id,
            message.tags or "",
            message.keys,
            state.value,
            from_check=False,
            broker_addr=address,
            transaction_id=self._half.transaction_id or "",
        )
        each(hooks, lambda hook: hook.transaction_ended(end))
