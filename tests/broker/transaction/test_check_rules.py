"""What a round does with an open transaction when clocks are not as they should be."""

from __future__ import annotations

import pytest

from tests.broker.transaction_rig import TransactionRig

HOUR_MS = 3_600_000


async def test_a_wall_clock_that_goes_back_does_not_hold_questions_up() -> None:
    """Half messages from before the step seem to be stored in the future."""
    rig = await TransactionRig(transaction_check_interval=10_000).go()
    producer = rig.producer()
    rig.half()
    await rig.advance(5)
    rig.clock.step_wall(-3600)
    await rig.advance(5.5)
    assert len(producer.questions()) == 1


@pytest.mark.parametrize(("ahead_h", "is_asked"), [(1, False), (71, False), (73, True)])
async def test_a_born_time_far_ahead_is_not_waited_for(ahead_h: int, is_asked: bool) -> None:
    """Else it would be written anew in every round for as long as its clock says."""
    rig = await TransactionRig(transaction_check_interval=10_000).go()
    producer = rig.producer()
    born_ms = rig.clock.now_ms() + ahead_h * HOUR_MS
    rig.half(properties=b"CHECK_IMMUNITY_TIME_IN_SECONDS\x0160", born_timestamp=born_ms)
    await rig.advance(10.5)
    assert bool(producer.questions()) == is_asked


@pytest.mark.parametrize(("seconds", "asked_after_s"), [(1800, 1800), (2 * 3600, 3600)])
async def test_no_immunity_outlives_the_log_files(seconds: int, asked_after_s: int) -> None:
    """A message that forbids questions for longer than files are kept would go with its file."""
    round_s = 600
    rig = await TransactionRig(transaction_check_interval=round_s * 1000, file_reserved_time=1).go()
    producer = rig.producer()
    rig.half(properties=b"CHECK_IMMUNITY_TIME_IN_SECONDS\x01%d" % seconds)
    asked_s: list[int] = []
    for now_s in range(round_s, 5400, round_s):
        await rig.advance(round_s, step_s=round_s / 2)
        asked_s += [now_s] * len(producer.questions())
    assert asked_s[:1] == [asked_after_s]
