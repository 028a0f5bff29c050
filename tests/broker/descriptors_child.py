"""A process of its own that uses up its descriptors: a server in it must wait and go on serving.

It is a process because brokers of other tests share the descriptors of a test's own process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import sys

import uvloop

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.net.addresses import ACCEPTS_PER_TURN, bind, port_of
from skylarkmq.broker.net.router import Router
from skylarkmq.broker.net.server import PeerLimits, RemotingServer
from tests.support.manual_clock import ManualClock
from tests.support.raw_client import RawClient

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
SPARE = 5  # descriptors above those of the peers, before they run out


async def serve_without_descriptors() -> None:
    # Of the stock loop, seconds.
    asyncio.constants.ACCEPT_RETRY_DELAY = 0.01  # type: ignore[attr-defined]
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
    clock, stats = ManualClock(), BrokerStats()
    server = RemotingServer(
        Router({}, stats, clock), clock, stats, limits=PeerLimits(address_share=100)
    )
    bound = bind("127.0.0.1", 0)
    address = ("127.0.0.1", port_of(bound))
    await server.serve(bound)
    client = await RawClient.open(address)
    await client.call(9)

    peers = [socket.socket() for _ in range(10)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (peers[-1].fileno() + SPARE, limits[1]))
    fillers: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            fillers.append(os.dup(peers[0].fileno()))
    for peer in peers:
        peer.connect(address)
    for _ in range(200):
        assert (await client.call(9)).code == 3
    assert len(server.connections) == 1
    if failures:  # uvloop closes the peers instead
        assert len(failures) < 100 * ACCEPTS_PER_TURN

    for filler in fillers:
        os.close(filler)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    again = await RawClient.open(address)
    assert (await again.call(9)).code == 3
    for each in (client, again):
        await each.close()
    for peer in peers:
        peer.close()
    await server.stop()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=LOOPS[sys.argv[1]]) as runner:
        runner.run(serve_without_descriptors())
