"""When log files go, and when messages are refused: hours, age, ratios, requests."""

from __future__ import annotations

import logging
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from skylarkmq.common.config_fields import ConfigError
from skylarkmq.store.config import delete_hours
from skylarkmq.store.results import GetMessageStatus, PutMessageStatus
from tests.store.clean_rig import FIRST_RUN_S, CleanRig, hour_at
from tests.store.support import LOG_SIZE, store_config
from tests.support.crash_disk import CrashDisk
from tests.support.crash_states import CrashState, Keep

OLD_H = 73.0
REFUSED = PutMessageStatus.SERVICE_NOT_AVAILABLE


def _filled(file_count: int = 5, **config: Any) -> CleanRig:
    return CleanRig(**config).start().fill(file_count).settle()


def _old(file_count: int = 5, **config: Any) -> CleanRig:
    """A store whose files were written 73 hours ago."""
    return _filled(file_count).again(OLD_H, **config)


def test_expired_files_go_in_their_hour() -> None:
    rig = _old(delete_when=f"{hour_at(OLD_H):02d}")
    count = rig.store.max_offset("orders", 0)
    rig.spend(FIRST_RUN_S + 2)
    assert rig.names() == rig.on_disk() == [4], "all but the last one"
    assert rig.store.commit_log.min_offset == 4 * LOG_SIZE
    assert rig.store.stats.log_files_deleted == 4
    minimum = rig.store.min_offset("orders", 0)
    assert rig.readable() == list(range(minimum, count)) and 0 < minimum < count
    result = rig.store.get_message("orders", 0, 0, 32)
    assert result.status is GetMessageStatus.OFFSET_TOO_SMALL
    assert result.next_begin_offset == minimum
    after = rig.fill(6).settle().again(OLD_H)
    assert after.store.min_offset("orders", 0) == minimum
    assert after.readable() == list(range(minimum, after.store.max_offset("orders", 0)))


def test_nothing_goes_in_other_hours() -> None:
    assert _old().spend(FIRST_RUN_S * 3).names() == [0, 1, 2, 3, 4]


def test_nothing_goes_in_the_first_minute() -> None:
    rig = _old(delete_when=f"{hour_at(OLD_H):02d}")
    assert rig.spend(55).names() == [0, 1, 2, 3, 4]


def test_young_files_stay() -> None:
    rig = _filled().again(71, delete_when=f"{hour_at(71):02d}")
    assert rig.spend(FIRST_RUN_S * 3).names() == [0, 1, 2, 3, 4]


def test_expired_files_go_at_any_hour_when_the_disk_fills() -> None:
    rig = _old()
    rig.percent = 75
    assert rig.spend(FIRST_RUN_S + 2).names() == [0, 1, 2, 3, 4], "75 is not over 75"
    rig.percent = 76
    assert rig.spend(12).names() == [4]


def test_young_files_stay_as_long_as_nothing_is_forced() -> None:
    rig = _filled()
    rig.percent = 85
    assert rig.spend(FIRST_RUN_S * 3).names() == [0, 1, 2, 3, 4]


def test_a_full_disk_costs_young_files_until_it_is_less_full() -> None:
    rig = _filled()
    rig.percent = 86
    rig.spend_until(lambda: rig.names() != [0, 1, 2, 3, 4])
    assert rig.names() == [1, 2, 3, 4], "one, then the disk is asked again"
    rig.percent = 85
    assert rig.spend(30).names() == [1, 2, 3, 4]
    rig.percent = 86
    assert rig.spend(30).names() == [4], "never the last one"


def test_forced_removal_can_be_forbidden() -> None:
    rig = _filled(clean_file_forcibly_enable=False)
    rig.percent = 99
    assert rig.spend(FIRST_RUN_S * 3).names() == [0, 1, 2, 3, 4]


def test_a_higher_ratio_for_expired_files_puts_force_off() -> None:
    rig = _filled(disk_max_used_space_ratio=88)
    rig.percent = 88
    assert rig.spend(FIRST_RUN_S * 3).names() == [0, 1, 2, 3, 4]
    rig.percent = 89
    assert rig.spend(12).names() == [4]


def test_ten_files_a_run_and_a_pause_between_two() -> None:
    rig = _filled(14, delete_commit_log_files_interval=500)
    rig.percent = 86
    times: list[float] = []
    for count in range(1, 11):
        while rig.store.stats.log_files_deleted < count:
            rig.step()
        times.append(rig.clock.monotonic())
    assert [round(after - before, 3) for before, after in pairwise(times)] == [0.5] * 9
    assert rig.spend(4).names() == [10, 11, 12, 13], "and no more before the next run"
    assert rig.spend(10).names() == [13]


def test_only_the_partition_of_the_queues_is_full() -> None:
    rig = _filled(delete_consume_queue_files_interval=10_000)
    rig.log_percent, rig.percent = 20, 86
    rig.spend_until(lambda: rig.names() != [0, 1, 2, 3, 4])
    rig.spend(8)
    assert rig.names() == [1, 2, 3, 4], "one file a run, as its queue files must go first"


def test_messages_are_refused_over_the_warning_ratio_and_taken_again() -> None:
    rig = _filled(2)
    rig.percent = 91
    rig.spend(11)
    result = rig.put("orders")
    assert result is not None and result.status is REFUSED
    assert "commitlog 91 %" in result.why and "diskSpaceWarningLevelRatio is 90" in result.why
    assert rig.store.cleaning.disk.is_full
    assert rig.readable() == list(range(rig.store.max_offset("orders", 0)))
    rig.percent = 90
    rig.spend(11)
    result = rig.put("orders")
    assert result is not None and result.status is PutMessageStatus.PUT_OK
    assert rig.store.stats.disk_used_percent == {"commitlog": 90, "consumequeue": 90}


def test_what_was_measured_before_a_judgement_is_not_used_after_it() -> None:
    rig = _filled(2)
    rig.percent = 91
    while not rig.workers.tables.run_job():  # a thread has measured, and the loop does not know
        rig.clock.advance(0.5)
    rig.percent = 90
    rig.store.cleaning.disk.judge_now()
    rig.workers.run_all()
    assert rig.store.refusal() is None
    rig.percent = 91
    rig.spend(11)
    assert rig.store.refusal() is not None, "it measures again in its time"


def test_a_start_on_a_full_disk_refuses_after_a_second() -> None:
    rig = CleanRig()
    rig.percent = 91
    rig.start()
    rig.spend(1.1)
    assert rig.store.refusal() is not None


def test_messages_are_taken_as_soon_as_a_run_made_room() -> None:
    rig = _filled()
    rig.percent = 95
    rig.spend_until(lambda: rig.store.stats.log_files_deleted == 2)
    assert rig.store.refusal() is not None
    rig.percent = 80
    rig.spend(0.2)
    assert rig.store.refusal() is None, "without waiting for the next round"
    assert rig.names() == [2, 3, 4]


def test_the_last_file_that_may_go_makes_room_as_well() -> None:
    rig = _filled(2)
    rig.percent = 95
    rig.spend_until(lambda: rig.store.stats.log_files_deleted == 1)
    assert rig.store.refusal() is not None
    rig.percent = 80
    rig.spend(0.2)
    assert rig.store.refusal() is None


def test_an_unknown_usage_changes_nothing() -> None:
    rig = _old()
    rig.files.fail("space", times=1000)
    rig.spend(FIRST_RUN_S * 2)
    assert rig.store.refusal() is None and rig.names() == [0, 1, 2, 3, 4]
    assert rig.store.stats.disk_used_percent == {"commitlog": -1, "consumequeue": -1}


def test_a_request_cleans_at_any_hour_but_only_what_is_expired() -> None:
    rig = _old()
    rig.fill(7).settle()
    rig.store.cleaning.clean_now()
    rig.spend(3)
    assert rig.names() == [4, 5, 6]


def test_nothing_is_planned_any_more_after_a_stop() -> None:
    rig = _old(delete_when=f"{hour_at(OLD_H):02d}")
    rig.spend(59)
    rig.stop()
    assert rig.clock.pending_count == 0
    rig.clock.advance(100)
    assert CleanRig(rig.files, age_h=OLD_H).start().names() == [0, 1, 2, 3, 4]


def test_a_stop_within_a_run_ends_it() -> None:
    rig = _filled()
    rig.percent = 86
    rig.spend_until(lambda: rig.store.stats.log_files_deleted == 1)
    rig.store.stop_writing()
    rig.workers.run_all()
    assert rig.clock.pending_count == 0
    rig.clock.advance(10)
    rig.workers.run_all()
    assert rig.on_disk() == [1, 2, 3, 4]
    rig.store.close()


@pytest.mark.parametrize("text", ["", "24", "-1", "four", "04;x", ";"])
def test_hours_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^deleteWhen=.*00 to 23"):
        store_config(CrashDisk().root, delete_when=text)


def test_hours() -> None:
    assert delete_hours("04") == {4}
    assert delete_hours("4; 16;23") == {4, 16, 23}


def test_ratios_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^diskSpaceCleanForciblyRatio=90: use at most"):
        store_config(
            CrashDisk().root,
            disk_space_clean_forcibly_ratio=90,
            disk_space_warning_level_ratio=89,
        )


def test_after_a_crash_on_a_full_disk_cleaning_makes_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = _filled(4)
    rig.files.free = 0  # so no log file is made ahead whose removal would help
    rig.fill(5)
    for _ in range(30):
        rig.put("other")
    after = CleanRig(rig.files.crash(CrashState(Keep.KILL), Random(1)))
    after.files.free = 0
    after.percent = 100
    with caplog.at_level(logging.WARNING):
        after.start()
        assert after.store.recovery is not None and not after.store.recovery.clean
        assert after.store.queues.flusher.refused, "the units of the other queue have no room"
        after.spend(20)
    told = [text for text in caplog.messages if text.startswith("no room for consume queues")]
    assert len(told) == 1, "once, not each second"
    after.spend(FIRST_RUN_S)
    assert not {0, 1, 2} & set(after.names()), "their units were on the disk before the crash"
    after.percent = 50
    after.spend(21)
    assert after.store.refusal() is None
    result = after.put("other")
    assert result is not None and result.queue_offset == 30
