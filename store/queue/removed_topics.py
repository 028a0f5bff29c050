"""Topics that were removed while the log still holds their messages: `skylarkmq/removed-topics`.

The log keeps what it has until its files expire. So that these messages do not come back when
queues are built again, each removed topic is remembered with the end of the log at its removal:
records of the topic that lie below count for nothing, those behind belong to a topic made anew.

    payload, a msgpack map in the frame of `sidecar.py`:
    topics    topic -> [end offset, is gone]

`is gone` turns true when everything that belongs to the topic has left the disk. A topic that is
not gone has no files but old ones, since it cannot be made again before, so the next start removes
whatever is there.

An entry is dropped when the log begins behind its offset. The log's end may fall back in a crash;
then the offsets follow, before new messages take the places.

Unlike RocketMQ, where building the queues again brings a deleted topic's messages back.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final, NamedTuple

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.files import Files
from skylarkmq.common.sidecar import Kind, decode_sidecar, encode_sidecar
from skylarkmq.protocol.flags import validate_topic

log = logging.getLogger(__name__)

ENTRIES_MAX: Final = 100_000
"""Removed topics whose messages the log may hold; about 40 bytes each, written whole."""


class Removed(NamedTuple):
    """One removed topic."""

    end_offset: int  # its records below this place of the log are removed
    is_gone: bool


class RemovedTopics:
    """The table of removed topics. Loop thread, or the loading thread."""

    def __init__(self) -> None:
        self.entries: dict[str, Removed] = {}

    def hides(self, topic: str, physical_offset: int) -> bool:
        """Whether a record of a topic was removed with it."""
        entry = self.entries.get(topic)
        return entry is not None and physical_offset < entry.end_offset

    def ends(self) -> dict[bytes, int]:
        """End offset by topic, as records name it."""
        return {topic.encode(): entry.end_offset for topic, entry in self.entries.items()}

    @property
    def unfinished(self) -> list[str]:
        """Topics that are not gone from the disk for certain."""
        return [topic for topic, entry in self.entries.items() if not entry.is_gone]

    def add(self, topic: str, end_offset: int) -> None:
        """Remember that everything of a topic below a place of the log is removed."""
        self.entries[topic] = Removed(end_offset, is_gone=False)

    def gone(self, topic: str) -> None:
        """The topic has left the disk."""
        self.entries[topic] = self.entries[topic]._replace(is_gone=True)

    def recovered(self, min_offset: int, end_offset: int) -> bool:
        """Follow the ends of a log that was recovered; True when something changed."""
        before = dict(self.entries)
        for topic, entry in before.items():
            self.entries[topic] = entry._replace(end_offset=min(entry.end_offset, end_offset))
        self.prune(min_offset)
        return self.entries != before

    def prune(self, min_offset: int) -> None:
        """Drop the topics of which the log holds nothing any more."""
        for topic, entry in list(self.entries.items()):
            if entry.is_gone and entry.end_offset <= min_offset:
                del self.entries[topic]

    # The file

    def encoded(self) -> bytes:
        """What the file holds."""
        topics = {topic: [*entry] for topic, entry in self.entries.items()}
        return encode_sidecar(Kind.REMOVED_TOPICS, {"topics": topics})

    def load(self, files: Files, path: Path) -> None:
        """Read the file, or its `.bak` when it is damaged. Blocks.

        Where neither can be read there is a warning and the table is empty: no message depends on
        it.
        """
        for source in (path, path.with_name(path.name + ".bak")):
            if not files.exists(source):
                continue
            try:
                content = decode_sidecar(source, Kind.REMOVED_TOPICS, files.read_all(source))
                self.entries = _entries(source, content)
                return
            except CorruptFileError as error:
                log.warning("%s; removed topics may come back when queues are rebuilt", error)

    def save(self, files: Files, path: Path) -> None:
        """Write the file durably. Blocks."""
        files.make_folder(path.parent)
        files.replace(path, self.encoded(), backup=True)


def _entries(path: Path, content: dict[str, object]) -> dict[str, Removed]:
    entries: dict[str, Removed] = {}
    match content:
        case {"topics": dict(topics)}:  # pyright: ignore[reportUnknownVariableType]
            rows = dict[object, object](topics)  # pyright: ignore[reportUnknownArgumentType]
        case _:
            raise CorruptFileError(path, 0, "there are no topics in it")
    for topic, row in rows.items():
        match topic, row:
            case str(topic), [int(end_offset), bool(is_gone)] if validate_topic(topic) is None:
                entries[topic] = Removed(end_offset, is_gone)
            case _:
                raise CorruptFileError(path, 0, f"{topic!r} is no removed topic")
    return entries
