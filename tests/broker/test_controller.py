"""A broker's life: start and stop in order, starts that fail half-way, a disk that fails."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from http.client import HTTPConnection
from pathlib import Path

import pytest

from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.fleet.banner import fleet_fields, fleet_lines
from skylarkmq.broker.start.banner import banner, ready_fields
from skylarkmq.common.files import DiskFiles
from skylarkmq.common.worker import StoreWorkers
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.record import decode_messages
from skylarkmq.store.errors import StoreLockedError
from skylarkmq.store.message_store import StoreState
from tests.support.failing_files import ALWAYS, FailingFiles
from tests.support.live_broker import broker_config, live_broker
from tests.support.manual_clock import ManualClock
from tests.support.patience import LIMIT_S
from tests.support.ports import free_ports
from tests.support.raw_client import RawClient, pull_fields, send_fields

SEND, PULL, CREATE_TOPIC, HEARTBEAT = 310, 11, 17, 34


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


StoreThreads = Callable[[], list[str]]


async def test_a_clean_life_leaves_no_abort_no_thread_and_no_timer(
    tmp_path: Path, store_threads: StoreThreads
) -> None:
    clock = ManualClock()
    async with live_broker(tmp_path, clock=clock) as broker:
        assert (tmp_path / "abort").exists()
        names = {f"skylarkmq-{field.name}" for field in fields(StoreWorkers)}
        assert set(store_threads()) == names | {"skylarkmq-http", "skylarkmq-namesrv-disk"}
        host, port = broker.listen_address
        for each in (port, port - 2):
            client = await RawClient.open((host, each))
            assert (await client.call(SEND, send_fields("T"), b"x")).code == 0
            await client.close()
    assert not (tmp_path / "abort").exists()
    assert store_threads() == []
    assert clock.pending_count == 0
    assert broker.parts.store.state is StoreState.CLOSED


async def test_what_was_sent_before_the_stop_is_there_after_it(tmp_path: Path) -> None:
    for number in range(3):
        async with live_broker(tmp_path) as broker:
            client = await RawClient.open(broker.listen_address)
            assert broker.parts.store.recovery is not None
            assert broker.parts.store.recovery.clean
            answer = await client.call(SEND, send_fields("T"), b"%d" % number)
            assert answer.ext_fields["queueOffset"] == str(number)
            await client.close()


@pytest.mark.parametrize("key", ["metrics_prom_exporter_port", "namesrv_listen_port"])
async def test_a_start_that_finds_a_port_taken_leaves_a_clean_store(
    tmp_path: Path, taken: int, key: str, store_threads: StoreThreads
) -> None:
    clock = ManualClock()
    broker = BrokerController(
        broker_config(tmp_path, **{key: taken}), with_namesrv=True, clock=clock
    )
    with pytest.raises(OSError) as caught:
        await broker.start()
    assert str(taken) in str(caught.value)
    assert not (tmp_path / "abort").exists()
    assert store_threads() == []
    assert clock.pending_count == 0
    async with live_broker(tmp_path) as again:
        assert again.parts.store.recovery is not None
        assert again.parts.store.recovery.clean


async def test_the_pages_of_metrics_can_be_left_out(tmp_path: Path) -> None:
    async with live_broker(tmp_path, metrics_prom_exporter_port=None) as broker:
        assert broker.metrics_address is None
        assert "/metrics" not in banner(broker, 0.0, [])
        assert "metricsAddr" not in ready_fields(broker, 0.0, [])
    fields = fleet_fields([], None, None, 0.0, [])
    assert "metricsAddr" not in fields
    assert not [
        line for line in fleet_lines(broker.config, [], None, None, 0.0, []) if "/m" in line
    ]


async def test_a_taken_listen_port_leaves_the_store_alone(
    tmp_path: Path, taken: int, store_threads: StoreThreads
) -> None:
    broker = BrokerController(broker_config(tmp_path / "store", listen_port=taken))
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{taken}"):
        await broker.start()
    assert not (tmp_path / "store").exists()
    assert store_threads() == []


@pytest.mark.parametrize("is_given", [True, False])
async def test_a_taken_port_for_slaves_leaves_the_store_alone(
    tmp_path: Path, store_threads: StoreThreads, is_given: bool
) -> None:
    taken = free_ports(-1, -3)[0]
    keys = {"ha_listen_port": taken} if is_given else {"listen_port": taken - 1}
    broker = BrokerController(broker_config(tmp_path / "store", **keys))
    with socket.create_server(("127.0.0.1", taken)), pytest.raises(OSError) as caught:
        await broker.start()
    which = "haListenPort" if is_given else "listenPort + 1"
    assert f"cannot listen on 127.0.0.1:{taken}" in str(caught.value)
    assert f"the port for slaves ({which}): set haListenPort to a free one" in str(caught.value)
    assert not (tmp_path / "store").exists()
    assert store_threads() == []


async def test_a_second_broker_of_this_process_is_refused_and_the_first_goes_on(
    tmp_path: Path,
) -> None:
    async with live_broker(tmp_path) as broker:
        with pytest.raises(StoreLockedError, match="in use by another broker"):
            await BrokerController(broker_config(tmp_path)).start()
        client = await RawClient.open(broker.listen_address)
        assert (await client.call(SEND, send_fields("T"), b"x")).code == 0
        await client.close()
        assert (tmp_path / "abort").exists()
    assert not (tmp_path / "abort").exists()


async def test_a_held_pull_is_answered_at_the_stop(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        client = await RawClient.open(broker.listen_address)
        await client.call(SEND, send_fields("T"), b"x")
        held = client.send(PULL, pull_fields("T", 0, 1, sysFlag="6"))
        await client.call(9999)
        assert broker.parts.holding.count == 1
    answer = await client.answer(held)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert answer.ext_fields["nextBeginOffset"] == "1"
    await client.closed()
    await client.close()


class GatedTables(DiskFiles):
    """A disk that writes tables when the test lets it."""

    def __init__(self) -> None:
        self.writing = threading.Event()
        self.writing.set()

    def replace(self, path: Path, data: bytes, *, backup: bool) -> None:
        assert self.writing.wait(LIMIT_S)
        super().replace(path, data, backup=backup)


CREATE = {
    "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
    "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip
BEAT = b"""{"clientID": "c", "producerDataSet": [], "consumerDataSet": [{"groupName": "T",
"consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "unitMode": false,
"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": []}]}"""


@pytest.mark.parametrize(
    ("code", "fields", "body", "table"),
    [(CREATE_TOPIC, CREATE, b"", "topics.json"), (HEARTBEAT, {}, BEAT, "subscriptionGroup.json")],
)
async def test_a_request_that_waits_for_its_table_is_answered_at_the_stop(
    tmp_path: Path, code: int, fields: dict[str, str], body: bytes, table: str
) -> None:
    files = GatedTables()
    async with live_broker(tmp_path, files=files) as broker:
        client = await RawClient.open(broker.listen_address)
        files.writing.clear()
        waiting = client.send(code, fields, body)
        await client.call(9999)
        asyncio.get_running_loop().call_later(0.01, files.writing.set)
    assert (await client.answer(waiting)).code == 0
    assert b'"T"' in (tmp_path / "config" / table).read_bytes()
    await client.close()


async def test_sends_that_wait_for_the_disk_are_answered_at_the_stop(tmp_path: Path) -> None:
    files = FailingFiles()
    async with live_broker(tmp_path, files=files, flush_disk_type="SYNC_FLUSH") as broker:
        client = await RawClient.open(broker.listen_address)
        await client.call(SEND, send_fields("T"), b"first")
        files.syncing.clear()
        opaques = [client.send(SEND, send_fields("T"), b"%d" % number) for number in range(5)]
        await client.call(9999)
        asyncio.get_running_loop().call_later(0.01, files.syncing.set)
    assert [(await client.answer(opaque)).code for opaque in opaques] == [0] * 5
    await client.close()


async def test_a_stop_that_can_not_sync_is_no_clean_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, clock = FailingFiles(), ManualClock()
    async with live_broker(tmp_path, files=files, clock=clock) as broker:
        client = await RawClient.open(broker.listen_address)
        await client.call(SEND, send_fields("T"), b"x")
        await client.close()
        assert not broker.failed
        files.fail("datasync", path="commitlog", error=errno.EIO, times=ALWAYS)
    assert broker.failed
    assert (tmp_path / "abort").exists()
    assert caplog.records[-1].getMessage().endswith("the next start recovers it")
    assert caplog.records[-1].levelno == logging.ERROR
    async with live_broker(tmp_path) as again:
        assert again.parts.store.recovery is not None
        assert not again.parts.store.recovery.clean
        client = await RawClient.open(again.listen_address)
        pulled = await client.call(PULL, pull_fields("T"))
        assert [message.body for message in decode_messages(pulled.body)] == [b"x"]
        await client.close()


async def test_logs_of_a_start_and_a_stop_are_few(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with live_broker(tmp_path):
        pass
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("skylarkmq")]
    assert len(lines) <= 6, "\n".join(lines)
    assert any(line.startswith("the store is empty") for line in lines)
    assert lines[-1] == "the broker has stopped"


class ProbedFiles(DiskFiles):
    """Asks for the health pages while the start reads the store's folder."""

    def __init__(self) -> None:
        self.controller: BrokerController | None = None
        self.answers: dict[str, int] = {}

    def list(self, path: Path) -> list[str]:
        if self.controller is not None and not self.answers:
            for page in ("/livez", "/readyz"):
                assert self.controller.metrics_address is not None
                connection = HTTPConnection(*self.controller.metrics_address, timeout=LIMIT_S)
                connection.request("GET", page)
                self.answers[page] = connection.getresponse().status
        return super().list(path)


async def test_probes_are_answered_while_the_store_is_read(tmp_path: Path) -> None:
    files = ProbedFiles()
    controller = files.controller = BrokerController(broker_config(tmp_path), files=files)
    await controller.start()
    await controller.stop()
    assert files.answers == {"/livez": 200, "/readyz": 503}
