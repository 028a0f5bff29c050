"""What a running broker that is a replica tells of itself, and what it is made to do."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.broker.metrics.replica_families import replica_families
from skylarkmq.broker.replication.failover.replica_check import replica_check
from skylarkmq.broker.replication.failover.replica_events import State
from skylarkmq.protocol.bodies.replica import ReplicaStatusBody
from skylarkmq.protocol.bodies.text import decode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.frame import SerializeType
from tests.support.fake_replica import FOLLOWER, MASTER, FakeReplica
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient

STATUS, SWITCH, FORCE = (
    RequestCode.GET_REPLICA_STATUS, RequestCode.SWITCH_OVER, RequestCode.FORCE_FAILOVER,
)  # fmt: skip


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerController]:
    async with live_broker(tmp_path, min_in_sync_replicas=2) as controller:
        yield controller


@pytest.mark.parametrize("kind", list(SerializeType))
async def test_a_replica_tells_how_it_stands(
    broker: BrokerController, client: RawClient, kind: int
) -> None:
    broker.parts.replica = FakeReplica()
    answer = await client.call(STATUS, {}, serialize_type=kind)
    assert answer.code == ResponseCode.SUCCESS
    body = decode_body(ReplicaStatusBody, answer.body)
    assert (body.state, body.term, body.master, body.in_sync) == ("master", 7, "r1", ["r1", "r2"])
    assert (body.start, body.end, body.durable_end, body.confirmed) == (1000, 5000, 4900, 4800)
    assert (body.broker_id, body.min_in_sync, body.mastership_changes) == (1, 2, 3)
    assert [(each.replica, each.broker_id, each.alive) for each in body.others] == [
        ("r2", 2, True),
        ("r3", None, False),
    ]
    assert body.engine_reachable
    assert not body.halted


async def test_a_broker_that_is_no_replica_says_so(client: RawClient) -> None:
    for code in (STATUS, SWITCH, FORCE):
        answer = await client.call(code, {"acceptLoss": "true"})
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert "broker-a is no replica" in (answer.remark or "")


async def test_another_member_leads_when_it_is_answered(
    broker: BrokerController, client: RawClient
) -> None:
    broker.parts.replica = replica = FakeReplica()
    answer = await client.call(SWITCH, {"target": "r2"})
    assert (answer.code, answer.ext_fields) == (0, {"master": "r2", "term": "8"})
    refused = await client.call(SWITCH, {})
    assert (refused.code, refused.remark) == (1, "this is not the master")
    assert replica.asked == ["switch over to r2", "switch over to "]


async def test_a_forced_failover_is_told_counted_and_audited(
    broker: BrokerController, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    broker.parts.replica = replica = FakeReplica(FOLLOWER, state=State.WAITING)
    caplog.set_level(logging.INFO, "skylarkmq.audit")
    for fields in ({}, {"acceptLoss": "false"}):
        refused = await client.call(FORCE, fields)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "acceptLoss" in (refused.remark or "")
    assert replica.asked == []
    answer = await client.call(FORCE, {"acceptLoss": "true"})
    assert (answer.code, answer.ext_fields) == (0, {"messagesAtRisk": "42", "term": "8"})
    again = await client.call(FORCE, {"acceptLoss": "true"})
    assert again.remark == "there is a master"
    stats = broker.parts.stats
    assert (stats.forced_failovers, stats.messages_at_risk) == (1, 42)
    assert "messages at risk: 42" in caplog.text
    lines = [json.loads(each.message) for each in caplog.records if each.name == "skylarkmq.audit"]
    assert [line["result"] for line in lines] == [1, 1, 0, 1]
    assert lines[2]["name"] == "FORCE_FAILOVER"
    assert lines[2]["resource"] == {"acceptLoss": "true"}
    assert "42" in lines[2]["remark"]


def series(replica: FakeReplica | None, stats: BrokerStats) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in replica_families(replica, stats, FamilyMaker({})):
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            found[f"{sample.name.removeprefix('skylarkmq_replica_')} {labels}".strip()] = (
                sample.value
            )
    return found


def test_the_metrics_of_a_master() -> None:
    stats = BrokerStats()
    stats.forced_failovers, stats.messages_at_risk = 1, 42
    found = series(FakeReplica(), stats)
    states = {name: value for name, value in found.items() if name.startswith("state ")}
    assert states == {f"state {each.value}": int(each is State.MASTER) for each in State}
    assert {name: value for name, value in found.items() if name not in states} == {
        "term": 7,
        "mastership_changes_total": 3,
        "in_sync": 2,
        "offset_bytes term_start": 1000,
        "offset_bytes end": 5000,
        "offset_bytes durable": 4900,
        "offset_bytes confirmed": 4800,
        "engine_reachable": 1,
        "halted": 0,
        "alive r2,2": 1,
        "alive r3,": 0,
        "behind_bytes r2,2": 200,
        "behind_bytes r3,": 4900,
        "forced_failovers_total": 1,
        "messages_at_risk_total": 42,
    }


def test_a_follower_does_not_guess_what_others_lack() -> None:
    found = series(FakeReplica(FOLLOWER, halted="the logs differ"), BrokerStats())
    assert found["state follower"] == found["halted"] == found["alive r1,1"] == 1
    assert not [name for name in found if name.startswith("behind_bytes")]


def test_a_broker_that_is_no_replica_has_none_of_these_metrics() -> None:
    assert series(None, BrokerStats()) == {}


async def test_the_metrics_are_those_of_the_replica_that_is_there_now(
    broker: BrokerController,
) -> None:
    """The page is made once; a broker becomes a replica later."""
    assert broker._metrics is not None
    before = await page(broker)
    assert "skylarkmq_replica_" not in before
    broker.parts.replica = FakeReplica()
    now = await page(broker)
    assert 'skylarkmq_replica_term{broker="broker-a",cluster="DefaultCluster"} 7.0' in now


async def page(broker: BrokerController) -> str:
    assert broker.metrics_address is not None
    peer = await RawClient.open(broker.metrics_address)
    peer.writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    text = (await peer._reader.read()).decode()
    await peer.close()
    return text


READY = [
    MASTER,
    FOLLOWER,
    FakeReplica(state=State.HANDING_OVER).now,
    FakeReplica(engine_reachable=False).now,
    FakeReplica(in_sync=["r1"]).now,
]


@pytest.mark.parametrize("status", READY, ids=lambda each: each.state)
def test_who_leads_or_follows_is_ready(status: object) -> None:
    assert replica_check(status) == ""  # type: ignore[arg-type]


def test_who_stands_still_or_without_a_master_is_not() -> None:
    halted = FakeReplica(FOLLOWER, state=State.HALTED, halted="etcd was emptied").now
    assert "etcd was emptied" in replica_check(halted)
    waiting = FakeReplica(FOLLOWER, state=State.WAITING).now
    away = FakeReplica(FOLLOWER, others=[MASTER.others[1]], in_sync=["r2", "r3"]).now
    assert replica_check(waiting) == ("there is no master; one of these may become it: r1, r2")
    lost = FakeReplica(
        FOLLOWER,
        state=State.WAITING,
        others=away.others,
        in_sync=["r2", "r3"],
        engine_reachable=False,
    ).now
    assert replica_check(lost) == (
        "there is no master; one of these may become it: r2, r3 (away); "
        "etcd (controllerEndpoints) is not reached"
    )
    assert replica_check(FakeReplica(FOLLOWER, master="", in_sync=[]).now) == (
        "there is no master yet"
    )
    orphan = FakeReplica(FOLLOWER, master="r3").now
    assert replica_check(orphan).startswith("there is no master;")
    for state in set(State) - {State.MASTER, State.HANDING_OVER, State.FOLLOWER}:
        assert replica_check(FakeReplica(FOLLOWER, state=state).now)
