"""Peers that misuse their connections: what each costs, and that it costs nobody else anything.

One test for each kind, over real sockets. Frames that are wrong are in `test_hostile.py`.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from skylarkmq.broker.net.connection import PARKED_MAX
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.frame import FrameDecoder
from skylarkmq.protocol.record import decode_messages
from tests.broker.test_hostile import Canary
from tests.support.broker_process import BrokerProcess, running_broker
from tests.support.failing_files import FailingFiles
from tests.support.heartbeats import consumer_data, heartbeat, subscription
from tests.support.live_broker import live_broker
from tests.support.patience import LIMIT_S, until
from tests.support.raw_client import RawClient, pull_fields, send_fields

pytestmark = pytest.mark.timing

MIB = 1 << 20
SONGS = 20


def _open_files(process: BrokerProcess) -> int:
    return len(os.listdir(f"/proc/{process.process.pid}/fd"))


def _socket_count(pid: int | str) -> int:
    """Count a process's sockets; its files are the store's business, which makes them ahead."""
    count = 0
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it
            count += os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith("socket:")
    return count


def _reset(peer: socket.socket) -> None:
    """Hang up with a reset."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


# Many connections


@pytest.mark.parametrize("count", [100, pytest.param(8000, marks=pytest.mark.fault)])
async def test_idle_connections_cost_little_and_nothing_once_gone(
    tmp_path: Path, count: int
) -> None:
    async with running_broker(tmp_path, maxConnectionsPerAddress=count + 1) as process:
        pid = process.process.pid
        canary = await Canary.open(process.address)
        await canary.sing()
        sockets, before = _socket_count(pid), process.resident_size
        peers: list[socket.socket] = []
        for number in range(count):
            peers.append(socket.create_connection(process.address))
            if number % 100 == 0:
                await canary.sing()
        await until(lambda: _socket_count(pid) == sockets + count)
        assert process.resident_size - before < max(count * 20_480, 8 * MIB)
        for peer in peers:
            peer.close()
        await until(lambda: _socket_count(pid) == sockets)
        await canary.sing()
        await canary.close()


async def test_connections_leave_the_store_its_descriptors(tmp_path: Path) -> None:
    """Under a small limit there are fewer connections, and the store opens what it needs."""
    process = await BrokerProcess.spawn(tmp_path)
    resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE, (256, 256))
    try:
        await process.ready()
        canary = await Canary.open(process.address)
        peers = [socket.create_connection(process.address) for _ in range(200)]
        for number in range(SONGS):
            topic = send_fields(f"opens-files-{number}")
            sent = await canary._client.call(RequestCode.SEND_MESSAGE_V2, topic, b"x")
            assert sent.code == 0, sent.remark
            await canary.sing()
        assert _open_files(process) < 200
        for peer in peers:
            peer.close()
        await (await Canary.open(process.address)).close()
        await canary.close()
    finally:
        await process.kill()


def _queue(topic: str) -> dict[str, str]:
    return {"topic": topic, "queueId": "0"}


async def test_a_storm_of_clients_that_vanish_leaves_nothing(tmp_path: Path) -> None:
    """Members of groups with held pulls and requests half sent, half of them reset."""
    async with live_broker(tmp_path) as broker:
        parts, server = broker.parts, broker.server
        assert server is not None and broker.router is not None
        canary = await Canary.open(broker.listen_address)
        await canary.sing()
        sockets = _socket_count("self")
        for number in range(60):
            peer = socket.create_connection(broker.listen_address)
            peer.sendall(_registered(number) + _held_pull() + _held_pull()[: 1 + number])
            await until(lambda: parts.holding.count > 0 and parts.consumers.client_count > 0)
            if number % 2:
                _reset(peer)
            else:
                peer.shutdown(socket.SHUT_WR)
                peer.close()
        opened = parts.stats  # some are accepted after they have gone
        await until(lambda: opened.connections_opened == 61 and len(server.connections) == 1)
        await until(lambda: not broker.router._tasks)  # type: ignore[union-attr]
        assert parts.holding.count == 0
        assert (parts.consumers.client_count, parts.producers.client_count) == (0, 0)
        assert (server.inbound.size, server.outbound.size) == (0, 0)
        assert _socket_count("self") <= sockets
        await canary.sing()
        await canary.close()


def _registered(number: int) -> bytes:
    storming = consumer_data(f"storm-{number % 3}", subscription("canary"))
    body = heartbeat(f"storm@{number}", storming, producers=["storm-producers"])
    return _frame(RequestCode.HEART_BEAT, {}, body)


def _held_pull() -> bytes:
    fields = pull_fields("canary", 0, 1 << 20, group="storm-pulls", sysFlag="6")
    return _frame(RequestCode.PULL_MESSAGE, {**fields, "queueOffset": "1"})


def _frame(code: int, fields: dict[str, str], body: bytes = b"", opaque: int = 1) -> bytes:
    return encode_command(RemotingCommand.request(code, fields, body, opaque=opaque))


# Slow ones


@pytest.mark.slow
async def test_promises_cost_what_came_and_have_one_limit_together(tmp_path: Path) -> None:
    async with running_broker(tmp_path, maxInboundBuffered=32 * MIB) as process:
        canary = await Canary.open(process.address)
        await canary.sing()
        before = process.resident_size
        promise = struct.pack(">II", 15 * MIB, 100)
        idle = [socket.create_connection(process.address) for _ in range(100)]
        for peer in idle:
            peer.sendall(promise)
        for _ in range(SONGS):
            await canary.sing()
        assert process.resident_size - before < 8 * MIB, "a promise alone costs nothing"
        large = [await asyncio.open_connection(*process.address) for _ in range(6)]
        for _, writer in large:
            writer.write(promise + bytes(14 * MIB))
        ends = {asyncio.ensure_future(_end(reader)) for reader, _ in large}
        async with asyncio.timeout(LIMIT_S):
            while len(ends) > 2:
                _, ends = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        assert process.resident_size - before < 96 * MIB
        for _ in range(SONGS):
            await canary.sing()
        for peer in idle:
            peer.close()
        for _, writer in large:
            writer.transport.abort()
        await canary.close()


async def _end(reader: asyncio.StreamReader) -> None:
    """Return when the broker has hung up."""
    with suppress(ConnectionError):
        await reader.read()


@pytest.mark.slow
async def test_deaf_peers_have_one_limit_together(tmp_path: Path) -> None:
    """Forty times what each alone may leave unread; the canary pulls all the while."""
    async with running_broker(tmp_path, maxOutboundBuffered=32 * MIB) as process:
        client = await RawClient.open(process.address)
        for _ in range(100):
            await client.call(RequestCode.SEND_MESSAGE_V2, send_fields("big"), bytes(32_000))
        canary = await Canary.open(process.address)
        before = highest = process.resident_size
        more = {"sysFlag": "4", "maxMsgBytes": str(4 * MIB), "maxMsgNums": "1024"}
        pulls = _frame(RequestCode.PULL_MESSAGE, pull_fields("big", **more)) * 10
        stalled = [await asyncio.open_connection(*process.address) for _ in range(40)]
        for _, writer in stalled:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(pulls)
            await canary.sing()
            highest = max(highest, process.resident_size)
        for _ in range(SONGS):
            await canary.sing()
            highest = max(highest, process.resident_size)
        assert highest - before < 96 * MIB, f"{(highest - before) // MIB} MiB"
        for _, writer in stalled:
            writer.transport.abort()
        await canary.close()
        await client.close()


# Too many requests


@pytest.mark.parametrize("count", [5000, pytest.param(100_000, marks=pytest.mark.fault)])
async def test_pipelined_requests_that_wait_are_bounded_and_all_answered(
    tmp_path: Path, count: int
) -> None:
    files = FailingFiles()
    async with live_broker(tmp_path, files=files, flush_disk_type="SYNC_FLUSH") as broker:
        canary = await RawClient.open(broker.listen_address)
        await canary.call(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"first")
        files.syncing.clear()
        reader, writer = await asyncio.open_connection(*broker.listen_address)
        request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x")
        parts: list[bytes] = []
        for opaque in range(count):
            request.opaque = opaque
            parts.append(encode_command(request))
        writer.write(b"".join(parts))
        assert broker.server is not None
        busy = next(c for c in broker.server.connections if c.remote_address == _name(writer))
        await until(lambda: busy.parked > PARKED_MAX)
        for _ in range(SONGS):
            await canary.call(RequestCode.GET_MAX_OFFSET, _queue("T"))
        assert busy.parked < PARKED_MAX + (1 << 18) // len(parts[0]) + 2, "one read beyond at most"
        files.syncing.set()
        answers = await _answers(reader, count)
        assert [answer.opaque for answer in answers] == list(range(count))
        offsets = [int(answer.ext_fields["queueOffset"]) for answer in answers]
        assert offsets == list(range(1, count + 1))
        writer.close()
        await canary.close()


def _name(writer: asyncio.StreamWriter) -> str:
    host, port = writer.get_extra_info("sockname")[:2]
    return f"{host}:{port}"


async def _answers(reader: asyncio.StreamReader, count: int) -> list[RemotingCommand]:
    decoder = FrameDecoder()
    answers: list[RemotingCommand] = []
    async with asyncio.timeout(LIMIT_S):
        while len(answers) < count:
            data = await reader.read(MIB)
            assert data, f"closed after {len(answers)} answers"
            answers += map(decode_command, decoder.feed(data))
    return answers


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_no_answer_is_lost_and_none_comes_twice(tmp_path: Path, flush: str) -> None:
    """Many pipelining clients beyond every limit: each send is stored and acknowledged, or neither.

    Meanwhile others hang up in the middle of frames, promise what does not come, or do not read.
    """
    settings: dict[str, object] = {"flushDiskType": flush, "sendThreadPoolQueueCapacity": 40}
    async with running_broker(tmp_path, **settings) as process:
        first = await RawClient.open(process.address)
        await first.call(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"first")
        disturbance = asyncio.ensure_future(_disturb(process.address))
        told = await asyncio.gather(*(_pipeline(process.address, n) for n in range(6)))
        disturbance.cancel()
        acked: dict[int, bytes] = {0: b"first"}
        refused: set[bytes] = set()
        for bodies, answers in told:
            assert Counter(a.opaque for a in answers) == Counter(range(len(bodies)))
            for answer in answers:
                if answer.code == 0:
                    offset = int(answer.ext_fields["queueOffset"])
                    assert offset not in acked
                    acked[offset] = bodies[answer.opaque]
                else:
                    assert answer.code == 2, answer.remark
                    assert (answer.remark or "").startswith("[OVERLOAD]system busy")
                    refused.add(bodies[answer.opaque])
        assert await _stored(first) == [acked[offset] for offset in range(len(acked))]
        assert not refused & set(acked.values())
        assert bool(refused) == (flush == "SYNC_FLUSH"), "only who waits for the disk fills it"
        await first.close()


async def _pipeline(
    address: tuple[str, int], number: int
) -> tuple[list[bytes], list[RemotingCommand]]:
    bodies = [b"%d-%d" % (number, index) for index in range(200)]
    reader, writer = await asyncio.open_connection(*address)
    for opaque, body in enumerate(bodies):
        writer.write(_frame(RequestCode.SEND_MESSAGE_V2, send_fields("T"), body, opaque))
        if opaque % 7 == number % 7:
            await asyncio.sleep(0)  # so that they come in many reads
    answers = await _answers(reader, len(bodies))
    # A sound request behind them: what came twice would stand in front of its answer.
    writer.write(_frame(RequestCode.GET_MAX_OFFSET, _queue("T"), opaque=-1))
    (last,) = await _answers(reader, 1)
    assert last.opaque == -1
    writer.close()
    return bodies, answers


async def _disturb(address: tuple[str, int]) -> None:
    whole = _frame(RequestCode.SEND_MESSAGE_V2, send_fields("other"), bytes(500))
    peers: list[socket.socket] = []
    try:
        for number in range(10_000):
            peer = socket.create_connection(address)
            peer.setblocking(False)
            peer.send((whole * 3)[: 50 + number * 37 % (2 * len(whole))])
            peers.append(peer)
            if len(peers) > 20:
                _reset(peers.pop(0))
            await asyncio.sleep(0)
    finally:
        for peer in peers:
            peer.close()


async def _stored(client: RawClient) -> list[bytes]:
    bodies: list[bytes] = []
    while True:
        fields = {**pull_fields("T", 0, len(bodies)), "maxMsgNums": "1024"}
        answer = await client.call(RequestCode.PULL_MESSAGE, fields)
        if answer.code != 0:
            return bodies
        bodies += [message.body for message in decode_messages(answer.body)]


# Too many names


async def test_topics_have_a_limit_with_a_clear_answer(tmp_path: Path) -> None:
    async with live_broker(tmp_path, max_topics=30) as broker:
        client = await RawClient.open(broker.listen_address)
        codes: list[int] = []
        for number in range(40):
            fields = send_fields(f"flood-{number}")
            answer = await client.call(RequestCode.SEND_MESSAGE_V2, fields, b"x")
            codes.append(answer.code)
        assert sorted(set(codes)) == [0, 1]
        assert codes == sorted(codes), "the first ones are made, the later ones are not"
        assert "maxTopics=30" in (answer.remark or "")
        assert len(broker.parts.topics.table) == 30
        assert (await client.call(310, send_fields("flood-0"), b"x")).code == 0
        for count in ("0", "-1", "1025", "2147483647"):
            made = {
                "topic": "wide", "defaultTopic": "TBW102", "readQueueNums": count,
                "writeQueueNums": count, "perm": "6", "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0", "order": "false",
            }  # fmt: skip
            answer = await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, made)
            assert answer.code == 1, count
        await client.close()
