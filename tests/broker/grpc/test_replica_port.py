"""The port for clients of RocketMQ 5 at replicas: open at the leader, and where calls go on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from tests.broker.grpc.rig import Client
from tests.broker.replication.replica_rig import ReplicaSet, replica_set
from tests.support.patience import LIMIT_S, until

pytestmark = pytest.mark.timing


async def answers(replicas: ReplicaSet, number: int) -> bool:
    """Whether a replica takes a call."""
    address = replicas.replicas[number].life.grpc_address
    assert address is not None
    async with grpc.aio.insecure_channel(f"127.0.0.1:{address[1]}") as channel:
        try:
            request = schema_pb2.NotifyClientTerminationRequest()
            answer = await Client(channel).call("NotifyClientTermination", request)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            return False
        assert answer.status.code == Code.OK
        return True


@pytest.mark.slow
async def test_the_port_goes_over_with_the_lead(tmp_path: Path) -> None:
    async with replica_set(tmp_path, grpc_listen_port=0) as replicas:
        for number in (1, 2):
            await replicas.start(number)
        first = await replicas.led()
        other = 3 - first
        await replicas.in_sync(1, 2)
        ports = {number: each.life.grpc_address for number, each in replicas.replicas.items()}
        assert await answers(replicas, first)
        assert not await answers(replicas, other)
        await asyncio.wait_for(replicas.replicas[first].admin.switch_over(""), 30)
        await until(lambda: replicas.leader() == other, "the other leads")
        await until(lambda: answers(replicas, other), "its port")
        assert not await answers(replicas, first)
        await replicas.in_sync(1, 2)
        assert ports == {
            number: each.life.grpc_address for number, each in replicas.replicas.items()
        }
        await replicas.replicas[other].admin.switch_over("")
        await until(lambda: replicas.leader() == first, "the first leads again")
        await until(lambda: answers(replicas, first), "its port")


async def test_a_replica_that_forwards_has_its_port_open(tmp_path: Path) -> None:
    async with replica_set(tmp_path, grpc_listen_port=0, grpc_proxy_mode="CLUSTER") as replicas:
        for number in (1, 2):
            await replicas.start(number)
        first = await replicas.led()
        other = 3 - first
        await replicas.in_sync(1, 2)
        assert await answers(replicas, first)
        assert await answers(replicas, other)
        address = replicas.replicas[other].life.grpc_address
        assert address is not None
        async with grpc.aio.insecure_channel(f"127.0.0.1:{address[1]}") as channel:
            stream = Client(channel).telemetry()
            await stream.write(schema_pb2.TelemetryCommand())
            await replicas.replicas[first].admin.switch_over("")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(stream.read(), LIMIT_S)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert replicas.leader() == other, "the stream ends when the replica leads"
            assert await answers(replicas, other)
        await until(lambda: answers(replicas, first), "the former master's port")
        await replicas.in_sync(1, 2)
