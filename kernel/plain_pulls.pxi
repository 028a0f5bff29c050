# Plain pulls: what is read for them, and what is answered.

cdef enum:
    PULLS_MAX = 64
    EXTENTS_MAX = 4096
    FILES_MAX = 4
    PULL_COUNT_MAX = 1024  # messages of one answer, whatever is asked
    SUBSCRIBED = 4  # bit of a pull's system flag: its subscription is in the request
    COMMITS = 1  # bit: it brings an offset of its group
    PULL_NUMBERS = 120  # bytes of an answer's numbers and their sizes, at most


cdef struct Place:  # bytes of the log
    const unsigned char* at
    Py_ssize_t size


cdef struct File:  # of the log
    int64_t start
    int64_t end  # of what readers may see
    Py_buffer view


cdef struct Plan:  # an answer
    PyObject* lane
    int64_t queue_id
    int64_t opaque
    int64_t next_offset
    int64_t min_offset
    int64_t max_offset
    int64_t commit_offset  # -1: none came
    Py_ssize_t first_place
    Py_ssize_t end_place
    Py_ssize_t count
    int64_t size


cdef struct Terms:  # `message_reader.NearTerms`
    int64_t floor
    int64_t verify_below
    bint only_kept
    int64_t units_per_file
    int64_t count_max
    int64_t size_max
    int64_t units_min
    int64_t big_count
    int64_t big_size


cdef struct Reading:  # what the pulls of a call share
    Terms terms
    Place places[EXTENTS_MAX]
    Extent extents[PULL_COUNT_MAX]
    File files[FILES_MAX]
    Plan plans[PULLS_MAX]
    Py_ssize_t place_count
    int file_count
    int plan_count


cdef bytes lane_key(Pull* pull, bint subscribed):
    """`plain_pulls.lane_key`."""
    cdef Text* subscription = &pull.fields[SUBSCRIPTION]
    cdef Py_ssize_t size = 4, place
    cdef bytes key
    cdef unsigned char* out
    for place in range(3):
        size += pull.fields[place].size
    if subscribed:
        size += subscription.size
    key = PyBytes_FromStringAndSize(NULL, size)
    out = <unsigned char*> PyBytes_AS_STRING(key)
    for place in range(3):
        memcpy(out, pull.fields[place].at, pull.fields[place].size)
        out += pull.fields[place].size
        out[0] = 0
        out += 1
    out[0] = c'+' if subscribed else c'-'
    if subscribed and subscription.size:
        memcpy(out + 1, subscription.at, subscription.size)
    return key


cdef bint scan_lane(
    object lane, int64_t offset, int64_t end, Terms* terms, Wanted* wanted, Scan* scan
) except -1:
    """Go over units of a queue, from its memory or what the lane has of its files.

    False when they cannot be had, or the first one's record is too old.
    """
    cdef object queue = lane.queue
    cdef bytearray tail
    cdef bytes units
    cdef const unsigned char* at
    cdef int64_t first, have, tail_start = queue.tail_start
    while offset < end and not scan.is_full:
        if offset >= tail_start:
            tail = queue.tail
            first, have = tail_start, len(tail) // UNIT_SIZE
            at = <const unsigned char*> PyByteArray_AS_STRING(tail)
        else:
            units, first = lane.units, lane.first_unit
            have = PyBytes_GET_SIZE(units) // UNIT_SIZE
            if not first <= offset < first + have:
                if terms.only_kept:
                    return False
                units, first = lane.read_units(offset), offset
                have = PyBytes_GET_SIZE(units) // UNIT_SIZE
            at = <const unsigned char*> PyBytes_AS_STRING(units)
        have = min(first + have, end)
        if have <= offset:
            return False
        at += (offset - first) * UNIT_SIZE
        if not scan.scanned:
            scan.first_start = load64(at)
            if scan.first_start < terms.floor:
                return False
        scan_units(at, have - offset, wanted, scan)
        offset = have
    return True


cdef const unsigned char* in_log(Reading* reading, Extent* extent, object locate) except? NULL:
    """Where the bytes of an extent are; NULL when they are not there as a whole."""
    cdef File* file
    cdef int place
    for place in range(reading.file_count):
        file = reading.files + place
        if file.start <= extent.start < file.end:
            if extent.end > file.end:
                return NULL
            return <const unsigned char*> file.view.buf + (extent.start - file.start)
    if reading.file_count == FILES_MAX:
        return NULL
    found = locate(extent.start)
    if found is None:
        return NULL
    mapped = found[0]
    file = reading.files + reading.file_count
    file.start = mapped.start_offset
    file.end = file.start + <int64_t> mapped.committed_position
    PyObject_GetBuffer(mapped.view, &file.view, PyBUF_SIMPLE)
    reading.file_count += 1
    if not file.start <= extent.start < extent.end <= min(file.end, file.start + file.view.len):
        return NULL
    return <const unsigned char*> file.view.buf + (extent.start - file.start)


cdef bint place_extents(
    Reading* reading, Scan* scan, object queue, int64_t offset, object locate
) except -1:
    """Note where the bytes that were found lie; False when one is not there or not sound."""
    cdef Extent* extent
    cdef const unsigned char* at
    cdef Place* place
    cdef bint verify = scan.first_start < reading.terms.verify_below
    cdef Py_ssize_t index, position, size, sound, sound_count = 0
    cdef int64_t queue_id = queue.queue_id if verify else 0
    cdef bytes topic_part = queue.topic_part if verify else None
    for index in range(scan.extent_count):
        extent = scan.extents + index
        at = in_log(reading, extent, locate)
        if at == NULL:
            return False
        place = reading.places + reading.place_count + index
        place.at, place.size = at, extent.end - extent.start
        if verify:
            position = sound = 0
            while position < place.size:
                size = intact_size(
                    at + position, place.size - position, extent.start + position,
                    offset + extent.place + sound, queue_id, topic_part,
                )
                if not size:
                    return False
                position += size
                sound += 1
            sound_count += sound
    return not verify or sound_count == scan.count


cdef bint plan_pull(
    Reading* reading, int kind, object frame, dict lanes, object locate
) except -1:
    """Plan the answer to a pull; False, and nothing done, when it is not plain."""
    cdef Pull pull
    cdef Text* kind_text = &pull.fields[EXPRESSION_TYPE]
    cdef Terms* terms = &reading.terms
    cdef Plan* plan = reading.plans + reading.plan_count
    cdef int64_t numbers[PULL_REQUIRED_COUNT]
    cdef int64_t offset, end, sys_flag, bytes_max
    cdef Py_ssize_t place, count
    cdef Wanted wanted
    cdef Scan scan
    cdef bint subscribed
    if (
        PyBytes_GET_SIZE(<bytes> PyTuple_GET_ITEM(frame, 2))
        or not is_pull(kind, <bytes> PyTuple_GET_ITEM(frame, 1), &pull)
    ):
        return False
    for place in range(PULL_QUEUE_ID, PULL_REQUIRED_COUNT):
        numbers[place] = digits_of(
            &pull.fields[place],
            INT_DIGITS if place in (PULL_QUEUE_ID, MAX_MSG_NUMS, PULL_SYS_FLAG) else LONG_DIGITS,
        )
        if numbers[place] < 0:
            return False
    sys_flag, bytes_max = numbers[PULL_SYS_FLAG], 0
    if pull.fields[MAX_MSG_BYTES].at != NULL:
        bytes_max = digits_of(&pull.fields[MAX_MSG_BYTES], INT_DIGITS)
        if bytes_max < 0:
            return False
    subscribed = sys_flag & SUBSCRIBED != 0
    if subscribed and kind_text.size and not is_named(kind_text, b"TAG", 3):
        return False
    lane = lanes.get(lane_key(&pull, subscribed))
    if lane is None or (not subscribed and numbers[SUB_VERSION] > <int64_t> lane.sub_version):
        return False
    queue = lane.queue
    plan.min_offset, plan.max_offset = queue.min_offset, queue.max_offset
    offset = numbers[QUEUE_OFFSET]
    if (
        queue.removed or not plan.min_offset <= offset < plan.max_offset
    ):
        return False
    note_wanted(&wanted, lane.matches)
    count = min(max(numbers[MAX_MSG_NUMS], 1), PULL_COUNT_MAX)
    memset(&scan, 0, sizeof(Scan))
    scan.extents = reading.extents
    if bytes_max > terms.size_max:
        scan.count_max, scan.size_max = min(count, terms.big_count), min(bytes_max, terms.big_size)
    else:
        scan.count_max, scan.size_max = min(count, terms.count_max), terms.size_max
    end = offset + (scan.count_max if wanted.matches == NULL else max(terms.units_min, count))
    end = min(end, plan.max_offset)
    if offset < <int64_t> queue.tail_start:  # a read of units ends with their file
        end = min(end, offset - offset % terms.units_per_file + terms.units_per_file)
    if reading.place_count + scan.count_max > EXTENTS_MAX:
        return False
    if not scan_lane(lane, offset, end, terms, &wanted, &scan):
        return False
    if scan.count and not place_extents(reading, &scan, queue, offset, locate):
        return False
    plan.lane, plan.opaque, plan.next_offset = <PyObject*> lane, pull.opaque, offset + scan.scanned
    plan.queue_id = numbers[PULL_QUEUE_ID]
    plan.commit_offset = numbers[COMMIT_OFFSET] if sys_flag & COMMITS else -1
    plan.first_place = reading.place_count
    reading.place_count += scan.extent_count
    plan.end_place = reading.place_count
    plan.count, plan.size = scan.count, scan.size
    reading.plan_count += 1
    return True


cdef unsigned char* put_pull_head(unsigned char* out, int kind, tuple parts, Plan* plan) except NULL:
    """Write an answer up to its body, around the codec's parts."""
    cdef unsigned char* start = out
    cdef unsigned char* block
    out = put_bytes(out + FRAME_PREFIX_SIZE, parts[0])
    if kind == JSON:
        out = put_digits(out, plan.next_offset)
        out = put_digits(put_bytes(out, parts[1]), plan.min_offset)
        out = put_digits(put_bytes(out, parts[2]), plan.max_offset)
        out = put_digits(put_bytes(out, parts[3]), plan.opaque)
        out = put_bytes(out, parts[4])
    elif kind == ROCKETMQ:
        store32(out, <uint32_t> plan.opaque)
        block = put_bytes(out + 4, parts[1])
        out = put_sized(put_bytes(block + 4, parts[2]), plan.next_offset)
        out = put_sized(put_bytes(out, parts[3]), plan.min_offset)
        out = put_sized(put_bytes(out, parts[4]), plan.max_offset)
        store32(block, <uint32_t> (out - block - 4))
    else:
        out = put_bytes(put_packed(out, plan.opaque), parts[1])
        out = put_bytes(put_packed(out, plan.next_offset), parts[2])
        out = put_bytes(put_packed(out, plan.min_offset), parts[3])
        out = put_packed(out, plan.max_offset)
    store32(start, <uint32_t> (out - start - 4 + plan.size))
    store32(start + 4, <uint32_t> kind << 24 | <uint32_t> (out - start - FRAME_PREFIX_SIZE))
    return out


cdef bytes pull_answers(Reading* reading, int kind, tuple found, tuple none, Py_ssize_t bound):
    cdef PyObject* answers = new_bytes(NULL, bound)
    cdef Plan* plan
    cdef Place* place
    cdef unsigned char* out
    cdef Py_ssize_t number, index
    try:
        out = <unsigned char*> PyBytes_AS_STRING(<object> answers)
        for number in range(reading.plan_count):
            plan = reading.plans + number
            out = put_pull_head(out, kind, found if plan.count else none, plan)
            for index in range(plan.first_place, plan.end_place):
                place = reading.places + index
                memcpy(out, place.at, place.size)
                out += place.size
        return cut(&answers, out)
    finally:
        Py_XDECREF(answers)


def take_pulls(
    list frames, Py_ssize_t start, dict lanes, object terms, object locate, tuple found,
    tuple none, Py_ssize_t room,
):
    """`plain_pulls.take_pulls`; it takes no more pulls than its tables hold."""
    cdef Reading* reading
    cdef Plan* plan
    cdef Py_ssize_t position = start, wire_size = 0, head_max = FRAME_PREFIX_SIZE + PULL_NUMBERS
    cdef Py_ssize_t bound = 0, found_count = 0, number
    cdef int kind = -1
    cdef list commits = []
    cdef object frame, lane, traffic
    if not 0 <= start < len(frames):
        return None
    reading = <Reading*> PyMem_Malloc(sizeof(Reading))
    if reading == NULL:
        raise MemoryError
    reading.place_count, reading.file_count, reading.plan_count = 0, 0, 0
    try:
        (
            reading.terms.floor, reading.terms.verify_below, reading.terms.only_kept,
            reading.terms.units_per_file, reading.terms.count_max, reading.terms.size_max,
            reading.terms.units_min, reading.terms.big_count, reading.terms.big_size,
        ) = terms
        kind = <object> PyTuple_GET_ITEM(frames[start], 0)
        for part in found + none:
            head_max += PyBytes_GET_SIZE(<bytes?> part)
        while position < len(frames) and bound <= room and reading.plan_count < PULLS_MAX:
            frame = frames[position]
            if (
                kind != <object> PyTuple_GET_ITEM(frame, 0)
                or not plan_pull(reading, kind, frame, lanes, locate)
            ):
                break
            bound += head_max + reading.plans[reading.plan_count - 1].size
            wire_size += FRAME_PREFIX_SIZE + PyBytes_GET_SIZE(<bytes> PyTuple_GET_ITEM(frame, 1))
            position += 1
        if position == start:
            return None
        answers = pull_answers(reading, kind, found, none, bound)
        for number in range(reading.plan_count):
            plan = reading.plans + number
            lane = <object> plan.lane
            (<dict> lane.pulled)[plan.queue_id] = plan.next_offset
            if plan.count:
                found_count += 1
                traffic = lane.traffic
                traffic.count += plan.count
                traffic.bytes += plan.size
            if plan.commit_offset >= 0:
                commits.append((lane, plan.commit_offset))
        return position - start, wire_size, answers, found_count, commits
    finally:
        for number in range(reading.file_count):
            PyBuffer_Release(&reading.files[number].view)
        PyMem_Free(reading)
