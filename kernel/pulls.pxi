# Pulls: the units that are wanted, and whether their records are sound.

cdef Py_ssize_t intact_size(
    const unsigned char* at, Py_ssize_t left, int64_t physical_offset, int64_t queue_offset,
    int64_t queue_id, bytes topic_part,
) except -1:
    """The size of a record that is sound and the one that is meant; 0 when it is not."""
    cdef Py_ssize_t size, body_at, topic_size = 0
    cdef int64_t body_size
    if left < RECORD_MIN:
        return 0
    size = load32(at)
    if size < RECORD_MIN or size > left or <uint32_t> load32(at + 4) != MESSAGE_MAGIC:
        return 0
    body_at = FIXED_SIZE + IPV6_EXTRA * ((at[39] >> 4 & 1) + (at[39] >> 5 & 1))
    if size < body_at + LENGTHS_SIZE or load64(at + 28) != physical_offset:
        return 0
    body_size = load32(at + body_at - 4)
    if not 0 <= body_size <= size - LENGTHS_SIZE - body_at:
        return 0
    if topic_part is not None:
        topic_size = PyBytes_GET_SIZE(topic_part)
        if (
            load64(at + 20) != queue_offset or load32(at + 12) != queue_id
            or topic_size > left - body_at - body_size
            or memcmp(at + body_at + body_size, PyBytes_AS_STRING(topic_part), topic_size) != 0
        ):
            return 0
    return size if crc_of(at + body_at, body_size) & 0x7FFFFFFF == <uint32_t> load32(at + 8) else 0


def is_intact(
    object buffer, Py_ssize_t position, Py_ssize_t size, int64_t physical_offset,
    int64_t queue_offset, tuple owner,
):
    """`record.is_intact`."""
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or size < RECORD_MIN or size > view.len - position:
            return False
        return size == intact_size(
            <const unsigned char*> view.buf + position, view.len - position, physical_offset,
            queue_offset, 0 if owner is None else owner[0], None if owner is None else owner[1],
        )
    finally:
        PyBuffer_Release(&view)


def intact_count(
    object buffer, Py_ssize_t position, Py_ssize_t end, int64_t physical_offset,
    int64_t queue_offset, tuple owner not None,
):
    """`record.intact_count`."""
    cdef Py_buffer view
    cdef Py_ssize_t size, count = 0
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or end > view.len:
            return -1
        while position < end:
            size = intact_size(
                <const unsigned char*> view.buf + position, end - position,
                physical_offset, queue_offset + count, owner[0], owner[1],
            )
            if not size:
                return -1
            position += size
            physical_offset += size
            count += 1
        return count
    finally:
        PyBuffer_Release(&view)


def take_units(bytes units, object matches, Py_ssize_t count_max, int64_t size_max):
    """`message_reader.take_units`."""
    cdef const unsigned char* at = <const unsigned char*> PyBytes_AS_STRING(units)
    cdef Py_ssize_t unit_count = PyBytes_GET_SIZE(units) // UNIT_SIZE
    cdef Py_ssize_t scanned = 0, count = 0, place = 0
    cdef int64_t start = -1, end = -1, size = 0, commit_offset, tags_code
    cdef int32_t record_size
    cdef list runs = []
    while scanned < unit_count:
        commit_offset, record_size = load64(at), load32(at + 8)
        if count and (count >= count_max or size + record_size > size_max):
            break
        scanned += 1
        tags_code = load64(at + 12)
        at += UNIT_SIZE
        if matches is None or tags_code <= ADDRESS_MAX or matches(tags_code):
            if commit_offset != end:
                if count:
                    runs.append((start, end, place))
                start, place = commit_offset, scanned - 1
            end = commit_offset + record_size
            count += 1
            size += record_size
    if count:
        runs.append((start, end, place))
    return runs, scanned, count, size
