"""A task of the sink against brokers that are busy, close, garble and are slow on their disks."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from skylarkmq.client.producer.lanes import by_hash
from skylarkmq.protocol.batch import split_batch
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import encode_command
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.properties import decode_properties
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.spark import clients
from skylarkmq.spark.sink import batch_sink
from tests.spark.support.scripted_brokers import scripted_brokers
from tests.spark.support.scripted_peer import CLOSE, Said

ROWS = 400
BROKERS = ("broker-a", "broker-b")
QUEUES = [MessageQueue("T", broker, number) for broker in BROKERS for number in range(2)]
SCHEMA = StructType([StructField("body", BinaryType()), StructField("shardingKey", StringType())])


@pytest.fixture(autouse=True)
def no_clients_left() -> Iterator[None]:
    yield
    clients.close_all()


class Troubled:
    """Stores what it is sent, and answers amiss now and then."""

    def __init__(self, seed: int) -> None:
        self.stored: dict[MessageQueue, list[tuple[int, str]]] = {}
        self._random = random.Random(seed)

    def __call__(self, request: RemotingCommand) -> Said | list[Said]:
        if request.code == RequestCode.GET_TOPIC_CONFIG:  # as RocketMQ 4.9
            return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        kinds = ("busy", "slow disk", "close", "close after", "garbage", "half", "bare")
        kind = self._random.choice(kinds) if self._random.random() < 0.15 else "good"
        if kind == "busy":
            return request.reply(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy")
        if kind == "close":
            return CLOSE
        if kind == "garbage":
            return b"\xff" * 40
        self._store(request)
        fields = {"msgId": "id", "queueId": request.ext_fields["e"], "queueOffset": "1"}
        answers: dict[str, Said | list[Said]] = {
            "slow disk": request.reply(ResponseCode.FLUSH_DISK_TIMEOUT, "", fields),
            "close after": CLOSE,
            "half": [encode_command(request.reply(0, None, fields))[:9], CLOSE],
            "bare": request.reply(0),
            "good": request.reply(0, None, fields),
        }
        return answers[kind]

    def _store(self, request: RemotingCommand) -> None:
        fields = request.ext_fields
        if request.code == RequestCode.SEND_BATCH_MESSAGE:
            items = [(item.body, item.properties.decode()) for item in split_batch(request.body)]
        else:
            items = [(request.body, fields["i"])]
        queue = self.stored.setdefault(MessageQueue("T", fields["n"], int(fields["e"])), [])
        queue += [(int(bytes(body)), decode_properties(text)["UNIQ_KEY"]) for body, text in items]


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_every_row_is_stored_and_copies_can_be_told(seed: int, sharded: bool) -> None:
    keys = [f"s{row % 9}" if sharded else None for row in range(ROWS)]
    columns = [pa.array([b"%d" % row for row in range(ROWS)]), pa.array(keys, pa.string())]
    brokers = Troubled(seed)
    with scripted_brokers(brokers, BROKERS) as (name_server, _):
        options = {"nameServer": name_server, "topic": "T", "sendBatchRows": "7"}
        sink = batch_sink({**options, "fetchOffset.numRetries": "100"}, SCHEMA, overwrite=False)
        batch = pa.record_batch(columns, names=["body", "shardingKey"])
        receipt = sink.write(iter([batch]))
    assert receipt.count == ROWS
    keys_of: dict[int, set[str]] = {}
    for queue, items in brokers.stored.items():
        for row, key in items:
            keys_of.setdefault(row, set()).add(key)
        if sharded:
            first = list(dict.fromkeys(row for row, _ in items))
            assert first == sorted(first)
            assert all(by_hash(QUEUES, f"s{row % 9}") == queue for row in first)
    assert sorted(keys_of) == list(range(ROWS))
    assert len(set.union(*keys_of.values())) == ROWS
    assert all(len(keys) == 1 for keys in keys_of.values())
    copies = sum(map(len, brokers.stored.values())) - ROWS
    assert copies <= 7 * receipt.resent
