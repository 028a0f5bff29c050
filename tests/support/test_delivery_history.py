"""The checker of deliveries sees each acknowledged message that a group never got, and no other."""

from __future__ import annotations

import pytest

from tests.support.delivery_history import DeliveryHistory, MissedError

QUEUE = ("orders", 0)
GROUP = "billing"


def history(*messages: str, members: tuple[str, ...] = ("m1",)) -> DeliveryHistory:
    """A group, and messages that were acknowledged after it had joined."""
    made = DeliveryHistory()
    for member in members:
        made.joins(GROUP, member)
    send(made, *messages)
    return made


def send(it: DeliveryHistory, *messages: str, offset: int = 0, durable: bool = True) -> None:
    for number, message in enumerate(messages, offset):
        it.acked(message, QUEUE, number, durable=durable)


def get(it: DeliveryHistory, *messages: str, member: str = "m1") -> None:
    for message in messages:
        it.delivered(GROUP, member, message)


def missed(it: DeliveryHistory) -> list[str]:
    return [each.acked.message for each in it.missed()]


def passed_over(it: DeliveryHistory) -> list[str]:
    return [each.acked.message for each in it.passed_over()]


def test_a_group_whose_members_together_got_everything_missed_nothing() -> None:
    it = history("a", "b", "c", members=("m1", "m2"))
    get(it, "a", "c")
    get(it, "b", "b", member="m2")
    it.check()
    assert it.seen(GROUP) == {"a": 1, "b": 2, "c": 1}


def test_a_message_with_a_later_one_seen_is_passed_over() -> None:
    it = history("a", "b", "c")
    get(it, "a", "c")
    assert passed_over(it) == missed(it) == ["b"]
    with pytest.raises(MissedError, match="billing: passed over: b at orders/0:1, life 0"):
        it.check()


def test_a_message_at_the_end_is_not_seen_yet() -> None:
    it = history("a", "b")
    get(it, "a")
    assert (missed(it), passed_over(it)) == (["b"], [])
    with pytest.raises(MissedError, match="not seen yet: b"):
        it.check()


def test_one_that_the_groups_position_is_behind_is_passed_over() -> None:
    it = history("a", "b")
    get(it, "a")
    it.commits(GROUP, QUEUE, 2)
    assert passed_over(it) == ["b"]


def test_a_position_of_an_earlier_life_says_nothing_of_this_one() -> None:
    it = history("a", "b")
    get(it, "a", "b")
    it.commits(GROUP, QUEUE, 2)
    it.log_became({QUEUE: 0}, keeps="nothing")
    send(it, "c")
    assert (missed(it), passed_over(it)) == (["c"], [])


def test_a_message_at_an_old_offset_is_another_one() -> None:
    """What was seen at that offset before does not count for it."""
    it = history("a", "b", "c")
    get(it, "a", "b", "c")
    it.log_became({QUEUE: 1}, keeps="nothing")
    send(it, "d", "e", offset=1)
    get(it, "e")
    assert passed_over(it) == ["d"]


def test_what_a_crash_may_take_is_owed_to_nobody() -> None:
    it = history("a")
    send(it, "b", offset=1, durable=False)
    get(it, "a")
    gone = it.log_became({QUEUE: 1})
    assert [each.message for each in gone] == ["b"]
    assert [each.message for each in it.owed()] == ["a"]
    it.check()


def test_what_it_left_is_owed() -> None:
    it = history("a")
    send(it, "b", offset=1, durable=False)
    get(it, "a")
    assert it.log_became({QUEUE: 2}) == []
    assert missed(it) == ["b"]


@pytest.mark.parametrize("keeps", ["all", "durable"])
def test_what_no_crash_may_take_is_a_loss(keeps: str) -> None:
    it = history("a", "b")
    get(it, "a", "b")
    it.log_became({QUEUE: 1}, keeps=keeps)
    with pytest.raises(MissedError, match="lost: b at orders/0:1"):
        it.check()


def test_a_kill_takes_nothing_even_if_it_was_not_synced() -> None:
    it = history()
    send(it, "a", durable=False)
    get(it, "a")
    it.log_became({}, keeps="all")
    with pytest.raises(MissedError, match="lost: a"):
        it.check()


def test_after_a_sync_a_message_is_durable() -> None:
    it = history()
    send(it, "a", durable=False)
    it.synced()
    it.log_became({})
    assert it.violations == ["lost: a at orders/0:0, life 0"]


def test_a_message_that_is_sent_again_is_owed_at_its_new_place() -> None:
    it = history()
    send(it, "a", durable=False)
    it.log_became({})
    send(it, "a")
    assert missed(it) == ["a"]
    get(it, "a")
    it.check()


def test_each_broadcasting_member_is_owed_everything() -> None:
    it = DeliveryHistory()
    for member in ("m1", "m2"):
        it.joins(GROUP, member, broadcasting=True)
    send(it, "a", "b")
    for member, message in (("m1", "a"), ("m1", "b"), ("m2", "b")):
        it.delivered(GROUP, member, message, broadcasting=True)
    assert [str(each) for each in it.missed()] == [
        "billing/m2: passed over: a at orders/0:0, life 0"
    ]
    assert it.seen(GROUP, "m2") == {"b": 1}


def test_what_was_acknowledged_before_a_group_was_there_is_not_owed_to_it() -> None:
    it = DeliveryHistory()
    send(it, "a")
    it.joins(GROUP, "m1")
    it.joins(GROUP, "m2")
    send(it, "b", offset=1)
    get(it, "b")
    it.check()


def test_a_message_that_nobody_sent_is_told() -> None:
    it = history("a")
    get(it, "a", "x")
    it.sent("y")  # stored without an acknowledgement
    get(it, "y")
    with pytest.raises(MissedError, match="invented: billing got x") as caught:
        it.check()
    assert "y" not in str(caught.value).split()


def test_who_never_joined_gets_nothing() -> None:
    with pytest.raises(ValueError, match="m9 never joined other"):
        history().delivered("other", "m9", "a")
