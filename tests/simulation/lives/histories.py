"""What becomes of a broker while its consumers live on. Each leaves a log with known ends.

Before each, two messages are durable and their group's position is; four more were seen by every
consumer, so that positions stand at 6; two more nobody has seen.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.stopped.reader import StoppedStore
from skylarkmq.tools.store.salvage import Salvage
from skylarkmq.tools.store.truncate import Truncation
from tests.store.support import LOG_SIZE
from tests.support.broker_lives import NAME, BrokerLives, from_folder, to_folder
from tests.support.crash_disk import CrashDisk
from tests.support.crash_states import CrashState, Keep

FIRST: Final = ("a0", "a1")
SEEN: Final = ("b0", "b1", "b2", "b3")
UNSEEN: Final = ("u0", "u1")
POSITION: Final = len(FIRST) + len(SEEN)
"""Of each consumer, in its memory."""


class History(NamedTuple):
    """One of them."""

    act: Callable[[BrokerLives, CrashDisk, Path], Awaitable[None]]
    """Ends the broker's life and begins another; given a copy of the disk from before `SEEN`."""
    end: int
    """Of the queue in the new life."""
    is_prompt: bool = False
    """It happens before the next sync of the log."""


async def power_cut(lives: BrokerLives, _copy: CrashDisk, _folder: Path) -> None:
    """ASYNC_FLUSH, the default: what was not synced yet is gone."""
    await lives.boot(lives.power_cut(), keeps="durable")


async def kill(lives: BrokerLives, _copy: CrashDisk, _folder: Path) -> None:
    """The process alone: nothing is gone."""
    await lives.boot(lives.kill(), keeps="all")


async def restore(lives: BrokerLives, copy: CrashDisk, _folder: Path) -> None:
    """An older backup takes the store's place."""
    lives.kill()
    await lives.boot(copy.crash(CrashState(Keep.KILL), Random(1)))


async def promotion(lives: BrokerLives, copy: CrashDisk, _folder: Path) -> None:
    """A slave that was behind is started as the master, elsewhere."""
    disk = await lives.stopped_slave(copy)
    lives.kill()
    await lives.boot(disk, address=f"{NAME}-slave:10911")


async def empty_start(lives: BrokerLives, _copy: CrashDisk, _folder: Path) -> None:
    """The disk is lost; the broker begins with none, and its topic is made again."""
    lives.kill()
    await lives.boot(CrashDisk())


async def truncate(lives: BrokerLives, _copy: CrashDisk, folder: Path) -> None:
    """`store truncate --write` of the stopped store, at the end of the first messages."""
    place = lives.physical_offset(len(FIRST))
    await _truncated(lives, await lives.stop(), place, folder)


async def truncate_after_a_kill(lives: BrokerLives, _copy: CrashDisk, folder: Path) -> None:
    """The same of one that was not stopped."""
    place = lives.physical_offset(len(FIRST))
    await _truncated(lives, lives.kill(), place, folder)


async def _truncated(lives: BrokerLives, disk: CrashDisk, place: int, folder: Path) -> None:
    to_folder(disk, folder)
    Truncation(StoppedStore(folder), place, DelayLevels()).write()
    await lives.boot(from_folder(folder))


async def salvage(lives: BrokerLives, _copy: CrashDisk, folder: Path) -> None:
    """The log is damaged behind the first messages, its queues are lost; `store salvage`."""
    place = lives.physical_offset(len(FIRST))
    paths = lives.life.parts.store.paths
    disk = await lives.stop()
    damaged, saved = folder / "damaged", folder / "saved"
    to_folder(disk, damaged)
    with (damaged / paths.commit_log.name / f"{0:020}").open("r+b") as log:
        log.seek(place)
        log.write(bytes(LOG_SIZE - place))
    shutil.rmtree(damaged / "consumequeue")
    Salvage(StoppedStore(damaged), saved, DelayLevels()).run()
    await lives.boot(from_folder(saved))


HISTORIES: Final = {
    "power_cut": History(power_cut, len(FIRST), is_prompt=True),
    "kill": History(kill, POSITION + len(UNSEEN)),
    "restore": History(restore, len(FIRST)),
    "promotion": History(promotion, len(FIRST)),
    "empty_start": History(empty_start, 0),
    "truncate": History(truncate, len(FIRST)),
    "truncate_after_a_kill": History(truncate_after_a_kill, len(FIRST)),
    "salvage": History(salvage, len(FIRST)),
}
