"""When the checkpoint is saved, and what it may say then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skylarkmq.common.worker import start
from skylarkmq.store.checkpoint import UNKNOWN, Marks, Point, PointTracker
from skylarkmq.store.index.service import IndexService
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.queue.queue_table import QueueTable

if TYPE_CHECKING:
    from skylarkmq.store.message_writer import MessageWriter

CHECKPOINT_SIZE: Final = 256 << 20
"""Bytes of messages after which the next checkpoint is due, whatever the clock says."""


class CheckpointService:
    """Saves checkpoints. Loop thread."""

    def __init__(
        self,
        commit_log: CommitLog,
        writer: MessageWriter,
        queues: QueueTable,
        index: IndexService,
        points: PointTracker,
    ) -> None:
        self._log = commit_log
        self._writer = writer
        self._queues = queues
        self._index = index
        self._points = points
        self._saved_offset = 0  # what was published at the last one

    def recovered(self, end_offset: int) -> None:
        """Note the end of the log, which recovery has found."""
        self._saved_offset = end_offset

    def marks(self) -> Marks:
        """Return what the checkpoint may say once all published units are on the disk."""
        writer, index, queues = self._writer, self._index, self._queues
        self.note_point()
        held_from = queues.held_from if queues.held else None
        limit = self._log.flushed_offset
        point = self._points.newest(limit if held_from is None else min(limit, held_from))
        marks = Marks(
            writer.flushed_timestamp,
            writer.shown_timestamp,
            index.full_timestamp,
            UNKNOWN,
            index.point,
            clock_steps=self._log.clock_steps.rows,
        )
        if held_from is not None:  # what is kept in memory is not covered
            covered = queues.flusher.covered or Marks()
            return marks._replace(
                physic_timestamp=covered.physic_timestamp,
                logics_timestamp=covered.logics_timestamp,
                commit_log_offset=max(
                    covered.commit_log_offset, UNKNOWN if point is None else point.offset
                ),
            )
        if point is None:
            return marks
        offset, queue_count, unit_count = point
        return marks._replace(
            commit_log_offset=offset, queue_count=queue_count, unit_count=unit_count
        )

    def note_point(self) -> None:
        """Note how many units there are at this offset of the log."""
        self._points.note(Point(self._writer.published_offset, *self._queues.totals()))

    def save_early(self) -> None:
        """Save one now when a recovery would have much to read."""
        if self._writer.published_offset - self._saved_offset >= CHECKPOINT_SIZE:
            self.save()

    def save(self) -> None:
        """Sync the key index, then the queues, then save the checkpoint, in the background."""
        self._saved_offset = self._writer.published_offset
        start(self._save())

    async def _save(self) -> None:
        try:
            await self._index.sync()
        except Exception:
            return  # the store has failed, or the next one may go well
        self._queues.flusher.sync(self.marks())
