"""The bytes between replicas under a controller, on the HA port. No I/O.

`replica_events.py` has the messages, and who sends which. Each end begins with a preface:

    position  size  field    type
    0         8     magic    b"\\xffSKYLARK"   as an int64 below zero: no offset of a 4.9 slave
    8         4     version  uint32 BE        1

Then come frames, the follower's Hello first; a new session takes a new connection:

    position  size  field    type
    0         2     kind     uint16 BE    `Kind`
    2         4     size     uint32 BE    bytes behind this head: fields, crc and data
    6         8     term     int64 BE     of the session; in a Refused what its sender knows, from 0
    14        16    session  uint128 BE   the follower's number of it
    30        n     fields   by kind, see below
    30+n      4     crc      uint32 BE    CRC-32C of this frame up to here
    34+n      m     data     of a Part alone: bytes of the log, whose records have their own CRC

    kind  message   fields
    1     Hello     end int64, logFileSize int64, count of rows uint32,
                    cluster text, broker name text, replica id text, rows
    2     Welcome   point's term int64, point's offset int64 (both 0: nowhere), begin int64,
                    count of rows uint32, rows
    3     Refused   why text
    4     Confirm   durableEnd int64
    5     Part      offset int64, confirmed int64
    6     Beat      asked float64 (s), confirmed int64
    7     Promise   asked float64 (s), durableEnd int64
    8     TakeOver
    9     GoodBye         an end that does not know it ends the connection, as its sender does

    text  its size in bytes uint16, UTF-8
    row   term int64, start int64; terms ascend

All numbers are big endian, offsets and sizes from 0. A frame that is not exactly so ends the
connection. Whatever changes this form takes the next version; the preface stays.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from skylarkmq.broker.base.ha_protocol import PART_SIZE_MAX, REPORT_SIZE, HaProtocolError
from skylarkmq.broker.replication.failover.replica_events import (
    Beat,
    Confirm,
    GoodBye,
    Hello,
    Message,
    Part,
    Promise,
    Refused,
    TakeOver,
    Welcome,
)
from skylarkmq.broker.replication.failover.terms import (
    ROWS_MAX,
    CommonPoint,
    Lineage,
    LineageError,
    lineage_of,
)
from skylarkmq.common.crc import crc32c

MAGIC: Final = b"\xffSKYLARK"
VERSION: Final = 1
assert len(MAGIC) == REPORT_SIZE
assert int.from_bytes(MAGIC, "big", signed=True) < 0

_PREFACE: Final = struct.Struct(">8sI")
PREFACE_SIZE: Final = 12
assert _PREFACE.size == PREFACE_SIZE
PREFACE: Final = _PREFACE.pack(MAGIC, VERSION)
"""What a master sends first, also before a refusal; `encode_greeting` begins with it."""

_HEAD: Final = struct.Struct(">HIq16s")
HEAD_SIZE: Final = 30
assert _HEAD.size == HEAD_SIZE
_CRC: Final = struct.Struct(">I")
_CRC_SIZE: Final = 4
assert _CRC.size == _CRC_SIZE

_HELLO: Final = struct.Struct(">qqI")
assert _HELLO.size == 20
_WELCOME: Final = struct.Struct(">qqqI")
assert _WELCOME.size == 28
_PART: Final = struct.Struct(">qq")
assert _PART.size == 16
_TEXT: Final = struct.Struct(">H")
assert _TEXT.size == 2
_ROW: Final = struct.Struct(">qq")
assert _ROW.size == 16

PlainMessage = Confirm | Beat | Promise | TakeOver | GoodBye
NAME_SIZE_MAX: Final = 1024
WHY_SIZE_MAX: Final = 2048
"""Bytes of a refusal's text; a longer one is cut."""


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    CONFIRM = 4
    PART = 5
    BEAT = 6
    PROMISE = 7
    TAKE_OVER = 8
    GOOD_BYE = 9


_PLAIN: Final[Mapping[type[PlainMessage], tuple[Kind, struct.Struct]]] = MappingProxyType(
    {
        Confirm: (Kind.CONFIRM, struct.Struct(">q")),
        Beat: (Kind.BEAT, struct.Struct(">dq")),
        Promise: (Kind.PROMISE, struct.Struct(">dq")),
        TakeOver: (Kind.TAKE_OVER, struct.Struct(">")),
        GoodBye: (Kind.GOOD_BYE, struct.Struct(">")),
    }
)
"""Messages whose fields, after term and session, are numbers: in the order of the class."""
_SIZES: Final[Mapping[Kind, tuple[int, int]]] = MappingProxyType(
    {
        Kind.HELLO: (
            _HELLO.size + 3 * (_TEXT.size + 1),
            _HELLO.size + 3 * (_TEXT.size + NAME_SIZE_MAX) + ROWS_MAX * _ROW.size,
        ),
        Kind.WELCOME: (_WELCOME.size, _WELCOME.size + ROWS_MAX * _ROW.size),
        Kind.REFUSED: (_TEXT.size, _TEXT.size + WHY_SIZE_MAX),
        Kind.PART: (_PART.size + 1, _PART.size + PART_SIZE_MAX),
        **{kind: (layout.size, layout.size) for kind, layout in _PLAIN.values()},
    }
)
"""Bytes of fields and data, least and most; the CRC comes on top."""


class End(Enum):
    """Who speaks on a connection."""

    FOLLOWER = "follower"
    MASTER = "master"


_FIRST: Final[Mapping[End, frozenset[Kind]]] = MappingProxyType(
    {End.FOLLOWER: frozenset({Kind.HELLO}), End.MASTER: frozenset({Kind.WELCOME, Kind.REFUSED})}
)
_LATER: Final[Mapping[End, frozenset[Kind]]] = MappingProxyType(
    {
        End.FOLLOWER: frozenset({Kind.CONFIRM, Kind.PROMISE, Kind.GOOD_BYE}),
        End.MASTER: frozenset({Kind.REFUSED, Kind.PART, Kind.BEAT, Kind.TAKE_OVER}),
    }
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Which log a replica holds, and what must be the same for two logs to be equal."""

    cluster: str
    broker_name: str
    replica: str  # its id
    log_file_size: int  # bytes, from 1


@dataclass(frozen=True, slots=True)
class Greeting:
    """Who a follower is, and its Hello: the first that it says."""

    identity: Identity
    hello: Hello


class Caller(Enum):
    """Who opened a connection to the HA port."""

    REPLICA = "replica under a controller"
    SLAVE = "slave as RocketMQ 4.9 has it"


def caller_of(first: bytes) -> Caller | None:
    """Return who has sent these bytes first; None while they are too few, fewer than 8.

    Raises:
        HaProtocolError: neither speaks so.
    """
    first = first[:REPORT_SIZE]
    if len(first) < REPORT_SIZE:
        return None
    if first == MAGIC:
        return Caller.REPLICA
    if first[0] & 0x80:  # an offset below zero
        raise HaProtocolError(f"{first.hex()} begins neither a replica's greeting nor a report")
    return Caller.SLAVE


def why_foreign(ours: Identity, theirs: Identity) -> str:
    """Return why that replica must not be fed, as a text for its operator; "" when it may be."""
    if theirs.cluster != ours.cluster:
        return (
            f"this is cluster {ours.cluster!r}, and {theirs.replica!r} is of {theirs.cluster!r}: "
            "compare brokerClusterName, and the addresses in the coordination engine"
        )
    if theirs.broker_name != ours.broker_name:
        return (
            f"this is broker {ours.broker_name!r}, and {theirs.replica!r} is one of "
            f"{theirs.broker_name!r}: replicas of one log have the same brokerName"
        )
    if theirs.replica == ours.replica:
        return (
            f"both replicas have the id {ours.replica!r}, as a copied store has it: let the copy "
            "start with an empty store"
        )
    if theirs.log_file_size != ours.log_file_size:
        return (
            f"a file of the log has {ours.log_file_size} bytes here and {theirs.log_file_size} at "
            f"{theirs.replica!r}: set the same mappedFileSizeCommitLog, and let the one that "
            "changes start with an empty store"
        )
    return ""


# Encoding


def encode_greeting(identity: Identity, hello: Hello) -> bytes:
    """Return what a follower sends first: preface and Hello.

    Raises:
        HaProtocolError: a name is empty or too long.
    """
    fields = _HELLO.pack(hello.end, identity.log_file_size, len(hello.lineage))
    names = {
        "brokerClusterName": identity.cluster,
        "brokerName": identity.broker_name,
        "replica id": identity.replica,
    }
    for what, name in names.items():
        data = name.encode()
        if not 1 <= len(data) <= NAME_SIZE_MAX:
            raise HaProtocolError(
                f"the {what} has {len(data)} bytes of UTF-8: replicas take from 1 to "
                f"{NAME_SIZE_MAX}; choose a shorter one"
            )
        fields += _text(data)
    return PREFACE + _frame(Kind.HELLO, hello, fields + _rows(hello.lineage))


def encode_message(message: Welcome | Refused | PlainMessage) -> bytes:
    """Return the frame of a message; of a Part see `encode_part_head`."""
    match message:
        case Welcome(_, _, point, begin, lineage):
            term, offset = (0, 0) if point is None else point
            fields = _WELCOME.pack(term, offset, begin, len(lineage)) + _rows(lineage)
            return _frame(Kind.WELCOME, message, fields)
        case Refused(_, _, why):
            data = why.encode(errors="replace")
            if len(data) > WHY_SIZE_MAX:
                data = data[:WHY_SIZE_MAX].decode(errors="ignore").encode()
            return _frame(Kind.REFUSED, message, _text(data))
        case _:
            kind, layout = _PLAIN[type(message)]
            _, _, *numbers = (getattr(message, name) for name in message.__match_args__)
            return _frame(kind, message, layout.pack(*numbers))


def encode_part_head(part: Part) -> bytes:
    """Return what stands before the data of a part, which is sent as it is, without a copy.

    Raises:
        HaProtocolError: there is no data, or more than PART_SIZE_MAX bytes.
    """
    if not 1 <= len(part.data) <= PART_SIZE_MAX:
        raise HaProtocolError(f"{len(part.data)} bytes: a part has from 1 to {PART_SIZE_MAX}")
    return _frame(Kind.PART, part, _PART.pack(part.offset, part.confirmed), len(part.data))


def _frame(kind: Kind, message: Message, fields: bytes, data_size: int = 0) -> bytes:
    """A frame up to its CRC, which is all of it but for a part."""
    size = len(fields) + _CRC_SIZE + data_size
    frame = _HEAD.pack(kind, size, message.term, message.session.to_bytes(16, "big")) + fields
    return frame + _CRC.pack(crc32c(frame))


def _text(data: bytes) -> bytes:
    return _TEXT.pack(len(data)) + data


def _rows(lineage: Lineage) -> bytes:
    return b"".join(_ROW.pack(*row) for row in lineage)


# Decoding


class ReplicaDecoder:
    """Cuts what another replica sends into messages. Holds at most one that has not ended.

    After an error it is of no use any more, and neither is its connection.
    """

    def __init__(self, speaker: End) -> None:
        """`speaker` is the other end."""
        self._speaker = speaker
        self._allowed = _FIRST[speaker]
        self._has_preface = False
        self._pieces: list[bytes] = []
        self._size = 0  # bytes of the pieces
        self._wanted = len(MAGIC)  # bytes with which there is something to look at

    def feed(self, data: bytes) -> list[Greeting | Message]:
        """Return the messages that are whole with these bytes; a follower's first is its Greeting.

        Raises:
            HaProtocolError: the other end is no such replica, speaks another version, or damaged
                bytes came.
        """
        self._pieces.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return []
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        messages: list[Greeting | Message] = []
        place = 0
        if not self._has_preface:
            self._has_preface = _check_preface(data)
            place = PREFACE_SIZE if self._has_preface else 0
            self._wanted = HEAD_SIZE if self._has_preface else PREFACE_SIZE
        while self._has_preface and len(data) - place >= HEAD_SIZE:
            kind, size = self._check_head(data, place)
            end = place + HEAD_SIZE + size
            if end > len(data):
                self._wanted = HEAD_SIZE + size
                break
            messages.append(_READERS[kind](_Fields(kind, data, place, end)))
            self._allowed = _LATER[self._speaker]
            place, self._wanted = end, HEAD_SIZE
        rest = data[place:] if place else data
        self._pieces = [rest] if rest else []
        self._size = len(rest)
        return messages

    def _check_head(self, data: bytes, place: int) -> tuple[Kind, int]:
        """Kind and size of a frame, checked before any more of it is kept."""
        number, size, _, _ = _HEAD.unpack_from(data, place)
        try:
            kind = Kind(number)
        except ValueError:
            raise HaProtocolError(f"a frame of kind {number}: there is none") from None
        if kind not in self._allowed:
            raise HaProtocolError(f"a {kind.name} is nothing that a {self._speaker.value} says now")
        least, most = _SIZES[kind]
        if not least <= size - _CRC_SIZE <= most:
            raise HaProtocolError(
                f"a {kind.name} of {size} bytes: it has from {least + _CRC_SIZE} to "
                f"{most + _CRC_SIZE}"
            )
        return kind, size


def _check_preface(data: bytes) -> bool:
    """Check the preface as far as it is there; return whether it is whole."""
    if data[: len(MAGIC)] != MAGIC:
        raise HaProtocolError(
            f"{data[: len(MAGIC)].hex()} is no word of a replica under a controller; is the HA "
            "address that of another program, or of a broker without controllerEndpoints?"
        )
    if len(data) < PREFACE_SIZE:
        return False
    _, version = _PREFACE.unpack_from(data)
    if version != VERSION:
        raise HaProtocolError(
            f"the other replica speaks version {version} of the replicas' protocol, this one "
            f"version {VERSION}: run the same release on both"
        )
    return True


class _Fields:
    """The fields of one whole frame: its CRC is checked first, then each field as it is taken."""

    def __init__(self, kind: Kind, data: bytes, place: int, end: int) -> None:
        """The frame is `data[place:end]`."""
        self._kind = kind
        self._data = data
        self._place = place + HEAD_SIZE
        self._crc_at = self._place + _PART.size if kind is Kind.PART else end - _CRC_SIZE
        self._end = end
        (crc,) = _CRC.unpack_from(data, self._crc_at)
        if crc != crc32c(data[place : self._crc_at]):
            raise HaProtocolError(
                f"the CRC-32C of a {kind.name} does not match: something on the way changed it"
            )
        _, _, self.term, session = _HEAD.unpack_from(data, place)
        self.session = int.from_bytes(session, "big")
        if self.term < (0 if kind is Kind.REFUSED else 1):
            raise self.error(f"there is no term {self.term}")

    def error(self, why: str) -> HaProtocolError:
        return HaProtocolError(f"a {self._kind.name} that no replica sends: {why}")

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Take numbers; none may be below zero, and times are finite."""
        numbers = layout.unpack_from(self._data, self._move(layout.size))
        for number in numbers:
            if isinstance(number, float):
                if not math.isfinite(number):
                    raise self.error(f"{number} is no time")
            elif number < 0:
                raise self.error(f"{number} is below zero")
        return numbers

    def text(self, least: int, most: int) -> str:
        """Take a text of so many bytes."""
        (size,) = self.take(_TEXT)
        if not least <= size <= most:
            raise self.error(f"a text of {size} bytes, from {least} to {most} may be")
        begin = self._move(size)
        try:
            return self._data[begin : self._place].decode()
        except UnicodeDecodeError as error:
            raise self.error(f"a text is no UTF-8: {error}") from error

    def rows(self, count: int) -> Lineage:
        """Take the rows of a log."""
        begin = self._move(count * _ROW.size)
        try:
            return lineage_of(_ROW.iter_unpack(self._data[begin : self._place]))
        except LineageError as error:
            raise self.error(str(error)) from error

    def close(self) -> bytes:
        """Return what is behind the fields, which are all taken: nothing, but for a part."""
        if self._place != self._crc_at:
            raise self.error(f"{self._crc_at - self._place} bytes behind its fields")
        return self._data[self._crc_at + _CRC_SIZE : self._end]

    def _move(self, size: int) -> int:
        """Go on by so many bytes, and return where they begin."""
        begin = self._place
        if size > self._crc_at - begin:
            raise self.error(f"{size} bytes of a field go beyond its end")
        self._place = begin + size
        return begin


def _greeting(fields: _Fields) -> Greeting:
    end, log_file_size, count = fields.take(_HELLO)
    cluster, broker_name, replica = (fields.text(1, NAME_SIZE_MAX) for _ in range(3))
    lineage = fields.rows(count)
    fields.close()
    if log_file_size == 0:
        raise fields.error("a file of its log has no bytes")
    hello = Hello(fields.term, fields.session, end, lineage)
    return Greeting(Identity(cluster, broker_name, replica, log_file_size), hello)


def _welcome(fields: _Fields) -> Welcome:
    term, offset, begin, count = fields.take(_WELCOME)
    lineage = fields.rows(count)
    fields.close()
    if term == 0 and offset != 0:
        raise fields.error(f"offset {offset} is of no term")
    point = None if term == 0 else CommonPoint(term, offset)
    return Welcome(fields.term, fields.session, point, begin, lineage)


def _refused(fields: _Fields) -> Refused:
    why = fields.text(0, WHY_SIZE_MAX)
    fields.close()
    return Refused(fields.term, fields.session, why)


def _part(fields: _Fields) -> Part:
    offset, confirmed = fields.take(_PART)
    return Part(fields.term, fields.session, offset, fields.close(), confirmed)


def _plain(message: type[PlainMessage], layout: struct.Struct, fields: _Fields) -> PlainMessage:
    numbers = fields.take(layout)
    fields.close()
    return message(fields.term, fields.session, *numbers)


_READERS: Final[Mapping[Kind, Callable[[_Fields], Greeting | Message]]] = MappingProxyType(
    {
        Kind.HELLO: _greeting,
        Kind.WELCOME: _welcome,
        Kind.REFUSED: _refused,
        Kind.PART: _part,
        **{kind: partial(_plain, message, layout) for message, (kind, layout) in _PLAIN.items()},
    }
)
