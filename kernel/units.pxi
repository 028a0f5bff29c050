# What stored records add to their queues and to the key index, on its way into a `Units`.

cdef enum:
    RUNS_MAX = 32
    ROW_SIZE = 24  # the number of a run, and a unit of it


cdef struct Run:  # of units that follow each other in a queue
    PyObject* queue
    int64_t first
    int64_t count
    uint32_t prefix_code  # the hash of `topic#`
    unsigned char* at  # where its next unit goes


cdef struct Packed:
    Run runs[RUNS_MAX]
    Py_ssize_t run_count
    PyObject* rows
    unsigned char* row  # where the next one goes
    PyObject* entries  # of the key index
    unsigned char* entry
    int64_t count  # of records
    int64_t first_timestamp


cdef int begin_packing(Packed* packed) except -1:
    packed.rows = packed.entries = NULL  # `end_packing` lets go what is there
    packed.run_count = packed.count = 0
    packed.rows, packed.entries = new_bytes(NULL, ROW_SIZE), new_bytes(NULL, 2 * KEY_ENTRY_SIZE)
    packed.row = <unsigned char*> PyBytes_AS_STRING(<object> packed.rows)
    packed.entry = <unsigned char*> PyBytes_AS_STRING(<object> packed.entries)
    return 0


cdef void end_packing(Packed* packed) noexcept:
    Py_XDECREF(packed.rows)
    Py_XDECREF(packed.entries)


cdef Run* add_run(
    Packed* packed, object queue, const unsigned char* topic, Py_ssize_t topic_size
) except NULL:
    """Begin the run of a queue, for which there is room."""
    cdef Run* run = packed.runs + packed.run_count
    packed.run_count += 1
    run.queue, run.first, run.count = <PyObject*> queue, queue.next_offset, 0
    run.prefix_code = hash_on(0, topic, topic_size) * 31 + c'#'
    return run


cdef int pack(
    Packed* packed, Run* run, int64_t physical_offset, Py_ssize_t size,
    const unsigned char* properties, Py_ssize_t properties_size, int64_t store_timestamp,
) except -1:
    """Add the next record of a run, a queue's: its unit, and an entry for each of its keys."""
    cdef Names names
    find_names(properties, properties_size, &names)
    packed.row = make_room(&packed.rows, packed.row, ROW_SIZE)
    store32(packed.row, <uint32_t> (run - packed.runs))
    store64(packed.row + 4, physical_offset)
    store32(packed.row + 12, <uint32_t> size)
    store64(packed.row + 16, <int64_t> <int32_t> <uint32_t> text_hash(0, names.tag, names.tag_size))
    packed.row += ROW_SIZE
    packed.entry = make_room(&packed.entries, packed.entry, entries_size(&names))
    packed.entry = put_keys(
        packed.entry, &names, run.prefix_code, physical_offset, store_timestamp
    )
    if not packed.count:
        packed.first_timestamp = store_timestamp
    packed.count += 1
    run.count += 1
    return 0


cdef unsigned char* grown(bytearray made, Py_ssize_t size) except NULL:
    """Let bytes be longer by a size; return where the new ones go."""
    cdef Py_ssize_t old_size = len(made)
    PyByteArray_Resize(made, old_size + size)
    return <unsigned char*> PyByteArray_AS_STRING(made) + old_size


cdef int hand_over(Packed* packed, object units) except -1:
    """Add everything to a `Units`, and begin anew without a run."""
    cdef Run* run
    cdef Py_ssize_t at, size
    cdef const unsigned char* row
    cdef bytearray rows
    cdef dict runs = units.runs
    for at in range(packed.run_count):
        run = packed.runs + at
        if not run.count:
            continue
        queue = <object> run.queue
        known = runs.get(queue)
        if known is None:
            rows = bytearray()
            runs[queue] = run.first, rows
        else:
            rows = (<tuple> known)[1]
        run.at = grown(rows, run.count * UNIT_SIZE)
    row = <const unsigned char*> PyBytes_AS_STRING(<object> packed.rows)
    while row < packed.row:
        run = packed.runs + load32(row)
        memcpy(run.at, row + 4, UNIT_SIZE)
        run.at += UNIT_SIZE
        row += ROW_SIZE
    size = packed.entry - <unsigned char*> PyBytes_AS_STRING(<object> packed.entries)
    memcpy(grown(units.entries, size), PyBytes_AS_STRING(<object> packed.entries), size)
    if packed.count and not units.count:
        units.store_timestamp = packed.first_timestamp
    units.count += packed.count
    packed.row = <unsigned char*> PyBytes_AS_STRING(<object> packed.rows)
    packed.entry -= size
    packed.run_count = packed.count = 0
    return 0
