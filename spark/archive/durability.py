"""What makes a Delta table on this machine's disks outlive a power cut.

deltalake syncs nothing. A file that was written and not synced may be empty, cut, or not there at
all after the power came back, and a later file may have survived. So

    a task      syncs its data files and the entries of their folders before it reports them
    a commit    syncs its own file of the log and all before it, before the next step begins
    a checkpoint is synced before log files that it stands for are removed

and what can be damaged is then only what nobody was told of: the newest file of the log, a
checkpoint, and the note that names the newest checkpoint. `mend` removes these where they are cut;
without them the table is what it was before. A log file that is empty is no damage, but for the
first: it is a version that changes nothing.

An object store makes an object durable when it says that it is there: nothing is done for one.

    deltalake 1.6.6: strace of a commit shows write and linkat, no fsync
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

from skylarkmq.spark.storage import Location

logger = logging.getLogger(__name__)

LOG: Final = "_delta_log"
LAST_CHECKPOINT: Final = "_last_checkpoint"
_COMMIT: Final = re.compile(r"[0-9]{20}\.json", re.ASCII)
_CHECKPOINT: Final = re.compile(r"[0-9]{20}\.checkpoint\.parquet", re.ASCII)
_CHECKPOINTS_LOOKED_AT: Final = 2
_PARQUET_END: Final = b"PAR1"


def sync_path(path: Path) -> None:
    """Make a file's content, or a folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, if need be; their entries are durable."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_path(folder.parent)


def sync_files(location: Location, names: Iterable[str]) -> None:
    """Make files below a place durable, and their entries; nothing is to be done in a store."""
    root = location.path
    if root is None:
        return
    folders: set[PurePosixPath] = set()
    for name in names:
        sync_path(root / name)
        folders.update(PurePosixPath(name).parents)
    for folder in sorted(folders, reverse=True):
        sync_path(root / folder)


class LogSync:
    """Makes the files of a table's log durable, each once. One thread."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._synced: set[str] = set()

    def sync(self) -> None:
        """Sync what has come since the last call; with the first call, all that is there."""
        root = self._location.path
        if root is None:
            return
        # Others clean up while we look: what is gone needs no sync.
        names = [name for name in os.listdir(root / LOG) if "#" not in name]
        new = [name for name in names if name not in self._synced]
        for name in new:
            try:
                sync_path(root / LOG / name)
            except FileNotFoundError:
                continue
        if new:
            sync_path(root / LOG)
        # The note is replaced in its place, all others are written once.
        self._synced = set(names) - {LAST_CHECKPOINT}


def mend(location: Location) -> None:
    """Remove what a power cut has cut from the end of a table's log. For its writer.

    Nothing that was committed is lost: no writer went on before these files were durable.
    """
    root = location.path
    if root is None or not (root / LOG).is_dir():
        return
    log = root / LOG
    names = sorted(os.listdir(log))
    commits = [name for name in names if _COMMIT.fullmatch(name)]
    if commits and not _is_whole_commit(log / commits[-1], is_first=len(commits) == 1):
        _remove(log / commits[-1])
    checkpoints = [name for name in names if _CHECKPOINT.fullmatch(name)]
    for name in checkpoints[-_CHECKPOINTS_LOOKED_AT:]:
        if not _is_parquet(log / name):
            _remove(log / name)
            names.remove(name)
    if LAST_CHECKPOINT in names and not _names_a_checkpoint(log / LAST_CHECKPOINT, names):
        _remove(log / LAST_CHECKPOINT)


def _remove(path: Path) -> None:
    logger.warning("%s was cut by a power failure and is removed: nothing counted on it", path)
    path.unlink(missing_ok=True)
    sync_path(path.parent)


def _is_whole_commit(path: Path, *, is_first: bool) -> bool:
    lines = path.read_bytes().splitlines()
    try:
        return all(isinstance(json.loads(line), dict) for line in lines) and (
            bool(lines) or not is_first
        )
    except ValueError:
        return False


def _is_parquet(path: Path) -> bool:
    return path.read_bytes()[-len(_PARQUET_END) :] == _PARQUET_END


def _names_a_checkpoint(path: Path, names: list[str]) -> bool:
    try:
        version = json.loads(path.read_bytes())["version"]
    except (ValueError, KeyError, TypeError):
        return False
    return any(name.startswith(f"{version:020d}.checkpoint") for name in names)
