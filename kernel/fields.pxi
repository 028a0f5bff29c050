# A head's fields, as HTTP/2 packs them.

cdef enum:
    STATIC_COUNT = 61
    ENTRY_SIZE = 32
    NUMBER_SHIFT_MAX = 28
    HUFFMAN_END = 256
    PACKED_MAX = 640  # bytes of a string in Huffman codes; of larger ones there are few
    UNPACKED_MAX = PACKED_MAX * 8 // 5  # the shortest code has five bits


def read_fields(
    bytes block not None, list added not None, Py_ssize_t added_size, Py_ssize_t table_size,
    Py_ssize_t size_max, tuple static not None, bytes tree not None,
):
    """`HpackDecoder.decode`: fields, and the size of the table, whose new entries are in `added`.

    None, with `added` as it was, where something is wrong, a string is long, or the table changes
    its size.
    """
    cdef const unsigned char* at = <const unsigned char*> PyBytes_AS_STRING(block)
    cdef const unsigned char* end = at + PyBytes_GET_SIZE(block)
    cdef const int16_t* nodes = <const int16_t*> PyBytes_AS_STRING(tree)
    cdef list fields = [], more = []
    cdef Py_ssize_t size = 0, field_size
    cdef Py_ssize_t gone = 0  # entries of `added`, then of `more`, that had to leave the table
    cdef int64_t index
    cdef unsigned char first, mask
    cdef tuple field
    cdef bytes name, value
    while at < end:
        first = at[0]
        if first & 0x80:
            mask = 0x7F
        elif first & 0x40:
            mask = 0x3F
        elif first & 0x20:
            return None
        else:
            mask = 0x0F
        index = number_at(&at, end, mask)
        if index < 0 or (not index and mask == 0x7F):
            return None
        if index:
            field = table_entry(index, static, added, more, gone)
            if field is None:
                return None
            name, value = field
        else:
            name = text_at(&at, end, nodes)
            if name is None:
                return None
        if mask != 0x7F:
            value = text_at(&at, end, nodes)
            if value is None:
                return None
            field = name, value
        field_size = PyBytes_GET_SIZE(name) + PyBytes_GET_SIZE(value) + ENTRY_SIZE
        size += field_size
        if size > size_max:
            return None
        fields.append(field)
        if mask == 0x3F:
            more.append(field)
            added_size += field_size
            while added_size > table_size:
                name, value = added[gone] if gone < len(added) else more[gone - len(added)]
                added_size -= PyBytes_GET_SIZE(name) + PyBytes_GET_SIZE(value) + ENTRY_SIZE
                gone += 1
    if more:
        added.extend(more)
        del added[:gone]
    return fields, added_size


cdef inline tuple table_entry(
    int64_t index, tuple static, list added, list more, Py_ssize_t gone
):
    cdef int64_t at
    if index <= STATIC_COUNT:
        return static[index - 1]
    at = len(added) + len(more) + STATIC_COUNT - index  # the newest has the lowest index
    if at < gone:
        return None
    return added[at] if at < len(added) else more[at - len(added)]


cdef int64_t number_at(
    const unsigned char** at, const unsigned char* end, unsigned char mask
) noexcept nogil:
    """Read a number and go behind it; -1 where there is none, or a large one. `at` is below `end`."""
    cdef int64_t number = at[0][0] & mask
    cdef int shift = 0
    cdef unsigned char part
    at[0] += 1
    if number < mask:
        return number
    while at[0] < end and shift <= NUMBER_SHIFT_MAX:
        part = at[0][0]
        at[0] += 1
        number += <int64_t> (part & 0x7F) << shift
        if not part & 0x80:
            return number
        shift += 7
    return -1


cdef bytes text_at(const unsigned char** at, const unsigned char* end, const int16_t* nodes):
    """Read a string and go behind it; None where there is none, or a long one is packed."""
    cdef const unsigned char* begin
    cdef unsigned char[UNPACKED_MAX] text
    cdef int64_t size
    cdef bint is_packed
    if at[0] >= end:
        return None
    is_packed = at[0][0] & 0x80
    size = number_at(at, end, 0x7F)
    if size < 0 or size > end - at[0]:
        return None
    begin = at[0]
    at[0] += size
    if not is_packed:
        return PyBytes_FromStringAndSize(<const char*> begin, size)
    if size > PACKED_MAX:
        return None
    size = unpack(begin, size, nodes, text)
    return None if size < 0 else PyBytes_FromStringAndSize(<const char*> text, size)


cdef Py_ssize_t unpack(
    const unsigned char* packed, Py_ssize_t size, const int16_t* nodes, unsigned char* text
) noexcept nogil:
    """Write what Huffman codes stand for, and return its size; -1 where they are none."""
    cdef Py_ssize_t count = 0, at
    cdef int node = 0, bit, way, depth = 0
    cdef bint is_ones = True  # since the last symbol, which is how a string is filled up
    for at in range(size):
        for bit in range(7, -1, -1):
            way = packed[at] >> bit & 1
            node = nodes[2 * node + way]
            if node < 0:
                if ~node == HUFFMAN_END:
                    return -1
                text[count] = <unsigned char> ~node
                count += 1
                node, depth, is_ones = 0, 0, True
            else:
                depth += 1
                is_ones = is_ones and way
    return count if depth < 8 and is_ones else -1
