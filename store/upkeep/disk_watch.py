"""How full the disk is, and whether messages are refused for it.

The partitions of log and queues are measured, each by `df`'s measure. Over
`diskSpaceWarningLevelRatio` messages are refused until it is less.

A reader that holds a removed file, or bytes of it on their way to a client, keeps its blocks until
it is done. They count as free already, so that a forced run does not take file after file in vain.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (isSpaceToDelete),
common/.../UtilAll.java (getDiskPartitionSpaceUsedPercent)
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from functools import partial
from pathlib import Path
from typing import NamedTuple

from skylarkmq.common.files import DiskSpace, Files
from skylarkmq.common.worker import run_job
from skylarkmq.store.environment import Environment
from skylarkmq.store.log.mapped_file import MappedFile

log = logging.getLogger(__name__)


class Spaces(NamedTuple):
    """The partitions of the log and of the queues; None when the disk did not tell."""

    log: DiskSpace | None
    queues: DiskSpace | None

    @property
    def is_shared(self) -> bool:
        """True when both lie on one partition, as far as its size tells."""
        return self.log is None or self.queues is None or sum(self.log) == sum(self.queues)


def measure(files: Files, log_path: Path, queue_path: Path, root: Path) -> Spaces:
    """Ask the disk. Blocks; a folder that is not there yet will be made under the root."""
    return Spaces(_space(files, log_path, root), _space(files, queue_path, root))


def _space(files: Files, path: Path, root: Path) -> DiskSpace | None:
    try:
        return files.space(path if files.exists(path) else root)
    except OSError as error:
        log.error("cannot tell how full the disk is: %s", error)
        return None


def used_percent(space: DiskSpace | None, *, less: int = 0) -> int:
    """Return the percent of a partition that is used, rounded up; -1 when it is unknown.

    Args:
        less: so many of the used bytes will come free without further work.
    """
    if space is None or sum(space) <= 0:
        return -1
    return -(-max(0, space.used - less) * 100 // sum(space))


class DiskWatch:
    """Measures the disk and judges what it says. Loop thread, except `measure`.

    Attributes:
        measure: asks the disk. Blocks.
        is_full: messages are refused.
    """

    def __init__(self, env: Environment) -> None:
        paths = env.paths
        self.measure = partial(
            measure, env.files, paths.commit_log, paths.consume_queue, paths.root
        )
        self.is_full = False
        self._config = env.config  # it may change while the store runs
        self._worker = env.workers.tables
        self._stats = env.stats
        self._asked: object | None = None  # the disk, and it has not answered yet
        self._lingering: list[tuple[weakref.ref[object], int]] = []  # mappings and their bytes

    def refusal(self) -> str | None:
        """Return why messages are not taken now, None when they are."""
        return self._why_full() if self.is_full else None

    async def look(self) -> Spaces | None:
        """Measure and judge; None when that fails, is under way already, or comes too late."""
        if self._asked is not None:
            return None
        asked = self._asked = object()
        try:
            spaces = await run_job(self._worker, self.measure)
        except Exception as error:
            if asked is self._asked:
                self._asked = None
                log.error("the disk cannot be measured: %s", error)
            return None
        if asked is not self._asked:
            return None
        self._asked = None
        self.judge(spaces)
        return spaces

    def forget(self) -> None:
        """An answer that is on its way is not used."""
        self._asked = None

    def judge_now(self) -> None:
        """Measure and judge; an answer that is on its way is older. Blocks."""
        self.forget()
        self.judge(self.measure())

    def judge(self, spaces: Spaces) -> None:
        """Refuse messages, or take them again."""
        known = {"commitlog": spaces.log, "consumequeue": spaces.queues}
        percents = {kind: used_percent(space) for kind, space in known.items()}
        self._stats.disk_used_percent = percents
        self._stats.disk_space = {kind: space for kind, space in known.items() if space is not None}
        full = max(percents.values()) > self._config.disk_space_warning_level_ratio
        if full and not self.is_full:
            log.error("messages are refused: %s", self._why_full())
        elif self.is_full and not full:
            log.warning("messages are taken again: the disk has room (%s used)", self._used())
        self.is_full = full

    def _used(self) -> str:
        used = self._stats.disk_used_percent
        return ", ".join(f"{kind} {percent} %" for kind, percent in used.items())

    def _why_full(self) -> str:
        return (
            f"the disk is too full ({self._used()} used, diskSpaceWarningLevelRatio is "
            f"{self._config.disk_space_warning_level_ratio}); free some space"
        )

    def note_removed(self, mapped: MappedFile) -> None:
        """Note that a file has gone, whose blocks come free with its last reader."""
        with contextlib.suppress(TypeError):  # memory of a kind that cannot be watched
            self._lingering.append((weakref.ref(mapped.view.obj), mapped.size))

    def percents(self, spaces: Spaces) -> tuple[int, int]:
        """Return how full log and queues would be if readers let go what was removed."""
        self._lingering = [(ref, size) for ref, size in self._lingering if ref() is not None]
        of_log = used_percent(spaces.log, less=sum(size for _, size in self._lingering))
        return of_log, of_log if spaces.is_shared else used_percent(spaces.queues)
