"""Groups as their members see them: over the wire, and against a naive model."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from random import Random
from typing import Any

import pytest

from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.groups.consumer_manager import ConsumerManager
from skylarkmq.protocol.bodies.group import ConsumerData, SubscriptionData
from skylarkmq.protocol.codes import LanguageCode, ResponseCode
from skylarkmq.protocol.record import decode_messages
from tests.broker.group_rig import FakeConnection
from tests.support.heartbeats import consumer_data, heartbeat, subscription
from tests.support.live_broker import live_broker
from tests.support.manual_clock import ManualClock
from tests.support.raw_client import RawClient, long_names, pull_fields, send_fields

NOTIFY, HEARTBEAT, UNREGISTER, MEMBERS, LOCK, SEND_V1 = 40, 34, 35, 38, 41, 10


async def beat(client: RawClient, client_id: str, topic: str = "T", tag: str = "*") -> None:
    body = heartbeat(
        client_id,
        consumer_data("cg", subscription(topic, tag)),
    )
    assert (await client.call(HEARTBEAT, body=body)).code == 0


async def lock(client: RawClient, client_id: str, *queues: int) -> list[int]:
    wanted = [{"brokerName": "broker-a", "queueId": queue, "topic": "T"} for queue in queues]
    body = {"clientId": client_id, "consumerGroup": "cg", "mqSet": wanted}
    answer = await client.call(LOCK, body=json.dumps(body).encode())
    return sorted(queue["queueId"] for queue in json.loads(answer.body)["lockOKMQSet"])


def scrape(broker: BrokerController) -> str:
    assert broker.metrics_address is not None
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_address[1]}/metrics") as page:
        return str(page.read().decode())


def lines(page: str, start: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith(start)]


async def test_members_come_share_queues_in_order_and_leave(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        a = await RawClient.open(broker.listen_address)
        b = await RawClient.open(broker.listen_address)
        await a.call(310, send_fields("T"), b"x")
        await beat(a, "a")
        assert (await a.push()).code == NOTIFY
        assert await lock(a, "a", 0, 1, 2, 3) == [0, 1, 2, 3]
        (locks,) = lines(await asyncio.to_thread(scrape, broker), "skylarkmq_queue_locks{")
        assert locks.endswith(" 4.0")
        await beat(b, "b")
        for client in (a, b):
            push = await client.push()
            assert (push.code, push.ext_fields["consumerGroup"]) == (NOTIFY, "cg")
        members = await b.call(MEMBERS, {"consumerGroup": "cg"})
        assert json.loads(members.body) == {"consumerIdList": ["a", "b"]}
        assert await lock(b, "b", 2, 3) == []
        await a.call(UNREGISTER, {"clientID": "a", "consumerGroup": "cg"})
        assert (await b.push()).code == NOTIFY
        assert await lock(b, "b", 2, 3) == [2, 3]
        for client in (a, b):
            await client.close()
    async with live_broker(tmp_path) as broker:  # locks are the clients', who ask again
        b = await RawClient.open(broker.listen_address)
        assert await lock(b, "c", 2, 3) == [2, 3]
        await b.close()


async def test_members_that_differ_are_in_the_metrics(tmp_path: Path) -> None:
    name = "skylarkmq_consumer_group_differing_subscriptions{"
    async with live_broker(tmp_path) as broker:
        a = await RawClient.open(broker.listen_address)
        b = await RawClient.open(broker.listen_address)
        await a.call(310, send_fields("T"), b"x")
        await beat(a, "a", tag="A")
        await beat(b, "b", tag="B")
        (line,) = lines(await asyncio.to_thread(scrape, broker), name)
        assert 'consumer_group="cg"' in line
        assert line.endswith(" 2.0")
        await beat(b, "b", tag="A")
        assert name not in await asyncio.to_thread(scrape, broker)
        for client in (a, b):
            await client.close()


@pytest.mark.parametrize("code", [SEND_V1, 310])
async def test_a_retry_that_a_client_sends_itself_ends_with_the_dead_letters(
    tmp_path: Path, code: int
) -> None:
    async with live_broker(tmp_path) as broker:
        client = await RawClient.open(broker.listen_address)
        await client.call(310, send_fields("T"), b"x")
        await beat(client, "a")
        for attempts, topic in ((2, "%RETRY%cg"), (3, "%DLQ%cg")):
            fields = send_fields("%RETRY%cg", 0, "RETRY_TOPIC\x01T\x02", j=str(attempts), l="3")
            if code == SEND_V1:
                fields = long_names(fields)
            assert (await client.call(code, fields, b"again")).code == 0
            answer = await client.call(11, pull_fields(topic))
            (message,) = decode_messages(answer.body)
            assert (message.body, message.reconsume_times) == (b"again", attempts)
        await client.close()


async def test_what_a_group_may_do_changes_at_once(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        client = await RawClient.open(broker.listen_address)
        await client.call(310, send_fields("T"), b"x")
        for enabled, code in ((True, 0), (False, ResponseCode.NO_PERMISSION), (True, 0)):
            group = {"groupName": "cg", "consumeEnable": enabled}
            assert (await client.call(200, body=json.dumps(group).encode())).code == 0
            assert (await client.call(11, pull_fields("T"))).code == code
        await client.close()


class Model:
    """The same events taken by the manager and by plain tables."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.clock = ManualClock()
        self.number = 0  # of the step
        self.told: dict[tuple[str, Any], int] = {}  # (group, member) -> step of the last word
        self.changed: dict[str, int] = {}
        self.manager = ConsumerManager(self.clock, self._notify)
        self.peers: list[Any] = [FakeConnection(f"peer{number}") for number in range(6)]
        self.wishes: dict[str, dict[Any, frozenset[str]]] = {}

    def _notify(self, members: Any, group: str) -> None:
        for member in members:
            self.told[group, member] = self.number

    def step(self) -> None:
        self.number += 1
        group = self.rng.choice(("g", "h"))
        number = self.rng.randrange(len(self.peers))
        peer, event = self.peers[number], self.rng.random()
        members = self.wishes.setdefault(group, {})
        if event < 0.6:
            self._beat(group, peer)
        elif event < 0.8:
            self.manager.unregister(peer, group)
            if members.pop(peer, None) is not None:
                self.changed[group] = self.number
        elif event < 0.9:
            peer.close("peer")
            for name, table in self.wishes.items():
                if table.pop(peer, None) is not None:
                    self.changed[name] = self.number
            self.peers[number] = FakeConnection(f"peer{number}")
        else:
            self.clock.advance(self.rng.random() * 0.3)

    def _beat(self, group: str, peer: Any) -> None:
        topics = frozenset(self.rng.sample(("T", "U", "V"), self.rng.randrange(1, 3)))
        data = ConsumerData(
            consume_from_where="CONSUME_FROM_LAST_OFFSET", consume_type="CONSUME_PASSIVELY",
            group_name=group, message_model="CLUSTERING",
            subscription_data_set=[SubscriptionData(topic=t, sub_string="*") for t in topics],
        )  # fmt: skip
        joined = peer not in self.wishes[group]
        info = self.manager.group(group)
        before = set() if info is None else set(info.subscriptions)
        if self.manager.register(peer, peer.remote_address, LanguageCode.JAVA, 409, data):
            self.manager.tell(group)
        self.wishes[group][peer] = topics
        if joined or before != topics:
            self.changed[group] = self.number

    def check(self) -> None:
        for group, members in self.wishes.items():
            assert set(self.manager.members(group)) == set(members)
            distinct = set(members.values())
            differing = self.manager.watch.differing.get(group, 0)
            assert differing == (len(distinct) if len(distinct) > 1 else 0)
            examples = self.manager.watch.examples(group)
            assert len(examples) == differing
        for peer in self.peers:
            groups = {group for group, members in self.wishes.items() if peer in members}
            assert set(self.manager.groups_of(peer)) == groups

    def check_told(self) -> None:
        """In the end every member was told after the last change of its group."""
        self.clock.advance(1.0)
        for group, members in self.wishes.items():
            for member in members:
                assert self.told[group, member] >= self.changed[group]


@pytest.mark.parametrize("seed", range(20))
def test_managers_agree_with_plain_tables(seed: int) -> None:
    model = Model(Random(seed))
    for _ in range(150):
        model.step()
        model.check()
    model.check_told()
    for peer in model.peers:
        peer.close("peer")
    assert not model.manager.groups
    assert model.manager.client_count == 0
    assert not model.manager.watch.differing
