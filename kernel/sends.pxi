# Plain sends: what is stored of them, and what is answered.

cdef Py_ssize_t store_properties(Text* text, bytes cluster_pair, unsigned char* out) noexcept:
    """Write what is stored of a send's properties and return its size.

    WAIT=true leaves them and CLUSTER joins them. -1 at a delay, a transaction, a timer, a zero, and
    a WAIT that says something else.
    """
    cdef Py_ssize_t size = text.size, pair_size = PyBytes_GET_SIZE(cluster_pair), start, value
    cdef const unsigned char* pair = <const unsigned char*> PyBytes_AS_STRING(cluster_pair)
    if size and text.escaped:
        size = unescape(text.at, size, out)
    elif size:
        memcpy(out, text.at, size)
    if size < 0 or size > PROPERTIES_MAX or not is_plain(out, size):
        return -1
    start = wait_at(out, size, 0)
    if start >= 0:
        value = start + WAIT_SIZE
        if (
            size - value < 4
            or memcmp(out + value, b"true", 4) != 0
            or (size - value > 4 and out[value + 4] != PAIR_END)
            or (start and out[start - 1] != PAIR_END)
            or wait_at(out, size, value) >= 0
        ):
            return -1
        if size - value == 4:
            size = max(0, start - 1)
        else:
            size -= WAIT_SIZE + 5
            memmove(out + start, out + value + 5, size - start)
    if not size:  # no separator before CLUSTER
        pair += 1
        pair_size -= 1
    if size + pair_size > PROPERTIES_MAX:
        return -1
    memcpy(out + size, pair, pair_size)
    return size + pair_size


cdef Lane* lane_of(dict lanes, Send* send, Lane* known, int* known_count) except? NULL:
    """The lane of a send, looked up once a run; NULL when there is none, or no room for it."""
    cdef Text* topic = &send.fields[TOPIC]
    cdef Text* queue_id = &send.fields[QUEUE_ID]
    cdef Lane* lane
    cdef int at
    for at in range(known_count[0]):
        lane = known + at
        if (
            lane.topic.size == topic.size
            and lane.queue_id_text.size == queue_id.size
            and memcmp(lane.queue_id_text.at, queue_id.at, queue_id.size) == 0
            and memcmp(lane.topic.at, topic.at, topic.size) == 0
        ):
            return lane
    if known_count[0] == LANES_MAX:
        return NULL
    found = lanes.get((
        PyUnicode_DecodeUTF8(<const char*> topic.at, topic.size, NULL),
        PyUnicode_DecodeUTF8(<const char*> queue_id.at, queue_id.size, NULL),
    ))
    if found is None:
        return NULL
    lane = known + known_count[0]
    known_count[0] += 1
    queue, traffic = found
    lane.queue, lane.traffic = <PyObject*> queue, <PyObject*> traffic
    lane.queue_id, lane.queue_offset = queue.queue_id, queue.next_offset
    # Texts of its own: those of the send may lie in `send.digits`, where the next one's go.
    lane.topic.at = <const unsigned char*> PyBytes_AS_STRING(<bytes> queue.topic_part) + 1
    lane.topic.size = topic.size
    lane.queue_id_text.at = lane.digits
    lane.queue_id_text.size = put_digits(lane.digits, lane.queue_id) - lane.digits
    lane.body_size = lane.count = 0
    return lane


cdef extern from "Python.h":
    PyObject* new_bytes "PyBytes_FromStringAndSize"(const char*, Py_ssize_t) except NULL
    int resize "_PyBytes_Resize"(PyObject**, Py_ssize_t) except -1
    void Py_XDECREF(PyObject*)


cdef bytes cut(PyObject** made, unsigned char* end):
    """Give bytes that nobody else has their end."""
    cdef Py_ssize_t size = end - <unsigned char*> PyBytes_AS_STRING(<object> made[0])
    resize(made, size)
    return <bytes> made[0]


cdef unsigned char* put_digits(unsigned char* out, uint64_t number) noexcept nogil:
    cdef unsigned char digits[20]
    cdef int count = 0
    while True:
        digits[count] = c'0' + number % 10
        number //= 10
        count += 1
        if not number:
            break
    while count:
        count -= 1
        out[0] = digits[count]
        out += 1
    return out


cdef unsigned char* put_sized(unsigned char* out, uint64_t number) noexcept nogil:
    """Write a number's digits after their count, as RocketMQ's binary header has them."""
    cdef unsigned char* end = put_digits(out + 4, number)
    store32(out, <uint32_t> (end - out - 4))
    return end


cdef unsigned char* put_packed(unsigned char* out, uint64_t number) noexcept nogil:
    """Write a number as msgpack does."""
    if number < 0x80:
        out[0] = number
        return out + 1
    if number < 0x100:
        out[0], out[1] = 0xCC, number
        return out + 2
    if number < 0x10000:
        out[0] = 0xCD
        store16(out + 1, <uint32_t> number)
        return out + 3
    if number >> 32 == 0:
        out[0] = 0xCE
        store32(out + 1, <uint32_t> number)
        return out + 5
    out[0] = 0xCF
    store64(out + 1, number)
    return out + 9


cdef unsigned char* put_bytes(unsigned char* out, object data) noexcept:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(<bytes> data)
    memcpy(out, PyBytes_AS_STRING(<bytes> data), size)
    return out + size


cdef unsigned char* put_id(unsigned char* out, bytes prefix, uint64_t offset) noexcept:
    """Write an offset id: the store host and the physical offset, 32 hexadecimal digits."""
    cdef int shift
    out = put_bytes(out, prefix)
    for shift in range(60, -4, -4):
        out[0] = HEX[offset >> shift & 0xF]
        out += 1
    return out


cdef unsigned char* put_answer(
    unsigned char* out, int kind, tuple parts, bytes id_prefix, int64_t opaque, int64_t offset,
    int64_t queue_id, int64_t queue_offset,
) except NULL:
    """Write the frame that says that a send is stored, around the codec's parts."""
    cdef unsigned char* start = out
    cdef unsigned char* block
    out += FRAME_PREFIX_SIZE
    out = put_bytes(out, parts[0])
    if kind == JSON:
        out = put_digits(out, queue_id)
        out = put_id(put_bytes(out, parts[1]), id_prefix, offset)
        out = put_digits(put_bytes(out, parts[2]), queue_offset)
        out = put_digits(put_bytes(out, parts[3]), opaque)
    elif kind == ROCKETMQ:
        store32(out, <uint32_t> opaque)
        block = put_bytes(out + 4, parts[1])
        out = put_bytes(block + 4, parts[2])
        store32(out, ID_SIZE)
        out = put_id(out + 4, id_prefix, offset)
        out = put_sized(put_bytes(out, parts[3]), queue_id)
        out = put_sized(put_bytes(out, parts[4]), queue_offset)
        store32(block, <uint32_t> (out - block - 4 + PyBytes_GET_SIZE(<bytes> parts[5])))
    else:
        out = put_bytes(put_packed(out, opaque), parts[1])
        out[0], out[1] = 0xD9, ID_SIZE
        out = put_id(out + 2, id_prefix, offset)
        out = put_packed(put_bytes(out, parts[2]), queue_id)
        out = put_packed(put_bytes(out, parts[3]), queue_offset)
    out = put_bytes(out, parts[len(parts) - 1])
    store32(start, <uint32_t> (out - start - 4))
    store32(start + 4, <uint32_t> kind << 24 | <uint32_t> (out - start - FRAME_PREFIX_SIZE))
    return out


def message_ids(bytes prefix, list offsets):
    """`send_answers.message_ids`."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(prefix) + ID_DIGITS + 1
    cdef Py_ssize_t count = len(offsets)
    cdef bytes ids
    cdef unsigned char* out
    if not count:
        return b""
    ids = PyBytes_FromStringAndSize(NULL, size * count - 1)
    out = <unsigned char*> PyBytes_AS_STRING(ids)
    for at in range(count):
        if at:
            out[0] = c','
            out += 1
        out = put_id(out, prefix, <int64_t> offsets[at])
    return ids


def take_sends(
    list frames, Py_ssize_t start, dict lanes, Py_ssize_t body_max, bytes cluster_pair,
    int64_t physical_offset, Py_ssize_t room, int64_t store_timestamp, bytes born_host,
    bytes store_host, bytes id_prefix, tuple parts,
):
    """Lay out the plain sends of one codec that follow each other from `start` on.

    Returns how many, the bytes of their frames, their records, units, answers, and how many of
    those. It ends at whatever the Python road must look at: what is not plain or may be wrong, a
    queue without a lane, and a record that `room` bytes do not hold. Offsets and counters of the
    lanes move at the end, all at once.
    """
    cdef Py_ssize_t count, position, bound = 0, wire_size = 0, size, topic_size, text_size
    cdef Py_ssize_t answer_max = FRAME_PREFIX_SIZE + 2 * ID_SIZE + ANSWER_NUMBERS
    cdef int64_t sys_flag, born_timestamp, flag, reconsume_times
    cdef int kind = -1, known_count = 0, answer_count = 0
    cdef Lane known[LANES_MAX]
    cdef Lane* lane
    cdef Send send
    cdef Text* text
    cdef Py_ssize_t at
    cdef PyObject* records = NULL
    cdef PyObject* answers = NULL
    cdef bytes body, properties
    cdef object frame, queue, traffic
    cdef list units = []
    cdef unsigned char* record
    cdef unsigned char* place
    cdef unsigned char* answer
    if PyBytes_GET_SIZE(born_host) != HOST_SIZE or PyBytes_GET_SIZE(store_host) != HOST_SIZE:
        return None
    if PyBytes_GET_SIZE(id_prefix) != ID_SIZE // 2:
        return None
    position = start
    while position < len(frames) and (position == start or bound < RUN_SIZE_MAX):
        frame = frames[position]
        bound += RECORD_MIN + TOPIC_MAX + PyBytes_GET_SIZE(cluster_pair) \
            + PyBytes_GET_SIZE(<bytes> PyTuple_GET_ITEM(frame, 1)) \
            + PyBytes_GET_SIZE(<bytes> PyTuple_GET_ITEM(frame, 2))
        position += 1
    count = position - start
    for part in parts:
        answer_max += len(part)
    try:
        records, answers = new_bytes(NULL, bound), new_bytes(NULL, count * answer_max)
        record = <unsigned char*> PyBytes_AS_STRING(<object> records)
        answer = <unsigned char*> PyBytes_AS_STRING(<object> answers)
        position = start
        while position < start + count:
            frame = frames[position]
            body = <bytes> PyTuple_GET_ITEM(frame, 2)
            if position == start:
                kind = <object> PyTuple_GET_ITEM(frame, 0)
            elif kind != <object> PyTuple_GET_ITEM(frame, 0):
                break
            if (
                PyBytes_GET_SIZE(body) > body_max
                or not is_send(kind, <bytes> PyTuple_GET_ITEM(frame, 1), &send)
            ):
                break
            text = &send.fields[BATCH]
            if text.at != NULL and (text.size != 5 or memcmp(text.at, b"false", 5) != 0):
                break
            text = &send.fields[RECONSUME_TIMES]
            reconsume_times = digits_of(text, INT_DIGITS) if text.size else 0
            sys_flag = digits_of(&send.fields[SYS_FLAG], INT_DIGITS)
            born_timestamp = digits_of(&send.fields[BORN_TIMESTAMP], LONG_DIGITS)
            flag = digits_of(&send.fields[FLAG], INT_DIGITS)
            if (
                reconsume_times < 0 or born_timestamp < 0 or flag < 0 or sys_flag < 0
                or sys_flag & LOOKED_AT_BITS or send.opaque < 0
            ):
                break
            lane = lane_of(lanes, &send, known, &known_count)
            if lane == NULL:
                break
            topic_size = 1 + lane.topic.size
            place = record + FIXED_SIZE + PyBytes_GET_SIZE(body) + topic_size + 2
            text_size = store_properties(&send.fields[PROPERTIES], cluster_pair, place)
            size = place - record + text_size
            if text_size < 0 or size > room:
                break
            queue = <object> lane.queue
            lay_out(
                record, size, lane.queue_id, flag, lane.queue_offset, physical_offset,
                sys_flag & ~HOSTS_BITS, born_timestamp, born_host, store_timestamp, store_host,
                reconsume_times, <const unsigned char*> PyBytes_AS_STRING(body),
                PyBytes_GET_SIZE(body), queue.topic_part, text_size,
            )
            properties = PyBytes_FromStringAndSize(<char*> place, text_size)
            units.append((
                queue, lane.queue_offset, physical_offset, size, tags_of(place, text_size),
                properties, store_timestamp,
            ))
            if not send.flag & ONEWAY_FLAG:
                answer = put_answer(
                    answer, kind, parts, id_prefix, send.opaque, physical_offset, lane.queue_id,
                    lane.queue_offset,
                )
                answer_count += 1
            lane.queue_offset += 1
            lane.count += 1
            lane.body_size += PyBytes_GET_SIZE(body)
            record += size
            room -= size
            physical_offset += size
            wire_size += FRAME_PREFIX_SIZE + PyBytes_GET_SIZE(body) \
                + PyBytes_GET_SIZE(<bytes> PyTuple_GET_ITEM(frame, 1))
            position += 1
        if position == start:
            return None
        for at in range(known_count):
            lane = known + at
            queue, traffic = <object> lane.queue, <object> lane.traffic
            queue.next_offset = lane.queue_offset
            traffic.count += lane.count
            traffic.bytes += lane.body_size
        return (
            position - start, wire_size, cut(&records, record), units, cut(&answers, answer),
            answer_count,
        )
    finally:
        Py_XDECREF(records)
        Py_XDECREF(answers)
