# Answers to sends, in JSON or msgpack: read, when they are plain.

cdef enum:
    MSG_ID = 0
    ANSWER_QUEUE_ID = 1
    ANSWER_QUEUE_OFFSET = 2
    TRANSACTION_ID = 3
    REGION = 4
    TRACE = 5
    ANSWER_FIELD_COUNT = 6
    ANSWER_REQUIRED_COUNT = 3

# The names of the fields, no two of one length.
cdef const char** ANSWER_NAMES = [
    "msgId", "queueId", "queueOffset", "transactionId", "MSG_REGION", "TRACE_ON",
]
cdef int* ANSWER_NAME_SIZES = [5, 7, 11, 13, 10, 8]


cdef struct Stored:
    int64_t code
    int64_t opaque
    int64_t flag
    Text fields[ANSWER_FIELD_COUNT]
    unsigned char digits[ANSWER_FIELD_COUNT * NUMBER_MAX]  # of numbers that did not come as text


cdef Text* answer_field(Stored* stored, Text* name) noexcept nogil:
    """Where a field belongs that is known and new here; else NULL."""
    cdef int place
    for place in range(ANSWER_FIELD_COUNT):
        if name.size == ANSWER_NAME_SIZES[place]:
            if memcmp(name.at, ANSWER_NAMES[place], name.size) or stored.fields[place].at != NULL:
                return NULL
            return &stored.fields[place]
    return NULL


cdef const unsigned char* json_answer_fields(
    const unsigned char* at, const unsigned char* end, void* command
) noexcept nogil:
    cdef Text name
    cdef Text* field
    if at == end or at[0] != c'{':
        return NULL
    while True:
        at = json_text(at + 1, end, &name)
        if at == NULL or at == end or at[0] != c':':
            return NULL
        field = answer_field(<Stored*> command, &name)
        if field == NULL:
            return NULL
        at = json_text(at + 1, end, field)
        if at == NULL or at == end or field.escaped:
            return NULL
        if at[0] == c'}':
            return at + 1
        if at[0] != c',':
            return NULL


cdef bint msgpack_answer(const unsigned char* at, Py_ssize_t size, Stored* stored) noexcept nogil:
    cdef const unsigned char* end = at + size
    cdef Text name
    cdef Text* field
    cdef int left = 0
    at = msgpack_command(at, end, &stored.code, &stored.opaque, &stored.flag, &left)
    if at == NULL:
        return False
    while left:
        if at == end or not 0xA0 <= at[0] < 0xC0:
            return False
        name.at, name.size = at + 1, at[0] & 0x1F
        if name.size > end - name.at:
            return False
        field = answer_field(stored, &name)
        if field == NULL:
            return False
        at = msgpack_text(
            name.at + name.size, end, field,
            stored.digits + (field - &stored.fields[0]) * NUMBER_MAX,
        )
        if at == NULL:
            return False
        left -= 1
    return at == end


cdef bint is_stored(int kind, bytes header, Stored* stored) noexcept:
    """Whether a header is that of a plain answer to a send."""
    cdef const unsigned char* at = <const unsigned char*> PyBytes_AS_STRING(header)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(header)
    cdef int place
    memset(stored, 0, sizeof(Stored))
    stored.opaque = -1
    if kind == JSON:
        if not json_command(
            at, size, &stored.code, &stored.opaque, &stored.flag, json_answer_fields, stored
        ):
            return False
    elif kind != MSGPACK or not msgpack_answer(at, size, stored):
        return False
    for place in range(ANSWER_FIELD_COUNT):
        if stored.fields[place].at == NULL:
            if place < ANSWER_REQUIRED_COUNT:
                return False
        elif not is_ascii(&stored.fields[place]):
            return False
    return stored.flag & RESPONSE_FLAG and stored.opaque >= 0


cdef inline str text_of(Text* text, str last):
    """The text, None without one; `last`, what a neighbour had there, when it is the same."""
    cdef const char* last_at
    cdef Py_ssize_t last_size
    if text.at == NULL:
        return None
    if last is not None:
        last_at = PyUnicode_AsUTF8AndSize(last, &last_size)
        if text.size == last_size and not memcmp(text.at, last_at, last_size):
            return last
    return PyUnicode_DecodeASCII(<const char*> text.at, text.size, NULL)


def read_stored(list frames not None):
    """`send_answer.read_stored`; None also for what is not written as brokers write it."""
    cdef Stored stored
    cdef str region = None, trace = None, some_region, some_trace
    cdef int64_t queue_id, queue_offset
    cdef int kind
    cdef list answers = []
    for frame in frames:
        kind = <object> PyTuple_GET_ITEM(frame, 0)
        if not is_stored(kind, <bytes> PyTuple_GET_ITEM(frame, 1), &stored):
            answers.append(None)
            continue
        queue_id = digits_of(&stored.fields[ANSWER_QUEUE_ID], INT_DIGITS)
        queue_offset = digits_of(&stored.fields[ANSWER_QUEUE_OFFSET], LONG_DIGITS)
        if queue_id < 0 or queue_offset < 0:
            answers.append(None)
            continue
        # Neighbours have these in common.
        some_region = text_of(&stored.fields[REGION], region)
        if some_region is not None:
            region = some_region
        some_trace = text_of(&stored.fields[TRACE], trace)
        if some_trace is not None:
            trace = some_trace
        answers.append((
            stored.opaque, stored.code,
            PyUnicode_DecodeASCII(
                <const char*> stored.fields[MSG_ID].at, stored.fields[MSG_ID].size, NULL
            ),
            queue_id, queue_offset,
            None if stored.fields[TRANSACTION_ID].at == NULL else PyUnicode_DecodeASCII(
                <const char*> stored.fields[TRANSACTION_ID].at,
                stored.fields[TRANSACTION_ID].size, NULL,
            ),
            some_region, "true" if some_trace is None else some_trace,
        ))
    return answers
