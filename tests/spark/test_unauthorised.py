"""A broker that lets nobody in: source and sink as Spark calls them, against a scripted peer."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from skylarkmq.client.errors import RocketMQError
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.spark import clients
from skylarkmq.spark.source import SkylarkSource
from tests.spark.support.scripted_brokers import scripted_brokers
from tests.spark.support.scripted_peer import ScriptedPeer

BODY = StructType([StructField("body", BinaryType())])
REMARK = "org.apache.rocketmq.acl.common.AclException: No accessKey is configured: the-account"
OFFSETS = {RequestCode.GET_MIN_OFFSET: "0", RequestCode.GET_MAX_OFFSET: "9"}


@pytest.fixture(autouse=True)
def no_clients_left() -> Iterator[None]:
    yield
    clients.close_all()


def denied(request: RemotingCommand) -> RemotingCommand:
    return request.reply(ResponseCode.SYSTEM_ERROR, REMARK)


def denied_to_pull(request: RemotingCommand) -> RemotingCommand:
    """Who may not read a topic may be told of its offsets all the same, as by RocketMQ."""
    offset = OFFSETS.get(RequestCode(request.code))
    return denied(request) if offset is None else request.reply(0, None, {"offset": offset})


def source(name_server: str, **more: str) -> SkylarkSource:
    account = {"accessKey": "the-account", "secretKey": "very-secret"}
    made = SkylarkSource({"nameServer": name_server, "topic": "T", **account, **more})
    return pickle.loads(pickle.dumps(made))


def fails(act: Callable[[], object], brokers: list[ScriptedPeer], *codes: RequestCode) -> None:
    """It fails at once, with the cause, the broker, and what to look at; and with no secret."""
    with pytest.raises(RocketMQError) as caught:
        act()
    text = str(caught.value)
    for part in (REMARK, brokers[0].address, "options accessKey and secretKey", "plain_acl.yml"):
        assert part in text
    assert "very-secret" not in text
    asked = [RequestCode(request.code) for request in brokers[0].requests]
    assert [code for code in asked if code not in OFFSETS or code in codes] == [*codes]
    assert all(request.ext_fields["AccessKey"] == "the-account" for request in brokers[0].requests)


def test_a_batch_is_not_planned() -> None:
    with scripted_brokers(denied, queue_count=1) as (name_server, brokers):
        reader = source(name_server).reader(BODY)
        fails(reader.partitions, brokers, RequestCode.GET_MIN_OFFSET)


def test_a_stream_does_not_start() -> None:
    with scripted_brokers(denied, queue_count=1) as (name_server, brokers):
        reader = source(name_server, startingOffsets="earliest").streamReader(BODY)
        fails(reader.initialOffset, brokers, RequestCode.GET_MIN_OFFSET)


def test_a_task_does_not_read() -> None:
    with scripted_brokers(denied_to_pull, queue_count=1) as (name_server, brokers):
        reader = source(name_server).reader(BODY)
        (partition,) = reader.partitions()
        with pytest.raises(RocketMQError):
            list(reader.read(partition))
        clients.close_all()
        for broker in brokers:
            broker.requests.clear()
        fails(lambda: list(reader.read(partition)), brokers, RequestCode.PULL_MESSAGE)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_task_does_not_send(streaming: bool) -> None:
    with scripted_brokers(denied) as (name_server, brokers):
        made = source(name_server)
        writer = made.streamWriter(BODY, False) if streaming else made.writer(BODY, False)
        batch = pa.record_batch([pa.array([b"x", b"y"], pa.binary())], names=["body"])
        # The deduplication window is asked for first; who may not know it may still send.
        asked = RequestCode.GET_TOPIC_CONFIG, RequestCode.SEND_BATCH_MESSAGE
        fails(lambda: writer.write(iter([batch])), brokers, *asked)
