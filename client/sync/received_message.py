"""A message as a blocking consumer gets it, with its acknowledgement."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from skylarkmq.client.consumer.received_message import ReceivedMessage as AsyncReceivedMessage
from skylarkmq.client.message_view import StoredView
from skylarkmq.client.sync.bound import Binding
from skylarkmq.client.sync.portal import Portal
from skylarkmq.protocol.message import MessageQueue


class ReceivedMessage(StoredView):
    """One message of one queue; `skylarkmq.client.ReceivedMessage` without await. Any thread."""

    __slots__ = ("_binding", "_twin")

    def __init__(self, portal: Portal, message: AsyncReceivedMessage) -> None:
        super().__init__(message.stored, message.topic)
        self._twin = message
        self._binding = Binding(portal)

    @property
    def queue(self) -> MessageQueue:
        """The queue it came from; of the retry topic when it is a retry."""
        return self._twin.queue

    @property
    def reconsume_times(self) -> int:
        """How many times it was handed back before."""
        return self._twin.reconsume_times

    # What becomes of it

    def ack(self) -> None:
        """It is done. The group's offset moves on once all before it are done as well."""
        self._run(self._twin.ack)

    def nack(self, delay_level: int | None = None, *, delay: timedelta | None = None) -> None:
        """Let the group get it again, after a while; beyond `max_reconsume` it is a dead letter."""
        self._run(lambda: self._twin.nack(delay_level, delay=delay))

    def dead_letter(self, reason: str | None = None) -> None:
        """Give it up: it goes to the group's dead letter topic, `%DLQ%<group>`."""
        self._run(lambda: self._twin.dead_letter(reason))

    def extend(self, seconds: float) -> None:
        """Say that it takes longer: `consume_timeout` counts anew, as `seconds` from now."""
        self._run(lambda: self._twin.extend(seconds))

    @contextmanager
    def process(self, *, requeue: bool = True) -> Generator[ReceivedMessage]:
        """Acknowledge when the block ends; on an error hand it back and let the error through."""
        inside = self._twin.process(requeue=requeue)
        self._run(inside.__aenter__)
        try:
            yield self
        except BaseException as error:
            failure, kind, where = error, type(error), error.__traceback__
            self._run(lambda: inside.__aexit__(kind, failure, where))
            raise
        self._run(lambda: inside.__aexit__(None, None, None))

    def _run(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self._binding.run(work, self)
