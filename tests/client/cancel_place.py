"""What the tests of cancellation stand on: a whole cluster, all kinds of objects over one client,
and the look at what is left behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from skylarkmq.client import Client, Consumer, HalfMessage, Message, Producer, StartFrom
from skylarkmq.client import TransactionState as State
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.flags import reply_topic
from skylarkmq.remoting.waiting import sleep
from tests.client.consumer.support import GROUP
from tests.client.consumer.test_orderly import Ordered
from tests.support.cancelling import Cut, Driven, drive
from tests.support.manual_clock import advance_async, settle

LATENCY_S = 0.001
TOPICS = {"orders": 2, "rpc": 1, reply_topic("DefaultCluster"): 1}


def check(_: HalfMessage) -> State:
    return State.UNKNOWN


class Place:
    """A cluster whose broker also keeps locks, and one client."""

    def __init__(self, *, slow: bool = False) -> None:
        """Begin; with `slow`, what a peer says takes time, so that no answer comes by itself."""
        self.it = Ordered(TOPICS)
        self.clock, self.broker, self.cluster = self.it.clock, self.it.broker, self.it.cluster
        self.client: Client = self.it.client()
        if slow:
            self.broker.later = self.cluster.name_server.later = self._on_its_way
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.problems: list[str] = []
        self._begun = False
        self._planned: list[tuple[int, Callable[[], object]]] = []
        self.beside: Any = None
        """What runs beside the call, if a row has that: a task or a future."""
        asyncio.get_running_loop().set_exception_handler(self._noticed)

    def _noticed(self, _: object, context: dict[str, Any]) -> None:
        self.problems.append(f"{context['message']}: {context.get('exception')!r}")

    def _on_its_way(self, what: Callable[..., None], argument: object) -> None:
        self.clock.call_at(self.clock.monotonic() + LATENCY_S, what, argument)

    def begin(self) -> None:
        """The call begins: what `at_step` planned does, too."""
        self._begun = True
        for plan in self._planned:
            self.at_step(*plan)

    def at_step(self, steps: int, what: Callable[[], object]) -> None:
        """Let something happen so many turns after the call has begun."""
        if not self._begun:
            self._planned.append((steps, what))
            return
        loop = asyncio.get_running_loop()
        if steps:
            loop.call_soon(self.at_step, steps - 1, what)
        else:
            what()

    async def until(self, met: Callable[[], object], every_s: float = LATENCY_S / 2) -> None:
        """Look again and again; a part of what `run` runs."""
        for _ in range(1000):
            if met():
                return
            await sleep(self.clock, every_s)
        raise AssertionError("it never comes")

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run to the end while time passes."""
        done = await drive(self.clock, work)
        if done.error is not None:
            raise done.error
        return done.result

    async def producer(self, **settings: Any) -> Producer:
        settings = {"group": "P", "check": check, **settings}
        producer = Producer(client=self.client, **settings)
        await self.run(producer.start())
        self.producers.append(producer)
        return producer

    def new_consumer(self, *topics: str, **settings: Any) -> Consumer:
        settings = {"group": GROUP, "start_from": StartFrom.FIRST, **settings}
        consumer = Consumer(*topics, client=self.client, **settings)
        self.consumers.append(consumer)
        return consumer

    async def consumer(self, *topics: str, **settings: Any) -> Consumer:
        consumer = self.new_consumer(*topics, **settings)
        await self.run(consumer.start())
        return consumer

    async def sends(self, producer: Producer) -> None:
        """It still works."""
        before = self.broker.bodies("orders").count(b"next")
        await self.run(producer.send(Message("orders", b"next")))
        assert self.broker.bodies("orders").count(b"next") == before + 1
        assert producer.in_flight_count == 0

    async def quiet(self, others: int = 0) -> None:
        """What hung on the call alone is gone, while everything else runs on."""
        await settle()
        if self.client._services is not None:
            for connection in services_of(self.client).remoting.connections:
                for waiter in connection._pending.values():
                    future = getattr(waiter, "future")  # noqa: B009 - of either kind of waiter
                    assert not future.done(), "an opaque that nobody waits for"
        for _ in range(50):  # what is on its way comes, and is not waited for any more
            await advance_async(self.clock, 2 * LATENCY_S)
            if self._open_count() <= others:
                break
        names = [one.get_name() for one in asyncio.all_tasks()]
        assert "skylarkmq-admin-call" not in names
        assert self._open_count() <= others, "opaques that nobody waits for"
        if self.client._services is not None:
            assert len(services_of(self.client).replies) == 0

    def _open_count(self) -> int:
        """Requests under way, apart from pulls and waits that the broker holds."""
        if self.client._services is None:
            return 0
        connections = services_of(self.client).remoting.connections
        streams = {id(connection._stream) for connection in connections}
        waits = [*self.broker.held, *self.broker.pops.held]
        held = sum(id(wait.stream) in streams for wait in waits)
        return sum(connection.pending_count for connection in connections) - held

    async def end(self) -> None:
        """Everything ends, and nothing is left."""
        for producer in self.producers:
            await self.run(producer.stop())
        members = dict(services_of(self.client).members) if self.client._services else {}
        for consumer in self.consumers:
            if consumer._membership in members.values():
                await self.run(consumer.stop())
        if self.client._services is not None:
            assert services_of(self.client).members == {}
            assert not services_of(self.client)._producer_groups
        await self.run(self.client.stop())
        await settle()
        self.check_nothing_left()

    def check_nothing_left(self) -> None:
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert [name for name in names if "skylarkmq" in name] == [], f"tasks are left: {names}"
        assert self.clock.pending_count == 0, "timers are left"
        assert self.broker.streams == [], "connections are left"
        assert self.cluster.name_server.streams == [], "connections are left"
        assert self.broker.owners == {}, "locks are left"
        gc.collect(0)
        assert self.problems == [], "errors that nobody has seen"


Begin = Callable[[Place], Awaitable[Any]]
Call = Callable[[Place, Any], Coroutine[Any, Any, Any]]
After = Callable[[Place, Any, Driven], Awaitable[None]]


@dataclass(frozen=True)
class Row:
    """One public call: what it needs, the call, and how it is seen that all still works."""

    name: str
    begin: Begin
    call: Call
    after: After
    others: int = 0
    """Requests that stay under way, because somebody else waits for them."""


async def swept(row: Row, cut: Cut | None) -> Driven:
    """Do the call once, cut there, and look at everything."""
    place = Place(slow=cut is not None and cut.way in ("waiting", "timeout"))
    try:
        return await _swept(place, row, cut)
    except BaseException:
        # Else what goes on would wait for a clock that stands, and the loop for its end.
        place.broker.later = place.cluster.name_server.later = None
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await place.it.pass_time(120)
        raise


async def _swept(place: Place, row: Row, cut: Cut | None) -> Driven:
    subject = await row.begin(place)
    await settle()
    place.begin()
    driven = await drive(place.clock, row.call(place, subject), cut)
    if driven.reached and driven.error is not None:
        wanted = (
            TimeoutError if cut is not None and cut.way == "timeout" else asyncio.CancelledError
        )
        assert isinstance(driven.error, wanted), f"{row.name} {cut}: {driven.error!r}"
    else:
        assert driven.error is None, f"{row.name} {cut}: {driven.error!r}"
    await place.quiet(row.others)
    await row.after(place, subject, driven)
    await place.end()
    return driven
