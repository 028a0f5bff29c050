"""Consumer offsets: last commit wins, written at intervals and at a clean stop, after the log."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.groups.consumer_offset import ConsumerOffsetManager
from skylarkmq.common.table_file import TableWriter
from tests.store.support import StoreRig
from tests.support.crash_disk import CrashDisk
from tests.support.crash_states import CrashState, Keep
from tests.support.manual_clock import settle
from tests.support.workers import rest

REMOTE = "127.0.0.1:5000"
GOLDEN = Path(__file__).parent.parent / "golden" / "golden-store.json"


class Rig(StoreRig):
    """The table over a real store."""

    def __init__(self, files: CrashDisk | None = None, **config: Any) -> None:
        super().__init__(files, **config)
        writer = TableWriter(self.files, self.workers.tables)
        self.manager = ConsumerOffsetManager(
            BrokerConfig(store=self.store.config), self.files, writer, self.clock, self.store
        )
        self.path = self.store.paths.config / "consumerOffset.json"

    def start(self) -> Rig:
        super().start()
        self.manager.load()
        self.manager.start()
        return self

    def with_file(self, text: bytes) -> Rig:
        self.files.make_folder(self.path.parent)
        self.files.replace(self.path, text, backup=False)
        return self

    async def settled(self) -> Rig:
        """The table of a new store has been written; its timers have found their places."""
        await self.advance(15)
        return self

    def commit(self, offset: int, queue_id: int = 0) -> None:
        self.manager.keep(REMOTE, "g", "T", queue_id, offset)

    async def advance(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            await rest(self.workers)

    @property
    def table(self) -> Any:
        return json.loads(self.files.read_all(self.path))["offsetTable"]


async def test_nobody_outside_moves_the_offsets_of_transactions() -> None:
    manager = Rig().start().manager
    manager.keep("the broker", "CID_RMQ_SYS_TRANS", "T", 0, 7)
    assert not manager.commit(REMOTE, "CID_RMQ_SYS_TRANS", "T", 0, 0)
    assert manager.query("CID_RMQ_SYS_TRANS", "T", 0) == 7


async def test_the_last_commit_wins_even_a_smaller_one() -> None:
    manager = Rig().start().manager
    assert manager.query("g", "T", 0) == -1
    manager.keep(REMOTE, "g", "T", 0, 7)
    manager.keep(REMOTE, "g", "T", 1, 9)
    assert manager.query("g", "T", 0) == 7
    manager.keep(REMOTE, "g", "T", 0, 5)
    assert manager.query("g", "T", 0) == 5
    assert manager.query("g", "T", 1) == 9
    assert manager.query("h", "T", 0) == manager.query("g", "U", 0) == -1


async def test_the_file_is_written_at_intervals_and_only_after_a_change() -> None:
    rig = await Rig().start().settled()
    rig.commit(7)
    await rig.advance(4.8)
    assert rig.table == {}
    await rig.advance(0.3)
    assert rig.table == {"T@g": {"0": 7}}
    rig.commit(7)
    await rig.advance(60)
    before = rig.files.read_all(rig.path.with_name("consumerOffset.json.bak"))
    assert json.loads(before) == {"offsetTable": {}}, "written once more"


async def test_what_is_taken_does_not_follow_later_commits() -> None:
    """Rows are copied when they change after the table was taken for the tables thread."""
    rig = await Rig().start().settled()
    rig.commit(7)
    rig.commit(3, queue_id=1)
    rig.clock.advance(5)
    await settle()
    rig.commit(8)
    await rest(rig.workers)
    assert rig.table == {"T@g": {"0": 7, "1": 3}}
    await rig.advance(5.1)
    assert rig.table == {"T@g": {"0": 8, "1": 3}}


async def test_the_file_waits_for_the_log() -> None:
    """A power cut must not find an offset whose messages it takes away."""
    rig = await Rig(flush_interval_commit_log=60_000).start().settled()
    for _ in range(3):
        rig.put("T")
    rig.commit(3)
    await rig.advance(20)
    assert rig.table == {}
    await rig.advance(60)
    assert rig.table == {"T@g": {"0": 3}}


async def test_who_waits_for_the_file_waits_for_one_sync_and_no_interval() -> None:
    rig = await Rig(flush_interval_commit_log=60_000).start().settled()
    rig.put("T")
    rig.commit(1)
    heard: list[BaseException | None] = []
    rig.manager.persisted(heard.append)
    assert heard == []
    await rest(rig.workers)
    assert heard == [None]
    assert rig.table == {"T@g": {"0": 1}}


async def test_a_store_that_fails_is_told_to_who_waits() -> None:
    rig = await Rig().start().settled()
    rig.put("T")
    rig.commit(1)
    rig.files.fail("datasync", path="commitlog")
    heard: list[BaseException | None] = []
    rig.manager.persisted(heard.append)
    await rest(rig.workers)
    assert heard == [rig.store.failure]
    assert heard[0] is not None
    assert rig.table == {}


async def test_after_a_power_cut_no_offset_is_above_the_end_of_its_queue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig().start()
    for _ in range(5):
        rig.put("T")
    await rig.advance(1)
    rig.files.replace(
        rig.path, b'{"offsetTable":{"T@g":{0:10,1:1},"T@h":{0:5},"T@i":{0:2}}}', backup=False
    )
    again = Rig(rig.files.crash(CrashState(Keep.NONE), Random(1))).start()
    assert again.store.recovery is not None and not again.store.recovery.clean
    assert [again.manager.query("g", "T", queue_id) for queue_id in (0, 1)] == [5, 0]
    assert again.manager.query("h", "T", 0) == 5
    assert again.manager.query("i", "T", 0) == 2
    (line,) = [record.message for record in caplog.records if "above the ends" in record.message]
    assert line.startswith("2 consumer offsets were above")
    assert "group g in queue 0 of T from 10 to 5" in line
    await again.advance(6)
    assert again.table["T@g"] == {"0": 5, "1": 0}


async def test_nor_is_one_after_a_clean_stop_as_tools_leave_a_store_that_they_cut() -> None:
    rig = Rig().start()
    rig.put("T")
    rig.stop()
    again = Rig(rig.files).with_file(b'{"offsetTable":{"T@g":{"0":10},"T@h":{"0":1}}}').start()
    assert again.store.recovery is not None and again.store.recovery.clean
    assert [again.manager.query(group, "T", 0) for group in "gh"] == [1, 1]
    # In the file too: a kill would leave it as it was, with new messages below it.
    assert again.table["T@g"] == {"0": 1}


@pytest.mark.parametrize(("cause", "starts"), [(errno.ENOSPC, True), (errno.EIO, False)])
async def test_a_full_disk_keeps_no_start_from_lower_offsets_and_a_failed_one_does(
    cause: int, starts: bool
) -> None:
    rig = Rig().start()
    rig.put("T")
    rig.stop()
    again = Rig(rig.files).with_file(b'{"offsetTable":{"T@g":{"0":10}}}')
    again.files.fail("create", path="consumerOffset.json", error=cause)
    if not starts:
        with pytest.raises(OSError, match=r"consumerOffset\.json"):
            again.start()
        return
    again.start()
    assert again.manager.query("g", "T", 0) == 1
    await again.advance(6)
    assert again.table["T@g"] == {"0": 1}


@pytest.mark.parametrize("text", [None, b"", b" \n"])
async def test_a_lost_file_beside_messages_is_said_once(
    text: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig().start()
    rig.put("T")
    rig.stop()
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        if rig.files.exists(rig.path.with_name(name)):
            rig.files.unlink(rig.path.with_name(name))
    assert not caplog.records or "is missing or empty" not in caplog.text
    again = Rig(rig.files)
    if text is not None:
        again.with_file(text)
    again.start()
    assert "consumerOffset.json is missing or empty, and the log holds messages" in caplog.text
    await again.advance(6)
    again.stop()
    caplog.clear()
    Rig(rig.files).start()
    assert "is missing" not in caplog.text


async def test_a_new_store_killed_before_its_first_write_has_lost_no_file(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig().start()
    rig.put("T")
    rig.stop()
    Rig(rig.files).start()
    assert "is missing" not in caplog.text


async def test_a_write_that_fails_is_tried_again_at_the_next_interval() -> None:
    rig = await Rig().start().settled()
    rig.commit(7)
    rig.files.fail("rename", times=1, error=28, path="consumerOffset.json")
    await rig.advance(5.5)
    assert rig.table == {}
    await rig.advance(5.5)
    assert rig.table == {"T@g": {"0": 7}}


async def test_a_clean_stop_writes_what_is_left_and_plans_nothing_more() -> None:
    rig = await Rig().start().settled()
    others = rig.clock.pending_count
    rig.commit(8, queue_id=3)
    assert rig.clock.pending_count == others + 1
    stopping = asyncio.ensure_future(rig.manager.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    await rest(rig.workers)
    await stopping
    assert rig.clock.pending_count == others
    rig.stop()
    assert rig.table == {"T@g": {"3": 8}}


async def test_a_stop_without_changes_writes_nothing() -> None:
    rig = await Rig().start().settled()
    await rig.manager.stop()
    assert rig.workers.tables.idle


async def test_rocketmqs_own_file_is_read() -> None:
    text = json.loads(GOLDEN.read_text())["configFiles"]["consumerOffset"]
    rig = Rig().with_file(text.encode())
    rig.store.max_offset = lambda topic, queue_id: 7
    manager = rig.start().manager
    assert [manager.query("CG", "TopicTest", queue) for queue in range(5)] == [7, 4, 3, 4, -1]
    assert manager.query("CG", "%RETRY%CG", 0) == 1


async def test_names_in_the_file_are_checked_again() -> None:
    text = b'{"offsetTable":{"../x@g":{"0":1},"T@":{"0":1},"T":{"0":1},"T@g@h":{"0":1}}}'
    assert Rig().with_file(text).start().manager.table == {}


async def test_what_must_be_on_the_disk_before_the_file_is_waited_for() -> None:
    """An offset that passed over a message in flight must not outlive the word of that message."""
    rig = await Rig().start().settled()
    may_write = asyncio.Event()

    async def wait() -> None:
        await may_write.wait()

    rig.manager.before_write = wait
    rig.commit(7)
    await rig.advance(6)
    assert rig.table == {}
    may_write.set()
    await rig.advance(0.2)
    assert rig.table == {"T@g": {"0": 7}}
