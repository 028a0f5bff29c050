"""Settings: what a client says of itself at the start of its telemetry stream, and the answer.

    it is a     from the client            what the broker adds
    producer    its topics                 attempts of a send, and the waits between them; bytes of
                                           a body; that it is to look at the types of topics
    consumer    its group, what it wants   attempts of a message, and the waits between them; that
                of which topics            the group is orderly; messages and seconds of a receive

All else goes back as it came: no client starts before it has its settings back.

Attempts and waits are those of the group (`retryMaxTimes`, `groupRetryPolicy`), and of a group that
does not exist yet those that it will have.

Source: apache/rocketmq@rocketmq-all-5.3.3 proxy/.../grpc/v2/common/GrpcClientSettingsManager.java,
proxy/.../grpc/v2/client/ClientActivity.java, proxy/.../config/ProxyConfig.java
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from skylarkmq.broker.filter.tag_filter import (
    EXPRESSION_SIZE_MAX,
    EXPRESSION_TAG,
    SEPARATOR,
    SUBSCRIBE_ALL,
    TAGS_MAX,
    count_tags,
)
from skylarkmq.broker.grpc.calls import NO_LITE_TOPICS, RpcRefused
from skylarkmq.broker.grpc.names import group_of, topic_of
from skylarkmq.protocol.bodies.group import (
    ConsumerData,
    ExponentialRetryPolicy,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from skylarkmq.protocol.sql92.errors import TEXT_SIZE_MAX
from skylarkmq.protocol.tags_code import tags_code
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code

SETTINGS_SIZE_MAX: Final = 256 << 10
"""Bytes of a client's settings: what 1024 topics with tags take has room."""
NAMES_MAX: Final = 1024
"""Topics of one client."""
SQL_SIZE_MAX: Final = 32_768
"""Characters of all expressions by properties of one client: each may have to be compiled."""
EXPRESSION_SQL92: Final = "SQL92"
BATCH_SIZE: Final = 32
"""Messages of one receive."""
POLL_S: Final = 20
REQUEST_TIMEOUT_S: Final = 3.0
"""Of a client that does not say how long it waits for an answer: SDKs' own default."""
SEND_ATTEMPTS: Final = 3
SEND_WAIT_MS: Final = (10, 1000)
"""Before the second attempt of a send, and at most."""
WAIT_MAX_MS: Final = 12 * 3_600_000
WAITS_MAX: Final = 64
_CONSUMERS: Final = {
    schema_pb2.PUSH_CONSUMER: "CONSUME_PASSIVELY",
    schema_pb2.SIMPLE_CONSUMER: "CONSUME_ACTIVELY",
}


class ClientSettings(NamedTuple):
    """What a client is and wants.

    Attributes:
        size: bytes that it takes, about.
        topics: of a producer.
        group: of a consumer; empty: it is a producer.
        consume_type: of a consumer.
        subscriptions: of a consumer, by topic.
        request_timeout_s: of a consumer; how long it waits for an answer, polls aside.
    """

    size: int
    topics: tuple[str, ...] = ()
    group: str = ""
    consume_type: str = ""
    subscriptions: Mapping[str, SubscriptionData] = MappingProxyType({})
    request_timeout_s: float = REQUEST_TIMEOUT_S

    @property
    def consumer_data(self) -> ConsumerData:
        """A consumer's settings as a heartbeat of the remoting protocol has them."""
        return ConsumerData(
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            consume_type=self.consume_type,
            group_name=self.group,
            message_model="CLUSTERING",
            subscription_data_set=list(self.subscriptions.values()),
        )


def read_settings(
    settings: schema_pb2.Settings, now_ms: int, before: ClientSettings | None = None
) -> ClientSettings:
    """Return what a client says of itself.

    Args:
        before: what it said last; a subscription that has not changed keeps its version.

    Raises:
        RpcRefused: something of it cannot be; the stream ends.
    """
    size = settings.ByteSize()
    if size > SETTINGS_SIZE_MAX:
        raise _unusable(
            Code.BAD_REQUEST, f"the settings have {size} bytes, {SETTINGS_SIZE_MAX} are allowed"
        )
    try:
        if settings.HasField("publishing"):
            return _producer(settings.publishing, size)
        if settings.HasField("subscription"):
            return _consumer(settings, size, now_ms, before)
    except RpcRefused as error:
        raise _unusable(error.code, error.message) from error
    raise _unusable(
        Code.BAD_REQUEST, "the settings say neither what is published nor what is subscribed to"
    )


def _producer(publishing: schema_pb2.Publishing, size: int) -> ClientSettings:
    topics = tuple(dict.fromkeys(topic_of(topic) for topic in publishing.topics))
    _check_count(len(topics))
    return ClientSettings(size, topics)


def _consumer(
    settings: schema_pb2.Settings, size: int, now_ms: int, before: ClientSettings | None
) -> ClientSettings:
    consume_type = _CONSUMERS.get(settings.client_type)
    if consume_type is None:
        raise RpcRefused(
            Code.UNSUPPORTED,
            f"clients of type {settings.client_type} are not served: a consumer is a push consumer "
            f"or a simple consumer, and {NO_LITE_TOPICS}",
        )
    subscription = settings.subscription
    group = group_of(subscription.group)
    _check_count(len(subscription.subscriptions))
    if before is None or before.group != group:
        before = ClientSettings(0)
    wanted = {
        topic: subscription_of(topic, entry.expression, now_ms, before.subscriptions.get(topic))
        for entry in subscription.subscriptions
        for topic in (topic_of(entry.topic),)
    }
    _check_sql(wanted.values())
    timeout = settings.request_timeout
    timeout_s = timeout.seconds + timeout.nanos / 1e9
    if timeout_s <= 0:
        timeout_s = REQUEST_TIMEOUT_S
    return ClientSettings(size, (), group, consume_type, wanted, timeout_s)


def with_subscription(
    before: ClientSettings | None, group: str, subscription: SubscriptionData
) -> ClientSettings:
    """Return what a consumer wants that asks for a topic before its settings name it."""
    if before is None or before.group != group:
        before = ClientSettings(0, (), group, _CONSUMERS[schema_pb2.PUSH_CONSUMER])
    wanted = {**before.subscriptions, subscription.topic: subscription}
    _check_count(len(wanted))
    _check_sql(wanted.values())
    size = before.size + len(subscription.topic) + len(subscription.sub_string)
    return before._replace(size=size, subscriptions=wanted)


def subscription_of(
    topic: str,
    expression: schema_pb2.FilterExpression,
    now_ms: int,
    before: SubscriptionData | None = None,
) -> SubscriptionData:
    """Return an expression of a topic as a heartbeat of the remoting protocol has it.

    Whether an expression by properties can be compiled is not looked at: its receives tell.

    Args:
        before: what was wanted of the topic; the same again is the very same.

    Raises:
        RpcRefused: ILLEGAL_FILTER_EXPRESSION.
    """
    text, is_sql = expression.expression, expression.type == schema_pb2.SQL
    kind = EXPRESSION_SQL92 if is_sql else EXPRESSION_TAG
    if before is not None and (before.sub_string, before.expression_type) == (text, kind):
        return before
    if len(text) > (TEXT_SIZE_MAX if is_sql else EXPRESSION_SIZE_MAX):
        raise _no_filter(topic, f"has {len(text)} characters, which are too many")
    tags: list[str] = []
    if not is_sql and text.strip() not in ("", SUBSCRIBE_ALL):
        if count_tags(text) > TAGS_MAX:
            raise _no_filter(topic, f"has more than {TAGS_MAX} tags")
        tags = [tag for part in text.split(SEPARATOR) if (tag := part.strip())]
        if not tags:
            raise _no_filter(topic, "has no tag")
    if not is_sql and not text.strip():
        text = SUBSCRIBE_ALL
    return SubscriptionData(
        code_set=[tags_code(tag) for tag in tags],
        expression_type=kind,
        sub_string=text,
        sub_version=now_ms,
        tags_set=tags,
        topic=topic,
    )


def _check_count(count: int) -> None:
    if count > NAMES_MAX:
        raise RpcRefused(
            Code.BAD_REQUEST, f"the client names {count} topics, at most {NAMES_MAX} are allowed"
        )


def _check_sql(wanted: Iterable[SubscriptionData]) -> None:
    size = sum(len(each.sub_string) for each in wanted if each.expression_type == EXPRESSION_SQL92)
    if size > SQL_SIZE_MAX:
        raise RpcRefused(
            Code.ILLEGAL_FILTER_EXPRESSION,
            f"the client's expressions have {size} characters, at most {SQL_SIZE_MAX} are allowed",
        )


def _no_filter(topic: str, why: str) -> RpcRefused:
    return RpcRefused(Code.ILLEGAL_FILTER_EXPRESSION, f"the expression of topic {topic} {why}")


def _unusable(code: int, why: str) -> RpcRefused:
    return RpcRefused(code, why, ends_stream=True)


# The answer


def merged(
    settings: schema_pb2.Settings, group: SubscriptionGroupConfig | None, body_max: int
) -> schema_pb2.Settings:
    """Return a client's settings with what the broker has to add.

    Args:
        group: of a consumer; None: the client is a producer.
        body_max: bytes of a body that the broker takes.
    """
    answer = schema_pb2.Settings()
    answer.CopyFrom(settings)
    answer.metric.Clear()
    answer.metric.SetInParent()  # present, and off
    if group is None:
        answer.publishing.max_body_size = body_max
        answer.publishing.validate_message_type = True
        policy, (first_ms, most_ms) = answer.backoff_policy, SEND_WAIT_MS
        policy.max_attempts = SEND_ATTEMPTS
        _fill_exponential(policy.exponential_backoff, first_ms, most_ms, 2)
        return answer
    subscription = answer.subscription
    subscription.fifo = group.is_orderly
    subscription.receive_batch_size = BATCH_SIZE
    subscription.long_polling_timeout.Clear()
    subscription.long_polling_timeout.seconds = POLL_S
    _fill_retries(answer.backoff_policy, group)
    return answer


def _fill_retries(policy: schema_pb2.RetryPolicy, group: SubscriptionGroupConfig) -> None:
    """Say how often a message is tried, and how long is waited between; a table may hold nonsense.

    `retryMaxTimes` counts without the first attempt.
    """
    policy.max_attempts = min(max(group.retry_max_times, 0), 2**31 - 2) + 1
    waits = group.retry_policy.waits
    if isinstance(waits, ExponentialRetryPolicy):
        _fill_exponential(policy.exponential_backoff, waits.initial, waits.max, waits.multiplier)
        return
    policy.customized_backoff.Clear()
    policy.customized_backoff.SetInParent()
    for wait_ms in waits.next[:WAITS_MAX]:
        seconds, nanos = _duration(wait_ms)
        policy.customized_backoff.next.add(seconds=seconds, nanos=nanos)


def _fill_exponential(
    backoff: schema_pb2.ExponentialBackoff, first_ms: int, most_ms: int, multiplier: int
) -> None:
    backoff.initial.seconds, backoff.initial.nanos = _duration(first_ms)
    backoff.max.seconds, backoff.max.nanos = _duration(most_ms)
    backoff.multiplier = float(max(multiplier, 1))


def _duration(wait_ms: int) -> tuple[int, int]:
    """Return seconds and nanoseconds."""
    seconds, rest_ms = divmod(min(max(wait_ms, 0), WAIT_MAX_MS), 1000)
    return seconds, rest_ms * 1_000_000
