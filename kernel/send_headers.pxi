# Headers of sends (codes 310 and 320) in any of the three codecs: read, when they are plain.

cdef enum:
    JSON = 0
    ROCKETMQ = 1
    MSGPACK = 0x4D
    SEND_V2 = 310
    SEND_BATCH = 320
    RESPONSE_FLAG = 1
    ONEWAY_FLAG = 2
    LETTER_COUNT = 14  # the fields a to n of a send
    REQUIRED_COUNT = 8
    TOPIC = 1
    DEFAULT_QUEUES = 3
    QUEUE_ID = 4
    SYS_FLAG = 5
    BORN_TIMESTAMP = 6
    FLAG = 7
    PROPERTIES = 8
    RECONSUME_TIMES = 9
    MAX_RECONSUME_TIMES = 11
    BATCH = 12
    TOPIC_MAX = 127
    INT_DIGITS = 9  # in range whatever they are
    LONG_DIGITS = 18
    TRANSACTION_BITS = 0xC
    LOOKED_AT_BITS = 0xD  # transactions and compressed bodies
    HOSTS_BITS = 0x30
    BINARY_HEADER_MIN = 21
    LETTER_ENTRY_SIZE = 7
    ID_SIZE = 32
    ID_DIGITS = 16  # of the offset
    ANSWER_NUMBERS = 80  # bytes of an answer's numbers and their sizes, at most
    BATCH_COUNT_MAX = 32768
    IPV6_HOSTS_EXTRA = 24  # bytes that the hosts of a record take at most beside those of IPv4
    RUN_SIZE_MAX = 1 << 20  # bytes of frames that one call takes
    LANES_MAX = 16
    NUMBER_MAX = 20  # digits
    SIZE_BUCKETS = 7  # of `TrafficIn.sizes`


cdef struct Text:
    const unsigned char* at  # NULL: absent
    Py_ssize_t size
    bint escaped


cdef struct Send:
    int64_t code
    int64_t opaque
    int64_t flag
    int64_t sys_flag
    int64_t born_timestamp
    int64_t message_flag
    int64_t reconsume_times
    Text fields[LETTER_COUNT]
    unsigned char digits[LETTER_COUNT * NUMBER_MAX]  # of numbers that did not come as text


cdef struct Lane:
    Text topic
    Text queue_id_text
    unsigned char digits[NUMBER_MAX]  # of the queue id
    Run* run  # of its queue
    PyObject* traffic
    int64_t queue_id
    int64_t size  # bytes of records
    int64_t sizes[SIZE_BUCKETS]  # requests by the size of their records
    int64_t size_sum


cdef const unsigned char* json_text(
    const unsigned char* at, const unsigned char* end, Text* text
) noexcept nogil:
    """Read the JSON string that begins at `at`; return what follows, NULL when there is none."""
    if at == end or at[0] != c'"':
        return NULL
    at += 1
    text.at = at
    text.escaped = False
    while at < end:
        if at[0] == c'"':
            text.size = at - text.at
            return at + 1
        if at[0] < 0x20:
            return NULL
        if at[0] == c'\\':
            text.escaped = True
            at += 1
        at += 1
    return NULL


cdef const unsigned char* json_number(
    const unsigned char* at, const unsigned char* end, int64_t* number
) noexcept nogil:
    cdef const unsigned char* start = at
    number[0] = 0
    while at < end and c'0' <= at[0] <= c'9' and number[0] <= INT32_MAX:
        number[0] = number[0] * 10 + at[0] - c'0'
        at += 1
    if at == start or number[0] > INT32_MAX or (start[0] == c'0' and at - start > 1):
        return NULL
    return at


# Reads the fields of a command into its struct; returns what follows, NULL when they are not plain.
ctypedef const unsigned char* (*ReadFields)(
    const unsigned char* at, const unsigned char* end, void* command
) noexcept nogil


cdef const unsigned char* json_fields(
    const unsigned char* at, const unsigned char* end, void* command
) noexcept nogil:
    cdef Send* send = <Send*> command
    cdef int letter
    if at == end or at[0] != c'{':
        return NULL
    while True:
        at += 1
        if end - at < 4 or at[0] != c'"' or at[2] != c'"' or at[3] != c':':
            return NULL
        letter = at[1] - c'a'
        if not 0 <= letter < LETTER_COUNT or send.fields[letter].at != NULL:
            return NULL
        at = json_text(at + 4, end, &send.fields[letter])
        if at == NULL or at == end or (send.fields[letter].escaped and letter != PROPERTIES):
            return NULL
        if at[0] == c'}':
            return at + 1
        if at[0] != c',':
            return NULL


cdef bint is_named(Text* name, const char* word, Py_ssize_t size) noexcept nogil:
    return name.size == size and memcmp(name.at, word, size) == 0


cdef bint json_command(
    const unsigned char* at, Py_ssize_t size, int64_t* code, int64_t* opaque, int64_t* flag,
    ReadFields read_fields, void* command,
) noexcept nogil:
    cdef const unsigned char* end = at + size
    cdef Text name, text
    cdef int64_t version = 0
    cdef int bit, seen = 0
    if not size or at[0] != c'{':
        return False
    while True:
        at = json_text(at + 1, end, &name)
        if at == NULL or at == end or at[0] != c':':
            return False
        at += 1
        if is_named(&name, b"code", 4):
            bit, at = 1, json_number(at, end, code)
        elif is_named(&name, b"flag", 4):
            bit, at = 2, json_number(at, end, flag)
        elif is_named(&name, b"opaque", 6):
            bit, at = 4, json_number(at, end, opaque)
        elif is_named(&name, b"version", 7):
            bit, at = 8, json_number(at, end, &version)
        elif is_named(&name, b"extFields", 9):
            bit, at = 16, read_fields(at, end, command)
        elif is_named(&name, b"language", 8) or is_named(&name, b"serializeTypeCurrentRPC", 23):
            bit, at = 32 if name.size == 8 else 64, json_text(at, end, &text)
            if at != NULL and (text.escaped or not is_ascii(&text)):
                return False
        else:
            return False
        if at == NULL or at == end or seen & bit:
            return False
        seen |= bit
        if at[0] == c'}':
            return at + 1 == end
        if at[0] != c',':
            return False


cdef bint is_ascii(Text* text) noexcept nogil:
    cdef unsigned char seen = 0
    cdef Py_ssize_t at
    for at in range(text.size):
        seen |= text.at[at]
    return seen < 0x80


cdef bint binary_send(const unsigned char* at, Py_ssize_t size, Send* send) noexcept nogil:
    cdef Py_ssize_t left
    cdef int letter
    cdef uint32_t value_size
    if size < BINARY_HEADER_MIN or load32(at + 13):
        return False
    left = load32(at + 17)
    if not 0 <= left <= size - BINARY_HEADER_MIN:
        return False
    send.code, send.opaque, send.flag = load16(at), load32(at + 5), load32(at + 9)
    at += BINARY_HEADER_MIN
    while left:
        letter = at[2] - c'a' if left >= LETTER_ENTRY_SIZE and load16(at) == 1 else -1
        if not 0 <= letter < LETTER_COUNT or send.fields[letter].at != NULL:
            return False
        value_size = <uint32_t> load32(at + 3)
        at += LETTER_ENTRY_SIZE
        left -= LETTER_ENTRY_SIZE
        if value_size > left:
            return False
        if value_size:
            send.fields[letter].at, send.fields[letter].size = at, value_size
        at += value_size
        left -= value_size
    return True


cdef const unsigned char* msgpack_number(
    const unsigned char* at, const unsigned char* end, int64_t* number
) noexcept nogil:
    """Read an integer from 0 to INT32_MAX; return what follows, NULL when there is none."""
    cdef Py_ssize_t left = end - at
    if left > 0 and at[0] < 0x80:
        number[0] = at[0]
        return at + 1
    if left > 1 and at[0] == 0xCC:
        number[0] = at[1]
        return at + 2
    if left > 2 and at[0] == 0xCD:
        number[0] = load16(at + 1)
        return at + 3
    if left > 4 and at[0] == 0xCE:
        number[0] = load32(at + 1)
        return at + 5 if number[0] >= 0 else NULL
    return NULL


cdef const unsigned char* msgpack_text(
    const unsigned char* at, const unsigned char* end, Text* text, unsigned char* digits
) noexcept nogil:
    """Read a value that means a text: a string, a bin, a boolean, a number that is not negative.

    Returns what follows, NULL when there is none. A number's text goes to `digits`.
    """
    cdef Py_ssize_t left = end - at
    cdef int64_t number
    cdef int size = 0, kind, step
    if left <= 0:
        return NULL
    kind = at[0]
    at += 1
    if 0xA0 <= kind < 0xC0:
        text.size = kind & 0x1F
    elif kind == 0xD9 or kind == 0xC4:
        size = 1
    elif kind == 0xDA or kind == 0xC5:
        size = 2
    elif kind == 0xDB or kind == 0xC6:
        size = 4
    elif kind == 0xC2 or kind == 0xC3:
        text.at = TRUE if kind == 0xC3 else FALSE
        text.size = 4 if kind == 0xC3 else 5
        return at
    else:
        if kind < 0x80:
            size, number = 0, kind
        elif 0xCC <= kind <= 0xCF:
            size, number = 1 << kind - 0xCC, 0
        elif 0xD0 <= kind <= 0xD3:
            size, number = 1 << kind - 0xD0, 0
        else:
            return NULL
        if left <= size or (size and kind >= 0xCF and at[0] >= 0x80):
            return NULL
        for step in range(size):
            number = number << 8 | at[0]
            at += 1
        text.at, text.size = digits, put_digits(digits, <uint64_t> number) - digits
        return at
    if kind >= 0xC0:
        if left <= size:
            return NULL
        text.size = 0
        for step in range(size):
            text.size = text.size << 8 | at[0]
            at += 1
    text.at = at
    return at + text.size if text.size <= end - at else NULL


cdef const unsigned char* msgpack_command(
    const unsigned char* at, const unsigned char* end, int64_t* code, int64_t* opaque,
    int64_t* flag, int* field_count,
) noexcept nogil:
    """Read what stands before the fields; return where they begin, NULL when it is not plain."""
    cdef int64_t number = 0
    if at == end or at[0] != 0x97:
        return NULL
    at = msgpack_number(at + 1, end, code)
    if at != NULL:
        at = msgpack_number(at, end, &number)  # the language
    if at != NULL:
        at = msgpack_number(at, end, &number)  # the version
    if at != NULL:
        at = msgpack_number(at, end, opaque)
    if at != NULL:
        at = msgpack_number(at, end, flag)
    if at == NULL or end - at < 2 or at[0] != 0xC0 or not 0x80 <= at[1] < 0x90:
        return NULL
    field_count[0] = at[1] & 0xF
    return at + 2


cdef bint msgpack_send(const unsigned char* at, Py_ssize_t size, Send* send) noexcept nogil:
    cdef const unsigned char* end = at + size
    cdef int left = 0, letter
    at = msgpack_command(at, end, &send.code, &send.opaque, &send.flag, &left)
    if at == NULL:
        return False
    while left:
        if end - at < 2 or at[0] != 0xA1:
            return False
        letter = at[1] - c'a'
        if not 0 <= letter < LETTER_COUNT or send.fields[letter].at != NULL:
            return False
        at = msgpack_text(at + 2, end, &send.fields[letter], send.digits + letter * NUMBER_MAX)
        if at == NULL:
            return False
        left -= 1
    return at == end


cdef int64_t digits_of(Text* text, Py_ssize_t digits_max) noexcept nogil:
    """The number in a text, -1 when it is not just some digits."""
    cdef int64_t number = 0
    cdef Py_ssize_t at
    if not 0 < text.size <= digits_max:
        return -1
    for at in range(text.size):
        if not c'0' <= text.at[at] <= c'9':
            return -1
        number = number * 10 + text.at[at] - c'0'
    return number


cdef bint is_send(int kind, bytes header, Send* send) except -1:
    """Whether a header is that of a send with all it needs, as usual; all texts are UTF-8."""
    cdef const unsigned char* at = <const unsigned char*> PyBytes_AS_STRING(header)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(header)
    cdef Text* text
    cdef int letter
    memset(send, 0, sizeof(Send))
    if kind == JSON:
        if not json_command(
            at, size, &send.code, &send.opaque, &send.flag, json_fields, send
        ):
            return False
    elif kind == ROCKETMQ:
        if not binary_send(at, size, send):
            return False
    elif kind != MSGPACK or not msgpack_send(at, size, send):
        return False
    if send.flag & RESPONSE_FLAG or (send.code != SEND_V2 and send.code != SEND_BATCH):
        return False
    for letter in range(LETTER_COUNT):
        text = &send.fields[letter]
        if text.at == NULL:
            if letter < REQUIRED_COUNT:
                return False
        elif not is_ascii(text):
            try:
                PyUnicode_DecodeUTF8(<const char*> text.at, text.size, NULL)
            except UnicodeDecodeError:
                return False
    text = &send.fields[RECONSUME_TIMES]
    send.reconsume_times = 0 if text.at == NULL else digits_of(text, INT_DIGITS)
    text = &send.fields[MAX_RECONSUME_TIMES]
    if (
        (text.at != NULL and digits_of(text, INT_DIGITS) < 0)
        or digits_of(&send.fields[DEFAULT_QUEUES], INT_DIGITS) < 0
    ):
        return False
    send.sys_flag = digits_of(&send.fields[SYS_FLAG], INT_DIGITS)
    send.born_timestamp = digits_of(&send.fields[BORN_TIMESTAMP], LONG_DIGITS)
    send.message_flag = digits_of(&send.fields[FLAG], INT_DIGITS)
    return (
        send.reconsume_times >= 0 and send.born_timestamp >= 0 and send.message_flag >= 0
        and send.sys_flag >= 0 and not send.sys_flag & LOOKED_AT_BITS and send.opaque >= 0
    )


cdef const unsigned char* TRUE = b"true"
cdef const unsigned char* FALSE = b"false"
cdef const char* ESCAPED = b'"\\/bfnrt'
cdef const char* MEANT = b'"\\/\b\f\n\r\t'
cdef const char* HEX = b"0123456789ABCDEF"


cdef int hex_digit(unsigned char digit) noexcept nogil:
    if c'0' <= digit <= c'9':
        return digit - c'0'
    digit |= 0x20
    return digit - c'a' + 10 if c'a' <= digit <= c'f' else -1


cdef Py_ssize_t unescape(const unsigned char* at, Py_ssize_t size, unsigned char* out) noexcept nogil:
    """Write a JSON string's text and return its size; -1 when escapes are wrong, or not ASCII."""
    cdef const unsigned char* end = at + size
    cdef unsigned char* start = out
    cdef const char* found
    cdef int high, low
    while at < end:
        if at[0] != c'\\':
            out[0] = at[0]
            at += 1
            out += 1
            continue
        if end - at < 2:
            return -1
        if at[1] != c'u':
            found = <const char*> memchr(ESCAPED, at[1], 8)
            if found == NULL:
                return -1
            out[0] = MEANT[found - ESCAPED]
            at += 2
        else:
            if end - at < 6 or at[2] != c'0' or at[3] != c'0':
                return -1
            high, low = hex_digit(at[4]), hex_digit(at[5])
            if not 0 <= high < 8 or low < 0:
                return -1
            out[0] = high << 4 | low
            at += 6
        out += 1
    return out - start
