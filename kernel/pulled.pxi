# Pulled records, taken apart for a consumer.

def take_apart(bytes data not None, bint check_crc):
    """`record.take_apart`; None also for an IPv6 host."""
    cdef const unsigned char* at = <const unsigned char*> PyBytes_AS_STRING(data)
    cdef const unsigned char* tail
    cdef Py_ssize_t left = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t size, body_size, tail_size, topic_size, properties_size
    cdef uint32_t crc
    cdef const unsigned char* topic_at = NULL
    cdef Py_ssize_t last_topic_size = -1
    cdef str topic = None
    cdef bytes body, born_host = None, store_host = None
    cdef list records = []
    while left:
        if left < FIXED_SIZE or <uint32_t> load32(at + 4) != MESSAGE_MAGIC or at[39] & HOSTS_BITS:
            return None
        size, body_size = load32(at), load32(at + 84)
        if size > left or body_size < 0 or size - FIXED_SIZE - body_size < LENGTHS_SIZE:
            return None
        tail = at + FIXED_SIZE + body_size
        tail_size = size - FIXED_SIZE - body_size
        topic_size = tail[0]
        properties_size = tail_size - LENGTHS_SIZE - topic_size
        if (
            topic_size > TOPIC_MAX
            or properties_size < 0
            or <uint32_t> load16(tail + 1 + topic_size) != <uint32_t> properties_size
        ):
            return None
        body = PyBytes_FromStringAndSize(<const char*> at + FIXED_SIZE, body_size)
        crc = <uint32_t> load32(at + 8)
        if check_crc and (<uint32_t> crc_of(at + FIXED_SIZE, body_size) & 0x7FFFFFFF) != crc:
            return None
        # Neighbours mostly have these in common.
        if topic_size != last_topic_size or memcmp(tail + 1, topic_at, topic_size) != 0:
            topic = PyUnicode_DecodeUTF8(<const char*> tail + 1, topic_size, "replace")
            topic_at, last_topic_size = tail + 1, topic_size
        born_host = host_at(at + 48, born_host)
        store_host = host_at(at + 64, store_host)
        records.append(
            (
                topic, load32(at + 12), load32(at + 16), load64(at + 20), load64(at + 28),
                load32(at + 36), load64(at + 40), born_host, load64(at + 56), store_host,
                load32(at + 72), load64(at + 76), body,
                PyUnicode_DecodeUTF8(
                    <const char*> tail + LENGTHS_SIZE + topic_size, properties_size, "replace"
                ),
                <int32_t> crc, size,
            )
        )
        at += size
        left -= size
    return records


cdef inline bytes host_at(const unsigned char* at, bytes last):
    """A host's 8 bytes: `last`, when it is the same."""
    if last is not None and memcmp(at, PyBytes_AS_STRING(last), HOST_SIZE) == 0:
        return last
    return PyBytes_FromStringAndSize(<const char*> at, HOST_SIZE)


def hop(bytes records not None):
    """`ranges.hop`."""
    cdef const unsigned char* begin = <const unsigned char*> PyBytes_AS_STRING(records)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(records), position = 0, last = 0, count = 0, size
    while end - position >= RECORD_MIN:
        size = load32(begin + position)
        if size < RECORD_MIN or size > end - position:
            break
        last = position
        position += size
        count += 1
    return count, last, position
