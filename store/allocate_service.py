"""Prepares the next log file off the loop, so that a roll finds it ready.

A roll needs the next file now and asks for the one after it: RocketMQ's `next` and `next-next`. So
one file is always ahead of the log, made, allocated and, on the mapped road, mapped and warmed on
the prepare thread. When a roll comes before it is ready the loop waits for it (it is being made) or
makes it itself (the thread has not begun): RocketMQ waits up to 5 s in the same place.
`stats.inline_allocations` counts those.

A file is made only while the disk has room for it and for the queue units and index items of the
messages that it will hold; otherwise these would meet the full disk after the messages are taken.

    state of a request    meaning
    WAITING               queued, the thread has not looked at it
    RUNNING               the thread is making the file
    READY / FAILED        result is there
    TAKEN                 the loop made the file itself; the thread passes it over

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../AllocateMappedFileService.java
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from skylarkmq.protocol.clock import Clock
from skylarkmq.store.errors import StoreFullError
from skylarkmq.store.files import Files, is_no_space
from skylarkmq.store.mapped_file import MappedFile
from skylarkmq.store.stats import StoreStats
from skylarkmq.store.worker import Worker

log = logging.getLogger(__name__)

WAIT_S = 5.0  # how long a roll waits for a file that is being made
RETRY_S = 1.0  # pause after a full disk refused a file


class _State(Enum):
    WAITING = 0
    RUNNING = 1
    READY = 2
    FAILED = 3
    TAKEN = 4


class _Request:
    """A file to be made, shared between the loop and the prepare thread."""

    def __init__(self, start_offset: int, room: int) -> None:
        self.start_offset = start_offset
        self.room = room
        self.lock = threading.Lock()  # guards `state`; held for assignments only
        self.state = _State.WAITING
        self.ended = threading.Event()
        self.ended_s = 0.0  # monotonic, s
        self.late = False  # a roll has waited for it in vain
        self.mapped: MappedFile | None = None
        self.error: BaseException | None = None


class AllocateService:
    """Hands out allocated log files in order. Loop thread, but for `_make`."""

    def __init__(
        self,
        files: Files,
        worker: Worker,
        clock: Clock,
        stats: StoreStats,
        folder: Path,
        file_size: int,
        *,
        equip: Callable[[MappedFile], None] | None = None,
        room: Callable[[], int] | None = None,
    ) -> None:
        """Make a service that has nothing to do yet.

        Args:
            equip: makes a new file ready for its road; blocks, on the prepare thread or the loop.
            room: bytes that must be free before a file is made; None: as many as it has.
        """
        self._equip = equip
        self._room = room or (lambda: file_size)
        self._stats = stats
        self._files = files
        self._worker = worker
        self._clock = clock
        self._folder = folder
        self._file_size = file_size
        self._request: _Request | None = None
        self._refused_until = 0.0
        self.no_room = ""  # why the last file that was asked for was refused; else empty

    def prepare(self, start_offset: int) -> None:
        """Ask for the file that starts at `start_offset`, if it is not being made yet."""
        if self._request is not None and self._request.start_offset == start_offset:
            return
        request = self._request = _Request(start_offset, self._room())
        self._worker.submit(lambda: self._make(request), self._made)

    def take(self, start_offset: int) -> MappedFile:
        """Return the file that starts at `start_offset`. May block for the allocation.

        Raises:
            StoreFullError: the disk has no room; asked again at most once a second.
            OSError: the disk failed in another way.
        """
        self._check_refused()
        mapped = self._take(start_offset)
        self._goes_on(mapped)
        return mapped

    def resume(self, mapped: MappedFile) -> None:
        """Give a file of an earlier run its blocks. Blocks.

        Raises:
            StoreFullError, OSError: as `take`.
        """
        self._check_refused()
        try:
            mapped.file.allocate(0, self._file_size)
        except OSError as error:
            raise self._refusal(error) from error
        self._goes_on(mapped)

    def _check_refused(self) -> None:
        if self._clock.monotonic() < self._refused_until:
            raise StoreFullError(self.no_room)

    def _goes_on(self, mapped: MappedFile) -> None:
        if self.no_room:
            self.no_room = ""
            log.warning("there is room again: the log goes on in %s", mapped.file.path)

    def _take(self, start_offset: int) -> MappedFile:
        request, self._request = self._request, None
        if request is None or request.start_offset != start_offset:
            return self._make_inline(start_offset)
        with request.lock:
            if request.state is _State.WAITING:
                request.state = _State.TAKEN
        if request.state is _State.TAKEN:
            return self._make_inline(start_offset)
        # Wait once: a disk that hangs must not hold the loop again with each message.
        if not request.ended.wait(0 if request.late else WAIT_S):
            request.late = True
            self._request = request
            raise StoreFullError("the disk takes longer than 5 s to allocate a log file")
        if request.mapped is not None:
            return request.mapped
        if isinstance(request.error, OSError):
            age_s = self._clock.monotonic() - request.ended_s
            if age_s < RETRY_S or not is_no_space(request.error):
                raise self._refusal(request.error)
        return self._make_inline(start_offset)  # a disk that was full may have room by now

    def discard(self) -> None:
        """Delete the file that was made and not used. Blocks; after the worker has ended."""
        request, self._request = self._request, None
        if request is not None and request.mapped is not None:
            path = request.mapped.file.path
            request.mapped.close()
            try:
                self._files.unlink(path)
                self._files.sync_folder(self._folder)
            except OSError as error:  # an empty file at the end of the log does no harm
                log.warning("%s stays behind: %s", path, error)

    def _make_inline(self, start_offset: int) -> MappedFile:
        self._stats.inline_allocations += 1
        try:
            return self._create(start_offset, self._room())
        except OSError as error:
            raise self._refusal(error) from error

    def _create(self, start_offset: int, room: int) -> MappedFile:
        self._files.make_folder(self._folder)
        free = self._files.free_bytes(self._folder)
        if free < room:
            why = f"{room} bytes are needed for it, its queue units and its index, {free} are free"
            raise OSError(errno.ENOSPC, why, str(self._folder))
        mapped = MappedFile.create(self._files, self._folder, start_offset, self._file_size)
        if self._equip is not None:
            try:
                self._equip(mapped)
            except BaseException:
                mapped.close()
                self._files.unlink(mapped.file.path)
                raise
        return mapped

    def _refusal(self, error: BaseException) -> BaseException:
        if not is_no_space(error):
            return error
        self._refused_until = self._clock.monotonic() + RETRY_S
        why = f"the disk has no room for the next log file: {error}"
        if not self.no_room:
            log.error("messages are refused: %s; free some space", why)
        self.no_room = why
        return StoreFullError(why)

    def _make(self, request: _Request) -> None:
        with request.lock:
            if request.state is not _State.WAITING:
                return
            request.state = _State.RUNNING
        try:
            request.mapped = self._create(request.start_offset, request.room)
            request.state = _State.READY
        except BaseException as error:
            request.error = error
            request.state = _State.FAILED
            if not isinstance(error, OSError):
                raise
        finally:
            request.ended_s = self._clock.monotonic()
            request.ended.set()

    def _made(self, _: None, error: BaseException | None) -> None:
        if error is not None:  # not the disk: a defect; the roll will make the file itself
            log.error("preparing a log file failed", exc_info=error)
