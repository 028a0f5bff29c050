"""Three brokers of which one is sick, as commands and the console see them from the test's process.

    silent      it takes what is sent, and answers nothing, as one that SIGSTOP has stopped
    away        nobody listens at the address that it advertises
    refusing    its access control is on, and nobody here has an account

The brokers run in threads. That one is silent or away is so for the clients alone, by their network
(`tests/support/silent_network.py`), so no time limit has to pass.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from skylarkmq.client import Client, Consumer, Credentials, Message, Producer, StartFrom
from skylarkmq.client.admin import Admin
from skylarkmq.client.instance import services_of
from skylarkmq.testing import Account, SyncBroker, run_broker_sync
from tests.support.patience import LIMIT_S, until
from tests.support.silent_network import SilentNetwork
from tests.tools.admin.support import Shell

ACCOUNT = Account("administrator", "secret-of-it", admin=True)
WELL, SICK = ("broker-a", "broker-b"), "broker-c"
SENT, QUEUES = 24, 2
SICKNESSES: Final = ("silent", "away", "refusing")


@dataclass(frozen=True)
class Cluster:
    """What a test has of the three; each has a part of the topic `orders`, of the group `billing`,
    of its dead letters, and of the delayed messages.
    """

    namesrv: str
    sick_address: str
    sickness: str

    def client(self, namesrv_addr: str | None = None, **settings: Any) -> Client:
        """Return a client that sees the sickness."""
        address = (self.sick_address,)
        network = SilentNetwork(
            silent=address if self.sickness == "silent" else (),
            away=address if self.sickness == "away" else (),
        )
        return self._client(network, namesrv_addr, **settings)

    def without(self, addresses: Collection[str]) -> Callable[..., Client]:
        """Return what makes a client for which nobody listens at these addresses."""

        def client(namesrv_addr: str | None = None, **settings: Any) -> Client:
            return self._client(SilentNetwork(away=addresses), namesrv_addr, **settings)

        return client

    def _client(self, network: SilentNetwork, namesrv_addr: str | None, **settings: Any) -> Client:
        settings.pop("ssl", None)
        address_of_names = namesrv_addr or self.namesrv
        return Client(address_of_names, network=network, clock=network.clock, **settings)


@contextlib.contextmanager
def three(*accounts: Account) -> Iterator[tuple[SyncBroker, str]]:
    """Run them; return the first, which has the name server, and the address of the sick one."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(run_broker_sync(settings={"brokerName": WELL[0]}))
        for name in (WELL[1], SICK):
            settings = {"brokerName": name, "namesrvAddr": first.namesrv_addr}
            signed = accounts if name == SICK and accounts else None
            stack.enter_context(run_broker_sync(settings=settings, accounts=signed))
        credentials = [Credentials(each.access_key, each.secret_key) for each in accounts]
        yield first, asyncio.run(fill(first.namesrv_addr, *credentials))


async def fill(namesrv: str, credentials: Credentials | None = None) -> str:
    """Fill the brokers; return the address of the sick one."""
    async with (
        Client(namesrv, credentials=credentials) as client,
        Admin(client=client) as admin,
    ):

        async def registered() -> dict[str, str]:
            known = {each.name: each.addresses[0] for each in (await admin.cluster()).brokers}
            return known if len(known) == len((*WELL, SICK)) else {}

        async def routed() -> bool:
            route = await services_of(client).routes.refresh("orders")
            return route is not None and len(route.publish_queues) == QUEUES * len(found)

        found = await until(registered, "the brokers")
        await admin.create_topic("orders", queues=QUEUES)
        await until(routed, "the route")
        async with Producer(client=client) as producer:
            for number in range(SENT):
                await producer.send(Message("orders", b"%d" % number, keys="k"))
            for _ in range(QUEUES * len(found)):
                await producer.send(Message("orders", b"later", delay=timedelta(hours=5)))
                await producer.send(Message("orders", b"level", delay_level=18))
        async with Consumer(
            "orders", client=client, group="billing", start_from=StartFrom.FIRST, ack="manual"
        ) as member:
            brokers = set[str]()
            while len(brokers) < len(found):
                message = await member.getone(LIMIT_S)
                if message.queue.broker_name in brokers:
                    await message.ack()
                else:
                    brokers.add(message.queue.broker_name)
                    await message.dead_letter()
            await member.commit()
        return found[SICK]


@pytest.fixture(scope="session")
def open_brokers() -> Iterator[tuple[str, str]]:
    """The name server and the address of the sick one, which is open."""
    with three() as (first, sick_address):
        yield first.namesrv_addr, sick_address


@pytest.fixture(scope="session")
def closed_brokers() -> Iterator[tuple[str, str]]:
    """The same, with one that refuses."""
    with three(ACCOUNT) as (first, sick_address):
        yield first.namesrv_addr, sick_address


@pytest.fixture
def cluster(request: pytest.FixtureRequest, sickness: str) -> Cluster:
    """Three brokers of which one has a `sickness`, a parameter of the test."""
    kind = "closed_brokers" if sickness == "refusing" else "open_brokers"
    return Cluster(*request.getfixturevalue(kind), sickness)


@pytest.fixture
def shell(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    """Commands towards the cluster."""
    monkeypatch.setattr("skylarkmq.tools.connection.Client", cluster.client)
    return Shell(tmp_path, variables={"NAMESRV_ADDR": cluster.namesrv})
