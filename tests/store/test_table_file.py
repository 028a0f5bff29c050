"""Files that are replaced as a whole, one after the other; errors reach the right ones.

One write for many changes: `tests/broker/test_persist.py`.
"""

from __future__ import annotations

import errno
from pathlib import Path

from tests.support.memory_files import Tables

TOPICS, GROUPS = Path("/store/config/topics.json"), Path("/store/config/groups.json")


class Rig(Tables):
    """A writer, a table whose text is its version, and what the waiters heard."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 0
        self.heard: list[tuple[int, BaseException | None]] = []

    def change(self, path: Path = TOPICS) -> int:
        """Change the table and have it written."""
        self.version += 1
        version = self.version
        self.writer.write(
            path, lambda: b"%d" % version, lambda error: self.heard.append((version, error))
        )
        return version

    def versions(self) -> list[int]:
        return [version for version, _ in self.heard]


def test_a_change_is_told_once_it_is_written() -> None:
    rig = Rig()
    rig.change()
    assert rig.worker.run_job()
    assert rig.heard == []
    rig.worker.deliver()
    assert rig.heard == [(1, None)]
    assert rig.files.texts[TOPICS] == b"1"


def test_the_old_table_stays_as_its_backup() -> None:
    rig = Rig()
    for _ in range(3):
        rig.change()
        rig.worker.run_all()
    assert rig.files.texts[TOPICS.with_name("topics.json.bak")] == b"2"


def test_two_tables_do_not_wait_for_each_other() -> None:
    rig = Rig()
    rig.change(TOPICS)
    rig.change(GROUPS)
    rig.worker.step()
    rig.worker.step()
    assert rig.versions() == [1, 2]
    assert rig.files.write_count == 2


def test_an_error_reaches_those_of_its_write_alone() -> None:
    rig = Rig()
    rig.change()
    rig.change()
    rig.change()
    rig.files.error = OSError(errno.ENOSPC, "full")
    rig.worker.step()
    assert [error is not None for _, error in rig.heard] == [True]
    rig.files.error = None
    rig.worker.step()
    assert rig.heard[1:] == [(2, None)]
    rig.worker.run_all()
    assert rig.heard[2:] == [(3, None)]
    assert rig.files.texts[TOPICS] == b"3"


def test_a_change_from_within_an_answer_is_written_too() -> None:
    rig = Rig()
    rig.writer.write(TOPICS, lambda: b"x", lambda error: rig.change() and None)
    rig.worker.run_all()
    assert rig.files.texts[TOPICS] == b"1"
    assert rig.versions() == [1]
