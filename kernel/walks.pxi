# Records that follow each other in the log, for recovery and for a slave.

cdef enum:
    RUN_MAX = 256
    IPV6_HOSTS = 0x30
    TRANSACTION_COMMIT = 0x8


cdef struct Walked:  # a sound record without IPv6 hosts
    Py_ssize_t size
    const unsigned char* topic
    Py_ssize_t topic_size
    const unsigned char* properties
    Py_ssize_t properties_size


cdef struct Follower:  # which queue has the run of the same number
    const unsigned char* topic
    Py_ssize_t topic_size
    int32_t queue_id


cdef bint is_sound(
    const unsigned char* at, Py_ssize_t left, int64_t offset, bint check_crc, Walked* found
) except -1:
    """Whether such a record stands whole in `left` bytes, for that offset; if so, it is `found`."""
    cdef Py_ssize_t size, body_size, topic_size, properties_size
    cdef const unsigned char* tail
    if left < RECORD_MIN:
        return False
    size, body_size = <int32_t> load32(at), <int32_t> load32(at + 84)
    if (
        <uint32_t> load32(at + 4) != MESSAGE_MAGIC
        or <int64_t> load64(at + PHYSICAL_OFFSET_AT) != offset
        or size < RECORD_MIN
        or size > left
        or body_size < 0
        or body_size > size - RECORD_MIN
        or <uint32_t> load32(at + 36) & IPV6_HOSTS
    ):
        return False
    tail = at + FIXED_SIZE + body_size
    topic_size = tail[0]
    properties_size = size - RECORD_MIN - body_size - topic_size
    if topic_size > TOPIC_MAX or properties_size < 0:
        return False
    if (tail[1 + topic_size] << 8 | tail[2 + topic_size]) != properties_size:
        return False
    found.size = size
    found.topic, found.topic_size = tail + 1, topic_size
    found.properties, found.properties_size = tail + 3 + topic_size, properties_size
    return not check_crc or (
        crc_of(at + FIXED_SIZE, body_size) & 0x7FFFFFFF == <uint32_t> load32(at + 8)
        and memchr(found.topic, 0, topic_size) == NULL
        and memchr(found.properties, 0, properties_size) == NULL
    )


def plain_records(
    bytes data not None, Py_ssize_t position, Py_ssize_t end, int64_t base, bint check_crc
):
    """Return the sound records without IPv6 hosts from a position on, at most RUN_MAX."""
    cdef const unsigned char* begin = <const unsigned char*> PyBytes_AS_STRING(data)
    cdef const unsigned char* at
    cdef Walked found
    cdef list records = []
    end = min(end, PyBytes_GET_SIZE(data))
    if position < 0:
        return records
    while len(records) < RUN_MAX:
        at = begin + position
        if not is_sound(at, end - position, base + position, check_crc, &found):
            break
        records.append((
            base + position,
            found.size,
            <int32_t> load32(at + 12),
            <int64_t> load64(at + 20),
            <int32_t> load32(at + 36),
            <int64_t> load64(at + 56),
            PyBytes_FromStringAndSize(<const char*> found.topic, found.topic_size),
            PyBytes_FromStringAndSize(<const char*> found.properties, found.properties_size),
        ))
        position += found.size
    return records


def next_units(
    bytes data not None, Py_ssize_t position, Py_ssize_t end, int64_t base, dict queues not None,
    units not None,
):
    """`received.next_units`."""
    cdef const unsigned char* begin = <const unsigned char*> PyBytes_AS_STRING(data)
    cdef const unsigned char* at
    cdef Walked found
    cdef Follower followers[RUNS_MAX]
    cdef Packed packed
    cdef Run* run
    cdef int64_t timestamp, newest = 0
    cdef int32_t kind
    end = min(end, PyBytes_GET_SIZE(data))
    try:
        begin_packing(&packed)
        while 0 <= position:
            at = begin + position
            if not is_sound(at, end - position, base + position, True, &found):
                break
            kind = load32(at + 36) & TRANSACTION_BITS
            if kind != 0 and kind != TRANSACTION_COMMIT:
                break
            if packed.run_count == RUNS_MAX:
                let_go(&packed, units)
            run = run_of(queues, followers, &packed, load32(at + 12), &found)
            if run == NULL or load64(at + 20) != run.first + run.count:
                break
            timestamp = load64(at + 56)
            pack(
                &packed, run, base + position, found.size, found.properties, found.properties_size,
                timestamp,
            )
            newest = max(newest, timestamp)
            position += found.size
        let_go(&packed, units)
    finally:
        end_packing(&packed)
    return position, newest


cdef Run* run_of(
    dict queues, Follower* followers, Packed* packed, int32_t queue_id, Walked* found
) except? NULL:
    """The run of a record's queue, looked up once; there is room for it. NULL when it has none."""
    cdef Follower* follower
    cdef Py_ssize_t at
    for at in range(packed.run_count):
        follower = followers + at
        if (
            follower.queue_id == queue_id
            and follower.topic_size == found.topic_size
            and memcmp(follower.topic, found.topic, found.topic_size) == 0
        ):
            return packed.runs + at
    topic = PyBytes_FromStringAndSize(<const char*> found.topic, found.topic_size)
    queue = queues.get((topic, queue_id))
    if queue is None or queue.removed:
        return NULL
    follower = followers + packed.run_count
    follower.topic, follower.topic_size = found.topic, found.topic_size
    follower.queue_id = queue_id
    return add_run(packed, queue, found.topic, found.topic_size)


cdef int let_go(Packed* packed, object units) except -1:
    """Tell queues what their next records are, and hand over what they got."""
    cdef Py_ssize_t at
    cdef Run* run
    for at in range(packed.run_count):
        run = packed.runs + at
        (<object> run.queue).next_offset = run.first + run.count
    return hand_over(packed, units)
