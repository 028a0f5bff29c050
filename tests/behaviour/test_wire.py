"""Which header codecs go over the wire: to a Java peer never ours."""

from __future__ import annotations

import asyncio

import pytest

from skylarkmq.client import Admin, Client, Message, Producer, TransactionState
from skylarkmq.client.config import Codec
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import decode_command
from skylarkmq.protocol.frame import FrameDecoder, RawFrame, SerializeType
from skylarkmq.remoting.stream import AsyncioNetwork, Stream
from tests.behaviour.cluster import Cluster
from tests.behaviour.support import Inbox, consuming
from tests.support.patience import LIMIT_S


class RecordingNetwork(AsyncioNetwork):
    """Sockets, and the frames that were written to them."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[RawFrame] = []

    async def connect(self, address: str, receiver: asyncio.Protocol) -> Stream:
        stream = await super().connect(address, receiver)
        decoder = FrameDecoder()
        write = stream.write

        def recorded(data: bytes) -> None:
            self.frames += decoder.feed(bytes(data))
            write(data)

        stream.write = recorded  # type: ignore[method-assign]
        return stream

    @property
    def kinds(self) -> set[int]:
        """Of all frames."""
        return {frame.serialize_type for frame in self.frames}

    @property
    def kinds_asked_in(self) -> set[int]:
        """Of requests. An answer to a push has the codec of the push, and what a peer is, one empty
        heartbeat asks in JSON.
        """
        commands = [decode_command(frame) for frame in self.frames]
        return {
            command.serialize_type
            for command in commands
            if not command.is_response and command.code != RequestCode.HEART_BEAT
        }


async def talk(cluster: Cluster, client: Client, topic: str, group: str) -> None:
    """Something of everything: sends, pulls, commits, locks, retries, transactions, requests."""
    async with (
        Producer(
            client=client,
            group=cluster.unique("P"),
            check=lambda _: TransactionState.COMMIT,
            trace=True,
        ) as producer,
        consuming(client, topic, group, Inbox(fail=1), orderly=True, commit_interval=0.1) as inbox,
    ):
        await producer.send(Message(topic, "one"))
        await producer.send_batch([Message(topic, "two"), Message(topic, "three")])
        await producer.send_oneway(Message(topic, "four"))
        async with producer.transaction(Message(topic, "five")):
            pass
        await inbox.wait(lambda: len({*inbox.bodies}) == 5)
    async with Producer(client=client) as producer:

        async def answer(message: object) -> None:
            await producer.reply(message, "reply")  # type: ignore[arg-type]

        other = cluster.unique("T")
        await cluster.create_topic(client, other)
        async with consuming(client, other, f"{group}_r", answer):
            await producer.request(Message(other, "request"), LIMIT_S)
    async with Admin(client=client) as admin:
        await admin.progress(group, topic)
        await admin.describe_topic(topic)
        await admin.reset_offset(group, topic, when="begin")


async def test_the_codec_is_agreed_on(cluster: Cluster, topic: str, group: str) -> None:
    """The offer is a field that Java ignores; at a frame of ours it would close the connection."""
    network = RecordingNetwork()
    async with cluster.client(network=network) as client:
        await talk(cluster, client, topic, group)
    assert b"skylarkmq.codec" in b"".join(frame.header for frame in network.frames)
    assert network.frames[0].serialize_type == SerializeType.JSON
    if cluster.is_ours:
        assert SerializeType.MSGPACK in network.kinds
    else:
        assert network.kinds == {SerializeType.JSON}


@pytest.mark.parametrize("codec", ["json", "rocketmq"])
async def test_the_codec_is_given(cluster: Cluster, topic: str, group: str, codec: Codec) -> None:
    network = RecordingNetwork()
    async with cluster.client(network=network, codec=codec) as client:
        await talk(cluster, client, topic, group)
    assert network.kinds_asked_in == {SerializeType[codec.upper()]}
    assert SerializeType.MSGPACK not in network.kinds
