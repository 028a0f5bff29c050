"""Where each consumer group stands in each queue, and `config/consumerOffset.json`.

An offset is that of the next message to consume. Commits change memory alone; the file follows the
log (`FollowingTable`) each `flushConsumerOffsetInterval` while something changes, and at a clean
stop. After a crash a group gets the messages of the last seconds again.

The log may still end below an offset: after a power cut over a file of RocketMQ's, which does not
wait for the log, and after tools that cut a log or put an older one in its place. New messages
below it would never be consumed, so each start sets such offsets to the end, in the file as well:
after new messages nobody could tell any more.

The table is bounded by its callers, which refuse unknown topics, groups and queues.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../offset/ConsumerOffsetManager.java
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.tables.json_table import TableBody, load_table, table_text
from skylarkmq.broker.tables.persist import FollowingTable
from skylarkmq.common.clock import Clock
from skylarkmq.common.files import Files
from skylarkmq.common.refusal import refusal
from skylarkmq.common.table_file import TableWriter, Text
from skylarkmq.protocol.bodies.group import ConsumerOffsetSerializeWrapper
from skylarkmq.protocol.flags import CID_RMQ_SYS_TRANS_GROUP, validate_group, validate_topic
from skylarkmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

OFFSETS_FILE: Final = "consumerOffset.json"
TOPIC_GROUP_SEPARATOR: Final = "@"
NO_OFFSET: Final = -1


class ConsumerOffsetManager(FollowingTable):
    """The table of consumer offsets. Loop thread, but for `load`.

    Attributes:
        table: (topic, group) -> queue id -> next queue offset; changed by the methods alone.
        body: the whole table as an answer.
        sources: called when the table is about to be taken for the file, to bring offsets of the
            broker's own up to date.
        touched: (topic, group) whose offsets changed, for who follows them and clears it; None: no
            one does.
        on_set: called with (topic, group, queue id, offset) for each offset that is set, whether it
            was the same before or not; not by `advance`. None: no one follows that.
        before_write: returns when the file may be written with what was set so far.
    """

    def __init__(
        self,
        config: BrokerConfig,
        files: Files,
        writer: TableWriter,
        clock: Clock,
        store: MessageStore,
    ) -> None:
        path, interval_s = (
            store.paths.config / OFFSETS_FILE,
            config.flush_consumer_offset_interval / 1000,
        )
        super().__init__(writer, path, self._taken, store, clock, interval_s)
        self.table: dict[tuple[str, str], dict[int, int]] = {}
        self.sources: list[Callable[[], None]] = []
        self.touched: set[tuple[str, str]] | None = None
        self.on_set: Callable[[str, str, int, int], None] | None = None
        self.before_write: Callable[[], Awaitable[None]] | None = None
        self._files = files
        self.body = TableBody("offsetTable", lambda: self.changes, self.rows)
        # Rows that were copied since the table was last taken; the others may be in that, too.
        self._own: set[tuple[str, str]] = set()

    def load(self) -> None:
        """Read the file, after the store. Blocks; before the broker serves.

        Raises:
            CorruptFileError: neither the file nor its `.bak` can be read.
            OSError: the disk failed.
        """
        loaded = load_table(self._files, self._path, ConsumerOffsetSerializeWrapper)
        if loaded is None:
            self.mark()  # from now on a missing file is a lost one
            if self._store.commit_log.max_offset > self._store.commit_log.min_offset:
                log.warning(
                    "%s is missing or empty, and the log holds messages: each consumer group "
                    "begins where its consumers say (consumeFromWhere; mostly the end of a queue), "
                    "until a saved copy of the file is put back while the broker is stopped",
                    self._path,
                )
            else:  # a new store: a kill before the first interval is no loss of the file
                self._write_at_once()
            return
        for key, offsets in loaded.offset_table.items():
            topic, _, group = key.partition(TOPIC_GROUP_SEPARATOR)
            why = validate_topic(topic) or validate_group(group)
            if why is not None:
                log.error("%s: leaving out offsets: %s", self._path, why)
                continue
            self.table[topic, group] = offsets
        self._clip()

    def _clip(self) -> None:
        """Let no offset be above the end of its queue."""
        count, example = 0, ""
        for (topic, group), offsets in self.table.items():
            for queue_id, offset in offsets.items():
                end = self._store.max_offset(topic, queue_id)
                if offset > end:
                    count += 1
                    example = example or (
                        f"group {group} in queue {queue_id} of {topic} from {offset} to {end}"
                    )
                    offsets[queue_id] = end
        if count:
            self.mark()
            self._write_at_once()
            log.warning(
                "%d consumer offsets were above the ends of their queues, whose last messages are "
                "gone, and were set to the ends: %s%s",
                count,
                example,
                ", ..." if count > 1 else "",
            )

    def _write_at_once(self) -> None:
        """Replace the file at once; blocks. What is refused here is written with the next change.

        What this start has found is as durable as its log.

        Raises:
            OSError: the disk failed.
        """
        text = table_text("offsetTable", dict(self.rows()), None)
        try:
            self._files.replace(self._path, text, backup=True)
        except OSError as error:
            if refusal(error) is None:
                raise
            log.warning("%s will be written later: %s", self._path, error)

    def start(self) -> None:
        """Begin to write the file at intervals."""
        if self.pending:
            self.changed()

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """Return the next offset of a group in a queue, NO_OFFSET when it has none."""
        offsets = self.table.get((topic, group))
        return NO_OFFSET if offsets is None else offsets.get(queue_id, NO_OFFSET)

    def commit(
        self, remote_address: str, group: str, topic: str, queue_id: int, offset: int
    ) -> bool:
        """Remember where a group goes on in a queue; a smaller offset than before counts too.

        Unlike RocketMQ, an offset above the queue's end is not taken (False): the group would pass
        over what is stored up to there. A client that has one, because its queue was made again, is
        told by its next pull (PULL_OFFSET_MOVED) where to go on. Nor may a peer say how far the
        broker is with the transactions: halves of transactions that it takes for ended are never
        asked about again.
        """
        if group == CID_RMQ_SYS_TRANS_GROUP:
            log.warning("%s may not set the offsets of %s", remote_address, group)
            return False
        end = self._store.max_offset(topic, queue_id)
        if offset > end:
            log.warning(
                "%s: offset %d of group %s is above the end of queue %d of %s, %d: not taken",
                remote_address,
                offset,
                group,
                queue_id,
                topic,
                end,
            )
            return False
        self.keep(remote_address, group, topic, queue_id, offset)
        return True

    def keep(self, who: str, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Do as `commit`, for the broker's own groups too."""
        before = self.query(group, topic, queue_id)
        if offset < before:  # Java's members do so at each rebalance, by a message or two
            log.debug(
                "%s sets group %s back in queue %d of %s: from %d to %d",
                who,
                group,
                queue_id,
                topic,
                before,
                offset,
            )
        self.advance(group, topic, queue_id, offset)
        if self.on_set is not None:
            self.on_set(topic, group, queue_id, offset)

    def advance(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set a group's offset, forward or back, without telling `on_set`; pop sets its mark so."""
        key = topic, group
        offsets = self.table.get(key, {})
        if offset == offsets.get(queue_id, NO_OFFSET):
            return
        if key not in self._own:
            self._own.add(key)
            offsets = self.table[key] = offsets.copy()
        offsets[queue_id] = offset
        if self.touched is not None:
            self.touched.add(key)
        self.changed()

    def take_over(self, rows: Mapping[str, dict[int, int]]) -> None:
        """Have another broker's offsets, by `topic@group`; rows that it does not have stay."""
        for name, row in rows.items():
            topic, _, group = name.partition(TOPIC_GROUP_SEPARATOR)
            known = self.table.get((topic, group))
            is_name = known is not None or not (validate_topic(topic) or validate_group(group))
            if known != row and is_name:
                self.follow(topic, group, dict(row))

    def follow(self, topic: str, group: str, offsets: dict[int, int]) -> None:
        """Have the offsets of a group in a topic as another broker has them; none: forget them."""
        key = topic, group
        if offsets:
            self.table[key] = offsets
            self._own.add(key)
            self.changed()
        elif key in self.table:
            self._remove([key])

    def of(self, group: str, topic: str) -> dict[int, int]:
        """Return a copy of where a group stands in a topic: queue id -> next offset."""
        return dict(self.table.get((topic, group), {}))

    def topics_of(self, group: str) -> list[str]:
        """Return the topics that a group ever committed an offset of."""
        return [topic for topic, name in self.table if name == group]

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that ever committed an offset of a topic."""
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
            self._own.discard(key)
            if self.touched is not None:
                self.touched.add(key)
        if keys:
            self.changed()

    def _taken(self) -> Text:
        for source in self.sources:
            source()
        rows = self.rows()
        return lambda: table_text("offsetTable", dict(rows), None)

    async def _write_text(self, text: Text) -> None:
        if self.before_write is not None:
            await self.before_write()
        await super()._write_text(text)

    def rows(self) -> Iterator[tuple[str, dict[int, int]]]:
        """Return the rows as they are now, whatever is committed before they are read."""
        taken = self.table.copy()
        self._own.clear()
        return (
            (f"{topic}{TOPIC_GROUP_SEPARATOR}{group}", row) for (topic, group), row in taken.items()
        )
