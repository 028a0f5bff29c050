# Units on their way into the queues.

cdef struct Run:
    PyObject* queue
    int64_t first
    int64_t count
    unsigned char* at  # where its next unit goes


cdef enum:
    RUNS_MAX = 32


def queue_runs(list units):
    """`consume_queue.queue_runs`; of very many queues, some may get two runs."""
    cdef Py_ssize_t start = 0, stop
    cdef list runs = []
    while start < len(units):
        stop = some_runs(units, start, runs)
        start = stop
    return runs


cdef Py_ssize_t some_runs(list units, Py_ssize_t start, list runs) except -1:
    """Add the runs of as many units as are there without too many queues; return where they end."""
    cdef Run found[RUNS_MAX]
    cdef Run* run
    cdef Py_ssize_t at, run_count = 0, end = start
    cdef int64_t number
    cdef tuple unit
    while end < len(units):  # how long each will be
        unit = units[end]
        number = unit[1]
        if number >= 0:
            run = run_of(found, run_count, <PyObject*> unit[0])
            if run == NULL or number != run.first + run.count:
                if run != NULL or run_count == RUNS_MAX:
                    break
                run = found + run_count
                run_count += 1
                run.queue, run.first, run.count = <PyObject*> unit[0], number, 0
            run.count += 1
        end += 1
    for at in range(run_count):
        run = found + at
        made = PyBytes_FromStringAndSize(NULL, run.count * UNIT_SIZE)
        run.at = <unsigned char*> PyBytes_AS_STRING(made)
        runs.append((<object> run.queue, run.first, made))
    for at in range(start, end):
        unit = units[at]
        if <int64_t> unit[1] >= 0:
            run = run_of(found, run_count, <PyObject*> unit[0])
            store64(run.at, <uint64_t> <int64_t> unit[2])
            store32(run.at + 8, <uint32_t> <int32_t> unit[3])
            store64(run.at + 12, <uint64_t> <int64_t> unit[4])
            run.at += UNIT_SIZE
    return end


cdef Run* run_of(Run* found, Py_ssize_t count, PyObject* queue) noexcept nogil:
    cdef Py_ssize_t at
    for at in range(count):
        if found[at].queue == queue:
            return found + at
    return NULL
