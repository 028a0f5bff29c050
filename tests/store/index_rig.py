"""A store whose key index is looked at: small files, keyed messages, and what must be in them."""

from __future__ import annotations

from typing import Any

from skylarkmq.store.index.service import IndexAnswer
from tests.store.support import LOG_SIZE, StoreRig
from tests.support.crash_disk import CrashDisk
from tests.support.index_files import build
from tests.support.store_files import LogRecord, read_log

SLOTS, ITEMS = 7, 11
FOREVER = 2**62


def properties(unique: str = "", keys: str = "") -> bytes:
    """A message's properties."""
    text = f"UNIQ_KEY\x01{unique}\x02" if unique else ""
    return (text + (f"KEYS\x01{keys}\x02" if keys else "")).encode()


class IndexRig(StoreRig):
    """Each message has a unique key and may have keys; a second passes between two."""

    def __init__(self, files: CrashDisk | None = None, **config: Any) -> None:
        super().__init__(files, **{"max_hash_slot_num": SLOTS, "max_index_num": ITEMS, **config})
        self.number = 0

    def settle(self) -> None:
        """Let everything that is due come to an end."""
        self.clock.advance(0.5)
        self.workers.run_all()
        self.clock.advance(0.5)
        self.workers.run_all()

    def send(self, count: int = 1, keys: str = "", body: bytes = b"b") -> None:
        """Store messages; the unique keys are U0, U1 and so on."""
        for _ in range(count):
            self.put(body=body, properties=properties(f"U{self.number}", keys))
            self.number += 1
            self.settle()

    def checkpoint(self) -> None:
        """Let the next checkpoint be written."""
        self.clock.advance(self.store.config.flush_consume_queue_thorough_interval / 1000)
        self.workers.run_all()

    def find(
        self, key: str, count: int = 64, begin: int = 0, end: int = FOREVER, topic: str = "T"
    ) -> IndexAnswer:
        """What the index knows of a key."""
        answers: list[IndexAnswer | None] = []
        self.store.index.query(
            topic, key, count, begin, end, lambda found, _: answers.append(found)
        )
        self.workers.run_all()
        assert len(answers) == 1
        assert answers[0] is not None
        return answers[0]

    def records(self) -> list[LogRecord]:
        """What the log holds."""
        return read_log(self.files.contents(), LOG_SIZE).records

    def index_files(self) -> list[bytes]:
        """The index files in their order."""
        return [data for name, data in self.files.contents().items() if name.startswith("index/")]

    def names(self) -> list[str]:
        return [name[6:] for name in self.files.contents() if name.startswith("index/")]

    def check_files(self) -> None:
        """The files are what RocketMQ would have made of the whole log."""
        expected = build(self.records(), SLOTS, ITEMS)
        assert [file.hex() for file in self.index_files()] == [file.hex() for file in expected]

    def check_all_found(self, numbers: range) -> None:
        """Each of these messages is found by its unique key, once, at its place."""
        places = {
            record.properties["UNIQ_KEY"]: record.physical_offset for record in self.records()
        }
        for number in numbers:
            answer = self.find(f"U{number}")
            assert places[f"U{number}"] in answer.offsets, number
            assert len(set(answer.offsets)) == len(answer.offsets)

    def again(self, files: CrashDisk | None = None, **config: Any) -> IndexRig:
        """The next life, on the same disk or on what a crash left; not started yet."""
        rig = IndexRig(files or self.files, **config)
        rig.clock.advance(self.clock.monotonic() - rig.clock.monotonic() + 60)
        rig.number = self.number
        return rig
