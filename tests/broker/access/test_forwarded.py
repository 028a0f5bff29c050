"""Calls that another broker's endpoint forwards: whose address counts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.access.accounts import AccessRules, Account, read_rules
from skylarkmq.broker.access.forwarded import CLIENT, PROOF, client_of, is_proved, proof_of
from skylarkmq.broker.access.revoking import Revoked
from skylarkmq.broker.access.rpc_control import RpcAccess
from skylarkmq.broker.access.rpc_rights import RPCS
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from tests.broker.access.test_control import ACCOUNTS
from tests.broker.access.test_rpc_control import WHITE, signed
from tests.broker.grpc.rig import METADATA, open_client, open_rig
from tests.support.patience import until

RULES = read_rules([(Path("plain_acl.yml"), (WHITE + ACCOUNTS).encode())])
WHITE_CLIENT = "10.1.2.3:4711"
FAR_CLIENT = "192.0.2.7:4711"
HOME = "globalWhiteRemoteAddresses: [127.0.0.*, '::1']\n"
AT_HOME = read_rules([(Path("plain_acl.yml"), (HOME + ACCOUNTS).encode())])
BEAT = schema_pb2.HeartbeatRequest()


def admin(key: str = "administrator") -> Account:
    return RULES.accounts[key]


def forwarded(client: str, account: Account | None = None, **more: str) -> dict[str, str]:
    """Metadata of a client's call as another endpoint forwards it."""
    metadata = {"x-mq-client-id": "c@1", **more, CLIENT: client}
    if account is not None:
        metadata[PROOF] = proof_of(account, client, metadata)
    return metadata


@pytest.mark.parametrize("client", [WHITE_CLIENT, "::1:81", "fe80::1%eth0:4711"])
def test_an_address_is_read(client: str) -> None:
    assert client_of(forwarded(client)) == client


@pytest.mark.parametrize(
    "client",
    [
        *("", "10.1.2.3", "10.1.2.3:", ":80", "10.1.2.3:x", "10.1.2.3:²", "host:80"),
        *("10.1.2.3:65536", "10.1.2.3:000080", "fe80::1%\x1b[31m:80", "1" * 5000 + ":1"),
    ],
)
def test_what_is_no_address_counts_for_none(client: str) -> None:
    assert client_of(forwarded(client)) == ""


def test_an_admin_proves_a_client() -> None:
    metadata = forwarded(WHITE_CLIENT, admin(), **signed())
    assert is_proved(RULES, WHITE_CLIENT, metadata)
    assert is_proved(RULES, WHITE_CLIENT, forwarded(WHITE_CLIENT, admin())), "without a date"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({PROOF: ""}, "none"),
        ({PROOF: "administrator"}, "no digits"),
        ({PROOF: "administrator " + "0" * 64}, "others' digits"),
        ({PROOF: "administrator é"}, "no digits at all"),
        ({PROOF: proof_of(admin("publisher"), WHITE_CLIENT, forwarded(WHITE_CLIENT))}, "no admin"),
        ({PROOF: "nobody " + "0" * 64}, "unknown"),
        ({"x-mq-client-id": "c@2"}, "another client's"),
        ({"x-mq-date-time": "20200101T000001Z"}, "of another call"),
    ],
)
def test_others_prove_nothing(change: dict[str, str], why: str) -> None:
    metadata = {**forwarded(WHITE_CLIENT, admin()), **change}
    assert not is_proved(RULES, WHITE_CLIENT, metadata), why
    proof = forwarded(FAR_CLIENT, admin())[PROOF]
    assert not is_proved(RULES, WHITE_CLIENT, forwarded(WHITE_CLIENT) | {PROOF: proof})


async def peers_of(
    metadata: dict[str, str], *, with_access: bool, rules: AccessRules = RULES
) -> tuple[int, list[Any]]:
    """The code of a heartbeat, and address and account of the call that its handler got."""

    def make(stats: Any, clock: Any) -> RpcAccess:
        access = RpcAccess(RPCS, stats)
        access.rules = rules
        return access

    options: dict[str, Any] = {"access": make} if with_access else {}
    async with open_rig(**options) as rig, open_client(rig) as client:
        request = schema_pb2.HeartbeatRequest(group=schema_pb2.Resource(name="readers"))
        whole = tuple({**dict(METADATA), **metadata}.items())
        answer = await client.call("Heartbeat", request, metadata=whole)
        calls = [
            (call.peer, call.account and call.account.access_key) for call in rig.handlers.calls
        ]
        return answer.status.code, calls


async def test_without_access_control_the_address_is_believed() -> None:
    found = await peers_of(forwarded(FAR_CLIENT), with_access=False)
    assert found == (Code.OK, [(FAR_CLIENT, None)])
    code, calls = await peers_of(forwarded("no-address"), with_access=False)
    assert code == Code.OK and calls[0][0].rpartition(":")[0] in ("127.0.0.1", "::1")


async def test_with_access_control_it_is_to_be_proved() -> None:
    white = await peers_of(forwarded(WHITE_CLIENT, admin()), with_access=True)
    assert white == (Code.OK, [(WHITE_CLIENT, None)])
    code, calls = await peers_of(forwarded(WHITE_CLIENT), with_access=True)
    assert (code, calls) == (Code.UNAUTHORIZED, []), "the connection's address is on no list"
    signs = signed("subscriber")
    code, calls = await peers_of({**signs, CLIENT: WHITE_CLIENT}, with_access=True)
    assert code == Code.OK
    assert calls[0][0] != WHITE_CLIENT and calls[0][1] == "subscriber"
    code, calls = await peers_of(forwarded(FAR_CLIENT), with_access=True, rules=AT_HOME)
    assert (code, calls) == (Code.UNAUTHORIZED, []), "the connection's address is on the list"
    code, calls = await peers_of({}, with_access=True, rules=AT_HOME)
    assert code == Code.OK, "who forwards nothing is let in by it"
    proved = forwarded(FAR_CLIENT, admin(), **signs)
    found = await peers_of(proved, with_access=True)
    assert found == (Code.OK, [(FAR_CLIENT, "subscriber")])


@pytest.mark.parametrize("key", ["administrator", "subscriber"])
async def test_a_receive_ends_with_the_account_whose_word_lets_its_client_in(key: str) -> None:
    """The client has none: the other endpoint says that it comes from an address of the list."""

    def make(stats: Any, clock: Any) -> RpcAccess:
        access = RpcAccess(RPCS, stats)
        access.rules = RULES
        return access

    without = {name: each for name, each in RULES.accounts.items() if name != key}
    after = AccessRules(RULES.white, RULES.white_texts, without, RULES.versions)
    async with open_rig(access=make) as rig, open_client(rig) as client:
        waits = asyncio.Event()

        async def work(_: Any) -> None:
            await waits.wait()

        rig.handlers.work = work
        metadata = {**dict(METADATA), **forwarded(WHITE_CLIENT, admin())}
        request = schema_pb2.ReceiveMessageRequest()
        receive = client.receive(request, metadata=tuple(metadata.items()))
        await until(lambda: rig.handlers.calls, "the call")
        rig.endpoint.revoke(Revoked(RULES, after))
        if key == "administrator":
            assert await receive.code() is grpc.StatusCode.UNAVAILABLE
            assert rig.handlers.ended == ["cancelled"]
        else:
            waits.set()
            assert [answer.status.code async for answer in receive] == [Code.OK]
