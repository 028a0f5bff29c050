# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The kernel's functions. Whoever calls them finds the same in Python next to the call.

Bytes that come from outside are read within the bounds of their own object alone. What looks
wrong is left to the Python road, which words the refusal.
"""

from zlib import crc32

from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

# Layouts that `store/index/file.py`, `store/queue/consume_queue.py`, `protocol/record.py`,
# `protocol/batch.py` and `protocol/header_rocketmq.py` explain; sizes in bytes.
cdef enum:
    HEADER_SIZE = 40
    SLOT_SIZE = 4
    ITEM_SIZE = 20
    FIRST_ITEM = 1
    UNIT_SIZE = 20
    FIXED_SIZE = 88
    RECORD_MIN = 91
    HOST_SIZE = 8
    PROPERTIES_MAX = 32767
    ITEM_MIN = 22
    LETTER_ENTRY_SIZE = 7
    LETTER_COUNT = 14
    EXT_FIELDS_MAX = 1024
    PAIR_END = 0x02

cdef uint32_t MESSAGE_MAGIC = 0xDAA320A7u
cdef int64_t ADDRESS_MAX = -(1 << 31) - 1

cdef const unsigned char* UNIQUE = b"UNIQ_KEY\x01"
cdef const unsigned char* KEYS = b"KEYS\x01"
cdef const unsigned char* TAGS = b"TAGS\x01"
cdef const unsigned char* WAIT = b"WAIT\x01"
cdef const unsigned char* DELAY = b"DELAY\x01"
cdef const unsigned char* CLUSTER = b"CLUSTER\x01"
cdef const unsigned char* TRANSACTION = b"TRAN_MSG\x01"
cdef const unsigned char* TIMER = b"TIMER_"
cdef enum:
    UNIQUE_SIZE = 9
    KEYS_SIZE = 5
    TAGS_SIZE = 5
    WAIT_SIZE = 5
    DELAY_SIZE = 6
    CLUSTER_SIZE = 8
    TRANSACTION_SIZE = 9
    TIMER_SIZE = 6


cdef inline void store16(unsigned char* at, uint32_t value) noexcept nogil:
    at[0] = value >> 8 & 0xFF
    at[1] = value & 0xFF


cdef inline void store32(unsigned char* at, uint32_t value) noexcept nogil:
    at[0] = value >> 24
    at[1] = value >> 16 & 0xFF
    at[2] = value >> 8 & 0xFF
    at[3] = value & 0xFF


cdef inline void store64(unsigned char* at, uint64_t value) noexcept nogil:
    store32(at, <uint32_t> (value >> 32))
    store32(at + 4, <uint32_t> value)


cdef inline int32_t load16(const unsigned char* at) noexcept nogil:
    return at[0] << 8 | at[1]


cdef inline int32_t load32(const unsigned char* at) noexcept nogil:
    return <int32_t> (<uint32_t> at[0] << 24 | <uint32_t> at[1] << 16 | at[2] << 8 | at[3])


cdef inline int64_t load64(const unsigned char* at) noexcept nogil:
    return <int64_t> (<uint64_t> <uint32_t> load32(at) << 32 | <uint32_t> load32(at + 4))


# The key index


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


# Records


cdef unsigned char* lay_out(
    unsigned char* out, Py_ssize_t size, int32_t queue_id, int32_t flag, int64_t queue_offset,
    int64_t physical_offset, int32_t sys_flag, int64_t born_timestamp, bytes born_host,
    int64_t store_timestamp, bytes store_host, int32_t reconsume_times, const unsigned char* body,
    Py_ssize_t body_size, bytes topic, Py_ssize_t properties_size,
) except NULL:
    """Write a record up to its properties, and return where these go; hosts have 8 bytes."""
    cdef uint32_t crc = crc32(PyMemoryView_FromMemory(<char*> body, body_size, PyBUF_READ))
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


def pack_message(
    object queue, bytes body, str text, bytes cluster_pair, int64_t physical_offset,
    Py_ssize_t room, int64_t queue_offset, int64_t store_timestamp, bytes born_host,
    bytes store_host, int64_t born_timestamp, int32_t flag, int32_t sys_flag,
    int32_t reconsume_times,
):
    """The record of a send, its unit, and whether its sender waits for the disk.

    None when the Python road must look at it: at a delay, a transaction, a timer, a zero, a WAIT
    that is not the usual one, an IPv6 host, and a record that `room` bytes do not hold.
    """
    cdef bytes topic = queue.topic_part
    cdef Py_ssize_t size = 0, total, kept_size, body_size = PyBytes_GET_SIZE(body)
    cdef Py_ssize_t pair_size = PyBytes_GET_SIZE(cluster_pair), skipped = 0
    cdef Py_ssize_t start, stop, value, cut_start, cut_stop
    cdef const unsigned char* source
    cdef const unsigned char* found
    cdef unsigned char* out
    cdef bytes record, properties
    cdef bint wait = True
    if PyBytes_GET_SIZE(born_host) != HOST_SIZE or PyBytes_GET_SIZE(store_host) != HOST_SIZE:
        return None
    try:
        source = <const unsigned char*> PyUnicode_AsUTF8AndSize(text, &size)
    except UnicodeEncodeError:
        return None
    if size > PROPERTIES_MAX or not is_plain(source, size):
        return None
    cut_start = cut_stop = size
    start = wait_at(source, size, 0)
    if start >= 0:
        value = start + WAIT_SIZE
        found = <const unsigned char*> memchr(source + value, PAIR_END, size - value)
        stop = size if found == NULL else found - source
        if (
            stop == value
            or (start and source[start - 1] != PAIR_END)
            or wait_at(source, size, stop) >= 0
        ):
            return None
        wait = stop - value == 4
        if wait and memcmp(source + value, b"true", 4) != 0:
            return None  # "True", which counts, or another word
        if found == NULL:
            cut_start, cut_stop = max(0, start - 1), size
        else:
            cut_start, cut_stop = start, stop + 1
    kept_size = size - (cut_stop - cut_start)
    if not kept_size:
        skipped = 1  # the separator before CLUSTER
    total = kept_size + pair_size - skipped
    if total > PROPERTIES_MAX:
        return None
    size = RECORD_MIN + body_size + PyBytes_GET_SIZE(topic) - 1 + total
    if size > room:
        return None
    record = PyBytes_FromStringAndSize(NULL, size)
    out = lay_out(
        <unsigned char*> PyBytes_AS_STRING(record), size, queue.queue_id, flag, queue_offset,
        physical_offset, sys_flag, born_timestamp, born_host, store_timestamp, store_host,
        reconsume_times, <const unsigned char*> PyBytes_AS_STRING(body), body_size, topic, total,
    )
    memcpy(out, source, cut_start)
    memcpy(out + cut_start, source + cut_stop, kept_size - cut_start)
    memcpy(out + kept_size, PyBytes_AS_STRING(cluster_pair) + skipped, pair_size - skipped)
    properties = PyBytes_FromStringAndSize(<char*> out, total)
    unit = (
        queue, queue_offset, physical_offset, size, tags_of(out, total), properties,
        store_timestamp,
    )
    return record, unit, wait


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


# Pulls


def take_units(bytes units, object matches, Py_ssize_t count_max, int64_t size_max):
    """`message_reader.take_units`."""
    cdef const unsigned char* at = <const unsigned char*> PyBytes_AS_STRING(units)
    cdef Py_ssize_t unit_count = PyBytes_GET_SIZE(units) // UNIT_SIZE
    cdef Py_ssize_t scanned = 0, count = 0
    cdef int64_t start = -1, end = -1, size = 0, commit_offset, tags_code
    cdef int32_t record_size
    cdef list runs = []
    while scanned < unit_count:
        commit_offset, record_size = load64(at), load32(at + 8)
        if count and (count >= count_max or size + record_size > size_max):
            break
        scanned += 1
        tags_code = load64(at + 12)
        at += UNIT_SIZE
        if matches is None or tags_code <= ADDRESS_MAX or matches(tags_code):
            if commit_offset != end:
                if count:
                    runs.append((start, end))
                start = commit_offset
            end = commit_offset + record_size
            count += 1
            size += record_size
    if count:
        runs.append((start, end))
    return runs, scanned, count, size


# RocketMQ's binary header


def letter_values(bytes data, Py_ssize_t position, Py_ssize_t end):
    """`header_rocketmq.letter_values`; None also for what is only unusual."""
    cdef const unsigned char* at = <const unsigned char*> PyBytes_AS_STRING(data) + position
    cdef Py_ssize_t left = end - position
    cdef uint32_t size
    cdef int letter, count = 0
    cdef list values
    if position < 0 or left < 0 or end > PyBytes_GET_SIZE(data):
        return None
    values = [None] * LETTER_COUNT
    try:
        while left:
            letter = at[2] - c'a' if left >= LETTER_ENTRY_SIZE and load16(at) == 1 else -1
            if not 0 <= letter < LETTER_COUNT or count == EXT_FIELDS_MAX:
                return None
            size = <uint32_t> load32(at + 3)
            at += LETTER_ENTRY_SIZE
            left -= LETTER_ENTRY_SIZE
            if size > left:
                return None
            if size:
                values[letter] = PyUnicode_DecodeUTF8(<const char*> at, size, NULL)
            at += size
            left -= size
            count += 1
    except UnicodeDecodeError:
        return None
    return tuple(values)
