"""Ranges come whole, in order and once, whatever a broker answers; what is lost is told."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylarkmq.client.errors import (
    AuthError,
    ConnectionFailed,
    ProtocolError,
    RequestTimeout,
    RocketMQError,
    SystemBusy,
    TopicNotExist,
)
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.spark.errors import DataLost, NoProgress
from skylarkmq.spark.reading.ranges import Block
from skylarkmq.spark.settings import ConnectionSettings
from tests.spark.support.queue_model import (
    MASTER,
    SLAVE,
    FakePending,
    FakePullClient,
    QueueModel,
    record,
)
from tests.spark.support.ranges import range_reader, read

BUSY = SystemBusy(ResponseCode.SYSTEM_BUSY, "busy", MASTER)


def fail_once(error: RocketMQError, pull_index: int) -> object:
    """A plan: one pull, by its place, fails."""

    def plan(client: FakePullClient, pending: FakePending) -> RocketMQError | None:
        return error if client.pulls.index(pending) == pull_index else None

    return plan


@pytest.mark.parametrize("in_flight", [1, 2, 8])
@pytest.mark.parametrize("batch_size", [1, 7, 32, 1000])
@pytest.mark.parametrize(("start", "end"), [(0, 0), (5, 6), (0, 100), (3, 97), (99, 100)])
def test_a_range_comes_whole(in_flight: int, batch_size: int, start: int, end: int) -> None:
    client = FakePullClient(QueueModel(0, 100))
    offsets, lost = read(client, start, end, pulls_in_flight=in_flight, pull_count=batch_size)
    assert offsets == list(range(start, end))
    assert not lost
    assert client.most_under_way <= in_flight


def test_the_broker_s_cap_is_learned() -> None:
    client = FakePullClient(QueueModel(0, 32 * 100, count_cap=32))
    read(client, 0, 32 * 100, pull_count=1024)
    assert client.most_under_way == 8
    assert len(client.pulls) < 130  # 100, and the tries of a larger stride
    assert {pull.wanted for pull in client.pulls[1:20]} <= {32, 64}


def test_one_short_answer_does_not_slow_the_rest() -> None:
    """A file of the log ends there: the next answers are full again."""

    def plan(client: FakePullClient, pending: FakePending) -> RemotingCommand | None:
        if client.pulls.index(pending) % 10 == 3:
            return client.model.pull(pending.offset, 1)
        return None

    client = FakePullClient(QueueModel(0, 10_000, count_cap=1000), plan)
    assert read(client, 0, 10_000, pull_count=500)[0] == list(range(10_000))
    assert len(client.pulls) < 60


def test_no_pull_asks_for_more_than_the_range() -> None:
    client = FakePullClient(QueueModel(0, 1000))
    read(client, 10, 90)
    assert all(pull.offset + pull.wanted <= 90 for pull in client.pulls)


def test_records_beyond_what_was_asked_are_cut_off() -> None:
    def plan(client: FakePullClient, pending: FakePending) -> RemotingCommand:
        return client.model.pull(max(0, pending.offset - 2), pending.wanted + 5)

    client = FakePullClient(QueueModel(0, 1000, count_cap=50), plan)
    assert read(client, 10, 200, pull_count=20)[0] == list(range(10, 200))


@pytest.mark.parametrize(
    "error",
    [
        ConnectionFailed("master:1", "gone", reached=True),
        RequestTimeout("slow"),
        BUSY,
        ProtocolError("garbage"),
    ],
)
@pytest.mark.parametrize("pull_index", [0, 1, 4])
@pytest.mark.parametrize("expression", ["*", "a"])
def test_a_failure_is_asked_again(error: RocketMQError, pull_index: int, expression: str) -> None:
    plan = fail_once(error, pull_index)
    client = FakePullClient(QueueModel(0, 3000), plan)  # type: ignore[arg-type]
    offsets, lost = read(client, 0, 3000, expression=expression)
    assert offsets == list(range(3000))
    assert not lost
    assert len(client.clock.slept) == 1


@pytest.mark.parametrize(
    "error",
    [
        AuthError(1, "AclException", MASTER),
        TopicNotExist(ResponseCode.TOPIC_NOT_EXIST, "topic[T] not exist", MASTER),
    ],
)
def test_a_refusal_that_stays_is_raised(error: RocketMQError) -> None:
    client = FakePullClient(QueueModel(0, 100), lambda client, pending: error)
    with pytest.raises(type(error)):
        read(client, 0, 100)
    assert not client.clock.slept


def test_a_broker_that_stays_away_ends_the_range_after_a_while() -> None:
    gone = ConnectionFailed("master:1", "connection refused")
    client = FakePullClient(QueueModel(0, 100), lambda client, pending: gone)
    with pytest.raises(NoProgress, match=r"queue 0.*T.*broker-a.*offset 7.*refused.*retryTimeout"):
        read(client, 7, 100)
    assert 5 <= sum(client.clock.slept) < 8


def test_a_broker_that_is_away_at_first_is_waited_for() -> None:
    client = FakePullClient(QueueModel(0, 100), members={})

    def sleep(seconds: float) -> None:
        client.clock.advance(seconds)
        client.members = {0: MASTER}

    client.clock.sleep = sleep  # type: ignore[method-assign]
    assert read(client, 0, 100)[0] == list(range(100))


def test_answers_that_never_bring_anything_end_too() -> None:
    """Neither messages nor another place to go on from: no endless loop."""

    def plan(client: FakePullClient, pending: FakePending) -> RemotingCommand:
        answer = client.model.pull(pending.offset, 1)
        answer.code, answer.body = ResponseCode.PULL_RETRY_IMMEDIATELY, b""
        answer.ext_fields["nextBeginOffset"] = str(pending.offset)
        return answer

    for expression in ("*", "a"):
        client = FakePullClient(QueueModel(0, 100), plan)
        with pytest.raises(NoProgress, match="NO_MATCHED"):
            read(client, 0, 100, expression=expression)


@pytest.mark.parametrize("body", [b"", bytes(50), record(0)[:-1], record(0) + b"\0\0\0\1"])
def test_what_is_no_record_is_refused(body: bytes) -> None:
    def plan(client: FakePullClient, pending: FakePending) -> RemotingCommand:
        answer = client.model.pull(pending.offset, 1)
        answer.body = body
        return answer

    client = FakePullClient(QueueModel(0, 100), plan)
    with pytest.raises(ProtocolError if body else NoProgress):
        read(client, 0, 100)


def test_a_slave_is_asked_when_the_master_says_so() -> None:
    client = FakePullClient(QueueModel(0, 200, suggested=1), members={0: MASTER, 1: SLAVE})
    assert read(client, 0, 200)[0] == list(range(200))
    assert client.pulls[0].address == MASTER
    assert {pull.address for pull in client.pulls[2:]} == {SLAVE}


def test_a_slave_that_lags_behind_loses_nothing() -> None:
    client = FakePullClient(
        QueueModel(0, 200, suggested=1, slave_maximum=70), members={0: MASTER, 1: SLAVE}
    )
    offsets, lost = read(client, 0, 200)
    assert offsets == list(range(200))
    assert not lost
    assert client.pulls[-1].address == MASTER


def test_a_slave_serves_while_the_master_is_away() -> None:
    def plan(client: FakePullClient, pending: FakePending) -> RocketMQError | None:
        return ConnectionFailed(MASTER, "refused") if pending.address == MASTER else None

    client = FakePullClient(QueueModel(0, 2000), plan, members={0: MASTER, 1: SLAVE})
    assert read(client, 0, 2000)[0] == list(range(2000))
    masters = [pull for pull in client.pulls if pull.address == MASTER]
    assert len(masters) == 1  # although every answer of the slave names the master


def test_a_slave_alone_never_proves_a_loss() -> None:
    client = FakePullClient(QueueModel(0, 200, slave_maximum=70), members={1: SLAVE})
    with pytest.raises(NoProgress):
        read(client, 0, 200, on_data_loss=None)


def test_with_a_filter_the_next_pull_is_under_way_while_a_block_is_worked_on() -> None:
    client = FakePullClient(QueueModel(0, 1000, matches=lambda offset: offset % 2 == 0))
    blocks = iter(range_reader(client, 0, 1000, expression="a"))
    next(blocks)
    assert len(client.under_way) == 1
    assert client.most_under_way == 1
    list(blocks)


def test_leaving_early_leaves_nothing_under_way() -> None:
    client = FakePullClient(QueueModel(0, 1000))
    blocks = iter(range_reader(client, 0, 1000))
    next(blocks)
    next(blocks)
    assert client.under_way
    blocks.close()  # type: ignore[attr-defined]
    assert not client.under_way


def covered(offsets: Iterable[int], lost: Iterable[DataLost]) -> list[int]:
    """Offsets that were read and offsets that were told to be lost, in order."""
    gone = [offset for it in lost for offset in range(it.wanted, it.wanted + it.lost)]
    return sorted([*offsets, *gone])


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32),
    end=st.integers(1, 300),
    start=st.integers(0, 299),
    batch_size=st.sampled_from([1, 5, 32, 500]),
    in_flight=st.integers(1, 8),
    count_cap=st.sampled_from([1, 8, 32, 100]),
    size_cap=st.sampled_from([1, 500, 3000, 2**20]),
    trouble=st.sampled_from([0.0, 0.1, 0.4]),
    expiry=st.sampled_from([0.0, 0.1]),
    filtered=st.booleans(),
)
def test_each_message_once_or_told_lost(
    seed: int,
    end: int,
    start: int,
    batch_size: int,
    in_flight: int,
    count_cap: int,
    size_cap: int,
    trouble: float,
    expiry: float,
    filtered: bool,
) -> None:
    """Random caps, failures, early answers, slaves that lag, and files that expire meanwhile."""
    dice = random.Random(seed)
    start = min(start, end - 1)
    errors = [ConnectionFailed(MASTER, "x", reached=True), RequestTimeout("x"), BUSY]
    model = QueueModel(
        0,
        dice.choice([end, 310]),
        count_cap,
        size_cap,
        body_size=lambda offset: offset * 37 % 400,
        scan_cap=dice.choice([3, 50, 800]),
        matches=(lambda offset: offset % 3 == 1) if filtered else (lambda offset: True),
        slave_maximum=dice.choice([None, 0, 100]),
    )

    def plan(client: FakePullClient, pending: FakePending) -> RocketMQError | None:
        model.suggested = dice.choice([0, 0, 1])
        if dice.random() < expiry:
            model.minimum = min(model.maximum - 1, model.minimum + dice.randrange(20))
        return dice.choice(errors) if dice.random() < trouble else None

    client = FakePullClient(
        model,
        plan,
        members={0: MASTER, 1: SLAVE},
        answers_early=lambda: dice.random() < 0.5,
        settings=ConnectionSettings(("ns:1",), retry_timeout_s=10_000.0),
    )
    expression = "a" if filtered else "*"
    offsets, lost = read(
        client, start, end, pull_count=batch_size, pulls_in_flight=in_flight, expression=expression
    )
    assert offsets == sorted(set(offsets))
    if not expiry:
        assert not lost
    told = covered(offsets, lost)
    assert told == sorted(set(told))
    missing = set(range(start, end)) - set(told)
    assert all(filtered and not model.matches(offset) for offset in missing)


def test_a_block_is_a_plain_value() -> None:
    assert Block(b"", 1, 2) == (b"", 1, 2)


def damaged(*offsets: int) -> object:
    """A plan: answers with these messages hold garbage in their place."""

    def plan(client: FakePullClient, pending: FakePending) -> RemotingCommand | None:
        answer = client.model.pull(pending.offset, pending.wanted)
        end = int(answer.ext_fields["nextBeginOffset"])
        if any(pending.offset <= at < end for at in offsets):
            answer.body = answer.body[:-5] + bytes(5 + len(answer.body) // 2)
            return answer
        return None

    return plan


@pytest.mark.parametrize("policy", ["fail", "raw"])
def test_a_damaged_answer_ends_the_range_unless_told_otherwise(policy: str) -> None:
    client = FakePullClient(QueueModel(0, 100), damaged(40))  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match=r"no record.*onCorruption=skip"):
        read(client, 0, 100, on_corruption=policy)


@pytest.mark.parametrize("in_flight", [1, 8])
@pytest.mark.parametrize("bad", [(0,), (40,), (99,), (10, 11, 40), (31, 32, 33)])
def test_damaged_messages_may_be_left_out(in_flight: int, bad: tuple[int, ...]) -> None:
    client = FakePullClient(QueueModel(0, 100), damaged(*bad))  # type: ignore[arg-type]
    settings = {"pulls_in_flight": in_flight, "on_corruption": "skip"}
    blocks = list(range_reader(client, 0, 100, **settings))
    assert [(each.start, each.end) for each in blocks if not each.records] == [
        (at, at + 1) for at in bad
    ]
    assert [at for each in blocks for at in range(each.start, each.end)] == list(range(100))


def test_with_a_filter_a_damaged_message_has_no_offset_to_go_on_after() -> None:
    client = FakePullClient(QueueModel(0, 100), damaged(40))  # type: ignore[arg-type]
    with pytest.raises(ProtocolError):
        read(client, 0, 100, on_corruption="skip", expression="a")
