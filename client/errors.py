"""Errors of the SDK: one tree under RocketMQError, each with what to do about it.

    RocketMQError
      ConnectionFailed       no connection, or it went away under a call
        TlsError               the TLS handshake failed
      RequestTimeout         no answer in time (also a TimeoutError)
        ReplyTimeout           nobody replied to a request in time
      ReplyNotDelivered      no broker could hand a reply on
      ProtocolError          the peer broke the protocol
        UnreadableBody         a message whose producer sent a body that cannot be opened
      BrokerError            the peer answered with an error code
        SystemBusy TopicNotExist NoPermission MessageIllegal ServiceNotAvailable
        SubscriptionNotExist OffsetIllegal FilterRefused AuthError ReceiptExpired
        NotConfirmed         of ServiceNotAvailable: sent to replicas, stored or not
      RouteNotFound          nobody serves this topic
      MessageTooLarge        over the size limit of the producer
      NotDurableError        stored, but flush or replica not confirmed (only with strict=True)
      TooManyInFlight        send_nowait beyond the producer's limits
      NotFound AlreadyExists NotSupported   of administration
      IllegalState           a call that this object's state forbids
      ConsumerClosed         the consumer has stopped
      RebalanceInProgress    the queue is not assigned to this consumer at the moment

`remark` is the peer's text, verbatim. `retryable` says whether the same call may succeed later.
Source: codes from apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/ResponseCode.java; the
retry set from client/.../producer/DefaultMQProducer.java (retryResponseCodes)
"""

from __future__ import annotations

from typing import Final, Literal

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.remoting.errors import ConnectionFailed as ConnectionFailed
from skylarkmq.remoting.errors import IllegalState as IllegalState
from skylarkmq.remoting.errors import ProtocolError as ProtocolError
from skylarkmq.remoting.errors import RequestTimeout as RequestTimeout
from skylarkmq.remoting.errors import RocketMQError as RocketMQError
from skylarkmq.remoting.errors import TlsError as TlsError

RouteReason = Literal["topic_missing", "auto_create_off", "no_broker", "address_unreachable"]

DEFAULT_RETRY_CODES: Final[frozenset[int]] = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.SYSTEM_BUSY,
    }
)
"""Answers after which a send is tried elsewhere.

Unlike RocketMQ 4.9: SYSTEM_BUSY is among them, because it means "later" and nothing was stored."""

AWAY_CODES: Final[frozenset[int]] = frozenset(
    {ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SLAVE_NOT_AVAILABLE}
)
"""What a broker answers that does not lead, or not any more, when only a master may do it.

The second one is such an answer except to a send, which is stored then."""

NOT_STARTED: Final = "not started: call start() first, or use it as a context manager"
ACL_REMARK_MARK: Final = "AclException"
AUTH_HINT: Final = (
    "Check Client(credentials=Credentials(access_key, secret_key)), in Spark the options accessKey "
    "and secretKey, and the account's permissions in the broker's plain_acl.yml"
)


class ReplyTimeout(RequestTimeout):
    """A request was sent, and nobody replied to it within its time."""

    def __init__(self, topic: str, timeout_s: float) -> None:
        super().__init__(
            f"no reply to a request of topic {topic} within {timeout_s:.3g} s",
            hint="Is a consumer of the topic at work, and does it reply?",
        )
        self.topic = topic


class ReplyNotDelivered(RocketMQError):
    """No broker could hand a reply to the client that asked: it is gone, or asks no more."""


class UnreadableBody(ProtocolError):
    """A message's body cannot be opened, and its checksum is right: its producer sent it so.

    A handler that raises it has the message retried, and made a dead letter in the end; the
    messages after it go on.
    """


class BrokerError(RocketMQError):
    """The peer refused with an error code."""

    def __init__(self, code: int, remark: str, broker_addr: str, *, hint: str = "") -> None:
        super().__init__(f"{broker_addr} answered {_code_name(code)}: {remark}", hint=hint)
        self.code = code
        self.remark = remark
        self.broker_addr = broker_addr
        self.retryable = code in DEFAULT_RETRY_CODES


class SystemBusy(BrokerError):
    """The broker sheds load; try later."""


class TopicNotExist(BrokerError):
    """The broker does not know the topic and may not create it."""


class NoPermission(BrokerError):
    """The broker, topic or group does not allow it."""


class MessageIllegal(BrokerError):
    """The message is over a limit of the broker, or asks for what the broker does not take."""


class ServiceNotAvailable(BrokerError):
    """The broker cannot store now: disk full, shutting down, or a slave."""


class NotConfirmed(ServiceNotAvailable):
    """The master of a set of replicas could not have a message confirmed: it is stored, or not.

    A broker that could not write down a topic that the send itself has made answers so, too.
    """


class SubscriptionNotExist(BrokerError):
    """The broker has no subscription of this group to this topic."""


class OffsetIllegal(BrokerError):
    """The queue offset is outside the queue."""


class FilterRefused(BrokerError):
    """The broker does not filter by SQL92, or cannot read the expression."""

    def __init__(self, code: int, remark: str, broker_addr: str, *, hint: str = "") -> None:
        super().__init__(code, remark, broker_addr, hint=hint)
        self.retryable = False


class AuthError(BrokerError):
    """Access control refused the caller; the remark says why, and trying again does not help."""

    def __init__(self, code: int, remark: str, broker_addr: str, *, hint: str = "") -> None:
        super().__init__(code, remark, broker_addr, hint=hint or AUTH_HINT)
        self.retryable = False


class ReceiptExpired(BrokerError):
    """The delivery is not this consumer's any more: its invisible time was over, or it was done."""

    def __init__(self, code: int, remark: str, broker_addr: str, *, hint: str = "") -> None:
        hint = hint or "The message comes again unless it was done: give it a longer invisible time"
        super().__init__(code, remark, broker_addr, hint=hint)
        self.retryable = False


class RouteNotFound(RocketMQError):
    """No broker serves the topic; `reason` says which of the causes it is."""

    retryable = True

    def __init__(self, topic: str, reason: RouteReason, hint: str) -> None:
        super().__init__(f"no route to topic {topic} ({reason})", hint=hint)
        self.topic = topic
        self.reason: RouteReason = reason


class MessageTooLarge(RocketMQError):
    """The body exceeds the producer's `max_message_size`."""

    def __init__(self, size: int, limit: int, *, hint: str = "") -> None:
        super().__init__(f"message of {size} bytes is over the limit of {limit}", hint=hint)
        self.size = size
        self.limit = limit


class NotDurableError(RocketMQError):
    """The message is stored, but the broker could not confirm its flush or replica in time.

    To send it again later may be acknowledged, and stores a second copy.
    """

    retryable = True

    def __init__(self, result: object, status_name: str) -> None:
        super().__init__(f"stored, durability not confirmed: {status_name}")
        self.result = result


class TooManyInFlight(RocketMQError):
    """`send_nowait` came while the producer's limits were reached; await `room()` first."""

    retryable = True


class NotFound(RocketMQError):
    """There is no cluster, broker, topic, group, client or message of that name."""


class AlreadyExists(RocketMQError):
    """What was to be created is there already."""


class NotSupported(RocketMQError):
    """The peer cannot do it; the text says what can be done instead."""


class ConsumerClosed(IllegalState):
    """The consumer has been stopped."""


class RebalanceInProgress(RocketMQError):
    """The queue is not assigned to this consumer, or not any more."""

    retryable = True


BROKER_ERRORS: Final[dict[int, type[BrokerError]]] = {
    ResponseCode.SYSTEM_BUSY: SystemBusy,
    ResponseCode.TOPIC_NOT_EXIST: TopicNotExist,
    ResponseCode.NO_PERMISSION: NoPermission,
    ResponseCode.MESSAGE_ILLEGAL: MessageIllegal,
    ResponseCode.SERVICE_NOT_AVAILABLE: ServiceNotAvailable,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: SubscriptionNotExist,
    ResponseCode.PULL_OFFSET_MOVED: OffsetIllegal,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: FilterRefused,
}

HINTS: Final[dict[int, str]] = {
    ResponseCode.TOPIC_NOT_EXIST: "Create the topic, or set autoCreateTopicEnable on the broker",
    ResponseCode.NO_PERMISSION: "See the permission of the topic, the group and the broker",
    ResponseCode.MESSAGE_ILLEGAL: (
        "The remark says which: what it asks for is not allowed, or it is too large: the body has "
        "over the broker's maxMessageSize, or the properties over 32,767 bytes"
    ),
    ResponseCode.SERVICE_NOT_AVAILABLE: "The broker's log says why",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "The peer is too old, too new, or no broker",
}
REMARK_HINTS: Final = {
    "bigger than the max delay": "Give it a shorter delay, or the broker a higher timerMaxDelaySec",
    "consumed in one way at a time": "",
    "has no priorities": "Leave the priority out, or let create_topic or update_topic give the "
    "topic this type",
    "it takes a restart": "Set it in the broker's configuration file, and start the broker again",
}
"""By a part of the remark: what helps more than the hint of its code."""


def broker_error(code: int, remark: str | None, broker_addr: str) -> BrokerError:
    """Return the error that stands for an answer with `code`, not raised yet."""
    text = remark or ""
    if code == ResponseCode.SYSTEM_ERROR and ACL_REMARK_MARK in text:
        return AuthError(code, text, broker_addr)
    known = (hint for part, hint in REMARK_HINTS.items() if part in text)
    hint = next(known, HINTS.get(code, ""))
    if text and code == ResponseCode.SERVICE_NOT_AVAILABLE:
        hint = ""  # the remark says why
    return BROKER_ERRORS.get(code, BrokerError)(code, text, broker_addr, hint=hint)


def _code_name(code: int) -> str:
    known = ResponseCode._value2member_map_.get(code)
    return f"{known.name}({code})" if isinstance(known, ResponseCode) else str(code)


def is_away(error: RocketMQError) -> bool:
    """Return whether another broker may have taken the place of the one that was asked."""
    if isinstance(error, BrokerError):
        return error.code in AWAY_CODES
    return isinstance(error, ConnectionFailed | RequestTimeout | RouteNotFound)
