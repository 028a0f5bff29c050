"""What a range lacks is told: expired, lost with the queue's end, or missing in the middle."""

from __future__ import annotations

import pytest

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.spark.errors import DataLost
from skylarkmq.spark.reading.ranges import offsets_of
from tests.spark.support.queue_model import FakePending, FakePullClient, QueueModel, record
from tests.spark.support.ranges import read


def test_expired_messages_are_told_and_reading_goes_on() -> None:
    client = FakePullClient(QueueModel(40, 100))
    offsets, lost = read(client, 10, 90, pull_count=8)
    assert offsets == list(range(40, 90))
    assert [(it.wanted, it.available, it.lost) for it in lost] == [(10, 40, 30)]
    client = FakePullClient(QueueModel(200, 300))
    offsets, lost = read(client, 10, 90)
    assert not offsets
    assert [(it.wanted, it.available, it.lost) for it in lost] == [(10, 200, 80)]


def test_expired_messages_fail_the_range() -> None:
    for queue, text in ((QueueModel(40, 100), "30 messages lost.*T.*broker-a.*10.*40.*expired"),):
        with pytest.raises(DataLost, match=text) as caught:
            read(FakePullClient(queue), 10, 90, on_data_loss=None)
        assert (caught.value.wanted, caught.value.available, caught.value.lost) == (10, 40, 30)


@pytest.mark.parametrize("maximum", [0, 30, 50])
def test_a_queue_that_is_shorter_than_it_was(maximum: int) -> None:
    """The topic was made anew, or the broker lost its end."""
    client = FakePullClient(QueueModel(0, maximum))
    offsets, lost = read(client, 50, 90, pull_count=8)
    assert not offsets
    assert [(it.wanted, it.available, it.lost) for it in lost] == [(50, maximum, 40)]
    with pytest.raises(DataLost, match="anew"):
        read(FakePullClient(QueueModel(0, maximum)), 50, 90, on_data_loss=None)
    offsets, lost = read(FakePullClient(QueueModel(0, 60)), 50, 90, pull_count=8)
    assert offsets == list(range(50, 60))
    assert sum(it.lost for it in lost) == 30


def test_an_end_that_comes_a_moment_later_is_no_loss() -> None:
    """A broker that just started may not have all of its queues at once."""
    client = FakePullClient(QueueModel(0, 50))

    def plan(client: FakePullClient, pending: FakePending) -> None:
        if client.clock.slept:
            client.model.maximum = 100

    client.plan = plan
    assert read(client, 0, 100, on_data_loss=None)[0] == list(range(100))


@pytest.mark.parametrize("expression", ["*", "a"])
def test_files_that_are_being_removed(expression: str) -> None:
    def plan(client: FakePullClient, pending: FakePending) -> RemotingCommand | None:
        if not 20 <= pending.offset < 40:
            model = QueueModel(0, 20) if pending.offset < 20 else client.model
            return model.pull(pending.offset, pending.wanted)
        answer = client.model.pull(40, 1)
        answer.code, answer.body = ResponseCode.PULL_RETRY_IMMEDIATELY, b""
        answer.remark = "MESSAGE_WAS_REMOVING"
        answer.ext_fields.update(nextBeginOffset="40", minOffset="0")
        return answer

    offsets, lost = read(
        FakePullClient(QueueModel(0, 100), plan), 0, 100, pull_count=8, expression=expression
    )
    assert offsets == [*range(20), *range(40, 100)]
    assert sum(it.lost for it in lost) == 20


def test_with_a_filter_what_expired_before_a_match_is_told() -> None:
    def plan(client: FakePullClient, pending: FakePending) -> RemotingCommand | None:
        if pending.offset >= 40:
            return None
        answer = client.model.pull(40, pending.wanted)  # looked from the first that is left
        answer.ext_fields["minOffset"] = "40"
        return answer

    client = FakePullClient(QueueModel(0, 100), plan)
    offsets, lost = read(client, 10, 100, expression="a")
    assert offsets == list(range(40, 100))
    assert [(it.wanted, it.available, it.lost) for it in lost] == [(10, 40, 30)]


def test_a_gap_between_records_is_told() -> None:
    def plan(client: FakePullClient, pending: FakePending) -> RemotingCommand:
        answer = client.model.pull(pending.offset, pending.wanted)
        there = [it for it, _ in offsets_of(answer.body) if it not in (30, 31, 50)]
        answer.body = b"".join(map(record, there))
        if not there:
            answer.code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return answer

    offsets, lost = read(FakePullClient(QueueModel(0, 100), plan), 0, 100, pull_count=16)
    assert offsets == [it for it in range(100) if it not in (30, 31, 50)]
    assert [(it.wanted, it.lost) for it in lost] == [(30, 2), (50, 1)]


@pytest.mark.parametrize("from_offset", [0, 8, 20, 64])
def test_a_topic_that_has_fewer_read_queues_than_it_had(from_offset: int) -> None:
    """Brokers refuse such a queue's pulls, though its messages are there."""

    def plan(client: FakePullClient, pending: FakePending) -> RemotingCommand | None:
        if pending.offset < from_offset:
            return None
        answer = client.model.pull(pending.offset, 1)
        answer.code, answer.body = ResponseCode.SYSTEM_ERROR, b""
        answer.remark = "queueId[3] is illegal, topic:[T] topicConfig.readQueueNums:[2]"
        return answer

    offsets, lost = read(FakePullClient(QueueModel(0, 100), plan), 0, 100, pull_count=8)
    assert offsets == list(range(-(-from_offset // 8) * 8))
    assert sum(it.lost for it in lost) == 100 - len(offsets)
    with pytest.raises(
        DataLost, match=r"fewer read queues.*queueId\[3\].*updateTopic.*or set fail"
    ):
        read(FakePullClient(QueueModel(0, 100), plan), 0, 100, on_data_loss=None)
