"""What a swap may say, whichever engine it goes to."""

import pytest

from skylarkmq.broker.replication.failover.coordination import Change, Condition, check_swap


def test_a_swap_that_says_one_thing_about_each_key() -> None:
    check_swap([], [])
    check_swap(
        [Condition("state", revision=7), Condition("state", lease=3), Condition("master", 0)],
        [Change("state", b"x"), Change("master", b"", lease=3), Change("alive/a", None)],
    )


@pytest.mark.parametrize(
    ("conditions", "changes", "word"),
    [
        ([Condition("")], [], "empty"),
        ([], [Change("", b"x")], "empty"),
        ([], [Change("state", b"x"), Change("state", None)], "once"),
        ([Condition("state", revision=-1)], [], "0 or more"),
        ([Condition("state", lease=-1)], [], "0 or more"),
        ([], [Change("state", b"x", lease=-1)], "0 or more"),
        ([], [Change("state", None, lease=3)], "binds nothing"),
    ],
)
def test_what_no_engine_is_asked(
    conditions: list[Condition], changes: list[Change], word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        check_swap(conditions, changes)
