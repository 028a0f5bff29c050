"""What clients and name servers are told of a replica. `replica_rules.py` has what it refuses."""

from __future__ import annotations

import asyncio

from skylarkmq.broker.registration.registration import RegisteredRole
from skylarkmq.broker.replica_lives import Lives, Stage
from skylarkmq.broker.replication.failover.replica_driver import ReplicaDriver
from skylarkmq.broker.replication.failover.replica_events import Sends, State
from skylarkmq.broker.replication.failover.replica_rules import (
    NONE,
    Refusals,
    while_following,
    while_taking_over,
    while_too_few,
)


class ReplicaRole:
    """The role of a replica, as others see it. Loop thread.

    Attributes:
        changed: set whenever clients are told something else.
        halted: why this replica stands still for good; empty when it does not.
    """

    def __init__(self, lives: Lives, driver: ReplicaDriver) -> None:
        self.changed = asyncio.Event()
        self.halted = ""
        self._lives = lives
        self._driver = driver
        self._told: tuple[object, ...] = ()  # what clients were told last
        self._has_followed = 0  # number of the last life that has; a life itself would be kept

    def tell(self) -> None:
        """Refuse what this replica must not answer now, and say at name servers what it is."""
        lives, life, state = self._lives, self._lives.now, self._driver.state
        if lives.stage not in (Stage.FOLLOWING, Stage.LEADING) or life.router is None:
            return
        shown = state.shown
        is_shown = shown is not None and shown >= lives.recovered_end
        role: RegisteredRole | None = None
        if state.state is State.MASTER and lives.serves and is_shown:
            role = RegisteredRole(0, state.term)
        elif lives.stage is Stage.FOLLOWING:
            # Without a master it stays: what it shows is confirmed, and may be read.
            if state.is_fed:
                self._has_followed = lives.number
            has_followed = self._has_followed == lives.number
            role = RegisteredRole(lives.config.broker_id, 0) if has_followed else None
        if self.halted:
            role = None
        in_sync = 0 if state.in_sync is None else len(state.in_sync.members)
        facts = (lives.number, state.state, state.sends, role, is_shown, self.halted, in_sync)
        if facts == self._told:
            return
        self._told = facts
        life.router.refuse(self._refusals(is_shown))
        # One that hands over, or waits for others as it begins to lead, stays known as it was.
        if life.registration is not None and (role is not None or not self._leads):
            life.registration.set_role(role)
        self.changed.set()

    def _refusals(self, is_shown: bool) -> Refusals:
        state, config = self._driver.state, self._lives.config
        name = config.broker_name
        if self.halted or not self._leads:
            return while_following(name, reads=is_shown and not self.halted)
        if state.state is not State.MASTER:
            return while_following(name, reads=True)
        if not (self._lives.serves and is_shown):
            return while_taking_over(name)
        if state.sends is Sends.TOO_FEW and state.in_sync is not None:
            return while_too_few(len(state.in_sync.members), config.min_in_sync_replicas)
        return NONE

    @property
    def _leads(self) -> bool:
        leading = (State.MASTER, State.HANDING_OVER, State.HANDED_OVER)
        return self._lives.stage is Stage.LEADING and self._driver.state.state in leading
