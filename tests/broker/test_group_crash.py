"""A machine that goes down: no acknowledged change of a group is lost, none is half there.

Groups are made by an administrator, by a heartbeat, by a message that is given back; changed; and
deleted with where they stand. The machine ends in front of every change of the disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.delay.delay_offsets import DelayOffsetTable
from skylarkmq.broker.processor.admin.group import AdminGroupProcessor
from skylarkmq.broker.processor.client_manage import ClientManageProcessor
from skylarkmq.broker.processor.send_back import SendBackProcessor
from skylarkmq.common.table_file import TableWriter
from skylarkmq.protocol.codes import RequestCode
from tests.broker.group_rig import FakeConnection, GroupRig, ask, request
from tests.support.crash_disk import CrashDisk
from tests.support.heartbeats import consumer_data, heartbeat
from tests.support.workers import rest

SETTINGS = {
    "brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True,
    "consumeFromMinEnable": True, "notifyConsumerIdsChangedEnable": True, "retryMaxTimes": 16,
    "retryQueueNums": 1, "whichBrokerWhenConsumeSlowly": 1,
}  # fmt: skip


class Moment(NamedTuple):
    """A point at which the machine may end: the disk, and how many changes were acknowledged."""

    disk: CrashDisk
    acknowledged: int


class Rig(GroupRig):
    def __init__(self, files: CrashDisk | None = None) -> None:
        super().__init__(files)
        writer = TableWriter(self.files, self.workers.tables)
        delays = DelayOffsetTable(self.files, writer, self.clock, self.store)
        self.admin = AdminGroupProcessor(self.context, delays, BrokerStats())
        self.clients = ClientManageProcessor(self.context, self.locks, BrokerStats())
        self.send_back = SendBackProcessor(self.context, self.rng, BrokerStats())

    def offset_of_g(self) -> int:
        return self.offsets.query("g", "T", 0)

    def retries_of(self, group: str) -> int | None:
        settings = self.groups.table.get(group)
        return None if settings is None else settings.retry_max_times


async def test_no_acknowledged_change_of_a_group_is_lost() -> None:
    rig = Rig()
    rig.start()
    rig.topic("T")
    stored = rig.put("T")
    assert stored is not None
    for _ in range(4):
        rig.put("T")
    rig.offsets.commit("x", "g", "T", 0, 5)
    rig.offsets.persisted(lambda error: None)
    await rest(rig.workers)
    moments: list[Moment] = []
    acknowledged = 0

    def before_step(op: str, path: Path) -> None:
        moments.append(Moment(rig.files.snapshot(), acknowledged))

    rig.files.before_step = before_step
    for processor, command in _changes(rig, stored.physical_offset):
        answer = await ask(rig, processor, FakeConnection(), command)
        assert answer.code == 0, answer.remark
        acknowledged += 1
    moments.append(Moment(rig.files.snapshot(), acknowledged))
    rig.files.before_step = None
    assert {moment.acknowledged for moment in moments} == set(range(acknowledged + 1))
    rng = Random(3)
    for moment in moments:
        for state in rng.sample(moment.disk.crash_states(rng, 10), 3):
            _check(Rig(moment.disk.crash(state, rng)), moment.acknowledged)


def _changes(rig: Rig, physical_offset: int) -> list[tuple[Any, Any]]:
    def update(group: str, retries: int) -> Any:
        body = json.dumps({**SETTINGS, "groupName": group, "retryMaxTimes": retries}).encode()
        return request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    beat = heartbeat("c", consumer_data("beat"))
    given_back = {
        "offset": physical_offset, "group": "back", "delayLevel": -1, "originMsgId": "x",
        "originTopic": "T", "unitMode": "false", "maxReconsumeTimes": 3,
    }  # fmt: skip
    deletion = {"groupName": "g", "removeOffset": "true"}
    return [
        (rig.admin, update("g", 3)),
        (rig.admin, update("g", 4)),
        (rig.clients, request(RequestCode.HEART_BEAT, body=beat)),
        (rig.send_back, request(RequestCode.CONSUMER_SEND_MSG_BACK, given_back)),
        (rig.admin, request(RequestCode.DELETE_SUBSCRIPTIONGROUP, deletion)),
    ]


def _check(rig: Rig, acknowledged: int) -> None:
    """After `acknowledged` changes, the next may be there or not; nothing else may."""
    rig.start()
    by_step: list[Callable[[], bool]] = [
        lambda: rig.retries_of("g") is None and rig.offset_of_g() == 5,
        lambda: rig.retries_of("g") == 3,
        lambda: rig.retries_of("g") == 4,
        lambda: rig.retries_of("beat") == 16 and "%RETRY%beat" in rig.topics.table,
        lambda: "back" in rig.groups.table and "%DLQ%back" in rig.topics.table,
        lambda: rig.retries_of("g") is None and rig.offset_of_g() == -1,
    ]
    if acknowledged in (0, 1, 2):
        assert by_step[acknowledged]() or by_step[acknowledged + 1]()
    if acknowledged >= 3:
        assert by_step[3](), "the group of a heartbeat, and its retry topic"
    if acknowledged >= 4:
        assert by_step[4](), "the group of a message that was given back, and its dead letters"
        assert rig.retries_of("g") in (None, 4)
    if acknowledged == 5:
        assert by_step[5]()
    if acknowledged < 4:
        assert rig.offset_of_g() == 5
