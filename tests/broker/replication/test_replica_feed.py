"""The log goes out to followers byte for byte, in parts of one term, as fast as each one reads."""

from __future__ import annotations

import socket
from random import Random
from typing import Any

import pytest

from skylarkmq.broker.replication.failover import replica_connection, replica_feed
from skylarkmq.broker.replication.failover.replica_events import (
    Beat,
    Confirm,
    Message,
    Part,
    Welcome,
)
from skylarkmq.broker.replication.failover.terms import Lineage, TermStart
from skylarkmq.common.worker import Done
from tests.broker.replication.links_rig import (
    PART_SIZE,
    ROWS,
    TERM,
    RawFollower,
    Replica,
    Replicas,
    hello,
    replicas,
)
from tests.store.support import LOG_SIZE
from tests.support.manual_clock import settle

pytestmark = pytest.mark.timing


async def follow(some: Replicas, a: Replica, begin: int = 0, name: str = "b") -> Replica:
    """A follower that keeps what comes, and stores nothing, fed from a place on."""
    b = await some.add(name)
    await feed_again(some, a, b, 1, begin)
    return b


async def feed_again(some: Replicas, a: Replica, b: Replica, session: int, begin: int = 0) -> None:
    b.links.send("a", hello(session), a.address)
    await some.see(lambda: (b.name, hello(session)) in a.heard)
    a.links.send(b.name, Welcome(TERM, session, None, 0, ROWS))
    a.links.open_stream(b.name, TERM, session, begin, a.lineage)


async def test_a_log_of_many_files_and_terms_is_copied_byte_for_byte() -> None:
    async with replicas() as some:
        a = await some.add("a")
        rows = list(ROWS)
        for term in range(2, 30):
            a.put_many(30)
            rows.append(TermStart(10 * term - 1, a.end))
            if term % 5 == 0:
                rows.append(TermStart(10 * term, a.end))
        # Some terms wrote nothing.
        a.lineage = tuple(rows)
        a.answers = True
        followers = [await some.add(name, broker_role="SLAVE") for name in "bc"]
        for each in followers:
            each.answers = True
            each.links.send("a", hello(1), a.address)
        await some.see(lambda: all(each.end == a.end for each in followers))
        assert a.end > 3 * LOG_SIZE
        a.put_many(20)
        a.links.turns.stored()
        await some.see(lambda: all(each.end == a.end for each in followers))
        for each in followers:
            assert each.log_bytes() == a.log_bytes() == each.data()
            check_parts(each.parts, a.lineage)


def check_parts(parts: list[Part], lineage: Lineage) -> None:
    """No part is too long, spans two files, or goes across the start of a term."""
    for part in parts:
        end = part.offset + len(part.data)
        assert 1 <= len(part.data) <= PART_SIZE
        assert part.offset // LOG_SIZE == (end - 1) // LOG_SIZE
        assert not [row for row in lineage if part.offset < row.start < end]


@pytest.mark.parametrize("is_cold", [False, True])
async def test_parts_end_where_a_term_starts(
    is_cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicas() as some:
        a = await some.add("a")
        a.put_many(5)
        monkeypatch.setattr(a.store, "is_in_memory", lambda _: not is_cold)
        starts = [10, 10, 11, 300, 1299, 1300, 1301, a.end, a.end + 50]
        a.lineage = tuple(TermStart(term, start) for term, start in enumerate(starts, 1))
        for number, begin in enumerate((0, 10, 11, 12, 1250, 1300, 1302), 1):
            b = await follow(some, a, begin, f"b{number}")
            await some.see(lambda b=b, begin=begin: len(b.data()) == a.end - begin)
            assert b.data() == a.log_bytes()[begin:]
            check_parts(b.parts, a.lineage)
            ends = {part.offset + len(part.data) for part in b.parts}
            assert ends >= {start for start in starts if begin < start <= a.end}


async def test_a_stream_from_any_place() -> None:
    async with replicas() as some:
        a = await some.add("a")
        a.put_many(20)
        rng = Random(5)
        for number in range(8):
            begin = rng.choice([0, rng.randrange(a.end), a.end - 1, a.end])
            b = await follow(some, a, begin, f"b{number}")
            await some.see(lambda b=b, begin=begin: len(b.data()) == a.end - begin)
            assert b.data() == a.log_bytes()[begin:]
            a.put_many(1)
            a.links.turns.stored()
            await some.see(lambda b=b, begin=begin: len(b.data()) == a.end - begin)
            assert b.data() == a.log_bytes()[begin:]


async def test_a_stream_that_begins_beyond_what_is_stored_waits() -> None:
    async with replicas() as some:
        a = await some.add("a", flush_disk_type="SYNC_FLUSH")
        a.put_many(2)
        begin = a.end + 70
        b = await follow(some, a, begin)
        a.put("T", 0, b"x" * 200)
        a.links.turns.stored()
        for _ in range(3):
            a.link_clock.advance(0)
        await settle()
        assert b.parts == []  # written, not synced
        a.workers.run_all()
        a.links.turns.stored()
        await some.see(lambda: b.parts)
        assert b.data() == a.log_bytes()[begin:]


async def test_a_newer_stream_replaces_the_one_before() -> None:
    async with replicas() as some:
        a = await some.add("a")
        a.put_many(3)
        b = await follow(some, a)
        await some.see(lambda: len(b.data()) == a.end)
        count = len(b.parts)
        a.links.open_stream("b", TERM, 9, a.end, ROWS)
        before = a.end
        a.put_many(1)
        a.links.turns.stored()
        await some.see(lambda: len(b.parts) > count)
        await some.quiet()
        assert b.parts[count].offset == before
        assert {part.session for part in b.parts[count:]} == {9}
        assert len(b.data()) == a.end


async def test_no_stream_goes_on_when_all_are_closed() -> None:
    async with replicas() as some:
        a = await some.add("a")
        a.put_many(1)
        b = await follow(some, a)
        await some.see(lambda: len(b.data()) == a.end)
        a.links.close_streams()
        a.put_many(1)
        a.links.turns.stored()
        a.links.send("b", Beat(TERM, 1, 1.0, 0))
        await some.see(lambda: isinstance(b.messages[-1], Beat))
        assert len(b.data()) < a.end
        assert a.links.followers["b"].feed is None


# Old parts


async def test_old_bytes_are_read_by_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    async with replicas() as some:
        a = await some.add("a")
        a.put_many(700)

        def is_young(offset: int) -> bool:
            return offset > 2 * LOG_SIZE

        monkeypatch.setattr(a.store, "is_in_memory", is_young)
        reads = count_reads(a, monkeypatch)
        b = await follow(some, a, 1)
        await some.see(lambda: len(b.data()) == a.end - 1)
        assert b.data() == a.log_bytes()[1:]
        assert reads == [1, LOG_SIZE, 2 * LOG_SIZE]


def count_reads(a: Replica, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    reads: list[int] = []
    read_part = a.store.read_part

    def read(offset: int, size: int, done: Done[bytes]) -> None:
        reads.append(offset)
        read_part(offset, size, done)

    monkeypatch.setattr(a.store, "read_part", read)
    return reads


@pytest.mark.parametrize("ends", ["stream", "store", "connection"])
async def test_a_cold_read_that_comes_too_late(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with replicas() as some:
        a = await some.add("a")
        a.put_many(10)
        monkeypatch.setattr(a.store, "is_in_memory", lambda _: False)
        reads = count_reads(a, monkeypatch)
        b = await some.add("b")
        b.links.send("a", hello(1), a.address)
        await some.see(lambda: a.heard)
        a.links.send("b", Welcome(TERM, 1, None, 0, ROWS))
        a.links.open_stream("b", TERM, 1, 0, ROWS)
        assert reads == [0]
        if ends == "stream":
            a.links.open_stream("b", TERM, 2, 50, ROWS)
            assert reads == [0, 50]
            await some.see(lambda: b.parts and len(b.data()) == a.end - 50)
            assert {part.session for part in b.parts} == {2}
            return
        if ends == "store":
            a.links.attach(None)
        else:
            b.links.abort()
            while a.links.followers:
                await settle()
        await some.quiet()
        assert b.parts == []


async def test_one_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with replicas() as some:
        a = await some.add("a")
        a.put_many(10)
        monkeypatch.setattr(a.store, "is_in_memory", lambda _: False)
        reads = count_reads(a, monkeypatch)
        b = await follow(some, a)
        a.links.followers["b"].resume_writing()
        a.link_clock.advance(0)
        assert reads == [0]
        await some.see(lambda: len(b.data()) == a.end)
        assert b.data() == a.log_bytes()


async def test_a_read_that_fails_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with replicas() as some:
        a = await some.add("a")
        a.put_many(1)

        def fail(_: int, __: int, done: Done[bytes]) -> None:
            done(None, OSError("the disk is gone"))

        monkeypatch.setattr(a.store, "is_in_memory", lambda _: False)
        monkeypatch.setattr(a.store, "read_part", fail)
        await follow(some, a)
        await some.see(lambda: a.lost == ["b"])
        [(kind, _, why)] = a.refused
        assert kind == "disk" and "the disk is gone" in why


@pytest.mark.parametrize("is_cold", [False, True])
async def test_what_has_expired_ends_the_connection_with_its_cause(
    is_cold: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with replicas() as some:
        a = await some.add("a")
        a.put_many(300)
        monkeypatch.setattr(a.store, "is_in_memory", lambda _: not is_cold)
        a.store.commit_log.mapped_files.drop_first().close()
        b = await follow(some, a, 77)
        await some.see(lambda: a.lost and b.lost)
        assert f"wants the log from 77 on, and the oldest file begins at {LOG_SIZE}" in caplog.text
        assert [(kind, replica) for kind, replica, _ in a.refused] == [("expired", "b")]


# Flow


async def slow_follower(some: Replicas, a: Replica) -> RawFollower:
    """One that reads when it is told to, over a connection with next to no buffers."""
    raw = await RawFollower().connect(a.address, receive_size=2048)
    await raw.greet(1)
    await some.see(lambda: a.heard)
    a.links.send("raw", Welcome(TERM, 1, None, 0, ROWS))
    transport = a.links.followers["raw"]._transport
    assert transport is not None
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
    return raw


@pytest.mark.parametrize("is_cold", [False, True])
async def test_who_does_not_read_gets_no_more(
    is_cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_connection, "BUFFER_SIZE", 30_000)
    monkeypatch.setattr(replica_feed, "ROUND_SIZE", 20_000)
    async with replicas() as some:
        a = await some.add("a")
        a.put_many(700)
        monkeypatch.setattr(a.store, "is_in_memory", lambda _: not is_cold)
        raw = await slow_follower(some, a)
        a.links.open_stream("raw", TERM, 1, 0, ROWS)
        b = await follow(some, a)
        await some.see(lambda: len(b.data()) == a.end)  # nobody waits for the slow one
        follower = a.links.followers["raw"]
        assert follower.is_paused
        buffered = follower._transport.get_write_buffer_size()  # type: ignore[union-attr]
        assert 30_000 < buffered < 60_000
        assert follower.feed is not None and follower.feed.offset < a.end // 2
        a.links.turns.stored()
        await some.quiet()
        assert follower._transport.get_write_buffer_size() == buffered  # type: ignore[union-attr]

        def read() -> bool:
            raw.read()
            return sum(len(each.data) for each in raw.messages if isinstance(each, Part)) == a.end

        await some.see(read)
        data: list[Any] = [each.data for each in raw.messages if isinstance(each, Part)]
        assert b"".join(data) == a.log_bytes()
        raw.leave()


async def test_who_never_reads_has_a_bounded_number_of_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_connection, "UNREAD_MAX", 50_000)
    async with replicas() as some:
        a = await some.add("a")
        raw = await slow_follower(some, a)
        for number in range(3000):
            a.links.send("raw", Beat(TERM, 1, float(number), 0))
        await some.see(lambda: a.lost)
        assert a.lost == ["raw"]
        assert [kind for kind, _, _ in a.refused] == ["deaf"]
        raw.leave()


async def test_a_store_that_goes_takes_its_views_along() -> None:
    """Nothing of a file may go out that is cut or closed: the connection ends instead."""
    async with replicas() as some:
        a = await some.add("a")
        a.put_many(700)
        raw = await slow_follower(some, a)
        b = await follow(some, a)
        await some.see(lambda: len(b.data()) == a.end)
        a.links.open_stream("raw", TERM, 1, 0, ROWS)
        transport = a.links.followers["raw"]._transport
        assert transport is not None
        assert transport.get_write_buffer_size() > 0
        a.links.attach(None)
        await some.see(lambda: a.lost)
        assert a.lost == ["raw"]
        a.links.send("b", Beat(TERM, 1, 1.0, 0))
        await some.see(lambda: isinstance(b.messages[-1], Beat))
        raw.leave()


async def test_a_part_of_any_size_setting() -> None:
    for part_size in (1, 77, replica_feed.ROUND_SIZE, 1 << 30):
        async with replicas() as some:
            a = await some.add("a", {"part_size": part_size})
            a.put_many(2 if part_size == 1 else 200)
            b = await follow(some, a)
            await some.see(lambda a=a, b=b: len(b.data()) == a.end)
            assert b.data() == a.log_bytes()


async def test_a_reader_that_holds_stops_its_master() -> None:
    async with replicas() as some:
        a = await some.add("a")
        a.put_many(200)
        b = await follow(some, a)
        await some.see(lambda: len(b.data()) == a.end)
        b.links.hold(True)
        b.links.hold(True)
        before = len(b.parts)
        a.put_many(50)
        a.links.turns.stored()
        await some.quiet()
        assert len(b.parts) == before
        b.links.hold(False)
        b.links.hold(False)
        await some.see(lambda: len(b.data()) == a.end)
        b.links.hold(True)
        await feed_again(some, a, b, 2, a.end)  # a new connection reads
        await some.see(lambda: Welcome(TERM, 2, None, 0, ROWS) in b.messages)


@pytest.mark.parametrize("seed", range(6))
async def test_connections_come_and_go_and_the_copy_is_right(seed: int) -> None:
    """Whatever is cut, and whenever, the follower's log becomes that of its master."""
    rng = Random(seed)
    async with replicas() as some:
        a = await some.add("a")
        b = await some.add("b", broker_role="SLAVE")
        a.answers = b.answers = True
        rows = list(ROWS)
        for session in range(1, 12):
            a.put_many(rng.randint(1, 60))
            if rng.random() < 0.5:
                rows.append(TermStart(session + 1, a.end))
                a.lineage = tuple(rows)
            b.store.received.forget()
            b.links.send("a", hello(session, b.end, ROWS), a.address)
            for _ in range(rng.randint(0, 30)):
                a.links.turns.stored()
                some.turn()
                await settle(1)
            if rng.random() < 0.3:
                cut: Any = rng.choice([a.links.followers.get("b"), b.links.master])
                if cut is not None:
                    cut.abort("the test cuts it")
        b.store.received.forget()
        b.links.send("a", hello(99, b.end, ROWS), a.address)
        await some.see(lambda: b.end == a.end)
        assert b.log_bytes() == a.log_bytes()
        confirmed: list[Message] = [each for each in a.messages if isinstance(each, Confirm)]
        assert confirmed
