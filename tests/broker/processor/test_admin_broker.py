"""Changing a running broker's configuration, and telling it; its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.config.config_file import KEYS as CONFIG_KEYS
from skylarkmq.broker.config.config_file import ConfigOrigin
from skylarkmq.broker.delay.delay_offsets import DelayOffsetTable
from skylarkmq.broker.delay.schedule_service import ScheduleMessageService
from skylarkmq.broker.metrics.rates import BrokerRates
from skylarkmq.broker.metrics.runtime_info import RuntimeInfo
from skylarkmq.broker.processor.admin.broker import AdminBrokerProcessor, is_local
from skylarkmq.broker.tables import live_config
from skylarkmq.broker.tables.live_config import LiveConfig
from skylarkmq.common.table_file import TableWriter
from skylarkmq.protocol.bodies.route import KVTable
from skylarkmq.protocol.bodies.text import decode_body
from skylarkmq.protocol.command import RemotingCommand
from tests.broker.group_rig import FakeConnection, GroupRig, ask, request

LOCAL = "127.0.0.1:40000"


class Rig(GroupRig):
    def __init__(self) -> None:
        super().__init__(broker_cluster_name="C1", broker_name="broker-a")
        self.live = LiveConfig(self.config, self.files, self.workers.tables, self.clock)
        self.live.listeners.append(self.topics.config_changed)
        self.stats = BrokerStats()
        self.rates = BrokerRates(self.stats, self.store.stats, self.clock)
        table = DelayOffsetTable(
            self.files, TableWriter(self.files, self.workers.tables), self.clock, self.store
        )
        schedule = ScheduleMessageService(self.store, self.clock, table)
        info = RuntimeInfo(self.config, self.store, schedule, self.rates, self.clock)
        self.processor = AdminBrokerProcessor(
            self.context, self.live, info, self.files, self.workers.tables
        )

    async def update(self, text: str, peer: str = LOCAL) -> RemotingCommand:
        return await ask(
            self, self.processor, FakeConnection(peer), request(25, body=text.encode())
        )

    async def rows(self) -> dict[str, str]:
        answer = await ask(self, self.processor, FakeConnection(), request(26))
        return dict(line.split("=", 1) for line in answer.body.decode().splitlines())

    def write_file(self, text: bytes, **stronger: str) -> Path:
        path = self.files.root / "broker.conf"
        self.files.replace(path, text, backup=False)
        self.live.origin = ConfigOrigin(path, stronger)
        return path


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.start()
    return rig


async def test_a_change_is_in_force_at_once(rig: Rig) -> None:
    assert rig.topics.create_in_send("a", "TBW102", 4, "peer") is not None
    answer = await rig.update("autoCreateTopicEnable=false\nfileReservedTime = 12\n")
    assert answer.code == 0
    assert "next start" in (answer.remark or "")
    assert rig.topics.create_in_send("b", "TBW102", 4, "peer") is None
    assert rig.store.config.file_reserved_time == 12
    rows = await rig.rows()
    assert (rows["autoCreateTopicEnable"], rows["fileReservedTime"]) == ("false", "12")


async def test_the_version_follows_changes_alone(rig: Rig) -> None:
    async def counter() -> int:
        answer = await ask(rig, rig.processor, FakeConnection(), request(26))
        count: int = json.loads(answer.ext_fields["version"])["counter"]
        return count

    assert await counter() == 0
    await rig.update("traceOn=false")
    await rig.update("traceOn=false")
    assert await counter() == 1


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ("brokerIP1=10.0.0.1", 16, "restart"),
        ("aclEnable=false", 16, "restart"),
        ("storePathRootDir=/etc", 16, "restart"),
        ("listenPort=1", 16, "restart"),
        ("rocketmqHome=/tmp; touch /tmp/x", 16, "restart"),
        ("brokerConfigPath=/etc/passwd", 16, "restart"),
        ("fileReservedTim=1", 1, "did you mean fileReservedTime"),
        ("fileReservedTime=soon", 1, "whole number"),
        ("brokerPermission=8", 1, "brokerPermission"),
        ("traceOn=maybe", 1, "true or false"),
        ("traceOn=\\u00g0", 1, "no properties"),
        ("x" * 70000, 1, "bytes"),
    ],
)
async def test_what_may_not_be_changed_changes_nothing(
    rig: Rig, text: str, code: int, why: str
) -> None:
    before = await rig.rows()
    answer = await rig.update(f"autoCreateSubscriptionGroup=false\n{text}")
    assert answer.code == code
    assert why in (answer.remark or "")
    assert await rig.rows() == before


@pytest.mark.parametrize(
    ("peer", "allowed"),
    [
        ("127.0.0.1:1", True), ("127.8.8.8:1", True), ("::1:5", True), ("::ffff:127.0.0.1:5", True),
        ("10.0.0.1:1", False), ("::ffff:10.0.0.1:5", False), ("0.0.0.0:1", False), ("", False),
        ("localhost:1", False), ("127.0.0.1.example.com:1", False),
    ],
)  # fmt: skip
async def test_only_this_machine_changes_anything(rig: Rig, peer: str, allowed: bool) -> None:
    assert is_local(peer) is allowed
    answer = await rig.update("traceOn=false", peer)
    assert answer.code == (0 if allowed else 16)
    assert rig.config.trace_on is not allowed


async def test_reading_from_slaves_is_switched_on(rig: Rig) -> None:
    assert not rig.config.slave_read_enable
    assert (await rig.update("slaveReadEnable=true")).code == 0
    assert rig.config.slave_read_enable, "each pull looks"


async def test_the_file_keeps_what_else_stands_in_it(rig: Rig) -> None:
    path = rig.write_file(
        b"# mine\r\nbrokerName = a\ntraceOn : \\\n  true\nfileReservedTime=1\nfileReservedTime=2"
    )
    answer = await rig.update("traceOn=false\nfileReservedTime=48\nmaxTopics=77\n")
    assert (answer.code, answer.remark) == (0, None)
    assert rig.files.read_all(path) == (
        b"# mine\r\nbrokerName = a\ntraceOn=false\nfileReservedTime=1\nfileReservedTime=48\n"
        b"maxTopics=77\n"
    )
    assert rig.files.exists(path.with_name("broker.conf.bak"))


async def test_stronger_places_are_named(rig: Rig) -> None:
    rig.write_file(b"", traceOn="--set")
    answer = await rig.update("traceOn=false")
    assert answer.code == 0
    assert answer.remark == "traceOn comes from --set, which wins at the next start"


async def test_a_file_that_can_not_be_written_is_told(rig: Rig) -> None:
    path = rig.write_file(b"")
    rig.files.unlink(path)
    answer = await rig.update("traceOn=false")
    assert answer.code == 0
    assert "could not be written" in (answer.remark or "")
    assert not rig.config.trace_on


async def test_permission_goes_with_every_topic(rig: Rig) -> None:
    told: list[str] = []
    rig.topics.add_reset_listener(lambda: told.append("all"))
    version = rig.topics.data_version
    await rig.update("brokerPermission=4")
    assert rig.config.broker_permission == 4
    assert told == ["all"]
    assert rig.topics.data_version != version


async def test_topics_on_demand_need_their_pattern(rig: Rig) -> None:
    await rig.update("autoCreateTopicEnable=false")
    rig.topics.delete("TBW102")
    await rig.update("autoCreateTopicEnable=true")
    assert rig.topics.create_in_send("b", "TBW102", 4, "peer") is not None


async def test_the_answer_is_the_configuration_without_secrets(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = await rig.rows()
    assert rows["brokerName"] == "broker-a"
    assert rows["brokerIP1"] == ""
    assert (rows["filterServerNums"], rows["useTLS"]) == ("0", "false"), "exportConfigs needs them"
    assert int(rows["clientCallbackExecutorThreads"]) > 0
    assert rows["flushDiskType"] == "ASYNC_FLUSH"
    assert "store" not in rows
    assert live_config.is_secret("aclSecretKey")
    assert live_config.is_secret("tlsKeyPassword")
    monkeypatch.setattr(live_config, "is_secret", lambda key: key == "brokerName")
    assert "brokerName" not in await rig.rows()


def test_live_keys_are_known_and_have_an_effect() -> None:
    rows = {key for key, _ in Rig().live.rows()}
    live = {name: key.effect for name, key in CONFIG_KEYS.items() if key.effect.is_live}
    assert len(live) > 20
    assert rows >= live.keys()
    assert not [name for name, effect in live.items() if effect.is_unused or effect.not_built]
    assert not [name for name in live if "path" in name.lower() or "address" in name.lower()]


KEYS = """
bootTimestamp brokerVersion brokerVersionDesc commitLogDirCapacity commitLogDiskRatio
commitLogMaxOffset commitLogMinOffset consumeQueueDiskRatio dispatchBehindBytes dispatchMaxBuffer
earliestMessageTimeStamp EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity getFoundTps
getMessageEntireTimeMax getMissTps getTotalTps getTransferedTps getTransferredTps
msgGetTotalTodayMorning msgGetTotalTodayNow msgGetTotalYesterdayMorning msgPutTotalTodayMorning
msgPutTotalTodayNow msgPutTotalYesterdayMorning pageCacheLockTimeMills pullThreadPoolQueueCapacity
pullThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize putLatency99 putLatency999
putMessageAverageSize putMessageDistributeTime putMessageEntireTimeMax putMessageFailedTimes
putMessageSizeTotal putMessageTimesTotal putTps queryThreadPoolQueueCapacity
queryThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize remainHowManyDataToFlush
remainTransientStoreBufferNumbs runtime sendThreadPoolQueueCapacity
sendThreadPoolQueueHeadWaitTimeMills sendThreadPoolQueueSize startAcceptSendRequestTimeStamp
""".split()  # noqa: SIM905
TEXTS = {
    "brokerVersionDesc", "commitLogDirCapacity", "runtime", "putMessageDistributeTime",
    "remainHowManyDataToFlush",
}  # fmt: skip


async def figures(rig: Rig) -> dict[str, str]:
    answer = await ask(rig, rig.processor, FakeConnection(), request(28))
    return decode_body(KVTable, answer.body).table


async def test_every_figure_is_there_and_a_number_where_tools_need_one(rig: Rig) -> None:
    for _ in range(2):
        table = await figures(rig)
        folder = f"commitLogDiskRatio_{rig.store.paths.commit_log}"
        assert set(table) == {*KEYS, folder}
        for key in set(table) - TEXTS:
            [float(word) for word in table[key].split(" ") if word]
        rig.put("T", 0, b"one")
        rig.clock.advance(61)
        rig.workers.run_all()


async def test_figures_of_messages_and_the_log(rig: Rig) -> None:
    before = await figures(rig)
    assert before["putMessageAverageSize"] == "NaN"
    assert before["earliestMessageTimeStamp"] == "-1"
    assert (before["brokerVersion"], before["brokerVersionDesc"]) == ("409", "V4_9_8")
    for _ in range(4):
        rig.put("T", 0, bytes(1000))
    table = await figures(rig)
    size = rig.store.commit_log.max_offset
    assert table["putMessageTimesTotal"] == table["msgPutTotalTodayNow"] == "4"
    assert table["commitLogMaxOffset"] == table["putMessageSizeTotal"] == str(size)
    assert table["putMessageAverageSize"] == str(size / 4)
    assert table["earliestMessageTimeStamp"] == str(rig.clock.now_ms())
    assert table["remainHowManyDataToFlush"] == f"{size / 1024:.1f} KiB"
    assert table["putMessageDistributeTime"].startswith("[<=0ms]:4 [0~10ms]:0 ")
    rig.clock.pass_time(3 * 86400 + 2 * 3600 + 61)
    assert (await figures(rig))["runtime"] == "[ 3 days, 2 hours, 1 minutes, 1 seconds ]"
