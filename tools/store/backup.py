"""`store backup` and `store restore`: a copy of a store, also of one that a broker runs on.

What is copied while a broker works on it is, once restored, what a crash of the machine would have
left: the next start recovers it from its log. That holds because of the order:

    1. marks, tables, consumer offsets, our own files     what they speak of is in the log already
    2. consume queues, their extensions, the key index    as far behind the log as after a crash
    3. the log, from its oldest file on, up to where      the end of what is restored
       it ended when 1. and 2. were done
    4. topics and groups once more                        those that were made meanwhile

So a restored consumer offset is at most some messages too low, and never beyond the log: messages
may come again, none is passed over. Files that expire meanwhile are left out.

    BACKUP/store/...             the files, under their names below the root; the log in commitlog/;
                                 and `abort`, unless the store was stopped cleanly
    BACKUP/backup.json           what belongs to it, with SHA-256 of each file; written last
    BACKUP/backup.json.before    of the backup that is being brought up to date

A backup that is made again copies only files that have changed: with another size or time, or with
a time so shortly before the last backup began that later writes may not show in it.
`skylarkmq/replica` stays behind: a copy of a replica has not confirmed what the replica has
confirmed since, so it is another one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from skylarkmq.common.errors import StoreError
from skylarkmq.common.files import DiskFiles, write_whole
from skylarkmq.common.read_only_files import ReadOnlyFiles
from skylarkmq.store.folder import AbortFile, StorePaths
from skylarkmq.store.log.mapped_file import is_file_name
from skylarkmq.store.progress import Progress, no_progress
from skylarkmq.tools.output import as_json, size_text, when
from skylarkmq.tools.store.ownership import COPY, MANIFEST, owner_of

FORMAT: Final = 1
_BEFORE: Final = "backup.json.before"
_LOG: Final = "commitlog"
_CHUNK: Final = 1 << 20
_YOUNG_NS: Final = 60 * 1_000_000_000
"""Writes through mapped memory change a file's time once until they are synced, which is sooner."""
_ZEROS: Final = bytes(_CHUNK)
_LAST: Final = ("topics.json", "subscriptionGroup.json")


@dataclass(frozen=True, slots=True)
class Copied:
    """A file of a backup."""

    size: int
    modified_ns: int
    """Of the source, as it was before it was read."""
    sha256: str


class Backup:
    """Makes a backup of a store, or brings one up to date."""

    def __init__(
        self,
        paths: StorePaths,
        target: Path,
        now_ms: Callable[[], int],
        progress: Progress = no_progress,
    ) -> None:
        """Take the folders; nothing is read yet."""
        self._now_ms = now_ms
        self._paths = paths
        self._target = target
        self._mark = AbortFile(DiskFiles(), StorePaths(target / COPY))
        self._progress = progress
        self._before: dict[str, Copied] = {}
        self._old_ns = 0  # files of `_before` that are older are as they were
        self._files: dict[str, Copied] = {}
        self._kept: set[str] = set()
        self._size = self._total = 0

    def run(self) -> dict[str, Any]:
        """Copy, and return what was done. Blocks.

        Raises:
            StoreError: there is no store, the target holds something else, or the log has a gap.
            OSError: a file cannot be read or written.
        """
        paths, began_ms = self._paths, self._now_ms()
        if not paths.commit_log.is_dir():
            raise StoreError(f"{paths.commit_log} does not exist: there is no store")
        running = owner_of(ReadOnlyFiles(), paths)
        clean = running is None and not paths.abort.exists()
        self._begin()
        self._total = _size_of(paths.root, paths.commit_log)
        for path in self._small_files():
            self._copy(path, path.relative_to(paths.root))
        for folder in (paths.consume_queue, paths.consume_queue_ext, paths.index):
            for path in _files_below(folder):
                self._copy(path, path.relative_to(paths.root))
        log_files = sorted(each for each in _files_below(paths.commit_log) if _is_numbered(each))
        ends = _written_ends(log_files)
        for path in log_files:
            self._copy(path, Path(_LOG, path.name), ends.get(path))
        for name in _LAST:
            path = paths.config / name
            self._copy(path, path.relative_to(paths.root))
        log = self._check_log()
        self._remove_others()
        if clean:
            self._mark.remove()
        manifest = {
            "format": FORMAT,
            "source": str(paths.root.absolute()),
            "began_ms": began_ms,
            "ended_ms": self._now_ms(),
            "stopped_cleanly": clean,
            "log": log,
            "files": {name: asdict(each) for name, each in sorted(self._files.items())},
        }
        DiskFiles().replace(self._target / MANIFEST, as_json(manifest).encode(), backup=False)
        (self._target / _BEFORE).unlink(missing_ok=True)
        return {
            "source": manifest["source"],
            "target": str(self._target),
            "running": running,
            "began_ms": began_ms,
            "ended_ms": manifest["ended_ms"],
            "stopped_cleanly": clean,
            "log": log,
            "files": len(self._files),
            "bytes": self._size,
            "files_kept": len(self._kept),
        }

    def _begin(self) -> None:
        """Take over what an earlier backup has, which counts for nothing until this one is done."""
        target, root = self._target.resolve(), self._paths.root.resolve()
        if target.is_relative_to(root) or root.is_relative_to(target):
            raise StoreError(f"{target} and {root} lie in each other: choose another folder")
        manifest, before = target / MANIFEST, target / _BEFORE
        if manifest.exists():
            manifest.replace(before)
        elif not before.exists():
            if target.exists() and any(target.iterdir()):
                raise StoreError(f"{target} is neither empty nor a backup: choose another folder")
            target.mkdir(parents=True, exist_ok=True)
            before.write_text(as_json({"format": FORMAT, "files": {}}))
        manifest_before, self._before = _read_manifest(before)
        self._old_ns = manifest_before.get("began_ms", 0) * 1_000_000 - _YOUNG_NS
        (target / COPY).mkdir(exist_ok=True)
        self._mark.create()

    def _small_files(self) -> Iterator[Path]:
        """Yield marks, tables and our own files, and what other versions keep in the root."""
        paths = self._paths
        others = {paths.abort, paths.lock, paths.commit_log, paths.replica}
        large = {paths.consume_queue, paths.consume_queue_ext, paths.index}
        first = [paths.checkpoint, paths.own, paths.config]
        rest = sorted(each for each in paths.root.iterdir() if each not in {*first, *large})
        for top in (*first, *rest):
            if top in others or (top.is_dir() and (top / _LOG).is_dir()):
                continue  # such a folder is the store of another broker
            yield from (each for each in _files_below(top) if each not in others)

    def _copy(self, path: Path, name: Path, end: int | None = None) -> None:
        """Copy a file up to `end`; one that is gone has expired, or was never written."""
        target = self._target / COPY / name
        try:
            status = path.stat()
        except FileNotFoundError:
            return
        old = self._before.get(str(name))
        if (
            old is not None
            and (old.size, old.modified_ns) == (status.st_size, status.st_mtime_ns)
            and old.modified_ns < self._old_ns
            and target.exists()
            and target.stat().st_size == old.size
        ):
            self._files[str(name)] = old
            self._kept.add(str(name))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                digest = copy_file(path, target, status.st_size, self._told, end)
                self._kept.discard(str(name))
                self._files[str(name)] = Copied(status.st_size, status.st_mtime_ns, digest)

    def _told(self, size: int) -> None:
        self._size += size
        self._progress("copying", min(self._size, self._total), self._total)

    def _check_log(self) -> dict[str, int]:
        """Leave out files before a gap, which expired meanwhile; return where the log lies."""
        found = sorted(
            (int(Path(name).name), each.size, name)
            for name, each in self._files.items()
            if Path(name).parts[0] == _LOG
        )
        run: list[tuple[int, int, str]] = []
        for start, size, name in found:
            if run and run[-1][0] + run[-1][1] != start:
                for _, _, early in run:
                    del self._files[early]
                run.clear()
            run.append((start, size, name))
        if not run:
            return {"begin": 0, "end": 0}
        return {"begin": run[0][0], "end": run[-1][0] + run[-1][1]}

    def _remove_others(self) -> None:
        """Remove files of an earlier backup that the store has no longer."""
        paths = StorePaths(self._target / COPY)
        for path in _files_below(paths.root):
            if path != paths.abort and str(path.relative_to(paths.root)) not in self._files:
                path.unlink()


class Restore:
    """Makes a store from a backup, in a folder that does not exist or is empty."""

    def __init__(self, backup: Path, target: Path, progress: Progress = no_progress) -> None:
        """Take the folders; nothing is read yet."""
        self._backup = backup
        self._target = target
        self._progress = progress
        self._size = self._total = 0

    def run(self) -> dict[str, Any]:
        """Copy, compare with what was written, and return what was done. Blocks.

        Raises:
            StoreError: no finished backup is there, a file of it is missing or differs, it names a
                file outside of a store, or the target is not empty. What was restored until then
                stays for a look.
            OSError: a file cannot be read or written.
        """
        target = self._target
        manifest, files = _read_manifest(self._backup / MANIFEST)
        if target.exists() and any(target.iterdir()):
            raise StoreError(f"{target} is not empty: choose a new folder, or move that one away")
        self._total = sum(each.size for each in files.values())
        paths = StorePaths(target)
        target.mkdir(parents=True, exist_ok=True)
        AbortFile(DiskFiles(), paths).create()  # an interrupted restore is no clean store
        folders = {target}
        for name, each in files.items():
            source, path = self._backup / COPY / name, target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            folders.add(path.parent)
            try:
                found = source.stat().st_size
            except FileNotFoundError as error:
                raise StoreError(f"{source} is missing: this backup is damaged") from error
            digest = copy_file(source, path, found, self._told)
            if (found, digest) != (each.size, each.sha256):
                raise StoreError(f"{source} is not as it was written: this backup is damaged")
        for folder in folders:
            DiskFiles().sync_folder(folder)
        if manifest["stopped_cleanly"]:
            AbortFile(DiskFiles(), paths).remove()
        return {
            "backup": str(self._backup),
            "target": str(target),
            "began_ms": manifest["began_ms"],
            "ended_ms": manifest["ended_ms"],
            "stopped_cleanly": manifest["stopped_cleanly"],
            "log": manifest["log"],
            "files": len(files),
            "bytes": self._size,
        }

    def _told(self, size: int) -> None:
        self._size += size
        self._progress("restoring", self._size, self._total)


def backup_lines(result: dict[str, Any]) -> list[str]:
    """Return what a person reads about a backup."""
    kept = f", {result['files_kept']} unchanged" if result["files_kept"] else ""
    lines = [
        f"backup     {result['target']}: {result['files']} files{kept}, "
        f"{size_text(result['bytes'])} copied",
        f"store      {result['source']}, as of {when(result['began_ms'])}",
        f"log        {result['log']['begin']} to {result['log']['end']}",
    ]
    if result["running"]:
        lines.append(f"           in use by {result['running']}: a start recovers the copy")
    return lines


def restore_lines(result: dict[str, Any]) -> list[str]:
    """Return what a person reads about a restored store."""
    lines = [
        f"store      {result['target']}: {result['files']} files, {size_text(result['bytes'])}",
        f"           as of {when(result['began_ms'])}; every file is as it was written",
    ]
    if not result["stopped_cleanly"]:
        lines.append("           copied while a broker ran: the first start recovers it")
    return lines


def _written_ends(log_files: list[Path]) -> dict[Path, int]:
    """Return where the last log files end that have something in them; the others are full.

    A copy ends there: a broker that writes faster than it is copied would leave a gap in it, of
    what came behind the copy's place and before the broker's.
    """
    ends: dict[Path, int] = {}
    for path in reversed(log_files):
        with suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
            ends[path] = 0
            for position in range((file.seek(0, os.SEEK_END) - 1) // _CHUNK * _CHUNK, -1, -_CHUNK):
                chunk = os.pread(file.fileno(), _CHUNK, position)
                if chunk != _ZEROS[: len(chunk)]:
                    ends[path] = position + len(chunk.rstrip(b"\0"))
                    return ends
    return ends


def copy_file(
    source: Path, target: Path, size: int, told: Callable[[int], None], end: int | None = None
) -> str:
    """Copy the first `size` bytes of a file, zeros as a hole, durably; return their SHA-256.

    Args:
        end: what is behind it counts as zeros.
    """
    digest = hashlib.sha256()
    with source.open("rb", buffering=0) as from_file, target.open("wb", buffering=0) as to_file:
        position = 0
        while position < size:
            chunk = from_file.read(min(_CHUNK, size - position))
            if not chunk:
                raise StoreError(f"{source} became shorter while it was copied: try again")
            if end is not None and position + len(chunk) > end:
                chunk = chunk[: max(0, end - position)].ljust(len(chunk), b"\0")
            digest.update(chunk)
            if chunk != _ZEROS[: len(chunk)]:
                write_whole(os.pwrite, to_file.fileno(), chunk, position, target)
            position += len(chunk)
            told(len(chunk))
        to_file.truncate(size)
        os.fsync(to_file.fileno())
    return digest.hexdigest()


def _read_manifest(path: Path) -> tuple[dict[str, Any], dict[str, Copied]]:
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        if manifest["format"] != FORMAT:
            raise StoreError(f"{path} has format {manifest['format']}; this version knows {FORMAT}")
        files = {name: Copied(**each) for name, each in manifest["files"].items()}
        for name in files:
            place = Path(name)
            if place.is_absolute() or ".." in place.parts or not place.parts:
                why = "is no file of a store: do not restore from it"
                raise StoreError(f"{path} names {name!r}, which {why}")
        return manifest, files
    except FileNotFoundError as error:
        why = "no backup, or one that was not finished: make it again"
        raise StoreError(f"{path} does not exist: {path.parent} is {why}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path} is damaged: {error!r}") from error


def _files_below(path: Path) -> Iterator[Path]:
    """Yield the files in a folder and below it, sorted; the path itself when it is a file."""
    if path.is_file():
        yield path
        return
    for folder, _, names in sorted(os.walk(path)):
        yield from (Path(folder, name) for name in sorted(names))


def _is_numbered(path: Path) -> bool:
    return is_file_name(path.name)


def _size_of(*folders: Path) -> int:
    """Return how many bytes the files in some folders have, each counted once."""
    size = 0
    for path in {path for folder in folders for path in _files_below(folder)}:
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size
