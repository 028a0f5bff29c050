"""`skylarkmq cluster` on replicas that elect their master, as Admin tells of them."""

from __future__ import annotations

from typing import Any

import pytest

from skylarkmq.client.admin import (
    Admin,
    BrokerStatus,
    ClusterStatus,
    Drained,
    DrainProgress,
    FailoverStatus,
    ForcedFailover,
    Mastership,
    NameServerStatus,
    ReplicaStatus,
)
from skylarkmq.client.errors import RequestTimeout
from skylarkmq.tools import cluster
from tests.tools.admin.support import Shell, paths

LEADER = FailoverStatus(
    replica="r-1", broker_id=1, state="master", term=7, master="r-1", in_sync=("r-1", "r-2"),
    min_in_sync=2, log_end=100, durable_end=100, confirmed=90, mastership_changes=1,
    is_engine_reachable=True, halted="", others=(),
)  # fmt: skip


def answers(monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> list[tuple[Any, ...]]:
    """Let a call of Admin return a value; return what it will have been asked."""
    asked: list[tuple[Any, ...]] = []

    async def call(_: Admin, *args: Any, **options: Any) -> Any:
        asked.append((*args, *options.values()))
        return value

    monkeypatch.setattr(Admin, name, call)
    return asked


def test_a_switch_over(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers(monkeypatch, "switch_over", Mastership("set", "r-2", 8))
    assert shell("cluster", "failover", "set").code == 2 and not asked
    shell.ok("cluster", "failover", "set", "--dry-run")
    answer = shell.json("cluster", "failover", "set", "--to", "2", "--yes")
    assert answer == {"action": "switched_over", "broker": "set", "master": "r-2", "term": 8}
    said = shell.ok("cluster", "failover", "set", "--to", "r-2", "--yes", "-o", "table")
    assert said.out == "r-2 leads set now, term 8\n"
    assert asked == [("set", 2), ("set", "r-2")]


def test_a_forced_failover(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers(monkeypatch, "failover", ForcedFailover("set", "r-2", 9, 3))
    words = ("cluster", "failover", "set", "--to", "10.0.0.2:10911", "--accept-loss", "--yes")
    assert paths(shell.json(*words)) == {
        "action", "broker", "master", "term", "messages_at_risk"
    }  # fmt: skip
    assert "messages at risk: 3" in shell.ok(*words, "-o", "table").out
    assert asked[0] == ("set", "10.0.0.2:10911", True)


def test_a_drain_lets_another_one_lead(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "drain", Drained("set", "switched_over", master="r-2"))
    said = shell.ok("cluster", "drain", "set", "--yes", "-o", "table")
    assert said.out == "r-2 leads set now\n"


def test_a_drain_is_waited_for(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "drain", Drained("a", "writes_stopped", topic_count=7))
    monkeypatch.setattr(cluster, "ASK_EVERY_S", 0.0)
    states = [
        DrainProgress("a", "producers", 7, 1, waits_for="clients ask for routes anew: 30 s"),
        DrainProgress("a", "producers", 7, 1, waits_for="clients ask for routes anew: 9 s"),
        DrainProgress("a", "consumers", 7, 1, waits_for="group g has not confirmed 3 messages"),
        DrainProgress("a", "drained", 7, 1),
    ]

    async def ask(_: Admin, broker: str, *, broker_id: int | None) -> DrainProgress:
        assert (broker, broker_id) == ("a", None)
        return states.pop(0) if len(states) > 1 else states[0]

    monkeypatch.setattr(Admin, "drain_progress", ask)
    words = ("cluster", "drain", "a", "--yes")
    assert shell.ok(*words).err == "" and len(states) == 4, "it does not wait unasked"
    said = shell.ok(*words, "--wait", "60")
    assert said.json["topic_count"] == 7
    assert said.err.splitlines() == [
        "producers: clients ask for routes anew: 30 s",
        "consumers: group g has not confirmed 3 messages",
        "drained: 7 topics have moved; no other broker takes 1 topics, which stay",
    ]
    states[:] = [DrainProgress("a", "impossible", 0, 7, why="no other broker takes it")]
    said = shell(*words, "--wait", "60")
    assert said.code == 1 and "does not become drained: no other broker takes it" in said.err
    states[:] = [DrainProgress("a", "consumers", 7, 0, waits_for="group g")]
    said = shell(*words, "--wait", "0.02")
    assert said.code == 1 and "not drained within 0.02 s" in said.err

    async def fail(*_: object, **__: object) -> None:
        raise RequestTimeout("no answer in time")

    monkeypatch.setattr(Admin, "drain_progress", fail)
    assert shell(*words, "--wait", "60").code == 4, "that is no end of the waiting time"


def test_both_drains_name_each_other(shell: Shell) -> None:
    assert "`skylarkmq cluster drain BROKER --wait" in shell.ok("drain", "--help").out
    assert "`skylarkmq drain`" in shell.ok("cluster", "drain", "--help").out


def test_the_status_of_a_set(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    leads = ReplicaStatus(0, "10.0.0.1:10911", None, "V4_9_8", 0, 100, failover=LEADER)
    gone = ReplicaStatus(2, "10.0.0.2:10911", "it did not answer in time")
    status = ClusterStatus(
        (NameServerStatus("10.0.0.9:9876", None, {"set": (0, 2)}),),
        (BrokerStatus("set", "DefaultCluster", (leads, gone)),),
    )
    answers(monkeypatch, "cluster_status", status)
    table = shell.ok("cluster", "status", "-o", "table").out
    assert "Replicas that elect their master\nBROKER  REPLICA" in table
    assert "set     r-1       1  master     7  r-1, r-2         90  yes" in table
    assert "slave 2  10.0.0.2:10911" in table and "it did not answer in time" in table
    rows = shell.json("cluster", "status")["brokers"]
    assert [row["role"] for row in rows] == ["master", "slave"]
    assert rows[0]["failover"]["in_sync"] == ["r-1", "r-2"]
