# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The kernel's functions, in the files that are included at the end; one module.

Whoever calls them finds the same in Python next to the call.

Bytes that come from outside are read within the bounds of their own object alone. What looks
wrong is left to the Python road, which words the refusal.
"""

from zlib import crc32

from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize,
)
from cpython.buffer cimport (
    PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject, PyTypeObject
from cpython.tuple cimport PyTuple_GET_ITEM
from cpython.unicode cimport PyUnicode_DecodeASCII, PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memmove, memset

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

# Layouts that `store/index/file.py`, `store/index/keys.py`, `store/queue/consume_queue.py`,
# `protocol/record.py`, `protocol/batch.py` and `protocol/frame.py` explain; sizes in bytes.
cdef enum:
    HEADER_SIZE = 40
    SLOT_SIZE = 4
    ITEM_SIZE = 20
    FIRST_ITEM = 1
    UNIT_SIZE = 20
    KEY_ENTRY_SIZE = 20
    FIXED_SIZE = 88
    RECORD_MIN = 91
    PHYSICAL_OFFSET_AT = 28
    LENGTHS_SIZE = 3
    IPV6_EXTRA = 12  # bytes that an IPv6 host takes more
    HOST_SIZE = 8
    PROPERTIES_MAX = 32767
    ITEM_MIN = 22
    NAME_END = 0x01
    PAIR_END = 0x02
    FRAME_PREFIX_SIZE = 8

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
cdef const unsigned char* RECEIPT = b"POP_CK\x01"
cdef enum:
    UNIQUE_SIZE = 9
    KEYS_SIZE = 5
    TAGS_SIZE = 5
    WAIT_SIZE = 5
    DELAY_SIZE = 6
    CLUSTER_SIZE = 8
    TRANSACTION_SIZE = 9
    TIMER_SIZE = 6
    RECEIPT_SIZE = 7


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


include "crc.pxi"
include "records.pxi"
include "index.pxi"
include "units.pxi"
include "frames.pxi"
include "fields.pxi"
include "pulls.pxi"
include "send_headers.pxi"
include "answers.pxi"
include "pull_headers.pxi"
include "sends.pxi"
include "departures.pxi"
include "plain_pulls.pxi"
include "pulled.pxi"
include "walks.pxi"
include "gathered.pxi"
