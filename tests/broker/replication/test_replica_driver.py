"""The driver carries out what the state machine says, in order, over an engine that may fail."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from skylarkmq.broker.replication.failover.coordinated_state import AliveRecord
from skylarkmq.broker.replication.failover.coordination import Change
from skylarkmq.broker.replication.failover.replica_driver import LogPlaces, ReplicaDriver
from skylarkmq.broker.replication.failover.replica_events import (
    Beat,
    Confirm,
    FailoverRules,
    GoodBye,
    Hello,
    Message,
    Part,
    State,
    Welcome,
)
from skylarkmq.broker.replication.failover.replica_feed import FeedTurns
from skylarkmq.broker.replication.failover.terms import CommonPoint, Lineage, TermStart
from skylarkmq.common.errors import StoreError
from tests.support.manual_clock import ManualClock, advance_async, settle
from tests.support.simulated_coordination import Engine, SimulatedCoordination

NAME = "broker-a"
RULES = FailoverRules(lease_s=8.0)


@dataclass
class Home:
    """A log of bytes; what is done to it is noted."""

    data: bytes = b""
    rows: Lineage = ()
    did: list[str] = field(default_factory=list[str])
    broken: Exception | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)  # of cuts
    failures: list[BaseException] = field(default_factory=list[BaseException])

    def places(self) -> LogPlaces:
        return LogPlaces(0, len(self.data), len(self.data))

    def lineage(self) -> Lineage:
        return self.rows

    async def cut_back(self, offset: int, lineage: Lineage, *, anew: bool) -> Lineage:
        self.did.append("cut begins")
        await self.gate.wait()
        self.did.append(f"cut {offset}{' anew' if anew else ''}")
        self.data, self.rows = self.data[:offset], lineage
        return lineage

    async def keep_rows(self, rows: Lineage) -> None:
        self.did.append(f"rows {[row.term for row in rows]}")
        self.rows = (*self.rows, *rows)

    def append(self, offset: int, data: bytes) -> None:
        if self.broken is not None:
            raise self.broken
        assert offset == len(self.data)
        self.did.append(f"append {offset}")
        self.data += data

    def forget_part(self) -> None:
        self.did.append("forget")

    async def freeze(self) -> None:
        self.did.append("freeze")

    async def begin_term(self, row: TermStart) -> Lineage:
        self.did.append(f"term {row.term}")
        self.rows = (*self.rows, row)
        return self.rows

    async def lead(self, term: int) -> None:
        self.did.append(f"lead {term}")

    def stop_leading(self, why: str) -> None:
        self.did.append("refuse")

    async def stopped_leading(self) -> None:
        self.did.append("stopped")

    def halt(self, why: str) -> None:
        self.did.append("halt")

    def looked(self) -> None:
        pass

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)


class Links:
    """Notes what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Message]] = []
        self.held = False
        self.turns = FeedTurns(ManualClock())

    def send(self, to: str, message: Message, address: str = "") -> None:
        self.sent.append((to, message))

    def last(self, kind: type[Any]) -> Any:
        return next(message for _, message in reversed(self.sent) if isinstance(message, kind))

    def count(self, kind: type[Any]) -> int:
        return sum(isinstance(message, kind) for _, message in self.sent)

    def hold(self, held: bool) -> None:
        self.held = held

    def open_stream(self, *_: Any) -> None:
        pass

    def close_streams(self) -> None:
        pass


class Rig:
    """One replica; others are what the test says."""

    def __init__(
        self, me: str = "a", home: Home | None = None, engine: Engine | None = None
    ) -> None:
        self.clock = ManualClock()
        self.engine = engine or Engine(self.clock)
        self.way = SimulatedCoordination(self.engine, NAME, self.clock)
        self.home, self.links = home or Home(), Links()
        alive = AliveRecord(f"{me}:10911", f"{me}:10912", 0)
        self.driver = ReplicaDriver(me, alive, RULES, self.way, self.home, self.clock)
        self.driver.links = cast(Any, self.links)
        self.master: Rig | None = None

    async def advance(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.25)):
            await advance_async(self.clock, 0.25)
            await settle()

    async def stop(self) -> None:
        if self.master is not None:
            await self.master.driver.abort()
        stopping = asyncio.ensure_future(self.driver.stop())
        await self.advance(1)
        await stopping


async def led_by_b() -> Rig:
    """Replica a, which hears of b as its master, term 1."""
    rig = Rig()
    other = Rig("b", engine=rig.engine)
    other.clock = rig.clock
    alive = AliveRecord("b:10911", "b:10912", 0)
    other.driver = ReplicaDriver("b", alive, RULES, rig.way, other.home, rig.clock)
    other.driver.links = cast(Any, other.links)
    other.driver.start()
    await rig.advance(2)
    assert other.driver.state.state is State.MASTER
    rig.driver.start()
    await rig.advance(1)
    assert rig.links.count(Hello)
    rig.master = other
    return rig


def welcome(rig: Rig, point: CommonPoint | None = None) -> int:
    """Let b feed a from a point on; return the session."""
    hello = rig.links.last(Hello)
    rig.driver.heard("b", Welcome(1, hello.session, point, 0, (TermStart(1, 0),)))
    return int(hello.session)


async def test_one_alone_leads_by_the_book() -> None:
    rig = Rig()
    rig.driver.start()
    await rig.advance(2)
    assert rig.home.did == ["freeze", "term 1", "lead 1"]
    assert rig.driver.state.state is State.MASTER
    assert rig.driver.engine.is_reachable
    await rig.stop()
    assert "alive/a" not in rig.engine.read(NAME).entries, "its lease has ended"


async def test_a_follower_that_stops_says_so_before_its_lease_ends() -> None:
    rig = await led_by_b()
    rig.home.gate.set()
    session = welcome(rig)
    revoked: list[int] = []
    revoke = rig.way.revoke

    async def noted(lease: int) -> None:
        revoked.append(rig.links.count(GoodBye))
        await revoke(lease)

    rig.way.revoke = noted  # type: ignore[method-assign]
    await rig.stop()
    assert rig.links.sent[-1] == ("b", GoodBye(1, session))
    assert revoked == [1]


async def test_what_comes_while_the_log_is_cut_waits_for_that() -> None:
    rig = await led_by_b()
    session = welcome(rig)
    await settle()
    assert rig.home.did == ["cut begins"]
    rig.home.gate.set()
    await settle()
    rig.driver.heard("b", Part(1, session, 0, b"one", 0))
    rig.driver.heard("b", Part(1, session, 3, b"two", 0))
    await settle()
    assert rig.home.did == ["cut begins", "cut 0 anew", "append 0", "append 3"]
    await rig.advance(0.5)
    assert rig.links.last(Confirm).durable_end == 6
    await rig.stop()


@pytest.mark.parametrize("error", [StoreError("no record"), OSError(28, "no space left")])
async def test_what_cannot_be_stored_is_asked_for_again(error: Exception) -> None:
    rig = await led_by_b()
    rig.home.gate.set()
    session = welcome(rig)
    await settle()
    rig.home.broken = error
    rig.driver.heard("b", Part(1, session, 0, b"one", 0))
    before = rig.links.count(Hello)
    await rig.advance(1)
    assert rig.links.count(Hello) > before
    assert "forget" in rig.home.did
    assert not rig.home.failures
    rig.home.broken = None
    again = welcome(rig, CommonPoint(1, 0))
    await settle()
    rig.driver.heard("b", Part(1, again, 0, b"one", 0))
    assert rig.home.data == b"one"
    await rig.stop()


async def test_a_row_that_the_machine_refuses_is_asked_for_again() -> None:
    """Where the master's next term begins could not be written, and the process ended."""
    rig = await led_by_b()
    rig.home.gate.set()
    session = welcome(rig)
    await settle()
    rig.home.rows, refused = (), [OSError(24, "too many open files")]
    keep_rows = rig.home.keep_rows

    async def keep(rows: Lineage) -> None:
        if refused:
            raise refused.pop()
        await keep_rows(rows)

    rig.home.keep_rows = keep  # type: ignore[method-assign]
    rig.driver.state._log.lineage = ()
    before = rig.links.count(Hello)
    rig.driver.heard("b", Part(1, session, 0, b"one", 0))
    await rig.advance(1)
    assert not rig.home.failures and rig.home.data == b""
    assert rig.links.count(Hello) > before
    refused.append(OSError(5, "input/output error"))
    rig.driver.state._log.lineage = ()
    again = welcome(rig, CommonPoint(1, 0))
    await settle()
    rig.driver.state._log.lineage = ()
    rig.driver.heard("b", Part(1, again, 0, b"one", 0))
    await rig.advance(1)
    assert [str(error) for error in rig.home.failures] == ["[Errno 5] input/output error"]
    await rig.stop()


async def test_a_lost_connection_is_made_again_and_the_rest_of_a_record_dropped() -> None:
    rig = await led_by_b()
    rig.home.gate.set()
    welcome(rig)
    await settle()
    before = rig.links.count(Hello)
    rig.driver.lost("b", True)
    await rig.advance(0.5)
    assert rig.links.count(Hello) == before + 1
    assert rig.home.did[-1] == "forget"
    rig.driver.lost("c", True)
    rig.driver.lost("b", False)
    await rig.advance(0.5)
    assert rig.links.count(Hello) == before + 1, "of another replica, or of a follower"
    await rig.stop()


async def test_a_vanished_master_is_followed_by_the_next() -> None:
    rig = await led_by_b()
    rig.home.gate.set()
    session = welcome(rig)
    await settle()
    rig.driver.heard("b", Beat(1, session, 0.0, 0))
    entries = rig.engine.read(NAME).entries
    both = entries["state"].value.replace(b'"inSync":["b"]', b'"inSync":["a","b"]')
    rig.engine.swap(NAME, (), (Change("state", both),))
    assert rig.master is not None
    await rig.master.driver.abort()
    rig.engine.revoke(entries["alive/b"].lease)
    await rig.advance(12)
    assert rig.home.did[-3:] == ["freeze", "term 2", "lead 2"]
    await rig.stop()


async def test_an_engine_that_is_away_is_told_once_and_missed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    rig.driver.start()
    await rig.advance(2)
    rig.way.sends = False
    await rig.advance(20)
    assert not rig.driver.engine.is_reachable
    assert caplog.text.count("the coordination engine does not answer") == 1
    assert rig.home.did[-1] == "lead 1", "alone in its set, nobody else can lead"
    rig.way.sends = True
    await rig.advance(10)
    assert rig.driver.engine.is_reachable
    assert rig.home.did[-1] == "lead 1"
    await rig.stop()


async def test_nonsense_in_the_engine_is_told_and_waited_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    rig.engine.swap(NAME, (), (Change("state", b"not ours"),))
    rig.driver.start()
    await rig.advance(5)
    assert "is not ours" in caplog.text
    assert not rig.home.did
    rig.engine.swap(NAME, (), (Change("state", None),))
    await rig.advance(5)
    assert rig.home.did[-1] == "lead 1"
    await rig.stop()


async def test_a_job_that_raises_ends_the_process() -> None:
    home = Home()

    async def broken(row: TermStart) -> Lineage:
        raise OSError(5, "input/output error")

    home.begin_term = broken  # type: ignore[method-assign]
    rig = Rig(home=home)
    rig.driver.start()
    await rig.advance(2)
    assert [type(error) for error in home.failures] == [OSError]
    await rig.driver.abort()


async def test_a_slow_disk_lets_the_master_wait() -> None:
    rig = await led_by_b()
    rig.home.gate.set()
    welcome(rig)
    await settle()
    rig.home.places = lambda: LogPlaces(0, 40 << 20, 1 << 20)  # type: ignore[method-assign]
    rig.driver.log_moved()
    await settle()
    assert rig.links.held
    rig.home.places = lambda: LogPlaces(0, 40 << 20, 40 << 20)  # type: ignore[method-assign]
    rig.driver.log_moved()
    await settle()
    assert not rig.links.held
    await rig.stop()


async def test_an_engine_that_does_not_answer_gets_no_heap_of_requests() -> None:
    rig = Rig()
    rig.driver.start()
    await rig.advance(2)

    async def never(*_: Any) -> Any:
        await asyncio.Event().wait()

    rig.way.read = rig.way.renew = never  # type: ignore[method-assign]
    await rig.advance(8)
    before = len(rig.driver._tasks)
    await rig.advance(60)
    assert len(rig.driver._tasks) <= before
    await rig.driver.abort()


async def test_the_log_of_a_master_does_not_shrink() -> None:
    """Followers would cut theirs to it."""
    home = Home(b"12345")
    rig = Rig(home=home)
    rig.driver.start()
    await rig.advance(2)
    assert rig.driver.state.state is State.MASTER
    home.data = b""
    await rig.advance(1)
    assert "went back to 0" in str(home.failures[0])
    assert rig.driver.state._log.end == 5
    await rig.stop()
