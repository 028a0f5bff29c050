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


cdef enum:
    CODES_MAX = 16


cdef struct Wanted:
    PyObject* matches  # NULL: every message
    int64_t codes[CODES_MAX]  # what it matches, when these are all
    Py_ssize_t code_count


cdef struct Extent:  # records that are neighbours in the log
    int64_t start
    int64_t end
    Py_ssize_t place  # of the first one's unit


cdef struct Scan:
    Extent* extents  # room for as many as units may be taken
    Py_ssize_t extent_count
    int64_t first_start  # of the first unit's record
    Py_ssize_t scanned
    Py_ssize_t count
    Py_ssize_t count_max
    int64_t size
    int64_t size_max
    bint is_full


cdef int note_wanted(Wanted* wanted, object matches) except -1:
    """Note a filter; the test of a small set, which most of them are, is made without calls."""
    wanted.matches = NULL if matches is None else <PyObject*> matches
    wanted.code_count = 0
    codes = getattr(matches, "__self__", None)
    if type(codes) is frozenset and len(codes) <= CODES_MAX and matches == codes.__contains__:
        for code in codes:
            wanted.codes[wanted.code_count] = code
            wanted.code_count += 1
    return 0


cdef bint is_wanted(Wanted* wanted, int64_t tags_code) except -1:
    cdef Py_ssize_t place
    for place in range(wanted.code_count):
        if wanted.codes[place] == tags_code:
            return True
    return not wanted.code_count and (<object> wanted.matches)(tags_code)


cdef int scan_units(
    const unsigned char* at, Py_ssize_t unit_count, Wanted* wanted, Scan* scan
) except -1:
    """Go over units and take the wanted ones up to the limits, the first one whatever its size."""
    cdef Py_ssize_t place
    cdef int64_t start, end
    cdef int32_t size
    cdef Extent* extent = scan.extents + scan.extent_count - 1
    for place in range(unit_count):
        start, size = load64(at), load32(at + 8)
        if scan.count and (scan.count >= scan.count_max or scan.size + size > scan.size_max):
            scan.is_full = True
            break
        if (
            wanted.matches == NULL or load64(at + 12) <= ADDRESS_MAX
            or is_wanted(wanted, load64(at + 12))
        ):
            if not scan.count or start != extent.end:
                extent = scan.extents + scan.extent_count
                scan.extent_count += 1
                extent.start, extent.place = start, scan.scanned
            extent.end = start + size
            scan.count += 1
            scan.size += size
        scan.scanned += 1
        at += UNIT_SIZE
    return 0


def take_units(bytes units, object matches, Py_ssize_t count_max, int64_t size_max):
    """`message_reader.take_units`."""
    cdef Py_ssize_t unit_count = PyBytes_GET_SIZE(units) // UNIT_SIZE, place
    cdef Wanted wanted
    cdef Scan scan
    memset(&scan, 0, sizeof(Scan))
    scan.count_max, scan.size_max = count_max, size_max
    note_wanted(&wanted, matches)
    scan.extents = <Extent*> PyMem_Malloc((unit_count + 1) * sizeof(Extent))
    if scan.extents == NULL:
        raise MemoryError
    try:
        scan_units(
            <const unsigned char*> PyBytes_AS_STRING(units), unit_count, &wanted, &scan
        )
        runs = [
            (scan.extents[place].start, scan.extents[place].end, scan.extents[place].place)
            for place in range(scan.extent_count)
        ]
        return runs, scan.scanned, scan.count, scan.size
    finally:
        PyMem_Free(scan.extents)
