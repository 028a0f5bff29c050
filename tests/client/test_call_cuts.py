"""A connection cut at any byte of any request, or of its answer: told at once, done at most once.

Sends have a file of their own (test_send_cuts.py), because they are tried again by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, NamedTuple

import pytest

from skylarkmq.client.config import Codec
from skylarkmq.client.errors import ConnectionFailed
from skylarkmq.client.wire.api_admin import AdminApi
from skylarkmq.client.wire.api_consumer import ConsumerApi, LockApi
from skylarkmq.client.wire.api_pull import PullRequest, pull
from skylarkmq.client.wire.api_send import send_message_back
from skylarkmq.client.wire.nameserver import NameServers
from skylarkmq.client.wire.pushes import PushRouter
from skylarkmq.protocol.bodies.group import HeartbeatData
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import decode_command
from skylarkmq.protocol.frame import FrameDecoder
from skylarkmq.protocol.headers.group import UnregisterClientRequestHeader
from skylarkmq.protocol.headers.pull import GetMaxOffsetRequestHeader, GetMaxOffsetResponseHeader
from skylarkmq.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from skylarkmq.protocol.headers.topic import CreateTopicRequestHeader
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.client import RemotingClient
from tests.support.fake_cluster import FakeCluster
from tests.support.manual_clock import ManualClock, advance_async, settle
from tests.support.scripted_stream import ScriptedNetwork, ScriptedPeer

ADDRESS = "peer:10911"
QUEUE = MessageQueue("orders", "broker-a", 0)
TIMEOUT_S = 3.0
OFFSET = {"offset": "7"}
MEMBERS = b'{"consumerIdList":["one","two"]}'
LOCKED = b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":0,"topic":"orders"}]}'
ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"a:1"},"brokerName":"broker-a","cluster":"c"}],'
    b'"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,'
    b'"topicSysFlag":0,"writeQueueNums":4}]}'
)
PULLED = {
    "suggestWhichBrokerId": "0",
    "nextBeginOffset": "5",
    "minOffset": "0",
    "maxOffset": "9",
}


class Kind(NamedTuple):
    """A request: how it is made, and the answer to it."""

    code: int
    make: Callable[[RemotingClient], Awaitable[Any]]
    fields: dict[str, str] = {}  # noqa: RUF012
    body: bytes = b""


def consumer_api(call: Callable[[ConsumerApi], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    return lambda remoting: call(ConsumerApi(remoting))


def pulling(remoting: RemotingClient) -> Awaitable[Any]:
    wish = PullRequest(
        group="g", queue=QUEUE, offset=5, max_count=32, sub_version=1, commit_offset=3,
        suspend_ms=0,
    )  # fmt: skip
    return pull(remoting, ADDRESS, wish, TIMEOUT_S)


def sending_back(remoting: RemotingClient) -> Awaitable[Any]:
    header = ConsumerSendMsgBackRequestHeader(offset=99, group="g", delay_level=3)
    return send_message_back(remoting, ADDRESS, header, TIMEOUT_S)


def routing(remoting: RemotingClient) -> Awaitable[Any]:
    clock = remoting._clock
    return NameServers(remoting, [ADDRESS], TIMEOUT_S, Random(1), clock).route("orders")


async def creating(remoting: RemotingClient) -> int:
    header = CreateTopicRequestHeader(
        topic="orders", default_topic="TBW102", read_queue_nums=4, write_queue_nums=4, perm=6,
        topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
    )  # fmt: skip
    return (await AdminApi(remoting, TIMEOUT_S).call(ADDRESS, 17, header)).code


async def counting(remoting: RemotingClient) -> int:
    header = GetMaxOffsetRequestHeader(topic="orders", queue_id=0)
    api = AdminApi(remoting, TIMEOUT_S)
    return (await api.fields(GetMaxOffsetResponseHeader, ADDRESS, 30, header)).offset


HEARTBEAT = HeartbeatData(client_id="c")
FAREWELL = UnregisterClientRequestHeader(client_id="c", consumer_group="g")
KINDS = {
    "heartbeat": Kind(34, consumer_api(lambda a: a.heartbeat(ADDRESS, HEARTBEAT, 3.0))),
    "farewell": Kind(35, consumer_api(lambda a: a.unregister(ADDRESS, FAREWELL, 3.0))),
    "members": Kind(38, consumer_api(lambda a: a.consumer_ids(ADDRESS, "g", 3.0)), {}, MEMBERS),
    "committed": Kind(14, consumer_api(lambda a: a.query_offset(ADDRESS, "g", QUEUE, 3.0)), OFFSET),
    "commit": Kind(15, consumer_api(lambda a: a.update_offset(ADDRESS, "g", QUEUE, 7, 3.0))),
    "max": Kind(30, consumer_api(lambda a: a.max_offset(ADDRESS, QUEUE, 3.0)), OFFSET),
    "min": Kind(31, consumer_api(lambda a: a.min_offset(ADDRESS, QUEUE, 3.0)), OFFSET),
    "search": Kind(29, consumer_api(lambda a: a.search_offset(ADDRESS, QUEUE, 1, 3.0)), OFFSET),
    "lock": Kind(41, lambda r: LockApi(r, "c", "g").lock(ADDRESS, [QUEUE], 3.0), {}, LOCKED),
    "unlock": Kind(42, lambda r: LockApi(r, "c", "g").unlock(ADDRESS, [QUEUE], 3.0)),
    "pull": Kind(11, pulling, PULLED),
    "send back": Kind(36, sending_back),
    "admin: create": Kind(17, creating),
    "admin: count": Kind(30, counting, OFFSET),
    "route": Kind(105, routing, {}, ROUTE),
}


class Bench:
    """A peer that counts what it does, and one client's connections to it."""

    def __init__(self, kind: Kind, codec: Codec) -> None:
        self.clock = ManualClock()
        self.network = ScriptedNetwork()
        self.peer: ScriptedPeer = self.network.listen(ADDRESS)
        self.done_count = 0
        self.kind = kind
        self.peer.on(kind.code, self._answer)
        self.remoting = RemotingClient(self.network, self.clock, Random(1), codec, lambda *_: None)

    def _answer(self, request: RemotingCommand) -> RemotingCommand:
        self.done_count += 1
        code = 19 if self.kind.code == RequestCode.PULL_MESSAGE else 0
        echo = {k: v for k, v in request.ext_fields.items() if k == "skylarkmq.codec"}
        return request.reply(code, ext_fields={**self.kind.fields, **echo}, body=self.kind.body)

    def start(self) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.kind.make(self.remoting))  # type: ignore[return-value]

    async def stop(self) -> None:
        await self.remoting.stop()
        assert self.clock.pending_count == 0, "timers are left over"


async def sizes(kind: Kind, codec: Codec) -> tuple[int, int, object]:
    """Bytes of the request and of the answer, and what the call comes to when nothing is cut."""
    it = Bench(kind, codec)
    outcome = await it.start()
    (stream,) = it.peer.streams
    written = sum(map(len, stream.writes)), stream.said_size
    await it.stop()
    return *written, outcome


async def check_cut(kind: Kind, codec: Codec, cut: str, position: int, expected: object) -> None:
    it = Bench(kind, codec)
    setattr(it.peer, cut, position)
    call = it.start()
    await settle(12)
    where = f"{cut} {position}"
    assert call.done(), f"{where}: hangs"
    error = call.exception()
    assert isinstance(error, ConnectionFailed), where
    assert error.reached, f"{where}: it may have been done"
    assert error.retryable
    assert it.done_count == (0 if cut == "cut_request_at" else 1), where
    setattr(it.peer, cut, None)
    await advance_async(it.clock, 1.0)
    assert await it.start() == expected, f"{where}: the next call is whole"
    await it.stop()


def some_of(size: int, first: int) -> list[int]:
    """The positions round both ends, and some between."""
    return sorted({*range(first, min(size, 10)), *range(first, size, 29), *range(size - 6, size)})


@pytest.mark.parametrize("name", KINDS)
async def test_cuts_at_some_bytes(name: str) -> None:
    request_size, answer_size, expected = await sizes(KINDS[name], "auto")
    for position in some_of(request_size, 1):
        await check_cut(KINDS[name], "auto", "cut_request_at", position, expected)
    for position in some_of(answer_size, 0):
        await check_cut(KINDS[name], "auto", "cut_answer_at", position, expected)


@pytest.mark.fault
@pytest.mark.parametrize("codec", ["auto", "json", "rocketmq"])
@pytest.mark.parametrize("name", KINDS)
async def test_cuts_at_every_byte(name: str, codec: Codec) -> None:
    request_size, answer_size, expected = await sizes(KINDS[name], codec)
    for position in range(1, request_size):
        await check_cut(KINDS[name], codec, "cut_request_at", position, expected)
    for position in range(answer_size):
        await check_cut(KINDS[name], codec, "cut_answer_at", position, expected)


# Pushes of a broker


async def test_a_push_cut_at_any_byte_is_handled_once_or_not_at_all() -> None:
    for position in (*range(60), None):
        cluster, clock, router = FakeCluster(), ManualClock(), PushRouter()
        broker = cluster.broker("broker-a", {"orders": 1})
        handled: list[str] = []

        async def handle(_: object, push: RemotingCommand, log: list[str] = handled) -> Any:
            log.append(push.ext_fields["correlation"])
            return push.reply(0, body=b"heard")

        router.on(326, handle)
        remoting = RemotingClient(cluster.network, clock, Random(1), "json", router.take)
        await remoting.connection(broker.address)
        (stream,) = broker.streams
        broker.cut_answer_at = position
        stream.say(RemotingCommand.request(326, {"correlation": "1"}, b"a reply"))
        await settle(12)
        whole = position is None
        assert handled == (["1"] if whole else []), f"cut at {position}"
        assert (remoting.ready(broker.address) is not None) == whole
        await router.stop()
        await remoting.stop()
        assert clock.pending_count == 0


async def test_a_cut_while_a_push_is_handled_loses_the_answer_and_nothing_else() -> None:
    cluster, clock, router = FakeCluster(), ManualClock(), PushRouter()
    broker = cluster.broker("broker-a", {"orders": 1})
    go_on = asyncio.Event()

    async def handle(_: object, push: RemotingCommand) -> RemotingCommand:
        await go_on.wait()
        return push.reply(0)

    router.on(326, handle)
    remoting = RemotingClient(cluster.network, clock, Random(1), "json", router.take)
    await remoting.connection(broker.address)
    (stream,) = broker.streams
    stream.say(RemotingCommand.request(326))
    await settle()
    broker.lose_all()
    await settle()
    go_on.set()
    await settle()
    assert stream.writes == []
    await router.stop()
    await remoting.stop()


async def test_answers_to_pushes_carry_the_opaque_of_the_push() -> None:
    cluster, router = FakeCluster(), PushRouter()
    broker = cluster.broker("broker-a", {})
    router.on(39, lambda _, push: push.reply(0, body=b"at once"))
    remoting = RemotingClient(cluster.network, ManualClock(), Random(1), "json", router.take)
    await remoting.connection(broker.address)
    (stream,) = broker.streams
    stream.say(RemotingCommand.request(39, opaque=4711))
    await settle()
    (frame,) = FrameDecoder().feed(b"".join(stream.writes))
    answer = decode_command(frame)
    assert (answer.opaque, answer.is_response, answer.body) == (4711, True, b"at once")
    await remoting.stop()
