"""Where files lie, and that no name of a topic leads elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.common.errors import StoreError
from skylarkmq.store.folder import StorePaths

ROOT = Path("/data/store")


def test_the_layout_is_rocketmqs() -> None:
    paths = StorePaths(ROOT)
    assert paths.commit_log == ROOT / "commitlog"
    assert paths.consume_queue == ROOT / "consumequeue"
    assert paths.config == ROOT / "config"
    assert (paths.checkpoint, paths.abort, paths.lock) == (
        ROOT / "checkpoint", ROOT / "abort", ROOT / "lock"
    )  # fmt: skip
    assert paths.profile.parent == ROOT / "skylarkmq"
    assert paths.queue_folder("%RETRY%group-1", 3) == ROOT / "consumequeue/%RETRY%group-1/3"


def test_the_log_may_lie_elsewhere() -> None:
    assert StorePaths(ROOT, Path("/fast/log")).commit_log == Path("/fast/log")


@pytest.mark.parametrize(
    "topic", ["", ".", "..", "../x", "a/b", "/etc", "a\0b", "a b", "t" * 128, "töpic", "a.b"]
)
def test_names_that_are_no_topic_have_no_folder(topic: str) -> None:
    with pytest.raises(StoreError, match="no queue folder"):
        StorePaths(ROOT).queue_folder(topic, 0)


def test_a_negative_queue_has_no_folder() -> None:
    with pytest.raises(StoreError):
        StorePaths(ROOT).queue_folder("T", -1)
