"""A message as a blocking consumer gets it, with its acknowledgement."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta

from skylarkmq.client.consumer.received_message import ReceivedMessage as AsyncReceivedMessage
from skylarkmq.client.sync.bound import Bound
from skylarkmq.client.sync.portal import Portal
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.message import MessageQueue


class ReceivedMessage(Bound):
    """One message of one queue; `skylarkmq.client.ReceivedMessage` without await. Any thread."""

    __slots__ = ("_message",)

    def __init__(self, portal: Portal, message: AsyncReceivedMessage) -> None:
        super().__init__(portal)
        self._message = message

    def __repr__(self) -> str:
        return repr(self._message)

    # What it is

    @property
    def topic(self) -> str:
        """The topic it was sent to, also when it comes from the group's retry topic."""
        return self._message.topic

    @property
    def queue_offset(self) -> int:
        """Its number in the queue."""
        return self._message.queue_offset

    @property
    def body(self) -> bytes:
        """The body, decompressed if need be."""
        return self._message.body

    @property
    def tags(self) -> str | None:
        """Its tag."""
        return self._message.tags

    @property
    def keys(self) -> str:
        """Its index keys, parted by blanks."""
        return self._message.keys

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, the user's and RocketMQ's."""
        return self._message.properties

    @property
    def msg_id(self) -> str:
        """The id that its producer gave; the same on every retry."""
        return self._message.msg_id

    @property
    def offset_msg_id(self) -> str:
        """The broker's id of this copy: its address and the place in its log."""
        return self._message.offset_msg_id

    @property
    def sharding_key(self) -> str | None:
        """The key that chose its queue, if it travelled along."""
        return self._message.sharding_key

    @property
    def flag(self) -> int:
        """The user's flag."""
        return self._message.flag

    @property
    def sys_flag(self) -> int:
        """RocketMQ's flag bits."""
        return self._message.sys_flag

    @property
    def queue(self) -> MessageQueue:
        """The queue it came from; of the retry topic when it is a retry."""
        return self._message.queue

    @property
    def commit_log_offset(self) -> int:
        """The byte place in the broker's log."""
        return self._message.commit_log_offset

    @property
    def born_at(self) -> datetime:
        """When it was sent, by the producer's clock; UTC."""
        return self._message.born_at

    @property
    def stored_at(self) -> datetime:
        """When this copy was stored, by the broker's clock; UTC."""
        return self._message.stored_at

    @property
    def born_host(self) -> HostAddress:
        """Who sent it."""
        return self._message.born_host

    @property
    def store_host(self) -> HostAddress:
        """Which broker stored it."""
        return self._message.store_host

    @property
    def reconsume_times(self) -> int:
        """How many times it was handed back before."""
        return self._message.reconsume_times

    @property
    def body_crc(self) -> int:
        """CRC-32 of the stored body, masked with 0x7FFFFFFF."""
        return self._message.body_crc

    @property
    def size(self) -> int:
        """Bytes of the stored record."""
        return self._message.size

    # What becomes of it

    def ack(self) -> None:
        """It is done. The group's offset moves on once all before it are done as well."""
        self._run(self._message.ack)

    def nack(self, delay_level: int | None = None, *, delay: timedelta | None = None) -> None:
        """Let the group get it again, after a while; beyond `max_reconsume` it is a dead letter."""
        self._run(lambda: self._message.nack(delay_level, delay=delay))

    def dead_letter(self, reason: str | None = None) -> None:
        """Give it up: it goes to the group's dead letter topic, `%DLQ%<group>`."""
        self._run(lambda: self._message.dead_letter(reason))

    def extend(self, seconds: float) -> None:
        """Say that it takes longer: `consume_timeout` counts anew, as `seconds` from now."""
        self._run(lambda: self._message.extend(seconds))

    @contextmanager
    def process(self, *, requeue: bool = True) -> Generator[ReceivedMessage]:
        """Acknowledge when the block ends; on an error hand it back and let the error through."""
        inside = self._message.process(requeue=requeue)
        self._run(inside.__aenter__)
        try:
            yield self
        except BaseException as error:
            failure, kind, where = error, type(error), error.__traceback__
            self._run(lambda: inside.__aexit__(kind, failure, where))
            raise
        self._run(lambda: inside.__aexit__(None, None, None))
