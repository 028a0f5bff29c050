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


def unit_entries(list units):
    """`keys.unit_entries`: (key hash, physical offset, store time) of each key, in order."""
    cdef list entries = []
    cdef tuple unit
    cdef object queue, last_queue = None
    cdef bytes topic, properties
    cdef uint32_t prefix = 0
    cdef const unsigned char *at
    cdef const unsigned char *end
    cdef const unsigned char *stop
    cdef const unsigned char *unique
    cdef const unsigned char *keys
    cdef const unsigned char *part
    cdef Py_ssize_t unique_size, keys_size, size
    for unit in units:
        queue = unit[0]
        if queue is not last_queue:
            topic = queue.topic_part
            at = <const unsigned char*> PyBytes_AS_STRING(topic)
            prefix = hash_on(0, at + 1, PyBytes_GET_SIZE(topic) - 1) * 31 + c'#'
            last_queue = queue
        properties = unit[5]
        at = <const unsigned char*> PyBytes_AS_STRING(properties)
        end = at + PyBytes_GET_SIZE(properties)
        unique = keys = NULL
        unique_size = keys_size = 0
        while at < end:
            stop = <const unsigned char*> memchr(at, PAIR_END, end - at)
            if stop == NULL:
                stop = end
            size = stop - at
            if size > UNIQUE_SIZE and memcmp(at, UNIQUE, UNIQUE_SIZE) == 0:
                unique, unique_size = at + UNIQUE_SIZE, size - UNIQUE_SIZE
            elif size > KEYS_SIZE and memcmp(at, KEYS, KEYS_SIZE) == 0:
                keys, keys_size = at + KEYS_SIZE, size - KEYS_SIZE
            at = stop + 1
        if unique_size:
            entries.append((index_hash(prefix, unique, unique_size), unit[2], unit[6]))
        end = keys + keys_size
        while keys < end:
            part = <const unsigned char*> memchr(keys, c' ', end - keys)
            if part == NULL:
                part = end
            if part > keys:
                entries.append((index_hash(prefix, keys, part - keys), unit[2], unit[6]))
            keys = part + 1
    return entries


cdef struct Entry:
    uint32_t key_hash
    int64_t offset
    int64_t timestamp


def put_entries(
    unsigned char[::1] view not None, list entries, Py_ssize_t start, Py_ssize_t stop,
    uint32_t slot_count, int64_t begin_timestamp, int64_t begin_offset, int32_t slots_used,
    int32_t count,
):
    """`file.put_entries`: items and slots of entries into a mapped index file."""
    cdef Py_ssize_t at, entry_count = stop - start
    cdef int64_t position = HEADER_SIZE + <int64_t> SLOT_SIZE * slot_count \
        + <int64_t> ITEM_SIZE * count
    cdef int64_t slot, difference
    cdef int32_t previous
    cdef Entry* found
    cdef unsigned char* data
    cdef tuple entry
    if not (
        0 <= start < stop <= len(entries) and slot_count and count >= FIRST_ITEM
        and position + ITEM_SIZE * entry_count <= view.shape[0]
    ):
        raise ValueError("the entries do not fit into the file")
    found = <Entry*> PyMem_Malloc(entry_count * sizeof(Entry))
    if found == NULL:
        raise MemoryError()
    try:
        for at in range(entry_count):
            entry = entries[start + at]
            found[at].key_hash, found[at].offset, found[at].timestamp = entry
        data = &view[0]
        with nogil:  # a slot is mostly a cache miss
            for at in range(entry_count):
                difference = 0
                if 0 < begin_timestamp < found[at].timestamp:
                    difference = (found[at].timestamp - begin_timestamp) // 1000
                    if difference > INT32_MAX:
                        difference = INT32_MAX
                slot = HEADER_SIZE + <int64_t> SLOT_SIZE * (found[at].key_hash % slot_count)
                previous = load32(data + slot)
                if not 0 < previous < count:
                    previous = 0
                    slots_used += 1
                store32(data + position, found[at].key_hash)
                store64(data + position + 4, found[at].offset)
                store32(data + position + 12, <uint32_t> difference)
                store32(data + position + 16, previous)
                store32(data + slot, count)
                if count <= FIRST_ITEM:
                    begin_timestamp, begin_offset = found[at].timestamp, found[at].offset
                position += ITEM_SIZE
                count += 1
    finally:
        PyMem_Free(found)
    return begin_timestamp, begin_offset, slots_used
