"""The SDK: an asyncio client of SkylarkMQ and Apache RocketMQ.

A producer sends, a consumer receives; `async with` starts and stops each:

    async with Producer(namesrv_addr="127.0.0.1:9876") as producer:
        await producer.send(Message("orders", b"hello"))
"""

from skylarkmq.client.admin import Admin
from skylarkmq.client.config import Credentials
from skylarkmq.client.consumer.consumer import Consumer
from skylarkmq.client.consumer.peek_reader import PeekReader
from skylarkmq.client.consumer.simple_consumer import SimpleConsumer
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
    NotConfirmed,
    NotDurableError,
    NotFound,
    NotSupported,
    OffsetIllegal,
    ProtocolError,
    RebalanceInProgress,
    ReceiptExpired,
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
from skylarkmq.client.message_view import MessageView, StoredMessage
from skylarkmq.client.popped_message import PoppedMessage
from skylarkmq.client.producer.checks import HalfMessage, TransactionState
from skylarkmq.client.producer.producer import Producer
from skylarkmq.client.producer.reply_table import Reply
from skylarkmq.client.producer.send_pipeline import SendStats
from skylarkmq.client.producer.transaction import Transaction
from skylarkmq.client.received_message import ReceivedMessage
from skylarkmq.client.send_result import SendResult, SendStatus
from skylarkmq.protocol.message import Message, MessageQueue
from skylarkmq.protocol.topic_attributes import DeduplicationWindow, MessageType

__all__ = [
    "DEFAULT_RETRY_CODES",
    "Admin",
    "AlreadyExists",
    "AuthError",
    "BrokerError",
    "Client",
    "ConnectionFailed",
    "Consumer",
    "ConsumerClosed",
    "Credentials",
    "DeduplicationWindow",
    "FilterRefused",
    "HalfMessage",
    "IllegalState",
    "Message",
    "MessageIllegal",
    "MessageQueue",
    "MessageTooLarge",
    "MessageType",
    "MessageView",
    "NoPermission",
    "NotConfirmed",
    "NotDurableError",
    "NotFound",
    "NotSupported",
    "OffsetIllegal",
    "PeekReader",
    "PoppedMessage",
    "Producer",
    "ProtocolError",
    "RebalanceInProgress",
    "ReceiptExpired",
    "ReceivedMessage",
    "Reply",
    "ReplyNotDelivered",
    "ReplyTimeout",
    "RequestTimeout",
    "RocketMQError",
    "RouteNotFound",
    "SendResult",
    "SendStats",
    "SendStatus",
    "ServiceNotAvailable",
    "SimpleConsumer",
    "Sql92",
    "StartFrom",
    "StoredMessage",
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
