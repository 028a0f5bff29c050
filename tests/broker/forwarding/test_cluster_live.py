"""One endpoint for several brokers, over sockets: what a client sees, and what each broker has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.config.tls_settings import TlsConfig
from skylarkmq.broker.forwarding import cluster as limits
from skylarkmq.broker.forwarding.cluster import broker_of_group
from skylarkmq.broker.grpc.peer import GrpcPeer
from skylarkmq.protocol.bodies.group import SubscriptionGroupConfig
from skylarkmq.protocol.flags import DLQ_GROUP_TOPIC_PREFIX
from skylarkmq.protocol.v5 import schema_pb2 as v5
from skylarkmq.protocol.v5.codes import Code
from tests.broker.access.test_control import SECRET
from tests.broker.access.test_rpc_control import signed
from tests.broker.forwarding.cluster_rig import (
    GROUP,
    TOPIC,
    Cluster,
    Endpoint,
    open_cluster,
    open_endpoint,
)
from tests.broker.grpc.sending_rig import half, message
from tests.support.certificates import Authority
from tests.support.patience import until

pytestmark = pytest.mark.timing

NAMES = ("broker-a", "broker-b", "broker-c")


async def all_of(call: Any) -> list[v5.ReceiveMessageResponse]:
    return [frame async for frame in call]


async def test_messages_of_three_brokers_by_one_endpoint(tmp_path: Path) -> None:
    async with (
        open_cluster(tmp_path, "CLUSTER", "LOCAL", "CLUSTER") as cluster,
        cluster.client() as client,
    ):
        for number in range(6):
            await client.send_one(message(b"%d" % number, message_id=f"m{number}"))
        assert [sorted(cluster.bodies(at)) for at in range(3)] == [
            ["0", "3"],
            ["1", "4"],
            ["2", "5"],
        ]
        got: list[v5.Message] = []
        for name in NAMES:
            got += await client.take(name)
        assert sorted(each.body for each in got) == [b"%d" % number for number in range(6)]
        answer = await client.done(reversed(got))
        assert answer.status.code == Code.OK
        assert [entry.message_id for entry in answer.entries] == [
            each.system_properties.message_id for each in reversed(got)
        ]
        assert {entry.status.code for entry in answer.entries} == {Code.OK}
        assert [cluster.mark(at) for at in range(3)] == [2, 2, 2]
        assert cluster.forwarded() == {
            ("broker-b", Code.OK): 4,
            ("broker-c", Code.OK): 4,
        }
        again = await client.done(got)
        assert again.status.code in (Code.OK, Code.INVALID_RECEIPT_HANDLE)


async def test_a_client_is_the_other_broker_s_own(tmp_path: Path) -> None:
    """Its address is in its messages, and it is a member of its group there."""
    async with (
        open_cluster(tmp_path, "CLUSTER", "LOCAL") as cluster,
        cluster.client(client_id="far@1@0@abc") as client,
    ):
        for number in range(2):
            await client.send_one(message(message_id=f"m{number}"))
        await client.take("broker-b")
        (here,), (there,) = cluster.seen(0), cluster.seen(1)
        assert here.born_host == there.born_host
        second = cluster.brokers[1].parts
        (member,) = second.consumers.clients(GROUP)
        assert isinstance(member, GrpcPeer) and member.client_id == "far@1@0@abc"
        assert str(there.born_host) == member.remote_address


async def test_a_message_group_keeps_its_broker_and_its_order(tmp_path: Path) -> None:
    async with (
        open_cluster(tmp_path, "CLUSTER", "CLUSTER", "LOCAL") as cluster,
        cluster.client(0) as first,
        cluster.client(1) as second,
    ):
        for broker in cluster.brokers:
            settings = SubscriptionGroupConfig(group_name=GROUP, consume_message_orderly=True)
            broker.parts.groups.update(settings)
            await broker.parts.groups.durable()
        groups = [f"order-{number}" for number in range(9)]
        for step in range(3):
            for group in groups:
                client = first if (step + len(group)) % 2 else second
                body = f"{group}:{step}".encode()
                sent = message(body, message_id=body.decode(), message_group=group)
                await client.send_one(sent)
        owners = {group: NAMES.index(broker_of_group(group, NAMES)) for group in groups}
        assert set(owners.values()) == {0, 1, 2}
        for group, owner in owners.items():
            assert [body for body in cluster.bodies(owner) if body.startswith(f"{group}:")] == [
                f"{group}:{step}" for step in range(3)
            ]
        assert sum(len(cluster.bodies(at)) for at in range(3)) == 27
        for name in NAMES:
            while messages := await first.take(name):
                steps: dict[str, list[bytes]] = {}
                for each in messages:
                    steps.setdefault(each.system_properties.message_group, []).append(each.body)
                for bodies in steps.values():
                    assert bodies == sorted(bodies)
                assert (await second.done(messages)).status.code == Code.OK
        assert sum(cluster.mark(at) for at in range(3)) == 27


async def test_delayed_messages_are_recalled_where_they_wait(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, "CLUSTER", "LOCAL") as cluster, cluster.client() as client:
        now_ms = cluster.brokers[0].parts.context.clock.now_ms()
        handles: list[str] = []
        for number in range(4):
            late = message(message_id=f"m{number}", deliver_ms=now_ms + 3_600_000)
            handles.append((await client.send_one(late)).recall_handle)
        assert [await client.recall(handle) for handle in handles] == [Code.OK] * 4
        assert cluster.forwarded() == {("broker-b", Code.OK): 4}
        assert await client.recall("nonsense") == Code.BAD_REQUEST


async def test_transactions_end_where_they_began(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, "CLUSTER", "LOCAL") as cluster, cluster.client() as client:
        ids: list[str] = []
        for number in range(4):
            sent = half(b"%d" % number, message_id=f"m{number}")
            ids.append((await client.send_one(sent)).transaction_id)
        assert not cluster.seen(0) and not cluster.seen(1)
        codes = [await client.end(each, f"m{number}") for number, each in enumerate(ids)]
        assert codes == [Code.OK] * 4
        await until(lambda: len(cluster.seen(0)) == len(cluster.seen(1)) == 2)
        assert sorted(cluster.bodies(1)) == ["1", "3"]


async def test_what_is_done_with_a_message_in_hand(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, "CLUSTER", "LOCAL") as cluster, cluster.client() as client:
        for number in range(4):
            await client.send_one(message(b"%d" % number, message_id=f"m{number}"))
        first, second = sorted(await client.take("broker-b"), key=lambda each: each.body)
        handle = first.system_properties.receipt_handle
        changed = await client.about("ChangeInvisibleDuration", handle, invisible_duration={})
        assert changed.status.code == Code.OK
        assert changed.receipt_handle.endswith(".broker-b") and changed.receipt_handle != handle
        (again,) = await client.taken("broker-b")
        assert (again.body, again.system_properties.delivery_attempt) == (b"1", 2)
        stale = await client.about("ChangeInvisibleDuration", handle, invisible_duration={})
        assert stale.status.code == Code.INVALID_RECEIPT_HANDLE, "the other broker's answer"
        answer = await client.about(
            "ForwardMessageToDeadLetterQueue", second.system_properties.receipt_handle
        )
        assert answer.status.code == Code.OK
        await until(lambda: cluster.bodies(1, DLQ_GROUP_TOPIC_PREFIX + GROUP) == ["3"])
        assert not cluster.bodies(0, DLQ_GROUP_TOPIC_PREFIX + GROUP)


async def test_a_poll_at_another_broker_is_woken_and_ends_with_its_client(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, "CLUSTER", "LOCAL") as cluster, cluster.client() as client:
        poll = client.begin("broker-b")
        waiting = asyncio.ensure_future(poll.read())
        await until(lambda: cluster.waiting(1) == 1)
        assert cluster.waiting(0) == 0
        await client.send_one(message(message_id="m0"))
        await client.send_one(message(b"woken", message_id="m1"))
        assert (await waiting).status.code == Code.OK
        assert (await poll.read()).message.body == b"woken"
        another = client.begin("broker-b")
        waiting = asyncio.ensure_future(another.read())
        await until(lambda: cluster.waiting(1) == 1)
        another.cancel()
        await until(lambda: cluster.waiting(1) == 0)
        await asyncio.gather(waiting, return_exceptions=True)


async def test_an_answer_that_its_client_does_not_want_comes_again_soon(tmp_path: Path) -> None:
    """The client has taken the status of it alone, the endpoint all of it."""
    async with open_cluster(tmp_path, "CLUSTER", "LOCAL") as cluster, cluster.client() as client:
        for number in range(2):
            await client.send_one(message(bytes(700_000), message_id=f"m{number}"))
        call = client.begin("broker-b")
        assert (await call.read()).status.code == Code.OK
        second = cluster.brokers[1].parts.grpc
        assert second is not None
        await until(lambda: second.calls.answered["ReceiveMessage", Code.OK] == 1)
        call.cancel()
        (again,) = await client.taken("broker-b")
        assert again.system_properties.delivery_attempt == 2
        assert (await client.done([again])).status.code == Code.OK
        await until(lambda: cluster.mark(1) == 1)


async def test_a_poll_at_another_broker_is_answered_when_this_endpoint_stops(
    tmp_path: Path,
) -> None:
    async with open_cluster(tmp_path, "CLUSTER", "LOCAL") as cluster, cluster.client() as client:
        polls = [asyncio.ensure_future(all_of(client.begin(name))) for name in NAMES[:2]]
        await until(lambda: cluster.waiting(0) == cluster.waiting(1) == 1)
        cluster.brokers[0].parts.pop.receiver.end_polls()
        first = cluster.brokers[0].parts.grpc
        assert first is not None
        await first.stop()
        for frames in await asyncio.gather(*polls):
            assert frames[0].status.code == Code.MESSAGE_NOT_FOUND
        await until(lambda: cluster.waiting(1) == 0)


@pytest.mark.slow  # for its memory
async def test_large_bodies_pass_both_ways(tmp_path: Path) -> None:
    async with (
        open_cluster(tmp_path, "CLUSTER", "LOCAL", mapped_file_size_commit_log=32 << 20) as cluster,
        cluster.client() as client,
    ):
        for number in range(6):
            await client.send_one(message(b"%d" % number * 4_000_000, message_id=f"m{number}"))
        got: list[v5.Message] = []
        while len(got) < 3:  # a receive has a limit in bytes
            got += await client.taken("broker-b")
        assert sorted(each.body[:1] for each in got) == [b"1", b"3", b"5"]
        assert {len(each.body) for each in got} == {4_000_000}
        refused = await client.send(message(b"x" * 4_194_305))
        refused_too = await client.send(message(b"x" * 4_194_305))
        assert refused.status.code == refused_too.status.code == Code.MESSAGE_BODY_TOO_LARGE


async def test_a_broker_that_has_gone_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "AGAIN_MAX", 1)
    async with open_cluster(tmp_path, "CLUSTER", "LOCAL") as cluster, cluster.client() as client:
        for number in range(2):
            await client.send_one(message(b"%d" % number, message_id=f"m{number}"))
        held = [*await client.take("broker-a"), *await client.take("broker-b")]
        assert len(held) == 2
        second = cluster.brokers[1].parts.grpc
        assert second is not None
        await second.stop()
        for number in range(2, 6):
            await client.send_one(message(b"%d" % number, message_id=f"m{number}"))
        assert sorted(cluster.bodies(0)) == ["0", "2", "3", "4", "5"]
        there = next(group for group in "abcdefgh" if broker_of_group(group, NAMES[:2]) == NAMES[1])
        answer = await client.send(message(message_id="m6", message_group=there))
        assert answer.status.code == Code.INTERNAL_SERVER_ERROR, "its order would be lost"
        assert "broker-b" in answer.status.message
        frames = await all_of(client.begin("broker-b"))
        assert [frame.status.code for frame in frames] == [Code.INTERNAL_SERVER_ERROR]
        answer = await client.done(held)
        assert [entry.status.code for entry in answer.entries] == [
            Code.OK,
            Code.INTERNAL_SERVER_ERROR,
        ]
        second.start()
        await second.started()

        async def is_back() -> bool:
            return (await client.done(held[1:])).status.code == Code.OK

        await until(is_back)
        assert cluster.mark(1) == 1


async def test_the_handle_of_a_broker_that_there_never_was(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, "CLUSTER", "LOCAL") as cluster, cluster.client() as client:
        await client.send_one(message())
        (held,) = await client.take("broker-a")
        made_up = v5.Message()
        made_up.CopyFrom(held)
        made_up.system_properties.receipt_handle = "s1.0.0.0.1.00000000.broker-b"
        answer = await client.done([made_up, held])
        assert [entry.status.code for entry in answer.entries] == [
            Code.INVALID_RECEIPT_HANDLE,
            Code.OK,
        ]
        frames = await all_of(client.begin("broker-x"))
        assert [frame.status.code for frame in frames] == [Code.INTERNAL_SERVER_ERROR]
        assert await client.end("m@broker-x", "m") == Code.INTERNAL_SERVER_ERROR
        assert not cluster.forwarded()


async def test_brokers_call_each_other_by_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = TlsConfig(
        tls_server_mode="enforcing",
        tls_server_cert_path=authority.certificate_file("localhost", "127.0.0.1"),
        tls_client_trust_cert_path=authority.ca_file,
    )
    async with open_cluster(tmp_path, "CLUSTER", "LOCAL", tls=tls) as cluster:
        address = cluster.brokers[0].grpc_address
        assert address is not None
        credentials = grpc.ssl_channel_credentials(authority.ca_file.read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{address[1]}", credentials) as channel:
            client = Endpoint(channel)
            for number in range(4):
                await client.send_one(message(b"%d" % number, message_id=f"m{number}"))
        assert sorted(cluster.bodies(1)) == ["1", "3"]
        gate = cluster.brokers[1].parts.tls_gates["grpc"]
        assert gate.results["tls"] == 1 and not gate.results["plain_text"]


# Access control

GUEST = "127.0.0.5"
WHITE = f"""
globalWhiteRemoteAddresses: [{GUEST}]
accounts:
- accessKey: publisher
  secretKey: {SECRET}
  topicPerms: [{TOPIC}=PUB]
"""
ADMIN = f"""
- accessKey: administrator
  secretKey: {SECRET}
  admin: true
"""
READER = f"""
- accessKey: administrator
  secretKey: {SECRET}
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
"""


@asynccontextmanager
async def closed_cluster(root: Path, *accounts: str) -> AsyncGenerator[Cluster]:
    """Brokers with access control, each with a file of its own."""
    each: list[dict[str, Any]] = []
    for number, text in enumerate(accounts):
        home = root / f"home-{number}"
        (home / "conf").mkdir(parents=True)
        (home / "conf" / "plain_acl.yml").write_text(text)
        each.append({"acl_enable": True, "rocketmq_home": home})
    async with open_cluster(root, "CLUSTER", "LOCAL", each=each) as cluster:
        yield cluster


@asynccontextmanager
async def from_address(host: str, port: int) -> AsyncGenerator[str]:
    """Have what connects here connect there, from another address of this machine."""

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
        await asyncio.gather(pipe(reader, there[1]), pipe(there[0], writer), return_exceptions=True)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def codes_of(client: Any) -> list[int]:
    """The codes of two sends, one for each broker."""
    return [(await client.send(message(message_id=f"m{at}"))).status.code for at in range(2)]


async def test_accounts_count_at_both_brokers(tmp_path: Path) -> None:
    other = (WHITE + ADMIN).replace(f"{TOPIC}=PUB", f"{TOPIC}=SUB")
    async with closed_cluster(tmp_path, WHITE + ADMIN, other) as cluster:
        async with cluster.client(metadata=signed("publisher")) as client:
            assert await codes_of(client) == [Code.OK, Code.FORBIDDEN], "by the other's file"
        async with cluster.client(metadata=signed("publisher", "another-secret")) as client:
            assert await codes_of(client) == [Code.UNAUTHORIZED] * 2
        async with cluster.client() as client:
            assert await codes_of(client) == [Code.UNAUTHORIZED] * 2
        assert cluster.forwarded() == {("broker-b", Code.FORBIDDEN): 1}, "the rest was refused here"


@pytest.mark.parametrize("is_proved", [True, False])
async def test_a_white_address_counts_where_a_broker_proves_it(
    tmp_path: Path, is_proved: bool
) -> None:
    """Not where the admin who signs for the first broker is none to the second one."""
    second = WHITE + ADMIN
    if not is_proved:
        second = WHITE + READER + ADMIN.replace("administrator", "second-admin")
    first = WHITE + ADMIN + ADMIN.replace("administrator", "second-admin")
    async with closed_cluster(tmp_path, first, second) as cluster:
        address = cluster.brokers[0].grpc_address
        assert address is not None
        async with (
            from_address(GUEST, address[1]) as target,
            open_endpoint(target) as client,
        ):
            codes = await codes_of(client)
        assert codes == [Code.OK, Code.OK if is_proved else Code.UNAUTHORIZED]
        if is_proved:
            assert {found.born_host.ip for found in cluster.seen(1)} == {GUEST}
