# mypy: disable-error-code="misc,metaclass"
# Made from schema.proto by `make schema`.
import datetime
from collections.abc import Iterable as _Iterable
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar

from google.protobuf import descriptor as _descriptor
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import message as _message
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper

DESCRIPTOR: _descriptor.FileDescriptor

class ClientType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLIENT_TYPE_UNSPECIFIED: _ClassVar[ClientType]
    PRODUCER: _ClassVar[ClientType]
    PUSH_CONSUMER: _ClassVar[ClientType]
    SIMPLE_CONSUMER: _ClassVar[ClientType]
    PULL_CONSUMER: _ClassVar[ClientType]
    LITE_PUSH_CONSUMER: _ClassVar[ClientType]
    LITE_SIMPLE_CONSUMER: _ClassVar[ClientType]

class Language(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LANGUAGE_UNSPECIFIED: _ClassVar[Language]
    JAVA: _ClassVar[Language]
    CPP: _ClassVar[Language]
    DOT_NET: _ClassVar[Language]
    GOLANG: _ClassVar[Language]
    RUST: _ClassVar[Language]
    PYTHON: _ClassVar[Language]
    PHP: _ClassVar[Language]
    NODE_JS: _ClassVar[Language]
    RUBY: _ClassVar[Language]
    OBJECTIVE_C: _ClassVar[Language]
    DART: _ClassVar[Language]
    KOTLIN: _ClassVar[Language]

class MessageType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MESSAGE_TYPE_UNSPECIFIED: _ClassVar[MessageType]
    NORMAL: _ClassVar[MessageType]
    FIFO: _ClassVar[MessageType]
    DELAY: _ClassVar[MessageType]
    TRANSACTION: _ClassVar[MessageType]
    LITE: _ClassVar[MessageType]
    PRIORITY: _ClassVar[MessageType]

class Encoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODING_UNSPECIFIED: _ClassVar[Encoding]
    IDENTITY: _ClassVar[Encoding]
    GZIP: _ClassVar[Encoding]

class DigestType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIGEST_TYPE_UNSPECIFIED: _ClassVar[DigestType]
    CRC32: _ClassVar[DigestType]
    MD5: _ClassVar[DigestType]
    SHA1: _ClassVar[DigestType]

class FilterType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FILTER_TYPE_UNSPECIFIED: _ClassVar[FilterType]
    TAG: _ClassVar[FilterType]
    SQL: _ClassVar[FilterType]

class Permission(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PERMISSION_UNSPECIFIED: _ClassVar[Permission]
    NONE: _ClassVar[Permission]
    READ: _ClassVar[Permission]
    WRITE: _ClassVar[Permission]
    READ_WRITE: _ClassVar[Permission]

class AddressScheme(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADDRESS_SCHEME_UNSPECIFIED: _ClassVar[AddressScheme]
    IPv4: _ClassVar[AddressScheme]
    IPv6: _ClassVar[AddressScheme]
    DOMAIN_NAME: _ClassVar[AddressScheme]

class TransactionResolution(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSACTION_RESOLUTION_UNSPECIFIED: _ClassVar[TransactionResolution]
    COMMIT: _ClassVar[TransactionResolution]
    ROLLBACK: _ClassVar[TransactionResolution]

class TransactionSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SOURCE_UNSPECIFIED: _ClassVar[TransactionSource]
    SOURCE_CLIENT: _ClassVar[TransactionSource]
    SOURCE_SERVER_CHECK: _ClassVar[TransactionSource]

CLIENT_TYPE_UNSPECIFIED: ClientType
PRODUCER: ClientType
PUSH_CONSUMER: ClientType
SIMPLE_CONSUMER: ClientType
PULL_CONSUMER: ClientType
LITE_PUSH_CONSUMER: ClientType
LITE_SIMPLE_CONSUMER: ClientType
LANGUAGE_UNSPECIFIED: Language
JAVA: Language
CPP: Language
DOT_NET: Language
GOLANG: Language
RUST: Language
PYTHON: Language
PHP: Language
NODE_JS: Language
RUBY: Language
OBJECTIVE_C: Language
DART: Language
KOTLIN: Language
MESSAGE_TYPE_UNSPECIFIED: MessageType
NORMAL: MessageType
FIFO: MessageType
DELAY: MessageType
TRANSACTION: MessageType
LITE: MessageType
PRIORITY: MessageType
ENCODING_UNSPECIFIED: Encoding
IDENTITY: Encoding
GZIP: Encoding
DIGEST_TYPE_UNSPECIFIED: DigestType
CRC32: DigestType
MD5: DigestType
SHA1: DigestType
FILTER_TYPE_UNSPECIFIED: FilterType
TAG: FilterType
SQL: FilterType
PERMISSION_UNSPECIFIED: Permission
NONE: Permission
READ: Permission
WRITE: Permission
READ_WRITE: Permission
ADDRESS_SCHEME_UNSPECIFIED: AddressScheme
IPv4: AddressScheme
IPv6: AddressScheme
DOMAIN_NAME: AddressScheme
TRANSACTION_RESOLUTION_UNSPECIFIED: TransactionResolution
COMMIT: TransactionResolution
ROLLBACK: TransactionResolution
SOURCE_UNSPECIFIED: TransactionSource
SOURCE_CLIENT: TransactionSource
SOURCE_SERVER_CHECK: TransactionSource

class Status(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: int | None = ..., message: str | None = ...) -> None: ...

class Resource(_message.Message):
    __slots__ = ("name", "resource_namespace")
    RESOURCE_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    resource_namespace: str
    name: str
    def __init__(self, resource_namespace: str | None = ..., name: str | None = ...) -> None: ...

class Address(_message.Message):
    __slots__ = ("host", "port")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    def __init__(self, host: str | None = ..., port: int | None = ...) -> None: ...

class Endpoints(_message.Message):
    __slots__ = ("addresses", "scheme")
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    scheme: AddressScheme
    addresses: _containers.RepeatedCompositeFieldContainer[Address]
    def __init__(
        self,
        scheme: AddressScheme | str | None = ...,
        addresses: _Iterable[Address | _Mapping[str, object]] | None = ...,
    ) -> None: ...

class Broker(_message.Message):
    __slots__ = ("endpoints", "id", "name")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: int
    endpoints: Endpoints
    def __init__(
        self,
        name: str | None = ...,
        id: int | None = ...,
        endpoints: Endpoints | _Mapping[str, object] | None = ...,
    ) -> None: ...

class MessageQueue(_message.Message):
    __slots__ = ("accept_message_types", "broker", "id", "permission", "topic")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_MESSAGE_TYPES_FIELD_NUMBER: _ClassVar[int]
    topic: Resource
    id: int
    permission: Permission
    broker: Broker
    accept_message_types: _containers.RepeatedScalarFieldContainer[MessageType]
    def __init__(
        self,
        topic: Resource | _Mapping[str, object] | None = ...,
        id: int | None = ...,
        permission: Permission | str | None = ...,
        broker: Broker | _Mapping[str, object] | None = ...,
        accept_message_types: _Iterable[MessageType | str] | None = ...,
    ) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("message_queue",)
    MESSAGE_QUEUE_FIELD_NUMBER: _ClassVar[int]
    message_queue: MessageQueue
    def __init__(
        self, message_queue: MessageQueue | _Mapping[str, object] | None = ...
    ) -> None: ...

class FilterExpression(_message.Message):
    __slots__ = ("expression", "type")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    type: FilterType
    expression: str
    def __init__(
        self, type: FilterType | str | None = ..., expression: str | None = ...
    ) -> None: ...

class Digest(_message.Message):
    __slots__ = ("checksum", "type")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    type: DigestType
    checksum: str
    def __init__(self, type: DigestType | str | None = ..., checksum: str | None = ...) -> None: ...

class DeadLetterQueue(_message.Message):
    __slots__ = ("message_id", "topic")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    message_id: str
    def __init__(self, topic: str | None = ..., message_id: str | None = ...) -> None: ...

class SystemProperties(_message.Message):
    __slots__ = (
        "body_digest",
        "body_encoding",
        "born_host",
        "born_timestamp",
        "dead_letter_queue",
        "delivery_attempt",
        "delivery_timestamp",
        "invisible_duration",
        "keys",
        "message_group",
        "message_id",
        "message_type",
        "orphaned_transaction_recovery_duration",
        "priority",
        "queue_id",
        "queue_offset",
        "receipt_handle",
        "store_host",
        "store_timestamp",
        "tag",
        "trace_context",
    )
    TAG_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BODY_ENCODING_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    BORN_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    BORN_HOST_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_HANDLE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_DURATION_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_GROUP_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ORPHANED_TRANSACTION_RECOVERY_DURATION_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    tag: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    message_id: str
    body_digest: Digest
    body_encoding: Encoding
    message_type: MessageType
    born_timestamp: _timestamp_pb2.Timestamp
    born_host: str
    store_timestamp: _timestamp_pb2.Timestamp
    store_host: str
    delivery_timestamp: _timestamp_pb2.Timestamp
    receipt_handle: str
    queue_id: int
    queue_offset: int
    invisible_duration: _duration_pb2.Duration
    delivery_attempt: int
    message_group: str
    trace_context: str
    orphaned_transaction_recovery_duration: _duration_pb2.Duration
    dead_letter_queue: DeadLetterQueue
    priority: int
    def __init__(
        self,
        tag: str | None = ...,
        keys: _Iterable[str] | None = ...,
        message_id: str | None = ...,
        body_digest: Digest | _Mapping[str, object] | None = ...,
        body_encoding: Encoding | str | None = ...,
        message_type: MessageType | str | None = ...,
        born_timestamp: datetime.datetime
        | _timestamp_pb2.Timestamp
        | _Mapping[str, object]
        | None = ...,
        born_host: str | None = ...,
        store_timestamp: datetime.datetime
        | _timestamp_pb2.Timestamp
        | _Mapping[str, object]
        | None = ...,
        store_host: str | None = ...,
        delivery_timestamp: datetime.datetime
        | _timestamp_pb2.Timestamp
        | _Mapping[str, object]
        | None = ...,
        receipt_handle: str | None = ...,
        queue_id: int | None = ...,
        queue_offset: int | None = ...,
        invisible_duration: datetime.timedelta
        | _duration_pb2.Duration
        | _Mapping[str, object]
        | None = ...,
        delivery_attempt: int | None = ...,
        message_group: str | None = ...,
        trace_context: str | None = ...,
        orphaned_transaction_recovery_duration: datetime.timedelta
        | _duration_pb2.Duration
        | _Mapping[str, object]
        | None = ...,
        dead_letter_queue: DeadLetterQueue | _Mapping[str, object] | None = ...,
        priority: int | None = ...,
    ) -> None: ...

class Message(_message.Message):
    __slots__ = ("body", "system_properties", "topic", "user_properties")
    class UserPropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: str | None = ..., value: str | None = ...) -> None: ...

    TOPIC_FIELD_NUMBER: _ClassVar[int]
    USER_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    topic: Resource
    user_properties: _containers.ScalarMap[str, str]
    system_properties: SystemProperties
    body: bytes
    def __init__(
        self,
        topic: Resource | _Mapping[str, object] | None = ...,
        user_properties: _Mapping[str, str] | None = ...,
        system_properties: SystemProperties | _Mapping[str, object] | None = ...,
        body: bytes | None = ...,
    ) -> None: ...

class ExponentialBackoff(_message.Message):
    __slots__ = ("initial", "max", "multiplier")
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    initial: _duration_pb2.Duration
    max: _duration_pb2.Duration
    multiplier: float
    def __init__(
        self,
        initial: datetime.timedelta | _duration_pb2.Duration | _Mapping[str, object] | None = ...,
        max: datetime.timedelta | _duration_pb2.Duration | _Mapping[str, object] | None = ...,
        multiplier: float | None = ...,
    ) -> None: ...

class CustomizedBackoff(_message.Message):
    __slots__ = ("next",)
    NEXT_FIELD_NUMBER: _ClassVar[int]
    next: _containers.RepeatedCompositeFieldContainer[_duration_pb2.Duration]
    def __init__(
        self,
        next: _Iterable[datetime.timedelta | _duration_pb2.Duration | _Mapping[str, object]]
        | None = ...,
    ) -> None: ...

class RetryPolicy(_message.Message):
    __slots__ = ("customized_backoff", "exponential_backoff", "max_attempts")
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    EXPONENTIAL_BACKOFF_FIELD_NUMBER: _ClassVar[int]
    CUSTOMIZED_BACKOFF_FIELD_NUMBER: _ClassVar[int]
    max_attempts: int
    exponential_backoff: ExponentialBackoff
    customized_backoff: CustomizedBackoff
    def __init__(
        self,
        max_attempts: int | None = ...,
        exponential_backoff: ExponentialBackoff | _Mapping[str, object] | None = ...,
        customized_backoff: CustomizedBackoff | _Mapping[str, object] | None = ...,
    ) -> None: ...

class UserAgent(_message.Message):
    __slots__ = ("hostname", "language", "platform", "version")
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    language: Language
    version: str
    platform: str
    hostname: str
    def __init__(
        self,
        language: Language | str | None = ...,
        version: str | None = ...,
        platform: str | None = ...,
        hostname: str | None = ...,
    ) -> None: ...

class Publishing(_message.Message):
    __slots__ = ("max_body_size", "topics", "validate_message_type")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MAX_BODY_SIZE_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Resource]
    max_body_size: int
    validate_message_type: bool
    def __init__(
        self,
        topics: _Iterable[Resource | _Mapping[str, object]] | None = ...,
        max_body_size: int | None = ...,
        validate_message_type: bool | None = ...,
    ) -> None: ...

class SubscriptionEntry(_message.Message):
    __slots__ = ("expression", "topic")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    topic: Resource
    expression: FilterExpression
    def __init__(
        self,
        topic: Resource | _Mapping[str, object] | None = ...,
        expression: FilterExpression | _Mapping[str, object] | None = ...,
    ) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("fifo", "group", "long_polling_timeout", "receive_batch_size", "subscriptions")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    FIFO_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    LONG_POLLING_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    group: Resource
    subscriptions: _containers.RepeatedCompositeFieldContainer[SubscriptionEntry]
    fifo: bool
    receive_batch_size: int
    long_polling_timeout: _duration_pb2.Duration
    def __init__(
        self,
        group: Resource | _Mapping[str, object] | None = ...,
        subscriptions: _Iterable[SubscriptionEntry | _Mapping[str, object]] | None = ...,
        fifo: bool | None = ...,
        receive_batch_size: int | None = ...,
        long_polling_timeout: datetime.timedelta
        | _duration_pb2.Duration
        | _Mapping[str, object]
        | None = ...,
    ) -> None: ...

class Metric(_message.Message):
    __slots__ = ("endpoints", "on")
    ON_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    on: bool
    endpoints: Endpoints
    def __init__(
        self, on: bool | None = ..., endpoints: Endpoints | _Mapping[str, object] | None = ...
    ) -> None: ...

class Settings(_message.Message):
    __slots__ = (
        "access_point",
        "backoff_policy",
        "client_type",
        "metric",
        "publishing",
        "request_timeout",
        "subscription",
        "user_agent",
    )
    CLIENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    ACCESS_POINT_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_POLICY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    PUBLISHING_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    USER_AGENT_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    client_type: ClientType
    access_point: Endpoints
    backoff_policy: RetryPolicy
    request_timeout: _duration_pb2.Duration
    publishing: Publishing
    subscription: Subscription
    user_agent: UserAgent
    metric: Metric
    def __init__(
        self,
        client_type: ClientType | str | None = ...,
        access_point: Endpoints | _Mapping[str, object] | None = ...,
        backoff_policy: RetryPolicy | _Mapping[str, object] | None = ...,
        request_timeout: datetime.timedelta
        | _duration_pb2.Duration
        | _Mapping[str, object]
        | None = ...,
        publishing: Publishing | _Mapping[str, object] | None = ...,
        subscription: Subscription | _Mapping[str, object] | None = ...,
        user_agent: UserAgent | _Mapping[str, object] | None = ...,
        metric: Metric | _Mapping[str, object] | None = ...,
    ) -> None: ...

class QueryRouteRequest(_message.Message):
    __slots__ = ("endpoints", "topic")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    topic: Resource
    endpoints: Endpoints
    def __init__(
        self,
        topic: Resource | _Mapping[str, object] | None = ...,
        endpoints: Endpoints | _Mapping[str, object] | None = ...,
    ) -> None: ...

class QueryRouteResponse(_message.Message):
    __slots__ = ("message_queues", "status")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    status: Status
    message_queues: _containers.RepeatedCompositeFieldContainer[MessageQueue]
    def __init__(
        self,
        status: Status | _Mapping[str, object] | None = ...,
        message_queues: _Iterable[MessageQueue | _Mapping[str, object]] | None = ...,
    ) -> None: ...

class QueryAssignmentRequest(_message.Message):
    __slots__ = ("endpoints", "group", "topic")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    topic: Resource
    group: Resource
    endpoints: Endpoints
    def __init__(
        self,
        topic: Resource | _Mapping[str, object] | None = ...,
        group: Resource | _Mapping[str, object] | None = ...,
        endpoints: Endpoints | _Mapping[str, object] | None = ...,
    ) -> None: ...

class QueryAssignmentResponse(_message.Message):
    __slots__ = ("assignments", "status")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    def __init__(
        self,
        status: Status | _Mapping[str, object] | None = ...,
        assignments: _Iterable[Assignment | _Mapping[str, object]] | None = ...,
    ) -> None: ...

class TelemetryCommand(_message.Message):
    __slots__ = (
        "print_thread_stack_trace_command",
        "reconnect_endpoints_command",
        "recover_orphaned_transaction_command",
        "settings",
        "status",
        "thread_stack_trace",
        "verify_message_command",
        "verify_message_result",
    )
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    THREAD_STACK_TRACE_FIELD_NUMBER: _ClassVar[int]
    VERIFY_MESSAGE_RESULT_FIELD_NUMBER: _ClassVar[int]
    RECOVER_ORPHANED_TRANSACTION_COMMAND_FIELD_NUMBER: _ClassVar[int]
    PRINT_THREAD_STACK_TRACE_COMMAND_FIELD_NUMBER: _ClassVar[int]
    VERIFY_MESSAGE_COMMAND_FIELD_NUMBER: _ClassVar[int]
    RECONNECT_ENDPOINTS_COMMAND_FIELD_NUMBER: _ClassVar[int]
    status: Status
    settings: Settings
    thread_stack_trace: ThreadStackTrace
    verify_message_result: VerifyMessageResult
    recover_orphaned_transaction_command: RecoverOrphanedTransactionCommand
    print_thread_stack_trace_command: PrintThreadStackTraceCommand
    verify_message_command: VerifyMessageCommand
    reconnect_endpoints_command: ReconnectEndpointsCommand
    def __init__(
        self,
        status: Status | _Mapping[str, object] | None = ...,
        settings: Settings | _Mapping[str, object] | None = ...,
        thread_stack_trace: ThreadStackTrace | _Mapping[str, object] | None = ...,
        verify_message_result: VerifyMessageResult | _Mapping[str, object] | None = ...,
        recover_orphaned_transaction_command: RecoverOrphanedTransactionCommand
        | _Mapping[str, object]
        | None = ...,
        print_thread_stack_trace_command: PrintThreadStackTraceCommand
        | _Mapping[str, object]
        | None = ...,
        verify_message_command: VerifyMessageCommand | _Mapping[str, object] | None = ...,
        reconnect_endpoints_command: ReconnectEndpointsCommand | _Mapping[str, object] | None = ...,
    ) -> None: ...

class PrintThreadStackTraceCommand(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    def __init__(self, nonce: str | None = ...) -> None: ...

class ThreadStackTrace(_message.Message):
    __slots__ = ("nonce", "thread_stack_trace")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    THREAD_STACK_TRACE_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    thread_stack_trace: str
    def __init__(self, nonce: str | None = ..., thread_stack_trace: str | None = ...) -> None: ...

class VerifyMessageCommand(_message.Message):
    __slots__ = ("message", "nonce")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    message: Message
    def __init__(
        self, nonce: str | None = ..., message: Message | _Mapping[str, object] | None = ...
    ) -> None: ...

class VerifyMessageResult(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    def __init__(self, nonce: str | None = ...) -> None: ...

class ReconnectEndpointsCommand(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    def __init__(self, nonce: str | None = ...) -> None: ...

class RecoverOrphanedTransactionCommand(_message.Message):
    __slots__ = ("message", "transaction_id")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    message: Message
    transaction_id: str
    def __init__(
        self,
        message: Message | _Mapping[str, object] | None = ...,
        transaction_id: str | None = ...,
    ) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("client_type", "group")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    group: Resource
    client_type: ClientType
    def __init__(
        self,
        group: Resource | _Mapping[str, object] | None = ...,
        client_type: ClientType | str | None = ...,
    ) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    def __init__(self, status: Status | _Mapping[str, object] | None = ...) -> None: ...

class SendMessageRequest(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    def __init__(
        self, messages: _Iterable[Message | _Mapping[str, object]] | None = ...
    ) -> None: ...

class SendResultEntry(_message.Message):
    __slots__ = ("message_id", "offset", "recall_handle", "status", "transaction_id")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECALL_HANDLE_FIELD_NUMBER: _ClassVar[int]
    status: Status
    message_id: str
    transaction_id: str
    offset: int
    recall_handle: str
    def __init__(
        self,
        status: Status | _Mapping[str, object] | None = ...,
        message_id: str | None = ...,
        transaction_id: str | None = ...,
        offset: int | None = ...,
        recall_handle: str | None = ...,
    ) -> None: ...

class SendMessageResponse(_message.Message):
    __slots__ = ("entries", "status")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    status: Status
    entries: _containers.RepeatedCompositeFieldContainer[SendResultEntry]
    def __init__(
        self,
        status: Status | _Mapping[str, object] | None = ...,
        entries: _Iterable[SendResultEntry | _Mapping[str, object]] | None = ...,
    ) -> None: ...

class EndTransactionRequest(_message.Message):
    __slots__ = ("message_id", "resolution", "source", "topic", "trace_context", "transaction_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    RESOLUTION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    topic: Resource
    message_id: str
    transaction_id: str
    resolution: TransactionResolution
    source: TransactionSource
    trace_context: str
    def __init__(
        self,
        topic: Resource | _Mapping[str, object] | None = ...,
        message_id: str | None = ...,
        transaction_id: str | None = ...,
        resolution: TransactionResolution | str | None = ...,
        source: TransactionSource | str | None = ...,
        trace_context: str | None = ...,
    ) -> None: ...

class EndTransactionResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    def __init__(self, status: Status | _Mapping[str, object] | None = ...) -> None: ...

class RecallMessageRequest(_message.Message):
    __slots__ = ("recall_handle", "topic")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RECALL_HANDLE_FIELD_NUMBER: _ClassVar[int]
    topic: Resource
    recall_handle: str
    def __init__(
        self, topic: Resource | _Mapping[str, object] | None = ..., recall_handle: str | None = ...
    ) -> None: ...

class RecallMessageResponse(_message.Message):
    __slots__ = ("message_id", "status")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    status: Status
    message_id: str
    def __init__(
        self, status: Status | _Mapping[str, object] | None = ..., message_id: str | None = ...
    ) -> None: ...

class ReceiveMessageRequest(_message.Message):
    __slots__ = (
        "attempt_id",
        "auto_renew",
        "batch_size",
        "filter_expression",
        "group",
        "invisible_duration",
        "long_polling_timeout",
        "message_queue",
    )
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_QUEUE_FIELD_NUMBER: _ClassVar[int]
    FILTER_EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_DURATION_FIELD_NUMBER: _ClassVar[int]
    AUTO_RENEW_FIELD_NUMBER: _ClassVar[int]
    LONG_POLLING_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    group: Resource
    message_queue: MessageQueue
    filter_expression: FilterExpression
    batch_size: int
    invisible_duration: _duration_pb2.Duration
    auto_renew: bool
    long_polling_timeout: _duration_pb2.Duration
    attempt_id: str
    def __init__(
        self,
        group: Resource | _Mapping[str, object] | None = ...,
        message_queue: MessageQueue | _Mapping[str, object] | None = ...,
        filter_expression: FilterExpression | _Mapping[str, object] | None = ...,
        batch_size: int | None = ...,
        invisible_duration: datetime.timedelta
        | _duration_pb2.Duration
        | _Mapping[str, object]
        | None = ...,
        auto_renew: bool | None = ...,
        long_polling_timeout: datetime.timedelta
        | _duration_pb2.Duration
        | _Mapping[str, object]
        | None = ...,
        attempt_id: str | None = ...,
    ) -> None: ...

class ReceiveMessageResponse(_message.Message):
    __slots__ = ("delivery_timestamp", "message", "status")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    status: Status
    message: Message
    delivery_timestamp: _timestamp_pb2.Timestamp
    def __init__(
        self,
        status: Status | _Mapping[str, object] | None = ...,
        message: Message | _Mapping[str, object] | None = ...,
        delivery_timestamp: datetime.datetime
        | _timestamp_pb2.Timestamp
        | _Mapping[str, object]
        | None = ...,
    ) -> None: ...

class AckMessageEntry(_message.Message):
    __slots__ = ("message_id", "receipt_handle")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_HANDLE_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    receipt_handle: str
    def __init__(self, message_id: str | None = ..., receipt_handle: str | None = ...) -> None: ...

class AckMessageRequest(_message.Message):
    __slots__ = ("entries", "group", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    group: Resource
    topic: Resource
    entries: _containers.RepeatedCompositeFieldContainer[AckMessageEntry]
    def __init__(
        self,
        group: Resource | _Mapping[str, object] | None = ...,
        topic: Resource | _Mapping[str, object] | None = ...,
        entries: _Iterable[AckMessageEntry | _Mapping[str, object]] | None = ...,
    ) -> None: ...

class AckMessageResultEntry(_message.Message):
    __slots__ = ("message_id", "receipt_handle", "status")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_HANDLE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    receipt_handle: str
    status: Status
    def __init__(
        self,
        message_id: str | None = ...,
        receipt_handle: str | None = ...,
        status: Status | _Mapping[str, object] | None = ...,
    ) -> None: ...

class AckMessageResponse(_message.Message):
    __slots__ = ("entries", "status")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    status: Status
    entries: _containers.RepeatedCompositeFieldContainer[AckMessageResultEntry]
    def __init__(
        self,
        status: Status | _Mapping[str, object] | None = ...,
        entries: _Iterable[AckMessageResultEntry | _Mapping[str, object]] | None = ...,
    ) -> None: ...

class ChangeInvisibleDurationRequest(_message.Message):
    __slots__ = ("group", "invisible_duration", "message_id", "receipt_handle", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_HANDLE_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_DURATION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    group: Resource
    topic: Resource
    receipt_handle: str
    invisible_duration: _duration_pb2.Duration
    message_id: str
    def __init__(
        self,
        group: Resource | _Mapping[str, object] | None = ...,
        topic: Resource | _Mapping[str, object] | None = ...,
        receipt_handle: str | None = ...,
        invisible_duration: datetime.timedelta
        | _duration_pb2.Duration
        | _Mapping[str, object]
        | None = ...,
        message_id: str | None = ...,
    ) -> None: ...

class ChangeInvisibleDurationResponse(_message.Message):
    __slots__ = ("receipt_handle", "status")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_HANDLE_FIELD_NUMBER: _ClassVar[int]
    status: Status
    receipt_handle: str
    def __init__(
        self, status: Status | _Mapping[str, object] | None = ..., receipt_handle: str | None = ...
    ) -> None: ...

class ForwardMessageToDeadLetterQueueRequest(_message.Message):
    __slots__ = (
        "delivery_attempt",
        "group",
        "max_delivery_attempts",
        "message_id",
        "receipt_handle",
        "topic",
    )
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_HANDLE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MAX_DELIVERY_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    group: Resource
    topic: Resource
    receipt_handle: str
    message_id: str
    delivery_attempt: int
    max_delivery_attempts: int
    def __init__(
        self,
        group: Resource | _Mapping[str, object] | None = ...,
        topic: Resource | _Mapping[str, object] | None = ...,
        receipt_handle: str | None = ...,
        message_id: str | None = ...,
        delivery_attempt: int | None = ...,
        max_delivery_attempts: int | None = ...,
    ) -> None: ...

class ForwardMessageToDeadLetterQueueResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    def __init__(self, status: Status | _Mapping[str, object] | None = ...) -> None: ...

class NotifyClientTerminationRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: Resource
    def __init__(self, group: Resource | _Mapping[str, object] | None = ...) -> None: ...

class NotifyClientTerminationResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    def __init__(self, status: Status | _Mapping[str, object] | None = ...) -> None: ...
