"""Cutting the log back to an earlier end: what a returning master needs whose last records nobody
else has.

    1  check    the new end is the boundary of a record; nothing is changed otherwise
    2  keep     what goes is copied, durably, into a `.broken` file, as recovery does
    3  decide   `skylarkmq/cut-back` is written, durably: from here on the cut happens
    4  cut      checkpoint and flushed offset go back, then the log; recovery does the rest
    5  done     the file is removed, when log, queues and index end there

A crash before 3 leaves the store as it was. After it each start begins at 4 again, which does the
same however far an earlier one got; so files that a crash has brought back do no harm. The
file says what the checkpoint may still say: lower bounds, as ever.

    "cut"                                 where the log is to end, bytes
    "times", "offset", "queues", "index"  the marks, as in `recovery-point` (`checkpoint.py`)

Unlike RocketMQ, whose slave goes on behind whatever it has.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from skylarkmq.common.errors import StoreError
from skylarkmq.common.files import Files
from skylarkmq.common.refusal import refusal
from skylarkmq.common.sidecar import Kind, encode_sidecar, read_sidecar
from skylarkmq.store.checkpoint import UNKNOWN, Checkpoint, Marks, RecoveryPoint
from skylarkmq.store.errors import StoreFullError
from skylarkmq.store.folder import StorePaths
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.log.log_walk import LogWalk, bytes_after


class Cut(NamedTuple):
    """A cut that was decided on."""

    end_offset: int
    marks: Marks  # what the checkpoint may say then


class _Content(RecoveryPoint, kw_only=True):
    """What `cut-back` holds."""

    cut: int


class CutBack:
    """The cut of one store. Its calls block; the loading thread."""

    def __init__(self, files: Files, paths: StorePaths, commit_log: CommitLog) -> None:
        self._files = files
        self._paths = paths
        self._log = commit_log

    # Before the cut

    def check(self, offset: int) -> int:
        """Return the newest store time, ms, of the records shortly before an offset; 0 for none.

        Raises:
            StoreError: the log does not reach there, or no record ends or begins there.
        """
        begin, end = self._log.min_offset, self._log.max_offset
        if not begin <= offset <= end:
            raise StoreError(
                f"the log cannot be cut back to offset {offset}: it holds {begin} to {end}; "
                "start with an empty store to take over another log"
            )
        mapped = self._log.mapped_files.find(max(begin, offset - 1))
        if mapped is None:
            return 0  # a log without files
        border, newest = mapped.start_offset, 0
        for record in LogWalk(self._log.mapped_files, check_crc=False).records(border):
            if record[0] >= offset:
                break
            border, newest = record[0] + record[1], max(newest, record[5])
        if offset not in (mapped.start_offset, border, mapped.start_offset + mapped.size):
            raise StoreError(
                f"the log cannot be cut back to offset {offset}: no record begins there; the next "
                f"border is at offset {border}"
            )
        return newest

    def keep(self, offset: int) -> Path:
        """Copy what lies behind an offset into a file of its own, and return its path.

        Raises:
            StoreFullError: the disk has no room for the copy.
        """
        size = self._log.max_offset - offset
        try:
            return self._log.mapped_files.copy_out(offset, size, self._paths.own)
        except OSError as error:
            refused = refusal(error)
            if refused is None:
                raise
            raise StoreFullError(
                f"the log is not cut back to offset {offset}: there is no room to keep the {size} "
                f"bytes that go, {refused.cure}: {error}"
            ) from error

    def decide(self, cut: Cut) -> None:
        """Write down that the log is cut, durably: from now on each start does it.

        Raises:
            StoreFullError: the disk has no room for that; nothing is cut.
        """
        data = encode_sidecar(Kind.CUT_BACK, _Content.of(cut.marks, cut=cut.end_offset))
        try:
            self._files.replace(self._paths.cut_back, data, backup=False)
        except OSError as error:
            refused = refusal(error)
            if refused is None:
                raise
            raise StoreFullError(
                f"the log is not cut back to offset {cut.end_offset}: {refused.why}: {error}"
            ) from error

    # The cut

    def load(self) -> Cut | None:
        """Return the cut that was decided on and is not done; None without one.

        Raises:
            CorruptFileError: nobody can say whether the log is half cut.
        """
        found = read_sidecar(self._files, self._paths.cut_back, Kind.CUT_BACK, _Content)
        return None if found is None else Cut(found.cut, found.added_to(Marks(*found.times)))

    def lower_marks(self, cut: Cut, checkpoint: Checkpoint) -> None:
        """Let checkpoint and flushed offset say no more than what stays; before the log goes."""
        point = self._paths.recovery_point
        if self._files.exists(point):
            # It would count, should there be no room for the new one.
            self._files.unlink(point)
            self._files.sync_folder(point.parent)
        checkpoint.save(cut.marks)
        self._log.lower_synced_end(cut.end_offset)
        self._log.mapped_files.remove_after(cut.end_offset)

    def cut_log(self, cut: Cut) -> None:
        """Let the loaded log end there, durably."""
        files = self._log.mapped_files
        files.truncate(cut.end_offset, clear_size=bytes_after(files, cut.end_offset))

    def done(self) -> None:
        """Note that nothing is left of what was cut off."""
        self._files.unlink(self._paths.cut_back)
        self._files.sync_folder(self._paths.own)


def lowered(marks: Marks, offset: int, newest_ms: int) -> Marks:
    """Return what marks may say of a log that ends at an offset.

    Args:
        marks: of the longer log; its index point must fit already.
        newest_ms: store time of the newest record before the offset.
    """
    marks = marks._replace(
        physic_timestamp=min(marks.physic_timestamp, newest_ms),
        logics_timestamp=min(marks.logics_timestamp, newest_ms),
        index_timestamp=0,
    )
    if marks.commit_log_offset == UNKNOWN or marks.commit_log_offset <= offset:
        return marks
    return marks.without_totals()._replace(commit_log_offset=offset)
