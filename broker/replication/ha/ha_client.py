"""Follows a master: a slave's log becomes a copy of the master's, and grows with it.

    connect   to haMasterAddress, else where name servers say the master's HA port is
    begin     an empty log: at the master's last file, as RocketMQ, or at its oldest (haCopyFrom);
              else COMPARED_SIZE bytes before this log's end
    compare   those bytes must be the same here and there
    receive   what follows is stored as `MessageStore.take_records` does; each time more of it is
              stored, and with each heartbeat, the master is told where this log ends

A master that is gone is tried again after 1 to 5 s. One that this log is no copy of is refused,
and nothing is overwritten: it is tried again every REFUSED_RETRY_S, and an operator decides. That
is so when another broker answers, when the master has lost its newest messages, when its files are
of another size, and when what comes next for this log has expired there: the log may have no gap.

What is confirmed lies on the disk as far as the flush mode wants it (`CommitLog.stored_offset`), so
a SYNC_MASTER's producers are told the truth.

Unlike RocketMQ, whose slave compares nothing, and waits forever for bytes that have expired.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../ha/HAService.java (HAClient)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from skylarkmq.broker.base.ha_protocol import HaProtocolError, LogPart
from skylarkmq.broker.replication.ha.master_connection import (
    MasterClosedError,
    MasterConnection,
    MasterLostError,
    connect_to_master,
)
from skylarkmq.common.clock import Clock
from skylarkmq.common.errors import StoreError
from skylarkmq.common.throttled_log import ThrottledLog
from skylarkmq.protocol.errors import shown
from skylarkmq.remoting.waiting import Backoff, sleep
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.received import NotYetError, ReceivedError

log = logging.getLogger(__name__)

COMPARED_SIZE: Final = 4096
"""Bytes at the end of a log that are compared with the master's."""
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 5.0
LIVED_S: Final = 2 * RETRY_MAX_S
"""How long a master has to be followed for the failures before to be forgotten."""
REFUSED_RETRY_S: Final = 60.0
"""Until a master that was refused is tried again: it may be another one then."""
TOLD_INTERVAL_S: Final = 600.0
"""For which the log says a reason once."""
UNSTORED_MAX: Final = 32 << 20
"""Bytes that the disk has not taken, above which nothing more is read from the master."""
EMPTY_HEARTBEATS: Final = 2
"""Heartbeats in place of bytes that a master should have, after which it has none."""

Connect = Callable[[str, Clock], Awaitable[MasterConnection]]


class MasterRefusedError(StoreError):
    """This log is no copy of the master's; cause and cure for the operator."""


class HaClient:
    """Follows the master of a slave. Loop thread, one task.

    Attributes:
        connected: whether the master's log was found to go on where this one ends, and comes.
        received_offset: end of what the master has sent, 0 before anything came.
        refusal: why the master is not followed, for the operator; empty when it is, or is gone.
        connects: connections over which the log was followed, since the start.
    """

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        find_master: Callable[[], str | None],
        connect: Connect = connect_to_master,
    ) -> None:
        """Prepare; nothing is connected before `start`.

        Args:
            find_master: returns `host:port` of the master's HA port, None while it is unknown.
        """
        self._store = store
        self._log = store.commit_log
        self._clock = clock
        self._find_master = find_master
        self._connect = connect
        self.connected = False
        self.received_offset = 0
        self.refusal = ""
        self.connects = 0
        self._connection: MasterConnection | None = None
        self._followed_s = 0.0  # since when, on the monotonic clock
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_MAX_S)
        self._throttled = ThrottledLog(clock, log, TOLD_INTERVAL_S)
        self._task: asyncio.Task[None] | None = None

    @property
    def behind(self) -> int:
        """Bytes that have come and are not stored yet."""
        return max(0, self.received_offset - self._log.stored_offset)

    @property
    def _has_room(self) -> bool:
        return self._log.wrote_offset - self._log.stored_offset <= UNSTORED_MAX

    # Life cycle

    def start(self) -> None:
        """Follow from now on. The store has started."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="skylarkmq-ha-client")

    async def stop(self) -> None:
        """Store nothing of the master's any more, and leave it. Before the store stops."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            address = self._find_master()
            if address is None:
                self._tell("no name server knows the master yet, and haMasterAddress is not set")
                await sleep(self._clock, RETRY_FIRST_S)
                continue
            wait_s = REFUSED_RETRY_S
            try:
                await self._follow(address)
            except (OSError, StoreError) as error:
                wait_s = self._failed(shown(address), error)
            except Exception:
                log.exception("following the master has failed; again in %.0f s", wait_s)
            finally:
                self._leave()
            await sleep(self._clock, wait_s)

    def _failed(self, master: str, error: Exception) -> float:
        """Say why the master is not followed; return how long it is left alone, s."""
        is_refusal = isinstance(error, (MasterRefusedError, ReceivedError, HaProtocolError))
        if is_refusal and not isinstance(error, NotYetError):
            self.refusal = f"the master {master} is not followed: {error}"
            text = f"{self.refusal}. Nothing is overwritten; it is tried again every %.0f s"
            self._tell(text % REFUSED_RETRY_S, logging.ERROR)
            return REFUSED_RETRY_S
        self.refusal = ""
        now_s = self._clock.monotonic()
        if self.connected and now_s > self._followed_s + LIVED_S:
            self._backoff.failure_count = 0
        why = str(error) or type(error).__name__
        if isinstance(error, MasterClosedError):  # RocketMQ's and ours tell no slave why
            self.refusal = f"the master {master} is not followed: {why}"
        if not self.connected:
            self._tell(f"the master {master} cannot be followed yet: {why}; trying again")
        elif isinstance(error, MasterLostError):
            log.warning("the master %s is gone at offset %d: %s", master, self.received_offset, why)
        else:
            self._tell(f"what the master {master} sends cannot be stored: {why}; trying again")
        return self._backoff.failed(now_s)

    def _leave(self) -> None:
        self.connected = False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def _tell(self, why: str, level: int = logging.WARNING) -> None:
        self._throttled.tell(why, why, level=level)

    # One connection

    async def _follow(self, address: str) -> None:
        """Connect, find out that the log is the same, and receive; ends with an error alone."""
        self._store.received.forget()
        end = self._log.wrote_offset
        if self._log.mapped_files.last is None:
            parts = await self._begin(address)
        elif self._log.stored_offset < end:
            raise NotYetError("the disk has not taken yet what the master sent before")
        elif end == 0:
            parts = await self._receive(await self._open(address, 1))
        else:
            place = max(self._log.min_offset, end - COMPARED_SIZE, 1)  # 0: the last file
            parts = await self._compare(await self._open(address, place), place, end)
        assert self._connection is not None
        self.connected = True
        self.connects += 1
        self.refusal = ""
        self._followed_s = self._clock.monotonic()
        log.info("following the master %s from offset %d", shown(address), end)
        self._confirm()
        self._connection.on_received = self._received
        while True:
            self._take(parts)
            self._confirm()
            parts = await self._receive(self._connection)

    def _received(self) -> None:
        """Store what a read has brought, unless the disk is behind."""
        connection = self._connection
        if connection is None:
            return
        if not self._has_room:
            connection.wake()  # to wait for room, in which the master's silence counts for nothing
            return
        try:
            self._take(connection.take())
            self._confirm()
        except Exception as error:
            connection.fail(error)  # the task says so, and goes on from there

    async def _open(self, address: str, offset: int) -> MasterConnection:
        """Connect, and say where the log begins that is wanted."""
        connection = await self._connect(address, self._clock)
        self._leave()
        self._connection = connection
        connection.report(offset)
        return connection

    async def _begin(self, address: str) -> list[LogPart]:
        """Connect where an empty log begins; return the first that comes."""
        size = self._log.file_size
        parts = await self._receive(await self._open(address, 0))
        last = parts[0].offset
        if last % size:
            raise MasterRefusedError(
                f"its last file begins at offset {last}, where no file of mappedFileSizeCommitLog="
                f"{size} does: use the master's size"
            )
        if last and self._store.config.ha_copy_from == "start":
            oldest = await self._find_oldest(address, last // size) * size
            parts = await self._receive(await self._open(address, max(1, oldest)))
        return parts

    async def _find_oldest(self, address: str, last: int) -> int:
        """Return the number of the master's oldest file, by trying: there is no way to ask.

        Args:
            last: number of its last file.
        """
        low, high = 0, last  # Invariant: the master has file `high`, and none below `low`
        number = low  # it often has all
        while low < high:
            connection = await self._open(address, max(1, number * self._log.file_size))
            if await self._has_bytes(connection):
                high = number
            else:
                low = number + 1
            number = (low + high) // 2
        return high

    async def _has_bytes(self, connection: MasterConnection) -> bool:
        """Return whether the master has what was asked for.

        RocketMQ's sends heartbeats when it has not, ours closes the connection.
        """
        try:
            parts = await self._receive(connection)
        except MasterLostError:
            return False
        return bool(parts[0].data)

    async def _compare(self, connection: MasterConnection, place: int, end: int) -> list[LogPart]:
        """Compare what comes with this log up to its end; return what came beyond.

        Args:
            place: where the bytes begin that were asked for.

        Raises:
            MasterRefusedError: they differ, or the master has none there.
        """
        begin, heartbeats = place, 0
        while True:
            parts = await self._receive(connection)
            while parts:
                part = parts.pop(0)
                if not part.data:
                    heartbeats += 1
                    if heartbeats >= EMPTY_HEARTBEATS and place < end:
                        raise MasterRefusedError(_why_none(begin, place, end))
                    continue
                heartbeats = 0
                if part.offset != place:
                    raise MasterRefusedError(f"it sent offset {part.offset} in place of {place}")
                size = min(len(part.data), end - place)
                self._check_same(place, part.data[:size])
                place += size
                if place == end:
                    return [LogPart(end, part.data[size:]), *parts]
            if place == end:
                return []

    def _check_same(self, offset: int, data: bytes) -> None:
        place = 0
        while place < len(data):
            own = bytes(self._log.part(offset + place, len(data) - place))
            theirs = data[place : place + len(own)]
            if not own or own != theirs:
                raise MasterRefusedError(
                    f"its log differs from this one at offset {offset + place} or within "
                    f"{len(theirs)} bytes after it: it is another broker's, or the two have gone "
                    "apart since one of them was a master alone. Keep the better store as the "
                    "master, and let the other begin with an empty one"
                )
            place += len(own)

    # Parts and reports

    async def _receive(self, connection: MasterConnection) -> list[LogPart]:
        """Wait for what comes next, and report meanwhile. At least one part or heartbeat.

        Raises:
            MasterLostError: the master has left, or says nothing any more.
            HaProtocolError: this is no master.
        """
        config = self._store.config
        silence_s = config.ha_housekeeping_interval / 1000
        heartbeat_s = config.ha_send_heartbeat_interval / 1000
        while True:
            now_s = self._clock.monotonic()
            has_room = self._has_room
            if not has_room:
                connection.heard_s = now_s  # nobody listens to it
            silent_s = connection.heard_s + silence_s
            if now_s >= silent_s:
                raise MasterLostError(
                    f"it said nothing for haHousekeepingInterval={silence_s * 1000:.0f} ms"
                )
            if now_s >= connection.reported_s + heartbeat_s:
                connection.report(connection.reported)
            due_s = min(silent_s, connection.reported_s + heartbeat_s)
            await connection.wait(due_s, for_parts=has_room)
            if self._has_room and (parts := connection.take()):
                return parts

    def _take(self, parts: list[LogPart]) -> None:
        """Store what came; parts that follow one another as one."""
        pieces: list[bytes] = []
        begin = end = 0
        for offset, data in parts:
            if not data:
                continue
            if offset == 1 and self._store.received.next_offset == 0:
                offset, data = 0, b"\0" + data  # 0 would have asked for the last file
            if pieces and offset != end:
                self._store.take_records(begin, b"".join(pieces))
                pieces.clear()
            if not pieces:
                begin = offset
            pieces.append(data)
            end = self.received_offset = offset + len(data)
        if pieces:
            whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._store.take_records(begin, whole)

    def _confirm(self) -> None:
        """Tell the master what is stored, now and when it gets more."""
        connection = self._connection
        if not self.connected or connection is None:
            return
        stored = self._log.stored_offset
        if stored > connection.reported:
            connection.report(stored)
        if stored < self._log.wrote_offset:
            self._store.writer.on_stored = self._stored

    def _stored(self, _: int) -> None:
        self._confirm()
        if self._connection is not None:
            self._connection.wake()  # there may be room again


def _why_none(begin: int, place: int, end: int) -> str:
    if place > begin:
        return (
            f"its log ends at offset {place} and this one at {end}: it has lost its newest "
            "messages, or this is another broker's log. Keep the better store as the master, and "
            "let the other begin with an empty one"
        )
    return (
        f"it has no bytes at offset {begin}, where this log ends at {end}: the files there have "
        "expired, and a copy without them would have a gap, or its log ends before. Let this "
        "broker begin with an empty store, and keep the old one until its messages are consumed"
    )
