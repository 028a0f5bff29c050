"""Signing: every request as it really goes out, to brokers and to name servers."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from skylarkmq.client import AuthError, Client, Credentials, Message, Producer
from skylarkmq.client.config import Codec
from skylarkmq.client.instance import services_of
from skylarkmq.client.wire.acl_hook import Signer
from skylarkmq.protocol.codes import MQVersion, RequestCode, ResponseCode
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.protocol.signature import (
    ACCESS_KEY,
    SECURITY_TOKEN,
    SIGNATURE,
    UNIQUE_KEY_QUERY,
    sign,
)
from tests.support.fake_cluster import FakeCluster
from tests.support.manual_clock import ManualClock, advance_async, settle
from tests.support.scripted_stream import ScriptedStream

KEYS = Credentials("rocketmq2", "12345678", security_token="token")


class Guarded(FakeCluster):
    """A cluster whose broker checks signatures as a Java broker does."""

    def __init__(self) -> None:
        super().__init__()
        self.guard = self.broker("broker-a", {"orders": 2})
        self.unsigned: list[int] = []
        self.checked_count = 0
        respond = self.guard.respond

        def checked(request: RemotingCommand, stream: ScriptedStream) -> object:
            self.checked_count += 1
            if not verifies(request):
                self.unsigned.append(request.code)
            return respond(request, stream)

        self.guard.respond = checked  # type: ignore[assignment,method-assign]


def verifies(request: RemotingCommand) -> bool:
    """Whether a broker with ACL takes this request, by the rules of release 4.9."""
    fields = dict(request.ext_fields)
    given = fields.pop(SIGNATURE, "")
    fields.pop(UNIQUE_KEY_QUERY, None)
    known = fields.get(ACCESS_KEY) == KEYS.access_key
    return known and given == sign(KEYS.secret_key.encode(), fields, request.body)


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("codec", ["auto", "json", "rocketmq"])
async def test_all_requests_are_signed(codec: Codec, *, echo: bool) -> None:
    cluster, clock = Guarded(), ManualClock()
    cluster.guard.echo_codec = echo
    client = Client(
        cluster.namesrv, network=cluster.network, clock=clock, random=Random(1), codec=codec,
        credentials=KEYS,
    )  # fmt: skip
    producer = Producer(client=client)
    await producer.start()
    for body in (b"one", b"two"):
        await producer.send(Message("orders", body, tags="a", keys="k"))
    await producer.send_batch([Message("orders", b"three"), Message("orders", b"four")])
    await producer.send_oneway(Message("orders", b"five"))
    await services_of(client).peer(cluster.guard.address)
    await services_of(client).send_heartbeats()
    stopping = asyncio.create_task(producer.stop(timeout=1))
    await advance_async(clock, 60)
    await stopping
    await client.stop()
    assert cluster.unsigned == []
    codes = {request.code for request in cluster.guard.requests}
    assert codes >= {310, 320, 34, 35}
    assert sorted(cluster.guard.bodies("orders")) == [b"five", b"four", b"one", b"three", b"two"]
    tokens = {request.ext_fields[SECURITY_TOKEN] for request in cluster.guard.requests}
    assert tokens == {"token"}
    kinds = {request.serialize_type for request in cluster.guard.requests}
    assert (SerializeType.MSGPACK in kinds) == (echo and codec == "auto")
    assert cluster.name_server.requests
    for request in cluster.name_server.requests:
        assert {ACCESS_KEY, SIGNATURE, SECURITY_TOKEN} <= set(request.ext_fields)


async def test_each_try_of_a_send_is_signed_anew() -> None:
    cluster, clock = Guarded(), ManualClock()
    cluster.guard.refuse(RequestCode.SEND_MESSAGE_V2, ResponseCode.SYSTEM_BUSY)
    client = Client(
        cluster.namesrv, network=cluster.network, clock=clock, random=Random(1), credentials=KEYS
    )
    producer = Producer(client=client)
    await producer.start()
    send = asyncio.create_task(producer.send(Message("orders", b"body")))
    await advance_async(clock, 2)
    await send
    tries = cluster.guard.of_code(RequestCode.SEND_MESSAGE_V2)
    assert [verifies(request) for request in tries] == [True, True]
    assert len({request.ext_fields["e"] for request in tries} | {"0", "1"}) == 2
    stopping = asyncio.create_task(client.stop())
    await advance_async(clock, 5)
    await stopping


async def test_without_credentials_nothing_is_added() -> None:
    cluster, clock = FakeCluster(), ManualClock()
    broker = cluster.broker("broker-a", {"orders": 1})
    async with Client(cluster.namesrv, network=cluster.network, clock=clock) as client:
        await services_of(client).peer(broker.address)
        connection = services_of(client).remoting.ready(broker.address)
        assert connection is not None
        assert not connection.by_start, "later sends come from templates"
        assert set(broker.requests[0].ext_fields) == {"skylarkmq.codec"}


async def test_a_refusal_is_an_auth_error_with_the_remark() -> None:
    cluster, clock = FakeCluster(), ManualClock()
    broker = cluster.broker("broker-a", {"orders": 1})
    remark = (
        "org.apache.rocketmq.acl.common.AclException: No default permission for topic:orders, "
        "org.apache.rocketmq.acl.plain.PlainPermissionManager.checkPerm"
    )
    broker.script = [
        RemotingCommand(1, flag=1, opaque=opaque, remark=remark) for opaque in range(1, 20)
    ]
    client = Client(cluster.namesrv, network=cluster.network, clock=clock, credentials=KEYS)
    producer = Producer(client=client)
    await producer.start()
    send = asyncio.create_task(producer.send(Message("orders", b"x")))
    await settle()
    await advance_async(clock, 3)
    with pytest.raises(AuthError, match="No default permission for topic:orders") as caught:
        await send
    assert not caught.value.retryable
    assert KEYS.secret_key not in str(caught.value)
    stopping = asyncio.create_task(producer.stop(timeout=1))
    await advance_async(clock, 60)
    await stopping
    await client.stop()


def test_queries_by_unique_id_pass_old_and_new_brokers() -> None:
    fields = {"topic": "orders", "key": "id", UNIQUE_KEY_QUERY: "true"}
    request = RemotingCommand.request(RequestCode.QUERY_MESSAGE, fields)
    Signer(KEYS).sign(request)
    assert request.version <= MQVersion.V4_9_3, "newer brokers leave the mark out for these only"
    assert verifies(request)
    assert request.ext_fields[UNIQUE_KEY_QUERY] == "true", "sent all the same"


def test_signing_again_replaces_the_signature() -> None:
    request = RemotingCommand.request(34, {"a": "1"}, b"body")
    signer = Signer(KEYS)
    signer.sign(request)
    first = request.ext_fields[SIGNATURE]
    signer.sign(request)
    assert request.ext_fields[SIGNATURE] == first
    request.ext_fields["a"] = "2"
    signer.sign(request)
    assert verifies(request)
    assert request.ext_fields[SIGNATURE] != first


def test_empty_values_do_not_go_into_a_binary_header() -> None:
    request = RemotingCommand.request(310, {"i": "", "b": "orders"})
    request.serialize_type = SerializeType.ROCKETMQ
    Signer(KEYS).sign(request)
    assert "i" not in request.ext_fields
    assert verifies(request)


def test_secrets_are_not_printed() -> None:
    shown = f"{KEYS!r} {KEYS} {Signer(KEYS)!r}"
    assert "rocketmq2" in shown
    assert "12345678" not in shown
    assert "'token'" not in shown


@pytest.mark.parametrize(("access", "secret"), [("", "s"), ("a", "")])
def test_credentials_need_both_keys(access: str, secret: str) -> None:
    with pytest.raises(ValueError, match="secret_key"):
        Credentials(access, secret)
