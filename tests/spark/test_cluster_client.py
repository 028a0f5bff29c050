"""The blocking client against a real broker, and against peers from a script."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator

import pytest

from skylarkmq.client import Message
from skylarkmq.client.config import Credentials
from skylarkmq.client.errors import (
    AuthError,
    BrokerError,
    ConnectionFailed,
    IllegalState,
    NotFound,
    RequestTimeout,
    RocketMQError,
    RouteNotFound,
)
from skylarkmq.client.sync import Producer
from skylarkmq.client.wire.api_pull import PullStatus
from skylarkmq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.stream import AsyncioNetwork, Stream
from skylarkmq.spark.clients import client_for, close_all
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.settings import ConnectionSettings
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.support.blocking_clock import TestClock
from tests.spark.support.scripted_brokers import cluster_of, late_broker, waiting_for
from tests.spark.support.scripted_peer import CLOSE, Said, ScriptedPeer
from tests.support.patience import LIMIT_S

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture
def client(broker: SyncBroker) -> Iterator[BlockingClient]:
    found = BlockingClient(ConnectionSettings((broker.namesrv_addr,)))
    yield found
    found.close()


def test_a_topic_can_be_read_as_soon_as_its_first_message_created_it(
    broker: SyncBroker, client: BlockingClient
) -> None:
    queues = client.write_queues("new-one")
    with pytest.raises(RouteNotFound):
        client.max_offset(queues[0])
    filled(broker, "new-one", 8)
    assert sum(client.max_offsets(queues).values()) == 8


async def test_inside_an_event_loop_it_says_what_to_do(broker: SyncBroker) -> None:
    client = BlockingClient(ConnectionSettings((broker.namesrv_addr,)))
    with pytest.raises(IllegalState, match=r"(?s)a blocking call would hold it up.*to_thread"):
        client.topics()
    await asyncio.to_thread(client.topics)
    await asyncio.to_thread(client.close)


def filled(broker: SyncBroker, topic: str, count: int) -> None:
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        for number in range(count):
            producer.send(Message(topic, b"%d" % number))


def test_topics_and_queues(client: BlockingClient, topic: str) -> None:
    names = client.topics()
    assert topic in names
    assert not {"DefaultCluster", "broker-a", "TBW102"} & set(names)
    assert client.read_queues(topic) == [MessageQueue(topic, "broker-a", i) for i in range(4)]
    assert client.write_queues(topic) == client.read_queues(topic)


def test_a_topic_that_nobody_has(client: BlockingClient) -> None:
    with pytest.raises(RouteNotFound, match=r"nowhere.*does not exist.*spelling"):
        client.read_queues("nowhere")
    assert len(client.write_queues("nowhere_yet")) == 4


def test_offsets(broker: SyncBroker, client: BlockingClient, topic: str) -> None:
    filled(broker, topic, 20)
    queues = client.read_queues(topic)
    assert sum(client.max_offsets(queues).values()) == 20
    assert client.min_offsets(queues) == dict.fromkeys(queues, 0)
    assert client.max_offsets([]) == {}
    queue = queues[0]
    found = client.pull(queue, 2, 2, 1 << 20)
    assert found.status is PullStatus.FOUND
    assert (found.next_offset, found.min_offset, found.max_offset) == (4, 0, 5)
    assert client.pull(queue, 5, 2, 1 << 20).status is PullStatus.NO_NEW
    assert client.pull(queue, 9, 2, 1 << 20).status is PullStatus.OFFSET_MOVED


def test_committed_offsets_are_the_next_to_read(
    broker: SyncBroker, client: BlockingClient, topic: str
) -> None:
    filled(broker, topic, 8)
    queues = client.read_queues(topic)
    client.pull(queues[0], 0, 1, 1, group="readers")  # makes the group known
    client.pull(queues[1], 0, 1, 1, group="readers")  # and its client in this queue
    client.commit_offsets("readers", {queues[0]: 2, queues[1]: 1})
    assert client.committed_offsets("readers", queues[:1]) == {queues[0]: 2}
    assert client.committed_offsets("readers", queues[:2]) == {queues[0]: 2, queues[1]: 1}
    assert broker.lag("readers") is not None


def test_the_place_of_a_time(broker: SyncBroker, client: BlockingClient, topic: str) -> None:
    """Messages of one millisecond, and between two: the first at the time or later."""
    filled(broker, topic, 40)
    queue = client.read_queues(topic)[0]
    times = [it.store_timestamp for it in broker.messages(topic, queue.queue_id)]
    assert len(times) == 10
    for at in sorted(
        {time + step for time in times for step in (-1, 0, 1)} | {0, times[-1] + 9999}
    ):
        wanted = next((index for index, time in enumerate(times) if time >= at), len(times))
        assert client.offset_at(queue, at) == wanted


def test_a_broker_that_is_not_registered(client: BlockingClient, topic: str) -> None:
    missing = MessageQueue(topic, "broker-x", 0)
    with pytest.raises(ConnectionFailed, match=r"broker-x.*not registered"):
        client.max_offset(missing)
    failed: dict[MessageQueue, RocketMQError] = {}
    queue = client.read_queues(topic)[0]
    assert client.max_offsets([missing, queue], failed) == {queue: 0}
    assert list(failed) == [missing]


def test_a_namespace_is_put_on_and_taken_off(broker: SyncBroker) -> None:
    broker.create_topic("shop%orders", 2)
    client = BlockingClient(ConnectionSettings((broker.namesrv_addr,), namespace="shop"))
    assert client.topics() == ["orders"]
    (queue, _) = client.read_queues("orders")
    assert queue == MessageQueue("orders", "broker-a", 0)
    assert client.max_offsets([queue]) == {queue: 0}
    failed: dict[MessageQueue, RocketMQError] = {}
    missing = MessageQueue("orders", "broker-x", 0)
    assert client.max_offsets([missing, queue], failed) == {queue: 0}
    assert list(failed) == [missing]
    client.close()


def test_clients_are_kept_for_each_settings(broker: SyncBroker) -> None:
    settings = ConnectionSettings((broker.namesrv_addr,))
    first = client_for(settings)
    assert client_for(pickle.loads(pickle.dumps(settings))) is first
    assert client_for(ConnectionSettings((broker.namesrv_addr,), namespace="x")) is not first
    assert first.topics() is not None
    close_all()
    assert client_for(settings) is not first
    close_all()


# Peers from a script


def route_to(address: str, topic: str = "T", **members: str) -> RemotingCommand:
    data = TopicRouteData(
        broker_datas=[
            BrokerData(
                broker_addrs={0: address, **{int(k[1:]): v for k, v in members.items()}},
                broker_name="broker-a",
            )
        ],
        queue_datas=[
            QueueData(broker_name="broker-a", perm=6, read_queue_nums=2, write_queue_nums=2)
        ],
    )
    return RemotingCommand(0, flag=1, body=encode_body(data))


def named(broker_address: str, **members: str) -> ScriptedPeer:
    """A name server that knows topic T on one broker."""

    def script(request: RemotingCommand) -> Said:
        answer = route_to(broker_address, **members)
        answer.opaque = request.opaque
        return answer

    return ScriptedPeer(script)


def settings_of(*peers: ScriptedPeer, **other: object) -> ConnectionSettings:
    addresses = tuple(peer.address for peer in peers)
    kept = {"request_timeout_s": LIMIT_S, **other}
    return ConnectionSettings(addresses, **kept)  # type: ignore[arg-type]


@pytest.mark.slow  # waits until the time for an answer is over
def test_the_next_name_server_answers_for_one_that_does_not(broker: SyncBroker, topic: str) -> None:
    with ScriptedPeer(lambda request: CLOSE) as dead, ScriptedPeer(lambda request: None) as mute:
        addresses = (dead.address, mute.address, broker.namesrv_addr)
        client = BlockingClient(ConnectionSettings(addresses))
        assert len(client.read_queues(topic)) == 4
        asked = len(dead.requests), len(mute.requests)
        client.read_queues(topic)
        assert (len(dead.requests), len(mute.requests)) == asked
        client.close()


def test_no_name_server_answers() -> None:
    with ScriptedPeer(lambda request: None) as mute:
        with pytest.raises(RequestTimeout, match=r"no name server.*127.0.0.1.*running there"):
            BlockingClient(settings_of(mute, retries=0, request_timeout_s=0.3)).topics()
        gone = mute.address
    with pytest.raises(ConnectionFailed, match=r"refused.*running there"):
        BlockingClient(ConnectionSettings((gone,), retries=1)).topics()


def test_a_broker_where_a_name_server_is_meant(client: BlockingClient, topic: str) -> None:
    def script(request: RemotingCommand) -> RemotingCommand:
        return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")

    with ScriptedPeer(script) as peer, pytest.raises(NotFound, match="found by them"):
        BlockingClient(settings_of(peer)).topics()


def test_access_denied_names_the_options_and_no_secret() -> None:
    def script(request: RemotingCommand) -> RemotingCommand:
        remark = "org.apache.rocketmq.acl.common.AclException: No accessKey is configured"
        return request.reply(ResponseCode.SYSTEM_ERROR, remark)

    with ScriptedPeer(script) as denying, named(denying.address) as names:
        settings = settings_of(names, credentials=Credentials("AK", "very-secret"))
        client = BlockingClient(settings)
        for ask in (
            lambda: client.max_offset(QUEUE),
            lambda: client.pull(QUEUE, 0, 1, 1),
            lambda: client.commit_offsets("g", {QUEUE: 1}),
        ):
            with pytest.raises(AuthError, match=r"accessKey and secretKey.*plain_acl") as caught:
                ask()
            assert "very-secret" not in str(caught.value)
        assert len(denying.requests) == 3  # once each: asking again does not help
        assert "very-secret" not in repr(settings)
        client.close()


def test_a_slave_answers_while_the_master_is_away() -> None:
    def answers(request: RemotingCommand) -> RemotingCommand:
        return request.reply(0, None, {"offset": "7"})

    with (
        ScriptedPeer(lambda request: CLOSE) as dead,
        ScriptedPeer(answers) as slave,
        named(dead.address, b1=slave.address) as names,
    ):
        client = BlockingClient(settings_of(names))
        assert client.max_offset(QUEUE) == 7
        with pytest.raises(RocketMQError):
            client.max_offsets([QUEUE], master_only=True)
        count = len(slave.requests)
        with pytest.raises(RocketMQError):
            client.commit_offsets("g", {QUEUE: 5})
        assert len(slave.requests) == count
        client.close()


def test_a_broker_that_does_not_answer_costs_its_own_queues_alone() -> None:
    with ScriptedPeer(lambda request: None) as mute, named(mute.address) as names:
        client = BlockingClient(settings_of(names, retries=0, request_timeout_s=1.0))
        failed: dict[MessageQueue, RocketMQError] = {}
        assert client.max_offsets([QUEUE, QUEUE._replace(queue_id=1)], failed) == {}
        assert len(failed) == 2
        with pytest.raises(RocketMQError):
            client.max_offset(QUEUE)
        client.close()


def test_a_broker_that_is_gone_is_connected_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedPeer(lambda request: None) as gone:
        pass
    tried: list[str] = []
    connect = AsyncioNetwork.connect

    async def counted(self: AsyncioNetwork, address: str, receiver: asyncio.Protocol) -> Stream:
        tried.append(address)
        return await connect(self, address, receiver)

    with named(gone.address) as names:
        client = BlockingClient(settings_of(names, retries=1))
        client.route("T")
        monkeypatch.setattr(AsyncioNetwork, "connect", counted)
        failed: dict[MessageQueue, RocketMQError] = {}
        queues = [QUEUE._replace(queue_id=number) for number in range(100)]
        assert client.max_offsets(queues, failed) == {}
        assert len(failed) == 100
        assert 1 <= tried.count(gone.address) <= 2
        client.close()


def test_a_group_that_never_committed() -> None:
    def script(request: RemotingCommand) -> RemotingCommand:
        return request.reply(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group is new")

    with ScriptedPeer(script) as peer, named(peer.address) as names:
        client = BlockingClient(settings_of(names))
        assert client.committed_offsets("g", [QUEUE]) == {QUEUE: None}
        client.close()


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE])
def test_a_busy_broker_is_asked_again(code: int) -> None:
    count = 0

    def script(request: RemotingCommand) -> RemotingCommand:
        nonlocal count
        count += 1
        return request.reply(code, "busy") if count < 3 else request.reply(0, None, {"offset": "3"})

    with ScriptedPeer(script) as busy, named(busy.address) as names:
        client = BlockingClient(settings_of(names))
        assert client.max_offset(QUEUE) == 3
        client.close()


@pytest.mark.parametrize("fields", [{}, {"offset": "x"}, {"offset": str(2**70)}])
def test_answers_that_cannot_be_read(fields: dict[str, str]) -> None:
    with (
        ScriptedPeer(lambda request: request.reply(0, None, fields)) as peer,
        named(peer.address) as names,
    ):
        client = BlockingClient(settings_of(names, retries=0))
        with pytest.raises(RocketMQError, match="cannot be read"):
            client.max_offset(QUEUE)
        client.close()


def test_a_refusal_names_who_refused_and_why() -> None:
    def script(request: RemotingCommand) -> RemotingCommand:
        assert request.code == RequestCode.PULL_MESSAGE
        return request.reply(ResponseCode.NO_PERMISSION, "the topic[T] pulling is forbidden")

    with ScriptedPeer(script) as peer, named(peer.address) as names:
        client = BlockingClient(settings_of(names))
        with pytest.raises(BrokerError, match=f"{peer.address}.*NO_PERMISSION.*forbidden"):
            client.pull(QUEUE, 0, 1, 1)
        client.close()


def test_a_start_waits_for_a_broker_to_register(caplog: pytest.LogCaptureFixture) -> None:
    clock = TestClock()
    with late_broker() as names:
        client = BlockingClient(ConnectionSettings((names.address,)), clock)
        client.await_start()
        assert clock.slept == [0.5]
        client.await_start()  # once is enough
        assert len(names.requests) == 2
        assert [record.getMessage() for record in caplog.records] == [waiting_for(names)]
        client.close()


@pytest.mark.parametrize("start_timeout_s", [30.0, 0.2, 0.0])
def test_a_start_ends_with_an_error_where_no_name_server_has_come(start_timeout_s: float) -> None:
    with ScriptedPeer(lambda request: None) as peer:
        gone = peer.address
    clock = TestClock()
    client = BlockingClient(ConnectionSettings((gone,), start_timeout_s=start_timeout_s), clock)
    with pytest.raises(ConnectionFailed, match=f"^no name server answered: {gone}: [a-z ]+[.] Is"):
        client.await_start()
    assert sum(clock.slept) == pytest.approx(start_timeout_s)
    client.close()


@pytest.mark.parametrize("start_timeout_s", [2.0, 0.0])
def test_a_start_goes_on_without_a_broker_where_a_name_server_answers(
    start_timeout_s: float,
) -> None:
    clock = TestClock()
    with ScriptedPeer(lambda request: cluster_of(request, ())) as names:
        settings = ConnectionSettings((names.address,), start_timeout_s=start_timeout_s)
        client = BlockingClient(settings, clock)
        client.await_start()
        assert sum(clock.slept) == start_timeout_s
        client.close()


def test_a_start_does_not_wait_for_a_host_that_does_not_exist() -> None:
    clock = TestClock()
    client = BlockingClient(ConnectionSettings(("no such host:1",)), clock)
    with pytest.raises(ConnectionFailed, match="no such host"):
        client.await_start()
    assert clock.slept == []
    client.close()
