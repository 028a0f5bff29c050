"""Hostile peers against a live broker: each costs its own connection, nobody else anything."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.flags import validate_topic
from skylarkmq.protocol.frame import FrameDecoder
from skylarkmq.protocol.record import decode_messages
from tests.support.amounts import slow
from tests.support.broker_process import running_broker
from tests.support.hostile_frames import Item, deep_json, hostile_items
from tests.support.patience import LIMIT_S
from tests.support.raw_client import RawClient, pull_fields, send_fields

pytestmark = pytest.mark.timing

AT_ONCE = 16
REMARK_MAX = 1100  # bytes that an answer may say
MIB = 1 << 20
PROBE = encode_command(RemotingCommand.request(999, opaque=77))


class Canary:
    """An honest client that sends and reads all the while."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self.rounds = 0

    @classmethod
    async def open(cls, address: tuple[str, int]) -> Canary:
        return cls(await RawClient.open(address))

    async def sing(self) -> None:
        """Send one message and read it; fails when that takes as long as a hang."""
        body = b"canary %d" % self.rounds
        sent = await self._client.call(RequestCode.SEND_MESSAGE_V2, send_fields("canary"), body)
        assert (sent.code, sent.ext_fields["queueOffset"]) == (0, str(self.rounds)), sent.remark
        pull = pull_fields("canary", 0, self.rounds, group="canary")
        pulled = await self._client.call(RequestCode.PULL_MESSAGE, pull)
        assert [message.body for message in decode_messages(pulled.body)] == [body]
        self.rounds += 1

    async def close(self) -> None:
        await self._client.close()


async def _provoke(address: tuple[str, int], item: Item, seen: Counter[str]) -> None:
    """Write the bytes and a sound request behind them, and read until the broker hangs up."""
    name, data = item
    reader, writer = await asyncio.open_connection(*address)
    answers = 0
    try:
        async with asyncio.timeout(LIMIT_S):
            writer.write(data + PROBE)
            writer.write_eof()
            decoder = FrameDecoder()
            while part := await reader.read(1 << 16):
                for frame in decoder.feed(part):
                    answer = decode_command(frame)
                    answers += 1
                    assert len((answer.remark or "").encode()) <= REMARK_MAX, (item, answer.remark)
            assert decoder.buffered_size == 0, "an answer was cut"
    except ConnectionError:
        seen["reset"] += 1
    except TimeoutError:
        raise AssertionError(f"neither answered nor closed: {name} {data[:200]!r}") from None
    finally:
        writer.close()
    seen[name] += 1
    seen["answered" if answers else "closed"] += 1


@pytest.mark.parametrize("count", [100, slow(1250), pytest.param(5000, marks=pytest.mark.fault)])
async def test_hostile_frames_cost_their_connection_only(tmp_path: Path, count: int) -> None:
    root = tmp_path / "store"
    items = hostile_items(Random(int(os.environ.get("SKYLARKMQ_SEED", "1"))))
    seen: Counter[str] = Counter()
    async with running_broker(root) as process:
        canary = await Canary.open(process.address)
        start = highest = process.resident_size
        sizes: list[int] = []
        for number in range(0, count, AT_ONCE):
            batch = [next(items) for _ in range(AT_ONCE)]
            try:
                await asyncio.gather(
                    canary.sing(), *(_provoke(process.address, item, seen) for item in batch)
                )
            except AssertionError as error:
                shown = [(name, data[:120]) for name, data in batch]
                text = f"{error}\nafter {number}: {shown}\n{process.tail()}"
                raise AssertionError(text) from error
            assert process.process.returncode is None, process.tail()
            sizes.append(process.resident_size)
            highest = max(highest, sizes[-1])
        assert highest - start < 96 * MIB, f"at most {highest - start} bytes"
        kept = sizes[-1] - sizes[len(sizes) * 2 // 3]
        assert kept < max(2048 * count // 3, 16 * MIB), f"{kept} bytes were kept"
        assert "Traceback" not in process.tail()
        # By the clock: of a hundred on a busy machine most may have their line.
        assert process.line_count < max(count // 2, 100), "the log is not limited"
        await canary.close()
    assert canary.rounds >= count // AT_ONCE
    assert len([name for name in seen if name not in ("answered", "closed", "reset")]) == 16
    assert min(seen["answered"], seen["closed"]) > count // 10
    _check_files(tmp_path)


def _check_files(folder: Path) -> None:
    """Nothing lies outside of the store, and every name in it is one that is allowed."""
    assert os.listdir(folder) == ["store"]
    queues = folder / "store" / "consumequeue"
    for topic in os.listdir(queues) if queues.exists() else ():
        assert validate_topic(topic) is None
    tables = folder / "store" / "config"
    topics = json.loads((tables / "topics.json").read_bytes())["topicConfigTable"]
    assert all(validate_topic(topic) is None for topic in topics)
    groups = json.loads((tables / "subscriptionGroup.json").read_bytes())["subscriptionGroupTable"]
    assert all(validate_topic(group) is None for group in groups)


@pytest.mark.slow
async def test_what_a_hostile_header_held_is_freed_with_its_connection(tmp_path: Path) -> None:
    """Collections are rare in the daemon, so nothing of a bad frame may wait for one."""
    rng, seen = Random(1), Counter[str]()
    async with running_broker(tmp_path) as process:
        sizes: list[int] = []
        for _ in range(25):
            items = [("deep_json", deep_json(rng)) for _ in range(8)]
            await asyncio.gather(*(_provoke(process.address, item, seen) for item in items))
            sizes.append(process.resident_size)
        assert max(sizes) - sizes[0] < 24 * MIB, [size // MIB for size in sizes]


async def _filled(address: tuple[str, int], *, count: int, size: int) -> None:
    """Put messages into queue 0 of a topic."""
    client = await RawClient.open(address)
    for _ in range(count):
        opaque = client.send(RequestCode.SEND_MESSAGE_V2, send_fields("big"), bytes(size))
        assert (await client.answer(opaque)).code == ResponseCode.SUCCESS
    await client.close()


def _pulls(count: int) -> bytes:
    fields = pull_fields("big", sysFlag="4", maxMsgBytes=str(4 * MIB), maxMsgNums="1024")
    command = RemotingCommand.request(RequestCode.PULL_MESSAGE, fields)
    parts: list[bytes] = []
    for opaque in range(count):
        command.opaque = opaque
        parts.append(encode_command(command))
    return b"".join(parts)


async def test_a_peer_that_asks_and_never_reads_is_bounded_in_memory(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as process:
        await _filled(process.address, count=40, size=32_000)
        canary = await Canary.open(process.address)
        before = process.resident_size
        peers = [await asyncio.open_connection(*process.address) for _ in range(4)]
        for _, writer in peers:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(_pulls(2000))  # 2.5 GB of answers, if they were all given
        highest = before
        for _ in range(50):
            await canary.sing()
            highest = max(highest, process.resident_size)
        assert highest - before < 4 * 24 * MIB, f"{(highest - before) // MIB} MiB"
        for _, writer in peers:
            writer.transport.abort()
        await canary.sing()
        await canary.close()


@pytest.mark.slow
async def test_a_peer_that_pipelines_pulls_and_reads_gets_every_answer(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as process:
        await _filled(process.address, count=40, size=32_000)
        before = process.resident_size
        reader, writer = await asyncio.open_connection(*process.address)
        writer.write(_pulls(100))  # 128 MB of answers
        decoder, highest = FrameDecoder(), before
        opaques: list[int] = []
        async with asyncio.timeout(LIMIT_S):
            while len(opaques) < 100:
                part = await reader.read(1 << 20)
                assert part, process.tail()
                for frame in decoder.feed(part):
                    answer = decode_command(frame)
                    assert answer.code == ResponseCode.SUCCESS
                    opaques.append(answer.opaque)
                    highest = max(highest, process.resident_size)
        assert opaques == list(range(100))
        assert highest - before < 24 * MIB, f"{(highest - before) // MIB} MiB"
        writer.close()


async def test_a_zero_in_a_property_is_refused(tmp_path: Path) -> None:
    """Recovery reads zeros there as a sector that never reached the disk."""
    async with running_broker(tmp_path) as process:
        client = await RawClient.open(process.address)
        for _ in range(2):  # the first one makes the topic, the second goes the fast path
            answer = await client.call(
                RequestCode.SEND_MESSAGE_V2, send_fields("T", 0, "KEYS\x01a\x00b\x02"), b"body"
            )
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            good = await client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"body")
            assert good.code == ResponseCode.SUCCESS
        await client.close()
