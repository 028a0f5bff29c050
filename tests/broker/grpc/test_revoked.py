"""A client of RocketMQ 5 whose account goes while it waits: over sockets, with grpcio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.controller import BrokerController
from skylarkmq.protocol.bodies.group import SubscriptionGroupConfig
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.v5 import schema_pb2 as v5
from skylarkmq.protocol.v5.codes import Code
from tests.broker.access.test_changes_under_way import change
from tests.broker.access.test_rpc_control import signed
from tests.broker.grpc.rig import METADATA, Client
from tests.broker.grpc.session_rig import resource, subscription
from tests.support.live_broker import live_broker
from tests.support.patience import until

pytestmark = pytest.mark.timing

TOPIC, GROUP, SECRET = "orders", "readers", "secret-of-reader"
ROOT = "accounts:\n- {accessKey: administrator, secretKey: secret-of-root, admin: true}\n"


def account(
    name: str, rights: str = f"topicPerms: [{TOPIC}=SUB], groupPerms: [{GROUP}=SUB]"
) -> str:
    return f"- {{accessKey: {name}, secretKey: {SECRET}, {rights}}}\n"


WHITE = "globalWhiteRemoteAddresses: [127.0.0.1]\n"
BOTH = ROOT + account("reader-one") + account("reader-two")


class Waiting:
    """A client with a stream of telemetry and a receive that waits."""

    def __init__(self, broker: BrokerController, channel: Any, name: str) -> None:
        key = signed(name, SECRET) if name else {}
        more = (("x-mq-client-id", f"client-of-{name}"), *METADATA[1:], *key.items())
        self.client = Client(channel, more)
        self._broker = broker

    async def begin(self) -> None:
        self.stream = self.client.telemetry()
        await self.stream.write(v5.TelemetryCommand(settings=subscription(TOPIC, group=GROUP)))
        assert (await self.stream.read()).status.code == Code.OK
        waiting = self._broker.parts.pop.receiver.waiting_count
        self.receive = asyncio.ensure_future(self.take())
        await until(lambda: self._broker.parts.pop.receiver.waiting_count > waiting, "the receive")

    async def take(self) -> list[v5.ReceiveMessageResponse]:
        request = v5.ReceiveMessageRequest(group=resource(GROUP), batch_size=4, auto_renew=True)
        request.message_queue.topic.CopyFrom(resource(TOPIC))
        request.message_queue.id = -1
        request.long_polling_timeout.FromSeconds(60)
        return [part async for part in self.client.receive(request, timeout=90)]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerController]:
    file = tmp_path / "conf" / "plain_acl.yml"
    file.parent.mkdir()
    file.write_text(WHITE + BOTH)
    async with live_broker(
        tmp_path / "store", acl_enable=True, rocketmq_home=tmp_path, grpc_listen_port=0
    ) as made:
        made.parts.topics.update(TopicConfig(topic_name=TOPIC))
        made.parts.groups.update(SubscriptionGroupConfig(group_name=GROUP))
        yield made


@pytest.mark.parametrize(
    ("before", "after", "name", "code"),
    [
        (BOTH, BOTH.replace(account("reader-one"), ""), "reader-one", Code.UNAUTHORIZED),
        (
            BOTH,
            BOTH.replace(account("reader-one"), account("reader-one", "admin: false")),
            "reader-one",
            Code.FORBIDDEN,
        ),
        (WHITE + BOTH, BOTH, "", Code.UNAUTHORIZED),
    ],
    ids=["removed", "rights", "white list"],
)
async def test_its_receive_its_stream_and_its_membership_end(
    broker: BrokerController, tmp_path: Path, before: str, after: str, name: str, code: int
) -> None:
    file = tmp_path / "conf" / "plain_acl.yml"
    if before != WHITE + BOTH:
        await change(broker, file, before)
    assert broker.grpc_address is not None
    async with grpc.aio.insecure_channel(f"127.0.0.1:{broker.grpc_address[1]}") as channel:
        goes = Waiting(broker, channel, name)
        stays = Waiting(broker, channel, "reader-two")
        await goes.begin()
        if name:
            await stays.begin()
        parts = broker.parts
        await change(broker, file, after)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await goes.receive
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert parts.pop.receiver.waiting_count == bool(name), (
            "the other one waits on, by the same socket"
        )
        await until(goes.stream.done, "the end of its stream")
        ids = {each.client_id for each in parts.consumers.clients(GROUP).values()}
        assert ids == ({"client-of-reader-two"} if name else set())
        (refused,) = [each for each in await goes.take() if each.HasField("status")]
        assert refused.status.code == code
        if name:
            assert not stays.stream.done()
            stays.receive.cancel()
