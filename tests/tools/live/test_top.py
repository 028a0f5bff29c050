"""`top` and `bench`: rates of what really passes, and their ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from skylarkmq.client import Client, Consumer, Message, Producer, StartFrom
from skylarkmq.common.histogram import Histogram
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.testing import SyncBroker
from skylarkmq.tools.bench import BOUNDS, Pace, percentile
from skylarkmq.tools.output import Output
from skylarkmq.tools.running import FAILED, USAGE
from skylarkmq.tools.top import Look, Screen, screen_lines, snapshot
from tests.support.manual_clock import ManualClock
from tests.support.patience import until_sync
from tests.tools.live.shell import Shell, beside

pytestmark = pytest.mark.timing


def test_snapshots_of_a_cluster_at_work(shell: Shell, broker: SyncBroker) -> None:
    broker.create_topic("busy", queues=1)
    broker.create_topic("quiet", queues=1)

    async def work() -> None:
        async with (
            Client(broker.namesrv_addr) as client,
            Producer(client=client) as producer,
            Consumer("busy", client=client, group="worker", start_from=StartFrom.FIRST) as consumer,
        ):
            while True:
                await producer.send(Message("busy", b"x"))
                message = await consumer.getone(timeout=20)
                await message.ack()
                await consumer.commit()

    rows: list[Any] = []

    def of_worker(row: Any) -> Any:
        return next(each for each in row["groups"] if each["topic"] == "busy")

    def at_work() -> bool:
        nonlocal rows
        rows = shell("top", "--every", "50ms", "--times", "2", "--topics", "busy").lines
        assert len(rows) == 2
        (topic,) = rows[1]["topics"]
        return bool(topic["in_per_s"] > 0 and of_worker(rows[1])["out_per_s"] > 0)

    with beside(work()):
        broker.wait_members("worker")
        until_sync(at_work)  # a look must fall between two commits
    (topic,) = rows[1]["topics"]
    group = of_worker(rows[1])
    assert topic["out_per_s"] == group["out_per_s"]
    assert (group["group"], group["members"]) == ("worker", 1)
    (seen,) = rows[1]["brokers"]
    assert (seen["broker"], seen["broker_id"], seen["error"]) == ("broker-a", 0, None)
    table = shell("top", "--every", "1ms", "--times", "1", "-o", "table").out
    assert "quiet" in table and "worker" in table and "broker-a (0)" in table
    shell("top", "--topics", "(", code=USAGE)


QUEUE = MessageQueue("t", "b", 0)


def look(at_s: float, end: int, committed: int, lag: int) -> Look:
    return Look(at_s, {QUEUE: end}, {("g", QUEUE): committed}, {("g", "t"): lag}, {"g": 2})


def test_rates_of_brokers_are_those_of_their_queues() -> None:
    before, now = look(10, 100, 50, 50), look(12, 110, 90, 20)
    now.brokers = [
        {"broker": "b", "broker_id": 0},
        {"broker": "b", "broker_id": 1},
        {"broker": "c", "broker_id": 0},
    ]
    rows = snapshot(before, now)["brokers"]
    assert [(row["in_per_s"], row["out_per_s"]) for row in rows] == [(5, 20), (None, None), (0, 0)]


def test_rates_are_those_between_two_looks() -> None:
    seen = snapshot(look(10, 100, 50, 50), look(12, 110, 90, 20))
    assert seen["interval_s"] == 2
    assert seen["topics"] == [
        {"topic": "t", "in_per_s": 5, "out_per_s": 20, "lag": 20, "messages": 110}
    ]
    assert seen["groups"] == [
        {"group": "g", "topic": "t", "members": 2, "out_per_s": 20, "lag": 20}
    ]
    # A group that was moved back has done nothing, and a new topic is not a flood.
    seen = snapshot(look(10, 100, 50, 50), look(12, 100, 0, 100))
    assert seen["groups"][0]["out_per_s"] == 0
    assert snapshot(Look(10), look(12, 100, 0, 100))["topics"][0]["in_per_s"] == 0


async def test_keys_change_the_order_and_end_it(capsys: pytest.CaptureFixture[str]) -> None:
    def group(name: str, out: int, lag: int) -> dict[str, Any]:
        return {"group": name, "topic": "t", "members": 0, "out_per_s": out, "lag": lag}

    groups = [group("a", 1, 1), group("b", 3, 2), group("c", 2, 3)]
    seen = {"brokers": [], "topics": [], "groups": groups}

    def order(lines: list[str]) -> list[str]:
        return [line.split()[0] for line in lines if line[:1] in {"a", "b", "c"}]

    assert order(screen_lines(seen, "lag")) == ["c", "b", "a"]
    assert order(screen_lines(seen, "out")) == ["b", "c", "a"]
    assert order(screen_lines(seen, "lag", 2)) == ["c", "b"], "no more than there is room for"
    screen = Screen(Output("table"), "lag", timedelta(seconds=1))
    screen.show(seen)
    screen.press("n")
    shown = capsys.readouterr().out.splitlines()
    assert order(shown) == ["c", "b", "a", "a", "b", "c"]
    assert await screen.wait(0)
    screen.press("q")
    assert not await screen.wait(60)


def test_bench_send_and_consume(shell: Shell, broker: SyncBroker) -> None:
    broker.create_topic("benched", queues=2)
    said = shell("bench", "send", "benched", "--dry-run")
    assert "would send up to 10000 messages of 1.0 KiB" in said.err
    shell("bench", "send", "benched", code=USAGE)
    options = ("--messages", "300", "--size", "100", "--yes")
    sent = shell("bench", "send", "benched", *options).json
    assert (sent["messages"], sent["bytes"], sent["errors"]) == (300, 30_000, {})
    assert sent["messages_per_s"] > 0
    latency = sent["latency_ms"]
    assert 0 < latency["p50"] <= latency["p99"] <= latency["p99_9"] <= latency["max"]
    in_batches = shell("bench", "send", "benched", *options, "--batch", "7").json
    assert in_batches["messages"] == 300
    assert len(broker.messages("benched")) == 600
    got = shell("bench", "consume", "benched", "--from", "first", "--messages", "600").json
    assert (got["messages"], got["bytes"], got["group"]) == (600, 60_000, None)
    as_member = ("--from", "first", "--messages", "600", "--group", "meter")
    shell("bench", "consume", "benched", *as_member, code=USAGE)
    of_group = shell("bench", "consume", "benched", *as_member, "--yes")
    assert of_group.json["messages"] == 600
    broker.wait_lag("meter")
    nothing = shell("bench", "consume", "benched", "--for", "1ms", code=FAILED).json
    assert (nothing["messages"], nothing["latency_ms"]["p50"]) == (0, None)
    assert "p99.9" in shell("bench", "send", "benched", *options, "-o", "table").out


def test_sends_that_fail_are_counted(shell: Shell, broker: SyncBroker) -> None:
    broker.create_topic("failing")
    options = ("--messages", "10", "--yes")
    with broker.faults.fail(RequestCode.SEND_MESSAGE, None):
        row = shell("bench", "send", "failing", *options, code=FAILED).json
    assert row["messages"] == 0 and sum(row["errors"].values()) == 10
    said = shell("bench", "send", "SCHEDULE_TOPIC_XXXX", *options, code=USAGE)
    assert "brokers' own" in said.err


async def test_a_pace_is_bounded_by_count_and_time() -> None:
    clock = ManualClock()
    pace = Pace(clock, 10, timedelta(seconds=60), None)
    pace.begin()
    assert [await pace.take(4) for _ in range(4)] == [4, 4, 2, 0]
    pace = Pace(clock, 10, timedelta(seconds=60), None)
    pace.begin()
    assert await pace.take(1) == 1
    clock.advance(60)
    assert await pace.take(1) == 0
    # At one a minute the third one is beyond the time.
    pace = Pace(clock, 10, timedelta(seconds=100), rate=1 / 60)
    pace.begin()
    assert await pace.take(1) == 1
    clock.advance(60)
    assert [await pace.take(1), await pace.take(1)] == [1, 0]


def test_percentiles() -> None:
    times = Histogram(BOUNDS)
    for number in range(1, 1001):
        times.observe(number / 1000)
    for part, wanted in ((0.5, 0.5), (0.9, 0.9), (0.999, 0.999)):
        assert wanted <= percentile(times, part) <= wanted * 1.021
