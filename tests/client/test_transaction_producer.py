"""Transactions against a scripted cluster: what is sent at each step, and what goes wrong there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from skylarkmq.client import (
    HalfMessage,
    IllegalState,
    Message,
    NotDurableError,
    Producer,
    RequestTimeout,
    SendStatus,
    TransactionState,
)
from skylarkmq.client.instance import services_of
from skylarkmq.client.producer.transaction import END_TIMEOUT_S
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import reply_topic
from skylarkmq.protocol.remoting_command import RemotingCommand
from tests.client.support import Setting
from tests.support.fake_cluster import FakeBroker
from tests.support.manual_clock import advance_async, settle

COMMIT, ROLLBACK, UNKNOWN = "8", "12", "0"
ORDER = Message("orders", b"one", tags="A", keys="k")


async def never_asked(half: HalfMessage) -> TransactionState:
    raise AssertionError(f"asked about {half}")


def ends_of(broker: FakeBroker) -> list[RemotingCommand]:
    return [each for each in broker.requests if each.code == RequestCode.END_TRANSACTION]


def verdicts_of(broker: FakeBroker) -> list[str]:
    return [each.ext_fields["commitOrRollback"] for each in ends_of(broker)]


class It:
    """A producer of group P and its broker."""

    def __init__(self, setting: Setting, broker: FakeBroker) -> None:
        self.setting = setting
        self.broker = broker
        self.producer: Producer = setting.producer

    async def verdicts(self) -> list[str]:
        await settle(4)
        return verdicts_of(self.broker)


@pytest.fixture
async def it() -> AsyncIterator[It]:
    async with Setting(group="P", check=never_asked) as setting:
        yield It(setting, setting.cluster.broker(topics={"orders": 2, CLUSTER_TOPIC: 1}))


CLUSTER_TOPIC = reply_topic("DefaultCluster")


async def test_a_block_that_ends_commits(it: It) -> None:
    async with it.producer.transaction(ORDER) as transaction:
        assert transaction.state is None
        half = transaction.result
        assert half.status is SendStatus.SEND_OK
        assert transaction.transaction_id == half.msg_id
        assert await it.verdicts() == []
    assert transaction.state is TransactionState.COMMIT
    assert await it.verdicts() == [COMMIT]

    stored = it.broker.topics["orders"].queues[half.queue.queue_id][half.queue_offset]
    assert stored.properties == {
        "TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": half.msg_id, "TAGS": "A", "KEYS": "k",
    }  # fmt: skip
    assert stored.sys_flag == 4
    (end,) = ends_of(it.broker)
    assert end.is_oneway
    assert end.ext_fields == {
        "producerGroup": "P", "tranStateTableOffset": str(half.queue_offset),
        "commitLogOffset": "1000", "commitOrRollback": COMMIT, "fromTransactionCheck": "false",
        "msgId": half.msg_id, "bname": "broker-a",
    }  # fmt: skip


async def test_a_block_that_raises_rolls_back(it: It) -> None:
    with pytest.raises(ZeroDivisionError):
        async with it.producer.transaction(ORDER) as transaction:
            _ = 1 / 0
    assert transaction.state is TransactionState.ROLLBACK
    assert await it.verdicts() == [ROLLBACK]


async def test_a_block_that_is_cancelled_leaves_it_to_the_check(it: It) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        async with it.producer.transaction(ORDER):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await it.verdicts() == [UNKNOWN]


async def test_a_block_may_say_it_itself(it: It) -> None:
    async with it.producer.transaction(ORDER) as first:
        await first.commit()
        await first.commit()
        with pytest.raises(IllegalState, match="ended already: COMMIT"):
            await first.rollback()
    async with it.producer.transaction(ORDER) as second:
        await second.rollback()
        with pytest.raises(IllegalState, match="ended already: ROLLBACK"):
            await second.commit()
    async with it.producer.transaction(ORDER) as third:
        await third.unknown()
    with pytest.raises(ZeroDivisionError):
        async with it.producer.transaction(ORDER) as fourth:
            await fourth.unknown()
            _ = 1 / 0
    await third.commit()
    assert await it.verdicts() == [COMMIT, ROLLBACK, UNKNOWN, UNKNOWN, COMMIT]


async def test_what_is_refused(it: It) -> None:
    for late in ({"delay_level": 3}, {"delay": timedelta(seconds=5)}):
        arguments: dict[str, Any] = late
        with pytest.raises(IllegalState, match="delayed"):
            it.producer.transaction(Message("orders", b"x", **arguments))
    transaction = it.producer.transaction(ORDER)
    with pytest.raises(IllegalState, match="not begun"):
        await transaction.commit()
    async with transaction:
        pass
    with pytest.raises(IllegalState, match="entered once"):
        await transaction.__aenter__()

    async with Producer(client=it.setting.client, group="Q") as unchecked:
        with pytest.raises(IllegalState, match=r"Producer\(check=\.\.\.\)"):
            unchecked.transaction(ORDER)
        unchecked.transaction(ORDER, check=never_asked)
    async with Producer(client=it.setting.client, check=never_asked) as nameless:
        with pytest.raises(IllegalState, match="a group of its own"):
            nameless.transaction(ORDER)


@pytest.mark.parametrize("strict", [False, True])
async def test_a_half_message_that_may_be_lost_is_rolled_back(strict: bool) -> None:
    async with Setting(group="P", check=never_asked, strict=strict) as setting:
        broker = setting.cluster.broker(topics={"orders": 1, CLUSTER_TOPIC: 1})
        fields = {"msgId": "C0000214000027A100000000000003E8", "queueId": "0", "queueOffset": "5"}

        def unsure(request: RemotingCommand, stream: object) -> RemotingCommand:
            return request.reply(ResponseCode.FLUSH_DISK_TIMEOUT, None, dict(fields))

        act, broker.respond = broker.respond, unsure  # type: ignore[method-assign]
        await services_of(setting.client).routes.refresh("orders")
        with pytest.raises(NotDurableError, match="FLUSH_DISK_TIMEOUT"):
            async with setting.producer.transaction(ORDER):
                pytest.fail("the local transaction began")
        broker.respond = act  # type: ignore[method-assign]
        await settle(4)
        assert verdicts_of(broker) == [ROLLBACK]


async def test_a_half_message_of_unknown_fate_is_rolled_back_when_asked(it: It) -> None:
    it.broker.silent = True
    entering = asyncio.create_task(it.producer.transaction(ORDER).__aenter__())
    await advance_async(it.setting.clock, 4)
    with pytest.raises(RequestTimeout):
        await entering
    (half,) = [each for each in it.broker.requests if each.code == RequestCode.SEND_MESSAGE_V2]
    properties = dict(pair.split("\x01") for pair in half.ext_fields["i"].split("\x02"))
    it.broker.silent = False
    calls = it.producer._parts_now
    assert calls.transactions.checks._ended[properties["UNIQ_KEY"]].state is ROLLED_BACK
    assert not calls.transactions.checks.open


ROLLED_BACK = TransactionState.ROLLBACK


async def test_a_verdict_that_cannot_be_sent_does_not_fail(it: It) -> None:
    transaction = await it.producer.transaction(ORDER).__aenter__()
    it.broker.connect_error = ConnectionRefusedError("down")
    it.broker.streams[0].lose(None)
    await settle(4)
    committing = asyncio.create_task(transaction.commit())
    await advance_async(it.setting.clock, END_TIMEOUT_S - 0.1)
    assert not committing.done(), "another broker may become the master"
    await advance_async(it.setting.clock, 0.2)
    await committing
    assert transaction.state is TransactionState.COMMIT
    assert await it.verdicts() == []
    it.broker.connect_error = None


async def test_heartbeats_reach_brokers_that_were_never_used() -> None:
    async with Setting(group="P", check=never_asked) as setting:
        broker = setting.cluster.broker(topics={CLUSTER_TOPIC: 1})
        await advance_async(setting.clock, 10)
        (data,) = broker.heartbeats[:1]
        assert [each.group_name for each in data.producer_data_set] == ["P"]


async def test_a_namespace_wraps_group_and_topic() -> None:
    async with Setting(group="P", check=never_asked) as setting:
        broker = setting.cluster.broker(topics={"shop%orders": 1, CLUSTER_TOPIC: 1})
        client = type(setting.client)(
            setting.cluster.namesrv, network=setting.cluster.network, clock=setting.clock,
            codec="json", namespace="shop",
        )  # fmt: skip
        async with client, Producer(client=client, group="P", check=never_asked) as producer:
            async with producer.transaction(ORDER):
                pass
            await settle(4)
        (stored,) = broker.topics["shop%orders"].queues[0]
        assert stored.properties["PGROUP"] == "shop%P"
        assert ends_of(broker)[0].ext_fields["producerGroup"] == "shop%P"
