"""The texts and bodies of pop consumption, beside what RocketMQ's own classes wrote."""

from __future__ import annotations

import msgspec
import pytest

from skylarkmq.protocol import pop
from skylarkmq.protocol.bodies.pop import (
    BatchAck,
    BatchAckMessageRequestBody,
    MessageQueueAssignment,
    MessageRequestModeBody,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from skylarkmq.protocol.bodies.text import MessageQueueBody, decode_body, encode_body
from skylarkmq.protocol.errors import RemoteProtocolError
from tests.support.bit_sets import bits_of

# Written by ExtraInfoUtil and the bodies of rocketmq-remoting 5.3.3.
CHECKPOINT = "5 1700000000123 60000 3 0 broker-a 2 7"
START_INFO = "0 2 5;1 0 9"
OFFSET_INFO = "0 2 5,7,8;1 0 9"
COUNT_INFO = "0 qo2%5 1;0 2 1"
BATCH = (
    b'{"acks":[{"b":"CQI=","c":"G","it":60000,"pt":17,"q":2,"r":"1","rq":3,"so":5,"t":"T"}],'
    b'"brokerName":"broker-a"}'
)
BODIES = [
    (
        BATCH,
        BatchAckMessageRequestBody(
            broker_name="broker-a",
            acks=[
                BatchAck(
                    consumer_group="G",
                    topic="T",
                    retry="1",
                    start_offset=5,
                    queue_id=2,
                    revive_queue_id=3,
                    pop_time=17,
                    invisible_time=60000,
                    bit_set=bits_of((5, 8, 14), 5),
                )
            ],
        ),
    ),
    (
        b'{"messageQueueAssignments":[{"messageQueue":{"brokerName":"broker-a","queueId":-1,'
        b'"topic":"T"},"mode":"POP"}]}',
        QueryAssignmentResponseBody(
            message_queue_assignments=[
                MessageQueueAssignment(
                    message_queue=MessageQueueBody(topic="T", broker_name="broker-a", queue_id=-1),
                    mode="POP",
                )
            ]
        ),
    ),
    (
        b'{"clientId":"c","consumerGroup":"G","messageModel":"CLUSTERING","strategyName":"AVG",'
        b'"topic":"T"}',
        QueryAssignmentRequestBody(
            client_id="c", consumer_group="G", strategy_name="AVG", topic="T"
        ),
    ),
    (
        b'{"consumerGroup":"G","mode":"POP","popShareQueueNum":0,"topic":"T"}',
        MessageRequestModeBody(consumer_group="G", mode="POP", topic="T"),
    ),
]


def test_a_checkpoint_is_javas() -> None:
    checkpoint = pop.Checkpoint(5, 1_700_000_000_123, 60_000, 3, pop.NORMAL, "broker-a", 2, 7)
    assert checkpoint.text == CHECKPOINT
    assert pop.parse_checkpoint(CHECKPOINT) == checkpoint
    assert pop.parse_checkpoint(CHECKPOINT + " 9 more") == checkpoint
    assert not checkpoint.is_ordered
    assert checkpoint._replace(revive_queue_id=999).is_ordered


def test_the_offsets_of_an_answer_are_javas() -> None:
    starts = {("0", 2): 5, ("1", 0): 9}
    offsets = {("0", 2): [5, 7, 8], ("1", 0): [9]}
    assert pop.start_offset_info(starts) == START_INFO
    assert pop.msg_offset_info(offsets) == OFFSET_INFO
    assert pop.parse_start_offset_info(START_INFO) == starts
    assert pop.parse_msg_offset_info(OFFSET_INFO) == offsets
    assert pop.parse_start_offset_info("") == {}


def test_the_counts_of_an_ordered_answer_are_javas() -> None:
    assert pop.order_count_info({("0", 2): {5: 1}}) == COUNT_INFO
    counts = pop.parse_order_count_info(COUNT_INFO)
    assert pop.order_count_of(counts, ("0", 2), 5) == 1
    assert pop.order_count_of(counts, ("0", 2), 6) == 1, "the queue's own"
    assert pop.order_count_of(counts, ("0", 3), 6) == 0
    exact = pop.parse_order_count_info(pop.order_count_info({("0", 2): {5: 2, 6: 0}}))
    assert [pop.order_count_of(exact, ("0", 2), offset) for offset in (5, 6)] == [2, 0]


@pytest.mark.parametrize(("text", "body"), BODIES, ids=lambda item: type(item).__name__)
def test_bodies_are_javas(text: bytes, body: msgspec.Struct) -> None:
    assert encode_body(body) == text
    assert decode_body(type(body), text) == body


@pytest.mark.parametrize("offsets", [(), (7,), (7, 8, 9), (7, 14, 15, 38)])
def test_bit_sets_go_there_and_back(offsets: tuple[int, ...]) -> None:
    assert pop.offsets_of(bits_of(offsets, 7), 7) == list(offsets)


def test_topics_of_deliveries() -> None:
    for topic in ("T", "%RETRY%G_T", "%RETRY%G+T"):
        assert pop.asked_topic(topic, "G") == "T"
    for topic in ("%RETRY%H_T", "%RETRY%H+T", "%RETRY%G", "%RETRY%GT"):
        assert pop.asked_topic(topic, "G") == topic, "another group's, or 4.x's"
    assert [pop.topic_of_delivery("T", "G", retry) for retry in "012"] == [
        "T",
        "%RETRY%G_T",
        "%RETRY%G+T",
    ]
    assert [pop.retry_mark(topic) for topic in ("T", "%RETRY%G_T", "%RETRY%G+T")] == [*"012"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5 17 60000 3 0 broker-a 2",
        "x 17 60000 3 0 broker-a 2 7",
        "5 17 60000 3 7 broker-a 2 7",
        "5 17 60000 3 0 broker-a 99999999999 7",
        "5 17 60000 3 0 broker-a 2 " + "9" * 1000,
    ],
)
def test_a_handle_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        pop.parse_checkpoint(text)
    assert len(caught.value.remark) < 200


@pytest.mark.parametrize("text", ["0", "0 1", "0 1 2 3", "0 1 2;", "0 x 2", "0 1 y"])
def test_offsets_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        pop.parse_start_offset_info(text)


def test_a_bit_set_without_end_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="at most 4096"):
        pop.offsets_of(b"\xff" * 5000, 0)
