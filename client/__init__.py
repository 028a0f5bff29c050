"""The SDK: an asyncio client of SkylarkMQ and Apache RocketMQ.

A producer sends, a consumer receives; `async with` starts and stops each:

    async with Producer(namesrv_addr="127.0.0.1:9876") as producer:
        await producer.send(Message("orders", b"hello"))
"""

from skylarkmq.client.admin import Admin
from skylarkmq.client.config import (
    AckMode,
    AddressMap,
    ClientSettings,
    Codec,
    Compression,
    ConsumerSettings,
    Credentials,
    Model,
    ProducerSettings,
)
from skylarkmq.client.consumer.allocate import (
    Allocation,
    Assignment,
    Configured,
    ConsistentHash,
    MachineRooms,
    NearbyRooms,
)
from skylarkmq.client.consumer.consumer import Consumer
from skylarkmq.client.consumer.handlers import BatchHandler, Handler
from skylarkmq.client.consumer.peek_reader import PeekReader, PeekStart, PeekStop
from skylarkmq.client.consumer.rebalance import QueuesCallback
from skylarkmq.client.consumer.simple_consumer import SimpleConsumer
from skylarkmq.client.consumer.subscription import Selector, Sql92, StartFrom, Tag
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
    RouteReason,
    ServiceNotAvailable,
    SubscriptionNotExist,
    SystemBusy,
    TlsError,
    TooManyInFlight,
    TopicNotExist,
    UnreadableBody,
)
from skylarkmq.client.instance import Client
from skylarkmq.client.message_json import BodyForm
from skylarkmq.client.message_view import MessageView, StoredMessage
from skylarkmq.client.popped_message import PoppedMessage
from skylarkmq.client.producer.lanes import QueueSelector
from skylarkmq.client.producer.producer import Producer
from skylarkmq.client.producer.reply_table import Reply
from skylarkmq.client.producer.send_pipeline import SendStats
from skylarkmq.client.producer.sender import Outcome
from skylarkmq.client.producer.transaction import (
    Check,
    HalfMessage,
    Transaction,
    TransactionState,
)
from skylarkmq.client.received_message import ReceivedMessage
from skylarkmq.client.send_result import SendResult, SendStatus
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.message import HostAddress, Message, MessageExt, MessageQueue
from skylarkmq.protocol.topic_attributes import DeduplicationWindow, MessageType
from skylarkmq.remoting.stream import Network
from skylarkmq.remoting.tls import ServerHostname, SslSetting

__all__ = [
    "DEFAULT_RETRY_CODES",
    "AckMode",
    "AddressMap",
    "Admin",
    "Allocation",
    "AlreadyExists",
    "Assignment",
    "AuthError",
    "BatchHandler",
    "BodyForm",
    "BrokerError",
    "Check",
    "Client",
    "ClientSettings",
    "Clock",
    "Codec",
    "Compression",
    "Configured",
    "ConnectionFailed",
    "ConsistentHash",
    "Consumer",
    "ConsumerClosed",
    "ConsumerSettings",
    "Credentials",
    "DeduplicationWindow",
    "FilterRefused",
    "HalfMessage",
    "Handler",
    "HostAddress",
    "IllegalState",
    "MachineRooms",
    "Message",
    "MessageExt",
    "MessageIllegal",
    "MessageQueue",
    "MessageTooLarge",
    "MessageType",
    "MessageView",
    "Model",
    "NearbyRooms",
    "Network",
    "NoPermission",
    "NotConfirmed",
    "NotDurableError",
    "NotFound",
    "NotSupported",
    "OffsetIllegal",
    "Outcome",
    "PeekReader",
    "PeekStart",
    "PeekStop",
    "PoppedMessage",
    "Producer",
    "ProducerSettings",
    "ProtocolError",
    "QueueSelector",
    "QueuesCallback",
    "RebalanceInProgress",
    "ReceiptExpired",
    "ReceivedMessage",
    "Reply",
    "ReplyNotDelivered",
    "ReplyTimeout",
    "RequestTimeout",
    "RocketMQError",
    "RouteNotFound",
    "RouteReason",
    "Selector",
    "SendResult",
    "SendStats",
    "SendStatus",
    "ServerHostname",
    "ServiceNotAvailable",
    "SimpleConsumer",
    "Sql92",
    "SslSetting",
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
