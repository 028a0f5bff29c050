"""A slave's copy of its master's tables: when, what, and what an odd master cannot do to it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from skylarkmq.broker.delay.delay_offsets import DelayOffsetTable
from skylarkmq.broker.replication.ha.master_address import MasterAddress
from skylarkmq.broker.replication.ha.slave_sync import SlaveSync
from skylarkmq.broker.timer.service import TimerMessageService
from skylarkmq.common.table_file import TableWriter
from skylarkmq.protocol.bodies.text import DataVersion
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.headers.route import RegisterBrokerResponseHeader
from skylarkmq.remoting.errors import ConnectionFailed
from tests.broker.group_rig import GroupRig
from tests.store.support import StoreRig, inner
from tests.support.manual_clock import advance_async
from tests.support.workers import rest

MASTER = "10.0.0.9:10911"
TOPICS, OFFSETS, DELAYS, GROUPS, INFO = 21, 43, 45, 201, 28


class Master:
    """A master's answers, and its log."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.answers: dict[int, bytes | int | Exception | Callable[[], bytes]] = {
            TOPICS: b'{"dataVersion":{"counter":5,"timestamp":7},"topicConfigTable":{"T":{'
            b'"order":true,"perm":4,"readQueueNums":3,"topicName":"T","writeQueueNums":2}}}',
            OFFSETS: b'{"offsetTable":{"T@g":{0:2,1:0},"half@CID_RMQ_SYS_TRANS":{0:1}}}',
            DELAYS: b'{"offsetTable":{3:2,"4":1}}',
            GROUPS: b'{"dataVersion":{"counter":6,"timestamp":8},"subscriptionGroupTable":{'
            b'"g":{"groupName":"g","retryMaxTimes":3}}}',
            INFO: self._info,
        }
        self.store = StoreRig().start()
        self.is_stopped = False

    def _info(self) -> bytes:
        return b'{"table":{"commitLogMaxOffset":"%d"}}' % self.store.store.commit_log.max_offset

    def put(self, count: int) -> None:
        for _ in range(count):
            self.store.store.put_message(inner(), self.store.results.append)
        self.store.workers.run_all()

    async def call(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        self.asked.append((address, command.code))
        answer = self.answers[command.code]
        if callable(answer):
            answer = answer()
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return command.reply(answer, "no")
        return command.reply(0, body=answer)

    async def stop(self) -> None:
        self.is_stopped = True

    def codes(self) -> list[int]:
        asked, self.asked = self.asked, []
        assert {address for address, _ in asked} <= {MASTER}
        return [code for _, code in asked]


class Rig(GroupRig):
    """A slave's tables, and its master."""

    def __init__(self, **config: Any) -> None:
        super().__init__(broker_role="SLAVE", broker_id=1, **config)
        self.start()
        self.remote = Master()
        self.master = MasterAddress(self.config)
        writer = TableWriter(self.files, self.workers.tables)
        self.delays = DelayOffsetTable(self.files, writer, self.clock, self.store)
        self.timer = TimerMessageService(
            self.store, self.files, self.clock, self.workers.timer, writer
        )
        self.timer.load()
        self.sync = SlaveSync(
            self.context,
            self.delays,
            self.timer,
            self.master,
            self.remote,
            self.workers.reads,
            self.clock,
        )
        self.sync.start()

    def know_master(self, address: str = MASTER) -> None:
        host = address.partition(":")[0]
        self.master.told(
            RegisterBrokerResponseHeader(master_addr=address, ha_server_addr=f"{host}:10912")
        )

    async def advance(self, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            await advance_async(self.clock, 0.5)
            await rest(self.workers)

    async def follow(self) -> None:
        """Take the rest of the master's log."""
        source = self.remote.store.store.commit_log
        while part := source.part(self.store.received.next_offset, 1 << 20):
            self.store.take_records(self.store.received.next_offset, bytes(part))
            self.workers.run_all()
        await rest(self.workers)

    @property
    def standings(self) -> dict[tuple[str, str], dict[int, int]]:
        return {key: dict(row) for key, row in self.offsets.table.items()}


async def test_the_tables_come_3_s_after_the_start_and_every_10_s() -> None:
    rig = Rig()
    rig.know_master()
    await rig.advance(2.5)
    assert rig.remote.codes() == []
    await rig.advance(1)
    assert rig.remote.codes() == [TOPICS, OFFSETS, DELAYS, INFO, GROUPS]
    assert rig.topics.get("T") == TopicConfig(
        topic_name="T", read_queue_nums=3, write_queue_nums=2, perm=4, order=True
    )
    assert list(rig.topics.table) == ["T"], "the whole table is the master's"
    assert rig.topics.data_version == DataVersion(counter=5, timestamp=7)
    assert [(g.group_name, g.retry_max_times) for g in rig.groups.table.values()] == [("g", 3)]
    assert rig.groups.data_version == DataVersion(counter=6, timestamp=8)
    await rig.advance(9)
    assert rig.remote.codes() == []
    await rig.advance(1)
    assert rig.remote.codes() == [TOPICS, OFFSETS, DELAYS, INFO, GROUPS]
    assert rig.sync.round_count == 2
    await rig.sync.stop()
    await rig.advance(30)
    assert rig.remote.codes() == [] and rig.remote.is_stopped


async def test_offsets_wait_until_their_messages_are_here() -> None:
    rig = Rig()
    rig.know_master()
    rig.remote.put(2)
    await rig.advance(3.5)
    assert rig.standings == {} and rig.delays.get(3) == 0
    rig.remote.answers[OFFSETS] = b'{"offsetTable":{"T@g":{0:9}}}'
    rig.remote.codes()
    await rig.advance(10)
    assert rig.remote.codes() == [TOPICS, GROUPS], "what is known waits, and newer ones may come"
    await rig.follow()
    await rig.advance(1)
    assert rig.standings == {("T", "g"): {0: 2, 1: 0}, ("half", "CID_RMQ_SYS_TRANS"): {0: 1}}
    assert [rig.delays.get(level) for level in (3, 4)] == [2, 1]
    checkpoint = rig.store.paths.timer / "checkpoint"
    assert not rig.files.exists(checkpoint), "an Apache master tells nothing of timed messages"
    rig.remote.answers[DELAYS] = (
        b'{"offsetTable":{},"timerProgress":{"queueOffset":3,"voidBelow":0,"messages":[7,1],'
        b'"cancels":[7,2]}}'
    )
    await rig.advance(12)
    assert rig.files.exists(checkpoint)
    await rig.sync.stop()


async def test_offsets_of_a_master_that_was_replaced_are_forgotten() -> None:
    rig = Rig()
    rig.know_master()
    rig.remote.put(1)
    await rig.advance(3.5)
    rig.know_master("10.0.0.8:10911")
    rig.remote.answers[OFFSETS] = b'{"offsetTable":{"T@other":{0:1}}}'
    await rig.advance(10)
    await rig.follow()
    await rig.advance(1)
    assert rig.standings == {("T", "other"): {0: 1}}
    await rig.sync.stop()


async def test_the_masters_offsets_replace_those_committed_here_and_others_stay() -> None:
    rig = Rig()
    rig.know_master()
    await rig.advance(3.5)
    rig.offsets.keep("c", "g", "T", 0, 7)
    rig.offsets.keep("c", "own", "T", 0, 1)
    await rig.advance(10)
    assert rig.standings["T", "g"] == {0: 2, 1: 0}
    assert rig.standings["T", "own"] == {0: 1}
    await rig.sync.stop()


async def test_tables_that_did_not_change_are_not_written_again() -> None:
    rig = Rig()
    rig.know_master()
    await rig.advance(3.5)
    changes = rig.topics.changes, rig.groups.changes, rig.offsets.changes
    await rig.advance(30)
    assert (rig.topics.changes, rig.groups.changes, rig.offsets.changes) == changes
    await rig.sync.stop()


async def test_topics_that_have_messages_here_stay(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.know_master()
    rig.remote.put(1)
    await rig.follow()
    rig.topics.update(TopicConfig(topic_name="Empty"))
    forgotten: list[str] = []
    rig.topics.add_deletion_listener(forgotten.append)
    rig.remote.answers[TOPICS] = b'{"dataVersion":{"counter":5},"topicConfigTable":{}}'
    rig.topics.update(TopicConfig(topic_name="T"))
    await rig.advance(3.5)
    assert list(rig.topics.table) == ["T"] and "Empty" in forgotten and "T" not in forgotten
    assert rig.store.max_offset("T", 0) == 1
    assert "1 topics have messages here, and the master does not know them" in caplog.text
    caplog.clear()
    await rig.advance(30)
    assert "have messages here" not in caplog.text
    await rig.sync.stop()


@pytest.mark.parametrize(
    ("code", "answer", "told"),
    [
        (TOPICS, 1, "the master's topics are not copied: '10.0.0.9:10911' answers"),
        (TOPICS, b"[]", "the master's topics are not copied: '10.0.0.9:10911' answers"),
        (GROUPS, b'{"subscriptionGroupTable":{"g":5}}', "the master's groups are not copied"),
        (OFFSETS, b'{"offsetTable":{"T@g":"x"}}', "the master's offsets are not copied"),
        (INFO, b'{"table":{"commitLogMaxOffset":"-1"}}', "does not tell where its log ends"),
        (INFO, b'{"table":{}}', "does not tell where its log ends"),
        (TOPICS, ConnectionFailed(MASTER, "refused"), "the master's tables are not copied"),
    ],
)
async def test_a_failure_is_told_once_a_minute_and_costs_no_other_table(
    caplog: pytest.LogCaptureFixture, code: int, answer: bytes | int | Exception, told: str
) -> None:
    caplog.set_level(logging.WARNING)
    rig = Rig()
    rig.know_master()
    good, rig.remote.answers[code] = rig.remote.answers[code], answer
    before = dict(rig.topics.table), dict(rig.groups.table)
    await rig.advance(33.5)
    assert caplog.text.count(told) == 1
    assert rig.sync.round_count == 0
    if code == TOPICS:
        assert rig.topics.table == before[0]
        assert ("g" in rig.groups.table) is not isinstance(answer, Exception)
    await rig.advance(60)
    assert caplog.text.count(told) == 2
    rig.remote.answers[code] = good
    await rig.advance(10)
    assert rig.sync.round_count == 1
    rig.remote.answers[code] = answer
    await rig.advance(10)
    assert caplog.text.count(told) == 3, "it had been well in between"
    await rig.sync.stop()


async def test_names_that_cannot_be_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.know_master()
    rig.remote.answers[TOPICS] = (
        b'{"dataVersion":{"counter":5},"topicConfigTable":'
        b'{"../up":{"topicName":"T"},"ok":{"topicName":""}}}'
    )
    rig.remote.answers[GROUPS] = (
        b'{"dataVersion":{"counter":5},"subscriptionGroupTable":'
        b'{"a/b":{"groupName":"g"},"ok":{"groupName":""}}}'
    )
    rig.remote.answers[OFFSETS] = b'{"offsetTable":{"../up@g":{0:1},"T@a/b":{0:1},"T":{0:1}}}'
    rig.remote.answers[DELAYS] = b'{"offsetTable":{"-1":4,"0":4,"2":-4}}'
    await rig.advance(3.5)
    assert list(rig.topics.table) == ["ok"] and rig.topics.table["ok"].topic_name == "ok"
    assert list(rig.groups.table) == ["ok"]
    assert rig.standings == {} and rig.delays.get(2) == 0
    await rig.sync.stop()


async def test_without_a_known_master_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    await rig.advance(35)
    assert caplog.text.count("no name server has told where the master is") == 1
    assert rig.remote.codes() == []
    rig.know_master()
    await rig.advance(10)
    assert RequestCode.GET_ALL_TOPIC_CONFIG in rig.remote.codes()
    await rig.sync.stop()


async def test_what_was_copied_survives_a_restart() -> None:
    rig = Rig()
    rig.know_master()
    await rig.advance(3.5)
    await rig.advance(15)
    await rig.offsets.flush()
    again = GroupRig(rig.files, broker_role="SLAVE", broker_id=1)
    again.topics.load()
    assert again.topics.get("T") == rig.topics.get("T")
    assert msgspec.structs.asdict(again.topics.data_version)["counter"] == 5
    await rig.sync.stop()
