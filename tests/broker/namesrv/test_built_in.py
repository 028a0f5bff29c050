"""The name server of a broker's process, on a thread of its own: it answers while a disk stalls."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylarkmq.broker import serving
from skylarkmq.broker.config.config_file import ConfigOrigin, Sources, load_broker_config
from skylarkmq.broker.controller import EXIT_NAMESRV_FAILED, BrokerController
from skylarkmq.broker.namesrv.built_in import THREAD_NAME
from skylarkmq.broker.namesrv.controller import NamesrvController
from skylarkmq.broker.net.loop_thread import LoopThread
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.store.progress import Progress, StartEnded
from tests.support.failing_files import ALWAYS, FailingFiles
from tests.support.live_broker import broker_config
from tests.support.patience import LIMIT_S, until
from tests.support.raw_client import RawClient, send_fields

pytestmark = pytest.mark.timing

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
ELSEWHERE = {
    "brokerName": "broker-b",
    "brokerAddr": "10.0.0.7:10911",
    "clusterName": "DefaultCluster",
    "haServerAddr": "10.0.0.7:10912",
    "brokerId": "0",
    "compressed": "false",
    "bodyCrc32": "0",
}
TOPICS_ELSEWHERE = (
    b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"timestamp":1},"topicConfigTable":'
    b'{"U":{"topicName":"U","perm":6,"readQueueNums":4,"writeQueueNums":4}}},"filterServerList":[]}'
)


class Site:
    """A broker in a loop of its own; clients are in the test's."""

    def __init__(self, broker: BrokerController, files: FailingFiles) -> None:
        self.broker = broker
        self.files = files

    async def client(self) -> RawClient:
        return await RawClient.open(self.broker.listen_address)

    async def names(self) -> RawClient:
        assert self.broker.namesrv_address is not None
        return await RawClient.open(self.broker.namesrv_address)


@asynccontextmanager
async def site_on(root: Path, **changes: object) -> AsyncIterator[Site]:
    files = FailingFiles()
    loop = LoopThread("broker of the test")
    broker = BrokerController(broker_config(root, **changes), with_namesrv="thread", files=files)
    try:
        await loop.call(broker.start())
        try:
            yield Site(broker, files)
        finally:
            files.writing.set()
            await loop.call(broker.stop())
    finally:
        await loop.stop()


async def test_routes_and_registrations_are_answered_while_the_disk_stands(tmp_path: Path) -> None:
    async with site_on(tmp_path) as site:
        client, names = await site.client(), await site.names()
        assert (await client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"0")).code == 0
        site.files.writing.clear()
        held = client.send(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"1")
        await asyncio.to_thread(site.files.is_waiting.wait, LIMIT_S)
        other = await site.names()
        registered = await other.call(RequestCode.REGISTER_BROKER, ELSEWHERE, TOPICS_ELSEWHERE)
        assert registered.code == ResponseCode.SUCCESS
        for peer in (names, other):
            for topic in ("T", "U"):
                assert (await peer.call(ROUTE, {"topic": topic})).code == ResponseCode.SUCCESS
            assert (await peer.call(RequestCode.GET_BROKER_CLUSTER_INFO)).code == 0
        assert site.files.is_waiting.is_set(), "the loop still stands in the write"
        site.files.writing.set()
        assert (await client.answer(held)).code == ResponseCode.SUCCESS
        for peer in (client, names, other):
            await peer.close()


async def test_what_a_broker_answered_counts_for_the_next_question(tmp_path: Path) -> None:
    async with site_on(tmp_path) as site:
        client, names = await site.client(), await site.names()
        for number in range(5):
            topic = f"T{number}"
            fields = {"topic": topic, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
            fields |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
            made = await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
            assert made.code == ResponseCode.SUCCESS
            assert (await names.call(ROUTE, {"topic": topic})).code == ResponseCode.SUCCESS
            gone = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
            assert gone.code == ResponseCode.SUCCESS
            assert (await names.call(ROUTE, {"topic": topic})).code == ResponseCode.TOPIC_NOT_EXIST
        for peer in (client, names):
            await peer.close()


async def test_its_texts_are_kept_and_a_disk_that_fails_there_is_the_stores(
    tmp_path: Path,
) -> None:
    put = {"namespace": "n", "key": "k", "value": "v"}
    async with site_on(tmp_path) as site:
        names = await site.names()
        assert (await names.call(RequestCode.PUT_KV_CONFIG, put)).code == ResponseCode.SUCCESS
        await names.close()
    async with site_on(tmp_path) as site:
        names = await site.names()
        kept = await names.call(RequestCode.GET_KV_CONFIG, {"namespace": "n", "key": "k"})
        assert kept.ext_fields["value"] == "v"
        site.files.fail("rename", path="kvConfig", times=ALWAYS)
        lost = await names.call(RequestCode.PUT_KV_CONFIG, put | {"value": "w"})
        assert lost.code == ResponseCode.SERVICE_NOT_AVAILABLE
        await until(lambda: site.broker.parts.store.failure is not None)
        site.files.heal()
        await names.close()


async def test_a_start_that_fails_and_a_stop_leave_no_thread(
    tmp_path: Path, store_threads: Callable[[], list[str]]
) -> None:
    async with site_on(tmp_path) as site:
        assert THREAD_NAME in store_threads()
        names = await site.names()
        assert site.broker.namesrv_address is not None
        port = site.broker.namesrv_address[1]
        with pytest.raises(OSError, match=str(port)):
            async with site_on(tmp_path / "other", namesrv_listen_port=port):
                pass
    await names.closed()
    await names.close()
    assert store_threads() == []


async def test_a_thread_that_ends_by_itself_ends_the_process(
    tmp_path: Path, store_threads: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    def end(_: NamesrvController) -> None:
        raise SystemExit

    async with site_on(tmp_path) as site:
        assert site.broker._built_in is not None and site.broker.ended is not None
        site.broker._built_in.tell(end)
        await until(site.broker.ended.done)
        assert site.broker.ended.result() == EXIT_NAMESRV_FAILED
        client = await site.client()
        sent = await client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"0")
        assert sent.code == ResponseCode.SUCCESS, "the stop that follows is a clean one"
        await client.close()
    assert f"the loop of {THREAD_NAME} has broken" in caplog.text
    assert site.broker.namesrv is not None and site.broker.namesrv._worker is not None
    site.broker.namesrv._worker.stop()  # else it would end with the process
    assert store_threads() == []
    assert not (tmp_path / "abort").exists()


def test_a_server_has_its_name_server_on_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    class Broker(BrokerController):
        async def start(self, progress: Progress | None = None) -> None:
            made.append(self._with_namesrv)
            raise StartEnded

    monkeypatch.setattr(serving, "BrokerController", Broker)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    settings = [f"storePathRootDir={tmp_path}"]
    loaded = load_broker_config(Sources(settings=settings))
    for with_namesrv in (True, False):
        work = serving.serve_broker(loaded, "text", ConfigOrigin(), None, with_namesrv=with_namesrv)
        assert asyncio.run(work) == 0
    assert made == ["thread", False]
