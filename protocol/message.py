"""Messages as a program holds them: the one to send, the one that came back, and the queue's name.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../message/Message.java, MessageExt.java,
MessageQueue.java
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import msgspec

from skylarkmq.protocol import properties as names
from skylarkmq.protocol.errors import LocalProtocolError
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.message_id import offset_message_id

__all__ = ["HostAddress", "Message", "MessageExt", "MessageQueue"]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_BYTES: Final = (bytearray, memoryview)
_put: Final = msgspec.structs.force_setattr


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker.

    The order of the tuples is that of Java's `compareTo` (names by UTF-16 in Java, by code point
    here; legal names are ASCII), which every client must share to divide queues alike.
    """

    topic: str
    broker_name: str
    queue_id: int


class _NoProperties(Mapping[str, str]):
    """The properties of a message without any; one object for all, since it never changes."""

    __slots__ = ()

    def __getitem__(self, name: str) -> str:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "{}"

    def __reduce__(self) -> str:
        return "NO_PROPERTIES"


NO_PROPERTIES: Final = _NoProperties()


class _Placed(msgspec.Struct, frozen=True, gc=False):
    """What stands without a name in a call of `Message`."""

    topic: str
    body: bytes


class Message(_Placed, frozen=True, kw_only=True, gc=False):
    """A message to be sent. Immutable; `msgspec.structs.replace` makes a changed one.

    `body` given as text becomes UTF-8. `keys` are the index keys: one text of keys separated by
    blanks, or several texts without a blank. `properties` are the user's own. At most one of three
    says when it is delivered: `delay_level` 1 to 18, `delay` (seconds or a timedelta) from when the
    broker stores it, or the time `deliver_at`, which names its time zone. Without any it is
    delivered at once.
    `sharding_key` picks the queue. With `wait_store_ok` false the answer does not wait for the
    flush and the replica. `flag` is the user's. `unique_key` is the message's id: any text that no
    other message has, such as an order's number, for a topic with a deduplication window; without
    it the producer makes one. `priority`, 0 or more, is for a topic of type PRIORITY: consumers
    that pop get what has the highest one first. It chooses the queue, so it stands without a
    `sharding_key`.
    """

    tags: str | None = None
    keys: str = ""
    properties: Mapping[str, str] = NO_PROPERTIES
    delay: timedelta | None = None
    delay_level: int = 0
    deliver_at: datetime | None = None
    sharding_key: str | None = None
    wait_store_ok: bool = True
    flag: int = 0
    unique_key: str | None = None
    priority: int | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            topic: str,
            body: bytes | bytearray | memoryview | str,
            *,
            tags: str | None = None,
            keys: str | Iterable[str] = (),
            properties: Mapping[str, str] | None = None,
            delay: float | timedelta | None = None,
            delay_level: int = 0,
            deliver_at: datetime | None = None,
            sharding_key: str | None = None,
            wait_store_ok: bool = True,
            flag: int = 0,
            unique_key: str | None = None,
            priority: int | None = None,
        ) -> None:
            """Take the message's parts.

            Raises:
                LocalProtocolError: (a ValueError) a part that no record can carry: a property of a
                    reserved name, an empty one, 0x00, 0x01 or 0x02 inside, a blank in one of
                    several keys, text that is no UTF-8, two times of delivery, a delay that is
                    negative, NaN or too long, a time without a zone, a flag beyond 32 bits, or a
                    priority below 0, beyond 2,147,483,647, or beside a sharding key.
                TypeError: a body that is neither bytes nor text, texts that are none, a delay that
                    is no timedelta, a time that is no datetime, or a priority that is no number.
            """

    def __post_init__(self) -> None:
        body = self.body
        if type(body) is not bytes:
            _put(self, "body", _body(body))
        tags = self.tags
        if tags and (  # as `is_forbidden`, whose call would take as long as the rest
            type(tags) is not str
            or "\0" in tags
            or "\x01" in tags
            or "\x02" in tags
            or not tags.isascii()
        ):
            _check_text("tags", tags)
        if self.keys != "":
            self._take_keys(self.keys)
        if self.properties is not NO_PROPERTIES:
            self._take_properties()
        if self.sharding_key:
            _check_text("sharding_key", self.sharding_key)
        if self.unique_key is not None:
            self._check_unique_key(self.unique_key)
        if self.delay_level or self.delay is not None or self.deliver_at is not None:
            self._check_delay()
        if self.flag and not -(1 << 31) <= self.flag < 1 << 31:
            raise LocalProtocolError("flag is a signed 32-bit number")
        if self.priority is not None:
            self._check_priority(self.priority)

    @staticmethod
    def _check_unique_key(given: str) -> None:
        _check_text("unique_key", given)
        if not given:
            raise LocalProtocolError("the unique_key is empty; None lets the producer make one")

    def _check_priority(self, given: object) -> None:
        if type(given) is not int:
            raise TypeError(f"a priority is a number, not {type(given).__name__}")
        if not 0 <= given <= names.PRIORITY_MAX:
            raise LocalProtocolError(f"a priority is 0 to {names.PRIORITY_MAX}, not {given}")
        if self.sharding_key:
            raise LocalProtocolError("a priority and a sharding_key both choose the queue")

    def __hash__(self) -> int:
        return hash((self.topic, self.body, self.tags, self.keys))

    def _take_keys(self, given: str | Iterable[str]) -> None:
        keys = given if isinstance(given, str) else _joined_keys(given)
        _check_text("keys", keys)
        _put(self, "keys", keys)

    def _take_properties(self) -> None:
        """Keep a copy of the user's own properties, checked."""
        given = self.properties
        _put(self, "properties", dict(given) if given else NO_PROPERTIES)
        for name, value in self.properties.items():
            require_text("property name", name)
            require_text("property value", value)
            if name in names.RESERVED_NAMES:
                raise LocalProtocolError(f"the property name {name} is reserved")
            if not name or not value:
                raise LocalProtocolError(f"property {name[:64]!a}: name and value may not be empty")
            _check_text("property name", name)
            _check_text("property value", value)

    def _check_delay(self) -> None:
        delay, deliver_at = cast("object", self.delay), cast("object", self.deliver_at)
        if isinstance(delay, int | float) and not isinstance(delay, bool):
            try:
                _put(self, "delay", timedelta(seconds=delay))
            except (ValueError, OverflowError):
                raise LocalProtocolError("delay is NaN or too long") from None
        elif not isinstance(delay, timedelta | None):
            raise TypeError(
                f"delay is seconds or a timedelta, not {type(delay).__name__}; RocketMQ's levels "
                "are delay_level=1 to 18"
            )
        if not isinstance(deliver_at, datetime | None):
            kind = type(deliver_at).__name__
            raise TypeError(f"deliver_at is a datetime with its time zone, not {kind}")
        if self.delay_level < 0:
            raise LocalProtocolError(f"delay_level {self.delay_level} is negative")
        if self.delay is not None and self.delay < timedelta():
            raise LocalProtocolError(f"delay {self.delay} is negative")
        if self.deliver_at is not None and self.deliver_at.utcoffset() is None:
            raise LocalProtocolError(
                "deliver_at has no time zone: use datetime.now(timezone.utc) or .astimezone()"
            )
        if (self.delay_level != 0) + (self.delay is not None) + (self.deliver_at is not None) > 1:
            raise LocalProtocolError("only one of delay, delay_level and deliver_at may be given")

    @property
    def is_timed(self) -> bool:
        """True when it waits for a time of its own; only brokers with timers deliver it then."""
        return self.deliver_at is not None or bool(self.delay)

    def to_properties(self) -> dict[str, str]:
        """Return a new dict of the properties that travel with the message, beside its id.

        Unlike RocketMQ: WAIT is there only when it is false, because every broker takes its
        absence for true.
        """
        properties = dict(self.properties)
        if self.keys:
            properties[names.KEYS] = self.keys
        if self.tags:
            properties[names.TAGS] = self.tags
        if self.delay_level:
            properties[names.DELAY] = str(self.delay_level)
        if self.delay:
            properties[names.TIMER_DELAY_MS] = str(_whole_ms(self.delay))
        if self.deliver_at is not None:
            properties[names.TIMER_DELIVER_MS] = str(_whole_ms(self.deliver_at - EPOCH))
        if self.sharding_key:
            properties[names.SHARDING_KEY] = self.sharding_key
        if self.priority is not None:
            properties[names.PRIORITY] = str(self.priority)
        if not self.wait_store_ok:
            properties[names.WAIT] = "false"
        return properties


@dataclass(slots=True, eq=False)
class MessageExt:
    """A stored message, as `record.decode_message` reads it.

    `body` is as stored, so compressed when the system flag says so. Times are milliseconds since
    the epoch: `born_timestamp` by the producer's clock, `store_timestamp` by the broker's.
    """

    topic: str
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: HostAddress
    store_timestamp: int
    store_host: HostAddress
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    properties: dict[str, str]
    body_crc: int
    store_size: int

    @property
    def tags(self) -> str | None:
        """The TAGS property."""
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> str:
        """The KEYS property, its keys separated by blanks; empty without any."""
        return self.properties.get(names.KEYS, "")

    @property
    def unique_key(self) -> str | None:
        """The id that the producer gave, property UNIQ_KEY."""
        return self.properties.get(names.UNIQ_KEY)

    @property
    def priority(self) -> int | None:
        """The PRIORITY property; None without it, or where it is no priority."""
        try:
            return names.parse_priority(self.properties.get(names.PRIORITY, ""))
        except ValueError:
            return None

    @property
    def msg_id(self) -> str:
        """The producer's id, or the offset id for a message without one."""
        return self.unique_key or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """The offset id: store host and physical offset."""
        return offset_message_id(self.store_host.pack(), self.physical_offset)


def _joined_keys(keys: Iterable[str]) -> str:
    listed = [key for key in keys if key]
    for key in listed:
        if key.split() != [key]:
            raise LocalProtocolError(f"the key {key[:64]!a} holds a blank, which separates keys")
    return names.KEY_SEPARATOR.join(listed)


def _whole_ms(span: timedelta) -> int:
    """Return milliseconds, rounded up, so that nothing is early."""
    return -(-span // _MILLISECOND)


def _body(given: bytes | bytearray | memoryview | str) -> bytes:
    if isinstance(given, str):
        return _utf8(given)
    if type(given) not in _BYTES and not isinstance(given, bytes):
        raise TypeError(f"a body is bytes or text, not {type(given).__name__}: encode it first")
    return bytes(given)


def require_text(what: str, given: object) -> None:
    """Raise a TypeError that names what is no text."""
    if not isinstance(given, str):
        raise TypeError(f"{what} is text, not {type(given).__name__}")


def require_message(given: object) -> None:
    """Raise a TypeError for what is no message, with what to write."""
    if not isinstance(given, Message):
        kind = type(given).__name__
        raise TypeError(f"a Message is sent: Message('orders', b'body'), not {kind} {given!r:.64}")


def _check_text(what: str, text: str) -> None:
    require_text(what, text)
    if names.is_forbidden(text):
        raise LocalProtocolError(
            f"{what} {text[:64]!a} holds 0x00, 0x01 or 0x02, which no property may: take it out"
        )
    if not text.isascii():
        _utf8(text)


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"{text[:64]!a} is no UTF-8 text") from error
