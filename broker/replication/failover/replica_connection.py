"""The two ends of a connection between replicas: messages in, messages and the log out.

    FollowerConnection   a master's end: a follower connected to the HA port
    MasterConnection     a follower's end: this replica connected to its master

Either is closed when the other end sends what no replica sends, does not read, or says nothing for
too long. How long is too long:

    until a follower has greeted, and until it is answered      silence_s
    after a Welcome, until the follower's first Confirm         PREPARING_LIMIT_S: it cuts its log
    from then on, where Beats and Promises go back and forth    silence_s

Whatever another replica sends costs its connection at most.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, cast

from skylarkmq.broker.base.ha_protocol import HaProtocolError
from skylarkmq.broker.replication.failover.replica_events import (
    Beat,
    Confirm,
    GoodBye,
    Hello,
    Message,
    Promise,
    Refused,
    TakeOver,
    Welcome,
)
from skylarkmq.broker.replication.failover.replica_feed import LogFeed
from skylarkmq.broker.replication.failover.replica_protocol import (
    PREFACE,
    Caller,
    End,
    Greeting,
    ReplicaDecoder,
    caller_of,
    encode_greeting,
    encode_message,
    why_foreign,
)
from skylarkmq.common.clock import TimerHandle
from skylarkmq.common.errors import StoreError
from skylarkmq.protocol.errors import shown
from skylarkmq.remoting.stream import split_address
from skylarkmq.remoting.waiting import fail_after

if TYPE_CHECKING:
    from skylarkmq.broker.replication.failover.replica_links import ReplicaLinks

log = logging.getLogger(__name__)

BUFFER_SIZE: Final = 256 << 10
"""Bytes that the other end has not taken, above which it gets no more of the log."""
UNREAD_MAX: Final = 4 << 20
"""Bytes that the other end has not taken, above which the next message ends the connection."""
CONNECT_LIMIT_S: Final = 5.0
PREPARING_LIMIT_S: Final = 600.0
"""For which a follower may cut its log, and load what is left, before it says anything again."""


class ReplicaConnection(asyncio.Protocol):
    """What both ends have in common. Loop thread.

    Attributes:
        replica: id of the other end; empty until it is known.
        peer: its address, `host:port`.
        closed: nothing is heard or said; also until the connection is there.
        is_paused: the other end has not taken what was written.
        is_told: the log has said why it ends.
    """

    def __init__(self, links: ReplicaLinks, speaker: End, replica: str = "") -> None:
        """Prepare; the transport comes with `connection_made`.

        Args:
            speaker: what the other end is.
        """
        self.links = links
        self.replica = replica
        self.peer = ""
        self.closed = True
        self.is_paused = False
        self.is_told = False
        self._decoder = ReplicaDecoder(speaker)
        self._why = ""  # it was ended here
        self._heard_s = 0.0
        self._limit_s = links.options.silence_s
        self._timer: TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if not peer or self._why:  # it left before it was accepted, or was given up
            transport.abort()
            return
        self.peer = f"{peer[0]}:{peer[1]}"
        self.closed = False
        transport.set_write_buffer_limits(high=BUFFER_SIZE)
        self.allow(self._limit_s)

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self._heard_s = self.links.clock.monotonic()
        try:
            self._take(data)
        except HaProtocolError as error:
            self.refuse("protocol", str(error))

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._gone(self._why or ("it has left" if exc is None else str(exc)))

    # Messages

    def _take(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            if self.closed:  # what was heard before has ended it
                return
            self._hear(message)

    def _hear(self, message: Greeting | Message) -> None:
        raise NotImplementedError

    def _say(self, data: bytes) -> None:
        """Write a message, unless too many were not read."""
        assert self._transport is not None
        if self._transport.get_write_buffer_size() > UNREAD_MAX:
            self.refuse("deaf", "it does not read what it is sent")
        else:
            self._transport.write(data)

    # Time

    def allow(self, limit_s: float) -> None:
        """Let the other end be silent for so long, from now on."""
        clock = self.links.clock
        self._limit_s = limit_s
        self._heard_s = clock.monotonic()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = clock.call_at(self._heard_s + limit_s, self._check_silence)

    def _check_silence(self) -> None:
        clock = self.links.clock
        due_s = self._heard_s + self._limit_s
        if self._is_excused():
            due_s = clock.monotonic() + self._limit_s
        if clock.monotonic() < due_s:
            self._timer = clock.call_at(due_s, self._check_silence)
        elif self._why:
            self.abort(self._why)  # it does not take the last that it was sent
        else:
            self.refuse("silent", f"it has said nothing for {self._limit_s:.0f} s")

    def _is_excused(self) -> bool:
        """Whether it is silent because nobody listens."""
        return False

    # Ending

    def refuse(self, kind: str, why: str) -> None:
        """End it for a reason that its operator has to know."""
        self.links.refused(self, kind, why)
        self.abort(why)

    def close(self, why: str) -> None:
        """Send what is written, then end it."""
        if not self.closed:
            self.allow(self.links.options.silence_s)  # for what is written to be taken
        self.closed = True
        self._why = self._why or why
        if self._transport is not None:
            self._transport.close()

    def abort(self, why: str) -> None:
        """End it now; what was not sent is not sent."""
        self.closed = True
        self._why = self._why or why
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _gone(self, why: str) -> None:
        raise NotImplementedError


class FollowerConnection(ReplicaConnection):
    """A peer of the HA port, which feeds it."""

    def __init__(self, links: ReplicaLinks) -> None:
        super().__init__(links, End.FOLLOWER)
        self.feed: LogFeed | None = None
        self._first: bytes | None = b""  # until it is clear who speaks
        self._holds_views = False  # of the log's files, as long as they are not sent

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.links.opened(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.feed is not None:
            self.links.turns.plan(self.feed)

    # Messages

    def _take(self, data: bytes) -> None:
        if self._first is not None:
            data = self._first = self._first + data
            caller = caller_of(data)
            if caller is None:
                return
            if caller is Caller.SLAVE:
                self.refuse(
                    "slave",
                    "it speaks as a slave of RocketMQ 4.9 does, and replicas under a controller "
                    "feed no such slaves: take away its haMasterAddress, or give it another "
                    "brokerName",
                )
                return
            self._first = None
            self._say(PREFACE)
        super()._take(data)

    def _hear(self, message: Greeting | Message) -> None:
        if not isinstance(message, Greeting):
            self.links.hear(self.replica, message)
            return
        theirs = message.identity
        why = why_foreign(self.links.identity, theirs)
        if why:
            self._say(encode_message(Refused(0, message.hello.session, why)))
            self.links.refused(self, "foreign", why, theirs.replica)
            self.close(why)
            return
        self.replica = theirs.replica
        self.links.greeted(self, message.hello)

    def say(self, message: Welcome | Refused | Beat | TakeOver) -> None:
        """Send a message; a refusal is the last, for a new session takes a new connection."""
        if self.closed:
            return
        self._say(encode_message(message))
        if isinstance(message, Welcome):
            self.allow(PREPARING_LIMIT_S)
        elif isinstance(message, Refused):
            self.close(f"it was refused: {message.why}")

    # The log

    def begin(self, feed: LogFeed) -> None:
        """Feed the log by this stream, and by no other any more."""
        self.end_feed()
        if not self.closed:
            self.feed = feed
            self.allow(self.links.options.silence_s)
            feed.go_on()

    def end_feed(self) -> None:
        """Feed nothing any more; what is written still goes out."""
        if self.feed is not None:
            self.feed.ended = True
            self.links.turns.forget(self.feed)
            self.feed = None

    def write_parts(self, pieces: list[bytes | memoryview]) -> None:
        """Write parts, each behind its head."""
        assert self._transport is not None
        self._holds_views = True
        self._transport.writelines(pieces)

    def let_go(self) -> None:
        """Hold nothing of the store any more, whose files may change now: end it if it does."""
        self.end_feed()
        transport = self._transport
        if self._holds_views and transport is not None and transport.get_write_buffer_size():
            self.abort("its master stops before it has taken everything")
        self._holds_views = False

    # Ending

    def close(self, why: str) -> None:
        super().close(why)
        self.end_feed()

    def abort(self, why: str) -> None:
        super().abort(why)
        self.end_feed()

    def _gone(self, why: str) -> None:
        self.end_feed()
        self.links.follower_gone(self, why)


class MasterConnection(ReplicaConnection):
    """This replica's connection to the master that it follows, for one session.

    Attributes:
        is_replaced: a newer one to the same master has taken its place, so nobody misses it.
    """

    def __init__(self, links: ReplicaLinks, master: str, address: str, hello: Hello) -> None:
        super().__init__(links, End.MASTER, master)
        self.peer = address
        self.is_replaced = False
        self._hello = hello
        self._greeting = b""
        self._is_prepared = False  # its log is cut
        self._is_held = False  # nothing is read
        self._is_gone = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, and greet."""
        self._task = asyncio.get_running_loop().create_task(
            self._connect(self.peer), name="skylarkmq-replica-connect"
        )
        self._task.add_done_callback(self._tried)

    async def _connect(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        self._greeting = encode_greeting(self.links.identity, self._hello)
        host, port = split_address(address)
        try:
            async with fail_after(self.links.clock, CONNECT_LIMIT_S):
                await loop.create_connection(lambda: self, host, port)
        except TimeoutError as error:
            raise TimeoutError(f"no connection within {CONNECT_LIMIT_S:.0f} s") from error
        except ValueError as error:  # the resolver takes no such name
            raise OSError(f"{host[:64]!a} is no host name: {error}") from error

    def _tried(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._gone(self._why)
            return
        error = task.exception()
        if error is None:
            return  # `connection_lost` comes some time
        if not isinstance(error, (OSError, StoreError)):
            log.error("connecting to %s has failed", shown(self.peer), exc_info=error)
        self.abort(str(error) or type(error).__name__)  # a connection that comes late is ended
        self.links.unreachable(self, self._why)
        self._gone(self._why)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.closed:
            self._say(self._greeting)

    # Messages

    def _hear(self, message: Greeting | Message) -> None:
        assert not isinstance(message, Greeting), "the decoder takes none of a master"
        if isinstance(message, Welcome):
            self.allow(PREPARING_LIMIT_S)
            self.links.welcomed(self)
        elif isinstance(message, Refused):
            self.links.refused(self, "refused", message.why)
        self.links.hear(self.replica, message)

    def say(self, message: Confirm | Promise | GoodBye) -> None:
        """Send a message, as it is, at once."""
        if self.closed:
            return
        self._say(encode_message(message))
        if not self._is_prepared:
            self._is_prepared = True
            self.allow(self.links.options.silence_s)

    # Flow

    def hold(self, is_held: bool) -> None:
        """Read nothing until this is called with False."""
        if self.closed or self._transport is None or is_held == self._is_held:
            return
        self._is_held = is_held
        if is_held:
            self._transport.pause_reading()
        else:
            self._heard_s = self.links.clock.monotonic()
            self._transport.resume_reading()

    def _is_excused(self) -> bool:
        return self._is_held and not self.closed

    # Ending

    def close(self, why: str) -> None:
        super().close(why)
        self._give_up()

    def abort(self, why: str) -> None:
        super().abort(why)
        self._give_up()

    def _give_up(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _gone(self, why: str) -> None:
        if not self._is_gone:
            self._is_gone = True
            self.links.master_gone(self, why)
