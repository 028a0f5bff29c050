"""From the header and body of a send to the messages that are stored.

What the broker changes: WAIT leaves the stored text and CLUSTER joins it; a delayed message keeps
WAIT, goes to the schedule topic, and carries its target in REAL_TOPIC and REAL_QID; a dead letter
is not delayed. The first half of a transaction keeps WAIT, too, and goes to the half topic
(`transaction/messages.py`). The parts of a batch keep their own text, followed by the batch's.
POP_CK is never stored: who sends on what he has popped names the receipt that he had, and clients
that pop would take it for theirs.

Unlike RocketMQ, which looks at no property of a batch's part: it delivers one with a delay level at
once, and half a transaction, too.

Pure; loop thread.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/SendMessageProcessor.java
(asyncSendMessage, asyncSendBatchMessage), store/.../CommitLog.java (asyncPutMessage);
apache/rocketmq@rocketmq-all-5.3.3 broker/.../processor/SendMessageProcessor.java
(clearReservedProperties: POP_CK alone)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from skylarkmq.broker.processor.send_checks import Target, multi_tag_flag
from skylarkmq.broker.transaction.messages import (
    half_of,
    is_transactional,
    without_transaction,
)
from skylarkmq.protocol.batch import has_more_items, split_batch
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.compression import looks_compressed
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import (
    RETRY_GROUP_TOPIC_PREFIX,
    MessageSysFlag,
    transaction_type,
)
from skylarkmq.protocol.headers.send import SendMessageRequestHeader
from skylarkmq.protocol.properties import (
    MAX_PROPERTIES_SIZE,
    TAGS_AND_SEPARATOR,
    find_property,
    join_properties,
    with_property,
    without_property,
)
from skylarkmq.protocol.record import FIXED_BY_HOSTS, LENGTHS_SIZE, MIN_BLANK_SIZE
from skylarkmq.protocol.tags_code import cached_tags_code
from skylarkmq.store.config import StoreConfig
from skylarkmq.store.delay_levels import DelayLevels, parse_level
from skylarkmq.store.results import MessageInner
from skylarkmq.store.timer.rules import (
    TimerRefusedError,
    TimerRules,
    asks_for_timer,
    without_timer,
)

_WAIT = b"WAIT\x01"
_DELAY = b"DELAY\x01"
_TIMER = b"TIMER_"
_RECEIPT = b"POP_CK"
_ASKS_FOR_MORE = (_TIMER, _DELAY, b"TRAN_MSG\x01", _RECEIPT + b"\x01")
_INVISIBLE = (
    MessageSysFlag.TRANSACTION_PREPARED_TYPE,
    MessageSysFlag.TRANSACTION_ROLLBACK_TYPE,
)
_PAIR_END = b"\x02"
_PAIR_END_BYTE = 2
BATCH_COUNT_MAX = 32_768  # messages of one batch, which all are stored in one turn of the loop
BATCH_GROWTH_MAX = 8  # bytes stored for a byte of the largest batch body
_FIXED_SIZE_MAX = max(layout.size for layout in FIXED_BY_HOSTS)


# One message of a batch: body, stored properties, the application's flag, tags code. A plain tuple
# because one is made for each of them.
BatchPart = tuple[bytes, bytes, int, int]


class BatchHead(NamedTuple):
    """What the messages of a batch share."""

    properties: bytes  # encoded; they follow those of each message
    wait: bool
    sys_flag: int
    extra_size: int  # an upper bound of what a record has beside its part of the body, bytes


class SendMessages:
    """Makes messages, or refuses them with RocketMQ's code."""

    def __init__(
        self,
        cluster: str,
        store_host: bytes,
        config: StoreConfig,
        delay_levels: DelayLevels,
        timer_rules: TimerRules,
        *,
        transaction_refusal: str | None = None,
    ) -> None:
        """Make messages for one broker.

        Args:
            transaction_refusal: why no transactional message is taken; None when they are.
        """
        self._cluster = cluster.encode()
        self._store_host = store_host
        self._config = config
        self._delay_levels = delay_levels
        self._timer_rules = timer_rules
        self._transaction_refusal = transaction_refusal
        # A message takes five times its part of the body and more: it must fit into one log file,
        # and a small request must not fill the memory.
        self.batch_size_max = min(
            config.mapped_file_size_commit_log - MIN_BLANK_SIZE,
            BATCH_GROWTH_MAX * config.max_message_size,
        )

    def single(
        self, born_host: bytes, body: bytes, header: SendMessageRequestHeader, target: Target
    ) -> MessageInner:
        """Return the message of one send.

        Raises:
            RemoteProtocolError: it is too large, wants what this broker does not do, or names a
                delay that is no number.
        """
        self._check_body(body)
        _check_compressed(header.sys_flag, (body,))
        properties = without_property(_encoded(header.properties), _RECEIPT)
        if target.to_dlq:
            properties = with_property(properties, b"DELAY", b"0")
        properties, wait = take_wait(properties)
        level = _delay_level(properties)
        asks = is_transactional(properties)
        # A retry of a committed message, by clients under 4.6.1, says TRAN_MSG as well.
        is_half = asks and not (header.reconsume_times > 0 and (level or target.to_dlq))
        self._check_transaction(header.sys_flag, asks=asks, is_half=is_half)
        if level or is_half:
            properties = join_properties(properties, _WAIT + (b"true" if wait else b"false"))
        properties = with_property(properties, b"CLUSTER", self._cluster)
        inner = self._inner(born_host, body, properties, header.flag, header, target, wait)
        if asks and not is_half:
            inner = without_transaction(inner)
        if is_half:
            inner = _half(inner, level)
        elif level:
            inner.properties = without_timer(inner.properties)
            inner = self._delay_levels.redirect(inner, level)
        elif properties.find(_TIMER) >= 0:
            inner = self._timed(inner)
        _check_properties(inner.properties)
        return inner

    def _check_transaction(self, sys_flag: int, *, asks: bool, is_half: bool) -> None:
        if is_half and self._transaction_refusal is not None:
            raise RemoteProtocolError(ResponseCode.NO_PERMISSION, self._transaction_refusal)
        # Unlike RocketMQ, which stores it where nobody ever finds it.
        if not asks and transaction_type(sys_flag) in _INVISIBLE:
            raise _illegal("its flag says that it is half a transaction, TRAN_MSG does not")

    def _timed(self, inner: MessageInner) -> MessageInner:
        try:
            timed = self._timer_rules.redirect(inner)
        except TimerRefusedError as error:
            code = ResponseCode.MESSAGE_ILLEGAL if error.is_illegal else ResponseCode.SYSTEM_ERROR
            raise RemoteProtocolError(code, str(error)) from error
        if timed is not inner:  # it shows whether its sender waited, as a delayed one does
            wait = _WAIT + (b"true" if inner.wait_store_ok else b"false")
            timed.properties = join_properties(timed.properties, wait)
        return timed

    def batch_head(
        self, body: bytes, header: SendMessageRequestHeader, target: Target
    ) -> BatchHead:
        """Return what the messages of a batch share.

        Raises:
            RemoteProtocolError: as `single`.
        """
        self._check_body(body)
        batch_level = without_property(_encoded(header.properties), _RECEIPT)
        if is_transactional(batch_level) or transaction_type(header.sys_flag):
            raise _illegal("a batch cannot be transactional")
        if _delay_level(batch_level) or target.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            raise _illegal("a batch can neither be delayed nor be a retry")
        if batch_level.find(_TIMER) >= 0 and asks_for_timer(batch_level):
            raise _illegal("a batch cannot be delayed")
        _, wait = take_wait(batch_level)
        batch_level = with_property(batch_level, b"CLUSTER", self._cluster)
        extra_size = _FIXED_SIZE_MAX + LENGTHS_SIZE + len(target.topic) + len(batch_level) + 1
        room = (self.batch_size_max - len(body)) // extra_size
        if has_more_items(body, min(room, BATCH_COUNT_MAX)):  # before the work that they cost
            raise _illegal(
                f"the batch has more than {BATCH_COUNT_MAX} messages; split it"
                if room >= BATCH_COUNT_MAX
                else f"the batch's messages would take more than {self.batch_size_max}B in the "
                "log; split it"
            )
        sys_flag = header.sys_flag | multi_tag_flag(target.config)
        return BatchHead(batch_level, wait, sys_flag, extra_size)

    def batch_parts(self, body: bytes, head: BatchHead) -> list[BatchPart]:
        """Return the messages of a batch, at least one; nothing is stored before all are sound.

        Raises:
            RemoteProtocolError: as `single`, and for a body that is no batch.
        """
        items = split_batch(body)
        _check_compressed(head.sys_flag, (part_body for _, part_body, _ in items))
        texts = _PAIR_END.join([text for _, _, text in items])  # looked at once, not one by one
        asks_for_more = any([texts.find(name) >= 0 for name in _ASKS_FOR_MORE])
        has_zero = texts.find(0) >= 0 or head.properties.find(0) >= 0
        parts: list[BatchPart] = []
        for flag, part_body, inner_level in items:
            if asks_for_more:
                inner_level = _plain_part(inner_level)
            properties = join_properties(inner_level, head.properties)
            if has_zero or len(properties) > MAX_PROPERTIES_SIZE:
                _check_properties(properties)
            tags = find_property(properties, TAGS_AND_SEPARATOR)
            tags_code = 0 if tags is None else cached_tags_code(tags)
            parts.append((part_body, properties, flag, tags_code))
        return parts

    def _inner(
        self,
        born_host: bytes,
        body: bytes,
        properties: bytes,
        flag: int,
        header: SendMessageRequestHeader,
        target: Target,
        wait: bool,
    ) -> MessageInner:
        tags = find_property(properties, TAGS_AND_SEPARATOR)
        return MessageInner(
            target.topic,
            target.queue_id,
            body,
            properties,
            born_host,
            self._store_host,
            header.born_timestamp,
            0 if tags is None else cached_tags_code(tags),
            flag,
            header.sys_flag | multi_tag_flag(target.config),
            header.reconsume_times,
            wait_store_ok=wait,
        )

    def _check_body(self, body: bytes) -> None:
        limit = self._config.max_message_size
        if len(body) > limit:
            raise _illegal(f"msg body length limit {limit}B, this one has {len(body)}B")


def _check_compressed(sys_flag: int, bodies: Iterable[bytes]) -> None:
    # Unlike RocketMQ, which stores it: no consumer could ever read it.
    if sys_flag & MessageSysFlag.COMPRESSED_FLAG and not all(
        looks_compressed(body, sys_flag) for body in bodies
    ):
        raise _illegal("its flag says that the body is compressed, its first bytes do not")


def _encoded(properties: str | None) -> bytes:
    try:
        return (properties or "").encode()
    except UnicodeEncodeError as error:
        raise _illegal("the properties hold a character that UTF-8 cannot carry") from error


def _illegal(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        ResponseCode.MESSAGE_ILLEGAL,
        f"the message is illegal, maybe msg body or properties length not matched. {why}",
    )


def _plain_part(properties: bytes) -> bytes:
    """Return the properties of a batch's message, which must ask for no more than to be stored."""
    if asks_for_timer(properties) or _delay_level(properties):
        raise _illegal("a message of a batch cannot be delayed; send it by itself")
    if is_transactional(properties):
        raise _illegal("a message of a batch cannot be transactional; send it by itself")
    return without_property(properties, _RECEIPT)


def _half(inner: MessageInner, level: int) -> MessageInner:
    try:
        return half_of(inner, level)
    except ValueError as error:
        raise _illegal(str(error)) from error


def _delay_level(properties: bytes) -> int:
    value = find_property(properties, _DELAY)
    if value is None:
        return 0
    try:
        return max(0, parse_level(value))
    except ValueError as error:
        raise _illegal(str(error)) from error


def _check_properties(properties: bytes) -> None:
    if len(properties) > MAX_PROPERTIES_SIZE:
        raise _illegal(
            f"msg properties length limit {MAX_PROPERTIES_SIZE}B, these have {len(properties)}B"
        )
    # Unlike RocketMQ, which takes them: recovery reads zeros there as a part that never reached
    # the disk, so that a sender of zeros could end the log for everybody.
    if (at := properties.find(0)) >= 0:
        pair = properties[properties.rfind(b"\x02", 0, at) + 1 : at]
        raise _illegal(f"property {pair[:64]!a} holds a zero byte: take it out")


def take_wait(properties: bytes) -> tuple[bytes, bool]:
    """Split WAIT off: the properties without it, and whether the sender waits for the disk."""
    start = properties.find(_WAIT)
    if start < 0:
        return properties, True
    value_start = start + len(_WAIT)
    end = properties.find(_PAIR_END, value_start)
    value = properties[value_start:end] if end >= 0 else properties[value_start:]
    if (
        (start and properties[start - 1] != _PAIR_END_BYTE)
        or not value
        or (end >= 0 and properties.find(_WAIT, end) >= 0)
    ):  # part of another name, or not the only one: as a reader of the text would take it
        found = find_property(properties, _WAIT)
        wait = found is None or found.lower() == b"true"
        return without_property(properties, b"WAIT"), wait
    rest = (
        properties[:start] + properties[end + 1 :] if end >= 0 else properties[: max(0, start - 1)]
    )
    return rest, value.lower() == b"true"
