# Headers of pulls (code 11) in any of the three codecs: read, when they are plain.

cdef enum:
    PULL_MESSAGE = 11
    CONSUMER_GROUP = 0
    PULL_TOPIC = 1
    PULL_QUEUE_ID = 2
    QUEUE_OFFSET = 3
    MAX_MSG_NUMS = 4
    PULL_SYS_FLAG = 5
    COMMIT_OFFSET = 6
    SUSPEND_TIMEOUT = 7
    SUB_VERSION = 8
    PULL_REQUIRED_COUNT = 9
    SUBSCRIPTION = 9
    EXPRESSION_TYPE = 10
    MAX_MSG_BYTES = 11
    PULL_FIELD_COUNT = 13
    NAME_SIZE_MAX = 31

cdef const char** PULL_NAMES = [
    b"consumerGroup", b"topic", b"queueId", b"queueOffset", b"maxMsgNums", b"sysFlag",
    b"commitOffset", b"suspendTimeoutMillis", b"subVersion", b"subscription", b"expressionType",
    b"maxMsgBytes", b"bname",
]
cdef int* PULL_NAME_SIZES = [13, 5, 7, 11, 10, 7, 12, 20, 10, 12, 14, 11, 5]


cdef struct Pull:
    int64_t code
    int64_t opaque
    int64_t flag
    Text fields[PULL_FIELD_COUNT]
    unsigned char digits[PULL_FIELD_COUNT * NUMBER_MAX]  # of numbers that did not come as text


cdef int pull_field(Pull* pull, const unsigned char* name, Py_ssize_t size) noexcept nogil:
    """The place of a field that was not there yet, -1 for any other."""
    cdef int place
    for place in range(PULL_FIELD_COUNT):
        if PULL_NAME_SIZES[place] == size and memcmp(PULL_NAMES[place], name, size) == 0:
            return place if pull.fields[place].at == NULL else -1
    return -1


cdef const unsigned char* json_pull_fields(
    const unsigned char* at, const unsigned char* end, void* command
) noexcept nogil:
    cdef Pull* pull = <Pull*> command
    cdef Text name
    cdef int place
    if at == end or at[0] != c'{':
        return NULL
    while True:
        at = json_text(at + 1, end, &name)
        if at == NULL or at == end or at[0] != c':':
            return NULL
        place = pull_field(pull, name.at, name.size)
        if place < 0:
            return NULL
        at = json_text(at + 1, end, &pull.fields[place])
        if at == NULL or at == end or pull.fields[place].escaped:
            return NULL
        if at[0] == c'}':
            return at + 1
        if at[0] != c',':
            return NULL


cdef bint binary_pull(const unsigned char* at, Py_ssize_t size, Pull* pull) noexcept nogil:
    cdef Py_ssize_t left, name_size
    cdef int place
    cdef uint32_t value_size
    if size < BINARY_HEADER_MIN or load32(at + 13):
        return False
    left = load32(at + 17)
    if not 0 <= left <= size - BINARY_HEADER_MIN:
        return False
    pull.code, pull.opaque, pull.flag = load16(at), load32(at + 5), load32(at + 9)
    at += BINARY_HEADER_MIN
    while left:
        name_size = load16(at) if left >= 6 else 0
        if not 0 < name_size <= min(left - 6, NAME_SIZE_MAX):
            return False
        place = pull_field(pull, at + 2, name_size)
        if place < 0:
            return False
        value_size = <uint32_t> load32(at + 2 + name_size)
        at += 6 + name_size
        left -= 6 + name_size
        if value_size > left:
            return False
        if value_size:
            pull.fields[place].at, pull.fields[place].size = at, value_size
        at += value_size
        left -= value_size
    return True


cdef bint msgpack_pull(const unsigned char* at, Py_ssize_t size, Pull* pull) noexcept nogil:
    cdef const unsigned char* end = at + size
    cdef int left = 0, name_size, place
    at = msgpack_command(at, end, &pull.code, &pull.opaque, &pull.flag, &left)
    if at == NULL:
        return False
    while left:
        name_size = at[0] & 0x1F if at < end and 0xA0 <= at[0] < 0xC0 else 0
        if not 0 < name_size < end - at:
            return False
        place = pull_field(pull, at + 1, name_size)
        if place < 0:
            return False
        at = msgpack_text(
            at + 1 + name_size, end, &pull.fields[place], pull.digits + place * NUMBER_MAX
        )
        if at == NULL:
            return False
        left -= 1
    return at == end


cdef bint is_pull(int kind, bytes header, Pull* pull) except -1:
    """Whether a header is that of a pull with all it needs, in which all texts are ASCII."""
    cdef const unsigned char* at = <const unsigned char*> PyBytes_AS_STRING(header)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(header)
    cdef int place
    memset(pull, 0, sizeof(Pull))
    if kind == JSON:
        if not json_command(
            at, size, &pull.code, &pull.opaque, &pull.flag, json_pull_fields, pull
        ):
            return False
    elif kind == ROCKETMQ:
        if not binary_pull(at, size, pull):
            return False
    elif kind != MSGPACK or not msgpack_pull(at, size, pull):
        return False
    if pull.code != PULL_MESSAGE or pull.flag & (RESPONSE_FLAG | ONEWAY_FLAG) or pull.opaque < 0:
        return False
    for place in range(PULL_FIELD_COUNT):
        if pull.fields[place].at == NULL:
            if place < PULL_REQUIRED_COUNT:
                return False
        elif not is_ascii(&pull.fields[place]):
            return False
    return True
