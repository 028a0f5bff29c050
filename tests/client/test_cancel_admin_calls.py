"""Every call of Admin, cancelled at each of its suspension points, over a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client import Admin, Client, Consumer, RocketMQError, StartFrom
from skylarkmq.client.admin.reading import MessageScan
from skylarkmq.client.instance import services_of
from tests.client.admin.support import Site, site
from tests.support.cancelling import Cut, Way, drive
from tests.support.patience import until

pytestmark = pytest.mark.timing

START = datetime(2020, 1, 1, tzinfo=UTC)
CALLS: dict[str, str] = {
    "access_files": "admin.access_files('broker-a')",
    "access_rules": "admin.access_rules('broker-a')",
    "allow_writes": "admin.allow_writes('broker-a')",
    "broker_config": "admin.broker_config('broker-a')",
    "broker_progress": "admin.broker_progress('broker-a')",
    "broker_runtime": "admin.broker_runtime('broker-a')",
    "clone_offsets": "admin.clone_offsets('billing', 'copy')",
    "cluster": "admin.cluster()",
    "cluster_health": "admin.cluster_health()",
    "cluster_status": "admin.cluster_status()",
    "consume_directly": "admin.consume_directly('live', client_id, place)",
    "consumers": "admin.consumers('live')",
    "create_group": "admin.create_group('made', exist_ok=True)",
    "create_topic": "admin.create_topic('made', exist_ok=True)",
    "delete_account": "admin.delete_account('somebody')",
    "delete_group": "admin.delete_group('made')",
    "delete_topic": "admin.delete_topic('made')",
    "describe_group": "admin.describe_group('billing')",
    "deduplication_windows": "admin.deduplication_windows('orders')",
    "topic_attributes": "admin.topic_attributes('orders')",
    "describe_topic": "admin.describe_topic('orders')",
    "failover": "admin.failover('broker-a', on=1, accept_loss=True)",
    "keep_text": "admin.keep_text('notes', 'one', 'text')",
    "kept_texts": "admin.kept_texts('notes')",
    "list_groups": "admin.list_groups()",
    "list_topics": "admin.list_topics(groups=True)",
    "member_info": "admin.member_info('live', client_id)",
    "message": "admin.message(place)",
    "name_server_config": "admin.name_server_config()",
    "producer_groups": "admin.producer_groups()",
    "producers": "admin.producers('DEFAULT_PRODUCER')",
    "delayed": "admin.delayed()",
    "open_transactions": "admin.open_transactions()",
    "progress": "admin.progress('billing')",
    "put_account": "admin.put_account('somebody', 'secret-enough')",
    "query": "admin.query('orders', key='k')",
    "query (by time)": "admin.query('orders', start=START)",
    "ranges": "admin.ranges('orders', start=START)",
    "redrive_dead_letter": "admin.redrive_dead_letter(letter, 'billing')",
    "plan_copy": "admin.plan_copy(letter, 'billing')",
    "find_copy": "admin.find_copy(letter, copy)",
    "reset_offset": "admin.reset_offset('billing', 'orders', when='begin')",
    "set_broker_config": "admin.set_broker_config('broker-a', {'defaultQueryMaxNum': '33'})",
    "set_name_server_config": "admin.set_name_server_config({'orderMessageEnable': 'true'})",
    "set_white_list": "admin.set_white_list(['10.0.0.1'])",
    "statistic": "admin.statistic('TOPIC_PUT_NUMS', 'orders')",
    "stop_writes": "admin.stop_writes('broker-a')",
    "drain": "admin.drain('broker-a')",  # before the topic is made writable again
    "undrain": "admin.undrain('broker-a')",
    "drain_progress": "admin.drain_progress('broker-a')",
    "switch_over": "admin.switch_over('broker-a')",
    "topic_groups": "admin.topic_groups('orders')",
    "topic_route": "admin.topic_route('orders')",
    "trace": "admin.trace('C0A8', topic='orders')",
    "track": "admin.track(letter, 'billing')",
    "update_group": "admin.update_group('billing', max_retries=16)",
    "update_topic": "admin.update_topic('orders', queues=2)",
    "MessageScan.__anext__": "every(admin.scan('orders'))",
}
"""What is called, as an expression over the names of `known`."""
OWN_LIFE = {
    "start": "started(namesrv)",
    "stop": "stopped(namesrv)",
    "__aenter__": "entered(namesrv)",
    "__aexit__": "entered(namesrv)",
}
MAY_FAIL = {
    "access_files", "access_rules", "delete_account", "delete_group", "delete_topic", "failover",
    "name_server_config", "put_account", "set_name_server_config", "set_white_list",
    "switch_over", "trace",
}  # fmt: skip
"""Because what they ask for is not there, or not there any more."""
WAYS: tuple[Way, ...] = ("waiting", "woken", "timeout")


async def every(items: MessageScan) -> int:
    return len([item async for item in items])


async def started(namesrv: str) -> None:
    admin = Admin(namesrv_addr=namesrv)
    try:
        await admin.start()
    finally:
        await admin.stop()


async def stopped(namesrv: str) -> None:
    admin = Admin(namesrv_addr=namesrv)
    await admin.start()
    try:
        await admin.list_topics()
        await admin.stop()
    finally:
        await admin.stop()


async def entered(namesrv: str) -> None:
    async with Admin(namesrv_addr=namesrv) as admin:
        await admin.list_topics()


def own_tasks() -> list[str]:
    """Of the SDK, apart from those that come and go."""
    names = (task.get_name() for task in asyncio.all_tasks() if not task.done())
    return sorted(n for n in names if n.startswith("skylarkmq-") and "pull" not in n)


async def nothing_left(it: Site, before: list[str], where: str) -> None:
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert "skylarkmq-admin-call" not in names
    await asyncio.sleep(0)
    connections = services_of(it.client).remoting.connections
    waiters = [waiter for one in connections for waiter in one._pending.values()]
    assert not [waiter for waiter in waiters if getattr(waiter, "future").done()]  # noqa: B009
    await until(
        lambda: not any(one.pending_count for one in connections) and own_tasks() == before,
        f"the end of {where}: {own_tasks()}, not {before}",
    )


async def known(it: Site) -> dict[str, Any]:
    """Fill the cluster; return what the expressions speak of."""
    await it.admin.create_topic("orders", queues=2)
    await it.send("orders", 4, keys="k")
    await it.consume("orders", "billing", 4, dead=1)
    (letter, *_) = [one async for one in it.admin.dead_letters("billing")]
    copy = await it.admin.plan_copy(letter, "billing")
    message = (await it.admin.query("orders", start=START))[0]
    return {
        "admin": it.admin, "letter": letter, "copy": copy, "place": message.offset_msg_id,
        "START": START, "namesrv": it.namesrv, "every": every, "started": started,
        "stopped": stopped, "entered": entered,
    }  # fmt: skip


@pytest.mark.slow
async def test_each_call_at_each_suspension_point(tmp_path: Path) -> None:
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, seen: problems.append(seen))
    async with site(tmp_path) as it:
        names = await known(it)
        async with (
            Client(it.namesrv) as other,
            Consumer("orders", client=other, group="live", start_from=StartFrom.LAST) as member,
        ):
            running = asyncio.create_task(member.run(lambda _: None))
            names["client_id"] = other.client_id
            await asyncio.sleep(0)
            before = own_tasks()
            for name, text in {**CALLS, **OWN_LIFE}.items():
                await swept(it, name, text, names, before)
            await member.stop()
            await running
    assert problems == []


async def swept(it: Site, name: str, text: str, names: dict[str, Any], before: list[str]) -> None:
    for way in WAYS:
        at, reached = 0, True
        while reached:
            work: Coroutine[Any, Any, Any] = eval(text, names)
            driven = await drive(None, work, Cut(way, at))
            reached, at = driven.reached, at + 1
            where = f"{name}, {way} {at}: {driven.error!r}"
            if not reached:
                may_fail = name in MAY_FAIL and isinstance(driven.error, RocketMQError)
                assert driven.error is None or may_fail, where
            else:
                wanted = TimeoutError if way == "timeout" else asyncio.CancelledError
                assert isinstance(driven.error, wanted), where
            await nothing_left(it, before, where)
        assert at > 1 or name in ("stop",), f"{name} never waits"
