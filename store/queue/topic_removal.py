"""Removing a topic's queues from the store, so that they stay away whatever happens.

    1  loop    the queues leave the table; the log's end is noted
    2  tables  `removed-topics` says so; from here on the next start finishes the removal
    3  queues  the recovery point forgets how many units there are; then the files go, the newest
               of each queue first, and the folders
    4  loop    the caller writes its own tables to the disk, then calls `release`
    5  tables  `removed-topics` says that the topic is gone: it may be made again

Between 1 and 5 the topic is held: messages that services still put there stay in memory, because
their files would lie among the old ones; and no checkpoint goes further than to the first of them.
A removal that a full disk refuses stays where it is until `resume`: meanwhile log files go on being
removed up to there, which makes the room.

The log keeps its records until its files expire. So that a removed topic does not come back when
queues are built again, `skylarkmq/removed-topics` has each topic with the end of the log at its
removal: its records below that place count for nothing, later ones belong to a topic made anew.
What waits below that place for its time to come to the topic counts for nothing, too.

    payload, a msgpack map in the frame of `sidecar.py`:
    topics    topic -> [end offset, is gone]

`is gone` turns true when everything that belongs to the topic has left the disk. Before that the
topic cannot be made again, so all files it has are old ones, and the next start removes them. An
entry is dropped when the log begins after its offset. The log's end may fall back in a crash; then
the offsets follow, before new messages take the places.

Crash story: before 2 nothing has happened; after it `load` removes all files that the topic has,
before every other step of a start. Readers that are under way keep their open files, and what they
look for by name is not there.

Unlike RocketMQ, where building the queues again brings a deleted topic's messages back.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (cleanUnusedTopic)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.files import Files
from skylarkmq.common.refusal import refusal
from skylarkmq.common.sidecar import Kind, encode_sidecar, read_sidecar
from skylarkmq.common.table_file import TableWriter, Written
from skylarkmq.common.worker import Call, run_job, start
from skylarkmq.protocol.flags import (
    RMQ_SYS_SCHEDULE_TOPIC,
    RMQ_SYS_WHEEL_TIMER_TOPIC,
    validate_topic,
)
from skylarkmq.store.checkpoint import Checkpoint, PointTracker
from skylarkmq.store.environment import Environment
from skylarkmq.store.folder import StorePaths
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.log.mapped_file import is_file_name
from skylarkmq.store.queue.queue_table import QueueTable

log = logging.getLogger(__name__)

ENTRIES_MAX: Final = 100_000
"""Removed topics whose messages the log may hold; about 40 bytes each, written whole."""


class Removed(NamedTuple):
    """One removed topic."""

    end_offset: int  # its records below this place of the log are removed
    is_gone: bool


class _Content(msgspec.Struct):
    """What the file holds."""

    topics: dict[str, Removed]

    def __post_init__(self) -> None:
        for topic in self.topics:
            if validate_topic(topic) is not None:
                raise ValueError(f"{topic!r} is no name of a topic")


class RemovedTopics:
    """The table of removed topics. Loop thread, or the loading thread."""

    def __init__(self) -> None:
        self.entries: dict[str, Removed] = {}

    def hides(self, topic: str, physical_offset: int) -> bool:
        """Return whether a record was removed with its topic."""
        entry = self.entries.get(topic)
        return entry is not None and physical_offset < entry.end_offset

    def ends(self) -> dict[bytes, int]:
        """Return the end offsets by topic, as records name it."""
        return {topic.encode(): entry.end_offset for topic, entry in self.entries.items()}

    @property
    def unfinished(self) -> list[str]:
        """Topics of which files may still be on the disk."""
        return [topic for topic, entry in self.entries.items() if not entry.is_gone]

    def add(self, topic: str, end_offset: int) -> None:
        """Remember that everything of a topic below a place of the log is removed."""
        self.entries[topic] = Removed(end_offset, is_gone=False)

    def gone(self, topic: str) -> None:
        """Note that the topic has left the disk."""
        self.entries[topic] = self.entries[topic]._replace(is_gone=True)

    def recovered(self, min_offset: int, end_offset: int) -> bool:
        """Follow the ends of a log that was recovered; True when something changed."""
        before = dict(self.entries)
        for topic, entry in before.items():
            self.entries[topic] = entry._replace(end_offset=min(entry.end_offset, end_offset))
        self.prune(min_offset)
        return self.entries != before

    def prune(self, min_offset: int) -> None:
        """Drop the topics of which the log holds nothing anymore."""
        for topic, entry in list(self.entries.items()):
            if entry.is_gone and entry.end_offset <= min_offset:
                del self.entries[topic]

    # The file

    def encoded(self) -> bytes:
        """Return the content of the file."""
        return encode_sidecar(Kind.REMOVED_TOPICS, {"topics": self.entries})

    def load(self, files: Files, path: Path) -> None:
        """Read the file, or its `.bak` when it is damaged. Blocks.

        If neither can be read, there is a warning and the table is empty: no message depends on it.
        """
        for source in (path, path.with_name(path.name + ".bak")):
            try:
                content = read_sidecar(files, source, Kind.REMOVED_TOPICS, _Content)
            except CorruptFileError as error:
                log.warning("%s; removed topics may come back when queues are rebuilt", error)
                continue
            if content is not None:
                self.entries = content.topics
                return

    def save(self, files: Files, path: Path) -> None:
        """Write the file durably. Blocks."""
        files.make_folder(path.parent)
        files.replace(path, self.encoded(), backup=True)


_WAITING: Final = (RMQ_SYS_SCHEDULE_TOPIC, RMQ_SYS_WHEEL_TIMER_TOPIC)
"""Where messages of any topic may wait for their time; they go with their topic."""
HELD_MAX: Final = 1000
"""Topics that may be under removal at the same time."""


class TopicRemoval:
    """Removes topics. Loop thread, except its jobs and `load`.

    Attributes:
        topics: what was removed and is still in the log.
    """

    def __init__(
        self, env: Environment, commit_log: CommitLog, queues: QueueTable, points: PointTracker
    ) -> None:
        self.topics = RemovedTopics()
        self._files = env.files
        self._worker = env.workers.queues
        self._writer = TableWriter(env.files, env.workers.tables, env.fail)
        self._paths = env.paths
        self._path = env.paths.removed_topics
        self._log = commit_log
        self._queues = queues
        self._points = points
        self._fail = env.fail

    # Start: the calls below block

    def load(self, checkpoint: Checkpoint) -> None:
        """Read the table, and finish what a crash has cut short. Before all else."""
        self.topics.load(self._files, self._path)
        for topic in self.topics.unfinished:
            log.warning("finishing the removal of topic %s", topic)
            checkpoint.forget_totals()
            remove_topic_files(self._files, self._paths, topic, _nothing)
            self._queues.hold(topic)

    def recovered(self, end_offset: int) -> None:
        """Follow the recovered end of the log, before the first new message."""
        if self.topics.recovered(self._log.min_offset, end_offset):
            self.topics.save(self._files, self._path)

    # Removing

    def refusal(self, topic: str) -> str | None:
        """Return why a topic cannot be removed now, None when it can."""
        held = self._queues.held
        if topic not in held and len(held) >= HELD_MAX:
            return f"{HELD_MAX} topics are being deleted; try again"
        self.topics.prune(self._log.min_offset)
        if topic not in self.topics.entries and len(self.topics.entries) >= ENTRIES_MAX:
            return (
                f"the log still holds messages of {ENTRIES_MAX} deleted topics; try again when "
                "old messages have expired (fileReservedTime)"
            )
        return None

    def remove(self, topic: str, done: Written) -> bool:
        """Remove the queues of a topic; nothing may be put there before `release`.

        Args:
            done: called later on the loop, when nothing brings them back anymore, or with the error
                that kept them: what the machine refused may be asked for again, any other error is
                the end of the store.

        Returns:
            False when there is nothing to remove; `done` is not called then.
        """
        queues = self._queues
        may_have_some = any(known == topic or known in _WAITING for known, _ in queues.queues)
        queues.hold(topic)
        if not may_have_some and topic not in self.topics.unfinished:
            return False
        self.topics.add(topic, self._log.wrote_offset)
        queues.take_out(topic)
        self._points.forget_totals()
        self.resume(topic, done)
        return True

    def resume(self, topic: str, done: Written) -> None:
        """Go on with a removal that the disk has refused; what came since then stays."""
        start(self._remove_files(topic), lambda _, error: done(error))

    async def _remove_files(self, topic: str) -> None:
        await self._write()
        queues = self._queues
        checkpoint, forget = queues.flusher.checkpoint, queues.flusher.writer.forget

        def job() -> list[Path]:
            checkpoint.forget_totals()
            return remove_topic_files(self._files, self._paths, topic, forget)

        try:
            queues.forget_read(await run_job(self._worker, job))
        except Exception as error:
            if refusal(error) is None:
                self._fail(error)
            raise

    def release(self, topic: str, done: Written) -> None:
        """Let the topic be made again; `done` is called when the disk knows."""
        start(self._release(topic), lambda _, error: done(error))

    async def _release(self, topic: str) -> None:
        if topic in self.topics.unfinished:
            end_offset = self.topics.entries[topic].end_offset
            self.topics.gone(topic)
            try:
                await self._write()
            except Exception:
                self.topics.add(topic, end_offset)
                raise
            if topic in self.topics.unfinished:
                return  # it is being removed once more
        self._queues.let_go(topic)

    def _write(self) -> Call[None]:
        """Write the table of removed topics; to be awaited."""
        text = self.topics.encoded()
        return Call(
            lambda done: self._writer.write(
                self._path, lambda: text, lambda error: done(None, error)
            )
        )


def remove_topic_files(
    files: Files, paths: StorePaths, topic: str, forget: Callable[[Path], None]
) -> list[Path]:
    """Remove all queues and extensions of a topic, durably. Blocks.

    Args:
        forget: called with each file before it goes, and with each folder after its files.

    Returns:
        The files that were removed.
    """
    removed: list[Path] = []
    # The units first: an extension without units is no damage.
    for base in (paths.queue_folder(topic, 0).parent, paths.queue_ext_folder(topic, 0).parent):
        folders = [base / name for name in files.list(base)]
        for folder in folders:
            for name in reversed(files.list(folder)):
                if is_file_name(name):
                    forget(folder / name)
                    files.unlink(folder / name)
                    removed.append(folder / name)
        for folder in folders:
            forget(folder)
            files.sync_folder(folder)
        for folder in [*folders, base] if files.exists(base) else folders:
            forget(folder)
            files.remove_folder(folder)
        if files.exists(base.parent):
            files.sync_folder(base.parent)
    return removed


def _nothing(_: Path) -> None:
    """Do nothing: at the start no files are open."""
