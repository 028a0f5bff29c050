# Records into the rows of an Arrow batch, and columns made of these rows.

cdef enum:
    COMPRESSED_BIT = 0x1
    BORN_HOST_AT = 48
    TIME_SIZE = 8
    NUMBER_SIZE = 8
    PAIRS_MAX = 64
    SINGLES_MAX = 8
    OFFSET_ID_SIZE = 32
    STORE_HOST_AT = 64


cdef struct Part:  # of a record whose lengths add up
    Py_ssize_t size
    const unsigned char* body
    Py_ssize_t body_size
    const unsigned char* topic  # its size byte
    Py_ssize_t topic_size  # with that byte
    const unsigned char* properties
    Py_ssize_t properties_size


cdef bint adds_up(const unsigned char* at, Py_ssize_t left, Part* found) noexcept nogil:
    """Return whether a record stands whole in `left` bytes; if so, `found` has its parts."""
    cdef Py_ssize_t body_at = FIXED_SIZE, size
    if left < RECORD_MIN or <uint32_t> load32(at + 4) != MESSAGE_MAGIC:
        return False
    if at[39] & IPV6_HOSTS:
        body_at += IPV6_EXTRA * ((at[39] >> 4 & 1) + (at[39] >> 5 & 1))
    size = load32(at)
    if size > left or size < body_at + LENGTHS_SIZE:
        return False
    found.size = size
    found.body, found.body_size = at + body_at, load32(at + body_at - 4)
    if not 0 <= found.body_size <= size - LENGTHS_SIZE - body_at:
        return False
    found.topic = found.body + found.body_size
    found.topic_size = found.topic[0] + 1
    found.properties = found.topic + found.topic_size + 2
    found.properties_size = at + size - found.properties
    return (
        found.properties_size >= 0
        and load16(found.properties - 2) == found.properties_size
    )


cdef bint has_tag(const Part* part, tags) except -1:
    """Return whether a record has one of the tags."""
    cdef Names names
    find_names(part.properties, part.properties_size, &names)
    return (
        names.tag != NULL
        and PyBytes_FromStringAndSize(<const char*> names.tag, names.tag_size) in tags
    )


cdef tuple put_head(unsigned char* out, const unsigned char* at):
    """Write the fixed part of a record in the layout of IPv4 hosts; return the hosts when it had
    others, None when not."""
    cdef Py_ssize_t born_size, store_size
    cdef const unsigned char* time_at
    cdef const unsigned char* store_at
    if not at[39] & IPV6_HOSTS:
        memcpy(out, at, FIXED_SIZE)
        return None
    born_size = HOST_SIZE + (IPV6_EXTRA if at[39] >> 4 & 1 else 0)
    store_size = HOST_SIZE + (IPV6_EXTRA if at[39] >> 5 & 1 else 0)
    time_at = at + BORN_HOST_AT + born_size
    store_at = time_at + TIME_SIZE
    memset(out, 0, FIXED_SIZE)
    memcpy(out, at, BORN_HOST_AT)
    memcpy(out + BORN_HOST_AT + HOST_SIZE, time_at, TIME_SIZE)
    memcpy(
        out + STORE_HOST_AT + HOST_SIZE, store_at + store_size,
        FIXED_SIZE - STORE_HOST_AT - HOST_SIZE,
    )
    return (
        PyBytes_FromStringAndSize(<const char*> at + BORN_HOST_AT, born_size),
        PyBytes_FromStringAndSize(<const char*> store_at, store_size),
    )


def gather(
    rows not None, bytes data not None, Py_ssize_t position, Py_ssize_t limit, int64_t base,
    int64_t low, int64_t last, wanted not None,
):
    """`gathered.gather`."""
    cdef bytearray heads = rows.heads, body_ends = rows.body_ends
    cdef list topics = rows.topics, properties = rows.properties
    cdef bint with_body, with_properties, check_crc, is_full = rows.is_full
    cdef Py_ssize_t count = rows.count, size = rows.size, end = rows.bodies_size
    cdef Py_ssize_t bounded_at, rows_max, size_max, gain, room, stop = PyBytes_GET_SIZE(data)
    cdef dict known
    cdef const unsigned char* begin = <const unsigned char*> PyBytes_AS_STRING(data)
    cdef const unsigned char* at
    cdef const unsigned char* topic_at = NULL  # of the record before
    cdef unsigned char* out
    cdef int64_t bounded
    cdef int32_t offset
    cdef Part found
    cdef Py_buffer bodies
    cdef object topic = None
    with_body, with_properties, check_crc, bounded_at, rows_max, size_max, known, tags = wanted
    if position < 0 or not 0 <= bounded_at <= FIXED_SIZE - NUMBER_SIZE or count < 0 or end < 0:
        raise ValueError("a place is outside of its bounds")
    room = min(len(heads) // FIXED_SIZE, len(body_ends) // 4 - 1, rows_max)
    out = <unsigned char*> PyByteArray_AS_STRING(heads)
    PyObject_GetBuffer(rows.bodies, &bodies, PyBUF_WRITABLE)
    try:
        while position < limit and not is_full:
            at = begin + position
            if not adds_up(at, stop - position, &found):
                break
            if base >= 0 and (
                load64(at + PHYSICAL_OFFSET_AT) != base + position
                or memchr(found.properties, 0, found.properties_size) != NULL
            ):
                break
            if topic_at == NULL or memcmp(found.topic, topic_at, found.topic_size) != 0:
                key = PyBytes_FromStringAndSize(<const char*> found.topic, found.topic_size)
                if key not in known:
                    break
                topic, topic_at = known[key], found.topic
            bounded = bounded_of(at, bounded_at)
            if (
                topic is None
                or not low <= bounded <= last
                or tags is not None
                and not has_tag(&found, tags)
            ):
                position += found.size
                continue
            if check_crc and (
                crc_of(found.body, found.body_size) & 0x7FFFFFFF != <uint32_t> load32(at + 8)
            ):
                break
            gain = found.size
            if not with_body:
                gain -= found.body_size
                found.body_size = 0
            elif at[39] & COMPRESSED_BIT:
                break
            if count and size + gain > size_max:
                is_full = True
                break
            if count >= room or found.body_size > bodies.len - end:
                break
            hosts = put_head(out + count * FIXED_SIZE, at)
            if hosts is not None:
                rows.long_hosts[count] = hosts
            if with_properties:
                properties.append(PyBytes_FromStringAndSize(
                    <const char*> found.properties, found.properties_size
                ))
            topics.append(topic)
            memcpy(<unsigned char*> bodies.buf + end, found.body, found.body_size)
            end += found.body_size
            offset = <int32_t> end
            count += 1
            memcpy(PyByteArray_AS_STRING(body_ends) + 4 * count, &offset, 4)
            size += gain
            is_full = count >= rows_max or size >= size_max
            position += found.size
    finally:
        PyBuffer_Release(&bodies)
        rows.count, rows.size, rows.bodies_size, rows.is_full = count, size, end, is_full
    return position


cdef inline int64_t bounded_of(const unsigned char* at, Py_ssize_t place) noexcept nogil:
    """The number at a place of the fixed part that a record would have with IPv4 hosts."""
    cdef Py_ssize_t shift = 0
    if place > BORN_HOST_AT and at[39] >> 4 & 1:
        shift += IPV6_EXTRA
    if place > STORE_HOST_AT and at[39] >> 5 & 1:
        shift += IPV6_EXTRA
    return load64(at + place + shift)


def numbers(bytearray heads not None, Py_ssize_t position, Py_ssize_t size, Py_ssize_t count):
    """`record_columns.numbers`."""
    cdef const unsigned char* at = <const unsigned char*> PyByteArray_AS_STRING(heads) + position
    cdef Py_ssize_t row
    cdef int32_t* small
    cdef int64_t* large
    if not 0 <= count <= len(heads) // FIXED_SIZE or not 0 <= position <= FIXED_SIZE - size:
        raise ValueError("a place is outside of its bounds")
    made = PyBytes_FromStringAndSize(NULL, count * size)
    if size == 4:
        small = <int32_t*> PyBytes_AS_STRING(made)
        for row in range(count):
            small[row] = load32(at + row * FIXED_SIZE)
    elif size == 8:
        large = <int64_t*> PyBytes_AS_STRING(made)
        for row in range(count):
            large[row] = load64(at + row * FIXED_SIZE)
    else:
        raise ValueError("a number has 4 or 8 bytes")
    return made


def offset_ids(bytearray heads not None, Py_ssize_t count):
    """`record_columns.offset_ids`."""
    cdef const unsigned char* at = <const unsigned char*> PyByteArray_AS_STRING(heads)
    cdef unsigned char* out
    cdef Py_ssize_t row
    if not 0 <= count <= len(heads) // FIXED_SIZE:
        raise ValueError("a place is outside of its bounds")
    made = PyBytes_FromStringAndSize(NULL, count * OFFSET_ID_SIZE)
    out = <unsigned char*> PyBytes_AS_STRING(made)
    for row in range(count):
        put_hex(out, at + STORE_HOST_AT)
        put_hex(out + OFFSET_ID_SIZE // 2, at + PHYSICAL_OFFSET_AT)
        out += OFFSET_ID_SIZE
        at += FIXED_SIZE
    return made


cdef inline void put_hex(unsigned char* out, const unsigned char* at) noexcept nogil:
    """Write eight bytes as digits."""
    cdef const unsigned char* digits = b"0123456789ABCDEF"
    cdef Py_ssize_t place
    for place in range(8):
        out[2 * place] = digits[at[place] >> 4]
        out[2 * place + 1] = digits[at[place] & 15]


cdef struct Pair:
    const unsigned char* name
    Py_ssize_t name_size
    const unsigned char* value
    Py_ssize_t value_size


cdef Py_ssize_t pairs_of(const unsigned char* at, Py_ssize_t size, Pair* pairs) noexcept nogil:
    """Fill `pairs` with those of encoded properties, each name once; -1 when there are too many."""
    cdef const unsigned char* end = at + size
    cdef const unsigned char* stop
    cdef const unsigned char* middle
    cdef Pair* pair
    cdef Py_ssize_t count = 0
    while at < end:
        stop = <const unsigned char*> memchr(at, PAIR_END, end - at)
        if stop == NULL:
            stop = end
        middle = <const unsigned char*> memchr(at, NAME_END, stop - at)
        if middle != NULL and middle > at and middle + 1 < stop:
            pair = pair_of(pairs, count, at, middle - at)
            if pair == NULL:
                if count == PAIRS_MAX:
                    return -1
                pair = pairs + count
                count += 1
                pair.name, pair.name_size = at, middle - at
            pair.value, pair.value_size = middle + 1, stop - middle - 1
        at = stop + 1
    return count


cdef inline Pair* pair_of(
    Pair* pairs, Py_ssize_t count, const unsigned char* name, Py_ssize_t size
) noexcept nogil:
    cdef Py_ssize_t at
    for at in range(count):
        if pairs[at].name_size == size and memcmp(pairs[at].name, name, size) == 0:
            return pairs + at
    return NULL


cdef bint ascii_only(const unsigned char* at, Py_ssize_t size) noexcept nogil:
    cdef uint64_t word, every = 0
    while size >= 8:
        memcpy(&word, at, 8)
        every |= word
        at += 8
        size -= 8
    while size:
        every |= at[0]
        at += 1
        size -= 1
    return every & 0x8080808080808080u == 0


cdef struct Texts:  # a text column that is being filled
    int32_t* ends
    unsigned char* data
    Py_ssize_t size


cdef struct Single:  # a property that is a column of its own
    const unsigned char* name
    Py_ssize_t name_size
    int32_t* places


cdef inline void put_text(
    Texts* column, Py_ssize_t row, const unsigned char* at, Py_ssize_t size
) noexcept nogil:
    memcpy(column.data + column.size, at, size)
    column.size += size
    column.ends[row + 1] = <int32_t> column.size


cdef bytearray room_for(Py_ssize_t count, int32_t** numbers):
    """Room for so many numbers of 4 bytes, the first of them 0."""
    made = PyByteArray_FromStringAndSize(NULL, 4 * count)
    numbers[0] = <int32_t*> PyByteArray_AS_STRING(made)
    if count:
        numbers[0][0] = 0
    return made


def split_pairs(list texts not None, tuple wanted not None):
    """The pairs of encoded properties, as buffers of Arrow.

    The rows' offsets into the pairs; offsets and bytes of the names; those of the values; and for
    each wanted name, which pair has it in each row, -1 for none. None instead when a text is not
    UTF-8, or has very many pairs.
    """
    cdef Pair pairs[PAIRS_MAX]
    cdef Pair* pair
    cdef Single singles[SINGLES_MAX]
    cdef Single* single
    cdef Texts names, values
    cdef int32_t* row_ends
    cdef Py_ssize_t at, count, size = 0, row = 0, pair_count = 0
    cdef Py_ssize_t text_count = len(texts), single_count = len(wanted)
    cdef const unsigned char* start
    cdef bytes text, name
    cdef list columns = []
    if single_count > SINGLES_MAX:
        return None
    for text in texts:
        size += PyBytes_GET_SIZE(text)
    if size > INT32_MAX - text_count:
        return None
    made_rows = room_for(text_count + 1, &row_ends)
    # Each takes four bytes with its separators, of which a text's last one may be missing.
    made_name_ends = room_for((size + text_count) // 4 + 1, &names.ends)
    made_value_ends = room_for((size + text_count) // 4 + 1, &values.ends)
    made_names = PyByteArray_FromStringAndSize(NULL, size)
    made_values = PyByteArray_FromStringAndSize(NULL, size)
    names.data = <unsigned char*> PyByteArray_AS_STRING(made_names)
    values.data = <unsigned char*> PyByteArray_AS_STRING(made_values)
    names.size = values.size = 0
    for at, name in enumerate(wanted):
        singles[at].name = <const unsigned char*> PyBytes_AS_STRING(name)
        singles[at].name_size = PyBytes_GET_SIZE(name)
        columns.append(room_for(text_count, &singles[at].places))
    for text in texts:
        start, size = <const unsigned char*> PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)
        if not is_utf8(start, size):
            return None
        count = pairs_of(start, size, pairs)
        if count < 0:
            return None
        for at in range(single_count):
            single = singles + at
            pair = pair_of(pairs, count, single.name, single.name_size)
            single.places[row] = -1 if pair == NULL else <int32_t> (pair_count + (pair - pairs))
        for at in range(count):
            put_text(&names, pair_count, pairs[at].name, pairs[at].name_size)
            put_text(&values, pair_count, pairs[at].value, pairs[at].value_size)
            pair_count += 1
        row += 1
        row_ends[row] = <int32_t> pair_count
    PyByteArray_Resize(made_name_ends, 4 * (pair_count + 1))
    PyByteArray_Resize(made_value_ends, 4 * (pair_count + 1))
    PyByteArray_Resize(made_names, names.size)
    PyByteArray_Resize(made_values, values.size)
    return made_rows, made_name_ends, made_names, made_value_ends, made_values, columns


cdef bint is_utf8(const unsigned char* at, Py_ssize_t size):
    if ascii_only(at, size):
        return True
    try:
        PyUnicode_DecodeUTF8(<const char*> at, size, NULL)
    except UnicodeDecodeError:
        return False
    return True
