"""Requests that wait for their replies (326), by correlation id.

    request sent --> waits here --> reply pushed by the broker    its future has the reply
                                --> its time is up                ReplyTimeout
    a reply that comes too late is counted and answered as taken: its sender did nothing wrong

One timer stands at the earliest deadline: a request costs a table entry and no task. Loop thread.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/ClientRemotingProcessor.java
(receiveReplyMessage), client/.../producer/RequestFutureHolder.java
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from skylarkmq.client.errors import ReplyTimeout
from skylarkmq.client.message_view import MessageView
from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers.fields import decode_fields
from skylarkmq.protocol.headers.send import ReplyMessageRequestHeader
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.properties import CORRELATION_ID, decode_properties
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.connection import Connection

log = logging.getLogger(__name__)

REQUESTS_MAX: Final = 65_536
"""Requests of one client that wait for their replies at the same time."""
STALE_MAX: Final = 1024
"""Deadlines of ended requests are removed once there are that many, and more than of others."""
NOWHERE: Final = HostAddress("0.0.0.0", 0)
"""A host that the broker did not name."""


class Reply(MessageView):
    """The reply to a request."""

    __slots__ = ()

    @property
    def correlation_id(self) -> str:
        """The id that joins it to its request."""
        return self.properties.get(CORRELATION_ID, "")


class WaitingRequest:
    """One request whose reply is awaited."""

    __slots__ = ("correlation_id", "deadline_s", "future", "timeout_s", "topic")

    def __init__(
        self,
        correlation_id: str,
        topic: str,
        timeout_s: float,
        deadline_s: float,
        future: asyncio.Future[Reply],
    ) -> None:
        self.correlation_id = correlation_id
        self.topic = topic
        self.timeout_s = timeout_s
        self.deadline_s = deadline_s
        self.future = future

    def __lt__(self, other: WaitingRequest) -> bool:
        return self.deadline_s < other.deadline_s


class ReplyTable:
    """The waiting requests of one client."""

    def __init__(self, clock: Clock, unwrap: Callable[[str], str]) -> None:
        """Take the function that removes the namespace from a topic's name."""
        self.late_count = 0
        """Replies that came after their request had ended."""
        self._clock = clock
        self._unwrap = unwrap
        self._waiting: dict[str, WaitingRequest] = {}
        self._deadlines: list[WaitingRequest] = []
        self._timer: TimerHandle | None = None
        self._timer_s = 0.0
        self._room_waiters: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """True when no more requests may wait."""
        return len(self._waiting) >= REQUESTS_MAX

    def add(self, correlation_id: str, topic: str, timeout_s: float) -> WaitingRequest:
        """Wait for a reply for `timeout_s` from now."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        deadline_s = self._clock.monotonic() + timeout_s
        request = WaitingRequest(correlation_id, topic, timeout_s, deadline_s, future)
        self._waiting[correlation_id] = request
        heapq.heappush(self._deadlines, request)
        self._arm()
        return request

    async def room(self) -> None:
        """Wait until one more request may wait."""
        while self.is_full:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room_waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()  # the wake-up was for somebody who can use it
                raise

    def drop(self, request: WaitingRequest) -> None:
        """Wait for it no more."""
        if self._waiting.pop(request.correlation_id, None) is None:
            return
        self._wake()
        if not self._waiting:
            self._deadlines.clear()
            self._disarm()
        elif len(self._deadlines) > 2 * len(self._waiting) + STALE_MAX:
            self._deadlines = list(self._waiting.values())
            heapq.heapify(self._deadlines)

    def take(self, connection: Connection, push: RemotingCommand) -> RemotingCommand:
        """Hand a reply that a broker pushed to its request."""
        try:
            header = decode_fields(ReplyMessageRequestHeader, push.ext_fields)
            message = _message(header, push.body)
        except (RemoteProtocolError, ValueError) as error:
            log.warning("%s pushed a reply that cannot be read: %s", connection.address, error)
            return push.reply(ResponseCode.SYSTEM_ERROR, "the reply cannot be read")
        request = self._waiting.get(message.properties.get(CORRELATION_ID, ""))
        if request is None:
            self.late_count += 1
            log.debug("%s pushed a reply that nobody waits for", connection.address)
        else:
            self.drop(request)
            if not request.future.done():
                request.future.set_result(Reply(message, self._unwrap(message.topic)))
        return push.reply(ResponseCode.SUCCESS)

    def _wake(self) -> None:
        while self._room_waiters:
            waiter = self._room_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _arm(self) -> None:
        """Set the timer to the earliest deadline; past ones of ended requests are let go by."""
        first_s = self._deadlines[0].deadline_s
        if self._timer is not None and self._timer_s <= first_s:
            return
        self._disarm()
        self._timer_s = first_s
        self._timer = self._clock.call_at(first_s, self._expire)

    def _disarm(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _expire(self) -> None:
        self._timer = None
        now_s = self._clock.monotonic()
        while self._deadlines:
            request = self._deadlines[0]
            waits = self._waiting.get(request.correlation_id) is request
            if waits and request.deadline_s > now_s:
                break
            heapq.heappop(self._deadlines)
            if waits:
                del self._waiting[request.correlation_id]
                self._wake()
                if not request.future.done():
                    request.future.set_exception(ReplyTimeout(request.topic, request.timeout_s))
        if self._deadlines:
            self._arm()


def _message(header: ReplyMessageRequestHeader, body: bytes) -> MessageExt:
    return MessageExt(
        topic=header.topic,
        queue_id=header.queue_id,
        flag=header.flag,
        queue_offset=0,
        physical_offset=0,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        born_host=_host(header.born_host),
        store_timestamp=header.store_timestamp,
        store_host=_host(header.store_host),
        reconsume_times=header.reconsume_times or 0,
        prepared_transaction_offset=0,
        body=body,
        properties=decode_properties(header.properties or ""),
        body_crc=0,
        store_size=len(body),
    )


def _host(text: str) -> HostAddress:
    """Return the host of `ip:port`, also as Java prints it, `/ip:port` or `name/ip:port`."""
    ip, _, port = text.rpartition("/")[2].rpartition(":")
    return HostAddress(ip.strip("[]"), int(port)) if ip and port.isdecimal() else NOWHERE
