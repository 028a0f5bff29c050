"""The transient pool: locked buffers in which messages wait for the commit (`pool_writer.py`).

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../TransientStorePool.java,
DefaultMessageStore.java (isTransientStorePoolDeficient)
"""

from __future__ import annotations

import logging
from typing import Final

from skylarkmq.common.errors import StoreError
from skylarkmq.store.log import memory

log = logging.getLogger(__name__)

LOW_PERCENT: Final = 40  # of the buffers; below it a borrower is warned


class TransientStorePool:
    """Buffers of one size, to be borrowed. Loop thread; `open` blocks."""

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
                buffer = memory.anonymous(self.buffer_size)
                refused = memory.lock_memory(buffer) or refused
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
