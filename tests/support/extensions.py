"""Extensions of queues, as RocketMQ writes them with `enableConsumeQueueExt`."""

from __future__ import annotations

from pathlib import Path

from skylarkmq.common.files import Files
from skylarkmq.store.queue.consume_queue import UNIT, UNIT_SIZE
from skylarkmq.store.queue.extension import EXT_UNIT, EXT_UNIT_SIZE, LONG_MIN

EXT_SIZE = 104  # five units without bitmaps, and room for the mark at the end


def extend(files: Files, root: Path, file_size: int = EXT_SIZE, bitmap: bytes = b"") -> None:
    """Move the tags codes of all units of a stopped store into extensions."""
    for topic in files.list(root / "consumequeue"):
        for queue_id in files.list(root / "consumequeue" / topic):
            place = Path(topic) / queue_id
            _extend(files, root / "consumequeue" / place, root / "consumequeue_ext" / place,
                    file_size, bitmap)  # fmt: skip


def _extend(files: Files, queue: Path, folder: Path, file_size: int, bitmap: bytes) -> None:
    data = bytearray()
    for name in files.list(queue):
        file = files.open(queue / name)
        for position in range(0, files.size(queue / name), UNIT_SIZE):
            offset, size, code = UNIT.unpack(file.pread(UNIT_SIZE, position))
            if size == 0 or size == 0x7FFFFFFF:
                continue
            unit = EXT_UNIT.pack(EXT_UNIT_SIZE + len(bitmap), code, 1, len(bitmap)) + bitmap
            room = file_size - len(data) % file_size
            if room - 4 < len(unit):
                data += b"\xff\xff".ljust(room, b"\0")
            file.pwrite(UNIT.pack(offset, size, len(data) + LONG_MIN), position)
            data += unit
        file.datasync()
        file.close()
    files.add_folder(folder)
    for start in range(0, len(data), file_size):
        made = files.open(folder / f"{start:020d}", create=True)
        made.pwrite(bytes(data[start : start + file_size]).ljust(file_size, b"\0"), 0)
        made.datasync()
        made.close()
    for made_folder in (folder, folder.parent, folder.parent.parent, folder.parent.parent.parent):
        files.sync_folder(made_folder)
