"""A drain: what moves, what it waits for, and that nobody notices the stop that follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.draining import draining
from skylarkmq.broker.draining.draining import Draining, DrainOrder, DrainSources, Phase
from skylarkmq.broker.replication.failover.replica_events import State
from skylarkmq.client import (
    Admin,
    Client,
    Consumer,
    Message,
    Producer,
    ReceivedMessage,
    SimpleConsumer,
)
from skylarkmq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from tests.support.live_broker import PATIENT, broker_config, live_broker, namesrv_of
from tests.support.manual_clock import ManualClock, advance_async, settle
from tests.support.patience import LIMIT_S, until
from tests.support.raw_client import RawClient

READ, BOTH = 4, 6


def route(*brokers: str, perm: int = BOTH, broker_id: int = 0) -> TopicRouteData:
    return TopicRouteData(
        broker_datas=[
            BrokerData(broker_addrs={broker_id: "10.0.0.1:10911"}, broker_name=name)
            for name in brokers
        ],
        queue_datas=[
            QueueData(broker_name=name, perm=perm, read_queue_nums=4, write_queue_nums=4)
            for name in brokers
        ],
    )


class NameServers:
    """What the drain tells name servers, and what they say."""

    def __init__(self) -> None:
        self.is_master = True
        self.withheld: dict[str, int] = {}
        self.behind: list[str] = []
        self.known: dict[str, list[TopicRouteData | None]] = {}

    def withhold(self, permissions: Mapping[str, int]) -> None:
        self.withheld = dict(permissions)

    def not_told(self) -> list[str]:
        return self.behind

    async def routes(self, topic: str) -> list[TopicRouteData | None]:
        return self.known.get(topic, [route("broker-a", "broker-b")])


class Holding:
    """Held pulls, by topic."""

    def __init__(self) -> None:
        self.pulls: dict[str, int] = {}

    @property
    def count(self) -> int:
        return sum(self.pulls.values())

    def topics(self) -> set[str]:
        return set(self.pulls)

    def wake_topic(self, topic: str) -> None:
        del self.pulls[topic]


@dataclass
class Rig:
    """`broker-a` with the topics `orders` and `flights`, which `broker-b` takes as well."""

    names: NameServers = field(default_factory=NameServers)
    clock: ManualClock = field(default_factory=ManualClock)
    holding: Holding = field(default_factory=Holding)
    topics: dict[str, TopicConfig] = field(
        default_factory=lambda: {
            name: TopicConfig(topic_name=name, read_queue_nums=2, write_queue_nums=2, perm=BOTH)
            for name in ("orders", "flights", "TBW102", "broker-a")
        }
    )
    sent: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(count=0))
    ends: dict[int, int] = field(default_factory=dict)
    offsets: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    members: dict[str, Any] = field(default_factory=dict)
    polls: dict[str, int] = field(default_factory=dict)
    replica: Any = None

    def __post_init__(self) -> None:
        self.names.known["broker-a"] = [route("broker-a")]
        sources: Any = DrainSources(
            "broker-a",
            "DefaultCluster",
            SimpleNamespace(table=self.topics, get=self.topics.get),  # type: ignore[arg-type]
            SimpleNamespace(max_offset=self._end),  # type: ignore[arg-type]
            SimpleNamespace(table=self.offsets),  # type: ignore[arg-type]
            SimpleNamespace(group=self.members.get),  # type: ignore[arg-type]
            self.holding,  # type: ignore[arg-type]
            SimpleNamespace(end_polls_of=self._end_polls_of),  # type: ignore[arg-type]
            SimpleNamespace(topics_in={("orders", "normal"): self.sent}),  # type: ignore[arg-type]
            lambda: self.replica,
        )
        self.drain = Draining(sources, self.names, self.clock)

    def _end_polls_of(self, topics: Collection[str]) -> int:
        return sum(self.polls.pop(topic) for topic in [*self.polls] if topic in topics)

    def _end(self, _: str, queue_id: int) -> int:
        return self.ends.get(queue_id, 0)

    async def start(self, **order: Any) -> None:
        self.drain.start(DrainOrder(**order))
        await settle()

    async def after(self, seconds: float) -> Phase:
        await advance_async(self.clock, seconds)
        return self.drain.state.phase

    @property
    def waits(self) -> str:
        return "; ".join(self.drain.state.waits_for)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    await made.drain.stop()


async def test_first_producers_go_then_consumers(rig: Rig) -> None:
    await rig.start()
    assert rig.names.withheld == {"orders": READ, "flights": READ, "TBW102": READ}
    assert rig.drain.state.moved == 3
    assert await rig.after(29.0) is Phase.PRODUCERS
    assert await rig.after(2.0) is Phase.CONSUMERS
    assert set(rig.names.withheld.values()) == {0}
    assert await rig.after(28.0) is Phase.CONSUMERS
    assert await rig.after(4.0) is Phase.DRAINED
    assert (rig.drain.state.stays, rig.drain.state.why) == ((), "")


async def test_whoever_still_sends_is_waited_for(rig: Rig) -> None:
    await rig.start(refresh_s=5.0)
    for _ in range(20):
        rig.sent.count += 1
        assert await rig.after(1.0) is Phase.PRODUCERS
    assert "producers still sent" in rig.waits
    assert await rig.after(5.0) is Phase.CONSUMERS


def group_member(**changes: Any) -> SimpleNamespace:
    """The group `g` with a member, which subscribes to `orders`."""
    values = {"channels": {1: 1}, "message_model": "CLUSTERING", "subscriptions": {"orders": 1}}
    return SimpleNamespace(**{"group": "g", "pops": False, **values, **changes})


@pytest.mark.parametrize("separator", ["_", "+"])
@pytest.mark.parametrize("pops", [True, False])
async def test_what_waits_for_another_try_is_waited_for(
    rig: Rig, pops: bool, separator: str
) -> None:
    """By a group that pops: the topic of its tries is no other broker's."""
    rig.members["g"] = group_member(pops=pops)
    retries = f"%RETRY%g{separator}orders"
    rig.topics[retries] = TopicConfig(topic_name=retries, read_queue_nums=1, write_queue_nums=1)
    rig.offsets["orders", "g"] = {0: 1}
    rig.offsets[retries, "g"] = {0: 0}
    rig.ends[0] = 1
    await rig.start(refresh_s=1.0)
    assert await rig.after(60.0) is (Phase.PRODUCERS if pops else Phase.DRAINED)
    assert rig.waits == (f"group g has not confirmed 1 messages of {retries}" if pops else "")


async def test_what_groups_have_not_confirmed_is_waited_for(rig: Rig) -> None:
    member = group_member()
    rig.members["g"] = member
    rig.offsets["orders", "g"] = {0: 3}
    rig.ends.update({0: 5, 1: 1})
    await rig.start(refresh_s=1.0)
    assert await rig.after(60.0) is Phase.PRODUCERS
    assert rig.waits == "group g has not confirmed 3 messages of orders"
    rig.offsets["orders", "g"] = {0: 5, 1: 1}
    assert await rig.after(1.0) is Phase.CONSUMERS


@pytest.mark.parametrize(
    "changes",
    [{"channels": {}}, {"message_model": "BROADCASTING"}, {"subscriptions": {}}],
)
async def test_a_group_that_reads_nothing_here_is_not_waited_for(
    rig: Rig, changes: dict[str, Any]
) -> None:
    rig.members["g"] = group_member(**changes)
    rig.offsets["orders", "g"] = {0: 3}
    rig.ends[0] = 5
    await rig.start(refresh_s=1.0)
    assert await rig.after(60.0) is Phase.DRAINED


async def test_held_pulls_are_answered_until_none_comes_again(rig: Rig) -> None:
    await rig.start(refresh_s=0.0)
    await rig.after(4.0)
    for _ in range(10):
        rig.holding.pulls = {"orders": 2, "broker-a": 1}
        assert await rig.after(1.0) is Phase.CONSUMERS
        assert rig.holding.pulls == {"broker-a": 1}, "of what moves alone"
    assert await rig.after(4.0) is Phase.DRAINED


async def test_receives_of_groups_that_pop_are_answered_until_none_comes_again(rig: Rig) -> None:
    await rig.start(refresh_s=0.0)
    await rig.after(4.0)
    for _ in range(10):
        rig.polls = {"orders": 2, "broker-a": 1}
        assert await rig.after(1.0) is Phase.CONSUMERS
        assert rig.polls == {"broker-a": 1}, "of what moves alone"
        assert rig.waits == "consumers still waited for messages: 2 requests"
    assert await rig.after(4.0) is Phase.DRAINED


async def test_a_topic_that_nobody_else_takes_stays(rig: Rig) -> None:
    rig.names.known["flights"] = [route("broker-a", "broker-b", perm=READ)]
    await rig.start()
    assert rig.names.withheld == {"orders": READ, "TBW102": READ}
    assert rig.drain.state.stays == ("flights",)


async def test_an_ordered_topic_stays_with_its_keys(rig: Rig) -> None:
    rig.topics["flights"] = TopicConfig(
        topic_name="flights", read_queue_nums=2, write_queue_nums=2, perm=BOTH, order=True
    )
    await rig.start()
    assert rig.drain.state.stays == ("flights",)


@pytest.mark.parametrize(
    "alone",
    [
        [route("broker-a")],
        [None],
        [route("broker-a", "broker-b"), route("broker-a")],  # one of two name servers
        [route("broker-b", broker_id=1)],  # a slave alone
        [route("broker-c")],  # which leaves as well
    ],
)
async def test_a_broker_that_is_alone_cannot_be_drained(
    rig: Rig, alone: list[TopicRouteData | None]
) -> None:
    for topic in rig.topics:
        rig.names.known[topic] = alone
    await rig.start(leaving=frozenset({"broker-c"}))
    assert rig.drain.state.phase is Phase.IMPOSSIBLE
    assert "clients would have nowhere to go" in rig.drain.state.why
    assert rig.drain.state.stays == ("flights", "orders")
    assert rig.names.withheld == {}
    for topic in rig.topics:
        del rig.names.known[topic]
    await rig.start()
    assert rig.drain.state.phase is Phase.PRODUCERS, "it may be asked again"


async def test_without_name_servers_nothing_is_done(rig: Rig) -> None:
    for topic in rig.topics:
        rig.names.known[topic] = []
    await rig.start()
    assert "no name server answers" in rig.drain.state.why


async def test_two_that_drain_at_once_do_not_leave_a_topic_without_a_broker(rig: Rig) -> None:
    rig.names.behind = ["ns:9876"]
    await rig.start()
    assert rig.waits == "name server ns:9876 is told"
    rig.names.known["orders"] = [route("broker-a", "broker-b", perm=READ)]  # the other was quicker
    rig.names.behind = []
    await rig.after(1.0)
    assert rig.names.withheld == {"flights": READ, "TBW102": READ}
    assert await rig.after(31.0) is Phase.CONSUMERS
    assert rig.drain.state.stays == ("orders",)


async def test_the_way_back(rig: Rig) -> None:
    await rig.start()
    await rig.after(100.0)
    await rig.drain.undo()
    assert (rig.drain.state.phase, rig.names.withheld) == (Phase.SERVING, {})
    await rig.start()
    assert rig.drain.state.phase is Phase.PRODUCERS


async def test_who_is_no_master_has_nothing_to_move(rig: Rig) -> None:
    rig.names.is_master = False
    await rig.start()
    assert rig.drain.state.phase is Phase.DRAINED
    assert "no master" in rig.drain.state.why
    assert rig.names.withheld == {}


class Replica:
    def __init__(self, state: State, error: RemoteProtocolError | None = None) -> None:
        self.state, self.error = state, error
        self.switched: list[str] = []

    def status(self) -> SimpleNamespace:
        return SimpleNamespace(state=self.state)

    async def switch_over(self, target: str) -> None:
        self.switched.append(target)
        if self.error is not None:
            raise self.error


async def test_a_replica_that_leads_hands_over(rig: Rig) -> None:
    rig.replica = Replica(State.MASTER)
    await rig.start()
    assert (rig.drain.state.phase, rig.replica.switched) == (Phase.DRAINED, [""])
    assert (rig.drain.state.stays, rig.drain.state.stay_count) == ((), 0), "the others have all"
    rig.replica = Replica(State.MASTER, RemoteProtocolError(14, "nobody is in sync"))
    await rig.drain.undo()
    await rig.start()
    assert rig.drain.state.phase is Phase.IMPOSSIBLE
    assert "nobody is in sync" in rig.drain.state.why


async def test_a_replica_that_follows_is_drained(rig: Rig) -> None:
    rig.replica = Replica(State.FOLLOWER)
    await rig.start()
    assert (rig.drain.state.phase, rig.replica.switched) == (Phase.DRAINED, [])


async def test_what_fails_is_told(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.holding.topics = lambda: 1 / 0  # type: ignore[assignment,return-value]
    await rig.start(refresh_s=0.0)
    await rig.after(10.0)
    assert rig.drain.state.phase is Phase.IMPOSSIBLE
    assert "ZeroDivisionError" in rig.drain.state.why


# With brokers and the SDK's clients


class Traffic:
    """One producer that never rests, one consumer, and what happened to them."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.sent: list[tuple[bytes, str]] = []  # body, broker
        self.got: list[bytes] = []
        self.errors: list[Exception] = []
        self.is_over = False

    async def send(self) -> None:
        async with Producer(client=self.client, retries=0) as producer:
            while not self.is_over:
                body = b"%d" % len(self.sent)
                try:
                    result = await producer.send(Message("orders", body))
                    self.sent.append((body, result.queue.broker_name))
                except Exception as error:
                    self.errors.append(error)
                await asyncio.sleep(0.002)

    async def take(self, message: ReceivedMessage) -> None:
        self.got.append(message.body)

    def sent_to(self, broker: str) -> list[bytes]:
        return [body for body, name in self.sent if name == broker]


@asynccontextmanager
async def two_shards(root: Path) -> AsyncIterator[tuple[BrokerController, BrokerController]]:
    """`broker-a` with the name server, and `broker-b`; both have `orders`."""
    async with live_broker(root / "a") as first:
        second = BrokerController(
            broker_config(
                root / "b", broker_name="broker-b", namesrv_addr=namesrv_of(first), **PATIENT
            )
        )
        await second.start()
        try:
            async with Admin(namesrv_addr=namesrv_of(first)) as admin:
                await until(lambda: second.registration and not second.registration.why_unknown)
                await admin.create_topic("orders", queues=2)
            yield first, second
        finally:
            if second.parts.store.state.name == "RUNNING":
                await second.stop()


async def page(broker: BrokerController, method: str, path: str) -> tuple[int, str]:
    assert broker.metrics_address is not None
    reader, writer = await asyncio.open_connection(*broker.metrics_address)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body.decode()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "QUIET_S", 0.3)
    monkeypatch.setattr(draining, "LOOK_EVERY_S", 0.05)


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.usefixtures("quick")
async def test_no_client_notices_a_broker_that_leaves_and_comes_back(tmp_path: Path) -> None:
    async with (
        two_shards(tmp_path) as (first, second),
        Client(namesrv_of(first), route_refresh=0.1) as client,
        Consumer("orders", group="g", client=client, commit_interval=0.1) as consumer,
    ):
        traffic = Traffic(client)
        running = asyncio.create_task(consumer.run(traffic.take))
        sending = asyncio.create_task(traffic.send())
        await until(lambda: traffic.sent_to("broker-a") and traffic.sent_to("broker-b"))

        async def is_drained() -> bool:
            return (await page(second, "POST", "/drainz?wait=1&refresh=0.5"))[0] == 200

        await until(is_drained)
        assert traffic.sent_to("broker-b")
        assert (await page(second, "GET", "/drainz"))[0] == 200
        sent_before = len(traffic.sent)
        await second.stop()
        await until(lambda: len(traffic.sent) > sent_before + 50)
        again = BrokerController(second.config)
        await again.start()
        count = len(traffic.sent_to("broker-b"))
        await until(lambda: len(traffic.sent_to("broker-b")) > count, "clients come back")
        traffic.is_over = True
        await sending
        await until(lambda: len(traffic.got) >= len(traffic.sent))
        assert traffic.errors == []
        assert sorted(traffic.got) == sorted(body for body, _ in traffic.sent), "each one once"
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await again.stop()


@pytest.mark.timing
@pytest.mark.usefixtures("quick")
async def test_who_pops_and_has_not_heard_of_it_is_waited_for(tmp_path: Path) -> None:
    async with (
        two_shards(tmp_path) as (first, second),
        Client(namesrv_of(first), route_refresh=0.1) as client,
        Client(namesrv_of(first), route_refresh=3600) as slow,
        SimpleConsumer("orders", group="g", client=client, await_duration=LIMIT_S) as here,
    ):
        receiving = asyncio.create_task(here.receive())
        async with SimpleConsumer("orders", group="h", client=slow, await_duration=LIMIT_S) as late:
            waiting = asyncio.create_task(late.receive())
            await until(lambda: second.parts.pop.receiver.waiting_count == 2)
            await page(second, "POST", "/drainz?refresh=0.5")

            async def waits_for_one() -> bool:
                return (
                    "waited for messages: 1 requests" in (await page(second, "GET", "/drainz"))[1]
                )

            await until(waits_for_one, "the others have gone")
            waiting.cancel()

        async def is_drained() -> bool:
            return (await page(second, "GET", "/drainz"))[0] == 200

        await until(is_drained)
        assert second.parts.pop.receiver.waiting_count == 0
        await second.stop()
        async with Producer(client=client) as producer:
            await producer.send(Message("orders", b"x"))
        (message,) = await receiving
        await here.ack(message)


@pytest.mark.timing
@pytest.mark.usefixtures("quick")
async def test_name_servers_and_topics_that_change_do_not_undo_it(tmp_path: Path) -> None:
    async with two_shards(tmp_path) as (first, second):
        assert (await page(second, "POST", "/drainz?refresh=60"))[0] == 202

        def perm(topic: str) -> int | None:
            assert first.namesrv is not None
            found = first.namesrv.routes.topic_route(topic)
            queues = [] if found is None else found.queue_datas
            return next((q.perm for q in queues if q.broker_name == "broker-b"), None)

        await until(lambda: perm("orders") == READ)
        async with Admin(namesrv_addr=namesrv_of(first)) as admin:
            await admin.update_topic("orders", queues=3)
        assert first.namesrv is not None
        first.namesrv.routes.forget_topic("orders", {"broker-b"})  # as one that has started anew
        second.register_again()
        second.parts.topics.tell_again()
        await until(lambda: perm("orders") is not None)
        assert perm("orders") == READ
        assert (await page(second, "DELETE", "/drainz"))[0] == 200
        await until(lambda: perm("orders") == BOTH)


async def test_a_broker_alone_says_what_it_cannot_do(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        async with Admin(namesrv_addr=namesrv_of(broker)) as admin:
            await admin.create_topic("orders", queues=1)
        status, text = await page(broker, "POST", "/drainz?wait=10")
        assert status == 409
        assert '"stays":["orders"]' in text
        assert "Producers see errors while this broker is stopped; nothing stored is lost" in text


@pytest.mark.timing
@pytest.mark.usefixtures("quick")
async def test_an_administrator_begins_the_same_drain_from_afar(tmp_path: Path) -> None:
    async with (
        two_shards(tmp_path) as (first, second),
        Admin(namesrv_addr=namesrv_of(first)) as admin,
    ):
        drained = await admin.drain("broker-b")
        assert (drained.how, drained.topic_count > 3) == ("writes_stopped", True)
        assert (await page(second, "GET", "/drainz"))[0] == 503

        def perm() -> int | None:
            assert first.namesrv is not None
            found = first.namesrv.routes.topic_route("orders")
            queues = [] if found is None else found.queue_datas
            return next((q.perm for q in queues if q.broker_name == "broker-b"), None)

        assert perm() == READ, "name servers know it when the call returns"
        second.parts.topics.tell_again()
        await admin.undrain("broker-b")
        await until(lambda: perm() == BOTH)
        assert '"serving"' in (await page(second, "GET", "/drainz"))[1]


async def test_codes_that_ask_for_something_else_are_refused(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        client = await RawClient.open(broker.listen_address)
        answer = await client.call(RequestCode.DRAIN_BROKER, {"action": "status"})
        assert answer.ext_fields == {"state": "serving", "moved": "0", "stays": "0"}
        for fields in ({"action": "stop"}, {"action": "start", "refresh": "-1"}, {}):
            answer = await client.call(RequestCode.DRAIN_BROKER, fields)
            assert answer.code != ResponseCode.SUCCESS
        await client.close()
