"""Where the files of a store lie, built in one place so that no name escapes its folder.

    <root>/commitlog/<20 digits>                          all messages
    <root>/consumequeue/<topic>/<queueId>/<20 digits>     the queues' indexes
    <root>/consumequeue_ext/<topic>/<queueId>/<20 digits> what does not fit into their units
    <root>/index/<yyyyMMddHHmmssSSS>                      the key index
    <root>/config/*.json                                  tables, each with a .bak
    <root>/checkpoint  <root>/abort  <root>/lock          recovery marks and the owner's lock
    <root>/skylarkmq/                                     what is ours alone; RocketMQ ignores it

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../config/StorePathConfigHelper.java
"""

from __future__ import annotations

from pathlib import Path

from skylarkmq.common.errors import StoreError
from skylarkmq.protocol.flags import validate_topic


class StorePaths:
    """Paths under one root. The commit log may lie elsewhere."""

    def __init__(self, root: Path, commit_log: Path | None = None) -> None:
        self.root = root
        self.commit_log = commit_log or root / "commitlog"
        self.consume_queue = root / "consumequeue"
        self.consume_queue_ext = root / "consumequeue_ext"
        self.index = root / "index"
        self.config = root / "config"
        self.checkpoint = root / "checkpoint"
        self.abort = root / "abort"
        self.lock = root / "lock"
        self.own = root / "skylarkmq"
        self.profile = self.own / "profile"
        self.recovery_point = self.own / "recovery-point"
        self.flushed_offset = self.own / "flushed-offset"
        self.removed_topics = self.own / "removed-topics"
        self.timer = self.own / "timer"

    def queue_folder(self, topic: str, queue_id: int) -> Path:
        """Folder of one consume queue.

        Raises:
            StoreError: the topic's name could leave the folder.
        """
        return self.consume_queue / self._queue_part(topic, queue_id)

    def queue_ext_folder(self, topic: str, queue_id: int) -> Path:
        """Folder of a consume queue's extension.

        Raises:
            StoreError: as `queue_folder`.
        """
        return self.consume_queue_ext / self._queue_part(topic, queue_id)

    @staticmethod
    def _queue_part(topic: str, queue_id: int) -> str:
        why = validate_topic(topic)
        if why is not None or topic in (".", "..") or queue_id < 0:
            raise StoreError(f"no queue folder for topic {topic!r}, queue {queue_id}: {why}")
        return f"{topic}/{queue_id}"
