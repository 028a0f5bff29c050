"""Bringing the key index to the disk, and saying how far that reaches.

A sync covers every store that was done before it began, so it runs beside the building of the
index, on a thread of its own. The point that it ends with never goes beyond the synced part of the
log, or a power cut could leave entries of records that are gone.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import NamedTuple

from skylarkmq.common.files import Files
from skylarkmq.store.checkpoint import IndexPoint
from skylarkmq.store.index.file import FIRST_ITEM, IndexFile, IndexHeader


class SyncedIndex(NamedTuple):
    """What is on the disk."""

    point: IndexPoint
    full: tuple[IndexFile, ...]  # files that were full when their sync began
    full_timestamp: int  # end time of the newest full file, ms


def sync_index(
    files: Files, index_files: Sequence[IndexFile], offset: int, full_timestamp: int
) -> SyncedIndex:
    """Sync the files that need it. Blocks; any one thread, while no file is removed.

    Args:
        offset: a record boundary of the synced log; the entries of all records below it are in.

    Raises:
        OSError: a sync failed. Never with ENOSPC, which passes for a full disk that may be asked
            again: the kernel may have dropped the pages and report success next time.
    """
    full: list[IndexFile] = []
    headers = [file.header for file in index_files]
    for file, header in zip(index_files, headers, strict=True):
        if not file.unsynced:
            continue
        try:
            file.file.datasync()
        except OSError as error:
            why = f"the sync of the key index failed: {error}"
            raise OSError(errno.EIO, why, error.filename) from error
        if header.next_item >= file.shape.item_count:
            full.append(file)
            full_timestamp = header.end_timestamp
    point = _point(files, index_files, headers, offset)
    return SyncedIndex(point, tuple(full), full_timestamp)


def _point(
    files: Files, index_files: Sequence[IndexFile], headers: list[IndexHeader], offset: int
) -> IndexPoint:
    for file, header in zip(reversed(index_files), reversed(headers), strict=True):
        if header.next_item <= FIRST_ITEM or header.begin_offset >= offset:
            continue
        # A handle of its own: the file belongs to another thread.
        reader = IndexFile(files, file.path, file.shape, header)
        try:
            count = reader.find_offset(offset, header.next_item)
            timestamp = header.end_timestamp
            if count < header.next_item:
                last = reader.item(count - 1)
                timestamp = header.begin_timestamp + last.time_difference * 1000
        finally:
            reader.let_go()
        return IndexPoint(file.name, count, offset, timestamp)
    return IndexPoint("", FIRST_ITEM, offset, 0)
