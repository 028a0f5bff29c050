"""How full the partitions of the store are, by `df`'s measure, and what that calls for.

    over, percent                    what follows
    diskMaxUsedSpaceRatio 75         expired log files go at any hour
    diskSpaceCleanForciblyRatio 85   log files go before they are expired, the oldest first
    diskSpaceWarningLevelRatio 90    messages are refused until it is less

Log and queues may lie on two partitions, which are judged apart.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (isSpaceToDelete),
common/.../UtilAll.java (getDiskPartitionSpaceUsedPercent)
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final, NamedTuple

from skylarkmq.common.files import DiskSpace, Files

log = logging.getLogger(__name__)

# diskMaxUsedSpaceRatio counts as one of these when it lies outside of them.
MAX_USED_LIMITS: Final = (10, 95)


class Spaces(NamedTuple):
    """The partitions of the log and of the queues; None when the disk did not tell."""

    log: DiskSpace | None
    queues: DiskSpace | None

    @property
    def is_shared(self) -> bool:
        """Whether both lie on one partition, as far as its size can tell."""
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
    """Percent of a partition that is used, rounded up; -1 when it is unknown.

    Args:
        less: so many of the used bytes come free by themselves.
    """
    if space is None or sum(space) <= 0:
        return -1
    return -(-max(0, space.used - less) * 100 // sum(space))


def clamped_max_used(ratio: int) -> int:
    """`diskMaxUsedSpaceRatio` as it counts."""
    low, high = MAX_USED_LIMITS
    return min(max(ratio, low), high)
