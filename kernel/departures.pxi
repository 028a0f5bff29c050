# Sends that leave: their frames up to the body.

cdef enum:
    JSON_HEAD_PARTS = 6
    MSGPACK_HEAD_PARTS = 2
    HEAD_NUMBERS = 84  # bytes of a JSON head's numbers at most, those of its frame included
    MSGPACK_HEAD_NUMBERS = 34  # bytes of a head between and behind its parts; flags take 8 more
    FLAGS_EXTRA = 8
    ESCAPED_MAX = 6  # bytes of one in a JSON string

cdef const char* SMALL_HEX = b"0123456789abcdef"


cdef unsigned char* put_signed(unsigned char* out, int64_t number) noexcept nogil:
    if number >= 0:
        return put_digits(out, <uint64_t> number)
    out[0] = c'-'
    return put_digits(out + 1, -<uint64_t> number)


cdef unsigned char* put_json(
    unsigned char* out, const unsigned char* at, Py_ssize_t size
) noexcept nogil:
    """Write a text as a JSON string."""
    cdef const unsigned char* end = at + size
    cdef const char* found
    out[0] = c'"'
    out += 1
    while at < end:
        if at[0] >= 0x20 and at[0] != c'"' and at[0] != c'\\':
            out[0] = at[0]
            out += 1
        else:
            out[0] = c'\\'
            found = <const char*> memchr(MEANT, at[0], 8)
            if found != NULL:
                out[1] = ESCAPED[found - MEANT]
                out += 2
            else:
                memcpy(out + 1, b"u00", 3)
                out[4], out[5] = SMALL_HEX[at[0] >> 4], SMALL_HEX[at[0] & 0xF]
                out += ESCAPED_MAX
        at += 1
    out[0] = c'"'
    return out + 1


def json_send_head(
    tuple parts not None, int32_t opaque, int32_t sys_flag, int64_t born_timestamp, int32_t flag,
    str properties not None, Py_ssize_t body_size,
):
    """`send_head.json_send_head`."""
    cdef Py_ssize_t text_size, room
    cdef const char* text = PyUnicode_AsUTF8AndSize(properties, &text_size)
    cdef PyObject* head = NULL
    cdef unsigned char* start
    cdef unsigned char* out
    if len(parts) != JSON_HEAD_PARTS:
        raise ValueError("a template has other parts")
    room = HEAD_NUMBERS + ESCAPED_MAX * text_size
    for part in parts:
        room += PyBytes_GET_SIZE(<bytes?> part)
    try:
        head = new_bytes(NULL, room)
        start = <unsigned char*> PyBytes_AS_STRING(<object> head)
        out = put_signed(put_bytes(start + FRAME_PREFIX_SIZE, parts[0]), sys_flag)
        out = put_signed(put_bytes(out, parts[1]), born_timestamp)
        out = put_signed(put_bytes(out, parts[2]), flag)
        out = put_json(put_bytes(out, parts[3]), <const unsigned char*> text, text_size)
        out = put_signed(put_bytes(out, parts[4]), opaque)
        out = put_bytes(out, parts[5])
        put_prefix(start, JSON, out - start, body_size)
        return cut(&head, out)
    finally:
        Py_XDECREF(head)


def msgpack_send_head(
    tuple parts not None, int32_t opaque, int32_t sys_flag, int64_t born_timestamp, int32_t flag,
    str properties not None, Py_ssize_t body_size,
):
    """`send_head.msgpack_send_head`."""
    cdef Py_ssize_t text_size, size
    cdef const char* text = PyUnicode_AsUTF8AndSize(properties, &text_size)
    cdef bytes head
    cdef unsigned char* out
    if len(parts) != MSGPACK_HEAD_PARTS:
        raise ValueError("a template has other parts")
    size = MSGPACK_HEAD_NUMBERS + text_size + (FLAGS_EXTRA if sys_flag or flag else 0)
    for part in parts:
        size += PyBytes_GET_SIZE(<bytes?> part)
    head = PyBytes_FromStringAndSize(NULL, size)
    out = <unsigned char*> PyBytes_AS_STRING(head)
    put_prefix(out, MSGPACK, size, body_size)
    out = put_bytes(out + FRAME_PREFIX_SIZE, parts[0])
    store32(out, <uint32_t> opaque)
    out = put_bytes(out + 4, parts[1])
    if sys_flag or flag:
        out[0] = 0xD2
        store32(out + 1, <uint32_t> sys_flag)
        memcpy(out + 5, b"\xa1h\xd2", 3)
        store32(out + 8, <uint32_t> flag)
        out += 4 + FLAGS_EXTRA
    else:
        memcpy(out, b"\0\xa1h\0", 4)
        out += 4
    memcpy(out, b"\xa1g\xd3", 3)
    store64(out + 3, <uint64_t> born_timestamp)
    memcpy(out + 11, b"\xa1i\xdb", 3)
    store32(out + 14, <uint32_t> text_size)
    memcpy(out + 18, text, text_size)
    return head


cdef inline void put_prefix(
    unsigned char* head, int kind, Py_ssize_t size, Py_ssize_t body_size
) noexcept nogil:
    """Write the two length words of a frame whose head has that size, they included."""
    size -= FRAME_PREFIX_SIZE
    store32(head, <uint32_t> (4 + size + body_size))
    store32(head + 4, <uint32_t> kind << 24 | <uint32_t> size)
