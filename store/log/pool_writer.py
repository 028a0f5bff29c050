"""Write mode pool: batches wait in locked memory until a commit writes them to the file.

A log file that begins borrows a buffer of its own size; a position in one is the same position in
the other. A commit writes [committed_position, data_end) of it. The buffer is given back when the
file is full and all of it is in the page cache. It is never cleared: a commit takes only what was
stored since.

A file that got no buffer is written as in mode pwrite, and what is written to it counts as
committed only when everything before it is.

Unlike RocketMQ, which borrows when it makes a file ahead of need and so always has two or three
buffers out, a file borrows its buffer when it is first written to. So what is out beyond one buffer
is what the disk could not take yet. And RocketMQ's pool works only with ASYNC_FLUSH; here each sync
of SYNC_FLUSH commits first.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../MappedFile.java (appendMessage, commit),
AllocateMappedFileService.java
"""

from __future__ import annotations

from skylarkmq.store.errors import NoBufferError
from skylarkmq.store.log.log_writer import Piece
from skylarkmq.store.log.mapped_file import MappedFile
from skylarkmq.store.log.pwrite_writer import PwriteWriter
from skylarkmq.store.log.transient_store_pool import TransientStorePool


class _Staged:
    """The buffer of one file."""

    __slots__ = ("buffer", "data_end")

    def __init__(self, buffer: memoryview, data_end: int) -> None:
        self.buffer = buffer
        self.data_end = data_end  # less than the file's wrote_position once that is full


class PoolWriter(PwriteWriter):
    """Stores into buffers, where files have one."""

    stages = True

    def __init__(self, pool: TransientStorePool, *, fails_without_buffer: bool) -> None:
        """Make it.

        Args:
            fails_without_buffer: refuse to begin a file that gets no buffer.
        """
        super().__init__()
        self.pool = self._pool = pool
        self._fails_without_buffer = fails_without_buffer
        self._staged: dict[MappedFile, _Staged] = {}  # oldest first
        self._end = 0  # of the log

    @property
    def is_deficient(self) -> bool:
        return self._pool.is_deficient

    def open(self, memory_size: int) -> None:
        self._pool.open(memory_size)

    def rewind(self, offset: int) -> None:
        super().rewind(offset)
        self._end = offset

    def check_next(self) -> None:
        if self._fails_without_buffer and not self._pool.available_count:
            raise NoBufferError("create mapped file failed, server is busy or broken.")

    def enter(self, mapped: MappedFile) -> None:
        buffer = self._pool.borrow()
        if buffer is not None:
            self._staged[mapped] = _Staged(buffer, mapped.wrote_position)

    def append(self, mapped: MappedFile, data: bytes, *, to_end: bool) -> None:
        staged = self._staged.get(mapped)
        if staged is None:
            super().append(mapped, data, to_end=to_end)
        else:
            start = mapped.wrote_position
            staged.data_end = end = start + len(data)
            staged.buffer[start:end] = data
            mapped.wrote_position = mapped.size if to_end else end
        self._advance(mapped)

    def leave(self, mapped: MappedFile, data: bytes, since_s: float, *, to_end: bool) -> None:
        if mapped in self._staged:
            self.append(mapped, data, to_end=to_end)
        else:
            super().leave(mapped, data, since_s, to_end=to_end)
            self._advance(mapped)

    def pieces(self) -> list[Piece]:
        pieces: list[Piece] = []
        for mapped, staged in self._staged.items():
            start = mapped.committed_position
            if mapped.wrote_position > start:
                data = staged.buffer[start : staged.data_end]
                pieces.append(Piece(mapped, data, start, mapped.wrote_position))
        return pieces + super().pieces()

    def committed(self, pieces: list[Piece]) -> None:
        super().committed(pieces)
        for mapped in [mapped for mapped in self._staged if self._is_over(mapped)]:
            self._pool.give_back(self._staged.pop(mapped).buffer)
        self._advance()

    @staticmethod
    def _is_over(mapped: MappedFile) -> bool:
        """Return whether a file needs its buffer no longer: it is full and all of it committed."""
        return mapped.committed_position == mapped.size

    def _advance(self, last: MappedFile | None = None) -> None:
        """Move the committed end over everything that is committed without a gap.

        Args:
            last: the file that was written to; None when none was.
        """
        if last is not None:
            self._end = last.start_offset + last.wrote_position
        waiting = [
            mapped.start_offset + mapped.committed_position
            for mapped in self._staged
            if mapped.wrote_position > mapped.committed_position
        ]
        if self.later:
            waiting.append(self.later[0].offset)
        self.committed_offset = min(waiting, default=self._end)

    def close(self) -> None:
        self._staged.clear()
        self._pool.close()
