"""What a client's settings become, and what comes back."""

from __future__ import annotations

import random
from collections import Counter

import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from google.protobuf.message import DecodeError

from skylarkmq.broker.grpc.calls import RpcRefused
from skylarkmq.broker.grpc.settings import (
    NAMES_MAX,
    SETTINGS_SIZE_MAX,
    merged,
    read_settings,
    subscription_of,
    with_subscription,
)
from skylarkmq.protocol.bodies.group import (
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)
from skylarkmq.protocol.tags_code import tags_code
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from tests.broker.grpc.session_rig import publishing, resource, subscription

NOW_MS = 1_700_000_000_000


def refused(settings: schema_pb2.Settings) -> int:
    with pytest.raises(RpcRefused) as why:
        read_settings(settings, NOW_MS)
    assert why.value.ends_stream
    return why.value.code


def test_a_producer_gets_what_rocketmq_says() -> None:
    settings = publishing("T", "U")
    settings.user_agent.hostname = "h"
    settings.backoff_policy.max_attempts = 99
    settings.backoff_policy.customized_backoff.next.add(seconds=7)
    answer = merged(settings, None, 4 << 20)
    assert answer.publishing.max_body_size == 4194304
    assert answer.publishing.validate_message_type
    assert [topic.name for topic in answer.publishing.topics] == ["T", "U"]
    policy = answer.backoff_policy
    assert policy.max_attempts == 3
    assert policy.WhichOneof("strategy") == "exponential_backoff"
    backoff = policy.exponential_backoff
    assert (backoff.initial.ToMilliseconds(), backoff.max.ToMilliseconds()) == (10, 1000)
    assert backoff.multiplier == 2.0
    assert answer.user_agent.hostname == "h"
    assert answer.HasField("metric")
    assert not answer.metric.on


def test_a_consumer_gets_what_its_group_says() -> None:
    group = SubscriptionGroupConfig(group_name="g", retry_max_times=2, consume_message_orderly=True)
    answer = merged(subscription(), group, 1)
    wanted = answer.subscription
    assert wanted.fifo
    assert wanted.receive_batch_size == 32
    assert wanted.long_polling_timeout.seconds == 20
    assert answer.backoff_policy.max_attempts == 3
    waits = [wait.seconds for wait in answer.backoff_policy.customized_backoff.next]
    assert waits[:5] == [1, 5, 10, 30, 60]
    assert waits[-2:] == [3600, 7200]
    assert len(waits) == 18
    assert answer.HasField("metric")


def test_waits_of_a_group() -> None:
    policy = GroupRetryPolicy(
        type="EXPONENTIAL", exponential_retry_policy=ExponentialRetryPolicy(initial=1500)
    )
    group = SubscriptionGroupConfig(group_name="g", group_retry_policy=policy)
    backoff = merged(subscription(), group, 1).backoff_policy.exponential_backoff
    assert backoff.initial.ToMilliseconds() == 1500
    assert backoff.max.seconds == 7200
    assert backoff.multiplier == 2.0


def test_nonsense_of_a_table_does_no_harm() -> None:
    waits = CustomizedRetryPolicy(next=(-5, 2**62, *range(200)))
    policy = GroupRetryPolicy(customized_retry_policy=waits)
    group = SubscriptionGroupConfig(
        group_name="g", group_retry_policy=policy, retry_max_times=2**31 - 1
    )
    answer = merged(subscription(), group, 1).backoff_policy
    assert answer.max_attempts == 2**31 - 1
    assert [wait.seconds for wait in answer.customized_backoff.next[:3]] == [0, 43_200, 0]
    assert len(answer.customized_backoff.next) == 64
    group = SubscriptionGroupConfig(group_name="g", retry_max_times=-1)
    assert merged(subscription(), group, 1).backoff_policy.max_attempts == 1


def test_what_the_schema_does_not_name_comes_back() -> None:
    """Clients of later versions say more."""
    text = subscription().SerializeToString() + b"\xfa\x06\x03abc"  # field 111
    answer = merged(
        schema_pb2.Settings.FromString(text), SubscriptionGroupConfig(group_name="g"), 1
    )
    assert b"\xfa\x06\x03abc" in answer.SerializeToString()


def test_a_consumers_settings() -> None:
    client_settings = read_settings(
        subscription("T", "U", expression="A || B", kind=schema_pb2.SIMPLE_CONSUMER), NOW_MS
    )
    data = client_settings.consumer_data
    assert (data.group_name, data.consume_type, data.message_model) == (
        "g",
        "CONSUME_ACTIVELY",
        "CLUSTERING",
    )
    wanted = data.subscription_data_set[1]
    assert (wanted.topic, wanted.sub_string, wanted.expression_type) == ("U", "A || B", "TAG")
    assert wanted.code_set == [tags_code("A"), tags_code("B")]
    assert wanted.tags_set == ["A", "B"]


def test_the_same_again_has_the_same_version() -> None:
    before = read_settings(subscription("T", expression="A"), NOW_MS)
    again = read_settings(subscription("T", "U", expression="A"), NOW_MS + 5, before)
    assert again.subscriptions["T"] is before.subscriptions["T"]
    assert again.subscriptions["U"].sub_version == NOW_MS + 5
    other = read_settings(subscription("T", expression="B"), NOW_MS + 9, before)
    assert other.subscriptions["T"].sub_version == NOW_MS + 9


def test_a_producer_without_topics_is_one() -> None:
    assert read_settings(publishing(), NOW_MS).topics == ()
    assert read_settings(publishing("T", "T"), NOW_MS).topics == ("T",)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (schema_pb2.Settings(client_type=schema_pb2.PRODUCER), Code.BAD_REQUEST),
        (publishing("a b"), Code.ILLEGAL_TOPIC),
        (publishing(""), Code.ILLEGAL_TOPIC),
        (publishing("T" * 128), Code.ILLEGAL_TOPIC),
        (publishing("TBW102"), Code.ILLEGAL_TOPIC),
        (publishing("rmq_sys_x"), Code.ILLEGAL_TOPIC),
        (publishing(*[f"T{number}" for number in range(NAMES_MAX + 1)]), Code.BAD_REQUEST),
        (subscription(group=""), Code.ILLEGAL_CONSUMER_GROUP),
        (subscription(group="../g"), Code.ILLEGAL_CONSUMER_GROUP),
        (subscription(group="CID_RMQ_SYS_x"), Code.ILLEGAL_CONSUMER_GROUP),
        (subscription("T/U"), Code.ILLEGAL_TOPIC),
        (subscription(expression="||"), Code.ILLEGAL_FILTER_EXPRESSION),
        (subscription(expression="A||" * 2000), Code.ILLEGAL_FILTER_EXPRESSION),
        (subscription(expression="A" * 40_000), Code.ILLEGAL_FILTER_EXPRESSION),
        (subscription(kind=schema_pb2.PULL_CONSUMER), Code.UNSUPPORTED),
        (subscription(kind=schema_pb2.LITE_PUSH_CONSUMER), Code.UNSUPPORTED),
        (subscription(kind=schema_pb2.CLIENT_TYPE_UNSPECIFIED), Code.UNSUPPORTED),
    ],
)
def test_what_cannot_be_is_refused(settings: schema_pb2.Settings, code: int) -> None:
    assert refused(settings) == code


def test_words_of_a_later_schema_are_refused_like_those_that_are_known() -> None:
    settings = subscription()
    text = settings.SerializeToString().replace(b"\x08\x02", b"\x08\x63", 1)  # client type 99
    assert refused(schema_pb2.Settings.FromString(text)) == Code.UNSUPPORTED


def test_settings_are_bounded() -> None:
    settings = publishing("T")
    settings.user_agent.hostname = "h" * SETTINGS_SIZE_MAX
    assert refused(settings) == Code.BAD_REQUEST
    settings = subscription("T", "U")
    for entry in settings.subscription.subscriptions:
        entry.expression.type = schema_pb2.SQL
        entry.expression.expression = "a = 1 OR " * 2000 + "a = 1"
    assert refused(settings) == Code.ILLEGAL_FILTER_EXPRESSION


def test_a_topic_that_is_only_asked_for_is_added() -> None:
    wanted = subscription_of("U", schema_pb2.FilterExpression(), NOW_MS)
    assert (wanted.sub_string, wanted.expression_type) == ("*", "TAG")
    before = read_settings(subscription("T", kind=schema_pb2.SIMPLE_CONSUMER), NOW_MS)
    after = with_subscription(before, "g", wanted)
    assert list(after.subscriptions) == ["T", "U"]
    assert after.consume_type == "CONSUME_ACTIVELY"
    assert after.size > before.size
    alone = with_subscription(before, "h", wanted)
    assert list(alone.subscriptions) == ["U"]
    assert (alone.group, alone.consume_type) == ("h", "CONSUME_PASSIVELY")
    for number in range(NAMES_MAX - 1):
        entry = subscription_of(f"T{number}", schema_pb2.FilterExpression(), NOW_MS)
        alone = with_subscription(alone, "h", entry)
    with pytest.raises(RpcRefused):
        with_subscription(alone, "h", subscription_of("W", schema_pb2.FilterExpression(), NOW_MS))


def test_a_namespace_is_given_back() -> None:
    settings = publishing("T")
    settings.publishing.topics[0].resource_namespace = "NS"
    assert read_settings(settings, NOW_MS).topics == ("T",)
    assert merged(settings, None, 1).publishing.topics[0] == schema_pb2.Resource(
        resource_namespace="NS", name="T"
    )
    assert resource("T").resource_namespace == ""


def test_damaged_settings_are_refused_or_answered() -> None:
    """Never anything else: what is wrong with them is the client's to know."""
    rng = random.Random(7)
    sound = [
        publishing("T", "U").SerializeToString(),
        subscription("T", "U", expression="A || B").SerializeToString(),
    ]
    outcomes: Counter[str] = Counter()
    for _ in range(4000):
        text = bytearray(rng.choice(sound))
        for _ in range(rng.randint(1, 6)):
            text[rng.randrange(len(text))] = rng.randrange(256)
        try:
            settings = schema_pb2.Settings.FromString(bytes(text))
        except DecodeError:
            continue
        try:
            client_settings = read_settings(settings, NOW_MS)
        except RpcRefused as error:
            assert error.ends_stream
            outcomes["refused"] += 1
            continue
        group = (
            SubscriptionGroupConfig(group_name=client_settings.group)
            if client_settings.group
            else None
        )
        merged(settings, group, 1).SerializeToString()
        outcomes["answered"] += 1
    assert min(outcomes["refused"], outcomes["answered"]) > 100
