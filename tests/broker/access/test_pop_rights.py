"""What the codes of pop consumption need: the topic that was asked for, also for its retries."""

from __future__ import annotations

import pytest

from skylarkmq.broker.access.accounts import SUB, Kind
from skylarkmq.broker.access.rights import BROKER, Level
from skylarkmq.protocol.bodies.pop import (
    BatchAck,
    BatchAckMessageRequestBody,
    QueryAssignmentRequestBody,
)
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand

GROUP, TOPIC = (Kind.GROUP, "G", SUB), (Kind.TOPIC, "T", SUB)


def needs(code: int, body: bytes = b"", **fields: str) -> set[tuple[Kind, str, int]]:
    request = RemotingCommand.request(code, {"consumerGroup": "G", **fields}, body)
    return {need for resource in BROKER[code].resources for need in resource.read(request)}


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
        RequestCode.ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    ],
)
def test_topic_and_group(code: int) -> None:
    assert needs(code, topic="T") == {TOPIC, GROUP}


@pytest.mark.parametrize(
    "code", [RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME]
)
def test_a_delivery_of_a_retry_needs_the_topic_that_it_was_asked_for_by(code: int) -> None:
    assert needs(code, topic="%RETRY%G_T") == {TOPIC, GROUP}
    assert (Kind.GROUP, "H_T", SUB) in needs(code, topic="%RETRY%H_T"), "another group's"


def test_all_that_a_body_names() -> None:
    acks = [
        BatchAck(consumer_group=group, topic=topic, pop_time=1, queue_id=0, start_offset=0)
        for group, topic in (("G", "T"), ("H", "U"))
    ]
    body = encode_body(BatchAckMessageRequestBody(acks=acks))
    others = {(Kind.GROUP, "H", SUB), (Kind.TOPIC, "U", SUB)}
    assert needs(RequestCode.BATCH_ACK_MESSAGE, body) == {TOPIC, GROUP} | others
    body = encode_body(
        QueryAssignmentRequestBody(client_id="c", consumer_group="G", topic="%RETRY%G")
    )
    assert needs(RequestCode.QUERY_ASSIGNMENT, body) == {GROUP}
    assert BROKER[RequestCode.SET_MESSAGE_REQUEST_MODE].level is Level.ADMIN
