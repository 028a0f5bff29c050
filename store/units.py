"""What the records of a batch add to their queues and to the key index, once they may be shown."""

from __future__ import annotations

from typing import Final

from skylarkmq.store.index.keys import Keyed, add_entries
from skylarkmq.store.queue.consume_queue import UNIT, ConsumeQueue

pack_unit: Final = UNIT.pack
NO_QUEUE: Final = -1
"""In place of a queue offset: a prepared record enters only the key index."""


class Units:
    """Units and index entries of records that follow each other in the log, laid out as on disk.

    Attributes:
        runs: by queue, the number of the first unit, and the units one after the other.
        entries: of the key index, in log order, as `index/keys.py` lays them out.
        lacks_entries: they were too many to wait here; the index reads the log instead.
        count: records, even those that add nothing.
        store_timestamp: of the first record, ms.
    """

    __slots__ = ("count", "entries", "lacks_entries", "runs", "store_timestamp")

    def __init__(self, store_timestamp: int = 0) -> None:
        self.runs: dict[ConsumeQueue, tuple[int, bytearray]] = {}
        self.entries = bytearray()
        self.lacks_entries = False
        self.count = 0
        self.store_timestamp = store_timestamp

    def add(
        self,
        queue: ConsumeQueue,
        number: int,
        physical_offset: int,
        size: int,
        tags_code: int,
        properties: bytes,
        store_timestamp: int,
    ) -> None:
        """Add what the next record adds; `AppendBatch.add` does it for many.

        Args:
            number: its queue offset, the next one of its queue; or NO_QUEUE.
        """
        if not self.count:
            self.store_timestamp = store_timestamp
        if number != NO_QUEUE:
            run = self.runs.get(queue)
            if run is None:
                run = self.runs[queue] = number, bytearray()
            units = run[1]
            units += pack_unit(physical_offset, size, tags_code)
        self.add_entries([(queue.prefix_code, properties, physical_offset)], store_timestamp)

    def add_entries(self, keyed: list[Keyed], store_timestamp: int) -> None:
        """Add the entries of the next records, which were stored at the same time."""
        add_entries(self.entries, keyed, store_timestamp)
        self.count += len(keyed)

    def drop_entries(self) -> None:
        """Let the index read the log instead."""
        self.entries = bytearray()
        self.lacks_entries = True
