"""How a replica becomes one of its set: it says who it is, and is refused where two logs would come
of it, or two brokers of one name.

    not yet       the engine is not reached, or another process still has this place: tried again
    never         the store is another set's, or its files have another size: the start ends
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
from pathlib import Path
from typing import Final

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.replication.failover.coordinated_state import (
    REPLICAS,
    SET,
    AliveRecord,
    ClusterView,
    CoordinatedStateError,
    ReplicaRecord,
    SetRecord,
    view_of,
)
from skylarkmq.broker.replication.failover.coordination import (
    MISSING,
    Change,
    Condition,
    Coordination,
    CoordinationError,
    Swapped,
)
from skylarkmq.broker.replication.failover.replica_id import ReplicaFile
from skylarkmq.common.clock import Clock
from skylarkmq.common.errors import StoreError
from skylarkmq.common.refusal import refusal
from skylarkmq.common.throttled_log import ThrottledLog
from skylarkmq.remoting.waiting import sleep

log = logging.getLogger(__name__)

FORMAT: Final = 1
"""Of the log and of what stands in it beside messages; replicas of one set have the same."""
RETRY_S: Final = 1.0


async def join_set(
    coordination: Coordination,
    config: BrokerConfig,
    file: ReplicaFile,
    alive: AliveRecord,
    clock: Clock,
) -> None:
    """Return once the engine knows this replica.

    Args:
        alive: where this replica is.

    Raises:
        StoreError: it cannot be one of its set; nothing is changed.
        OSError: the disk failed.
    """
    throttled = ThrottledLog(clock, log)
    while True:
        try:
            if await _is_known(coordination, config, file, alive):
                return
        except (CoordinationError, CoordinatedStateError, OSError) as error:
            if isinstance(error, OSError) and refusal(error) is None:
                raise
            throttled.tell(str(error), f"this replica cannot take part yet: {error}")
        await sleep(clock, RETRY_S)


async def _is_known(
    coordination: Coordination, config: BrokerConfig, file: ReplicaFile, alive: AliveRecord
) -> bool:
    """Write this replica's record, if it is not there; False: try again."""
    view = view_of(await coordination.read())
    if not view.set_id:
        made = SetRecord(file.set_id or secrets.token_hex(8))
        missing = Condition(SET, revision=MISSING)
        await coordination.swap((missing,), (Change(SET, made.to_json()),))
        return False  # somebody's is there now
    _check(view, config, file, alive)
    await asyncio.to_thread(file.join, view.set_id)
    mine = ReplicaRecord(config.broker_id, config.store.mapped_file_size_commit_log, FORMAT)
    if view.replicas.get(file.id) == mine:
        return True
    kept = {file.id, *view.alive, *(() if view.state is None else view.state.in_sync)}
    replaced = [
        Change(REPLICAS + other, None)
        for other, record in view.replicas.items()
        if record.broker_id == config.broker_id and other not in kept
    ]
    changes = (Change(REPLICAS + file.id, mine.to_json()), *replaced)
    return await coordination.swap((), changes) is Swapped.DONE


def _check(view: ClusterView, config: BrokerConfig, file: ReplicaFile, alive: AliveRecord) -> None:
    """Refuse what would end in two logs, or two brokers of one name.

    Raises:
        StoreError: for good. CoordinationError: for now.
    """
    if file.set_id not in ("", view.set_id):
        raise StoreError(
            f"this store belongs to another set of replicas: its set has the id {file.set_id}, and "
            f"the engine knows {view.set_id}. Nothing is changed; start with an empty store, or "
            "let the engine have what it had"
        )
    here = view.alive.get(file.id)
    if here is not None and here.address != alive.address:
        raise CoordinationError(
            f"replica {file.id} runs at {here.address}, too: is this store a copy of that one? It "
            "goes on when that one has ended; else remove skylarkmq/replica beside this store"
        )
    size = config.store.mapped_file_size_commit_log
    for other, record in view.replicas.items():
        if other == file.id or other not in view.alive:
            continue
        at = view.alive[other].address
        if record.broker_id == config.broker_id:
            raise CoordinationError(
                f"brokerId={config.broker_id} of {config.broker_name} is that of the replica at "
                f"{at}, which is alive: use another one"
            )
        if record.log_file_size != size:
            raise StoreError(
                f"the files of this log have {size} bytes and those of the replica at {at} "
                f"{record.log_file_size}: use the same mappedFileSizeCommitLog, with an empty "
                "store where it changes"
            )
        if record.format != FORMAT:
            raise StoreError(
                f"the replica at {at} writes format {record.format}, this release {FORMAT}: update "
                "one of them"
            )


def set_aside(root: Path, commit_log: Path, keep: Path) -> Path:
    """Move what a stopped store holds into a folder of its own beside it; return that. Blocks.

    Args:
        root, commit_log: of the store.
        keep: the file with this replica's id, which stays.

    Raises:
        OSError: the disk failed; what was moved so far is there.
    """
    parent = root / "set-aside"
    parent.mkdir(exist_ok=True)
    numbers = [int(each.name) for each in parent.iterdir() if each.name.isdigit()]
    aside = parent / str(max(numbers, default=0) + 1)
    own = keep.parent
    (aside / own.name).mkdir(parents=True)
    # First the terms: a log without them begins anew after a crash, too, and is not believed.
    for place in sorted(own.iterdir(), key=lambda each: each.name != "terms"):
        if place != keep:
            place.rename(aside / own.name / place.name)
    for place in [each for each in root.iterdir() if each not in (parent, own)]:
        place.rename(aside / place.name)
    if commit_log.exists():  # it lies elsewhere
        shutil.move(commit_log, aside / commit_log.name)
    return aside
