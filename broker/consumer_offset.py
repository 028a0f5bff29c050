"""Where each consumer group stands in each queue, and `config/consumerOffset.json`.

An offset is that of the next message to consume. Commits change memory alone; the file is written
every `flushConsumerOffsetInterval` when something changed, and at a clean stop. After a crash a
group gets the messages of the last seconds again.

The table is bounded by its callers, which refuse unknown topics, groups and queues.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../offset/ConsumerOffsetManager.java
"""

from __future__ import annotations

import logging
from typing import Final

from skylarkmq.broker.config import BrokerConfig
from skylarkmq.broker.persist import Done, TableFile, load_table, table_text
from skylarkmq.protocol.bodies.offsets import ConsumerOffsetSerializeWrapper
from skylarkmq.protocol.clock import Clock
from skylarkmq.protocol.flags import CID_RMQ_SYS_TRANS_GROUP, validate_group, validate_topic
from skylarkmq.store.files import Files
from skylarkmq.store.paths import StorePaths
from skylarkmq.store.table_file import TableWriter
from skylarkmq.store.timers import IntervalTimer

log = logging.getLogger(__name__)

OFFSETS_FILE: Final = "consumerOffset.json"
TOPIC_GROUP_SEPARATOR: Final = "@"
NO_OFFSET: Final = -1


class ConsumerOffsetManager:
    """The table of consumer offsets. Loop thread, but for `load`.

    Attributes:
        table: (topic, group) -> queue id -> next queue offset; changed by the methods alone.
    """

    def __init__(
        self, config: BrokerConfig, files: Files, writer: TableWriter, clock: Clock
    ) -> None:
        self.table: dict[tuple[str, str], dict[int, int]] = {}
        self._files = files
        self._path = StorePaths(config.store.store_path_root_dir).config / OFFSETS_FILE
        self._file = TableFile(writer, self._path, self._text)
        interval_s = config.flush_consumer_offset_interval / 1000
        self._timer = IntervalTimer(clock, interval_s, self._write)

    def load(self) -> None:
        """Read the file. Blocks; before the broker serves.

        Raises:
            CorruptFileError: neither the file nor its `.bak` can be read.
        """
        loaded = load_table(self._files, self._path, ConsumerOffsetSerializeWrapper)
        if loaded is None:
            return
        for key, offsets in loaded.offset_table.items():
            topic, _, group = key.partition(TOPIC_GROUP_SEPARATOR)
            why = validate_topic(topic) or validate_group(group)
            if why is not None:
                log.error("%s: leaving out offsets: %s", self._path, why)
                continue
            self.table[topic, group] = offsets

    def start(self) -> None:
        """Begin to write the file at intervals."""
        self._timer.start()

    async def stop(self) -> None:
        """Write what is not on the disk yet; a failure is logged."""
        self._timer.stop()
        await self._file.flush()

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """Return the next offset of a group in a queue, NO_OFFSET when it has none."""
        offsets = self.table.get((topic, group))
        return NO_OFFSET if offsets is None else offsets.get(queue_id, NO_OFFSET)

    def commit(
        self, remote_address: str, group: str, topic: str, queue_id: int, offset: int
    ) -> None:
        """Remember where a group goes on in a queue; a smaller offset than before counts too.

        Unlike RocketMQ, nobody outside says how far the broker is with the transactions: halves
        of transactions that it takes for ended are never asked about again.
        """
        if group == CID_RMQ_SYS_TRANS_GROUP:
            log.warning("%s may not set the offsets of %s", remote_address, group)
        else:
            self.keep(remote_address, group, topic, queue_id, offset)

    def keep(self, who: str, group: str, topic: str, queue_id: int, offset: int) -> None:
        """As `commit`, for the broker's own groups too."""
        offsets = self.table.get((topic, group))
        if offsets is None:
            offsets = self.table[topic, group] = {}
        before = offsets.get(queue_id, NO_OFFSET)
        if offset == before:
            return
        if offset < before:
            log.info(
                "%s sets group %s back in queue %d of %s: from %d to %d",
                who,
                group,
                queue_id,
                topic,
                before,
                offset,
            )
        offsets[queue_id] = offset
        self._file.mark()

    def of(self, group: str, topic: str) -> dict[int, int]:
        """A copy of where a group stands in a topic: queue id -> next offset."""
        return dict(self.table.get((topic, group), {}))

    def topics_of(self, group: str) -> list[str]:
        """Topics that the group ever committed an offset of."""
        return [topic for topic, name in self.table if name == group]

    def groups_of(self, topic: str) -> list[str]:
        """Groups that ever committed an offset of the topic."""
        return [group for name, group in self.table if name == topic]

    def remove_group(self, group: str) -> None:
        """Forget where a group stands."""
        self._remove([key for key in self.table if key[1] == group])

    def remove_topic(self, topic: str) -> None:
        """Forget where all groups stand in a topic."""
        self._remove([key for key in self.table if key[0] == topic])

    def _remove(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            del self.table[key]
        if keys:
            self._file.mark()

    @property
    def pending(self) -> bool:
        """Whether something changed that is not on the disk yet."""
        return self._file.pending

    def persisted(self, done: Done) -> None:
        """Call `done` once all changes so far are on the disk, or with what kept them from it."""
        self._file.persisted(done)

    def _write(self) -> None:
        if self._file.pending:
            self._file.write()

    def _text(self) -> bytes:
        rows = {
            f"{topic}{TOPIC_GROUP_SEPARATOR}{group}": offsets
            for (topic, group), offsets in self.table.items()
        }
        return table_text("offsetTable", rows, None)
