"""How batches reach the files of the log: what the write modes have in common.

    mode     strategy                    how a batch reaches the file              committed
    pwrite   `pwrite_writer.py`          one `pwrite` on the loop                  at once
    mapped   `mapped_writer.py`          one store into a mapping of the file      at once
    pool     `pool_writer.py`            one store into a locked buffer;           with the commit
                                         a thread writes it

The bytes in the files are the same. `commit_log.py::log_writer` chooses by the configuration.

While the disk is slow, batches leave the loop in every mode: their bytes wait in `later` until a
commit writes them (`message_writer.py`). A batch of the pool goes into its buffer all the same.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar, NamedTuple

from skylarkmq.store.log.mapped_file import MappedFile
from skylarkmq.store.log.transient_store_pool import TransientStorePool


class Piece(NamedTuple):
    """Bytes on their way into a file."""

    mapped: MappedFile
    data: memoryview
    position: int
    end: int  # committed_position once they are there
    since_s: float = 0.0  # when they were handed in, on the monotonic clock

    @property
    def offset(self) -> int:
        """Place of the first byte in the log."""
        return self.mapped.start_offset + self.position


class LogWriter:
    """One write mode. Loop thread, except `prepare`.

    Attributes:
        committed_offset: end of what is in the files without a gap.
        later: what left the loop, in order; while there is some, what follows leaves it too.
        pool: the buffers, in mode pool.
    """

    stages: ClassVar[bool] = False
    """True when every batch waits in memory for a commit, whatever the disk does."""

    def __init__(self) -> None:
        self.committed_offset = 0
        self.later: deque[Piece] = deque()
        self.pool: TransientStorePool | None = None

    @property
    def is_deficient(self) -> bool:
        """True while the mode has no room left, so that producers must wait."""
        return False

    def open(self, memory_size: int) -> None:
        """Take the memory that the mode needs. Blocks.

        Args:
            memory_size: bytes of memory that this process may have.

        Raises:
            StoreError: the mode would take too much of it, or the system refused.
        """

    def rewind(self, offset: int) -> None:
        """Take over the end of the log; nothing waits."""
        self.committed_offset = offset

    # Files to write to

    def check_next(self) -> None:
        """Refuse to go on in a next file, if the mode lacks what that needs.

        Raises:
            StoreFullError: it does.
        """

    def prepare(self, mapped: MappedFile) -> None:
        """Make a new file ready to be written. Blocks; prepare thread.

        Raises:
            OSError: the system refused.
        """

    def resume(self, mapped: MappedFile) -> None:
        """Make the last file of an earlier run ready to be written, on the loop.

        Raises:
            OSError: the system refused.
        """

    def enter(self, mapped: MappedFile) -> None:
        """Note that a file, which is ready, is the next one to be written."""

    # Batches

    def append(self, mapped: MappedFile, data: bytes, *, to_end: bool) -> None:
        """Add bytes after the last ones of a file.

        Args:
            to_end: they end with the blank record that reaches to the end of the file.

        Raises:
            OSError: the disk refused.
        """
        raise NotImplementedError

    def leave(self, mapped: MappedFile, data: bytes, since_s: float, *, to_end: bool) -> None:
        """Take bytes after the last ones of a file; a commit brings them into it.

        Args:
            since_s: when, on the monotonic clock.
            to_end: as of `append`.
        """
        start = mapped.wrote_position
        mapped.wrote_position = end = mapped.size if to_end else start + len(data)
        self.later.append(Piece(mapped, memoryview(data), start, end, since_s))

    # Commits

    def pieces(self) -> list[Piece]:
        """Return what lies only in memory."""
        return list(self.later)

    def committed(self, pieces: list[Piece]) -> None:
        """Note that pieces are in their files."""
        for piece in pieces:
            mapped = piece.mapped
            piece.data.release()
            mapped.committed_position = piece.end
            self.committed_offset = mapped.start_offset + piece.end
            if self.later and self.later[0] is piece:
                self.later.popleft()

    def close(self) -> None:
        """Let go what the mode holds beside the files."""
