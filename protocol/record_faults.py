"""What stands in the log where no sound record does: the end, nothing, a torn write, damage.

A disk writes sectors of 512 bytes whole, and after a crash each sector of what was not yet synced
holds either the new bytes or what was there before, in a new file zeros. So a record that does not
add up and has a sector of zeros was torn by a crash; one without any was damaged, and recovery
must not take it for the end of the log in silence. `record.read_record` calls these only when its
quick way failed.
"""

from typing import Final

from skylarkmq.protocol.record_layout import (
    BLANK_MAGIC,
    FIXED_IPV4_SIZE,
    HEAD,
    HOSTS_MASK,
    HOSTS_SHIFT,
    LENGTHS_SIZE,
    MESSAGE_MAGIC,
    MIN_BLANK_SIZE,
    MIN_RECORD_SIZE,
    SYS_FLAG_POSITION,
    VIEW_BY_HOSTS,
    RecordStatus,
    RecordView,
)

SECTOR_SIZE: Final = 512

_MIN_FRONT_SIZE: Final = 4
_UNWRITTEN: Final = RecordView(RecordStatus.UNWRITTEN, 0, "nothing was written here")


def read_no_message(buffer: memoryview | bytes, position: int, end: int) -> RecordView:
    """Return what stands at `position` when no whole message can: its head says what it is."""
    remaining = end - position
    if remaining < HEAD.size:
        if not any(bytes(buffer[position:end])):
            return _UNWRITTEN
        return RecordView(RecordStatus.TORN, 0, f"only {remaining} bytes are left")
    size, magic = HEAD.unpack_from(buffer, position)
    if magic == MESSAGE_MAGIC:
        return _read_long_message(buffer, position, end, size)
    if magic == BLANK_MAGIC and size >= MIN_BLANK_SIZE:
        if size <= remaining:
            return RecordView(RecordStatus.BLANK, size)
        return RecordView(
            RecordStatus.TORN, size, f"a blank of {size} bytes, but {remaining} are left"
        )
    if magic == 0 and size == 0:
        return _UNWRITTEN
    why = f"no record has magic {magic & 0xFFFFFFFF:#010x} and size {size}"
    return _fault(has_lost_sector(buffer, position, position + HEAD.size, end), why)


def failed_message(
    buffer: memoryview | bytes,
    position: int,
    end: int,
    why: str,
    view: RecordView | None = None,
) -> RecordView:
    """Return the fault of a record that has a message's magic and does not add up.

    Args:
        view: what was read of it, where its sizes agree.
    """
    size, _ = HEAD.unpack_from(buffer, position)
    stop = min(position + max(size, MIN_RECORD_SIZE), end)
    return _fault(has_lost_sector(buffer, position, stop, end), why, view)


def misplaced_message(
    buffer: memoryview | bytes, position: int, end: int, expected: int, view: RecordView
) -> RecordView:
    """Return the fault of a record that names another place: a leftover, or its head is torn."""
    why = f"it says physical offset {view.physical_offset}, but lies at {expected}"
    return _fault(has_lost_sector(buffer, position, position + FIXED_IPV4_SIZE, end), why, view)


def suspicious_message(
    buffer: memoryview | bytes, tail_position: int, stop: int, end: int, view: RecordView
) -> RecordView:
    """Return the fault of a record with zeros in its topic or properties, or else the record.

    The body's checksum does not cover them, and their lengths stand in front of them: without the
    sectors that hold the rest of it such a record looks whole. The broker takes no zeros in
    properties, so the record was torn when a sector of it is all zeros, or when it ends in zeros
    and nothing follows: a short write may stop at any byte.
    """
    behind = bytes(buffer[stop - 1 : min(stop - stop % -SECTOR_SIZE, end)])
    if has_lost_sector(buffer, tail_position, stop, end) or not any(behind):
        return _fault(True, "topic or properties did not reach the disk", view)
    return view


def has_lost_sector(buffer: memoryview | bytes, start: int, stop: int, end: int) -> bool:
    """Return whether a sector under [start, stop) never reached the disk: it is all zeros.

    Of the first one only the bytes from `start` on count, because earlier records share it; fewer
    than 4 of them say nothing, for they may well be the zeros of a size. The last one is looked at
    whole, up to `end`, because records behind share its fate.
    """
    boundary = start - start % SECTOR_SIZE + SECTOR_SIZE
    front = bytes(buffer[start : min(boundary, end)])
    if len(front) >= _MIN_FRONT_SIZE and not any(front):
        return True
    for sector in range(boundary, stop, SECTOR_SIZE):
        held = bytes(buffer[sector : min(sector + SECTOR_SIZE, end)])
        if held == bytes(len(held)):
            return True
    return False


def _read_long_message(
    buffer: memoryview | bytes, position: int, end: int, size: int
) -> RecordView:
    """Return the fault of a message that ends behind `end`, or is shorter than any message."""
    remaining = end - position
    if size <= remaining:
        return failed_message(buffer, position, end, "the record is shorter than its fixed fields")
    if size < MIN_RECORD_SIZE or _contradicts_itself(buffer, position, end, size):
        return failed_message(
            buffer, position, end, f"the record claims {size} bytes, its parts have another sum"
        )
    why = f"the record has {size} bytes, but {remaining} are left"
    return RecordView(RecordStatus.TORN, size, why)


def _contradicts_itself(buffer: memoryview | bytes, position: int, end: int, size: int) -> bool:
    """Return whether the inner lengths, as far as one sees, forbid a record of `size` bytes."""
    if end - position < FIXED_IPV4_SIZE:
        return False
    sys_flag = buffer[position + SYS_FLAG_POSITION + 3]
    layout = VIEW_BY_HOSTS[(sys_flag >> HOSTS_SHIFT) & HOSTS_MASK]
    if end - position < layout.size:
        return False
    body_size: int = layout.unpack_from(buffer, position)[-1]
    rest_size = size - layout.size - body_size - LENGTHS_SIZE
    if body_size < 0 or rest_size < 0:
        return True
    topic_position = position + layout.size + body_size
    if topic_position >= end:
        return False
    topic_size = buffer[topic_position]
    if topic_size > rest_size:
        return True
    properties_position = topic_position + topic_size + LENGTHS_SIZE
    if properties_position > end:
        return False
    high, low = buffer[properties_position - 2], buffer[properties_position - 1]
    return (high << 8 | low) != rest_size - topic_size


def _fault(torn: bool, why: str, view: RecordView | None = None) -> RecordView:
    status = RecordStatus.TORN if torn else RecordStatus.CORRUPT
    if view is None:
        return RecordView(status, 0, why)
    return view._replace(status=status, why=why)
