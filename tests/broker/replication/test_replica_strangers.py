"""Who is no replica of this log is turned away, and costs nobody else anything."""

from __future__ import annotations

import logging
import os
from random import Random
from typing import Any

import pytest

from skylarkmq.broker.base.addresses import AddressList
from skylarkmq.broker.base.ha_protocol import encode_report
from skylarkmq.broker.replication.failover.replica_events import (
    Beat,
    Confirm,
    Promise,
    Refused,
    TakeOver,
    Welcome,
)
from skylarkmq.broker.replication.failover.replica_links import (
    CONNECTIONS_MAX,
)
from skylarkmq.broker.replication.failover.replica_protocol import (
    MAGIC,
    PREFACE,
    encode_greeting,
    encode_message,
)
from skylarkmq.common.throttled_log import INTERVAL_S
from tests.broker.replication.links_rig import (
    ROWS,
    TERM,
    RawFollower,
    Replica,
    Replicas,
    hello,
    identity,
    replicas,
)

pytestmark = pytest.mark.timing

SEED = int(os.environ.get("SKYLARKMQ_SEED", "7"))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"cluster": "other"}, "brokerClusterName"),
        ({"broker_name": "broker-b"}, "brokerName"),
        ({"replica": "a"}, "copied store"),
        ({"log_file_size": 1 << 20}, "mappedFileSizeCommitLog"),
    ],
)
async def test_a_foreign_replica_is_told_why(
    changes: dict[str, Any], word: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with replicas() as some:
        a, b = await some.add("a"), await some.add("b", changes)
        b.links.send("a", hello(7), a.address)
        await some.see(lambda: b.lost)
        [refused] = b.messages
        assert isinstance(refused, Refused)
        assert (refused.term, refused.session) == (0, 7)
        assert word in refused.why
        assert a.heard == []
        assert b.lost == ["a"]
        await some.see(lambda: not a.links._incoming)
        assert a.lost == []
        assert a.refused == [("foreign", changes.get("replica", "b"), refused.why)]
        assert [(kind, why) for kind, _, why in b.refused] == [("refused", refused.why)]
        assert "refuses this replica" in caplog.text
        assert "closing replica" in caplog.text


async def test_a_refusal_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with replicas() as some:
        a, b = await some.add("a"), await some.add("b", {"cluster": "other"})
        for number in range(1, 5):
            b.links.send("a", hello(number), a.address)
            await some.see(lambda number=number: len(b.lost) == number)
        assert caplog.text.count("closing replica 'b'") == 1
        assert caplog.text.count("'a' at") == 1
        a.link_clock.advance(INTERVAL_S)
        b.links.send("a", hello(5), a.address)
        await some.see(lambda: len(b.lost) == 5)
        assert caplog.text.count("closing replica 'b'") == 2


async def test_a_replica_that_was_mended_is_heard() -> None:
    async with replicas() as some:
        a = await some.add("a")
        await foreign_visit(some, a)
        assert [kind for kind, _, _ in a.refused] == ["foreign"]
        b = await some.add("b")
        b.links.send("a", hello(1), a.address)
        await some.see(lambda: a.heard)
        assert len(a.refused) == 1


async def foreign_visit(some: Replicas, a: Replica) -> None:
    raw = await RawFollower().connect(a.address)
    await raw.say(encode_greeting(identity("x", cluster="other"), hello(1)))
    await some.see(raw.is_over)
    raw.leave()


@pytest.mark.parametrize("offset", [0, 1, 1 << 40])
async def test_a_slave_of_4_9_is_turned_away(offset: int, caplog: pytest.LogCaptureFixture) -> None:
    async with replicas() as some:
        a = await some.add("a")
        for _ in range(3):
            raw = await RawFollower().connect(a.address)
            for place in range(8):
                await raw.say(encode_report(offset)[place : place + 1])
            await some.see(raw.is_over)
            assert raw.received == 0
            raw.leave()
        assert caplog.text.count("as a slave of RocketMQ 4.9 does") == 1
        assert [kind for kind, _, _ in a.refused] == ["slave"] * 3


@pytest.mark.parametrize(
    ("links", "is_taken"),
    [
        ({"allowed": AddressList(["127.0.0.*"])}, True),
        ({"allowed": AddressList(["192.0.2.*"])}, False),
        ({"only_local": True}, True),
    ],
)
async def test_who_may_connect(links: dict[str, Any], is_taken: bool) -> None:
    async with replicas() as some:
        a, b = await some.add("a", links), await some.add("b")
        b.links.send("a", hello(1), a.address)
        await some.see(lambda: a.heard or b.lost)
        assert bool(a.heard) is is_taken
        kinds = [kind for kind, _, _ in a.refused]
        assert kinds == ([] if is_taken else ["address"])


async def test_the_number_of_connections_is_bounded() -> None:
    async with replicas() as some:
        a = await some.add("a")
        raws = [await RawFollower().connect(a.address) for _ in range(CONNECTIONS_MAX)]
        await some.see(lambda: len(a.links._incoming) == CONNECTIONS_MAX)
        extra = await RawFollower().connect(a.address)
        await some.see(extra.is_over)
        assert not any(raw.is_over() for raw in raws)
        raws.pop().leave()
        await some.see(lambda: len(a.links._incoming) < CONNECTIONS_MAX)
        b = await some.add("b")
        b.links.send("a", hello(1), a.address)
        await some.see(lambda: a.heard)
        for raw in (*raws, extra):
            raw.leave()


async def test_a_greeting_byte_by_byte() -> None:
    async with replicas() as some:
        a = await some.add("a")
        raw = await RawFollower().connect(a.address)
        said = encode_greeting(identity("raw"), hello(5, 40, ROWS))
        said += encode_message(Confirm(TERM, 5, 40)) + encode_message(Promise(TERM, 5, 1.5, 40))
        for place in range(len(said)):
            await raw.say(said[place : place + 1])
            if place % 16 == 0:
                some.turn()
                await some.see(lambda: True)
        await some.see(lambda: len(a.heard) == 3)
        assert a.messages == [hello(5, 40, ROWS), Confirm(TERM, 5, 40), Promise(TERM, 5, 1.5, 40)]
        raw.leave()


async def test_the_log_byte_by_byte() -> None:
    async with replicas() as some:
        a, b = await some.add("a"), await some.add("b")
        b.links.send("a", hello(1), a.address)
        await some.see(lambda: a.heard)
        a.put_many(3)
        master = b.links.master
        assert master is not None
        whole = master.data_received

        def in_bytes(data: bytes) -> None:
            for place in range(len(data)):
                whole(data[place : place + 1])

        master.data_received = in_bytes  # type: ignore[method-assign]
        transport = master._transport
        assert transport is not None
        a.links.send("b", Welcome(TERM, 1, None, 0, ROWS))
        a.links.open_stream("b", TERM, 1, 0, ROWS)
        await some.see(lambda: len(b.data()) == a.end)
        assert b.data() == a.log_bytes()


async def test_what_follows_a_message_that_ends_the_connection_is_not_heard() -> None:
    async with replicas() as some:
        a = await some.add("a")
        raw = await RawFollower().connect(a.address)
        hear = a.links.hear

        def refuse(sender: str, message: Any) -> None:
            hear(sender, message)
            a.links.send(sender, Refused(TERM, 5, "no"))

        a.links.hear = refuse
        confirm = encode_message(Confirm(TERM, 5, 40))
        await raw.say(encode_greeting(identity("raw"), hello(5)) + confirm)
        await some.see(raw.is_over)
        assert a.messages == [hello(5)]
        assert raw.messages == [Refused(TERM, 5, "no")]
        raw.leave()


# Whatever comes


def garbage(rng: Random) -> bytes:
    """Bytes that no follower sends; some begin as one."""
    good = encode_greeting(identity(rng.choice(["x", "y"])), hello(rng.randint(1, 9), 5, ROWS))
    later = b"".join(
        encode_message(message)
        for message in (Confirm(TERM, 1, 7), Promise(TERM, 1, 0.5, 7), Confirm(TERM, 2, 1 << 60))
    )
    of_a_master = b"".join(
        encode_message(message)
        for message in (Beat(TERM, 1, 0.5, 7), TakeOver(TERM, 1), Welcome(TERM, 1, None, 0, ()))
    )
    kind = rng.randrange(7)
    noise = rng.randbytes(rng.randint(1, 300))
    if kind == 0:
        return noise
    if kind == 1:
        return MAGIC + noise
    if kind == 2:
        return PREFACE + noise
    if kind == 3:
        return good + noise
    if kind == 4:
        return good + of_a_master
    said = bytearray(good + later)
    for _ in range(rng.randint(1, 3)):
        said[rng.randrange(len(said))] ^= 1 << rng.randrange(8)
    return bytes(said[: rng.randint(1, len(said))]) if kind == 5 else bytes(said) + noise


async def test_random_bytes_cost_their_connection_at_most(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A replica beside them is fed, and nothing of them stays."""
    rng = Random(SEED)
    caplog.set_level(logging.ERROR)
    async with replicas() as some:
        a, b = await some.add("a"), await some.add("b", broker_role="SLAVE")
        a.answers = b.answers = True
        b.links.send("a", hello(1), a.address)
        for number in range(250):
            raw = await RawFollower().connect(a.address)
            said = garbage(rng)
            cut = rng.randint(0, len(said))
            await raw.say(said[:cut])
            if rng.random() < 0.3:
                some.turn()
                await some.see(lambda: True)
            await raw.say(said[cut:])
            if rng.random() < 0.3:
                raw.is_over()
            raw.leave()
            if number % 10 == 0:
                a.put_many(1)
                a.links.turns.stored()
                await some.see(lambda: b.end == a.end, f"the copy, seed {SEED}")
        await some.see(lambda: list(a.links.followers) == ["b"], f"their end, seed {SEED}")
        await some.see(lambda: len(a.links._incoming) == 1, f"their end, seed {SEED}")
        assert b.log_bytes() == a.log_bytes()
        assert "b" not in a.lost
        assert b.lost == []
        assert caplog.records == [], f"seed {SEED}"


async def test_random_bytes_of_a_master_cost_the_connection_at_most(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rng = Random(SEED)
    caplog.set_level(logging.ERROR)
    async with replicas() as some:
        a, b = await some.add("a"), await some.add("b")
        for session in range(1, 60):
            b.links.send("a", hello(session), a.address)
            await some.see(lambda session=session: ("b", hello(session)) in a.heard)
            before = len(b.lost)
            good = encode_message(Welcome(TERM, session, None, 0, ROWS))
            noise = rng.randbytes(rng.randint(40, 400))
            said = bytearray(rng.choice([noise, good + noise, good * 2, good]))
            if bytes(said) == good:
                said[rng.randrange(2)] ^= 0x40  # no such kind
            transport = a.links.followers["b"]._transport
            assert transport is not None
            transport.write(bytes(said))
            await some.see(lambda before=before: len(b.lost) > before)
            assert len(b.lost) == before + 1
            assert b.links.master is None
        assert {kind for kind, _, _ in b.refused} == {"protocol"}
        assert caplog.records == []
