"""The SDK: an asyncio client of SkylarkMQ and Apache RocketMQ.

async with Producer(namesrv_addr="127.0.0.1:9876") as producer:
    await producer.send(Message("orders", b"hello"))
"""

from skylarkmq.client.admin import Admin
from skylarkmq.client.config import Credentials
from skylarkmq.client.consumer.allocate import (
    Configured,
    ConsistentHash,
    MachineRooms,
    NearbyRooms,
)
from skylarkmq.client.consumer.consumer import Consumer
from skylarkmq.client.consumer.peek_reader import PeekedMessage, PeekReader
from skylarkmq.client.consumer.received_message import ReceivedMessage
from skylarkmq.client.consumer.subscription import Sql92, StartFrom, Tag
from skylarkmq.client.errors import (
    DEFAULT_RETRY_CODES,
    AlreadyExists,
    AuthError,
    BrokerError,
    ConnectionFailed,
    ConsumerClosed,
    FilterRefused,
    IllegalState,
    MessageIllegal,
    MessageTooLarge,
    NoPermission,
    NotDurableError,
    NotFound,
    NotSupported,
    OffsetIllegal,
    ProtocolError,
    RebalanceInProgress,
    ReplyNotDelivered,
    ReplyTimeout,
    RequestTimeout,
    RocketMQError,
    RouteNotFound,
    ServiceNotAvailable,
    SubscriptionNotExist,
    SystemBusy,
    TlsError,
    TooManyInFlight,
    TopicNotExist,
    UnreadableBody,
)
from skylarkmq.client.instance import Client
from skylarkmq.client.message_view import MessageView, StoredView
from skylarkmq.client.producer.producer import Producer
from skylarkmq.client.producer.reply_table import Reply
from skylarkmq.client.producer.send_result import SendResult, SendStatus
from skylarkmq.client.producer.transaction import HalfMessage, Transaction, TransactionState
from skylarkmq.protocol.message import HostAddress, Message, MessageQueue

__all__ = [
    "DEFAULT_RETRY_CODES",
    "Admin",
    "AlreadyExists",
    "AuthError",
    "BrokerError",
    "Client",
    "Configured",
    "ConnectionFailed",
    "ConsistentHash",
    "Consumer",
    "ConsumerClosed",
    "Credentials",
    "FilterRefused",
    "HalfMessage",
    "HostAddress",
    "IllegalState",
    "MachineRooms",
    "Message",
    "MessageIllegal",
    "MessageQueue",
    "MessageTooLarge",
    "MessageView",
    "NearbyRooms",
    "NoPermission",
    "NotDurableError",
    "NotFound",
    "NotSupported",
    "OffsetIllegal",
    "PeekReader",
    "PeekedMessage",
    "Producer",
    "ProtocolError",
    "RebalanceInProgress",
    "ReceivedMessage",
    "Reply",
    "ReplyNotDelivered",
    "ReplyTimeout",
    "RequestTimeout",
    "RocketMQError",
    "RouteNotFound",
    "SendResult",
    "SendStatus",
    "ServiceNotAvailable",
    "Sql92",
    "StartFrom",
    "StoredView",
    "SubscriptionNotExist",
    "SystemBusy",
    "Tag",
    "TlsError",
    "TooManyInFlight",
    "TopicNotExist",
    "Transaction",
    "TransactionState",
    "UnreadableBody",
]
