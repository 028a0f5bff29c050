"""Memory that the store manages page by page: locked buffers, pages made present before stores.

The only place for anonymous mappings and for `madvise` and `mlock`, which Python reaches through
ctypes. A call through it releases the GIL, so a thread that waits for pages does not hold the loop.

    lock_memory    keeps a buffer out of swap and makes all of its pages present
    populate       makes pages of a mapping present and writable without changing a byte; the store
                   that comes later finds them (else it costs the loop 2.5 us a page)

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../util/LibC.java, TransientStorePool.java,
MappedFile.java (warmMappedFile)
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
from collections.abc import Callable
from typing import Final

from skylarkmq.common.errors import StoreError
from skylarkmq.common.worker import Worker
from skylarkmq.store.log.mapped_file import MappedFile

log = logging.getLogger(__name__)
PAGE_SIZE: Final = mmap.PAGESIZE
# Of Linux 5.14; Python 3.11 has no name for it.
_MADV_POPULATE_WRITE: Final = 23

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def anonymous(size: int) -> memoryview:
    """Return zeroed private memory outside of Python's heap, given back with the last view of it.

    Raises:
        OSError: the system has no room for it.
    """
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def lock_memory(view: memoryview) -> OSError | None:
    """Keep the pages of a writable view in memory; return why that was refused, None if it worked.

    Blocks while the pages are made present, also when the lock is refused.
    """
    code = _call(_libc.mlock, view, 0, len(view))
    if code == 0:
        return None
    populate(view, 0, len(view))
    return OSError(code, os.strerror(code))


def populate(view: memoryview, start: int, stop: int) -> None:
    """Make the pages of [start, stop) of a writable view present and writable. Blocks.

    The bytes stay what they are, also those that another thread stores meanwhile.
    """
    start -= start % PAGE_SIZE
    if start < stop and _call(_libc.madvise, view, start, stop - start, _MADV_POPULATE_WRITE):
        _touch(view, start, stop)


def _touch(view: memoryview, start: int, stop: int) -> None:
    """Store one byte of each page onto itself.

    One assignment reads and stores under the GIL, so it never undoes what the loop stores there.
    """
    for position in range(start, stop, PAGE_SIZE):
        byte = view[position : position + 1]
        byte[:] = byte


def _call(function: Callable[..., int], view: memoryview, start: int, *args: int) -> int:
    """Call with the address of a byte of the view in front; return 0 or the error number."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(view, start))
    if function(address, *args) == 0:
        return 0
    return ctypes.get_errno() or errno.EINVAL


LOW_PERCENT = 40  # of the buffers; below it a borrower is warned


class TransientStorePool:
    """The transient pool: locked buffers in which messages wait for the commit.

    A log file that begins borrows a buffer of its own size; a position in one is the same position
    in the other. The buffer is given back when the file is full and all of it is in the page cache.
    A buffer is never cleared: a commit takes only what was stored since.

    Unlike RocketMQ, which borrows when it makes a file ahead of need and so always has two or three
    buffers out, a file borrows its buffer when it is first written to. So what is out beyond one
    buffer is what the disk could not take yet.

    Loop thread; `open` blocks.
    """

    def __init__(self, buffer_size: int, buffer_count: int) -> None:
        self.buffer_size = buffer_size
        self.buffer_count = buffer_count
        self.borrow_failures = 0  # files that had to do without
        self._free: list[memoryview] = []
        self._open = False

    @property
    def available_count(self) -> int:
        """The number of buffers that can be borrowed."""
        return len(self._free)

    @property
    def is_deficient(self) -> bool:
        """True while no buffer is left, so that producers must wait."""
        return self._open and not self._free

    def open(self, memory_size: int) -> None:
        """Take and lock the memory. Blocks.

        Args:
            memory_size: bytes of memory that this process may have.

        Raises:
            StoreError: the buffers would take more than half of it, or the system refused them.
        """
        wanted = f"{self.buffer_count} x {self.buffer_size} bytes of transientStorePoolSize"
        cure = "lower transientStorePoolSize or mappedFileSizeCommitLog"
        if 2 * self.buffer_count * self.buffer_size > memory_size:
            raise StoreError(
                f"{wanted} are more than half of the {memory_size} bytes of memory: {cure}"
            )
        refused: OSError | None = None
        try:
            for _ in range(self.buffer_count):
                buffer = anonymous(self.buffer_size)
                refused = lock_memory(buffer) or refused
                self._free.append(buffer)
        except OSError as error:
            self.close()
            raise StoreError(f"no memory for {wanted} ({error}): {cure}") from error
        if refused is not None:
            log.warning(
                "the transient pool is not locked in memory and may be swapped out (%s): raise "
                "RLIMIT_MEMLOCK (ulimit -l) to %d KiB",
                refused,
                self.buffer_count * self.buffer_size // 1024,
            )
        self._open = True

    def borrow(self) -> memoryview | None:
        """Take a buffer, None when all are out."""
        if not self._free:
            self.borrow_failures += 1
            return None
        buffer = self._free.pop()
        if len(self._free) * 100 < self.buffer_count * LOW_PERCENT:
            log.warning(
                "%d of %d pool buffers are left: the disk does not keep up",
                len(self._free),
                self.buffer_count,
            )
        return buffer

    def give_back(self, buffer: memoryview) -> None:
        """Return a borrowed buffer."""
        if self._open:
            self._free.append(buffer)

    def close(self) -> None:
        """Let the memory go, at once or with the last view of a buffer."""
        self._open = False
        self._free.clear()


class WarmUp:
    """Makes pages ahead of the write position present, on the prepare thread, for the mapped road.

    A store into a page that no mapping has seen costs the loop 2.5 us, and now and then
    milliseconds of waiting for the file system. So one to two steps ahead of the write position are
    made present.

    Unlike RocketMQ, which writes zeros over a whole new file and locks it in memory: the zero pages
    of a large file are written back long before the messages come, and a store after write-back
    costs the same fault again, locked or not.

    Loop thread, except `first_step`.
    """

    def __init__(self, worker: Worker, step_size: int) -> None:
        self._worker = worker
        self._step_size = step_size  # bytes warmed in one go
        self._file: MappedFile | None = None
        self._warm_end = 0  # position in the file up to which pages were asked for
        self._running = False

    def first_step(self, mapped: MappedFile) -> None:
        """Make the first pages of a new file present. Blocks; any thread."""
        if mapped.target is not None:
            populate(mapped.target, 0, min(self._step_size, mapped.size))

    def resume(self, mapped: MappedFile) -> None:
        """Go on in a file of an earlier run, none of whose pages are present."""
        self._file = mapped
        self._warm_end = mapped.wrote_position
        self.wrote(mapped)

    def wrote(self, mapped: MappedFile) -> None:
        """Note that the write position of the last file has moved, or that there is a new file."""
        if mapped is not self._file:
            self._file = mapped
            self._warm_end = self._step_size  # the first step was done when it was made
        target, start = mapped.target, self._warm_end
        if (
            self._running
            or target is None
            or start >= mapped.size
            or start - mapped.wrote_position >= self._step_size
        ):
            return
        start = max(start, mapped.wrote_position)
        stop = self._warm_end = min(start + self._step_size, mapped.size)
        self._running = True
        self._worker.submit(lambda: populate(target, start, stop), self._warmed)

    def _warmed(self, _: None, error: BaseException | None) -> None:
        self._running = False
        if error is not None:  # the pages come with their stores instead
            log.error("warming a log file failed", exc_info=error)
