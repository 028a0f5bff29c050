# The key index: hashes of keys, and their entries in a file.

cdef uint32_t hash_on(uint32_t code, const unsigned char* data, Py_ssize_t size) noexcept nogil:
    """Java's String.hashCode of ASCII text that follows a text with the hash `code`."""
    cdef Py_ssize_t at
    for at in range(size):
        code = code * 31 + data[at]
    return code


cdef int64_t text_hash(uint32_t code, const unsigned char* data, Py_ssize_t size) except -1:
    """The same for UTF-8; bytes that are none count as U+FFFD."""
    cdef uint32_t ascii_code = code
    cdef Py_ssize_t at
    cdef unsigned char seen = 0
    cdef str text
    cdef uint32_t character
    for at in range(size):
        seen |= data[at]
        ascii_code = ascii_code * 31 + data[at]
    if seen < 0x80:
        return ascii_code
    text = data[:size].decode("utf-8", "replace")
    for at in range(len(text)):
        character = text[at]
        if character > 0xFFFF:
            character -= 0x10000
            code = code * 31 + (0xD800 | character >> 10)
            character = 0xDC00 | character & 0x3FF
        code = code * 31 + character
    return code


cdef int64_t index_hash(uint32_t prefix, const unsigned char* key, Py_ssize_t size) except -1:
    """`tags_code.index_hash`."""
    cdef uint32_t code = text_hash(prefix, key, size)
    return code if code < 0x80000000u else (0 - code) & 0x7FFFFFFF


cdef Py_ssize_t entries_size(const Names* names) noexcept nogil:
    """Bytes that the entries of a record have at most."""
    return KEY_ENTRY_SIZE * (1 + (names.keys_size + 1) // 2)


cdef unsigned char* put_keys(
    unsigned char* out, const Names* names, uint32_t prefix_code, int64_t offset, int64_t timestamp
) except NULL:
    """Write an entry for each key of a record."""
    cdef const unsigned char* at = names.keys
    cdef const unsigned char* end = at + names.keys_size
    cdef const unsigned char* stop
    if names.unique_size:
        out = put_entry(
            out, index_hash(prefix_code, names.unique, names.unique_size), offset, timestamp
        )
    while at < end:
        stop = <const unsigned char*> memchr(at, c' ', end - at)
        if stop == NULL:
            stop = end
        if stop > at:
            out = put_entry(out, index_hash(prefix_code, at, stop - at), offset, timestamp)
        at = stop + 1
    return out


cdef inline unsigned char* put_entry(
    unsigned char* out, int64_t key_hash, int64_t offset, int64_t timestamp
) noexcept nogil:
    store32(out, <uint32_t> key_hash)
    store64(out + 4, offset)
    store64(out + 12, timestamp)
    return out + KEY_ENTRY_SIZE


def add_entries(bytearray entries not None, list keyed not None, int64_t timestamp):
    """`keys.add_entries`."""
    cdef Names names
    cdef Py_ssize_t size
    cdef unsigned char* out
    cdef unsigned char* end
    cdef uint32_t prefix_code
    cdef bytes properties
    cdef int64_t offset
    for prefix_code, properties, offset in keyed:
        find_names(
            <const unsigned char*> PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties),
            &names,
        )
        size = len(entries)
        out = grown(entries, entries_size(&names))
        end = put_keys(out, &names, prefix_code, offset, timestamp)
        PyByteArray_Resize(entries, size + (end - out))


def put_entries(
    unsigned char[::1] view not None, const unsigned char[::1] entries not None, Py_ssize_t start,
    Py_ssize_t stop, uint32_t slot_count, int64_t begin_timestamp, int64_t begin_offset,
    int32_t slots_used, int32_t count,
):
    """`file.put_entries`: items and slots of entries into a mapped index file."""
    cdef int64_t position = HEADER_SIZE + <int64_t> SLOT_SIZE * slot_count \
        + <int64_t> ITEM_SIZE * count
    cdef int64_t slot, difference, timestamp
    cdef uint32_t key_hash
    cdef int32_t previous
    cdef const unsigned char* entry
    cdef const unsigned char* end
    cdef unsigned char* data
    if not (
        0 <= start < stop <= entries.shape[0] // KEY_ENTRY_SIZE
        and slot_count and count >= FIRST_ITEM
        and position + ITEM_SIZE * (stop - start) <= view.shape[0]
    ):
        raise ValueError("the entries do not fit into the file")
    data, entry = &view[0], &entries[0] + start * KEY_ENTRY_SIZE
    end = &entries[0] + stop * KEY_ENTRY_SIZE
    with nogil:  # a slot is mostly a cache miss
        while entry < end:
            key_hash, timestamp = load32(entry), load64(entry + 12)
            difference = 0
            if 0 < begin_timestamp < timestamp:
                difference = min((timestamp - begin_timestamp) // 1000, <int64_t> INT32_MAX)
            slot = HEADER_SIZE + <int64_t> SLOT_SIZE * (key_hash % slot_count)
            previous = load32(data + slot)
            if not 0 < previous < count:
                previous = 0
                slots_used += 1
            memcpy(data + position, entry, 12)  # hash and offset
            store32(data + position + 12, <uint32_t> difference)
            store32(data + position + 16, previous)
            store32(data + slot, count)
            if count <= FIRST_ITEM:
                begin_timestamp, begin_offset = timestamp, load64(entry + 4)
            position += ITEM_SIZE
            count += 1
            entry += KEY_ENTRY_SIZE
    return begin_timestamp, begin_offset, slots_used
