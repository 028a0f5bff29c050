# Plain sends, of a message or a batch: what is stored of them, and what is answered.

cdef Py_ssize_t store_properties(
    Text* text, bytes cluster_pair, bint is_batch, unsigned char* out
) noexcept:
    """Write what is stored of a send's properties and return its size.

    CLUSTER joins them, and WAIT=true leaves them, but not those of a batch. -1 at a delay, a
    transaction, a timer, a receipt, a zero, and a WAIT that says something else.
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
        if is_batch:
            pass
        elif size - value == 4:
            size = max(0, start - 1)
        else:
            size -= WAIT_SIZE + 5
            memmove(out + start, out + value + 5, size - start)
    if not size or (is_batch and out[size - 1] == PAIR_END):  # no separator before CLUSTER
        pair += 1
        pair_size -= 1
    if size + pair_size > PROPERTIES_MAX:
        return -1
    memcpy(out + size, pair, pair_size)
    return size + pair_size


cdef Lane* lane_of(dict lanes, Send* send, Lane* known, Packed* packed) except? NULL:
    """The lane of a send, looked up once a run; NULL when there is none, or no room for it."""
    cdef Text* topic = &send.fields[TOPIC]
    cdef Text* queue_id = &send.fields[QUEUE_ID]
    cdef Lane* lane
    cdef Py_ssize_t at
    for at in range(packed.run_count):
        lane = known + at
        if (
            lane.topic.size == topic.size
            and lane.queue_id_text.size == queue_id.size
            and memcmp(lane.queue_id_text.at, queue_id.at, queue_id.size) == 0
            and memcmp(lane.topic.at, topic.at, topic.size) == 0
        ):
            return lane
    if packed.run_count == LANES_MAX:
        return NULL
    found = lanes.get((
        PyUnicode_DecodeUTF8(<const char*> topic.at, topic.size, NULL),
        PyUnicode_DecodeUTF8(<const char*> queue_id.at, queue_id.size, NULL),
    ))
    if found is None:
        return NULL
    lane = known + packed.run_count
    queue, traffic = found
    lane.traffic, lane.queue_id = <PyObject*> traffic, queue.queue_id
    # Texts of its own: those of the send may lie in `send.digits`, where the next one's go.
    lane.topic.at = <const unsigned char*> PyBytes_AS_STRING(<bytes> queue.topic_part) + 1
    lane.topic.size = topic.size
    lane.run = add_run(packed, queue, lane.topic.at, lane.topic.size)
    lane.queue_id_text.at = lane.digits
    lane.queue_id_text.size = put_digits(lane.digits, lane.queue_id) - lane.digits
    lane.size = lane.size_sum = 0
    memset(lane.sizes, 0, sizeof(lane.sizes))
    return lane


cdef int64_t SIZE_BOUNDS[SIZE_BUCKETS - 1]
SIZE_BOUNDS[:] = [1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20]


cdef void note_size(Lane* lane, int64_t size) noexcept nogil:
    """Count a request by the size of its record, or the average of its records."""
    cdef int bucket = 0
    while bucket < SIZE_BUCKETS - 1 and size > SIZE_BOUNDS[bucket]:
        bucket += 1
    lane.sizes[bucket] += 1
    lane.size_sum += size


cdef int add_sizes(Lane* lane, object sizes) except -1:
    """Add the sizes that a lane has noted to a histogram."""
    cdef list counts = sizes.counts
    cdef Py_ssize_t bucket
    for bucket in range(SIZE_BUCKETS):
        if lane.sizes[bucket]:
            counts[bucket] += lane.sizes[bucket]
    sizes.sum = <double> sizes.sum + lane.size_sum
    return 0


cdef extern from "Python.h":
    PyObject* new_bytes "PyBytes_FromStringAndSize"(const char*, Py_ssize_t) except NULL
    int resize "_PyBytes_Resize"(PyObject**, Py_ssize_t) except -1
    void Py_XDECREF(PyObject*)


cdef unsigned char* make_room(PyObject** made, unsigned char* end, Py_ssize_t size) except NULL:
    """See to it that so much can be written from `end` on; return where that is now."""
    cdef Py_ssize_t used = end - <unsigned char*> PyBytes_AS_STRING(<object> made[0])
    cdef Py_ssize_t capacity = PyBytes_GET_SIZE(<object> made[0])
    if size > capacity - used:
        resize(made, max(2 * capacity, used + size))
    return <unsigned char*> PyBytes_AS_STRING(<object> made[0]) + used


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


cdef unsigned char* put_ids(
    unsigned char* out, bytes prefix, const unsigned char* record, Py_ssize_t count
) noexcept:
    """Write the offset ids of records: the store host and the physical offset, in hexadecimal."""
    cdef uint64_t offset
    cdef int shift
    while True:
        out = put_bytes(out, prefix)
        offset = load64(record + PHYSICAL_OFFSET_AT)
        for shift in range(60, -4, -4):
            out[0] = HEX[offset >> shift & 0xF]
            out += 1
        count -= 1
        if not count:
            return out
        record += load32(record)
        out[0] = c','
        out += 1


cdef unsigned char* put_answer(
    unsigned char* out, int kind, tuple parts, bytes id_prefix, int64_t opaque,
    const unsigned char* record, Py_ssize_t count, int64_t queue_id, int64_t queue_offset,
) except NULL:
    """Write the frame that says that some records are stored, around the codec's parts."""
    cdef unsigned char* start = out
    cdef unsigned char* block
    cdef uint32_t ids_size = <uint32_t> (count * (ID_SIZE + 1) - 1)
    out += FRAME_PREFIX_SIZE
    out = put_bytes(out, parts[0])
    if kind == JSON:
        out = put_digits(out, queue_id)
        out = put_ids(put_bytes(out, parts[1]), id_prefix, record, count)
        out = put_digits(put_bytes(out, parts[2]), queue_offset)
        out = put_digits(put_bytes(out, parts[3]), opaque)
    elif kind == ROCKETMQ:
        store32(out, <uint32_t> opaque)
        block = put_bytes(out + 4, parts[1])
        out = put_bytes(block + 4, parts[2])
        store32(out, ids_size)
        out = put_ids(out + 4, id_prefix, record, count)
        out = put_sized(put_bytes(out, parts[3]), queue_id)
        out = put_sized(put_bytes(out, parts[4]), queue_offset)
        store32(block, <uint32_t> (out - block - 4 + PyBytes_GET_SIZE(<bytes> parts[5])))
    else:
        out = put_bytes(put_packed(out, opaque), parts[1])
        if ids_size < 0x100:
            out[0], out[1] = 0xD9, ids_size
            out += 2
        elif ids_size < 0x10000:
            out[0] = 0xDA
            store16(out + 1, ids_size)
            out += 3
        else:
            out[0] = 0xDB
            store32(out + 1, ids_size)
            out += 5
        out = put_ids(out, id_prefix, record, count)
        out = put_packed(put_bytes(out, parts[2]), queue_id)
        out = put_packed(put_bytes(out, parts[3]), queue_offset)
    out = put_bytes(out, parts[len(parts) - 1])
    store32(start, <uint32_t> (out - start - 4))
    store32(start + 4, <uint32_t> kind << 24 | <uint32_t> (out - start - FRAME_PREFIX_SIZE))
    return out


cdef struct Batch:
    Py_ssize_t count
    Py_ssize_t size  # of the records, without what the request's properties add
    Py_ssize_t properties_max  # of a message, with the separator that follows


cdef bint is_batch_of(bytes body, Py_ssize_t topic_size, Batch* batch) noexcept:
    """Whether a body is that of a batch in which everything is usual."""
    cdef const unsigned char* at = <const unsigned char*> PyBytes_AS_STRING(body)
    cdef const unsigned char* end = at + PyBytes_GET_SIZE(body)
    cdef const unsigned char* properties
    cdef Py_ssize_t size, body_size, own_size
    batch.count = batch.size = batch.properties_max = 0
    while at < end:
        if end - at < ITEM_MIN:
            return False
        size, body_size = load32(at), load32(at + 16)
        if size < ITEM_MIN or size > end - at or not 0 <= body_size <= size - ITEM_MIN:
            return False
        own_size = size - ITEM_MIN - body_size
        properties = at + size - own_size
        if load16(properties - 2) != own_size or not is_plain_part(properties, own_size):
            return False
        if own_size and properties[own_size - 1] != PAIR_END:
            own_size += 1
        batch.properties_max = max(batch.properties_max, own_size)
        batch.size += RECORD_MIN + body_size + topic_size - 1 + own_size
        batch.count += 1
        at += size
    return batch.count > 0


cdef unsigned char* lay_out_batch(
    unsigned char* out, bytes body, const unsigned char* shared, Py_ssize_t shared_size,
    Send* send, Lane* lane, int64_t physical_offset, bytes born_host, int64_t store_timestamp,
    bytes store_host, Packed* packed,
) except NULL:
    """Write the records of a batch, whose properties end with `shared`, and return their end."""
    cdef const unsigned char* at = <const unsigned char*> PyBytes_AS_STRING(body)
    cdef const unsigned char* end = at + PyBytes_GET_SIZE(body)
    cdef Run* run = lane.run
    cdef bytes topic = (<object> run.queue).topic_part
    cdef Py_ssize_t body_size, own_size, joined_size, size
    while at < end:
        body_size = load32(at + 16)
        own_size = load32(at) - ITEM_MIN - body_size
        joined_size = own_size + shared_size
        if own_size and at[load32(at) - 1] != PAIR_END:
            joined_size += 1
        size = RECORD_MIN + body_size + PyBytes_GET_SIZE(topic) - 1 + joined_size
        out = lay_out(
            out, size, lane.queue_id, load32(at + 12), run.first + run.count, physical_offset,
            send.sys_flag & ~HOSTS_BITS, send.born_timestamp, born_host, store_timestamp,
            store_host, send.reconsume_times, at + 20, body_size, topic, joined_size,
        )
        memcpy(out, at + 22 + body_size, own_size)
        if joined_size > own_size + shared_size:
            out[own_size] = PAIR_END
        memcpy(out + joined_size - shared_size, shared, shared_size)
        pack(packed, run, physical_offset, size, out, joined_size, store_timestamp)
        out += joined_size
        at += load32(at)
        physical_offset += size
    return out


def take_sends(
    list frames, list peers, Py_ssize_t start, dict lanes, Py_ssize_t body_max, Py_ssize_t batch_size_max,
    bytes cluster_pair, int64_t physical_offset, Py_ssize_t room, int64_t store_timestamp,
    bytes store_host, bytes id_prefix, tuple parts, units not None,
):
    """Lay out the plain sends of one codec that follow each other from `start` on.

    `peers` are the connections of the frames; the last is that of all that follow. Returns how many
    were taken, the bytes of their frames, their records, and answers as `send_answers.Sent` has
    them; `units`, a `Units`, gets the rest. It ends at whatever Python's way must look at: what is
    not plain or may be wrong, a queue without a lane, and what `room` bytes do not hold. Units,
    offsets and counters of the lanes move at the end, all at once.
    """
    cdef Py_ssize_t position, bound = 0, wire_size = 0, size, count, text_size
    cdef Py_ssize_t answer_max = FRAME_PREFIX_SIZE + 2 * ID_SIZE + ANSWER_NUMBERS
    cdef Py_ssize_t extra_max = RECORD_MIN + TOPIC_MAX + PyBytes_GET_SIZE(cluster_pair)
    cdef int kind = -1, answer_count = 0
    cdef bint is_batch
    cdef Lane known[LANES_MAX]
    cdef Lane* lane
    cdef Packed packed
    cdef Run* run
    cdef Batch batch
    cdef Send send
    cdef Text* text
    cdef Py_ssize_t at
    cdef PyObject* records = NULL
    cdef PyObject* answers = NULL
    cdef bytes body, born_host = b""
    cdef object frame, traffic, peer = None
    cdef list sent = []
    cdef unsigned char* record
    cdef unsigned char* place
    cdef unsigned char* answer
    cdef unsigned char* first_answer
    if PyBytes_GET_SIZE(store_host) != HOST_SIZE or PyBytes_GET_SIZE(id_prefix) != ID_SIZE // 2:
        return None
    if not peers:
        return None
    position = start
    while position < len(frames) and (position == start or bound < RUN_SIZE_MAX):
        frame = frames[position]
        bound += extra_max + PyBytes_GET_SIZE(<bytes> PyTuple_GET_ITEM(frame, 1)) \
            + PyBytes_GET_SIZE(<bytes> PyTuple_GET_ITEM(frame, 2))
        position += 1
    count = position - start
    for part in parts:
        answer_max += len(part)
    try:
        begin_packing(&packed)
        records, answers = new_bytes(NULL, bound), new_bytes(NULL, count * answer_max)
        record = <unsigned char*> PyBytes_AS_STRING(<object> records)
        answer = first_answer = <unsigned char*> PyBytes_AS_STRING(<object> answers)
        position = start
        while position < len(frames) and (position == start or wire_size < RUN_SIZE_MAX):
            frame = frames[position]
            body = <bytes> PyTuple_GET_ITEM(frame, 2)
            if position == start:
                kind = <object> PyTuple_GET_ITEM(frame, 0)
            elif kind != <object> PyTuple_GET_ITEM(frame, 0):
                break
            if peer is not peers[min(position, len(peers) - 1)]:
                if answer_count:
                    sent.append((peer, kind, answer_count, first_answer[:answer - first_answer]))
                    answer, answer_count = first_answer, 0
                peer = peers[min(position, len(peers) - 1)]
                born_host = peer.host_bytes
            if (
                PyBytes_GET_SIZE(born_host) != HOST_SIZE or PyBytes_GET_SIZE(body) > body_max
                or not is_send(kind, <bytes> PyTuple_GET_ITEM(frame, 1), &send)
            ):
                break
            text = &send.fields[BATCH]
            is_batch = text.size == 4 and memcmp(text.at, TRUE, 4) == 0
            if not is_batch and (
                send.code == SEND_BATCH
                or (text.at != NULL and (text.size != 5 or memcmp(text.at, FALSE, 5) != 0))
            ):
                break
            lane = lane_of(lanes, &send, known, &packed)
            if lane == NULL:
                break
            run = lane.run
            text = &send.fields[PROPERTIES]
            if is_batch:
                if not is_batch_of(body, 1 + lane.topic.size, &batch):
                    break
                text_size = text.size + PyBytes_GET_SIZE(cluster_pair)
                size = PyBytes_GET_SIZE(body) + batch.count * (
                    RECORD_MIN + IPV6_HOSTS_EXTRA + lane.topic.size + text_size + 1
                )  # as much as the slow path reserves
                if batch.count > BATCH_COUNT_MAX or size > batch_size_max or size > room:
                    break
                record = make_room(&records, record, size + text_size)
                place = record + size  # which nothing else needs
                text_size = store_properties(text, cluster_pair, True, place)
                if text_size < 0 or batch.properties_max + text_size > PROPERTIES_MAX:
                    break
                size = batch.size + batch.count * text_size
                lay_out_batch(
                    record, body, place, text_size, &send, lane, physical_offset, born_host,
                    store_timestamp, store_host, &packed,
                )
                count = batch.count
            else:
                record = make_room(
                    &records, record, extra_max + PyBytes_GET_SIZE(body)
                    + PyBytes_GET_SIZE(<bytes> PyTuple_GET_ITEM(frame, 1)),
                )
                place = record + FIXED_SIZE + PyBytes_GET_SIZE(body) + 1 + lane.topic.size + 2
                text_size = store_properties(text, cluster_pair, False, place)
                size = place - record + text_size
                if text_size < 0 or size > room:
                    break
                lay_out(
                    record, size, lane.queue_id, send.message_flag, run.first + run.count,
                    physical_offset, send.sys_flag & ~HOSTS_BITS, send.born_timestamp, born_host,
                    store_timestamp, store_host, send.reconsume_times,
                    <const unsigned char*> PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body),
                    (<object> run.queue).topic_part, text_size,
                )
                pack(&packed, run, physical_offset, size, place, text_size, store_timestamp)
                count = 1
            if not send.flag & ONEWAY_FLAG:
                answer = put_answer(
                    make_room(&answers, answer, answer_max + count * (ID_SIZE + 1)), kind, parts,
                    id_prefix, send.opaque, record, count, lane.queue_id,
                    run.first + run.count - count,
                )
                first_answer = <unsigned char*> PyBytes_AS_STRING(<object> answers)
                answer_count += 1
            lane.size += size
            note_size(lane, size // count if is_batch else size)
            record += size
            room -= size
            physical_offset += size
            wire_size += FRAME_PREFIX_SIZE + PyBytes_GET_SIZE(body) \
                + PyBytes_GET_SIZE(<bytes> PyTuple_GET_ITEM(frame, 1))
            position += 1
        if position == start:
            return None
        for at in range(packed.run_count):
            lane = known + at
            run, traffic = lane.run, <object> lane.traffic
            (<object> run.queue).next_offset = run.first + run.count
            traffic.count += run.count
            traffic.bytes += lane.size
            add_sizes(lane, traffic.sizes)
        if answer_count:
            sent.append((peer, kind, answer_count, cut(&answers, answer)))
        hand_over(&packed, units)
        return position - start, wire_size, cut(&records, record), sent
    finally:
        end_packing(&packed)
        Py_XDECREF(records)
        Py_XDECREF(answers)
