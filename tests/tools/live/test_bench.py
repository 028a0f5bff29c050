"""`bench`: rates of what really passes, and its ends."""

from __future__ import annotations

from datetime import timedelta

import pytest

from skylarkmq.common.histogram import Histogram
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.testing import SyncBroker
from skylarkmq.tools.bench import BOUNDS, Pace, percentile
from skylarkmq.tools.running import FAILED, USAGE
from tests.support.manual_clock import ManualClock
from tests.tools.live.shell import Shell

pytestmark = pytest.mark.timing


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
