# Records: their layout, and what their properties ask for.

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


cdef unsigned char LOOKED_AT[256]  # the characters at which `is_plain` stops
memset(LOOKED_AT, 0, sizeof(LOOKED_AT))
LOOKED_AT[0] = LOOKED_AT[c'C'] = LOOKED_AT[c'D'] = LOOKED_AT[c'P'] = LOOKED_AT[c'T'] = True


cdef bint is_plain(const unsigned char* text, Py_ssize_t size) noexcept nogil:
    """Whether nothing in encoded properties asks for more than storing the message."""
    cdef const unsigned char* end = text + size
    while text < end:
        if LOOKED_AT[text[0]]:
            if text[0] == 0 or asks_for_more(text, end):
                return False
            if text[0] == c'C' and begins(text, end, CLUSTER, CLUSTER_SIZE):
                return False
        text += 1
    return True


cdef bint is_plain_part(const unsigned char* at, Py_ssize_t size) noexcept nogil:
    """The same of a message of a batch, whose CLUSTER does not count."""
    cdef const unsigned char* end = at + size
    if memchr(at, 0, size) != NULL:
        return False
    while at < end:
        if asks_for_more(at, end):
            return False
        at = <const unsigned char*> memchr(at, PAIR_END, end - at)
        if at == NULL:
            return True
        at += 1
    return True


cdef inline bint asks_for_more(const unsigned char* at, const unsigned char* end) noexcept nogil:
    """Whether a name begins there that Python's way must look at."""
    if at[0] == c'T':
        return begins(at, end, TIMER, TIMER_SIZE) or begins(at, end, TRANSACTION, TRANSACTION_SIZE)
    if at[0] == c'D':
        return begins(at, end, DELAY, DELAY_SIZE)
    return at[0] == c'P' and begins(at, end, RECEIPT, RECEIPT_SIZE)


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


cdef struct Names:  # where the values are that queues and key index take; NULL without one
    const unsigned char* tag
    const unsigned char* unique
    const unsigned char* keys
    Py_ssize_t tag_size
    Py_ssize_t unique_size
    Py_ssize_t keys_size


cdef void find_names(const unsigned char* at, Py_ssize_t size, Names* found) noexcept nogil:
    """Look for them in encoded properties; the last one of a name counts."""
    cdef const unsigned char* end = at + size
    cdef const unsigned char* stop
    found.tag = found.unique = found.keys = NULL
    found.tag_size = found.unique_size = found.keys_size = 0
    while at < end:
        stop = <const unsigned char*> memchr(at, PAIR_END, end - at)
        if stop == NULL:
            stop = end
        size = stop - at
        if size > UNIQUE_SIZE and memcmp(at, UNIQUE, UNIQUE_SIZE) == 0:
            found.unique, found.unique_size = at + UNIQUE_SIZE, size - UNIQUE_SIZE
        elif size > KEYS_SIZE and memcmp(at, KEYS, KEYS_SIZE) == 0:
            found.keys, found.keys_size = at + KEYS_SIZE, size - KEYS_SIZE
        elif size > TAGS_SIZE and memcmp(at, TAGS, TAGS_SIZE) == 0:
            found.tag, found.tag_size = at + TAGS_SIZE, size - TAGS_SIZE
        at = stop + 1
