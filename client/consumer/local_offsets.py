"""Offsets in a file of this machine: where a broadcasting consumer goes on after a restart.

    <per-user state folder>/skylarkmq/offsets/<instance name>/<group>.json
    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:42},
     "lastMessages":[["orders","broker-a",0,41,8320,1767225600000,7]]}

One file for each group and client; the format is that of Java's file, which can be moved here and
there. Beside the offsets stands which message of a queue was read last: its queue offset and its
fingerprint. It binds the file to the cluster, and to the life of its log: at other messages the
offset counts no more. The file is written whole, beside the old one, and takes its place at once: a
crash leaves the old or the new offsets, never half of them. All file work is done by threads, off
the loop.

Two consumers must not share a file, or one would go on where the other one was: give each Client
an `instance_name` of its own. The second one is refused: in the process by a table, on the machine
by a lock on `<group>.json.lock` (not on Windows, and not where the file system has no locks).

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../consumer/store/LocalFileOffsetStore.java,
OffsetSerializeWrapper.java
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final, NamedTuple

from skylarkmq.client.consumer.last_read import ReadMessage
from skylarkmq.client.errors import IllegalState, RocketMQError
from skylarkmq.client.state_folder import file_name, state_folder
from skylarkmq.protocol.bodies.group import ResetOffsetBody
from skylarkmq.protocol.bodies.text import MessageQueueBody, decode_body, encode_body
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.fingerprint import Fingerprint
from skylarkmq.protocol.message import MessageQueue

log = logging.getLogger(__name__)

FILE_SIZE_MAX: Final = 16 * 1024 * 1024
DEFAULT_INSTANCE: Final = "default"
NEW_SUFFIX: Final = ".new"
LOCK_SUFFIX: Final = ".lock"

# Files that a consumer of this process uses.
_in_use: set[Path] = set()


class LastMessage(NamedTuple):
    """The last message that was read of a queue, as a list in the file."""

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp: int
    checksum: int


class OffsetsFile(ResetOffsetBody, kw_only=True, frozen=True, omit_defaults=True):
    """What stands in the file."""

    last_messages: tuple[LastMessage, ...] = ()


class LocalOffsets:
    """The file of one group, and what stands in it. Loop thread; `open` before all else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table: dict[MessageQueue, int] = {}
        self._last: dict[MessageQueue, ReadMessage] = {}
        self._opened = False
        self._lock: IO[bytes] | None = None
        self._version = 0
        # Both under _writing: an old write, of a cancelled commit, must not replace a newer one.
        self._writing = threading.Lock()
        self._written_version = 0

    async def open(self) -> None:
        """Read the file; none, or one that cannot be understood, is an empty one.

        Raises:
            IllegalState: another consumer of this machine uses it.
            RocketMQError: the file cannot be read.
        """
        if self._path in _in_use:
            raise _in_use_by("process", self._path)
        _in_use.add(self._path)
        self._opened = True
        try:
            data = await asyncio.to_thread(self._lock_and_read)
            self._table, self._last = _parse(data, self._path)
        except OSError as error:
            self.close()
            raise RocketMQError(f"offsets not read: {error}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another consumer use the file; nothing is written here."""
        if self._opened:
            self._opened = False
            _in_use.discard(self._path)
            self._unlock()

    def get(self, queue: MessageQueue) -> int | None:
        """Return the queue offset at which to go on, None when there is none."""
        return self._table.get(queue)

    def last_read(self, queue: MessageQueue) -> ReadMessage | None:
        """Return the last message below the offset that is known, None without one."""
        return self._last.get(queue)

    async def put(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Take these offsets and write the file.

        Raises:
            RocketMQError: the file cannot be written; the offsets are kept for the next time.
        """
        self._table.update(offsets)
        for queue, offset in offsets.items():
            read = self._last.get(queue)
            if read is not None and read.offset >= offset:  # it was moved back
                del self._last[queue]
        await self._save()

    async def put_last(self, messages: Mapping[MessageQueue, ReadMessage | None]) -> None:
        """Take which messages stand before the offsets, None where nobody can tell, and write.

        Nothing once it is closed: a broker that answered late, and the file may be another's.

        Raises:
            RocketMQError: as `put`.
        """
        changed = False
        if not self._opened:
            return
        for queue, read in messages.items():
            if read is None:
                changed = self._last.pop(queue, None) is not None or changed
            elif read.offset < self._table.get(queue, 0):
                self._last[queue], changed = read, True
        if changed:
            await self._save()

    async def _save(self) -> None:
        self._version += 1
        rows = [(queue_body(queue), offset) for queue, offset in sorted(self._table.items())]
        last = tuple(
            LastMessage(*queue, read.offset, *read.fingerprint)
            for queue, read in sorted(self._last.items())
        )
        data = encode_body(OffsetsFile(offset_table=rows, last_messages=last))
        try:
            await asyncio.to_thread(self._write, data, self._version)
        except OSError as error:
            raise RocketMQError(
                f"offsets not saved: {error}", hint="See the folder's rights and its free space"
            ) from error

    def _lock_and_read(self) -> bytes | None:
        """Keep other processes away from the file, and read it; in a thread."""
        self._lock = _locked(self._path)
        if not self._opened:  # closed meanwhile: whoever opened it was cancelled
            self._unlock()
        return _read(self._path)

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def _write(self, data: bytes, version: int) -> None:
        """Replace the file; in a thread."""
        with self._writing:
            if version < self._written_version:
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = self._path.with_name(self._path.name + NEW_SUFFIX)
            with new.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
            self._written_version = version


def offsets_path(group: str, instance_name: str | None, folder: str | Path | None = None) -> Path:
    """Return the file of a group: in `folder`, by default the user's folder for such state.

    Args:
        group: as brokers know it.
        instance_name: the client's; clients without one share a name.
    """
    name = file_name(instance_name or DEFAULT_INSTANCE)
    return Path(folder or state_folder("offsets")) / name / f"{file_name(group)}.json"


def _in_use_by(whose: str, path: Path) -> IllegalState:
    return IllegalState(
        f"{path} is in use by another consumer of this {whose}",
        hint="Give each Client of a broadcasting group its own instance_name",
    )


def _locked(path: Path) -> IO[bytes] | None:
    """Lock the file against other processes until what is returned is closed.

    None where there are no such locks.

    Raises:
        IllegalState: another process has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    lock = path.with_name(path.name + LOCK_SUFFIX).open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise _in_use_by("machine", path) from error
    except OSError as error:
        log.warning("%s is not locked, no other process may use it: %s", path, error)
    return lock


def _read(path: Path) -> bytes | None:
    try:
        if path.stat().st_size > FILE_SIZE_MAX:
            log.error("%s is too large to hold offsets, started without", path)
            return None
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _parse(
    data: bytes | None, path: Path
) -> tuple[dict[MessageQueue, int], dict[MessageQueue, ReadMessage]]:
    if not data:
        return {}, {}
    try:
        body = decode_body(OffsetsFile, data)
    except RemoteProtocolError as error:
        log.error("%s holds no offsets, started without: %s", path, error)
        return {}, {}
    return (
        {queue_of(queue): offset for queue, offset in body.offset_table},
        {
            MessageQueue(*each[:3]): ReadMessage(each.queue_offset, Fingerprint(*each[4:]))
            for each in body.last_messages
        },
    )


def queue_body(queue: MessageQueue) -> MessageQueueBody:
    """Return the queue as it stands in bodies."""
    return MessageQueueBody(
        broker_name=queue.broker_name, queue_id=queue.queue_id, topic=queue.topic
    )


def queue_of(body: MessageQueueBody) -> MessageQueue:
    """Return the queue that stands in a body."""
    return MessageQueue(body.topic, body.broker_name, body.queue_id)
