"""Heartbeats and farewells."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any

import pytest

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.groups.consumer_manager import GROUPS_PER_CLIENT_MAX
from skylarkmq.broker.processor.client_manage import (
    SUBSCRIPTIONS_PER_CLIENT_MAX,
    ClientManageProcessor,
)
from skylarkmq.protocol.command import RemotingCommand
from tests.broker.group_rig import FakeConnection, GroupRig, ask, begin, request
from tests.support.heartbeats import consumer_data as consumer
from tests.support.heartbeats import heartbeat as body_of
from tests.support.heartbeats import subscription
from tests.support.manual_clock import settle


class Rig(GroupRig):
    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.stats = BrokerStats()
        self.processor = ClientManageProcessor(self.context, self.locks, self.stats)

    async def beat(self, peer: FakeConnection, **data: Any) -> RemotingCommand:
        """The answer; members that are told after it have been told."""
        answer = await ask(self, self.processor, peer, heartbeat(**data))
        await settle(1)
        return answer


def heartbeat(
    consumers: list[dict[str, Any]] | None = None,
    producers: list[str] | None = None,
    client_id: str = "192.0.2.1@1",
) -> RemotingCommand:
    return request(34, body=body_of(client_id, *(consumers or []), producers=producers or []))


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.start()
    return rig


async def test_a_heartbeat_makes_group_retry_topic_and_memberships(rig: Rig) -> None:
    peer = FakeConnection()
    answer = await rig.beat(
        peer, consumers=[consumer("cg", subscription("T"))], producers=["CLIENT_INNER_PRODUCER"]
    )
    assert (answer.code, answer.version) == (0, 409)
    assert peer.notified() == ["cg"]
    assert "cg" in rig.groups.table
    retry = rig.topics.table["%RETRY%cg"]
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)
    assert rig.consumers.client_ids("cg") == ["192.0.2.1@1"]
    assert list(rig.producers.clients("CLIENT_INNER_PRODUCER")) == [peer]


async def test_the_answer_waits_for_the_tables(rig: Rig) -> None:
    peer = FakeConnection()
    waiting = begin(rig.processor, peer, heartbeat([consumer("cg", subscription("T"))]))
    await asyncio.sleep(0)
    assert isinstance(waiting, asyncio.Task)
    assert not waiting.done()
    assert rig.consumers.client_ids("cg"), "the membership itself counts at once"
    assert peer.notified() == []
    rig.workers.run_all()
    assert (await waiting).code == 0
    config = rig.store.paths.config
    assert b'"cg"' in rig.files.read_all(config / "subscriptionGroup.json")
    assert b'"%RETRY%cg"' in rig.files.read_all(config / "topics.json")
    again = begin(rig.processor, peer, heartbeat([consumer("cg", subscription("T"))]))
    assert isinstance(again, RemotingCommand), "nothing new, so nothing to wait for"


async def test_members_hear_of_a_change_after_the_answer(rig: Rig) -> None:
    """One that hears earlier pulls from a broker that does not know its subscription yet."""
    first, second = FakeConnection("a"), FakeConnection("b")
    connection: Any = first
    answering = rig.processor.heart_beat(connection, heartbeat([consumer("cg", subscription("T"))]))
    assert not isinstance(answering, RemotingCommand), "it waits for the tables"

    async def answer_it() -> int:
        await answering
        return len(first.pushes)  # the router queues the answer here

    waiting = asyncio.ensure_future(answer_it())
    await settle()
    rig.workers.run_all()
    assert await waiting == 0
    await settle(1)
    assert first.notified() == ["cg"]
    data = heartbeat([consumer("cg", subscription("T"))], client_id="second")
    answer = begin(rig.processor, second, data)
    assert isinstance(answer, RemotingCommand), "nothing to wait for"
    assert (first.notified(), second.notified()) == ([], [])
    await settle(1)
    assert (first.notified(), second.notified()) == (["cg"], ["cg"])


async def test_broadcasting_members_have_nothing_to_divide(rig: Rig) -> None:
    peers = [FakeConnection("a"), FakeConnection("b")]
    for peer in peers:
        group = {**consumer("cg", subscription("T")), "messageModel": "BROADCASTING"}
        await rig.beat(peer, consumers=[group], client_id=peer.remote_address)
    assert [peer.notified() for peer in peers] == [[], []]
    peers[0].close("peer")
    assert peers[1].notified() == []


async def test_a_refused_heartbeat_is_told_once_for_a_client_and_group_and_counted(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    long = subscription("T", subString="x" * 40_000)
    for client_id in ("one", "one", "two"):
        await rig.beat(FakeConnection(), consumers=[consumer("cg", long)], client_id=client_id)
    await rig.beat(FakeConnection(), consumers=[consumer("other", long)], client_id="one")
    await ask(rig, rig.processor, FakeConnection(), request(34, body=b"{"))
    assert rig.stats.heartbeats_refused == 5
    why = "the subscription of T has 40000 characters, at most 32767 are allowed"
    told = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert told[:3] == [
        f"the heartbeat of client '{client}' is refused, so it receives nothing: "
        f"group {group}: {why}"
        for client, group in (("one", "cg"), ("two", "cg"), ("one", "other"))
    ]
    assert len(told) == 4
    assert "'192.0.2.1:1'" in told[3]


async def test_a_subscription_of_a_few_hundred_tags_is_taken_in(rig: Rig) -> None:
    tags = [f"a-tag-of-some-length-{number}" for number in range(1000)]
    wanted = subscription("T", subString=" || ".join(tags), tagsSet=tags)
    assert len(wanted["subString"]) > 20_000
    assert (await rig.beat(FakeConnection(), consumers=[consumer("cg", wanted)])).code == 0
    assert rig.consumers.find_subscription("cg", "T") is not None


async def test_a_full_disk_is_told_and_passes(rig: Rig) -> None:
    peer = FakeConnection()
    rig.files.fail("rename", error=errno.ENOSPC, path="subscriptionGroup.json")
    answer = await rig.beat(peer, consumers=[consumer("cg")])
    assert answer.code == 14
    assert "No space left" in (answer.remark or "")
    assert (await rig.beat(peer, consumers=[consumer("cg")])).code == 0


async def test_unknown_groups_stay_unknown_without_auto_creation() -> None:
    rig = Rig(auto_create_subscription_group=False)
    rig.start()
    answer = await rig.beat(FakeConnection(), consumers=[consumer("cg", subscription("T"))])
    assert answer.code == 0
    assert "cg" not in rig.groups.table
    assert "%RETRY%cg" not in rig.topics.table


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"consumers": [consumer("g" * 121)]}, "longer than 120"),
        ({"consumers": [consumer("")]}, "blank"),
        ({"consumers": [consumer("a/../b")]}, "illegal"),
        ({"consumers": [consumer("gruppe-\u00fc")]}, "illegal"),
        ({"consumers": [consumer("ok", subscription("a b"))]}, "illegal"),
        ({"consumers": [consumer("ok", subscription("t" * 128))]}, "longer than 127"),
        ({"producers": ["p" * 256]}, "longer than 255"),
        ({"producers": ["p\n"]}, "illegal"),
        ({"client_id": ""}, "clientID"),
        ({"client_id": "x" * 256}, "clientID"),
        ({"consumers": [consumer("ok", subscription("T", subString="x" * 32768))]}, "32767"),
        ({"consumers": [consumer("ok", subscription("T", tagsSet=["x" * 17_000] * 2))]}, "32767"),
        ({"consumers": [consumer("ok", subscription("T", subString="||" * 1024))]}, "1025 tags"),
        (
            {
                "consumers": [
                    consumer("g", subscription("T", subString="x" * 4097, expressionType="SQL92"))
                ]
            },
            "4096",
        ),
        ({"consumers": [consumer("ok", subscription("T", codeSet=[1] * 1025))]}, "1025 tags"),
        (
            {
                "consumers": [
                    consumer(
                        f"g{n}", subscription("T", subString="x" * 4096, expressionType="SQL92")
                    )
                    for n in range(17)
                ]
            },
            "at most 32768 are allowed",
        ),
        ({"consumers": [consumer(f"g{n}") for n in range(1025)]}, "consumer groups"),
        ({"producers": [f"g{n}" for n in range(1025)]}, "producer groups"),
    ],
)
async def test_what_is_too_much_or_no_name_is_refused_whole(
    rig: Rig, data: dict[str, Any], why: str
) -> None:
    """Nothing of a refused heartbeat is taken in, also not its good part."""
    topics, groups = len(rig.topics.table), len(rig.groups.table)
    good = consumer("good", subscription("T"))
    data = {**data, "consumers": [good, *data.get("consumers", [])]}
    answer = await rig.beat(FakeConnection(), **data)
    assert answer.code == 1
    assert why in (answer.remark or "")
    assert len((answer.remark or "").encode()) < 512
    assert (len(rig.topics.table), len(rig.groups.table)) == (topics, groups)
    assert list(rig.consumers.groups) == []
    assert list(rig.producers.groups) == []


async def test_twenty_thousand_subscriptions_are_refused(rig: Rig) -> None:
    many = [subscription(f"T{number}") for number in range(20_000)]
    answer = await rig.beat(FakeConnection(), consumers=[consumer("cg", *many)])
    assert answer.code == 1
    assert f"at most {SUBSCRIPTIONS_PER_CLIENT_MAX}" in (answer.remark or "")
    assert list(rig.consumers.groups) == []


async def test_amounts_count_over_all_heartbeats_of_a_connection(rig: Rig) -> None:
    peer, other = FakeConnection("a"), FakeConnection("b")
    half = [subscription(f"T{number}") for number in range(SUBSCRIPTIONS_PER_CLIENT_MAX // 2)]
    assert (await rig.beat(peer, consumers=[consumer("a", *half)])).code == 0
    assert (await rig.beat(peer, consumers=[consumer("b", *half)])).code == 0
    assert (await rig.beat(peer, consumers=[consumer("b", *half)])).code == 0
    assert (await rig.beat(peer, consumers=[consumer("c", subscription("T"))])).code == 1
    assert (await rig.beat(other, consumers=[consumer("c", subscription("T"))])).code == 0
    for number in range(GROUPS_PER_CLIENT_MAX):
        assert (await rig.beat(peer, producers=[f"p{number}"])).code == 0
    assert (await rig.beat(peer, producers=["one-more"])).code == 1


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"null", b'{"clientID":7}', b"\xff" * 100])
async def test_a_body_that_is_no_heartbeat_is_an_error_answer(rig: Rig, body: bytes) -> None:
    answer = await ask(rig, rig.processor, FakeConnection(), request(34, body=body))
    assert answer.code == 1
    assert answer.remark


async def test_35_leaves_both_groups_and_tells_the_rest(rig: Rig) -> None:
    a, b = FakeConnection("a"), FakeConnection("b")
    await rig.beat(a, consumers=[consumer("cg")], producers=["pg"], client_id="a")
    await rig.beat(b, consumers=[consumer("cg")], client_id="b")
    a.notified(), b.notified()
    fields = {"clientID": "a", "consumerGroup": "cg", "producerGroup": "pg"}
    answer = await ask(rig, rig.processor, a, request(35, fields))
    assert answer.code == 0
    assert (a.notified(), b.notified()) == ([], ["cg"])
    assert rig.consumers.client_ids("cg") == ["b"]
    assert list(rig.producers.groups) == []


async def test_who_says_farewell_frees_its_queues(rig: Rig) -> None:
    a, again, b = FakeConnection("a"), FakeConnection("a2"), FakeConnection("b")
    for peer, client_id in ((a, "a"), (again, "a"), (b, "b")):
        await rig.beat(peer, consumers=[consumer("cg"), consumer("other")], client_id=client_id)
    for group, queue_id, client_id in (("cg", 0, "a"), ("cg", 1, "b"), ("other", 0, "a")):
        assert rig.locks.try_lock(group, "T", queue_id, client_id)
    farewell = request(35, {"clientID": "a", "consumerGroup": "cg"})
    await ask(rig, rig.processor, a, farewell)
    assert not rig.locks.try_lock("cg", "T", 0, "b"), "the client has another connection"
    await ask(rig, rig.processor, FakeConnection("stranger"), farewell)
    assert not rig.locks.try_lock("cg", "T", 0, "b"), "a stranger speaks for nobody"
    await ask(rig, rig.processor, again, farewell)
    assert rig.locks.try_lock("cg", "T", 0, "b")
    assert not rig.locks.try_lock("cg", "T", 1, "a")
    assert not rig.locks.try_lock("other", "T", 0, "b")


async def test_who_loses_its_connection_keeps_its_queues_for_a_while(rig: Rig) -> None:
    a = FakeConnection("a")
    await rig.beat(a, consumers=[consumer("cg")], client_id="a")
    assert rig.locks.try_lock("cg", "T", 0, "a")
    a.close("peer")
    assert not rig.locks.try_lock("cg", "T", 0, "b")
    rig.clock.advance(61)
    assert rig.locks.try_lock("cg", "T", 0, "b")


async def test_retry_topics_of_unit_mode_are_marked(rig: Rig) -> None:
    groups = [consumer("plain"), {**consumer("unit"), "unitMode": True}]
    await rig.beat(FakeConnection("a"), consumers=groups)
    flags = {name: rig.topics.table[f"%RETRY%{name}"].topic_sys_flag for name in ("plain", "unit")}
    assert flags == {"plain": 0, "unit": 2}


async def test_the_life_of_a_java_consumer_is_three_lines(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    peer: Any = FakeConnection("a")
    inner = ["CLIENT_INNER_PRODUCER"]
    await rig.beat(peer, consumers=[consumer("cg", subscription("T"))], producers=inner)
    rig.put("T", 0)
    for offset in (1, 0):
        assert rig.offsets.commit("a", "cg", "T", 0, offset)
    await ask(rig, rig.processor, peer, request(35, {"clientID": "a", "consumerGroup": "cg"}))
    await ask(rig, rig.processor, peer, request(35, {"clientID": "a", "producerGroup": inner[0]}))
    assert [record.getMessage().split()[-1] for record in caplog.records] == ["made", "a", "leaves"]


async def test_35_for_unknown_groups_is_no_error_and_makes_none(rig: Rig) -> None:
    fields = {"clientID": "a", "consumerGroup": "nobody"}
    assert (await ask(rig, rig.processor, FakeConnection(), request(35, fields))).code == 0
    assert "nobody" not in rig.groups.table
    answer = await ask(rig, rig.processor, FakeConnection(), request(35, {"clientID": "a"}))
    assert answer.code == 0
    assert (await ask(rig, rig.processor, FakeConnection(), request(35))).code == 1


async def test_closing_tells_the_rest(rig: Rig) -> None:
    a, b = FakeConnection("a"), FakeConnection("b")
    await rig.beat(a, consumers=[consumer("cg")], producers=["pg"], client_id="a")
    await rig.beat(b, consumers=[consumer("cg")], client_id="b")
    b.notified()
    a.close("peer")
    assert b.notified() == ["cg"]
    assert rig.producers.client_count == 0
