"""What the machine refuses, and what is final."""

from __future__ import annotations

import errno

import pytest

from skylarkmq.common.refusal import failed_sync, is_no_space, refusal


@pytest.mark.parametrize(
    ("number", "why", "full"),
    [
        (errno.ENOSPC, "the disk is full", True),
        (errno.EDQUOT, "the disk is full", True),
        (errno.EMFILE, "this process has too many open files", False),
        (errno.ENFILE, "the machine has too many open files", False),
        (errno.ENOMEM, "the machine has no memory left", False),
    ],
)
def test_what_is_refused_may_be_asked_for_again(number: int, why: str, full: bool) -> None:
    error = OSError(number, "x")
    refused = refusal(error)
    assert refused is not None
    assert refused.why == why
    assert refused.cure
    assert is_no_space(error) is full


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "x"), OSError("x"), ValueError(errno.ENOSPC), None]
)
def test_all_else_is_final(error: BaseException | None) -> None:
    assert refusal(error) is None
    assert error is None or not is_no_space(error)


def test_a_failed_sync_is_final_whatever_the_system_says() -> None:
    failed = failed_sync(OSError(errno.ENOSPC, "no room", "file"))
    assert refusal(failed) is None
    assert (failed.errno, failed.filename) == (errno.EIO, "file")
    assert "the sync failed: no room" in str(failed)
