# Records: their checksum, and the batches of a send.

cdef uint32_t crc_tables[8][256]


cdef void make_crc_tables() noexcept nogil:
    cdef uint32_t value
    cdef int at, bit, table
    for at in range(256):
        value = at
        for bit in range(8):
            value = value >> 1 ^ (0xEDB88320u if value & 1 else 0)
        crc_tables[0][at] = value
    for table in range(1, 8):
        for at in range(256):
            value = crc_tables[table - 1][at]
            crc_tables[table][at] = value >> 8 ^ crc_tables[0][value & 0xFF]


make_crc_tables()


cdef int64_t crc_of(const unsigned char* at, Py_ssize_t size) except -1:
    """CRC-32. zlib is quicker over much, but to call it takes as long as some 300 bytes."""
    cdef uint32_t crc = 0xFFFFFFFFu
    if size > CRC_SIZE_MAX:
        return <int64_t> crc32(PyMemoryView_FromMemory(<char*> at, size, PyBUF_READ))
    while size >= 8:  # eight bytes at a time, each through a table of its own
        crc ^= <uint32_t> at[0] | <uint32_t> at[1] << 8 | <uint32_t> at[2] << 16 \
            | <uint32_t> at[3] << 24
        crc = crc_tables[7][crc & 0xFF] ^ crc_tables[6][crc >> 8 & 0xFF] \
            ^ crc_tables[5][crc >> 16 & 0xFF] ^ crc_tables[4][crc >> 24] \
            ^ crc_tables[3][at[4]] ^ crc_tables[2][at[5]] \
            ^ crc_tables[1][at[6]] ^ crc_tables[0][at[7]]
        at += 8
        size -= 8
    while size:
        crc = crc >> 8 ^ crc_tables[0][(crc ^ at[0]) & 0xFF]
        at += 1
        size -= 1
    return crc ^ 0xFFFFFFFFu


cdef unsigned char* lay_out(
    unsigned char* out, Py_ssize_t size, int32_t queue_id, int32_t flag, int64_t queue_offset,
    int64_t physical_offset, int32_t sys_flag, int64_t born_timestamp, bytes born_host,
    int64_t store_timestamp, bytes store_host, int32_t reconsume_times, const unsigned char* body,
    Py_ssize_t body_size, bytes topic, Py_ssize_t properties_size,
) except NULL:
    """Write a record up to its properties, and return where these go; hosts have 8 bytes."""
    cdef uint32_t crc = crc_of(body, body_size)
    store32(out, <uint32_t> size)
    store32(out + 4, MESSAGE_MAGIC)
    store32(out + 8, crc & 0x7FFFFFFF)
    store32(out + 12, queue_id)
    store32(out + 16, flag)
    store64(out + 20, queue_offset)
    store64(out + 28, physical_offset)
    store32(out + 36, sys_flag)
    store64(out + 40, born_timestamp)
    memcpy(out + 48, PyBytes_AS_STRING(born_host), HOST_SIZE)
    store64(out + 56, store_timestamp)
    memcpy(out + 64, PyBytes_AS_STRING(store_host), HOST_SIZE)
    store32(out + 72, reconsume_times)
    store64(out + 76, 0)
    store32(out + 84, <uint32_t> body_size)
    out += FIXED_SIZE
    memcpy(out, body, body_size)
    out += body_size
    memcpy(out, PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))
    out += PyBytes_GET_SIZE(topic)
    store16(out, <uint32_t> properties_size)
    return out + 2


cdef bint is_plain(const unsigned char* text, Py_ssize_t size) noexcept nogil:
    """Whether nothing in encoded properties asks for more than storing the message."""
    cdef const unsigned char* end = text + size
    while text < end:
        if text[0] == 0:
            return False
        if text[0] == c'T':
            if begins(text, end, TIMER, TIMER_SIZE):
                return False
            if begins(text, end, TRANSACTION, TRANSACTION_SIZE):
                return False
        elif text[0] == c'D':
            if begins(text, end, DELAY, DELAY_SIZE):
                return False
        elif text[0] == c'C' and begins(text, end, CLUSTER, CLUSTER_SIZE):
            return False
        text += 1
    return True


cdef inline bint begins(
    const unsigned char* at, const unsigned char* end, const unsigned char* word, Py_ssize_t size
) noexcept nogil:
    return end - at >= size and memcmp(at, word, size) == 0


cdef Py_ssize_t wait_at(
    const unsigned char* text, Py_ssize_t size, Py_ssize_t start
) noexcept nogil:
    """The first place of `WAIT\x01` from `start` on, -1 without one."""
    cdef const unsigned char* at = text + start
    cdef const unsigned char* end = text + size
    while at < end:
        at = <const unsigned char*> memchr(at, c'W', end - at)
        if at == NULL:
            return -1
        if begins(at, end, WAIT, WAIT_SIZE):
            return at - text
        at += 1
    return -1


cdef int64_t tags_of(const unsigned char* at, Py_ssize_t size) except? -1:
    """The tags code of encoded properties, 0 without tags."""
    cdef const unsigned char* end = at + size
    cdef const unsigned char* stop
    cdef const unsigned char* tags = NULL
    cdef Py_ssize_t tags_size = 0
    while at < end:
        stop = <const unsigned char*> memchr(at, PAIR_END, end - at)
        if stop == NULL:
            stop = end
        if stop - at > TAGS_SIZE and memcmp(at, TAGS, TAGS_SIZE) == 0:
            tags, tags_size = at + TAGS_SIZE, stop - at - TAGS_SIZE
        at = stop + 1
    return <int32_t> <uint32_t> text_hash(0, tags, tags_size)


def pack_batch(
    object queue, bytes body, bytes batch_level, int64_t physical_offset, Py_ssize_t room,
    int64_t queue_offset, int64_t store_timestamp, bytes born_host, bytes store_host,
    int64_t born_timestamp, int32_t sys_flag, int32_t reconsume_times,
):
    """The records of a batch and their units; None when the Python road must look at it.

    It looks at what is not plain: a size that is wrong, a property that is not usual, an IPv6 host,
    and more records than `room` bytes hold.
    """
    cdef bytes topic = queue.topic_part
    cdef const unsigned char* source = <const unsigned char*> PyBytes_AS_STRING(body)
    cdef const unsigned char* shared = <const unsigned char*> PyBytes_AS_STRING(batch_level)
    cdef const unsigned char* properties
    cdef Py_ssize_t end = PyBytes_GET_SIZE(body)
    cdef Py_ssize_t shared_size = PyBytes_GET_SIZE(batch_level)
    cdef Py_ssize_t topic_size = PyBytes_GET_SIZE(topic)
    cdef Py_ssize_t at = 0, count = 0, total = 0, size, body_size, own_size, joined_size, stop
    cdef list units = []
    cdef bytes records, joined
    cdef unsigned char* out
    cdef int32_t queue_id = queue.queue_id
    if PyBytes_GET_SIZE(born_host) != HOST_SIZE or PyBytes_GET_SIZE(store_host) != HOST_SIZE:
        return None
    while at < end:  # all of it, before the first byte is written
        if end - at < ITEM_MIN:
            return None
        size = load32(source + at)
        body_size = load32(source + at + 16)
        if size < ITEM_MIN or size > end - at or not 0 <= body_size <= size - ITEM_MIN:
            return None
        own_size = size - ITEM_MIN - body_size
        if load16(source + at + 20 + body_size) != own_size:
            return None
        properties = source + at + size - own_size
        joined_size = own_size + shared_size
        if own_size and shared_size and properties[own_size - 1] != PAIR_END:
            joined_size += 1
        if (
            joined_size > PROPERTIES_MAX
            or memchr(properties, 0, own_size) != NULL
            or has_timer(properties, own_size)
        ):
            return None
        total += RECORD_MIN + body_size + topic_size - 1 + joined_size
        if total > room:
            return None
        count += 1
        at += size
    if not count or memchr(shared, 0, shared_size) != NULL:
        return None
    records = PyBytes_FromStringAndSize(NULL, total)
    out = <unsigned char*> PyBytes_AS_STRING(records)
    at = 0
    while at < end:
        size = load32(source + at)
        body_size = load32(source + at + 16)
        own_size = size - ITEM_MIN - body_size
        properties = source + at + size - own_size
        joined_size = own_size + shared_size
        if own_size and shared_size and properties[own_size - 1] != PAIR_END:
            joined_size += 1
        stop = RECORD_MIN + body_size + topic_size - 1 + joined_size
        out = lay_out(
            out, stop, queue_id, load32(source + at + 12), queue_offset, physical_offset, sys_flag,
            born_timestamp, born_host, store_timestamp, store_host, reconsume_times,
            source + at + 20, body_size, topic, joined_size,
        )
        memcpy(out, properties, own_size)
        if joined_size > own_size + shared_size:
            out[own_size] = PAIR_END
        memcpy(out + joined_size - shared_size, shared, shared_size)
        joined = PyBytes_FromStringAndSize(<char*> out, joined_size)
        units.append(
            (queue, queue_offset, physical_offset, stop, tags_of(out, joined_size), joined,
             store_timestamp)
        )
        out += joined_size
        at += size
        physical_offset += stop
        queue_offset += 1
    return records, units


cdef bint has_timer(const unsigned char* at, Py_ssize_t size) noexcept nogil:
    """Whether encoded properties may ask for a time of delivery."""
    cdef const unsigned char* end = at + size - TIMER_SIZE
    while at <= end:
        at = <const unsigned char*> memchr(at, c'T', end - at + 1)
        if at == NULL:
            return False
        if memcmp(at, TIMER, TIMER_SIZE) == 0:
            return True
        at += 1
    return False
