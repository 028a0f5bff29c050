"""A message that a SimpleConsumer received, with the handle of its delivery."""

from __future__ import annotations

from skylarkmq.client.message_view import StoredMessage
from skylarkmq.client.namespace import Namespace
from skylarkmq.client.wire.api_pop import Popped
from skylarkmq.protocol.message import MessageQueue


class PoppedMessage(StoredMessage):
    """A message that a SimpleConsumer received. Users do not make or change one."""

    __slots__ = (
        "_checkpoint",
        "_is_done",
        "_known_topic",
        "_received_s",
        "_trace_id",
        "broker_name",
        "delivery_attempt",
    )

    def __init__(self, popped: Popped, known_topic: str, namespace: Namespace) -> None:
        topic, place = namespace.unwrap(known_topic), popped.checkpoint
        super().__init__(
            popped.message, MessageQueue(topic, place.broker_name, place.queue_id), topic
        )
        self._checkpoint = popped.checkpoint
        # Brokers take a second acknowledgement without a word.
        self._is_done = False
        self._known_topic = known_topic
        # When a receive returned it, monotonic, and what its trace knows it by; only with hooks.
        self._received_s = 0.0
        self._trace_id = ""
        self.broker_name = popped.checkpoint.broker_name
        """The broker that it came from."""
        self.delivery_attempt = popped.earlier_count + 1
        """The number of this delivery, 1 for the first."""

    @property
    def reconsume_times(self) -> int:
        """How many times it was delivered before."""
        return self.delivery_attempt - 1
