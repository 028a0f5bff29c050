"""A stopped store, opened for reading: its files, their sizes, and what stands in them.

Unlike the broker's own loading it changes nothing and refuses nothing: a file of another size, a
foreign name or a missing file is for `verify` to tell. Everything is read by `pread`, past what the
disk cannot read, and pieces of it are kept in a bounded cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from skylarkmq.common.errors import CorruptFileError, StoreError
from skylarkmq.common.files import StoreFile
from skylarkmq.common.read_only_files import ReadOnlyFiles
from skylarkmq.common.sidecar import Kind, read_sidecar
from skylarkmq.protocol.record import RecordStatus, RecordView
from skylarkmq.store.checkpoint import UNKNOWN, Checkpoint, Marks
from skylarkmq.store.folder import StorePaths
from skylarkmq.store.index.file import IndexFile, IndexShape
from skylarkmq.store.log.flushed_offset import FlushedOffset
from skylarkmq.store.log.mapped_file import first_written, is_file_name
from skylarkmq.store.queue.consume_queue import UNIT, UNIT_SIZE, is_valid_unit
from skylarkmq.store.queue.extension import EXT_UNIT_MAX, LONG_MIN, is_address, tags_code_at
from skylarkmq.store.queue.topic_removal import RemovedTopics
from skylarkmq.store.results import ConsumeQueueUnit
from skylarkmq.store.stopped.segments import Look, SegmentFile
from skylarkmq.store.stopped.shapes import (
    EXT_SIZE,
    INDEX_SHAPE,
    LOG_SIZE,
    QUEUE_SIZE,
    Sizes,
    shape_of,
    usual,
)

PIECE_SIZE: Final = 1024 * UNIT_SIZE
_PIECES_MAX: Final = 1024
_QUEUE_ID_DIGITS_MAX: Final = 9

QueueKey = tuple[str, int]


class NumberedFile(NamedTuple):
    """A file named after the byte offset of its first byte: of the log, a queue, an extension."""

    path: Path
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass(slots=True)
class QueueFolder:
    """The files of one consume queue and of its extension, each in order."""

    topic: str
    queue_id: int
    files: list[NumberedFile]
    ext_files: list[NumberedFile] = field(default_factory=list[NumberedFile])


class StoppedStore:
    """Reads one store. Blocks; any one thread.

    Its size is one idea: a method is one thing to read of a store, and hardly anything is kept.
    """

    def __init__(
        self,
        root: Path,
        files: ReadOnlyFiles | None = None,
        *,
        commit_log: Path | None = None,
        index_shape: IndexShape | None = None,
    ) -> None:
        """Look at the folder.

        Raises:
            StoreError: there is no such folder, or nothing of a store in it.
        """
        self.files = files or ReadOnlyFiles(patient=True)
        self.paths = StorePaths(root, commit_log)
        self._pieces: OrderedDict[tuple[Path, int], bytes] = OrderedDict()
        self._index_shape = index_shape
        if not self.files.is_folder(root):
            raise StoreError(f"{root} is not a folder")
        known = ("consumequeue", "index", "checkpoint", "config")
        if not self.files.exists(self.paths.commit_log) and not any(
            self.files.exists(root / name) for name in known
        ):
            raise StoreError(f"{root} holds no store: there is no folder commitlog in it")

    def refresh(self) -> None:
        """Look at the folder anew, after files were changed; the sizes stay as they were known."""
        assert self.sizes
        self._pieces.clear()
        for name in ("log_files", "queues", "index_names", "marks", "flushed_offset", "removed"):
            self.__dict__.pop(name, None)

    # Files

    @contextmanager
    def opened(self, path: Path) -> Generator[StoreFile]:
        """Open a file of the store."""
        file = self.files.open(path)
        try:
            yield file
        finally:
            file.close()

    @contextmanager
    def opened_log(self, file: NumberedFile) -> Generator[SegmentFile]:
        """Open a log file."""
        with self.opened(file.path) as opened:
            yield SegmentFile(opened, file.start)

    def read(self, path: Path, size: int, position: int = 0) -> bytes:
        """Return bytes of a file, fewer where it ends; those of one piece are kept."""
        number, within = divmod(position, PIECE_SIZE)
        if within + size > PIECE_SIZE:
            with self.opened(path) as file:
                return file.pread(size, position)
        piece = self._pieces.get((path, number))
        if piece is None:
            with self.opened(path) as file:
                piece = file.pread(PIECE_SIZE, number * PIECE_SIZE)
            self._pieces[path, number] = piece
            if len(self._pieces) > _PIECES_MAX:
                self._pieces.popitem(last=False)
        return piece[within : within + size]

    def first_written(self, path: Path, position: int) -> int | None:
        """Place in a file of the first byte from `position` on that is not zero."""
        with self.opened(path) as file:
            return first_written(file, position)

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, none when it is no folder."""
        return self.files.list(folder) if self.files.is_folder(folder) else []

    def numbered(self, folder: Path) -> list[NumberedFile]:
        """Return the files of a folder whose names are 20 digits, in order."""
        return [
            NumberedFile(folder / name, int(name), self.files.size(folder / name))
            for name in self.names(folder)
            if is_file_name(name)
        ]

    @cached_property
    def profile(self) -> dict[str, Any]:
        """What our profile remembers; empty without one, or when it is damaged."""
        try:
            path = self.paths.profile
            return read_sidecar(self.files, path, Kind.PROFILE, dict[str, Any]) or {}
        except CorruptFileError:
            return {}

    @cached_property
    def sizes(self) -> Sizes:
        """The sizes that files of each kind should have."""
        origin: dict[str, str] = {}

        def pick(name: str, key: str, files: list[int], default: int) -> int:
            known = self.profile.get(key)
            size = known if isinstance(known, int) else usual(files)
            origin[name] = "profile" if isinstance(known, int) else "files" if size else "default"
            return size or default

        queues = self.queues.values()
        sizes = Sizes(
            pick("log", "mappedFileSizeCommitLog", [f.size for f in self.log_files], LOG_SIZE),
            pick(
                "queue",
                "mappedFileSizeConsumeQueue",
                [file.size for queue in queues for file in queue.files],
                QUEUE_SIZE,
            ),
            pick(
                "ext",
                "mappedFileSizeConsumeQueueExt",
                [file.size for queue in queues for file in queue.ext_files],
                EXT_SIZE,
            ),
            None,
            origin,
        )
        sizes.index, origin["index"] = self._shape()
        return sizes

    def _shape(self) -> tuple[IndexShape | None, str]:
        slots, items = self.profile.get("maxHashSlotNum"), self.profile.get("maxIndexNum")
        if self._index_shape is not None:
            return self._index_shape, "option"
        if isinstance(slots, int) and isinstance(items, int):
            return IndexShape(slots, items), "profile"
        for name in self.index_names:
            with self.opened(self.paths.index / name) as file:
                shape = shape_of(file)
            if shape is not None:
                return shape, "files"
        return (None, "unknown") if self.index_names else (INDEX_SHAPE, "default")

    # The log

    @cached_property
    def log_files(self) -> list[NumberedFile]:
        return self.numbered(self.paths.commit_log)

    @property
    def min_offset(self) -> int:
        """Where the log begins, 0 without files."""
        return self.log_files[0].start if self.log_files else 0

    def log_file_at(self, offset: int) -> NumberedFile | None:
        """Return the log file that holds the byte at `offset`."""
        files = self.log_files
        low, high = 0, len(files)
        while low < high:
            middle = (low + high) // 2
            if files[middle].end <= offset:
                low = middle + 1
            else:
                high = middle
        return files[low] if low < len(files) and files[low].start <= offset else None

    def look_at(self, offset: int, *, check_crc: bool = True) -> Look | None:
        """Return what stands at a physical offset, with its bytes; None where no file is."""
        file = self.log_file_at(offset)
        if file is None:
            return None
        with self.opened_log(file) as opened:
            return opened.look(offset - file.start, check_crc=check_crc)

    def record_at(self, offset: int, *, check_crc: bool = True) -> RecordView | None:
        """Return what stands at a physical offset; None where no file is."""
        look = self.look_at(offset, check_crc=check_crc)
        return None if look is None else look.record

    def message_bytes(self, offset: int) -> bytes | None:
        """Return the whole record of a sound message, None when there is none."""
        file, look = self.log_file_at(offset), self.look_at(offset)
        if file is None or look is None or look.record.status is not RecordStatus.MESSAGE:
            return None
        return look.bytes_at(offset - file.start, look.record.size)

    # Queues

    @cached_property
    def queues(self) -> dict[QueueKey, QueueFolder]:
        """All queues that have a folder, by topic and queue id."""
        found: dict[QueueKey, QueueFolder] = {}
        for topic in self.names(self.paths.consume_queue):
            for name in self.names(self.paths.consume_queue / topic):
                if is_queue_id(name):
                    files = self.numbered(self.paths.consume_queue / topic / name)
                    ext = self.numbered(self.paths.consume_queue_ext / topic / name)
                    found[topic, int(name)] = QueueFolder(topic, int(name), files, ext)
        return dict(sorted(found.items()))

    def bounds(self, queue: QueueFolder) -> tuple[int, int]:
        """Return the first and the next queue offset by the files; the last ones may be empty."""
        if not queue.files:
            return 0, 0
        first = queue.files[0].start // UNIT_SIZE
        for file in reversed(queue.files):
            count = self._valid_units(file)
            if count:
                return first, file.start // UNIT_SIZE + count
        return first, first

    def _valid_units(self, file: NumberedFile) -> int:
        count = 0
        while data := self.read(file.path, PIECE_SIZE, count * UNIT_SIZE):
            for offset, size, _ in UNIT.iter_unpack(data[: len(data) // UNIT_SIZE * UNIT_SIZE]):
                if not is_valid_unit(offset, size):
                    return count
                count += 1
            if len(data) < PIECE_SIZE:
                break
        return count

    def unit(self, queue: QueueFolder, queue_offset: int) -> ConsumeQueueUnit | None:
        """Return a unit as it stands in the file, None where no file is."""
        place = self.unit_place(queue, queue_offset)
        if place is None:
            return None
        return ConsumeQueueUnit(*UNIT.unpack(self.read(place[0].path, UNIT_SIZE, place[1])))

    def unit_place(self, queue: QueueFolder, queue_offset: int) -> tuple[NumberedFile, int] | None:
        """Return the file of a unit and its byte position there."""
        position = queue_offset * UNIT_SIZE
        files = queue.files
        if not files or position < files[0].start:
            return None
        guess = (position - files[0].start) // max(files[0].size, 1)
        for file in files[guess : guess + 1]:
            if file.start <= position and position + UNIT_SIZE <= file.end:
                return file, position - file.start
        for file in files:  # some have another size, or are missing
            if file.start <= position and position + UNIT_SIZE <= file.end:
                return file, position - file.start
        return None

    def units(
        self, queue: QueueFolder, start: int, stop: int
    ) -> Iterator[tuple[int, ConsumeQueueUnit]]:
        """Yield queue offsets and units from `start` up to below `stop`, where files hold them."""
        for file in queue.files:
            first = max(start, file.start // UNIT_SIZE)
            last = min(stop, file.end // UNIT_SIZE)
            while first < last:
                begin = first * UNIT_SIZE - file.start
                size = min((last - first) * UNIT_SIZE, PIECE_SIZE)
                part = self.read(file.path, size, begin)
                for queue_offset, unit in enumerate(UNIT.iter_unpack(part), first):
                    yield queue_offset, ConsumeQueueUnit(*unit)
                first += size // UNIT_SIZE

    def tags_code(self, queue: QueueFolder, unit: ConsumeQueueUnit) -> int | None:
        """Return a unit's tags code, also from the extension; None when that does not have it."""
        if not is_address(unit.tags_code):
            return unit.tags_code
        position = unit.tags_code - LONG_MIN
        for file in queue.ext_files:
            if file.start <= position < file.end:
                data = self.read(file.path, EXT_UNIT_MAX, position - file.start)
                return tags_code_at(data, 0)
        return None

    # Index, marks

    @cached_property
    def index_names(self) -> list[str]:
        """Names of the index files, oldest first: RocketMQ takes each that is a number."""
        names = self.names(self.paths.index)
        return [name for name in names if name.isascii() and name.isdigit()]

    def index_file(self, name: str) -> IndexFile:
        """Return one index file, with its header.

        Raises:
            CorruptFileError: its size is not that of the store's index files.
        """
        path = self.paths.index / name
        shape, size = self.sizes.index, self.files.size(path)
        if shape is None:
            raise CorruptFileError(path, 0, "nothing tells how many slots it has")
        if shape.file_size != size:
            raise CorruptFileError(path, size, f"it should have {shape.file_size} bytes")
        return IndexFile.open(self.files, path, shape)

    @cached_property
    def marks(self) -> Marks:
        """What the checkpoint says."""
        return Checkpoint(self.files, self.paths.checkpoint, self.paths.recovery_point).load()

    @cached_property
    def flushed_offset(self) -> int:
        """What our last run has said of its syncs; -1 where it counts for nothing."""
        if self.marks.commit_log_offset == UNKNOWN:
            return UNKNOWN
        return FlushedOffset(self.files, self.paths.flushed_offset).load()

    @cached_property
    def removed(self) -> RemovedTopics:
        """Topics whose messages in the log count for nothing."""
        removed = RemovedTopics()
        removed.load(self.files, self.paths.removed_topics)
        return removed

    @property
    def is_unclean(self) -> bool:
        """True when the mark of a running broker is there: the last stop was not clean."""
        return self.files.exists(self.paths.abort)


def is_queue_id(name: str) -> bool:
    """Return whether a name is that of a queue's folder."""
    return name.isascii() and name.isdigit() and len(name) <= _QUEUE_ID_DIGITS_MAX
