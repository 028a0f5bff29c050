"""How much one client of the gRPC port may have done in a turn of the loop, and how much in all."""

from __future__ import annotations

import asyncio
import gzip
import socket
import zlib
from typing import Any

import pytest

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.grpc.connection import TURN_FRAMES, GrpcConnection, OpenCalls
from skylarkmq.broker.net.server import FRAME_LIMIT_S, SCAN_INTERVAL_S, PeerServer
from skylarkmq.protocol.http2.frames import PREFACE
from skylarkmq.protocol.v5.codes import Code
from skylarkmq.protocol.v5.schema_pb2 import GZIP, Message, SendMessageRequest
from tests.broker.grpc.hostile_rig import Echo, Peer
from tests.broker.grpc.sending_rig import ID, SendingRig, message, sending_rig
from tests.support.fake_transport import Owner
from tests.support.manual_clock import ManualClock, settle
from tests.support.patience import until

READ_SIZE = 64 << 10
CALLS_OF_A_TURN = TURN_FRAMES // 2
CALLS_MAX = 1000
"""Calls that may be worked on between a client's request and its answer; each takes 50 us."""
BODY_MAX = 16 << 10
SMALL_SIZE = 200
"""A body of zeros of BODY_MAX bytes is smaller than that in gzip."""
TCP_CLOSE_WAIT = 8
TURN_MAX = 4 * BODY_MAX
REQUEST_MAX = 64 * BODY_MAX


@pytest.fixture
def owner() -> Owner:
    return Owner()


# Calls


async def test_a_client_waits_for_a_bounded_number_of_calls_of_others(owner: Owner) -> None:
    method = Echo()
    hostile = [Peer(owner, method) for _ in range(2)]
    other = Peer(owner, Echo())
    for peer in hostile:
        peer.say(b"".join(peer.call() for _ in range(READ_SIZE // 40)))
    assert other.is_answered()
    assert method.count <= CALLS_MAX


async def test_calls_of_a_client_that_has_left_are_dropped(owner: Owner) -> None:
    """All that it wrote has come before its end is seen; most of it need not be worked on."""
    method = Echo()
    peer = Peer(owner, method)
    for _ in range(2):
        peer.say(b"".join(peer.call() for _ in range(READ_SIZE // 40)))
    peer.connection.connection_lost(None)
    await settle()
    assert method.count <= CALLS_MAX


async def test_calls_of_a_client_that_nobody_was_told_has_left_are_dropped(owner: Owner) -> None:
    """Its end is not seen while it is not read; the system knows of it."""
    method = Echo()
    peer = Peer(owner, method)
    peer.say(b"".join(peer.call() for _ in range(READ_SIZE // 40)))
    assert not peer.transport.reading
    begun = method.count
    peer.transport.tcp_state = TCP_CLOSE_WAIT
    await settle()
    assert method.count == begun
    assert peer.connection.close_reason == "peer"
    assert peer.transport.ended


async def test_clients_with_many_calls_go_on_in_turns_and_are_all_answered(owner: Owner) -> None:
    shared, count = OpenCalls(), 3 * CALLS_OF_A_TURN + 1
    methods = [Echo() for _ in range(2)]
    peers = [Peer(owner, method, open_calls=shared) for method in methods]
    for peer in peers:
        peer.say(b"".join(peer.call() for _ in range(count)))
    before = [method.count for method in methods]
    assert before == [CALLS_OF_A_TURN] * 2
    while not all(peer.transport.reading for peer in peers):
        await asyncio.sleep(0)
        after = [method.count for method in methods]
        assert sum(after) - sum(before) <= CALLS_OF_A_TURN
        assert abs(after[0] - after[1]) <= CALLS_OF_A_TURN
        before = after
    assert before == [count] * 2
    assert not owner.inbound.size
    assert shared.count == 0


async def test_what_waits_for_a_turn_counts_as_held_and_owes_nothing(owner: Owner) -> None:
    peer = Peer(owner, Echo())
    owner.clock.advance(1)
    at_once, later = (
        b"".join(peer.call() for _ in range(CALLS_OF_A_TURN)) for _ in ("now", "then")
    )
    peer.say(at_once + later)
    assert owner.inbound.size == len(later)
    assert not peer.connection.unfinished_since_s
    peer.connection.writing_paused = True
    await settle()
    assert owner.inbound.size == len(later), "it is to read its answers first"
    peer.connection.resume_writing()
    await settle()
    assert not owner.inbound.size
    assert peer.transport.reading


async def test_one_address_can_not_have_all_open_calls(owner: Owner) -> None:
    """Heads without an end take places, however many connections they come by."""
    shared = OpenCalls(limit=4, address_limit=2)

    def peer(address: str) -> Peer:
        return Peer(owner, Echo(), open_calls=shared, address=address)

    def opens_one(by: Peer) -> bool:
        before = shared.count
        by.say(by.head()[1])
        return shared.count > before

    strangers = [peer("198.51.100.1") for _ in range(3)]
    assert [opens_one(stranger) for stranger in strangers] == [True, True, False]
    other = peer("192.0.2.7")
    assert [opens_one(other) for _ in range(3)] == [True, True, False]
    assert not opens_one(peer("192.0.2.8")), "of all"
    strangers[0].connection.connection_lost(None)
    assert opens_one(strangers[2])
    for left in (*strangers[1:], other):
        left.connection.connection_lost(None)
    assert shared.count == 0
    assert opens_one(peer("198.51.100.1"))


# Bodies


class Opened:
    """Counts the bytes that compressed bodies open to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.size = 0
        made = zlib.decompressobj
        opened = self

        class Reader:
            def __init__(self, *arguments: Any) -> None:
                self._reader = made(*arguments)

            def decompress(self, data: bytes, *limit: int) -> bytes:
                found = self._reader.decompress(data, *limit)
                opened.size += len(found)
                return found

            def __getattr__(self, name: str) -> Any:
                return getattr(self._reader, name)

        monkeypatch.setattr(zlib, "decompressobj", Reader)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    return Opened(monkeypatch)


async def rig() -> SendingRig:
    """A store with a topic, which takes small messages."""
    made = await sending_rig(max_message_size=BODY_MAX)
    made.add_topic()
    return made


def packed(size: int = BODY_MAX) -> Message:
    """A message that is small while nobody opens it."""
    body = gzip.compress(bytes(size), mtime=0)
    assert len(body) < SMALL_SIZE
    return message(body, message_id=ID, body_encoding=GZIP)


async def test_the_bodies_of_a_request_are_opened_over_many_turns(opened: Opened) -> None:
    made = await rig()
    sending = made.begin("SendMessage", SendMessageRequest(messages=[packed()] * 20))
    await asyncio.sleep(0)
    in_a_turn = opened.size
    await made.work()
    assert 0 < in_a_turn <= TURN_MAX
    assert [entry.status.code for entry in sending.result().entries] == [Code.OK] * 20
    assert made.store.commit_log.max_offset > 20 * BODY_MAX


async def test_a_request_does_not_open_to_a_thousand_times_its_size(opened: Opened) -> None:
    made = await rig()
    answer = await made.send_all([packed()] * 200)
    assert opened.size <= REQUEST_MAX, answer.status
    assert answer.status.code == Code.PAYLOAD_TOO_LARGE
    assert "send fewer" in answer.status.message


async def test_of_requests_with_compressed_bodies_one_is_open_at_a_time(opened: Opened) -> None:
    """Each alone may hold what it has opened over many turns; a hundred together may not."""
    made = await rig()
    sends = [
        made.begin("SendMessage", SendMessageRequest(messages=[packed()] * 20)) for _ in range(100)
    ]
    for _ in range(10):
        await asyncio.sleep(0)
    assert opened.size <= 10 * TURN_MAX
    sends[0].cancel()
    for send in sends[2:]:
        send.cancel()
    await made.work()
    assert [send.done() for send in sends] == [True] * len(sends)
    assert sends[1].result().status.code == Code.OK


# Half a greeting


@pytest.mark.parametrize("greeting", [PREFACE[:1], PREFACE[:12], PREFACE])
async def test_who_does_not_finish_its_greeting_is_dropped(greeting: bytes) -> None:
    clock = ManualClock()
    server: PeerServer = PeerServer(clock, BrokerStats(), lambda: GrpcConnection({}, server))
    bound = socket.create_server(("127.0.0.1", 0))
    address = bound.getsockname()
    await server.serve(bound)
    _, writer = await asyncio.open_connection(*address)
    clock.advance(1)
    writer.write(greeting)
    await until(lambda: any(each.last_active_s == clock.monotonic() for each in server.connections))
    clock.advance(FRAME_LIMIT_S + 2 * SCAN_INTERVAL_S)
    try:
        assert all(each.closed or each.close_reason for each in server.connections)
    finally:
        writer.close()
        await server.stop()
        await writer.wait_closed()
