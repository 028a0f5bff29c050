"""Replicas that elect their master, behind RocketMQ's own name server, and its Java client.

That name server knows no terms and believes the last registration: a master that leads no more must
be silent, or clients would be sent to it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylarkmq.client import Admin, Message
from tests.broker.replication.replica_rig import NAME, ReplicaSet, producing, replicas_at
from tests.interop.apache_server import ApacheNameServer
from tests.interop.children import Children
from tests.interop.tools import JavaTools
from tests.support.patience import LIMIT_S, until

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("maven")]


async def places(replicas: ReplicaSet) -> dict[int, str]:
    """Return what the name server tells of the set: addresses by broker id."""
    async with Admin(namesrv_addr=replicas.namesrv_addr, timeout=LIMIT_S) as admin:
        brokers = [each for each in (await admin.cluster()).brokers if each.name == NAME]
    return {broker_id: address for each in brokers for broker_id, address in each.addresses.items()}


async def routes_agree(replicas: ReplicaSet) -> bool:
    """Return whether the name server knows each replica as what it is, and nobody else."""
    leader = replicas.leader()
    if leader is None:
        return False
    wanted = {
        0 if number == leader else number: str(replica.life.advertised)
        for number, replica in replicas.replicas.items()
    }
    return await places(replicas) == wanted


async def settled(replicas: ReplicaSet) -> None:
    """Wait until it does."""

    async def is_so() -> bool:
        return await routes_agree(replicas)

    await until(is_so, "the name server to know who is what")


async def test_a_master_that_dies_and_one_that_hands_over(tmp_path: Path) -> None:
    children = Children(tmp_path)
    names = ApacheNameServer(children, tmp_path / "names")
    try:
        await asyncio.to_thread(names.start)
        async with replicas_at(names.namesrv, tmp_path) as replicas:
            first = await replicas.three()
            await settled(replicas)
            async with producing(replicas) as sends:
                await sends.send(Message("T", b"before"))
                await replicas.kill(first)
                await sends.send(Message("T", b"after a death"))
                await replicas.led()
                await replicas.start(first)
                await replicas.in_sync(1, 2, 3)
                await settled(replicas)
                second = await replicas.led()
                await replicas.replicas[second].admin.switch_over("")
                await sends.send(Message("T", b"after a hand-over"))
                await replicas.in_sync(1, 2, 3)
                await settled(replicas)
            await java_sends(children, names, replicas)
    finally:
        await asyncio.to_thread(names.end)


async def java_sends(children: Children, names: ApacheNameServer, replicas: ReplicaSet) -> None:
    """RocketMQ's producer finds the master of today, and one that is new to it."""
    tools = JavaTools(children, names)
    for _ in range(2):
        events = await asyncio.to_thread(tools.produce, "T", "sync", 5)
        assert [event["event"] for event in events] == ["sent"] * 5
        leader = replicas.replicas[await replicas.led()]
        await leader.admin.switch_over("")
        await replicas.in_sync(1, 2, 3)
        await settled(replicas)
