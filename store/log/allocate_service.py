"""Prepares the next log file off the loop, so that a roll finds it ready.

A roll needs the next file now and asks for the one after it: RocketMQ's `next` and `next-next`. So
one file is always ahead of the log, made, allocated and, in write mode mapped, mapped and warmed on
the prepare thread. No file is ever made on the loop.

A roll that comes before its file is ready is refused with StoreFullError, unless the file was asked
for less than PATIENCE_S ago: then a whole file was filled in that time, the disk is quick and the
files are small, and the loop waits for the rest of it. `stats.late_allocations` counts both.
Unlike RocketMQ, whose append waits up to 5 s there: one loop carries everything here.

A file is made only while the disk has room for it and for the queue units and index items of the
messages that it will hold; otherwise these would meet the full disk after the messages are taken.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../AllocateMappedFileService.java
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable

from skylarkmq.common.refusal import refusal
from skylarkmq.store.environment import Environment
from skylarkmq.store.errors import StoreFullError
from skylarkmq.store.log.mapped_file import MappedFile

log = logging.getLogger(__name__)

PATIENCE_S = 1.0  # age of a request up to which a roll waits for it
RETRY_S = 1.0  # pause after a file was refused

Make = Callable[[], MappedFile]


class _Request:
    """A file to be made, shared between the loop and the prepare thread."""

    def __init__(self, start_offset: int, asked_s: float) -> None:
        self.start_offset = start_offset
        self.asked_s = asked_s  # monotonic, s
        self.ended = threading.Event()  # set by the thread, after the results
        self.ended_s = 0.0  # monotonic, s
        self.late = False  # a roll came before it had ended
        self.mapped: MappedFile | None = None
        self.error: BaseException | None = None


class AllocateService:
    """Hands out allocated log files in order. Loop thread, except `_make` and what it calls."""

    def __init__(
        self,
        env: Environment,
        *,
        equip: Callable[[MappedFile], None] | None = None,
        room: Callable[[], int] | None = None,
    ) -> None:
        """Make a service that has nothing to do yet.

        Args:
            equip: makes a new file ready for the write mode; blocks, on the prepare thread.
            room: bytes that must be free before a file is made; None: as many as it has.
        """
        self._file_size = file_size = env.config.mapped_file_size_commit_log
        self._equip = equip
        self._room = room or (lambda: file_size)
        self._stats = env.stats
        self._files = env.files
        self._worker = env.workers.prepare
        self._clock = env.clock
        self._folder = env.paths.commit_log
        self._request: _Request | None = None
        self._refused_until = 0.0
        self.no_room = ""  # why the last file that was asked for was refused; else empty

    def prepare(self, start_offset: int) -> None:
        """Ask for the file that starts at `start_offset`, if it is not being made yet."""
        if self._request is None or self._request.start_offset != start_offset:
            room = self._room()
            self._ask(start_offset, lambda: self._create(start_offset, room))

    def take(self, start_offset: int, patience_s: float | None = PATIENCE_S) -> MappedFile:
        """Return the file that starts at `start_offset`.

        Args:
            patience_s: age of the request up to which the loop waits; None: for as long as it
                takes, before the broker serves.

        Raises:
            StoreFullError: the file is not ready, or the machine has no room for it; then it is
                asked again at most once a second.
            OSError: the disk failed in another way.
        """
        room = self._room
        return self._obtain(start_offset, lambda: self._create(start_offset, room()), patience_s)

    def resume(self, mapped: MappedFile, patience_s: float | None = PATIENCE_S) -> None:
        """Give a file of an earlier run its blocks; see `take`.

        Raises:
            StoreFullError, OSError: as `take`.
        """

        def make() -> MappedFile:
            mapped.file.allocate(0, self._file_size)
            return mapped

        self._obtain(mapped.start_offset, make, patience_s)

    def _ask(self, start_offset: int, make: Make) -> _Request:
        request = self._request = _Request(start_offset, self._clock.monotonic())
        self._worker.submit(lambda: self._make(request, make), self._made)
        return request

    def _obtain(self, start_offset: int, make: Make, patience_s: float | None) -> MappedFile:
        self._check_refused()
        request = self._request
        if request is None or request.start_offset != start_offset or self._may_retry(request):
            request = self._ask(start_offset, make)
        if not request.ended.is_set() and not self._wait(request, patience_s):
            age_s = self._clock.monotonic() - request.asked_s
            raise StoreFullError(
                f"the next log file is not ready: the disk has been making it for {age_s:.1f} s"
            )
        if isinstance(request.error, OSError):
            raise self.refused(request.error)
        self._request = None
        if request.mapped is None:
            raise StoreFullError(f"the next log file could not be made: {request.error!r}")
        self._goes_on(request.mapped)
        return request.mapped

    def _may_retry(self, request: _Request) -> bool:
        """Return whether a file was refused, and the machine may have room for it by now."""
        return (
            request.ended.is_set()
            and refusal(request.error) is not None
            and self._clock.monotonic() - request.ended_s >= RETRY_S
        )

    def _wait(self, request: _Request, patience_s: float | None) -> bool:
        """Wait for a file that is not ready. False when it takes too long."""
        if not request.late and patience_s is not None:
            request.late = True
            self._stats.late_allocations += 1
        if patience_s is not None:
            patience_s = max(0.0, request.asked_s + patience_s - self._clock.monotonic())
        return self._worker.wait(request.ended, patience_s)

    def _check_refused(self) -> None:
        if self._clock.monotonic() < self._refused_until:
            raise StoreFullError(self.no_room)

    def _goes_on(self, mapped: MappedFile) -> None:
        if self.no_room:
            self.no_room = ""
            log.warning("there is room again: the log goes on in %s", mapped.file.path)

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

    def refused(self, error: OSError) -> Exception:
        """Return what a roll raises for an error: it was refused for now, or it is final."""
        refused = refusal(error)
        if refused is None:
            return error
        self._refused_until = self._clock.monotonic() + RETRY_S
        why = f"there is no room for the next log file, {refused.why}: {error}"
        if not self.no_room:
            log.error("messages are refused: %s; %s", why, refused.cure)
        self.no_room = why
        return StoreFullError(why)

    def _make(self, request: _Request, make: Make) -> None:
        try:
            request.mapped = make()
        except BaseException as error:
            request.error = error
            if not isinstance(error, OSError):
                raise
        finally:
            request.ended_s = self._clock.monotonic()
            request.ended.set()

    def _made(self, _: None, error: BaseException | None) -> None:
        if error is not None:  # not the disk: a defect; the roll is refused
            log.error("preparing a log file failed", exc_info=error)
