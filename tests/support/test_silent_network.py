"""What stands for a broker that SIGSTOP has stopped, beside one that it really has."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from skylarkmq.client import Client, RocketMQError
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.testing import run_broker
from tests.support.broker_process import BrokerProcess
from tests.support.fake_cluster import FakeCluster
from tests.support.manual_clock import ManualClock, advance_async
from tests.support.silent_network import SilentNetwork

pytestmark = [pytest.mark.timing, pytest.mark.slow]

LIMIT_S = 0.2
ALSO_ASKED = RequestCode.UNREGISTER_CLIENT
"""A request that each of them answers while it is well."""


async def told(client: Client, address: str) -> tuple[str, bool, str]:
    """Ask a broker, and return what is told of it."""
    request = RemotingCommand.request(ALSO_ASKED, {"clientID": "c", "consumerGroup": "g"})
    try:
        await services_of(client).remoting.call(address, request, LIMIT_S)
    except RocketMQError as error:
        return type(error).__name__, error.retryable, str(error).replace(address, "it")
    return "answered", False, ""


async def told_twice(client: Client, address: str) -> list[tuple[str, bool, str]]:
    return [await told(client, address), await told(client, address)]


async def of_fake(*, is_known: bool) -> list[tuple[str, bool, str]]:
    """What is told of a FakeBroker that has fallen silent."""
    cluster, clock = FakeCluster(), ManualClock()
    broker = cluster.broker("it")
    async with Client(cluster.namesrv, network=cluster.network, clock=clock) as client:
        if is_known:
            assert (await told(client, broker.address))[0] == "answered"
        broker.silent = True
        asking = asyncio.create_task(told_twice(client, broker.address))
        await advance_async(clock, 3 * LIMIT_S)
        return await asking


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_stopped_process_and_what_stands_for_it_are_told_alike(
    tmp_path: Path, is_known: bool
) -> None:
    """Connected before, or not: the system takes connections for a process that is stopped."""
    process = await (await BrokerProcess.spawn(tmp_path)).ready()
    address = "{}:{}".format(*process.address)
    try:
        async with run_broker() as names, Client(names.namesrv_addr) as client:
            while is_known and (await told(client, address))[0] != "answered":
                pass  # the machine is busy
            os.kill(process.process.pid, signal.SIGSTOP)
            of_process = await told_twice(client, address)
            silent: set[str] = set()
            network = SilentNetwork(silent)
            async with Client(names.namesrv_addr, network=network, clock=network.clock) as other:
                silent.add(address)
                of_network = await told_twice(other, address)
    finally:
        await process.kill()
    assert {kind for kind, _, _ in of_process} == {"RequestTimeout"}
    assert of_process == await of_fake(is_known=is_known)
    if not is_known:
        assert of_process == of_network
