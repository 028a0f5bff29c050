# Frames of a read.

cdef extern from *:
    """
    static PyObject* new_frame(PyTypeObject* type, PyObject* kind, PyObject* header, PyObject* body)
    {
        PyObject* frame = type->tp_alloc(type, 3);
        if (frame) {
            Py_INCREF(kind); Py_INCREF(header); Py_INCREF(body);
            PyTuple_SET_ITEM(frame, 0, kind);
            PyTuple_SET_ITEM(frame, 1, header);
            PyTuple_SET_ITEM(frame, 2, body);
        }
        return frame;
    }
    """
    object new_frame(PyTypeObject*, object kind, object header, object body)


def cut_frames(bytes data, Py_ssize_t length_max, type frame_type not None):
    """`frame.cut_frames`; `frame_type` is a tuple of three."""
    cdef const unsigned char* start = <const unsigned char*> PyBytes_AS_STRING(data)
    cdef const unsigned char* at = start
    cdef const unsigned char* end = start + PyBytes_GET_SIZE(data)
    cdef const unsigned char* body
    cdef uint32_t length, mark
    cdef list frames = []
    if not issubclass(frame_type, tuple):
        raise TypeError("a frame is a tuple")
    while end - at >= FRAME_PREFIX_SIZE:
        length, mark = <uint32_t> load32(at), <uint32_t> load32(at + 4)
        if length > length_max or (mark & 0xFFFFFF) + 4 > length or length > end - at - 4:
            break
        body = at + FRAME_PREFIX_SIZE + (mark & 0xFFFFFF)
        header = PyBytes_FromStringAndSize(<const char*> at + FRAME_PREFIX_SIZE, mark & 0xFFFFFF)
        at += 4 + length
        frames.append(new_frame(
            <PyTypeObject*> frame_type, mark >> 24, header,
            PyBytes_FromStringAndSize(<const char*> body, at - body),
        ))
    return frames, at - start
