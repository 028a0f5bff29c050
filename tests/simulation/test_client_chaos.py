"""Random days of two producers on one client: every kind of send against every kind of trouble.

A day is made from its seed alone: brokers that refuse, fall silent, lose connections, cannot be
dialled, have no master, or read too slowly; name servers that do likewise; calls that are cancelled
and producers that stop in the middle. At its end, by the clock, nothing is under way any more;

    each send has ended, in a result or an error of the SDK's own tree
    a result means stored, and stored once unless it says that a try's outcome is unknown
    no task, timer, opaque, count or table entry is left

`-m fault` takes more days. A day that fails is repeated by its number: DAYS=417 pytest -k day.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from random import Random
from typing import Any

import pytest

from skylarkmq.client import Client, Message, Producer, RocketMQError, SendResult, TransactionState
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.codes import RequestCode
from tests.support.amounts import slow
from tests.support.fake_cluster import FakeBroker, FakeCluster
from tests.support.manual_clock import ManualClock, advance_async, settle

SEND = RequestCode.SEND_MESSAGE_V2
REFUSALS = [1, 2, 10, 11, 13, 14, 17]
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
LARGE = bytes(6000)
CLOGGED = 1 << 40
EXPECTED = (RocketMQError, asyncio.CancelledError, ArithmeticError)


class Day:
    """One cluster, one client, two producers, and what was begun on them."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.cluster, self.clock = FakeCluster(), ManualClock()
        topics = {"a": 2, "b": 3, REPLY_TOPIC: 1}
        count = random.choice([1, 2, 3])
        self.brokers = [self.cluster.broker(f"broker-{number}", topics) for number in range(count)]
        for broker in self.brokers:
            broker.echo_codec = random.random() < 0.5
        self.client = Client(
            self.cluster.namesrv,
            network=self.cluster.network,
            clock=self.clock,
            random=Random(seed),
            codec=random.choice(["json", "auto"]),
        )
        self.producers = [self._producer(f"P{number}") for number in range(2)]
        self.futures: list[asyncio.Future[Any]] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self._sent_count = 0

    def _producer(self, group: str) -> Producer:
        random = self.random
        return Producer(
            client=self.client,
            group=group,
            latency_fault=random.random() < 0.3,
            try_timeout=random.choice([None, 0.5]),
            max_in_flight=random.choice([5, 1000]),
            trace=random.random() < 0.2,
            strict=random.random() < 0.2,
            check=lambda half: TransactionState.COMMIT,
        )

    def message(self) -> Message:
        self._sent_count += 1
        body = str(self._sent_count).encode() + (LARGE if self.random.random() < 0.1 else b"")
        key = self.random.choice([None, None, "k1", "k2"])
        return Message(self.random.choice("aab"), body, sharding_key=key)

    async def transaction(self, producer: Producer) -> None:
        async with producer.transaction(self.message()) as transaction:
            await asyncio.sleep(0)
            if self.random.random() < 0.3:
                raise ArithmeticError("the local part failed")
            if self.random.random() < 0.3:
                await transaction.unknown()

    # What happens

    async def live(self) -> None:
        """Some dozens of calls and troubles, a little time between them."""
        random = self.random
        for producer in self.producers:
            await producer.start()
        for _ in range(random.randrange(20, 80)):
            try:
                if random.random() < 0.72:
                    self.call(random.choice(self.producers))
                else:
                    self.trouble(random.choice(self.brokers))
            except RocketMQError:
                pass
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)
            if random.random() < 0.3:
                await advance_async(self.clock, random.choice([0.01, 0.1, 1, 3]))

    def call(self, producer: Producer) -> None:
        random, kind = self.random, self.random.randrange(12)
        if kind < 5:
            for _ in range(random.randrange(1, 8)):
                self.futures.append(producer.send_nowait(self.message()))
        elif kind == 5:
            self.begin(producer.send(self.message(), timeout=random.choice([None, 0.3, 5])))
        elif kind == 6:
            self.begin(producer.send_many([self.message() for _ in range(random.randrange(10))]))
        elif kind == 7:
            self.begin(producer.send_oneway(self.message()))
        elif kind == 8:
            self.begin(self.transaction(producer))
        elif kind == 9:
            self.begin(producer.request(self.message(), 2))
        elif kind == 10:
            self.begin(producer.flush())
        elif self.tasks or self.futures:
            random.choice([*self.tasks, *self.futures]).cancel()

    def begin(self, work: Any) -> None:
        self.tasks.append(asyncio.create_task(work, name="call"))

    def trouble(self, broker: FakeBroker) -> None:
        random, kind, name_server = self.random, self.random.randrange(9), self.cluster.name_server
        connection = services_of(self.client).remoting.ready(broker.address)
        if kind == 0:
            broker.refuse(SEND, *random.choices(REFUSALS, k=random.randrange(6)))
        elif kind == 1:
            broker.lose_all()
        elif kind == 2:
            broker.silent = not broker.silent
        elif kind == 3:
            broker.connect_error = random.choice([None, ConnectionRefusedError("nobody there")])
        elif kind == 4:
            name_server.silent = not name_server.silent
        elif kind == 5:
            name_server.lose_all()
        elif kind == 6:
            broker.has_master = not broker.has_master
        elif connection is not None and kind == 7:
            connection.pause_writing()
            connection._unsent_size = random.choice([0, CLOGGED])
        elif connection is not None:
            connection.resume_writing()

    # What must be true afterwards

    async def end(self) -> list[Any]:
        """Let everything end by its own time-outs, stop all, and return what the sends came to."""
        early = self.random.random() < 0.5
        if early:
            for producer in self.producers:
                self.begin(producer.stop(timeout=1))
        for broker in self.brokers:
            connection = services_of(self.client).remoting.ready(broker.address)
            if connection is not None and self.random.random() < 0.7:
                connection.resume_writing()
        await advance_async(self.clock, 30)
        await settle(50)
        begun = [*self.tasks, *self.futures]
        assert [each for each in begun if not each.done()] == []
        outcomes = await asyncio.gather(*begun, return_exceptions=True)
        odd = [each for each in outcomes if isinstance(each, BaseException)]
        assert [each for each in odd if not isinstance(each, EXPECTED)] == []
        self.cluster.name_server.silent = False
        if not early:
            assert [producer.in_flight_count for producer in self.producers] == [0, 0]
            assert len(services_of(self.client).replies) == 0
            await self._wait(*(producer.stop(timeout=1) for producer in self.producers))
        await self._wait(self.client.stop())
        await settle(20)
        assert self.clock.pending_count == 0, "timers are left over"
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == []
        return outcomes

    async def _wait(self, *works: Any) -> None:
        tasks = [asyncio.create_task(work) for work in works]
        await advance_async(self.clock, 30)
        assert all(task.done() for task in tasks), "a stop goes on after 30 s of the clock"
        await asyncio.gather(*tasks)

    def judge(self, outcomes: list[Any]) -> None:
        """What was said to be stored is, and once unless the answer says it may be twice."""
        copies: dict[str, int] = defaultdict(int)
        for broker in self.brokers:
            for topic in broker.topics.values():
                for stored in (each for queue in topic.queues for each in queue):
                    copies[stored.properties.get("UNIQ_KEY", "")] += 1
        flat = [one for each in outcomes for one in (each if isinstance(each, list) else [each])]
        for result in flat:
            if isinstance(result, SendResult):
                assert copies[result.msg_id] >= 1, f"acknowledged and not there: {result}"
                assert copies[result.msg_id] == 1 or result.unknown_tries, f"doubled: {result}"


async def run_days(seeds: list[int]) -> None:
    for seed in seeds:
        day = Day(seed)
        try:
            await day.live()
            day.judge(await day.end())
        except BaseException:
            print(f"day {seed}")
            raise


def days(first: int, count: int) -> list[int]:
    wanted = os.environ.get("DAYS", "")
    return [int(each) for each in wanted.split(",") if each] or [*range(first, first + count)]


@pytest.mark.parametrize("count", [6, slow(40)])
async def test_days_of_trouble(count: int) -> None:
    await run_days(days(0, count))


@pytest.mark.fault
async def test_many_days_of_trouble() -> None:
    await run_days(days(1000, 600))
