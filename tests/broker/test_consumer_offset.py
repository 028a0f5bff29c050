"""Consumer offsets: last commit wins, written at intervals and at a clean stop."""

import asyncio
import json
from pathlib import Path

from skylarkmq.broker.config import BrokerConfig
from skylarkmq.broker.consumer_offset import ConsumerOffsetManager
from skylarkmq.store.config import StoreConfig
from tests.support.manual_clock import ManualClock, settle
from tests.support.memory_files import Tables

ROOT = Path("/store")
PATH = ROOT / "config" / "consumerOffset.json"
CONFIG = BrokerConfig(store=StoreConfig(store_path_root_dir=ROOT))
REMOTE = "127.0.0.1:5000"
GOLDEN = Path(__file__).parent.parent / "golden" / "golden-store.json"


class _Setup:
    def __init__(self, tables: Tables | None = None) -> None:
        self.tables = tables or Tables()
        self.clock = ManualClock()
        self.manager = ConsumerOffsetManager(
            CONFIG, self.tables.files, self.tables.writer, self.clock
        )
        self.manager.load()


def test_nobody_outside_moves_the_offsets_of_transactions() -> None:
    manager = _Setup().manager
    manager.keep("the broker", "CID_RMQ_SYS_TRANS", "T", 0, 7)
    manager.commit(REMOTE, "CID_RMQ_SYS_TRANS", "T", 0, 99)
    assert manager.query("CID_RMQ_SYS_TRANS", "T", 0) == 7


def test_the_last_commit_wins_even_a_smaller_one() -> None:
    manager = _Setup().manager
    assert manager.query("g", "T", 0) == -1
    manager.commit(REMOTE, "g", "T", 0, 7)
    manager.commit(REMOTE, "g", "T", 1, 9)
    assert manager.query("g", "T", 0) == 7
    manager.commit(REMOTE, "g", "T", 0, 5)
    assert manager.query("g", "T", 0) == 5
    assert manager.query("g", "T", 1) == 9
    assert manager.query("h", "T", 0) == manager.query("g", "U", 0) == -1


def test_the_file_is_written_at_intervals_and_only_after_a_change() -> None:
    setup = _Setup()
    setup.manager.start()
    setup.clock.advance(60)
    assert setup.tables.worker.idle
    setup.manager.commit(REMOTE, "g", "T", 0, 7)
    setup.clock.advance(4.9)
    assert setup.tables.worker.idle
    setup.clock.advance(0.2)
    setup.tables.worker.run_all()
    assert json.loads(setup.tables.files.texts[PATH]) == {"offsetTable": {"T@g": {"0": 7}}}
    setup.manager.commit(REMOTE, "g", "T", 0, 7)
    setup.clock.advance(60)
    assert setup.tables.worker.idle


def test_a_write_that_fails_is_tried_again_at_the_next_interval() -> None:
    setup = _Setup()
    setup.manager.start()
    setup.manager.commit(REMOTE, "g", "T", 0, 7)
    setup.tables.files.error = OSError(28, "No space left on device")
    setup.clock.advance(5)
    setup.tables.worker.run_all()
    setup.tables.files.error = None
    setup.clock.advance(5)
    setup.tables.worker.run_all()
    assert PATH in setup.tables.files.texts


async def test_a_clean_stop_writes_what_is_left_and_plans_nothing_more() -> None:
    setup = _Setup()
    setup.manager.start()
    setup.manager.commit(REMOTE, "g", "T", 3, 8)
    stopping = asyncio.ensure_future(setup.manager.stop())
    await settle()
    assert not stopping.done()
    setup.tables.worker.run_all()
    await stopping
    assert setup.clock.pending_count == 0
    again = _Setup(setup.tables).manager
    assert again.query("g", "T", 3) == 8


async def test_a_stop_without_changes_writes_nothing() -> None:
    setup = _Setup()
    setup.manager.start()
    await setup.manager.stop()
    assert setup.tables.files.write_count == 0


def test_rocketmqs_own_file_is_read() -> None:
    text = json.loads(GOLDEN.read_text())["configFiles"]["consumerOffset"]
    manager = _Setup(Tables({PATH: text.encode()})).manager
    assert [manager.query("CG", "TopicTest", queue) for queue in range(5)] == [7, 4, 3, 4, -1]
    assert manager.query("CG", "%RETRY%CG", 0) == 1


def test_names_in_the_file_are_checked_again() -> None:
    text = b'{"offsetTable":{"../x@g":{"0":1},"T@":{"0":1},"T":{"0":1},"T@g@h":{"0":1}}}'
    assert _Setup(Tables({PATH: text})).manager.table == {}
