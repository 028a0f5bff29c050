"""Statistics for administrators: over windows (315), and where groups are (208, 317)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.metrics import windows
from skylarkmq.broker.metrics.rates import BrokerRates
from skylarkmq.broker.metrics.windows import StatsWindows
from skylarkmq.broker.processor.admin import stats as admin_stats
from skylarkmq.broker.processor.admin.stats import AdminStatsProcessor
from skylarkmq.protocol import lenient_json
from skylarkmq.protocol.bodies.group import ConsumerData, SubscriptionData, SubscriptionGroupConfig
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.host_address import HostAddress
from tests.broker.group_rig import FakeConnection, GroupRig, ask, request


class Rig(GroupRig):
    """The processor over real tables."""

    def __init__(self) -> None:
        super().__init__(broker_cluster_name="C1")
        self.stats = BrokerStats()
        totals = BrokerRates(self.stats, self.store.stats, self.clock)
        self.windows = StatsWindows(self.stats, self.store.stats, totals, "C1", self.clock)
        host = HostAddress("192.0.2.7", 10911).pack()
        self.processor = AdminStatsProcessor(self.context, self.windows, self.stats, host)

    async def ask(self, code: int, fields: dict[str, Any]) -> RemotingCommand:
        return await ask(self, self.processor, FakeConnection(), request(code, fields))

    async def view(self, name: str, key: str) -> Any:
        answer = await self.ask(315, {"statsName": name, "statsKey": key})
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return json.loads(answer.body)

    async def table(self, code: int, fields: dict[str, Any]) -> Any:
        answer = await self.ask(code, fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return lenient_json.loads(answer.body)

    def join(self, group: str, *topics: str) -> None:
        data = ConsumerData(
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            consume_type="CONSUME_PASSIVELY",
            group_name=group,
            message_model="CLUSTERING",
            subscription_data_set=[SubscriptionData(topic=t, sub_string="*") for t in topics],
        )
        peer: Any = FakeConnection()
        self.consumers.register(peer, "client", LanguageCode.JAVA, 409, data)


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.start()
    return rig


# Windows (315)


async def test_a_statistic_over_a_minute_an_hour_and_a_day(rig: Rig) -> None:
    rig.windows.start()
    for _ in range(6 * 60 * 2):  # two hours
        counter = rig.stats.topic_in("T")
        counter.count += 20
        counter.bytes += 600
        rig.clock.advance(10.0)
    body = await rig.view("TOPIC_PUT_NUMS", "T")
    assert body["statsMinute"] == {"avgpt": 1.0, "sum": 120, "tps": 2.0}
    assert body["statsHour"]["sum"] == 7200
    assert body["statsDay"]["sum"] == 14400
    assert [body[name]["tps"] for name in body] == [2.0, 2.0, 2.0]
    body = await rig.view("TOPIC_PUT_SIZE", "T")
    assert body["statsMinute"] == {"avgpt": 30.0, "sum": 3600, "tps": 60.0}
    rig.windows.stop()


async def test_the_keys_of_groups_and_of_the_broker(rig: Rig) -> None:
    rig.windows.start()
    rig.stats.topic_out("T", "g").count += 7
    rig.stats.topic_out("T", "g").bytes += 70
    rig.stats.topic_back("T", "g").count += 2
    rig.put("T", 0, b"one")
    assert (await rig.view("GROUP_GET_NUMS", "T@g"))["statsDay"]["sum"] == 7
    assert (await rig.view("GROUP_GET_SIZE", "T@g"))["statsDay"]["sum"] == 70
    assert (await rig.view("SNDBCK_PUT_NUMS", "T@g"))["statsMinute"]["sum"] == 2
    assert (await rig.view("BROKER_PUT_NUMS", "C1"))["statsMinute"]["sum"] == 1
    assert (await rig.view("BROKER_GET_NUMS", "C1"))["statsHour"]["sum"] == 7
    rig.windows.stop()


async def test_what_waits_counts_for_the_topic_where_it_waits_too(rig: Rig) -> None:
    rig.windows.start()
    rig.stats.topic_in("T", "delay").count += 3
    rig.stats.topic_in("U", "delay").count += 4
    rig.stats.topic_in("U", "transaction").count += 5
    for key, expected in (
        ("T", 3), ("U", 9), ("SCHEDULE_TOPIC_XXXX", 7), ("RMQ_SYS_TRANS_HALF_TOPIC", 5),
    ):  # fmt: skip
        assert (await rig.view("TOPIC_PUT_NUMS", key))["statsMinute"]["sum"] == expected, key
    rig.windows.stop()


async def test_a_topic_made_again_begins_at_zero_and_a_deleted_one_is_forgotten(rig: Rig) -> None:
    rig.windows.start()
    rig.stats.topic_in("T").count += 100
    rig.clock.advance(20.0)
    rig.stats.forget_topic("T")
    rig.stats.topic_in("T").count += 1
    assert (await rig.view("TOPIC_PUT_NUMS", "T"))["statsDay"]["sum"] == 1
    rig.clock.advance(100.0)
    body = await rig.view("TOPIC_PUT_NUMS", "T")
    assert (body["statsMinute"]["sum"], body["statsDay"]["sum"]) == (0, 1)
    rig.stats.forget_topic("T")
    rig.clock.advance(10.0)
    answer = await rig.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"})
    assert answer.code == 1
    assert rig.windows.noted_count == 2, "the two of the broker"
    rig.windows.stop()


async def test_many_counters_are_noted_some_in_each_turn(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "SLICE", 2)
    rig.windows.start()
    topics = [f"T{number}" for number in range(9)]
    for _ in range(8):  # the first notes give way
        for topic in topics:
            rig.stats.topic_in(topic).count += 10
        rig.clock.advance(10.0)
    for topic in topics:
        assert (await rig.view("TOPIC_PUT_NUMS", topic))["statsMinute"]["sum"] == 60
    rig.windows.stop()


async def test_what_is_asked_before_the_first_note(rig: Rig) -> None:
    rig.stats.topic_in("T").count += 5
    body = await rig.view("TOPIC_PUT_NUMS", "T")
    assert body["statsMinute"] == {"avgpt": 1.0, "sum": 5, "tps": 0.0}


@pytest.mark.parametrize(
    ("name", "key", "shown"),
    [
        ("TOPIC_PUT_NUMS", "never", "The stats <TOPIC_PUT_NUMS> <never> not exist"),
        ("GROUP_GET_NUMS", "T", "The stats <GROUP_GET_NUMS> <T> not exist"),
        ("BROKER_PUT_NUMS", "C2", "The stats <BROKER_PUT_NUMS> <C2> not exist"),
        ("GROUP_GET_LATENCY", "0@T@g", "The stats <GROUP_GET_LATENCY> <0@T@g> not exist"),
        ("x" * 2000, "\n", "The stats <'" + "x" * 64 + "'...> <'\\n'> not exist"),
    ],
)
async def test_a_statistic_that_does_not_exist(rig: Rig, name: str, key: str, shown: str) -> None:
    rig.stats.topic_out("T", "g").count += 1
    answer = await rig.ask(315, {"statsName": name, "statsKey": key})
    assert (answer.code, answer.remark) == (1, shown)


# Where groups are (208, 317)


async def test_how_far_a_group_is(rig: Rig) -> None:
    rig.topic("T", queues=2)
    rig.topic("U", queues=1)
    rig.groups.update(SubscriptionGroupConfig(group_name="g"))
    for _ in range(3):
        rig.put("T", 0)
        rig.clock.advance(1.0)
    first_ms = rig.store.message_time("T", 0, 0)
    rig.offsets.keep("x", "g", "T", 0, 1)
    rig.offsets.keep("x", "g", "U", 0, 0)
    rig.offsets.keep("x", "g", "deleted", 0, 7)
    fields = {"consumerGroup": "g"}
    answer = await rig.ask(RequestCode.GET_CONSUME_STATS, fields)
    assert answer.code == ResponseCode.SUCCESS
    text = answer.body.decode()
    assert '"brokerOffset":3,"consumerOffset":1' in text
    rows = await rig.table(RequestCode.GET_CONSUME_STATS, fields)
    found = {
        (key.as_dict()["topic"], key.as_dict()["queueId"]): row
        for key, row in rows["offsetTable"].items()
    }
    assert found.keys() == {("T", 0), ("T", 1), ("U", 0)}
    assert found["T", 0]["lastTimestamp"] == first_ms
    assert found["T", 1] == {
        "brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0,
    }  # fmt: skip
    rows = await rig.table(RequestCode.GET_CONSUME_STATS, {**fields, "topic": "U"})
    assert [key.as_dict()["topic"] for key in rows["offsetTable"]] == ["U"]
    rig.join("g", "T")  # it subscribes to T alone now
    rows = await rig.table(RequestCode.GET_CONSUME_STATS, fields)
    assert {key.as_dict()["topic"] for key in rows["offsetTable"]} == {"T"}
    rows = await rig.table(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "unknown"})
    assert rows == {"consumeTps": 0.0, "offsetTable": {}}


async def test_how_far_a_group_was_handed_messages(rig: Rig) -> None:
    rig.topic("T", queues=5)
    for queue_id in range(4):
        for _ in range(4):
            rig.put("T", queue_id)
    for queue_id in range(4):
        rig.offsets.keep("x", "g", "T", queue_id, 2)
    # Beyond what is committed; not yet so far, after a commit by hand; beyond a log that was cut.
    rig.stats.pulled_by("T", "g").update({0: 3, 1: 1, 2: 9, 4: 0})
    rows = await rig.table(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"})
    found = {
        key.as_dict()["queueId"]: (row["consumerOffset"], row["pullOffset"])
        for key, row in rows["offsetTable"].items()
    }
    assert found == {0: (2, 3), 1: (2, 2), 2: (2, 4), 3: (2, 2), 4: (0, 0)}
    await rig.table(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "h"})
    assert ("T", "h") not in rig.stats.pulled


async def test_how_fast_a_group_is(rig: Rig) -> None:
    rig.topic("T", queues=1)
    rig.offsets.keep("x", "g", "T", 0, 0)
    rig.windows.start()
    for _ in range(12):  # the oldest notes give way
        rig.stats.topic_out("T", "g").count += 50
        rig.clock.advance(10.0)
    rows = await rig.table(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"})
    assert rows["consumeTps"] == pytest.approx(5.0)
    timers = rig.clock.pending_count
    rig.windows.stop()
    assert rig.clock.pending_count == timers - 1


async def test_where_all_groups_are(rig: Rig) -> None:
    rig.topic("T", queues=2)
    rig.topics.update(
        TopicConfig(topic_name="U", read_queue_nums=1, write_queue_nums=1, order=True)
    )
    for name in ("g", "h", "idle"):
        rig.groups.find(name)
    for _ in range(3):
        rig.put("T", 0, b"one")
    rig.offsets.keep("x", "g", "T", 0, 1)
    rig.offsets.keep("x", "h", "T", 0, 3)
    rig.offsets.keep("x", "h", "U", 0, 0)
    rig.offsets.keep("x", "h", "deleted", 0, 0)
    rig.offsets.keep("x", "unknown", "T", 0, 0)
    body = await rig.table(317, {"isOrder": "false"})
    assert (body["brokerAddr"], body["totalDiff"]) == ("192.0.2.7:10911", 2)
    found = {
        (group, key.as_dict()["topic"], key.as_dict()["queueId"]): row["consumerOffset"]
        for listed in body["consumeStatsList"]
        for group, stats in listed.items()
        for each in stats
        for key, row in each["offsetTable"].items()
    }
    assert found == {
        ("g", "T", 0): 1, ("g", "T", 1): 0, ("h", "T", 0): 3, ("h", "T", 1): 0, ("h", "U", 0): 0,
    }  # fmt: skip
    assert {"idle"} <= {*(name for listed in body["consumeStatsList"] for name in listed)}
    body = await rig.table(317, {"isOrder": "true"})
    topics = [
        key.as_dict()["topic"]
        for listed in body["consumeStatsList"]
        for stats in listed.values()
        for each in stats
        for key in each["offsetTable"]
    ]
    assert topics == ["U"]


async def test_an_answer_about_all_groups_has_a_limit(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_stats, "QUEUES_TOTAL_MAX", 3)
    rig.topic("T", queues=4)
    rig.groups.find("g")
    rig.offsets.keep("x", "g", "T", 0, 0)
    answer = await rig.ask(317, {"isOrder": "false"})
    assert (answer.code, "more than 3 queues" in (answer.remark or "")) == (1, True)
