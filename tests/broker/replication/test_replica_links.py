"""Replicas talk over sockets: what is said arrives, once, and who has gone is told once."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

import pytest

from skylarkmq.broker.replication.failover.replica_connection import (
    CONNECT_LIMIT_S,
    PREPARING_LIMIT_S,
    MasterConnection,
)
from skylarkmq.broker.replication.failover.replica_events import (
    Beat,
    Confirm,
    GoodBye,
    Part,
    Promise,
    Refused,
    TakeOver,
    Welcome,
)
from skylarkmq.broker.replication.failover.replica_links import STOP_LIMIT_S
from skylarkmq.broker.replication.failover.replica_protocol import NAME_SIZE_MAX
from skylarkmq.broker.replication.failover.terms import CommonPoint
from tests.broker.replication.links_rig import (
    ROWS,
    SILENCE_S,
    TERM,
    RawFollower,
    Replica,
    Replicas,
    hello,
    replicas,
)
from tests.support.manual_clock import settle

pytestmark = pytest.mark.timing


async def pair(some: Replicas) -> tuple[Replica, Replica]:
    """A master `a` and a follower `b` that has greeted it with session 7."""
    a, b = await some.add("a"), await some.add("b")
    b.links.send("a", hello(7, 40, ROWS), a.address)
    await some.see(lambda: a.heard)
    return a, b


async def fed_pair(some: Replicas, **config: Any) -> tuple[Replica, Replica]:
    """The same, and both answer."""
    a = await some.add("a", **config)
    b = await some.add("b", broker_role="SLAVE")
    a.answers = b.answers = True
    a.put_many(3)
    b.links.send("a", hello(7), a.address)
    await some.see(lambda: b.end == a.end > 0)
    return a, b


# Talking


async def test_each_message_arrives_as_it_was_said() -> None:
    async with replicas() as some:
        a, b = await pair(some)
        assert a.heard == [("b", hello(7, 40, ROWS))]
        said_by_a = [
            Welcome(TERM, 7, CommonPoint(1, 40), 0, ROWS),
            Beat(TERM, 7, 12.5, 30),
            TakeOver(TERM, 7),
        ]
        said_by_b = [Confirm(TERM, 7, 40), Promise(TERM, 7, 12.5, 40), GoodBye(TERM, 7)]
        for message in said_by_a:
            a.links.send("b", message)
        await some.see(lambda: len(b.heard) == 3)
        for answer in said_by_b:
            b.links.send("a", answer)
        await some.see(lambda: len(a.heard) == 4)
        assert b.heard == [("a", message) for message in said_by_a]
        assert a.heard[1:] == [("b", message) for message in said_by_b]
        assert a.lost == b.lost == []


async def test_two_that_take_each_other_for_the_master_have_a_connection_each() -> None:
    async with replicas() as some:
        a, b = await pair(some)
        a.links.send("b", hello(8), b.address)
        await some.see(lambda: b.heard)
        a.links.send("b", Welcome(TERM, 7, None, 0, ()))
        b.links.send("a", Welcome(TERM, 8, None, 0, ()))
        await some.see(lambda: len(a.heard) == 2 and len(b.heard) == 2)
        assert b.heard == [("a", hello(8)), ("a", Welcome(TERM, 7, None, 0, ()))]
        a.links.send("b", Confirm(TERM, 8, 0))
        b.links.send("a", Confirm(TERM, 7, 0))
        await some.see(lambda: len(a.heard) == 3 and len(b.heard) == 3)
        assert a.messages[-1] == Confirm(TERM, 7, 0)
        assert b.messages[-1] == Confirm(TERM, 8, 0)


async def test_what_has_no_connection_is_dropped() -> None:
    async with replicas() as some:
        a, b = await pair(some)
        b.links.send("c", Confirm(TERM, 7, 40))
        a.links.send("c", Beat(TERM, 7, 1.0, 0))
        a.links.send("b", Confirm(TERM, 7, 40))  # it follows nobody
        b.links.send("a", Beat(TERM, 7, 1.0, 0))  # nobody follows it
        a.links.open_stream("c", TERM, 7, 0, ROWS)
        b.links.send("a", Confirm(TERM, 7, 41))
        await some.see(lambda: len(a.heard) == 2)
        await some.quiet()
        assert a.messages[1:] == [Confirm(TERM, 7, 41)]
        assert b.heard == []


async def test_small_messages_are_not_kept_back() -> None:
    async with replicas() as some:
        a, b = await pair(some)
        ends = [a.links.followers["b"]._transport, b.links.master and b.links.master._transport]
        for transport in ends:
            assert transport is not None
            raw = transport.get_extra_info("socket")
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_refusal_is_the_last_word() -> None:
    async with replicas() as some:
        a, b = await pair(some)
        a.links.send("b", Refused(5, 7, "a leads no term"))
        await some.see(lambda: a.lost and b.lost)
        assert b.heard == [("a", Refused(5, 7, "a leads no term"))]
        assert a.lost == ["b"]
        assert b.lost == ["a"]
        assert b.refused == [("refused", "a", "a leads no term")]
        b.links.send("a", hello(8), a.address)
        await some.see(lambda: len(a.heard) == 2)
        a.links.send("b", Welcome(TERM, 8, None, 0, ()))
        await some.see(lambda: len(b.heard) == 2)
        assert len(b.refused) == 1


# Connections that end


async def test_both_ends_are_told_once_when_one_stops() -> None:
    for stops in ("a", "b"):
        for how in ("stop", "abort"):
            async with replicas() as some:
                a, b = await fed_pair(some)
                links = {"a": a, "b": b}[stops].links
                if how == "stop":
                    await links.stop()
                else:
                    links.abort()
                await some.see(lambda a=a, b=b: a.lost and b.lost)
                await some.quiet()
                assert (a.lost, b.lost) == (["b"], ["a"])
                links.send("c", hello(9), a.address)  # over
                await some.quiet()
                assert links.master is None
                assert (a.lost, b.lost) == (["b"], ["a"])


async def test_a_new_hello_replaces_the_connection() -> None:
    async with replicas() as some:
        a, b = await fed_pair(some)
        for session in (8, 9):
            b.links.send("a", hello(session, b.end, ROWS), a.address)
        await some.see(lambda: Confirm(TERM, 9, b.end) in a.messages)
        await some.quiet()
        assert b.lost == []
        assert a.words[-2:] == [hello(9, b.end, ROWS), Confirm(TERM, 9, b.end)]
        assert len(a.links._incoming) == len(b.links._outgoing) == 1
        count = len(b.parts)
        a.put_many(2)
        a.links.turns.stored()
        await some.see(lambda: b.end == a.end)
        assert {part.session for part in b.parts[count:]} == {9}


async def test_the_newest_connection_of_a_follower_counts() -> None:
    async with replicas() as some:
        a = await some.add("a")
        raws = [await RawFollower().connect(a.address) for _ in range(3)]
        for session, raw in enumerate(raws, 1):
            await raw.greet(session)
            await some.see(lambda session=session: len(a.heard) == session)
        await some.see(lambda: raws[0].is_over() and raws[1].is_over())
        await some.see(lambda: len(a.links._incoming) == 1)
        a.links.send("raw", Welcome(TERM, 3, None, 0, ()))
        await some.see(lambda: raws[2].is_over() or raws[2].messages)
        assert raws[2].messages == [Welcome(TERM, 3, None, 0, ())]
        assert a.lost == []
        for raw in raws:
            raw.leave()
        await some.see(lambda: a.lost == ["raw"])


async def test_a_replaced_connection_that_ends_late_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def slow(*_: object) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await settle(30)

    async with replicas() as some:
        b = await some.add("b")
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", slow)
        b.links.send("a", hello(1), "127.0.0.1:1")
        await settle()
        b.links.send("a", hello(2), "no address")
        await some.see(lambda: not b.links._outgoing)
        assert b.lost == ["a"]


async def test_a_hello_to_another_master_leaves_the_first() -> None:
    async with replicas() as some:
        a, b = await fed_pair(some)
        c = await some.add("c")
        b.links.send("c", hello(8), c.address)
        await some.see(lambda: c.heard and a.lost)
        await some.quiet()
        assert b.lost == ["a"]
        assert a.lost == ["b"]
        assert b.links.master is not None
        assert b.links.master.replica == "c"


async def test_three_hellos_in_one_turn_are_one_connection() -> None:
    async with replicas() as some:
        a, b, c = await some.add("a"), await some.add("b"), await some.add("c")
        b.links.send("a", hello(1), a.address)
        b.links.send("c", hello(2), c.address)
        b.links.send("a", hello(3), a.address)
        await some.see(lambda: a.heard)
        await some.quiet()
        assert a.heard == [("b", hello(3))]
        assert c.heard == []
        assert b.lost == ["c"]


async def test_a_hello_that_cannot_connect_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        free = f"127.0.0.1:{unused.getsockname()[1]}"
        for address in (free, "", "nowhere", "127.0.0.1:99999", ".:1", "a" * 300 + ":1"):
            async with replicas() as some:
                b = await some.add("b")
                b.links.send("a", hello(1), address)
                b.links.send("a", Confirm(TERM, 1, 0))
                await some.see(lambda b=b: b.lost)
                await some.quiet()
                assert b.lost == ["a"], address
                assert b.links.master is None
    assert "cannot be followed" in caplog.text


async def test_a_name_that_is_too_long_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with replicas() as some:
        a = await some.add("a")
        b = await some.add("b", {"cluster": "c" * (NAME_SIZE_MAX + 1)})
        b.links.send("a", hello(1), a.address)
        await some.see(lambda: b.lost)
        assert b.lost == ["a"]
        assert "choose a shorter one" in caplog.text


async def test_a_failure_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async with replicas() as some:
        b = await some.add("b")
        for number in range(1, 4):
            b.links.send("a", hello(number), "127.0.0.1:1")
            await some.see(lambda number=number: len(b.lost) == number)
        assert caplog.text.count("cannot be followed") == 1


async def test_an_abort_at_any_time_while_connecting_is_told_once() -> None:
    for turns in range(14):
        async with replicas() as some:
            a, b = await some.add("a"), await some.add("b")
            b.links.send("a", hello(1), a.address)
            for _ in range(turns):
                await asyncio.sleep(0)
            b.links.abort()
            await some.see(lambda b=b: b.lost)
            await some.see(lambda a=a: not a.links._incoming)
            await some.quiet()
            assert b.lost == ["a"]
            assert len(a.lost) == len(a.heard) <= 1
            assert b.links.master is None
            assert not b.links._outgoing


async def test_a_replacement_at_any_time_while_connecting() -> None:
    for turns in range(14):
        async with replicas() as some:
            a, b = await some.add("a"), await some.add("b")
            b.links.send("a", hello(1), a.address)
            for _ in range(turns):
                await asyncio.sleep(0)
            b.links.send("a", hello(2), a.address)
            await some.see(lambda a=a: ("b", hello(2)) in a.heard)
            await some.see(lambda a=a: len(a.links._incoming) == 1)
            b.links.send("a", Confirm(TERM, 2, 0))
            await some.see(lambda a=a: a.messages[-1] == Confirm(TERM, 2, 0))
            assert b.lost == []


async def test_a_master_that_does_not_answer_the_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    async with replicas() as some:
        b = await some.add("b")
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
        b.links.send("a", hello(1), "127.0.0.1:1")
        await settle()
        await some.pass_time(CONNECT_LIMIT_S - 0.1)
        assert b.lost == []
        await some.pass_time(0.2)
        assert b.lost == ["a"]
        assert b.link_clock.pending_count == 0


async def test_a_bug_in_connecting_is_logged_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise KeyError("a bug")

    async with replicas() as some:
        b = await some.add("b")
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", broken)
        b.links.send("a", hello(1), "127.0.0.1:1")
        await some.see(lambda: b.lost)
        assert "Traceback" in caplog.text


# Silence


async def test_a_peer_that_never_greets_is_closed() -> None:
    async with replicas() as some:
        a = await some.add("a")
        mute = await RawFollower().connect(a.address)
        await some.see(lambda: a.links._incoming)
        await some.pass_time(SILENCE_S - 0.1)
        assert not mute.is_over()
        await some.pass_time(0.2)
        await some.see(mute.is_over)
        mute.leave()
        assert a.lost == []


async def test_a_follower_may_cut_its_log_for_long_but_not_be_silent_when_fed() -> None:
    async with replicas() as some:
        a, b = await pair(some)
        a.links.send("b", Welcome(TERM, 7, None, 0, ROWS))
        await some.see(lambda: b.heard)
        await some.pass_time(PREPARING_LIMIT_S - 1)
        assert a.lost == b.lost == []
        b.links.send("a", Confirm(TERM, 7, 0))
        await some.see(lambda: len(a.heard) == 2)
        a.links.open_stream("b", TERM, 7, 0, ROWS)
        for number in range(3):
            await some.pass_time(SILENCE_S - 1)
            a.links.send("b", Beat(TERM, 7, float(number), 0))
            await some.see(lambda number=number: Beat(TERM, 7, float(number), 0) in b.messages)
            b.links.send("a", Promise(TERM, 7, float(number), 0))
            await some.see(lambda number=number: Promise(TERM, 7, float(number), 0) in a.messages)
        assert a.lost == b.lost == []
        a.link_clock.advance(SILENCE_S + 0.1)
        await some.see(lambda: a.lost and b.lost)
        assert [kind for kind, _, _ in a.refused] == ["silent"]


async def test_a_follower_that_never_confirms_is_closed_at_last() -> None:
    async with replicas() as some:
        a, b = await pair(some)
        a.links.send("b", Welcome(TERM, 7, None, 0, ROWS))
        await some.see(lambda: b.heard)
        a.link_clock.advance(PREPARING_LIMIT_S + 1)
        await some.see(lambda: a.lost == ["b"] and b.lost == ["a"])


@pytest.mark.parametrize("is_welcome", [False, True])
async def test_a_silent_master_is_left(is_welcome: bool) -> None:
    async with replicas() as some:
        a, b = await pair(some)
        if is_welcome:
            a.links.send("b", Welcome(TERM, 7, None, 0, ROWS))
            await some.see(lambda: b.heard)
            await some.pass_time(SILENCE_S + 1)
            assert b.lost == []
            b.links.send("a", Confirm(TERM, 7, 0))
        b.link_clock.advance(SILENCE_S - 0.1)
        await some.quiet()
        assert b.lost == []
        b.link_clock.advance(0.2)
        await some.see(lambda: b.lost == ["a"])
        assert [kind for kind, _, _ in b.refused] == ["silent"]


async def test_a_master_is_not_silent_while_nobody_listens() -> None:
    async with replicas() as some:
        a, b = await fed_pair(some)
        b.links.hold(True)
        await settle()
        a.put_many(1)
        a.links.turns.stored()
        await some.quiet()
        assert b.end < a.end
        for _ in range(3):
            b.link_clock.advance(SILENCE_S)
        assert b.lost == []
        b.links.hold(False)
        await some.see(lambda: b.end == a.end)
        b.link_clock.advance(SILENCE_S - 0.1)
        assert b.lost == []
        b.link_clock.advance(0.2)
        await some.see(lambda: b.lost == ["a"])


async def test_a_refused_peer_that_does_not_read_does_not_stay() -> None:
    async with replicas() as some:
        a = await some.add("a")
        raw = await RawFollower().connect(a.address)
        await raw.greet(1)
        await some.see(lambda: a.heard)
        follower = a.links.followers["raw"]
        transport = follower._transport
        assert transport is not None
        follower._transport = Stuck(transport)  # type: ignore[assignment]
        a.links.send("raw", Welcome(TERM, 1, None, 0, ROWS))
        a.links.send("raw", Refused(1, 1, "no"))
        a.link_clock.advance(SILENCE_S + 0.1)
        await some.see(lambda: a.lost == ["raw"])
        raw.leave()


class Stuck:
    """A transport whose peer takes nothing more, so that a close waits."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def get_write_buffer_size(self) -> int:
        return 100

    def write(self, _: bytes) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        self._transport.abort()


# Stopping


async def test_a_stop_lets_what_is_written_out() -> None:
    async with replicas() as some:
        a, b = await pair(some)
        a.links.send("b", Welcome(TERM, 7, None, 0, ROWS))
        a.links.send("b", TakeOver(TERM, 7))
        await a.links.stop()
        await some.see(lambda: b.lost)
        assert b.messages[-1] == TakeOver(TERM, 7)


async def test_a_stop_does_not_wait_for_a_stuck_peer() -> None:
    async with replicas() as some:
        a, b = await pair(some)
        follower = a.links.followers["b"]
        assert follower._transport is not None
        follower._transport = Stuck(follower._transport)  # type: ignore[assignment]
        stop = asyncio.create_task(a.links.stop())
        await settle()
        assert not stop.done()
        a.link_clock.advance(STOP_LIMIT_S)
        await stop
        assert a.lost == ["b"]
        await some.see(lambda: b.lost == ["a"])


async def test_nothing_is_left_when_all_have_gone() -> None:
    async with replicas() as some:
        a, b = await fed_pair(some)
        await a.links.stop()
        await b.links.stop()
        assert a.link_clock.pending_count == b.link_clock.pending_count == 0
        del a, b
        some.all.clear()
        gc.collect()
        assert not [each for each in gc.get_objects() if isinstance(each, MasterConnection)]


async def test_a_life_of_the_store_ends_and_the_connection_stays() -> None:
    async with replicas() as some:
        a, b = await fed_pair(some)
        a.links.attach(None)
        a.put_many(2)
        a.links.turns.stored()
        a.links.open_stream("b", TERM, 7, b.end, ROWS)
        a.links.send("b", Beat(TERM, 7, 1.0, 0))
        await some.see(lambda: Beat(TERM, 7, 1.0, 0) in b.messages)
        assert b.end < a.end
        a.links.attach(a.store)
        a.links.open_stream("b", TERM, 7, b.end, ROWS)
        await some.see(lambda: b.end == a.end)
        assert a.lost == b.lost == []


async def test_the_confirmed_place_goes_with_each_part() -> None:
    async with replicas() as some:
        a, b = await fed_pair(some)
        for confirmed in (10, 20):
            a.links.confirmed = confirmed
            a.put_many(1)
            a.links.turns.stored()
            await some.see(lambda: b.end == a.end)
            assert b.parts[-1].confirmed == confirmed
        assert all(isinstance(each, Part | Welcome) for each in b.messages)
        assert len(b.data()) == a.end
