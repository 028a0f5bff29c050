"""A master's end of the connection to one slave: reports in, the log out.

    connected    waits for the first report, which says where to begin
    following    gets what is stored and not sent; a heartbeat when nothing was sent for a while

It is closed when the peer is silent for haHousekeepingInterval, sends what is no report, or wants
bytes that this log does not have. Nothing on the master depends on a slave: one that reads slowly
has at most BUFFER_SIZE and one round waiting for it, which are views of the log's files wherever
these are in memory. A file that expires meanwhile stays readable until it is sent.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../ha/HAConnection.java
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from skylarkmq.broker.base.ha_protocol import (
    PART_HEAD,
    HaProtocolError,
    ReportDecoder,
    encode_head,
)
from skylarkmq.common.clock import TimerHandle

if TYPE_CHECKING:
    from skylarkmq.broker.replication.ha.ha_server import HaServer

log = logging.getLogger(__name__)

ROUND_SIZE: Final = 512 << 10
"""Bytes of the log that a slave gets in one turn of the loop; others have theirs between."""
BUFFER_SIZE: Final = 256 << 10
"""Bytes that the peer has not taken, above which it gets no more."""
UNKNOWN: Final = -1


class SlaveConnection(asyncio.Protocol):
    """One peer of the HA port. Loop thread.

    Attributes:
        acknowledged: end of the peer's log as it says; UNKNOWN before its first report.
        sent: the place of the next byte that it gets; UNKNOWN before that.
    """

    __slots__ = (
        "_decoder",
        "_heard_s",
        "_is_paused",
        "_is_reading",
        "_server",
        "_timer",
        "_transport",
        "_wrote_s",
        "acknowledged",
        "closed",
        "peer",
        "refused",
        "sent",
    )

    def __init__(self, server: HaServer) -> None:
        self._server = server
        self._decoder = ReportDecoder()
        self._is_paused = False  # the peer has enough
        self._is_reading = False  # a worker reads old bytes for it
        self._heard_s = self._wrote_s = 0.0
        self._timer: TimerHandle | None = None
        self.acknowledged = self.sent = UNKNOWN
        self.closed = True  # until the transport is there
        self.peer = ""
        self.refused = False  # its end was told

    @property
    def behind(self) -> int:
        """Bytes of the log that the peer does not have, as far as it has said."""
        if self.acknowledged == UNKNOWN:
            return 0
        return max(0, self._server.log.wrote_offset - self.acknowledged)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if not peer:  # it left before it was accepted
            transport.abort()
            return
        self.peer = f"{peer[0]}:{peer[1]}"
        self.closed = False
        self._heard_s = self._wrote_s = self._server.clock.monotonic()
        transport.set_write_buffer_limits(high=BUFFER_SIZE)
        if self._server.opened(self):
            self._plan_look()

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self._heard_s = self._server.clock.monotonic()
        try:
            offsets = self._decoder.feed(data)
            if offsets and self.sent == UNKNOWN:
                self._begin(offsets[0])
            offset = max(offsets, default=UNKNOWN)
            if offset > self.sent:
                self._check_end(offset)
                offset = self.sent  # nothing shows that what it has beyond is the same
            if offset > self.acknowledged:
                self.acknowledged = offset
                self._server.on_acknowledged(offset)
        except HaProtocolError as error:
            self.refuse("protocol", str(error))

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._server.turns.plan(self)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._server.closed(self, "it has left" if exc is None else str(exc))

    # Reports

    def _begin(self, offset: int) -> None:
        """Start where the first report says; 0 is the last file's begin, as in RocketMQ.

        It only asks, and confirms nothing to producers: a slave of ours has not compared its log
        yet, and may find that it is another broker's.
        """
        server = self._server
        stored = server.log.stored_offset
        self._check_end(offset)
        self.acknowledged = offset
        if offset == 0:
            offset = stored - stored % server.log.file_size
        self.sent = offset
        server.begun(self)

    def _check_end(self, offset: int) -> None:
        """Refuse a slave that has more than this master.

        Raises:
            HaProtocolError: it is no copy of this log.
        """
        stored = self._server.log.stored_offset
        if offset > stored:
            raise HaProtocolError(
                f"its log ends at {offset} and this master's at {stored}: it copied another broker,"
                " or this one has lost its newest messages. Keep the better store as the master, "
                "and let the other begin with an empty one"
            )

    # Sending

    def send_more(self) -> None:
        """Write what is stored and not sent, as much as a turn has room for."""
        if self.closed or self._is_paused or self._is_reading:
            return
        server = self._server
        offset, stored = self.sent, server.log.stored_offset
        pieces: list[bytes | memoryview] = []
        end = min(offset + ROUND_SIZE, stored)
        is_cold = False
        while offset < end and not is_cold:
            is_cold = not server.store.is_in_memory(offset)
            part = memoryview(b"") if is_cold else server.log.part(offset, server.part_size)
            if not part:
                break
            pieces += (encode_head(offset, len(part)), part)
            offset += len(part)
        if pieces:
            self._write(pieces, offset)
        if offset == stored:
            server.turns.wait(self)
        elif offset < server.log.min_offset:
            self._refuse_expired()
        elif is_cold:
            self._is_reading = True
            server.store.read_part(offset, ROUND_SIZE, self._read)
        else:
            server.turns.plan(self)

    def send_written(self, data: bytes, end: int) -> None:
        """Write what was just stored, up to `end`; the peer has all that lies before it."""
        if self.closed or self._is_paused or self._is_reading:
            return
        if len(data) <= self._server.part_size:
            self._write((PART_HEAD.pack(self.sent, len(data)), data), end)
        else:
            self._write(self._in_parts(memoryview(data)), end)
        self._server.turns.wait(self)

    def _read(self, data: bytes | None, error: BaseException | None) -> None:
        """Send what a worker has read from the disk."""
        self._is_reading = False
        if self.closed:
            return
        if data is None:
            self.refuse("disk", f"the log cannot be read at {self.sent}: {error}")
            return
        if data:
            self._write(self._in_parts(memoryview(data)), self.sent + len(data))
        self._server.turns.plan(self)  # none: the file has expired, which the next look finds

    def _in_parts(self, data: memoryview) -> list[bytes | memoryview]:
        """Return what says that these are the next bytes of the log, with their heads."""
        size = self._server.part_size
        pieces: list[bytes | memoryview] = []
        for start in range(0, len(data), size):
            part = data[start : start + size]
            pieces += (encode_head(self.sent + start, len(part)), part)
        return pieces

    def _refuse_expired(self) -> None:
        self.refuse(
            "expired",
            f"it wants the log from {self.sent} on, and the oldest file begins at "
            f"{self._server.log.min_offset}: what it lacks has expired. Let it begin with an empty "
            "store, or keep messages longer (fileReservedTime)",
        )

    def _write(self, pieces: Sequence[bytes | memoryview], offset: int) -> None:
        self._server.bytes_sent += offset - self.sent
        self.sent = offset
        self._wrote_s = self._server.clock.monotonic()
        self._transport.writelines(pieces)

    # Time

    def _plan_look(self) -> None:
        server = self._server
        due_s = self._heard_s + server.silence_s
        if self.sent != UNKNOWN:
            due_s = min(due_s, self._wrote_s + server.heartbeat_s)
        self._timer = server.clock.call_at(due_s, self._look)

    def _look(self) -> None:
        """Close a silent peer; send a heartbeat when nothing was sent."""
        server, now_s = self._server, self._server.clock.monotonic()
        if now_s >= self._heard_s + server.silence_s:
            what = "reported" if self.sent != UNKNOWN else "said where to begin"
            self.refuse("silent", f"it has not {what} for haHousekeepingInterval")
            return
        if self.sent != UNKNOWN and now_s >= self._wrote_s + server.heartbeat_s:
            self._wrote_s = now_s
            if not self._is_paused:
                self._transport.write(encode_head(self.sent, 0))
        self._plan_look()

    def begun(self) -> None:
        """Have heartbeats from now on."""
        if self._timer is not None:
            self._timer.cancel()
        self._wrote_s = self._server.clock.monotonic()
        self._plan_look()

    # Ending

    def refuse(self, kind: str, why: str) -> None:
        """Close it for a reason that its operator has to know; others like it are not told."""
        self.refused = True
        self._server.tell(kind, self.peer, f"closing the connection of slave {self.peer}: {why}")
        self.abort()

    def close(self) -> None:
        """Send what is written, then end it."""
        if not self.closed:
            self.closed = True
            self._transport.close()

    def abort(self) -> None:
        """End it now; what was not sent is not sent."""
        self.closed = True
        self._transport.abort()
