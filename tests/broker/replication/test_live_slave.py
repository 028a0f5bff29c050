"""A master and its slave at one name server, with access control: routes, tables, promotion.

The slave's log is handed over by the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.config.settings import NamesrvConfig
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.namesrv.controller import NamesrvController
from skylarkmq.client import Admin, Client, Consumer, Credentials, Producer, StartFrom
from skylarkmq.client import Message as NewMessage
from tests.support.live_broker import PATIENT, broker_config
from tests.support.patience import LIMIT_S, until

pytestmark = pytest.mark.timing

KEY, SECRET = "administrator", "12345678-secret"
ACCOUNTS = f"accounts:\n- accessKey: {KEY}\n  secretKey: {SECRET}\n  admin: true\n"
SLAVE = {"broker_role": "SLAVE", "broker_id": 1}


class Cluster:
    """A name server, and brokers of one name beside it; all with access control."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "home" / "conf").mkdir(parents=True)
        (root / "home" / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
        self._access: dict[str, Any] = {"acl_enable": True, "rocketmq_home": root / "home"}
        config = NamesrvConfig(listen_port=0, **self._access)
        self.namesrv = NamesrvController(config, SystemClock(asyncio.get_running_loop()))

    @property
    def namesrv_addr(self) -> str:
        return "{}:{}".format(*self.namesrv.listen_address)

    async def start(self, folder: str, **changes: Any) -> BrokerController:
        """Start a broker over a folder."""
        config = broker_config(
            self.root / folder, namesrv_addr=self.namesrv_addr, **self._access, **PATIENT, **changes
        )
        broker = BrokerController(config)
        await broker.start()
        return broker

    def client(self) -> Client:
        access = Credentials(KEY, SECRET)
        return Client(namesrv_addr=self.namesrv_addr, credentials=access, start_timeout=0)

    def addresses(self, topic: str) -> dict[int, str]:
        """The addresses of the brokers with a topic, by id, as clients are told them."""
        route = self.namesrv.routes.topic_route(topic)
        return dict(route.broker_datas[0].broker_addrs) if route else {}


@asynccontextmanager
async def cluster(root: Path) -> AsyncIterator[Cluster]:
    made = Cluster(root)
    await made.namesrv.start()
    try:
        yield made
    finally:
        await made.namesrv.stop()


@pytest.mark.slow
async def test_a_slave_copies_the_tables_serves_readers_and_is_promoted(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it, it.client() as client:
        slave = await it.start("slave", **SLAVE)
        master = await it.start("master")
        await until(lambda: len(it.addresses("broker-a")) == 2, "both registrations")
        both = {0: str(master.advertised), 1: str(slave.advertised)}
        assert it.addresses("broker-a") == both

        async with Admin(client=client) as admin:
            await admin.create_topic("orders", queues=1)
        async with Producer(client=client) as producer:
            for number in range(4):
                await producer.send(NewMessage("orders", b"%d" % number))
        async with Consumer(
            "orders", group="readers", client=client, start_from=StartFrom.FIRST
        ) as consumer:
            for _ in range(2):
                await (await consumer.getone(LIMIT_S)).ack()
            await consumer.commit()
        offset = master.parts.offsets.query("readers", "orders", 0)
        assert offset == 2

        await until(lambda: slave.parts.topics.get("orders"), "the topics")
        assert slave.parts.topics.data_version == master.parts.topics.data_version
        assert slave.parts.master.address == str(master.advertised)
        await until(lambda: slave.parts.offsets.query("readers", "orders", 0) == 2, "the offsets")
        assert "readers" in slave.parts.groups.table
        assert slave.parts.timer.file._followed, "how far timed messages are delivered comes, too"

        await master.stop()
        await until(lambda: it.addresses("orders") == {1: str(slave.advertised)}, "the good-bye")
        async with Consumer("orders", group="readers", client=client) as consumer:
            bodies = [(await consumer.getone(LIMIT_S)).body for _ in range(2)]
        assert bodies == [b"2", b"3"], "read from the slave, from where the group stands"

        await slave.stop()
        promoted = await it.start("slave")
        await until(
            lambda: it.addresses("orders") == {0: str(promoted.advertised)}, "the promotion"
        )
        async with it.client() as later, Producer(client=later) as producer:
            result = await producer.send(NewMessage("orders", b"4"))
        assert result.queue_offset == 4
        await promoted.stop()


@pytest.mark.slow
async def test_a_slave_that_starts_first_hears_of_its_master_soon(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        slave = await it.start("slave", **SLAVE)
        assert slave.parts.master.address is None
        master = await it.start("master")
        await until(lambda: slave.parts.master.address, "the master's address")
        assert slave.parts.master.address == str(master.advertised)
        assert slave.parts.master.ha_address is not None
        await slave.stop()
        assert it.addresses("broker-a") == {0: str(master.advertised)}
        await master.stop()
