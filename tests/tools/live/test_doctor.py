"""`doctor`: each look finds what is wrong, and nothing in a sound cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client import Client, Consumer, Message, Producer, StartFrom, Tag
from skylarkmq.client.admin import (
    BrokerRuntime,
    BrokerStatus,
    BrokerSummary,
    ClusterStatus,
    ClusterSummary,
    GroupMembers,
    ReplicaStatus,
    TopicSettings,
)
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.testing import Account, SyncBroker, run_broker_sync
from skylarkmq.tools.doctor.checks import (
    Examination,
    broker_time_ms,
    dial,
    differing_findings,
    disk_findings,
    size_of,
    topic_findings,
)
from skylarkmq.tools.doctor.limits import limits
from skylarkmq.tools.running import FAILED, UNREACHABLE
from tests.support.manual_clock import ManualClock
from tests.support.patience import until_sync
from tests.support.ports import free_ports
from tests.tools.live.shell import Said, Shell, beside

pytestmark = pytest.mark.timing

CLUSTER = ("replicas", "addresses", "clocks", "disks", "registrations", "topics", "groups")
"""All looks but the one at this machine's other processes."""


def examined(shell: Shell, *options: str, code: int = 0, looks: tuple[str, ...] = CLUSTER) -> Said:
    only = [word for look in looks for word in ("--only", look)]
    return shell("doctor", *only, *options, code=code)


def test_a_sound_cluster(shell: Shell) -> None:
    with run_broker_sync() as sound:
        namesrv = ("--namesrv", sound.namesrv_addr)
        shell("send", "sound", "x", *namesrv)
        assert examined(shell, *namesrv).json == {"looked_at": [*CLUSTER], "findings": []}
        assert "all is well" in examined(shell, *namesrv, "-o", "table").out


def test_lag_without_members(shell: Shell, broker: SyncBroker) -> None:
    async def consume_one() -> None:
        async with Client(broker.namesrv_addr) as client, Producer(client=client) as producer:
            for _ in range(5):
                await producer.send(Message("left", b"x"))
            async with Consumer(
                "left", client=client, group="leaver", start_from=StartFrom.FIRST
            ) as consumer:
                await (await consumer.getone(timeout=20)).ack()

    broker.create_topic("left", queues=1)
    asyncio.run(consume_one())
    (found,) = examined(shell, code=FAILED, looks=("groups",)).json["findings"]
    assert (found["kind"], found["severity"]) == ("lag_without_members", "warning")
    assert found["subject"] == "leaver" and "4 messages wait" in found["cause"]
    assert found["cure"]
    table = examined(shell, "-o", "table", code=FAILED, looks=("groups",)).out
    assert "cure:" in table and "1 warning" in table
    examined(shell, "--ignore", "lag_without_members", looks=("groups",))


def test_members_that_subscribe_differently(shell: Shell, broker: SyncBroker) -> None:
    broker.create_topic("split", queues=2)

    async def two_members() -> None:
        async with (
            Client(broker.namesrv_addr, instance_name="one") as one,
            Client(broker.namesrv_addr, instance_name="two") as two,
            Consumer("split", client=one, group="differing", selector=Tag("A")),
            Consumer("split", client=two, group="differing", selector=Tag("B")),
        ):
            await asyncio.Event().wait()

    with beside(two_members()):
        broker.wait_members("differing", 2)
        options = ("--ignore", "lag_without_members")
        findings: list[Any] = []

        def is_found() -> bool:  # the second member's first heartbeat may be under way
            nonlocal findings
            result = shell.any("doctor", "--only", "groups", *options)
            findings = result.json["findings"]
            return bool(findings)

        until_sync(is_found)
    (found,) = findings
    assert (found["kind"], found["severity"]) == ("subscriptions_differ", "critical")
    assert found["subject"] == "differing"
    assert "split:A" in found["cause"] and "split:B" in found["cause"]


def test_a_clock_that_is_ahead(shell: Shell) -> None:
    with run_broker_sync() as ahead:
        namesrv = ("--namesrv", ahead.namesrv_addr)
        examined(shell, *namesrv, looks=("clocks",))
        ahead.advance(600)
        said = examined(shell, *namesrv, code=FAILED, looks=("clocks",))
        (found,) = said.json["findings"]
        assert found["kind"] == "clock_skew" and "ahead of" in found["cause"]
        examined(shell, *namesrv, "--skew", "700", looks=("clocks",))


def test_topics_that_one_name_server_does_not_know(shell: Shell, broker: SyncBroker) -> None:
    shell.send("known", "x")
    with run_broker_sync(settings={"brokerName": "broker-b"}) as other:
        both = ("--namesrv", f"{broker.namesrv_addr};{other.namesrv_addr}")
        said = examined(shell, *both, code=FAILED, looks=("replicas", "registrations"))
    kinds = {found["kind"]: found for found in said.json["findings"]}
    assert kinds.keys() == {"not_registered", "topics_not_registered"}
    assert kinds["topics_not_registered"]["subject"] == other.namesrv_addr


def test_what_it_may_not_look_at_is_no_clean_bill(shell: Shell) -> None:
    """An account that may not ask for groups' progress is told so."""
    with run_broker_sync() as broker:
        namesrv = ("--namesrv", broker.namesrv_addr)

        async def consume() -> None:
            async with Client(broker.namesrv_addr) as client, Producer(client=client) as producer:
                await producer.send(Message("hidden", b"x"))
                async with Consumer("hidden", client=client, group="hidden"):
                    pass

        asyncio.run(consume())
        with broker.faults.fail(RequestCode.GET_CONSUME_STATS, None):
            said = examined(shell, *namesrv, code=FAILED, looks=("groups",))
    (found,) = said.json["findings"]
    assert (found["kind"], found["subject"]) == ("not_looked_at", "groups")
    assert "1 of 1" in found["cause"] and "--access-key" in found["cure"]


def test_a_broker_that_refuses_is_not_called_unreachable(shell: Shell) -> None:
    accounts = [
        Account("somebody", "secret-enough"),
        Account("the-admin", "secret-enough", admin=True),
    ]
    with run_broker_sync(accounts=accounts) as guarded:
        namesrv = ("--namesrv", guarded.namesrv_addr, "--secret-key", "secret-enough")
        admin = (*namesrv, "--access-key", "the-admin")
        shell("topic", "create", "hidden", *admin)
        said = examined(shell, *namesrv, "--access-key", "somebody", code=FAILED)
        examined(shell, *admin)
    (found,) = said.json["findings"]
    assert (found["kind"], found["severity"]) == ("not_looked_at", "warning")
    assert found["subject"] == "broker-a (master), topics, groups"
    assert found["cause"].startswith("access control refuses: Need permission to read everything, ")
    assert "topic:hidden, account somebody lacks SUB" in found["cause"]
    assert "secret-enough" not in said.out + said.err


def test_nobody_to_ask(shell: Shell) -> None:
    (port,) = free_ports()
    said = shell("doctor", "--namesrv", f"127.0.0.1:{port}", code=UNREACHABLE)
    assert "asked" in said.err


# Looks at what no loopback cluster shows


@dataclass
class AdminOf:
    """Answers as the admin of some cluster would."""

    servers: tuple[str, ...]
    addresses: dict[int, str]
    broker_name: str = "broker-a"
    runtime: dict[str, str] = field(default_factory=dict)

    async def cluster(self) -> ClusterSummary:
        return ClusterSummary(self.servers, (BrokerSummary("broker-a", "c", self.addresses),))

    async def cluster_status(self) -> ClusterStatus:
        replicas = [ReplicaStatus(number, place, None) for number, place in self.addresses.items()]
        return ClusterStatus((), (BrokerStatus("broker-a", "c", tuple(replicas)),))

    async def broker_runtime(self, broker: str, *, broker_id: int) -> BrokerRuntime:
        return BrokerRuntime(broker, self.runtime)

    async def broker_config(self, broker: str) -> dict[str, str]:
        return {"brokerName": self.broker_name}


@asynccontextmanager
async def listening() -> AsyncGenerator[str]:
    async def close(_: object, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def examination(
    broker: SyncBroker, admin: AdminOf, clock: ManualClock | None = None
) -> AsyncGenerator[Examination]:
    async with Client(broker.namesrv_addr, clock=clock) as client:
        yield Examination(Client, client, admin, 5, lambda *_: None)  # type: ignore[arg-type]


async def addresses_of(broker: SyncBroker, admin: AdminOf) -> list[tuple[str, str]]:
    async with examination(broker, admin) as look:
        return [(found.kind, found.cause) for found in await look.addresses()]


@pytest.mark.parametrize(
    ("told_s", "told"),
    [
        (605, "605 s ahead of"),
        (6, "6 s ahead of"),
        (5, None),
        (0, None),
        (-1, None),
        (-6, None),  # it tells whole seconds, so it may be 5.001 s
        (-7, "6 s behind"),
        (-605, "604 s behind"),
    ],
)
async def test_clocks_that_are_ahead_and_behind(
    broker: SyncBroker, told_s: int, told: str | None
) -> None:
    """Here more than 5 s are too many."""
    clock = ManualClock()
    started_ms = clock.now_ms() + (told_s - 93) * 1000
    runtime = "[ 0 days, 0 hours, 1 minutes, 33 seconds ]"
    admin = AdminOf(
        ("127.0.0.1:9876",),
        {0: "127.0.0.1:10911"},
        runtime={"bootTimestamp": str(started_ms), "runtime": runtime},
    )
    async with examination(broker, admin, clock) as look:
        found = await look.clocks()
    assert [each.kind for each in found] == ([] if told is None else ["clock_skew"])
    assert all(f"its clock is {told} this machine's" in each.cause for each in found)


async def test_a_loopback_address_is_wrong_for_remote_clients(broker: SyncBroker) -> None:
    async with listening() as place:
        remote = await addresses_of(broker, AdminOf(("10.0.0.5:9876",), {0: place}))
        local = await addresses_of(broker, AdminOf(("127.0.0.1:9876",), {0: place}))
    assert [kind for kind, _ in remote] == ["loopback_advertised"]
    assert local == []


async def test_addresses_that_nobody_or_somebody_else_answers(broker: SyncBroker) -> None:
    (port,) = free_ports()
    nobody = f"127.0.0.1:{port}"
    async with listening() as place:
        admin = AdminOf(("127.0.0.1:9876",), {0: place, 1: nobody}, broker_name="broker-z")
        kinds = dict(await addresses_of(broker, admin))
    assert kinds.keys() == {"other_broker_answers", "address_unreachable"}
    assert "broker-z answers" in kinds["other_broker_answers"]
    assert nobody in kinds["address_unreachable"]
    assert await dial("nonsense") is not None


def test_disks_by_the_runtime_table() -> None:
    def kinds(**values: str) -> list[tuple[str, str]]:
        return [(found.kind, found.severity) for found in disk_findings("b", values)]

    assert kinds() == []
    quick = "[<=0ms]:990 [0~10ms]:10 [100~200ms]:1 [10s~]:0 "
    assert kinds(putMessageDistributeTime=quick, commitLogDiskRatio="0.89") == []
    assert kinds(commitLogDiskRatio="0.93") == [("disk_full", "critical")]
    slow = "[<=0ms]:90 [200~500ms]:20 [10s~]:1 "
    assert kinds(putMessageDistributeTime=slow) == [("slow_disk", "warning")]
    assert kinds(putMessageDistributeTime="[<=0ms]:1 [10s~]:1 ") == [], "too few to tell"
    assert kinds(pageCacheLockTimeMills="5000") == [("slow_disk", "warning")]
    assert kinds(remainHowManyDataToFlush="1.5 GiB") == [("flush_behind", "warning")]
    assert kinds(dispatchBehindBytes=str(1 << 30)) == [("dispatch_behind", "warning")]
    assert kinds(sendThreadPoolQueueHeadWaitTimeMills="900") == [("sends_wait", "warning")]
    assert kinds(commitLogDiskRatio="?", pageCacheLockTimeMills="") == []


@pytest.mark.parametrize(
    ("text", "size"),
    [("714 B", 714), ("1.5 KiB", 1536), ("2 MB", 2 << 20), ("1.0 GiB", 1 << 30), ("", 0)],
)
def test_sizes_for_humans(text: str, size: int) -> None:
    assert size_of(text) == size


def test_a_broker_s_time() -> None:
    runtime = "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"
    assert broker_time_ms({"bootTimestamp": "1000", "runtime": runtime}) == 1000 + 93_784_000
    assert broker_time_ms({"bootTimestamp": "1000"}) is None


def test_topics_that_differ_between_brokers() -> None:
    def kinds(*settings: TopicSettings) -> list[str]:
        return [found.kind for found in topic_findings("t", settings)]

    assert kinds(TopicSettings("a", 4, 4, "rw"), TopicSettings("b", 4, 4, "rw")) == []
    assert kinds(TopicSettings("a", 4, 4, "rw"), TopicSettings("b", 8, 8, "rw")) == [
        "topic_differs"
    ]
    assert kinds(TopicSettings("a", 4, 8, "rw")) == ["queues_not_read"]


def test_members_that_a_broker_names() -> None:
    """Our brokers tell who differs, also where members do not say so themselves."""
    members = GroupMembers("g", (), differing=("one", "two"))
    (found,) = differing_findings({}, members)
    assert "one, two" in found.cause
    assert differing_findings({"one": frozenset({"t:*"})}, GroupMembers("g", ())) == []


def test_limits_of_the_servers_that_run_here(tmp_path: Path) -> None:
    def process(pid: int, command: str, files: str) -> None:
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
        row = f"Limit  Soft Limit  Hard Limit  Units\nMax open files  {files}  {files}  files\n"
        (folder / "limits").write_text(row)

    (tmp_path / "sys" / "vm").mkdir(parents=True)
    regions = tmp_path / "sys" / "vm" / "max_map_count"
    regions.write_text("65530\n")
    process(1, "python -m pytest skylarkmq", "1024")
    process(2, "python -m skylarkmq send serve", "1024")
    assert limits(tmp_path) == [], "no server runs here"
    process(10, "/usr/bin/skylarkmq serve --dev", "1024")
    process(11, "python -m skylarkmq broker", "655350")
    process(12, "java org.apache.rocketmq.broker.BrokerStartup -c x", "unlimited")
    process(13, "java org.apache.rocketmq.namesrv.NamesrvStartup", "4096")
    files, mapped = limits(tmp_path)
    assert (files.kind, files.severity) == ("few_open_files", "warning")
    assert "(process 10: 1024, process 13: 4096)" in files.cause
    assert (mapped.kind, mapped.severity) == ("few_mapped_regions", "warning")
    regions.write_text("1000000\n")
    assert len(limits(tmp_path)) == 1
