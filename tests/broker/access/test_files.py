"""The files of access control on a disk: reading again, changes, what a failure leaves."""

from __future__ import annotations

import asyncio
import logging
import stat
from pathlib import Path

import pytest

from skylarkmq.broker.access.accounts import AccessFileError
from skylarkmq.broker.access.control import AccessControl
from skylarkmq.broker.access.files import (
    INTERVAL_S,
    AccessFiles,
    put_account,
    put_white_list,
    remove_account,
)
from skylarkmq.broker.access.rights import BROKER
from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.protocol.bodies.text import DataVersion
from tests.support.failing_files import FailingFiles
from tests.support.manual_clock import START_MS, ManualClock
from tests.support.workers import ManualWorker

ONE = """# our accounts
accounts:
- accessKey: administrator
  secretKey: hidden-secret
  admin: true
"""


class Rig:
    """Files in a folder, read by a worker and a clock of the test's."""

    def __init__(self, home: Path) -> None:
        (home / "conf" / "acl").mkdir(parents=True)
        self.main = home / "conf" / "plain_acl.yml"
        self.main.write_text(ONE)
        self.clock, self.worker = ManualClock(), ManualWorker()
        self.disk = FailingFiles()
        self.files = AccessFiles(home, self.disk, self.worker, self.clock)
        self.control = AccessControl(BROKER, BrokerStats())

    def start(self) -> None:
        self.files.load()
        self.files.serve(self.control)
        self.files.start()

    def look(self) -> None:
        """The next look at the disk, with its result."""
        self.clock.advance(INTERVAL_S)
        while self.worker.step():
            pass

    @property
    def keys(self) -> set[str]:
        assert self.control.rules is self.files.rules
        return set(self.control.rules.accounts)

    async def change(self, *args: object) -> None:
        """A change by an administrator, whose disk work is done meanwhile."""
        task = asyncio.ensure_future(self.files.change(*args))  # type: ignore[arg-type]
        while not task.done():
            await asyncio.sleep(0)
            self.worker.step()
        await task


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def more(key: str) -> str:
    return f"accounts:\n- accessKey: {key}\n  secretKey: hidden-secret\n"


def test_all_files_count_but_that_of_tools(rig: Rig) -> None:
    folder = rig.main.parent / "acl"
    (folder / "one.yml").write_text(more("first-one"))
    (folder / "two.yaml").write_text(more("second-one"))
    (folder / "tools.yml").write_text("accessKey: x\nsecretKey: y\n")
    (folder / "notes.txt").write_text("]")
    rig.start()
    assert rig.keys == {"administrator", "first-one", "second-one"}


@pytest.mark.parametrize("text", [None, "accounts: [", "accounts: [x]"])
def test_a_start_without_a_sound_file_is_refused(rig: Rig, text: str | None) -> None:
    if text is None:
        rig.main.unlink()
    else:
        rig.main.write_text(text)
    with pytest.raises(ConfigError, match="aclEnable=true") as caught:
        rig.start()
    assert str(rig.main) in str(caught.value)


def test_before_the_files_are_read_nobody_is_let_in(rig: Rig) -> None:
    assert not rig.control.rules.accounts and not rig.control.rules.white


def test_a_change_of_a_file_counts_after_the_next_look(rig: Rig) -> None:
    rig.start()
    before = rig.files.rules
    rig.look()
    assert rig.files.rules is before  # nothing has changed
    rig.main.write_text(ONE + more("somebody").removeprefix("accounts:\n"))
    rig.look()
    assert rig.keys == {"administrator", "somebody"}
    (rig.main.parent / "acl" / "new.yml").write_text(more("one-more"))
    rig.look()
    assert rig.keys == {"administrator", "somebody", "one-more"}


def test_a_wrong_file_leaves_the_rules_and_is_told_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.start()
    rig.main.write_text(ONE.replace("admin: true", "admin: perhaps"))
    with caplog.at_level(logging.ERROR):
        rig.look()
        rig.look()
    assert rig.keys == {"administrator"}
    (record,) = caplog.records
    assert "administrator" in record.getMessage() and "true or false" in record.getMessage()
    assert "hidden" not in caplog.text
    assert rig.files.failure_count == 1
    rig.main.unlink()
    rig.look()
    assert (rig.keys, rig.files.failure_count) == ({"administrator"}, 2)
    rig.main.write_text(more("successor"))
    rig.look()
    assert rig.keys == {"successor"}


def test_a_disk_that_cannot_be_read_leaves_the_rules(rig: Rig) -> None:
    rig.start()
    rig.main.unlink()
    rig.main.mkdir()  # cannot be read as a file
    rig.look()
    assert (rig.keys, rig.files.failure_count) == ({"administrator"}, 1)


def test_after_the_stop_nothing_is_read(rig: Rig) -> None:
    rig.start()
    rig.files.stop()
    assert rig.clock.pending_count == 0


async def test_an_account_is_made_changed_and_removed(rig: Rig) -> None:
    rig.start()
    made = {"accessKey": "somebody", "secretKey": "12345678", "topicPerms": ["a=PUB|SUB"]}
    await rig.change(rig.main, put_account(made))
    assert rig.files.rules.accounts["somebody"].secret_key == b"12345678"
    changed = {"accessKey": "somebody", "topicPerms": ["b=SUB"]}
    await rig.change(rig.main, put_account(changed))
    somebody = rig.files.rules.accounts["somebody"]
    assert (dict(somebody.topics), somebody.secret_key) == ({"b": 8}, b"12345678")
    assert rig.files.rules.versions[rig.main] == DataVersion(counter=2, timestamp=START_MS)
    before = rig.files.rules
    rig.look()
    assert rig.files.rules is before  # its own change is nothing new
    await rig.change(rig.main, remove_account("somebody"))
    assert rig.keys == {"administrator"}
    await rig.change(rig.main, put_white_list(["10.0.0.*"]))
    assert rig.files.rules.white.matches("10.0.0.9")


async def test_what_is_written_can_be_read_by_its_owner_alone(rig: Rig) -> None:
    rig.start()
    rig.main.chmod(0o644)
    left = rig.main.with_name(rig.main.name + ".tmp")
    left.write_text("of another program")
    left.chmod(0o666)
    await rig.change(rig.main, put_white_list(["10.0.0.1"]))
    assert stat.S_IMODE(rig.main.stat().st_mode) == 0o600
    assert [path.name for path in rig.main.parent.iterdir() if path.is_file()] == ["plain_acl.yml"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (put_account({"accessKey": "short"}), "7 characters"),
        (put_account({"accessKey": "somebody"}), "secretKey"),
        (put_account({"accessKey": "administrator", "admin": "false"}), "no admin"),
        (remove_account("administrator"), "no admin"),
        (put_white_list(["10.0.0.0/8"]), "cannot be read"),
    ],
)
async def test_a_change_that_is_wrong_changes_nothing(rig: Rig, change: object, why: str) -> None:
    rig.start()
    before = rig.files.rules
    with pytest.raises(AccessFileError, match=why):
        await rig.change(rig.main, change)
    assert rig.main.read_text() == ONE
    assert rig.files.rules is before


async def test_a_change_that_the_disk_does_not_take_does_not_count(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.start()
    before = rig.files.rules

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "no space left on the device", str(path))

    monkeypatch.setattr(rig.disk, "replace_secret", full)
    with pytest.raises(OSError, match="no space"):
        await rig.change(rig.main, put_white_list(["10.0.0.1"]))
    assert rig.main.read_text() == ONE
    assert rig.files.rules is before


async def test_a_change_meets_what_somebody_wrote_meanwhile(rig: Rig) -> None:
    rig.start()
    rig.main.write_text(ONE + more("by-hand-made").removeprefix("accounts:\n"))
    await rig.change(rig.main, put_white_list(["10.0.0.1"]))
    assert rig.keys == {"administrator", "by-hand-made"}
