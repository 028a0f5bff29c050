"""Calls of chance about another broker's messages: a status each, no traceback, nothing kept."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.grpc.names import transaction_id
from skylarkmq.broker.pop.handles import Receipt
from skylarkmq.broker.processor.recall import recall_handle
from skylarkmq.protocol.v5 import schema_pb2 as v5
from skylarkmq.protocol.v5.codes import Code
from tests.broker.forwarding.cluster_rig import GROUP, TOPIC, Cluster, open_cluster
from tests.broker.grpc.sending_rig import message
from tests.broker.grpc.test_hostile_calls import TEXTS, errors, fill, told
from tests.support.patience import until

__all__ = ["errors"]  # a fixture

pytestmark = pytest.mark.timing

CALLS = 80
NAMES = (
    "AckMessage", "ChangeInvisibleDuration", "EndTransaction", "ForwardMessageToDeadLetterQueue",
    "ReceiveMessage", "RecallMessage", "SendMessage",
)  # fmt: skip
BROKERS = ("broker-a", "broker-b", "broker-b", "broker-x", "", "x" * 300, "\u202e", "a\nb")


def some_handle(chance: random.Random) -> str:
    """A receipt handle that a broker may have made."""
    numbers = (0, 1, 2**31, 10**19 - 1)
    made = Receipt(chance.randrange(3), *chance.choices(numbers, k=3))
    return made.to_text(chance.choice(BROKERS))


def written(chance: random.Random, name: str) -> bytes:
    """A request that names another broker, and is unpleasant else."""
    request = getattr(v5, f"{name}Request")()
    fill(chance, request)
    _name(chance, request)
    fields = request.DESCRIPTOR.fields_by_name
    if "receipt_handle" in fields and chance.random() < 0.8:
        request.receipt_handle = some_handle(chance)
    for entry in request.entries if "entries" in fields else ():
        entry.receipt_handle = some_handle(chance)
    if "transaction_id" in fields and chance.random() < 0.8:
        request.transaction_id = transaction_id(chance.choice(TEXTS), chance.choice(BROKERS))
    if "recall_handle" in fields and chance.random() < 0.8:
        broker_name = chance.choice(BROKERS)
        request.recall_handle = recall_handle(TOPIC, broker_name, 10**12, chance.choice(TEXTS))
    if "message_queue" in fields:
        request.message_queue.broker.name = chance.choice(BROKERS)
    data: bytes = request.SerializeToString()
    return data


def _name(chance: random.Random, request: Any) -> None:
    """Give a request the topic and the group that there are, mostly."""
    holders = [request, *getattr(request, "messages", ())]
    if hasattr(request, "message_queue"):
        holders.append(request.message_queue)
    for holder in holders:
        for field, name in (("topic", TOPIC), ("group", GROUP)):
            if hasattr(holder, field) and chance.random() < 0.9:
                getattr(holder, field).name = name


async def is_well(cluster: Cluster) -> None:
    """Send to both brokers, and receive from both."""
    async with cluster.client(client_id="another@1") as client:
        for number in range(2):
            await client.send_one(message(b"well", message_id=f"m{number}"))
        for name in BROKERS[:2]:
            assert b"well" in [each.body for each in await client.taken(name)]


def open_calls(broker: BrokerController) -> int:
    assert broker.parts.grpc is not None
    return broker.parts.grpc.open_calls.count


@pytest.mark.parametrize("mode", ["LOCAL", "CLUSTER"])
async def test_what_chance_asks_of_another_broker_gets_a_status(
    tmp_path: Path, mode: str, errors: Any
) -> None:
    chance = random.Random("cluster")
    known = {int(code) for code in Code} - {int(Code.UNSPECIFIED)}
    async with open_cluster(tmp_path, "CLUSTER", mode) as cluster:
        async with cluster.client() as client:
            said = client.metadata
            for _ in range(CALLS):
                for name in NAMES:
                    text = chance.choice(TEXTS)
                    client.metadata = (*said, ("x-mq-odd", _printable(text)), ("x-odd", "1"))
                    data = written(chance, name)
                    try:
                        codes = await told(client, name, data)
                    except grpc.aio.AioRpcError as error:
                        assert name == "ReceiveMessage", (error, data.hex())
                        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED, error
                        continue
                    assert len(codes) == 1 and codes[0] in known, (codes, data.hex())
        assert {to for to, _ in cluster.forwarded()} == {"broker-b"}
        await is_well(cluster)
        await until(lambda: not any(map(open_calls, cluster.brokers)))


def _printable(text: str) -> str:
    return "".join(each for each in text if " " <= each <= "~").strip()


async def test_metadata_beyond_what_is_taken_costs_its_own_call(
    tmp_path: Path, errors: Any
) -> None:
    """All clients share a connection to the other broker."""
    async with open_cluster(tmp_path, "CLUSTER", "LOCAL") as cluster, cluster.client() as client:
        poll = client.begin("broker-b")
        await until(lambda: cluster.waiting(1) == 1)
        codes: list[int] = []
        for size in (*range(15_000, 16_500, 50), 60_000):
            async with cluster.client(metadata={"x-mq-odd": "x" * size}) as other:
                try:
                    codes.append(await other.end("m@broker-b", "m"))
                except grpc.aio.AioRpcError:  # this endpoint does not take it either
                    codes.append(0)
        assert codes[0] == Code.INVALID_TRANSACTION_ID and codes[-1] == 0
        assert set(codes) <= {Code.INVALID_TRANSACTION_ID, Code.TOO_MANY_REQUESTS, 0}, codes
        assert cluster.waiting(1) == 1, "the connection is as it was"
        poll.cancel()
