"""Rounds of checks over a real store: who is asked when, how often, and what then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skylarkmq.broker.access.accounts import read_rules
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.transaction.check_service import CheckRules
from skylarkmq.broker.transaction.half_reader import PAGE_COUNT
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.message_id import offset_message_id
from skylarkmq.store.config import StoreConfig
from tests.broker.transaction_rig import (
    COMMIT,
    QUEUE_ID,
    ROLLBACK,
    TOPIC,
    Half,
    TransactionRig,
)
from tests.store.support import HOST
from tests.support.manual_clock import settle

TIMES, FIRST = "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET"
DAY_S = 86_400


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def flush(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def rig_of(**config: Any) -> TransactionRig:
    """Checks every 10 s, after 6 s."""
    return await TransactionRig(transaction_check_interval=10_000, **config).go()


@pytest.mark.usefixtures("age_of_records")
async def test_an_open_transaction_is_asked_about_at_its_new_place(flush: str) -> None:
    rig = await rig_of(flush_disk_type=flush)
    producer = rig.producer()
    half = rig.half(b"paid", b"TAGS\x01t", flag=3, sys_flag=1)
    born_ms = rig.clock.now_ms()
    await rig.advance(9.5)
    assert producer.pushes == []
    await rig.advance(1)
    push = producer.pushes[0]
    ((place, message),) = producer.questions()
    _, renewed = rig.halves()
    assert place == Half(1, renewed.physical_offset) != half
    unique_key = b"paid".hex()
    assert push.ext_fields == {
        "tranStateTableOffset": "1",
        "commitLogOffset": str(place.physical_offset),
        "msgId": unique_key,
        "transactionId": unique_key,
        "offsetMsgId": offset_message_id(HOST, place.physical_offset),
    }
    assert (message.topic, message.queue_id, message.body) == (TOPIC, QUEUE_ID, b"paid")
    assert (message.queue_offset, message.physical_offset) == place
    assert (message.flag, message.sys_flag, message.born_timestamp) == (3, 1, born_ms)
    assert message.properties == renewed.properties
    assert (message.properties[TIMES], message.properties[FIRST]) == ("1", "0")
    assert (await rig.end(place)).code == ResponseCode.SUCCESS
    assert (rig.bodies(), rig.ops(), rig.ledger.pending_count) == ([b"paid"], [b"0", b"1"], 0)
    await rig.advance(21)
    assert producer.pushes == []


async def test_a_verdict_for_the_first_place_is_one_for_the_transaction(flush: str) -> None:
    """A producer whose work takes longer than a round answers with what it was told first."""
    rig = await rig_of(flush_disk_type=flush)
    producer = rig.producer()
    half = rig.half()
    await rig.advance(30.5)
    places = [place for place, _ in producer.questions()]
    assert len(places) == 3
    assert (await rig.end(half)).code == ResponseCode.SUCCESS
    for place in (half, *places):
        assert (await rig.end(place)).code == ResponseCode.SYSTEM_ERROR
    assert (rig.bodies(), rig.ledger.pending_count) == ([b"body"], 0)
    await rig.advance(30)
    assert producer.pushes == []


async def test_the_verdict_for_a_former_place_counts_too() -> None:
    rig = await rig_of()
    producer = rig.producer()
    rig.half()
    await rig.advance(20.5)
    (former, _), (now, _) = producer.questions()
    assert (await rig.end(former, ROLLBACK)).code == ResponseCode.SUCCESS
    assert (await rig.end(now, COMMIT)).code == ResponseCode.SYSTEM_ERROR
    assert (rig.bodies(), rig.ledger.pending_count) == ([], 0)


async def test_a_verdict_that_meets_the_check_waits_for_it() -> None:
    rig = await rig_of(flush_disk_type="SYNC_FLUSH")
    rig.producer()
    half = rig.half()
    await rig.advance(9.5)
    rig.clock.advance(0.5)
    await settle()  # the half message is being written anew, and not synced yet
    assert rig.ledger.is_under_way(0)
    task = rig.begin_end(half)
    await settle()
    assert not task.done()
    await rig.work()
    assert task.result().code == ResponseCode.SUCCESS
    assert (rig.bodies(), rig.ops()) == ([b"body"], [b"0", b"1"])


async def test_a_check_that_meets_a_verdict_leaves_it_alone() -> None:
    rig = await rig_of(flush_disk_type="SYNC_FLUSH")
    producer = rig.producer()
    half = rig.half()
    await rig.advance(9.5)
    task = rig.begin_end(half)
    await settle()
    rig.clock.advance(0.5)
    await rig.work()
    assert task.result().code == ResponseCode.SUCCESS
    assert (producer.pushes, len(rig.halves()), rig.bodies()) == ([], 1, [b"body"])


async def test_a_young_one_ends_the_round() -> None:
    rig = await rig_of()
    producer = rig.producer()
    rig.half(b"old")
    await rig.advance(5)
    rig.half(b"young")
    await rig.advance(5.5)
    assert [message.body for _, message in producer.questions()] == [b"old"]
    await rig.advance(10)
    assert sorted(message.body for _, message in producer.questions()) == [b"old", b"young"]


async def test_one_born_in_the_future_is_asked_about_at_once() -> None:
    rig = await rig_of()
    producer = rig.producer()
    await rig.advance(9)
    rig.half(born_timestamp=rig.clock.now_ms() + 3_600_000)
    await rig.advance(1.5)
    assert len(producer.questions()) == 1


@pytest.mark.parametrize("seconds", [b"25", b"-1", b"soon", b"9" * 18])
async def test_nobody_asks_before_the_time_that_a_message_names(seconds: bytes) -> None:
    rig = await rig_of(file_reserved_time=1)
    producer = rig.producer()
    half = rig.half(properties=b"CHECK_IMMUNITY_TIME_IN_SECONDS\x01" + seconds)
    await rig.advance(20.5)
    if seconds in (b"-1", b"soon"):  # as if it named none
        assert len(producer.questions()) == 2
        return
    assert producer.questions() == []
    *_, last = rig.halves()
    assert last.properties[FIRST] == "0" and TIMES not in last.properties
    assert rig.ledger.stats.postponed == len(rig.halves()) - 1 == 2
    if seconds == b"25":
        await rig.advance(10)
        ((_, message),) = producer.questions()
        assert message.properties[TIMES] == "1"
    assert (await rig.end(half)).code == ResponseCode.SUCCESS
    assert rig.bodies() == [b"body"]


async def test_after_the_last_question_it_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    rig = await rig_of(transaction_check_max=3)
    producer = rig.producer()
    half = rig.half(flag=9)
    await rig.advance(30.5)
    places = [place for place, _ in producer.questions()]
    assert len(places) == 3
    assert rig.given_up() == []
    await rig.advance(10)
    assert producer.questions() == []
    (message,) = rig.given_up()
    assert (message.body, message.flag, message.properties[TIMES]) == (b"body", 9, "3")
    assert rig.topics.table["TRANS_CHECK_MAX_TIME_TOPIC"].read_queue_nums == 1
    assert (rig.ledger.pending_count, rig.ledger.stats.given_up) == (0, 1)
    (said,) = [text for text in caplog.messages if "given up" in text]
    assert "1 transactions" in said and "TRANS_CHECK_MAX_TIME_TOPIC" in said
    await rig.advance(21)
    assert len(rig.given_up()) == 1
    # Verdicts that come after all, for two of its places
    tasks = [rig.begin_end(place) for place in (half, places[1])]
    await rig.work()
    assert [task.result().code for task in tasks] == [
        ResponseCode.SUCCESS,
        ResponseCode.SYSTEM_ERROR,
    ]
    assert (await rig.end(half)).code == ResponseCode.SYSTEM_ERROR
    assert rig.bodies() == [b"body"]


async def test_a_late_rollback_of_what_was_given_up_counts_once() -> None:
    rig = await rig_of(transaction_check_max=1)
    rig.producer()
    half = rig.half()
    await rig.advance(20.5)
    assert len(rig.given_up()) == 1
    assert (await rig.end(half, ROLLBACK)).code == ResponseCode.SUCCESS
    assert (await rig.end(half, COMMIT)).code == ResponseCode.SYSTEM_ERROR
    assert rig.bodies() == []


async def test_what_was_given_up_can_be_resumed() -> None:
    rig = await rig_of(transaction_check_max=1)
    producer = rig.producer()
    half = rig.half()
    await rig.advance(20.5)
    producer.questions()
    (message,) = rig.given_up()
    assert (await rig.resume(message.physical_offset)).code == ResponseCode.SUCCESS
    again = await rig.resume(message.physical_offset)
    assert again.code == ResponseCode.SYSTEM_ERROR and "already" in (again.remark or "")
    await rig.advance(10)
    ((place, _),) = producer.questions()
    assert (await rig.end(half)).code == ResponseCode.SUCCESS
    assert (await rig.end(place)).code == ResponseCode.SYSTEM_ERROR
    assert rig.bodies() == [b"body"]


async def test_age_gives_up_what_was_asked_about() -> None:
    rig = await rig_of(file_reserved_time=1)
    producer = rig.producer()
    rig.half(born_timestamp=rig.clock.now_ms() - DAY_S * 1000)
    await rig.advance(10.5)
    assert len(producer.questions()) == 1, "a producer's clock may be days behind"
    await rig.advance(10)
    assert (producer.questions(), len(rig.given_up())) == ([], 1)


async def test_a_group_is_asked_in_turn() -> None:
    rig = await rig_of()
    producers = [rig.producer(f"192.0.2.1:{port}") for port in range(3)]
    rig.producer("192.0.2.2:1", group="others")
    gone, slow = rig.producer("192.0.2.3:1"), rig.producer("192.0.2.4:1")
    gone.closed = True
    slow.paused_since_s = 1.0
    for number in range(6):
        rig.half(b"%d" % number)
    await rig.advance(10.5)
    assert [len(producer.questions()) for producer in producers] == [2, 2, 2]
    assert (gone.pushes, slow.pushes) == ([], [])


async def test_a_member_without_the_right_to_publish_does_not_see_the_message() -> None:
    """Whoever has an account may call itself a producer of any group."""
    rig = await rig_of()
    mine, foreign = rig.producer("192.0.2.1:1"), rig.producer("192.0.2.2:1")
    rules = read_rules(
        [
            (
                Path("plain_acl.yml"),
                b"accounts:\n"
                b"- {accessKey: publisher, secretKey: 12345678, topicPerms: [orders=PUB]}\n"
                b"- {accessKey: somebody, secretKey: 12345678}\n",
            )
        ]
    )
    mine.account, foreign.account = rules.accounts["publisher"], rules.accounts["somebody"]
    for number in range(4):
        rig.half(b"%d" % number)
    await rig.advance(10.5)
    assert (len(mine.questions()), foreign.questions()) == (4, [])


async def test_a_question_without_anybody_to_ask_does_not_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A producer that was away for longer than all checks take finds its transactions open."""
    rig = await rig_of(transaction_check_max=2)
    rig.half()
    rig.half()
    await rig.advance(50.5)
    assert (rig.ledger.stats.asked, rig.ledger.stats.nobody) == (0, 10)
    assert (len(rig.halves()), rig.given_up()) == (2, [])
    (line,) = [text for text in caplog.messages if "has no client" in text]
    assert "'producers' has no client that could be asked about 2" in line
    producer = rig.producer()
    await rig.advance(10)
    questions = producer.questions()
    assert [message.properties[TIMES] for _, message in questions] == ["1", "1"]
    assert (await rig.end(questions[0][0])).code == ResponseCode.SUCCESS


async def test_what_nobody_could_be_asked_about_is_given_up_before_its_file_expires() -> None:
    rig = await rig_of(file_reserved_time=1)
    rig.half(born_timestamp=rig.clock.now_ms() - DAY_S * 1000)
    await rig.advance(53 * 60, step_s=10)
    assert rig.given_up() == []
    await rig.advance(70, step_s=10)
    (message,) = rig.given_up()
    assert TIMES not in message.properties
    assert (await rig.resume(message.physical_offset)).code == ResponseCode.SUCCESS


async def test_a_producer_that_reads_nothing_is_asked_later_and_that_is_not_counted() -> None:
    rig = await rig_of()
    producer = rig.producer()
    producer.paused_since_s = 1.0
    rig.half()
    await rig.advance(30.5)
    assert (len(rig.halves()), producer.pushes) == (1, [])
    producer.paused_since_s = 0.0
    await rig.advance(10)
    ((_, message),) = producer.questions()
    assert message.properties[TIMES] == "1"


@pytest.mark.usefixtures("age_of_records")
async def test_rounds_go_over_many_pages_and_over_what_has_ended() -> None:
    rig = await rig_of()
    producer = rig.producer()
    count = 3 * PAGE_COUNT + 5
    halves = [rig.half(b"%d" % number) for number in range(count)]
    for half in halves[::3]:
        await rig.end(half)
    await rig.advance(11)
    asked = [int(message.body) for _, message in producer.questions()]
    assert asked == [number for number in range(count) if number % 3]
    assert rig.ledger.pending_count == len(asked)


async def test_a_page_of_large_messages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await rig_of()
    producer = rig.producer()
    sizes: list[int] = []
    put = rig.store.put_messages
    monkeypatch.setattr(
        rig.store,
        "put_messages",
        lambda inners, done: (sizes.append(len(inners)), put(inners, done)),
    )
    for _ in range(40):
        rig.half(bytes(30_000))
    sizes.clear()
    await rig.advance(12)
    assert len(producer.questions()) == 40
    assert len(sizes) > 1 and sum(sizes) == 80


async def test_nothing_open_is_no_timer(flush: str) -> None:
    rig = await rig_of(flush_disk_type=flush)
    await rig.advance(15)
    others = rig.clock.pending_count
    half = rig.half()
    await rig.work()
    assert rig.clock.pending_count > others
    await rig.end(half)
    await rig.advance(20)
    assert rig.clock.pending_count == others
    rig.producer()
    rig.half()
    await rig.advance(20)
    assert rig.ledger.stats.asked == 1


async def test_what_another_broker_stored_larger_is_asked_about_where_it_is() -> None:
    rig = await rig_of()
    producer = rig.producer()
    text = (
        b"TRAN_MSG\x01true\x02PGROUP\x01producers\x02REAL_TOPIC\x01orders\x02REAL_QID\x013\x02v\x01"
    )
    placed = rig.put("RMQ_SYS_TRANS_HALF_TOPIC", 0, properties=text + b"x" * (32_767 - len(text)))
    assert placed is not None
    rig.ledger.expect()
    half = rig.half()
    await rig.advance(10.5)
    places = [place for place, _ in producer.questions()]
    assert places[0] == Half(0, placed.physical_offset)
    assert places[1].queue_offset == 2
    for place in (places[0], half):
        assert (await rig.end(place)).code == ResponseCode.SUCCESS
    assert len(rig.bodies()) == 2


async def test_one_without_a_possible_target_is_given_up() -> None:
    rig = await rig_of()
    producer = rig.producer()
    rig.half()
    text = b"TRAN_MSG\x01true\x02PGROUP\x01producers\x02REAL_TOPIC\x01../x\x02REAL_QID\x010"
    rig.half()
    rig.put("RMQ_SYS_TRANS_HALF_TOPIC", 0, properties=text)
    await rig.advance(10.5)
    assert [place.queue_offset for place, _ in producer.questions()] == [3, 4]
    assert [message.properties["REAL_TOPIC"] for message in rig.given_up()] == ["../x"]


async def test_a_full_disk_ends_the_round_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await rig_of()
    producer = rig.producer()
    for _ in range(PAGE_COUNT + 1):
        rig.half()
    monkeypatch.setattr(rig.store, "refusal", lambda: "the disk is full")
    await rig.advance(10.5)
    assert (producer.pushes, rig.ledger.pending_count) == ([], PAGE_COUNT + 1)
    monkeypatch.undo()
    await rig.advance(10)
    assert len(producer.questions()) == PAGE_COUNT + 1


async def test_a_stop_finishes_the_page_under_way(flush: str) -> None:
    rig = await rig_of(flush_disk_type=flush)
    producer = rig.producer()
    half = rig.half()
    await rig.advance(9.5)
    rig.clock.advance(0.5)
    await settle(2)
    await rig.stop_all()
    assert rig.ledger.pending_count == 1
    again = await TransactionRig(rig.files, flush_disk_type=flush).go()
    assert again.ledger.pending_count == 1
    assert (await again.end(half)).code == ResponseCode.SUCCESS
    assert again.bodies() == [b"body"]
    assert len(producer.questions()) <= 1


def test_limits_come_from_the_configuration(tmp_path: Path) -> None:
    config = BrokerConfig(
        store=StoreConfig(store_path_root_dir=tmp_path, file_reserved_time=2),
        transaction_time_out=5,
        transaction_check_max=4,
    )
    assert CheckRules.of(config) == (5, 4, 7_200_000)
