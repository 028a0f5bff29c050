"""Where a message goes, and who is refused before anything is stored."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from skylarkmq.broker.processor.send_checks import SendChecks, Target, multi_tag_flag
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import MQVersion, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers.send import SendMessageRequestHeader
from tests.broker.group_rig import GroupRig

NEW, OLD = MQVersion.V3_4_9, MQVersion.V3_4_9 - 1


class Rig(GroupRig):
    """Real tables, and the checks over them."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.start()
        self.checks = SendChecks(self.config, self.topics, self.groups, random.Random(5))

    def target(
        self, topic: str, queue_id: int = 0, default: str = "TBW102", count: int = 4
    ) -> Target:
        header = SendMessageRequestHeader(
            producer_group="p",
            topic=topic,
            default_topic=default,
            default_topic_queue_nums=count,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp=0,
            flag=0,
        )
        return self.checks.target(header, "192.0.2.1:1")

    def refused(self, topic: str, queue_id: int = 0, **more: Any) -> RemoteProtocolError:
        with pytest.raises(RemoteProtocolError) as caught:
            self.target(topic, queue_id, **more)
        return caught.value


async def test_a_known_topic_is_used_as_it_is() -> None:
    rig = Rig()
    rig.topic("T", queues=3)
    target = rig.target("T", 2, count=99)
    assert (target.topic, target.queue_id, target.fresh, target.to_dlq) == ("T", 2, False, False)
    assert target.config.write_queue_nums == 3


async def test_an_unknown_topic_is_made_from_its_default() -> None:
    rig = Rig()
    first = rig.target("N", 3)
    assert first.fresh
    assert (first.config.write_queue_nums, first.config.perm) == (4, 6)
    assert not rig.target("N").fresh
    assert rig.topics.pending


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("", ResponseCode.SYSTEM_ERROR),
        ("a b", ResponseCode.SYSTEM_ERROR),
        ("t" * 128, ResponseCode.SYSTEM_ERROR),
        ("SCHEDULE_TOPIC_XXXX", ResponseCode.NO_PERMISSION),
        ("RMQ_SYS_TRANS_HALF_TOPIC", ResponseCode.NO_PERMISSION),
    ],
)
async def test_names_that_nobody_sends_to(topic: str, code: int) -> None:
    rig = Rig()
    before = dict(rig.topics.table)
    assert rig.refused(topic).response_code == code
    assert rig.topics.table == before


async def test_without_automatic_topics_the_remark_says_so() -> None:
    rig = Rig(auto_create_topic_enable=False)
    error = rig.refused("N")
    assert error.response_code == ResponseCode.TOPIC_NOT_EXIST
    assert "autoCreateTopicEnable is false" in error.remark
    assert rig.refused("N", default="no such").response_code == ResponseCode.TOPIC_NOT_EXIST
    assert rig.target("%RETRY%g").fresh, "retry topics are made all the same"


@pytest.mark.parametrize("queue_id", [4, 5, 2**31 - 1])
async def test_a_queue_that_is_not_there_is_refused_with_the_numbers(queue_id: int) -> None:
    rig = Rig()
    rig.topic("T", queues=4)
    error = rig.refused("T", queue_id)
    assert error.response_code == ResponseCode.SYSTEM_ERROR
    assert f"queueId[{queue_id}]" in error.remark
    assert "4 write queues" in error.remark


async def test_a_negative_queue_is_any() -> None:
    rig = Rig()
    rig.topic("T", queues=4)
    assert {rig.target("T", -1).queue_id for _ in range(100)} == {0, 1, 2, 3}
    assert rig.target("T", -(2**31)).queue_id < 4


async def test_the_larger_of_both_queue_numbers_counts() -> None:
    rig = Rig()
    rig.topics.update(TopicConfig(topic_name="R", read_queue_nums=8, write_queue_nums=2, perm=6))
    assert rig.target("R", 7).queue_id == 7
    assert {rig.target("R", -1).queue_id for _ in range(50)} == {0, 1}
    rig.topics.update(TopicConfig(topic_name="R", read_queue_nums=0, write_queue_nums=0, perm=6))
    assert rig.target("R", -1).queue_id == 0
    assert rig.refused("R", 0).response_code == ResponseCode.SYSTEM_ERROR


async def test_a_broker_without_write_permission_refuses_ordered_topics_alone() -> None:
    rig = Rig(broker_permission=4)
    ordered = TopicConfig(topic_name="O", read_queue_nums=1, write_queue_nums=1, perm=6, order=True)
    rig.topics.update(ordered)
    rig.topic("T")
    assert rig.refused("O").response_code == ResponseCode.NO_PERMISSION
    assert rig.target("T").topic == "T", "as RocketMQ; clients are told by the route"


# Retries and dead letters


@pytest.mark.parametrize(
    ("version", "times", "asked", "to_dlq"),
    [
        (NEW, 15, None, False),
        (NEW, 16, None, True),
        (NEW, 2, 3, False),
        (NEW, 3, 3, True),
        (NEW, 16, 20, False),
        (NEW, 0, 0, True),
        (OLD, 3, 3, False),
        (OLD, 16, 20, True),
        (NEW, 2**31 - 1, None, True),
    ],
)
async def test_a_message_that_was_tried_often_enough_is_a_dead_letter(
    version: int, times: int, asked: int | None, to_dlq: bool
) -> None:
    rig = Rig()
    target = rig.target("%RETRY%g", 0)
    moved = rig.checks.retry_target(target, version, times, asked)
    assert moved.to_dlq is to_dlq
    assert moved.topic == ("%DLQ%g" if to_dlq else "%RETRY%g")
    if to_dlq:
        assert (moved.queue_id, moved.config.write_queue_nums, moved.fresh) == (0, 1, True)
        again = rig.checks.retry_target(rig.target("%RETRY%g"), version, times, asked)
        assert not again.fresh


async def test_the_groups_own_limit_counts() -> None:
    rig = Rig()
    group = rig.groups.find("g")
    assert group is not None
    rig.groups.update(msgspec.structs.replace(group, retry_max_times=2))
    target = rig.target("%RETRY%g")
    assert not rig.checks.retry_target(target, NEW, 1, None).to_dlq
    assert rig.checks.retry_target(target, NEW, 2, None).to_dlq


async def test_a_group_that_may_not_be_made_is_refused() -> None:
    rig = Rig(auto_create_subscription_group=False)
    with pytest.raises(RemoteProtocolError) as caught:
        rig.checks.retry_target(rig.target("%RETRY%g"), NEW, 1, None)
    assert caught.value.response_code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(("kind", "flag"), [("SINGLE_TAG", 0), ("MULTI_TAG", 2)])
async def test_the_flag_of_a_topics_filter_type(kind: str, flag: int) -> None:
    assert multi_tag_flag(TopicConfig(topic_name="T", topic_filter_type=kind)) == flag
