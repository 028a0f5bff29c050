"""A real etcd that stops, dies, comes back, is full, asks for passwords or for certificates."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from random import Random

import pytest

from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.base.endpoints import read_endpoints
from skylarkmq.broker.replication.failover.coordination import (
    Change,
    Condition,
    CoordinationError,
    Event,
    Swapped,
)
from skylarkmq.broker.replication.failover.etcd import Etcd, EtcdConfig, prefix_of
from skylarkmq.common.clock import Clock
from skylarkmq.remoting.tls import ClientTls
from tests.support.certificates import Authority
from tests.support.etcd_process import EtcdProcess, start_etcd
from tests.support.manual_clock import ManualClock
from tests.support.patience import LIMIT_S, until

pytestmark = pytest.mark.timing


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """An etcd that these tests may harm."""
    [made] = start_etcd(tmp_path_factory.mktemp("etcd"))
    yield made
    made.kill()


def client(
    *members: EtcdProcess,
    name: str,
    clock: Clock | None = None,
    user: str = "",
    password: str = "",
) -> Etcd:
    endpoints = read_endpoints(",".join(each.url for each in members))
    config = EtcdConfig(
        endpoints=endpoints,
        user=user,
        password=password,
        request_limit_s=LIMIT_S if clock is None else 2.0,
    )
    clock = clock or SystemClock(asyncio.get_running_loop())
    return Etcd(config, prefix_of("cluster", name), clock)


async def add_one(way: Etcd) -> Swapped | None:
    """Count once; None: the engine could not be asked, and nothing was counted."""
    try:
        entry = (await way.read()).entries.get("count")
        value, revision = (int(entry.value), entry.revision) if entry else (0, 0)
        change = Change("count", b"%d" % (value + 1))
        return await way.swap([Condition("count", revision)], [change])
    except CoordinationError:
        return None


async def test_an_etcd_that_is_stopped_leaves_a_swap_open(member: EtcdProcess) -> None:
    clock = ManualClock()
    way = client(member, name="stopped", clock=clock)
    before = (await way.read()).revision
    member.pause()
    try:
        swap = asyncio.ensure_future(way.swap([Condition("state", 0)], [Change("state", b"1")]))
        await until(
            lambda: way._keys.connection and way._keys.connection.sent and clock.pending_count
        )
        clock.advance(2)
        assert await swap is Swapped.UNKNOWN
        # The kernel takes the connection, nobody answers.
        read = asyncio.ensure_future(way.read())
        await until(lambda: way._keys.connection and way._keys.connection.sent)
        clock.advance(2)
        with pytest.raises(CoordinationError, match="no answer within 2 s"):
            await read
    finally:
        member.resume()
    # The swap lies in its socket: it may happen now, or etcd sees first that nobody waits for it.
    at_last = client(member, name="stopped")
    other = await at_last.swap([Condition("state", 0)], [Change("state", b"2")])
    after = await at_last.read()
    assert after.entries["state"].value == (b"2" if other is Swapped.DONE else b"1")
    assert after.revision == before + 1
    at_last.close()


async def _has(way: Etcd, key: str) -> bool:
    return key in (await way.read()).entries


async def test_what_was_acknowledged_outlives_kills(member: EtcdProcess) -> None:
    way, random = client(member, name="killed"), Random(1)
    ends: list[Swapped | None] = []
    going = True

    async def count() -> None:
        while going:
            ends.append(await add_one(way))
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    for _ in range(2):
        so_far = len(ends)
        await until(lambda so_far=so_far: len(ends) > so_far + random.randrange(3, 30))
        await asyncio.to_thread(member.kill)
        await asyncio.to_thread(member.spawn_again)
    going = False
    await counting

    done, unknown = ends.count(Swapped.DONE), ends.count(Swapped.UNKNOWN)
    value = int((await way.read()).entries["count"].value)
    assert done <= value <= done + unknown
    assert done > 5
    assert Swapped.REFUSED not in ends
    way.close()


async def test_a_watch_that_lost_its_etcd_goes_on_where_it_was(member: EtcdProcess) -> None:
    way = client(member, name="watched")
    seen = (await way.read()).revision
    told: list[Event] = []
    await add_one(way)
    async with aclosing(way.watch(seen)) as watch:
        async with asyncio.timeout(LIMIT_S):
            told.append(await anext(watch))
        await asyncio.to_thread(member.kill)
        with pytest.raises(CoordinationError, match="was lost"):
            await anext(watch)
    with pytest.raises(CoordinationError, match="nothing listens there"):
        await way.read()
    await asyncio.to_thread(member.spawn_again)
    await add_one(way)
    async with aclosing(way.watch(told[0].revision)) as watch, asyncio.timeout(LIMIT_S):
        told.append(await anext(watch))
    values = [entry.value for event in told for entry in event.entries.values() if entry]
    assert values == [b"1", b"2"]
    way.close()


@pytest.mark.slow
async def test_a_lease_outlives_a_kill_and_ends_all_the_same(member: EtcdProcess) -> None:
    way = client(member, name="leased")
    kept, lost = await way.grant(300), await way.grant(1)
    await way.swap([], [Change("kept", b"", kept), Change("lost", b"", lost)])
    await asyncio.to_thread(member.kill)
    await asyncio.to_thread(member.spawn_again)

    async def is_gone() -> bool:
        return not await _has(way, "lost")

    await until(is_gone, "the end of a lease")
    assert await way.renew(kept)
    assert not await way.renew(lost)
    assert await _has(way, "kept")
    way.close()


@pytest.mark.slow
async def test_an_etcd_that_wants_to_know_who_asks(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem = authority.certificate_file("127.0.0.1")
    more = {"cert-file": pem, "key-file": pem, "trusted-ca-file": authority.ca_file}
    [member] = await asyncio.to_thread(
        start_etcd, tmp_path / "etcd", more={**more, "client-cert-auth": "true"}
    )
    try:
        await _certificates(member, authority)
        await asyncio.to_thread(_want_passwords, member)
        await _passwords(member)
    finally:
        member.kill()


async def _certificates(member: EtcdProcess, authority: Authority) -> None:
    def over_tls(with_certificate: bool) -> Etcd:
        tls = ClientTls(authority.client_context(with_certificate=with_certificate))
        config = EtcdConfig(endpoints=read_endpoints(member.tls_url), request_limit_s=LIMIT_S)
        clock = SystemClock(asyncio.get_running_loop())
        return Etcd(config, prefix_of("cluster", "tls"), clock, tls)

    way = over_tls(with_certificate=True)
    seen = (await way.read()).revision
    assert await way.swap([], [Change("state", b"1")]) is Swapped.DONE
    async with aclosing(way.watch(seen)) as watch, asyncio.timeout(LIMIT_S):
        assert set((await anext(watch)).entries) == {"state"}
    way.close()
    with pytest.raises(CoordinationError, match="client certificate"):
        await over_tls(with_certificate=False).read()


def _want_passwords(member: EtcdProcess) -> None:
    """Let root in, and a user who may change the keys of one broker name alone."""
    begin = prefix_of("cluster", "ours")
    key, end = (base64.b64encode(each).decode() for each in (begin, begin[:-1] + b"0"))
    allowed = {"permType": "READWRITE", "key": key, "range_end": end}
    for path, said in (
        ("user/add", {"name": "root", "password": "toor"}),
        ("user/grant", {"user": "root", "role": "root"}),
        ("role/add", {"name": "brokers"}),
        ("role/grant", {"name": "brokers", "perm": allowed}),
        ("user/add", {"name": "broker", "password": "hunter2"}),
        ("user/grant", {"user": "broker", "role": "brokers"}),
        ("enable", {}),
    ):
        member.post(f"/v3/auth/{path}", said)


async def _passwords(member: EtcdProcess) -> None:
    known = {"user": "broker", "password": "hunter2"}
    ours = client(member, name="ours", **known)
    seen = (await ours.read()).revision
    lease = await ours.grant(60)
    assert await ours.swap([], [Change("state", b"1", lease)]) is Swapped.DONE
    assert await ours.renew(lease)
    await asyncio.to_thread(member.kill)  # and with it all tokens
    await asyncio.to_thread(member.spawn_again)
    assert await ours.swap([Condition("state", 0)], [Change("state", b"2")]) is Swapped.REFUSED
    async with aclosing(ours.watch(seen)) as watch, asyncio.timeout(LIMIT_S):
        assert set((await anext(watch)).entries) == {"state"}
    ours.close()

    async def refused(way: Etcd, words: str) -> None:
        change = [Change("a", b"")]
        asked: list[Callable[[], Awaitable[object]]] = [way.read, lambda: way.swap([], change)]
        for ask in asked:
            with pytest.raises(CoordinationError, match=words):
                await ask()
        with pytest.raises(CoordinationError):
            await anext(way.watch(seen))
        way.close()

    await refused(client(member, name="theirs", **known), "permission denied.*role of that user")
    await refused(client(member, name="ours"), "user name is empty.*user or password")
    wrong = client(member, name="ours", user="broker", password="wrong")
    await refused(wrong, "authentication failed.*correct them")


async def test_an_etcd_whose_disk_quota_is_used_up(tmp_path: Path) -> None:
    more = {"quota-backend-bytes": 64 * 1024}
    [member] = await asyncio.to_thread(start_etcd, tmp_path, more=more)
    try:
        way = client(member, name="full")
        async with asyncio.timeout(LIMIT_S):
            ends = [await way.swap([], [Change("state", b"x" * 20_000)])]
            while ends[-1] is Swapped.DONE:
                ends.append(await way.swap([], [Change("state", b"x" * 20_000)]))
        assert ends[-1] is Swapped.UNKNOWN
        assert len(ends) > 1
        assert (await way.read()).entries["state"].value == b"x" * 20_000
        way.close()
    finally:
        member.kill()


@pytest.mark.fault
async def test_three_members_of_whom_one_dies_after_the_other(tmp_path: Path) -> None:
    members = await asyncio.to_thread(start_etcd, tmp_path, 3, election_ms=1000)
    ends: list[Swapped | None] = []
    going = True

    async def count(*order: EtcdProcess) -> None:
        way = client(*order, name="three")
        while going:
            ends.append(await add_one(way))
            await asyncio.sleep(0)
        way.close()

    try:
        orders = ((0, 1, 2), (1, 2, 0), (2, 0, 1))
        tasks = [asyncio.ensure_future(count(*(members[n] for n in order))) for order in orders]
        for victim in members:
            so_far = ends.count(Swapped.DONE)
            await until(lambda so_far=so_far: ends.count(Swapped.DONE) > so_far + 50)
            victim.kill()
            so_far = ends.count(Swapped.DONE)
            await until(lambda so_far=so_far: ends.count(Swapped.DONE) > so_far + 50)
            await asyncio.to_thread(victim.spawn_again)
        going = False
        await asyncio.gather(*tasks)

        way = client(*members, name="three")
        read = await way.read()
        done, unknown = ends.count(Swapped.DONE), ends.count(Swapped.UNKNOWN)
        assert done <= int(read.entries["count"].value) <= done + unknown

        # Without a majority a watch ends, and nobody is told anything.
        async with aclosing(way.watch(read.revision)) as watch:
            waiting = asyncio.ensure_future(anext(watch))
            await until(lambda: way._watches)
            watched = next(iter(way._watches)).endpoint
            for victim in members:
                if not victim.url.endswith(str(watched.port)):
                    victim.kill()
            async with asyncio.timeout(LIMIT_S):
                with pytest.raises(CoordinationError, match=r"no leader|read again"):
                    await waiting
        way.close()
    finally:
        for victim in members:
            victim.kill()
