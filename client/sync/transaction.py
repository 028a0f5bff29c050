"""A transaction around a message, blocking."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from skylarkmq.client.producer.send_result import SendResult
from skylarkmq.client.producer.transaction import Transaction as AsyncTransaction
from skylarkmq.client.producer.transaction_check import HalfMessage, TransactionState
from skylarkmq.client.sync.bound import Bound
from skylarkmq.client.sync.portal import Portal

Check = Callable[[HalfMessage], TransactionState]
"""Looks up how the transaction of a message ended; called in a thread of its own."""


class Transaction(Bound):
    """One transaction; a context manager, to be entered once. See the asynchronous one."""

    def __init__(self, portal: Portal, transaction: AsyncTransaction) -> None:
        super().__init__(portal)
        self._transaction = transaction

    def __enter__(self) -> Self:
        """Send the half message."""
        self._run(self._transaction.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the verdict that the block has not given itself: commit, or after an error rollback.

        After Ctrl-C and the like it is left to the check.
        """
        self._run(lambda: self._transaction.__aexit__(kind, error, trace))

    def __repr__(self) -> str:
        return repr(self._transaction)

    @property
    def state(self) -> TransactionState | None:
        """The verdict so far, None while there is none."""
        return self._transaction.state

    @property
    def transaction_id(self) -> str:
        """What checks will be asked for, `HalfMessage.transaction_id`: the message's id."""
        return self._transaction.transaction_id

    @property
    def result(self) -> SendResult:
        """Where the half message is. Consumers get the message under the same `msg_id`."""
        return self._transaction.result

    def commit(self) -> None:
        """Let consumers have the message. Never fails: a verdict that is lost is asked for."""
        self._run(self._transaction.commit)

    def rollback(self) -> None:
        """Let nobody have the message. Never fails: a verdict that is lost is asked for."""
        self._run(self._transaction.rollback)

    def unknown(self) -> None:
        """Leave the verdict to the check, or to a later `commit` or `rollback`."""
        self._run(self._transaction.unknown)
