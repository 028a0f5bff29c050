# Records that follow each other in the log, for recovery and for a slave.

cdef enum:
    RUN_MAX = 256
    IPV6_HOSTS = 0x30


def plain_records(
    bytes data not None, Py_ssize_t position, Py_ssize_t end, int64_t base, bint check_crc
):
    """Return the sound records without IPv6 hosts from a position on, at most RUN_MAX."""
    cdef const unsigned char* begin = <const unsigned char*> PyBytes_AS_STRING(data)
    cdef const unsigned char* at
    cdef const unsigned char* tail
    cdef Py_ssize_t size, body_size, topic_size, properties_size, left
    cdef uint32_t sys_flag
    cdef int count = 0
    cdef list records = []
    end = min(end, PyBytes_GET_SIZE(data))
    if position < 0:
        return records
    while count < RUN_MAX and end - position >= RECORD_MIN:
        at = begin + position
        size, body_size = <int32_t> load32(at), <int32_t> load32(at + 84)
        sys_flag = <uint32_t> load32(at + 36)
        if (
            <uint32_t> load32(at + 4) != MESSAGE_MAGIC
            or <int64_t> load64(at + PHYSICAL_OFFSET_AT) != base + position
            or size < RECORD_MIN
            or size > end - position
            or body_size < 0
            or body_size > size - RECORD_MIN
            or sys_flag & IPV6_HOSTS
        ):
            break
        tail = at + FIXED_SIZE + body_size
        topic_size = tail[0]
        left = size - RECORD_MIN - body_size - topic_size
        if topic_size > TOPIC_MAX or left < 0:
            break
        properties_size = tail[1 + topic_size] << 8 | tail[2 + topic_size]
        if properties_size != left:
            break
        if check_crc and (
            crc_of(at + FIXED_SIZE, body_size) & 0x7FFFFFFF != <uint32_t> load32(at + 8)
            or memchr(tail + 1, 0, topic_size) != NULL
            or memchr(tail + 3 + topic_size, 0, properties_size) != NULL
        ):
            break
        records.append((
            base + position,
            size,
            <int32_t> load32(at + 12),
            <int64_t> load64(at + 20),
            <int32_t> sys_flag,
            <int64_t> load64(at + 56),
            PyBytes_FromStringAndSize(<const char*> tail + 1, topic_size),
            PyBytes_FromStringAndSize(<const char*> tail + 3 + topic_size, properties_size),
        ))
        position += size
        count += 1
    return records
