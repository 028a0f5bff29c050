"""The commands of the page about failover are run as they stand, but for ports and folders."""

from __future__ import annotations

import asyncio
import shlex
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from skylarkmq.broker.config.config_file import Sources, load_broker_config
from skylarkmq.client import Admin, Consumer, Message, Producer, RocketMQError, StartFrom
from skylarkmq.client.admin import FailoverStatus
from tests.support.commands import commands
from tests.support.etcd_process import start_etcd
from tests.support.patience import LIMIT_S
from tests.test_cluster_page import COMMAND, on_free_ports

PAGE = Path(__file__).parents[1] / "docs" / "operations" / "failover.md"
TEXT = PAGE.read_text("utf-8")
LINES = COMMAND.findall(TEXT)
ETCD = "http://127.0.0.1:2379"


def test_the_page_shows_a_name_server_and_three_replicas_that_the_broker_takes() -> None:
    assert [line.split()[0] for line in LINES] == ["namesrv", "broker", "broker", "broker"]
    assert f"--listen-client-urls {ETCD}" in TEXT
    ids: list[int] = []
    for line in LINES[1:]:
        words = [word for word in shlex.split(line)[1:] if word != "--set"]
        config = load_broker_config(Sources(settings=words, host_name="host")).config
        assert config.is_replica
        assert (config.broker_name, config.controller_endpoints) == ("broker-a", ETCD)
        assert config.min_in_sync_replicas == 2
        ids.append(config.broker_id)
    assert ids == [1, 2, 3]


async def leader(admin: Admin) -> FailoverStatus | None:
    """Return what the replica tells that leads with all its set in sync; None: nobody does."""
    try:
        brokers = (await admin.cluster_status()).brokers
    except RocketMQError:
        return None
    seen = [broker.failover for broker in brokers]
    return next((each for each in seen if each is not None and each.leads), None)


@pytest.mark.slow
async def test_the_set_of_the_page_outlives_its_master(tmp_path: Path) -> None:
    [etcd] = await asyncio.to_thread(start_etcd, tmp_path / "etcd")
    lines, namesrv = on_free_ports([line.replace(ETCD, etcd.url) for line in LINES])
    async with AsyncExitStack() as stack:
        stack.callback(etcd.kill)
        all_of = await stack.enter_async_context(commands(tmp_path))
        await all_of.start(*shlex.split(lines[0]))
        await all_of.until(lambda: '"event":"ready"' in all_of.all[0].output, "the name server")
        first = await all_of.start(*shlex.split(lines[1]))
        admin = await stack.enter_async_context(Admin(namesrv_addr=namesrv, timeout=LIMIT_S))

        async def leads(replicas: int, other_than: str = "") -> bool:
            seen = await leader(admin)
            return seen is not None and len(seen.in_sync) >= replicas and seen.replica != other_than

        await all_of.until(lambda: leads(1), "a first master")
        for line in lines[2:]:
            await all_of.start(*shlex.split(line))
        await all_of.until(lambda: leads(3), "three in sync")
        assert await admin.cluster_health(disk_max=1.0) == ()
        before = await leader(admin)
        assert before is not None
        assert before.broker_id == 1
        producer = Producer(namesrv_addr=namesrv, send_timeout=LIMIT_S)
        await stack.enter_async_context(producer)
        await admin.create_topic("payments", queues=1)
        await producer.send(Message("payments", "before"))
        await first.kill()
        await all_of.until(lambda: leads(2, before.replica), "a new master")
        await producer.send(Message("payments", "after"))
        kinds = {each.kind for each in await admin.cluster_health(disk_max=1.0)}
        assert "replica_away" in kinds
        consumer = Consumer(
            "payments", namesrv_addr=namesrv, group="audit", start_from=StartFrom.FIRST
        )
        await stack.enter_async_context(consumer)
        bodies = [(await consumer.getone(LIMIT_S)).body for _ in range(2)]
        assert bodies == [b"before", b"after"]
        await all_of.start(*shlex.split(lines[1]))
        await all_of.until(lambda: leads(3), "three in sync again")
        now = await leader(admin)
        assert now is not None
        drained = await admin.drain("broker-a")
        assert drained.how == "switched_over"
        assert drained.master in now.in_sync
        assert drained.master != now.replica
