"""Who leads a set of replicas, as an administrator sees and changes it; draining any broker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.replication.failover.replica_events import State
from skylarkmq.client import (
    Admin,
    BrokerError,
    Client,
    ConnectionFailed,
    IllegalState,
    NotFound,
    NotSupported,
)
from skylarkmq.client.admin import (
    BrokerStatus,
    ClusterStatus,
    Drained,
    FailoverStatus,
    ForcedFailover,
    Mastership,
    NameServerStatus,
    Problem,
    ReplicaStatus,
)
from skylarkmq.client.admin import OtherReplica as Other
from skylarkmq.protocol.bodies.route import KVTable
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.flags import MASTER_ID
from tests.client.admin.support import site
from tests.support.fake_cluster import FakeBroker, FakeCluster
from tests.support.fake_replica import FOLLOWER, MASTER, FakeReplica, other
from tests.support.live_broker import live_broker, namesrv_of
from tests.support.manual_clock import ManualClock
from tests.support.patience import LIMIT_S, until


@dataclass
class Two:
    """A set of two replicas, and an Admin."""

    admin: Admin
    leading: FakeReplica  # r1
    following: FakeReplica  # r2
    second_address: str
    first: BrokerController

    async def knows(self, broker_id: int) -> bool:
        """Return whether the name server has that process."""
        return any(broker_id in each.addresses for each in (await self.admin.cluster()).brokers)


@asynccontextmanager
async def two_replicas(root: Path, *, is_known: bool = True) -> AsyncIterator[Two]:
    """`broker-a` with r1, which leads, and r2.

    Args:
        is_known: whether the name server knows r2; else only r1 does.
    """
    async with live_broker(root / "r1", min_in_sync_replicas=2) as first:
        namesrv = namesrv_of(first)
        more: dict[str, Any] = {"namesrv_addr": namesrv} if is_known else {}
        slave = {"broker_role": "SLAVE", "broker_id": 2, "min_in_sync_replicas": 2}
        async with (
            live_broker(root / "r2", **slave, **more) as second,
            Client(namesrv) as client,
            Admin(client=client, timeout=LIMIT_S) as admin,
        ):
            address = str(second.advertised)
            others = [other("r2", 2, address, 4800)]
            leading = FakeReplica(MASTER, others=others)
            following = FakeReplica(FOLLOWER, others=FOLLOWER.others[:1])
            first.parts.replica, second.parts.replica = leading, following
            two = Two(admin, leading, following, address, first)
            if is_known:
                await until(lambda: two.knows(2), "the registration of the follower")
            yield two


async def test_a_set_is_told_with_the_brokers(tmp_path: Path) -> None:
    async with two_replicas(tmp_path) as two:
        status = await two.admin.cluster_status()
        (broker,) = status.brokers
        leading, following = (each.failover for each in broker.replicas)
        assert leading is not None and following is not None
        assert leading.leads and not following.leads
        assert (leading.replica, leading.term, leading.in_sync) == ("r1", 7, ("r1", "r2"))
        assert (leading.broker_id, leading.min_in_sync, leading.mastership_changes) == (1, 2, 3)
        assert (leading.log_end, leading.durable_end, leading.confirmed) == (5000, 4900, 4800)
        assert [each.behind for each in leading.others] == [200]
        assert [each.behind for each in following.others] == [None]
        assert broker.failover is leading
        told = json.loads(json.dumps(status.to_json()))["brokers"][0]["replicas"][1]["failover"]
        assert (told["state"], told["is_engine_reachable"], told["halted"]) == (
            "follower",
            True,
            "",
        )
        assert await two.admin.cluster_health(disk_max=1.0) == ()
        two.following.now = structs.replace(
            two.following.now,
            state=State.HALTED,
            halted="the logs differ",
            engine_reachable=False,
        )
        two.leading.now = structs.replace(two.leading.now, in_sync=("r1",))
        found = await two.admin.cluster_health(disk_max=1.0)
        assert [each.kind for each in found] == [
            "too_few_in_sync", "replica_not_in_sync", "replica_halted", "engine_unreachable",
        ]  # fmt: skip
        assert all(each.cure for each in found)


@pytest.mark.parametrize("to", [None, 2, "r2"])
async def test_another_member_is_made_to_lead(tmp_path: Path, to: int | str | None) -> None:
    async with two_replicas(tmp_path) as two:
        assert await two.admin.switch_over("broker-a", to) == Mastership("broker-a", "r2", 8)
        assert two.leading.asked == [f"switch over to {'' if to is None else 'r2'}"]
        with pytest.raises(IllegalState, match="no replica of broker-a leads now"):
            await two.admin.switch_over("broker-a")


async def test_who_leads_already_is_not_switched(tmp_path: Path) -> None:
    async with two_replicas(tmp_path) as two:
        assert await two.admin.switch_over("broker-a", 1) == Mastership("broker-a", "r1", 7)
        with pytest.raises(NotFound, match=r"no replica 9; known: r1 \(broker id 1\), r2"):
            await two.admin.switch_over("broker-a", 9)
        two.leading.now = structs.replace(two.leading.now, in_sync=("r1",))
        with pytest.raises(BrokerError, match="r2 is not in sync"):
            await two.admin.switch_over("broker-a", "r2")
        assert two.leading.asked == ["switch over to r2"]


class LostAnswer(FakeReplica):
    """Its broker closes all connections before the switch-over is answered."""

    broker: BrokerController
    follower: FakeReplica
    is_done = True

    async def switch_over(self, target: str) -> None:
        await super().switch_over(target)
        if self.is_done:
            now = self.follower.now
            self.follower.now = structs.replace(now, state=State.MASTER, term=8, master=now.replica)
        assert self.broker.server is not None
        for connection in list(self.broker.server.connections):
            connection.close("starting anew")


async def test_a_switch_over_whose_answer_is_lost_is_looked_up(tmp_path: Path) -> None:
    async with two_replicas(tmp_path) as two:
        replica = LostAnswer(two.leading.now)
        replica.broker, replica.follower = two.first, two.following
        two.first.parts.replica = replica
        assert await two.admin.switch_over("broker-a", "r2") == Mastership("broker-a", "r2", 8)
        replica.is_done, replica.now = (
            False,
            structs.replace(replica.now, state=State.MASTER, term=8),
        )
        two.following.now = structs.replace(two.following.now, state=State.FOLLOWER)
        with pytest.raises(ConnectionFailed):
            await two.admin.switch_over("broker-a", "r2")


@pytest.mark.parametrize("way", ["broker id", "replica id", "address", "unknown to name servers"])
async def test_a_failover_is_forced_by_who_accepts_the_loss(tmp_path: Path, way: str) -> None:
    async with two_replicas(tmp_path, is_known="unknown" not in way) as two:
        on = {"replica id": "r2", "address": two.second_address}.get(way, 2)
        with pytest.raises(ValueError, match="accept_loss=True"):
            await two.admin.failover("broker-a", on=on)
        assert two.following.asked == []
        two.following.now = structs.replace(two.following.now, state=State.WAITING)
        forced = await two.admin.failover("broker-a", on=on, accept_loss=True)
        assert forced == ForcedFailover("broker-a", "r2", 8, messages_at_risk=42)
        with pytest.raises(BrokerError, match="there is a master"):
            await two.admin.failover("broker-a", on=on, accept_loss=True)


async def test_the_load_of_a_set_goes_to_another_member(tmp_path: Path) -> None:
    async with two_replicas(tmp_path) as two:
        assert await two.admin.drain("broker-a", broker_id=2) == Drained(
            "broker-a", "nothing_to_do"
        )
        with pytest.raises(NotFound, match="no replica 9"):
            await two.admin.drain("broker-a", broker_id=9)
        assert two.leading.asked == []
        assert await two.admin.drain("broker-a", broker_id=1) == Drained(
            "broker-a", "switched_over", master="r2"
        )
        assert await two.admin.undrain("broker-a") == 0


async def test_producers_are_kept_from_a_plain_broker(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        await it.admin.create_topic("orders", queues=1)
        drained = await it.admin.drain("broker-a")
        assert drained.how == "writes_stopped" and drained.topic_count > 0
        progress = await it.admin.drain_progress("broker-a")
        assert progress.phase == "impossible" and "no other broker takes" in progress.why
        (settings,) = (await it.admin.describe_topic("orders")).settings
        assert settings.perm == "r"
        assert await it.admin.undrain("broker-a") == drained.topic_count
        assert (await it.admin.drain_progress("broker-a")).phase == "serving"
        (settings,) = (await it.admin.describe_topic("orders")).settings
        assert settings.perm == "rw"
        for call in (it.admin.switch_over("broker-a"), failover(it.admin, "broker-a")):
            with pytest.raises(NotSupported, match="no set of replicas"):
                await call
        for call in (it.admin.switch_over("broker-x"), it.admin.drain("broker-x")):
            with pytest.raises(NotFound, match="no broker broker-x is registered"):
                await call


async def failover(admin: Admin, broker: str) -> ForcedFailover:
    return await admin.failover(broker, on=1, accept_loss=True)


class Apache(FakeBroker):
    """Tells its figures, and answers codes that it does not know with 3, as Apache's do."""

    def _offset(self, request: Any) -> Any:
        if request.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            body = KVTable(table={"brokerVersionDesc": "V4_9_8", "commitLogMaxOffset": "100"})
            return request.reply(0, body=encode_body(body))
        return super()._offset(request)


async def test_brokers_of_apache_are_asked_for_what_they_know() -> None:
    cluster = FakeCluster()
    wiped: list[str] = []

    def wipe(request: Any) -> Any:
        wiped.append(request.ext_fields["brokerName"])
        return request.reply(0, ext_fields={"wipeTopicCount": "5"})

    cluster.name_server.on(RequestCode.WIPE_WRITE_PERM_OF_BROKER, wipe)
    master = Apache(cluster, "broker-a", {})
    slave = Apache(cluster, "broker-a", {})
    slave.address = "broker-a-1:10911"
    master.slaves[1] = slave
    for each in (master, slave):
        cluster.network.listen(each.address, each)
    cluster.brokers.append(master)
    clock = ManualClock()
    async with (
        Client(cluster.namesrv, network=cluster.network, clock=clock) as client,
        Admin(client=client) as admin,
    ):
        status = await admin.cluster_status()
        (broker,) = status.brokers
        assert [(each.error, each.version, each.failover) for each in broker.replicas] == [
            (None, "V4_9_8", None)
        ] * 2
        assert await admin.cluster_health() == ()
        assert await admin.drain("broker-a", broker_id=1) == Drained("broker-a", "nothing_to_do")
        assert wiped == []
        assert (await admin.drain("broker-a")).topic_count == 5
        assert wiped == ["broker-a"]
        with pytest.raises(NotSupported, match="cannot say how far"):
            await admin.drain_progress("broker-a")
        with pytest.raises(NotFound, match="no broker broker-a with the id 2"):
            await admin.drain("broker-a", broker_id=2)
        master.refuse(RequestCode.GET_BROKER_RUNTIME_INFO, 1, 1)
        with pytest.raises(NotFound, match=r"stop_writes\('broker-a'\)"):
            await admin.drain("broker-a")
        slave.refuse(RequestCode.GET_BROKER_RUNTIME_INFO, 1)
        with pytest.raises(NotFound, match="nobody of broker-a answers"):
            await admin.switch_over("broker-a")
        assert wiped == ["broker-a"]


def told(**changes: Any) -> FailoverStatus:
    usual: dict[str, Any] = {
        "replica": "r1", "broker_id": 1, "state": "master", "term": 7, "master": "r1",
        "in_sync": ("r1", "r2"), "min_in_sync": 2, "log_end": 100, "durable_end": 100,
        "confirmed": 100, "mastership_changes": 0, "is_engine_reachable": True, "halted": "",
        "others": (Other("r2", 2, "host:2", is_alive=True, behind=0),),
    }  # fmt: skip
    return FailoverStatus(**{**usual, **changes})


def problems(*replicas: tuple[int, FailoverStatus | None]) -> tuple[Problem, ...]:
    processes = tuple(
        ReplicaStatus(broker_id, f"host:{broker_id}", None, log_end=1, failover=failover)
        if failover is not None
        else ReplicaStatus(broker_id, f"host:{broker_id}", "no answer")
        for broker_id, failover in replicas
    )
    known = {"broker-a": tuple(broker_id for broker_id, _ in replicas)}
    status = ClusterStatus(
        (NameServerStatus("ns:9876", None, known),),
        (BrokerStatus("broker-a", "DefaultCluster", processes),),
    )
    return status.problems()


def found(*replicas: tuple[int, FailoverStatus | None]) -> list[str]:
    return [f"{each.kind} {each.subject}" for each in problems(*replicas)]


def text_of(*replicas: tuple[int, FailoverStatus | None]) -> str:
    """What the first problem says."""
    return problems(*replicas)[0].text


FOLLOWS = told(replica="r2", broker_id=2, state="follower", others=())


def test_a_set_that_is_well_has_no_problem() -> None:
    assert found((MASTER_ID, told()), (2, FOLLOWS)) == []


def test_a_set_without_a_master() -> None:
    waiting = replace(FOLLOWS, state="waiting")
    assert found((2, waiting)) == ["no_master broker-a"]
    assert found((MASTER_ID, replace(told(), state="stepping down")), (2, waiting)) == [
        "no_master broker-a"
    ]
    assert found((1, told()), (2, FOLLOWS)) == ["no_master broker-a"]  # not registered as one yet
    assert found((MASTER_ID, None), (2, FOLLOWS)) == ["broker_unreachable broker-a (master)"]


def test_a_set_whose_replicas_have_all_halted() -> None:
    halted = [
        replace(told(others=()), broker_id=each, state="halted", halted="etcd was emptied")
        for each in (1, 2)
    ]
    assert found((1, halted[0]), (2, halted[1])) == [
        "no_master broker-a",
        "replica_halted broker-a (slave 1)",
        "replica_halted broker-a (slave 2)",
    ]
    assert "have halted" in text_of((1, halted[0]), (2, halted[1]))
    assert "have halted" not in text_of((1, halted[0]), (2, replace(FOLLOWS, state="waiting")))


def test_too_few_in_sync_are_told_with_the_code_that_sends_get() -> None:
    few = told(min_in_sync=3)
    assert "answered with 14" in text_of((MASTER_ID, few), (2, FOLLOWS))


def test_a_replica_that_is_away() -> None:
    away = Other("r3", 3, "", is_alive=False, behind=70)
    others = (*told().others, away)
    assert found((MASTER_ID, told(others=others)), (2, FOLLOWS)) == [
        "replica_away broker-a (replica r3)"
    ]


def test_a_store_whose_place_another_one_has_taken_is_not_missed() -> None:
    """A replica with a lost disk comes back with its broker id and another replica id."""
    gone = Other("r0", 2, "", is_alive=False, behind=70)
    assert found((MASTER_ID, told(others=(*told().others, gone))), (2, FOLLOWS)) == []
    own = Other("r0", 1, "", is_alive=False, behind=70)
    assert found((MASTER_ID, told(others=(*told().others, own))), (2, FOLLOWS)) == []
