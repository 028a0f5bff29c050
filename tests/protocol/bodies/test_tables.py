"""Tables, locks, members and pushes in the form in which Java reads and writes them."""

import json

import pytest

from skylarkmq.protocol.bodies.group import (
    ConsumeMessageDirectlyResult,
    ConsumerOffsetSerializeWrapper,
    ConsumerRunningInfo,
    ConsumeStatus,
    CustomizedRetryPolicy,
    DelayOffsetSerializeWrapper,
    ExponentialRetryPolicy,
    GetConsumerListByGroupResponseBody,
    GetConsumerStatusBody,
    LockBatchResponseBody,
    ProcessQueueInfo,
    ResetOffsetBody,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    UnlockBatchRequestBody,
)
from skylarkmq.protocol.bodies.text import MessageQueueBody, decode_body, encode_body
from skylarkmq.protocol.bodies.topic import (
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicStatsTable,
)
from skylarkmq.protocol.errors import RemoteProtocolError
from tests.protocol.message_vectors import FRAMES, STORE

QUEUE = MessageQueueBody(topic="T", broker_name="b", queue_id=3)


def test_the_golden_consumer_offsets() -> None:
    text = STORE["configFiles"]["consumerOffset"].encode()
    body = decode_body(ConsumerOffsetSerializeWrapper, text)
    assert body.offset_table["TopicTest@CG"] == {0: 7, 1: 4, 2: 3, 3: 4}
    assert len(body.offset_table) == 6
    written = encode_body(body)
    assert json.loads(written)["offsetTable"]["TopicTest@CG"] == {"0": 7, "1": 4, "2": 3, "3": 4}
    assert decode_body(ConsumerOffsetSerializeWrapper, written) == body


def test_the_golden_delay_offsets() -> None:
    body = decode_body(DelayOffsetSerializeWrapper, STORE["configFiles"]["delayOffset"].encode())
    assert body.offset_table == {1: 2}
    assert encode_body(body) == b'{"offsetTable":{"1":2}}'


@pytest.mark.parametrize("key", [b'"x"', b'"1.5"', b'"2147483648"', b"x", b'""', b"{a:1}"])
def test_offset_tables_have_numbers_as_keys(key: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_body(DelayOffsetSerializeWrapper, b'{"offsetTable":{%s:2}}' % key)


def test_topics_have_rocketmqs_defaults() -> None:
    assert encode_body(TopicConfig(topic_name="T")) == (
        b'{"order":false,"perm":6,"readQueueNums":16,"topicFilterType":"SINGLE_TAG",'
        b'"topicName":"T","topicSysFlag":0,"writeQueueNums":16}'
    )
    text = b'{"dataVersion":{"stateVersion":0},"topicConfigTable":{"T":{"topicName":"T"}}}'
    wrapper = decode_body(TopicConfigSerializeWrapper, text)
    assert wrapper.topic_config_table == {"T": TopicConfig(topic_name="T")}
    assert decode_body(TopicConfigSerializeWrapper, encode_body(wrapper)) == wrapper


def test_groups_have_rocketmqs_defaults() -> None:
    config = SubscriptionGroupConfig(group_name="g")
    assert encode_body(config) == (
        b'{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        b'"consumeFromMinEnable":true,"groupName":"g","notifyConsumerIdsChangedEnable":true,'
        b'"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}'
    )
    wrapper = SubscriptionGroupWrapper(subscription_group_table={"g": config})
    assert decode_body(SubscriptionGroupWrapper, encode_body(wrapper)) == wrapper


def test_a_group_of_rocketmq_5() -> None:
    text = (
        b'{"groupName":"g","consumeMessageOrderly":true,"groupRetryPolicy":{"type":"CUSTOMIZED",'
        b'"customizedRetryPolicy":{"next":[1000,2000]}},"groupSysFlag":0}'
    )
    config = decode_body(SubscriptionGroupConfig, text)
    assert config.is_orderly
    assert config.retry_policy.waits == CustomizedRetryPolicy(next=(1000, 2000))
    assert decode_body(SubscriptionGroupConfig, encode_body(config)) == config
    seconds = [wait // 1000 for wait in CustomizedRetryPolicy().next]
    minutes = [60 * minute for minute in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)]
    assert seconds == [1, 5, 10, 30, *minutes, 3600, 7200]


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (CustomizedRetryPolicy(next=(5, 7)), [5, 5, 7, 7, 7]),
        (CustomizedRetryPolicy(next=()), [0] * 5),
        (CustomizedRetryPolicy(next=(-5,)), [0] * 5),
        (ExponentialRetryPolicy(initial=5, max=30, multiplier=2), [5, 5, 10, 20, 30]),
        (ExponentialRetryPolicy(initial=-5), [0] * 5),
    ],
)
def test_waits_between_attempts(
    policy: CustomizedRetryPolicy | ExponentialRetryPolicy, waits: list[int]
) -> None:
    assert [policy.wait_ms(attempt) for attempt in (0, 1, 2, 3, 1 << 31)] == waits


def test_members_of_a_group() -> None:
    body = GetConsumerListByGroupResponseBody(consumer_id_list=["a", "b"])
    assert encode_body(body) == b'{"consumerIdList":["a","b"]}'
    assert decode_body(GetConsumerListByGroupResponseBody, encode_body(body)) == body


def test_locks() -> None:
    assert hash(QUEUE) == hash(MessageQueueBody(topic="T", broker_name="b", queue_id=3))
    body = LockBatchResponseBody(lock_ok_mq_set=[QUEUE])
    assert encode_body(body) == (b'{"lockOKMQSet":[{"brokerName":"b","queueId":3,"topic":"T"}]}')
    assert decode_body(LockBatchResponseBody, encode_body(body)) == body
    assert encode_body(LockBatchResponseBody()) == b'{"lockOKMQSet":[]}'
    unlock = UnlockBatchRequestBody(consumer_group="g", client_id="c", mq_set=[QUEUE])
    assert decode_body(UnlockBatchRequestBody, encode_body(unlock)) == unlock


def test_tables_keyed_by_queue() -> None:
    body = ResetOffsetBody(offset_table=[(QUEUE, 5)])
    text = b'{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"T"}:5}}'
    assert encode_body(body) == text
    assert decode_body(ResetOffsetBody, text) == body
    quoted = rb'{"offsetTable":{"{\"brokerName\":\"b\",\"queueId\":3,\"topic\":\"T\"}":5}}'
    assert decode_body(ResetOffsetBody, quoted) == body
    status = GetConsumerStatusBody(message_queue_table=[])
    assert encode_body(status) == b'{"messageQueueTable":{}}'
    assert decode_body(GetConsumerStatusBody, encode_body(status)) == status


@pytest.mark.parametrize(
    "text",
    [
        b'{"offsetTable":{"x":5}}',
        b'{"offsetTable":{"5":5}}',
        b'{"offsetTable":{{"topic":"T"}:5}}',
        b'{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"T"}:"x"}}',
        b'{"offsetTable":[]}',
        b'{"offsetTable":5}',
        b"{}",
    ],
)
def test_a_table_keyed_by_something_else_is_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_body(ResetOffsetBody, text)


def test_what_a_client_tells_of_itself() -> None:
    body = ConsumerRunningInfo(
        mq_table=[(QUEUE, ProcessQueueInfo(dropped=True))],
        properties={"PROP_CLIENT_VERSION": "V4_9_8"},
        status_table={"T": ConsumeStatus(consume_ok_tps=1.5)},
        subscription_set=[],
    )
    written = encode_body(body)
    assert decode_body(ConsumerRunningInfo, written) == body
    assert b'"droped":true' in written
    assert b'"consumeOKTPS":1.5' in written
    assert b"jstack" not in written


def test_what_came_of_one_message() -> None:
    body = ConsumeMessageDirectlyResult(
        auto_commit=True, consume_result="CR_SUCCESS", order=False, spent_time_mills=3
    )
    assert encode_body(body) == (
        b'{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":3}'
    )
    assert decode_body(ConsumeMessageDirectlyResult, encode_body(body)) == body


def test_the_golden_topic_statistics() -> None:
    golden = bytes.fromhex(FRAMES["topic_stats_body"]["hex"])
    body = decode_body(TopicStatsTable, golden)
    assert body.offset_table
    again = decode_body(TopicStatsTable, encode_body(body))
    assert again == body
    assert encode_body(body) == golden
