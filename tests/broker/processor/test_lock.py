"""Locking queues for ordered consumption."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skylarkmq.broker.processor.consumer_manage import LockProcessor
from tests.broker.group_rig import FakeConnection, GroupRig, ask, request


class Rig(GroupRig):
    def __init__(self) -> None:
        super().__init__()
        self.processor = LockProcessor(self.context, self.locks)

    async def lock(self, client: str, *queues: int, group: str = "cg", topic: str = "T") -> Any:
        answer = await ask(
            self, self.processor, FakeConnection(), self.body(41, client, group, topic, queues)
        )
        assert answer.code == 0
        return [queue["queueId"] for queue in json.loads(answer.body)["lockOKMQSet"]]

    async def unlock(self, client: str, *queues: int) -> None:
        answer = await ask(
            self, self.processor, FakeConnection(), self.body(42, client, "cg", "T", queues)
        )
        assert (answer.code, answer.body) == (0, b"")

    @staticmethod
    def body(code: int, client: str, group: str, topic: str, queues: tuple[int, ...]) -> Any:
        mq_set = [{"brokerName": "b", "queueId": queue, "topic": topic} for queue in queues]
        text = {"clientId": client, "consumerGroup": group, "mqSet": mq_set}
        return request(code, body=json.dumps(text).encode())


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.start()
    rig.topic("T")
    rig.groups.find("cg")
    return rig


async def test_the_answer_lists_what_the_client_owns_now(rig: Rig) -> None:
    assert await rig.lock("a", 0, 1, 1) == [0, 1]
    assert await rig.lock("b", 0, 1, 2) == [2]
    await rig.unlock("b", 0)
    assert await rig.lock("b", 0) == []
    await rig.unlock("a", 0)
    assert await rig.lock("b", 0) == [0]
    assert await rig.lock("a", 1) == [1]


async def test_unknown_queues_and_groups_are_not_locked(rig: Rig) -> None:
    assert await rig.lock("a", 3, 4, -1) == [3]
    assert await rig.lock("a", 0, topic="unknown") == []
    assert await rig.lock("a", 0, group="unknown") == []
    assert await rig.lock("", 0) == []
    assert await rig.lock("x" * 256, 0) == []
    assert len(rig.locks) == 1


@pytest.mark.parametrize("code", [41, 42])
async def test_bad_bodies_and_names_are_answered_with_1(rig: Rig, code: int) -> None:
    peer = FakeConnection()
    assert (await ask(rig, rig.processor, peer, request(code, body=b"{}"))).code == 1
    bad = rig.body(code, "a", "not a group", "T", (0,))
    assert (await ask(rig, rig.processor, peer, bad)).code == 1
