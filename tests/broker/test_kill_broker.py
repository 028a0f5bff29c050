"""Fault tests S1, S12 and S14: a broker process is killed, stopped and doubled under load."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from pathlib import Path
from random import Random

import pytest
from _pytest.mark import ParameterSet

from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from tests.support.amounts import slow
from tests.support.broker_process import WRITE_MODES, BrokerProcess
from tests.support.frame_load import FrameLoad, read_back
from tests.support.patience import LIMIT_S, until
from tests.support.raw_client import RawClient, pull_fields, send_fields
from tests.support.send_history import Outcome, SendHistory

pytestmark = pytest.mark.timing

CONNECTIONS = 8
# The pool under ASYNC_FLUSH promises less: test_kill_pool.py.
MODES = (
    ("plain", "SYNC_FLUSH"),
    ("plain", "ASYNC_FLUSH"),
    ("mapped", "SYNC_FLUSH"),
    ("mapped", "ASYNC_FLUSH"),
    ("pool", "SYNC_FLUSH"),
)


def _full(mode: tuple[str, str], count: int) -> ParameterSet:
    """The amount of `make faults`."""
    return pytest.param(*mode, count, id=f"{'-'.join(mode)}-{count}", marks=pytest.mark.fault)


KILLS = [
    *(slow(*mode, 5, id=f"{'-'.join(mode)}-5") for mode in MODES[:2]),
    *(slow(*mode, 2, id=f"{'-'.join(mode)}-2") for mode in MODES[3:]),
    *(_full(mode, 20 if mode[0] == "plain" else 10) for mode in MODES),
]
STOPS = [
    *(slow(*mode, 2, id=f"{'-'.join(mode)}-2") for mode in MODES[:2]),
    *(_full(mode, 20 if mode[0] == "plain" else 5) for mode in (*MODES, ("pool", "ASYNC_FLUSH"))),
]


def _seed() -> int:
    return int(os.environ.get("SKYLARKMQ_SEED", "1"))


async def _create(client: RawClient, topic: str) -> RemotingCommand:
    """Create a topic by code 17."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    return await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


class _Offsets:
    """I7: the offset of one consumer group, committed all the time, durable now and then."""

    def __init__(self) -> None:
        self.queue = {"topic": "kill-a", "queueId": "0"}
        self.fields = {**self.queue, "consumerGroup": "committing"}
        self.committed = 0  # the highest that was ever asked for
        self.answered = 0  # the highest that was answered
        self.durable = 0  # the highest that a start has shown; 0 is also "never heard of"

    async def commit(self, address: tuple[str, int]) -> None:
        """Commit the queue's end again and again, until the connection ends."""
        client: RawClient | None = None
        try:
            client = await RawClient.open(address)
            while True:
                end = await client.call(RequestCode.GET_MAX_OFFSET, self.queue)
                self.committed = max(self.committed, int(end.ext_fields["offset"]))
                fields = {**self.fields, "commitOffset": str(self.committed)}
                answer = await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                self.answered = self.committed
                await asyncio.sleep(0)
        except (ConnectionError, TimeoutError):
            return
        finally:
            if client is not None:
                await client.close()

    async def check(self, address: tuple[str, int]) -> None:
        """Never ahead of what was committed, never behind what was durable."""
        client = await RawClient.open(address)
        assert (await _create(client, "kill-a")).code == ResponseCode.SUCCESS
        pull = pull_fields("kill-a", group="committing", sysFlag="4")  # makes the group
        await client.call(RequestCode.PULL_MESSAGE, pull)
        answer = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, self.fields)
        await client.close()
        found = int(answer.ext_fields["offset"]) if answer.code == ResponseCode.SUCCESS else 0
        assert self.durable <= found <= self.committed, "I7"
        self.durable = found


class _Topics:
    """I8: topics whose creation was acknowledged."""

    def __init__(self) -> None:
        self.acked: set[str] = set()
        self._count = 0

    async def create(self, address: tuple[str, int]) -> None:
        """Create one after the other, until the connection ends."""
        client: RawClient | None = None
        try:
            client = await RawClient.open(address)
            while True:
                self._count += 1
                name = f"made-{self._count}"
                answer = await _create(client, name)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                self.acked.add(name)
        except (ConnectionError, TimeoutError):
            return
        finally:
            if client is not None:
                await client.close()

    def check(self, root: Path) -> None:
        if not self.acked:
            return
        table = json.loads((root / "config" / "topics.json").read_bytes())["topicConfigTable"]
        assert self.acked <= set(table), "I8"


async def _killed_while_starting(root: Path, settings: dict[str, object], rng: Random) -> None:
    """Start, and kill within 0.6 s, in its recovery or right behind it."""
    process = await BrokerProcess.spawn(root, settings)
    try:
        async with asyncio.timeout(rng.random() * 0.6):
            await process.ready()
            await process.ended()
    except TimeoutError:
        pass
    finally:
        await process.kill()


async def _tables_written(root: Path, topics: _Topics) -> None:
    """Return once both tables have had what this test writes: the first life must last so long."""
    path = root / "config" / "consumerOffset.json"

    def written() -> bool:
        if not path.exists() or not topics.acked:
            return False
        offsets = json.loads(path.read_bytes())["offsetTable"].get("kill-a@committing", {})
        return bool(offsets.get("0"))

    await until(written, "the tables on the disk")


def _busy(write_mode: str) -> set[int]:
    """Refusals that may come: a pool whose buffers are all out asks senders to wait."""
    return {ResponseCode.SYSTEM_BUSY} if write_mode == "pool" else set()


def _settings(write_mode: str, mode: str) -> dict[str, object]:
    return {**WRITE_MODES[write_mode], "flushDiskType": mode, "flushConsumerOffsetInterval": 20}


@pytest.mark.parametrize(("write_mode", "mode", "kills"), KILLS)
async def test_kills_under_load_lose_nothing(
    tmp_path: Path, write_mode: str, mode: str, kills: int
) -> None:
    rng = Random(_seed())
    settings = _settings(write_mode, mode)
    history, offsets, topics = SendHistory(), _Offsets(), _Topics()
    broken_starts = 0
    for life in range(kills):
        process = await (await BrokerProcess.spawn(tmp_path, settings)).ready()
        helpers: list[asyncio.Task[None]] = []
        try:
            await read_back(process.address, history)
            await offsets.check(process.address)
            topics.check(tmp_path)
            load = FrameLoad(history, rng)
            await load.start(process.address, CONNECTIONS)
            helpers = [
                asyncio.ensure_future(offsets.commit(process.address)),
                asyncio.ensure_future(topics.create(process.address)),
            ]
            async with asyncio.timeout(LIMIT_S):
                await load.acked(rng.randrange(50 if life else 1200, 3000))
                await _tables_written(tmp_path, topics)
        finally:
            await process.kill()
            await asyncio.gather(*helpers)
        await load.ended()
        assert {code for code, _ in load.bad_codes} <= _busy(write_mode), (
            load.bad_codes[:3],
            process.tail(),
        )
        if rng.random() < 0.25:
            broken_starts += 1
            await _killed_while_starting(tmp_path, settings, rng)
    process = await (await BrokerProcess.spawn(tmp_path, settings)).ready()
    try:
        await read_back(process.address, history)
        await offsets.check(process.address)
        topics.check(tmp_path)
        again = SendHistory()  # everything once more, from the first offset on
        again.attempts = history.attempts
        await read_back(process.address, again)
    finally:
        await process.kill()
    outcomes = history.outcomes
    assert outcomes[Outcome.OK] >= 50 * kills
    assert outcomes[Outcome.UNKNOWN] >= kills, "no kill came while something was in flight"
    assert len(list((tmp_path / "commitlog").iterdir())) > 2, "the log never rolled"
    assert len(topics.acked) > 0
    assert offsets.durable > 0
    assert broken_starts > 0 or kills < 20


@pytest.mark.parametrize(("write_mode", "mode", "stops"), STOPS)
async def test_a_stop_under_load_is_clean(
    tmp_path: Path, write_mode: str, mode: str, stops: int
) -> None:
    rng = Random(_seed())
    settings: dict[str, object] = {**WRITE_MODES[write_mode], "flushDiskType": mode}
    history, offsets = SendHistory(), _Offsets()
    for _ in range(stops):
        process = await (await BrokerProcess.spawn(tmp_path, settings)).ready()
        assert (tmp_path / "abort").exists()
        try:
            await read_back(process.address, history)
            await offsets.check(process.address)
            assert offsets.durable >= offsets.answered, "a clean stop saves the offsets"
            load = FrameLoad(history, rng)
            await load.start(process.address, CONNECTIONS)
            committing = asyncio.ensure_future(offsets.commit(process.address))
            async with asyncio.timeout(LIMIT_S):
                await load.acked(rng.randrange(200, 1500))
            process.terminate()
            assert await process.ended() == 0, process.tail()
            await load.ended()
            await committing
        finally:
            await process.kill()
        assert not (tmp_path / "abort").exists()
        assert not any(peer.cut_answer_size for peer in load.peers), "an answer was cut"
        assert {code for code, _ in load.bad_codes} <= {
            ResponseCode.SERVICE_NOT_AVAILABLE,
            *_busy(write_mode),
        }
        assert "Traceback" not in process.tail()
    process = await (await BrokerProcess.spawn(tmp_path, settings)).ready()
    try:
        assert "stopped cleanly" in process.tail()
        await read_back(process.address, history)
    finally:
        await process.kill()


@pytest.mark.fault
async def test_a_disk_that_fails_ends_the_process_with_74(tmp_path: Path) -> None:
    """By a limit on the size of files, which lets writes behind the first page fail."""
    process = await (await BrokerProcess.spawn(tmp_path)).ready()
    try:
        resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (4096, 4096))
        client = await RawClient.open(process.address)
        codes = [
            (await client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T"), bytes(3000))).code
            for _ in range(3)
        ]
        assert ResponseCode.SERVICE_NOT_AVAILABLE in codes
        await client.close()
        assert await process.ended() == 74, process.tail()
    finally:
        await process.kill()
    assert (tmp_path / "abort").exists()


@pytest.mark.slow
@pytest.mark.parametrize("removed", [False, True])
async def test_a_second_broker_on_one_store_refuses_with_one_line(
    tmp_path: Path, removed: bool
) -> None:
    first = await (await BrokerProcess.spawn(tmp_path)).ready()
    try:
        if removed:
            (tmp_path / "lock").unlink()
        second = await BrokerProcess.spawn(tmp_path)
        assert await second.ended() != 0
        said = [line for line in second.lines if str(tmp_path) in line]
        assert len(said) == 1, second.tail()
        assert "in use by another broker" in said[0]
        assert "Traceback" not in second.tail()
        client = await RawClient.open(first.address)  # the first one goes on
        assert (await client.call(999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        await client.close()
    finally:
        await first.kill()


@pytest.mark.slow
async def test_of_brokers_started_together_one_gets_the_store(tmp_path: Path) -> None:
    processes = [await BrokerProcess.spawn(tmp_path) for _ in range(3)]
    try:
        outcomes = await asyncio.gather(
            *(process.ready() for process in processes), return_exceptions=True
        )
        assert sum(isinstance(outcome, BrokerProcess) for outcome in outcomes) == 1
    finally:
        for process in processes:
            await process.kill()
