"""What administrators ask of a replica: how it stands, and that another one leads."""

from __future__ import annotations

import asyncio
import logging

from skylarkmq.broker.replica_lives import Lives
from skylarkmq.broker.replica_role import ReplicaRole
from skylarkmq.broker.replication.failover.coordinated_state import ClusterView
from skylarkmq.broker.replication.failover.replica_driver import ReplicaDriver
from skylarkmq.broker.replication.failover.replica_events import ForceFailover, State, SwitchOver
from skylarkmq.common.errors import StoreError
from skylarkmq.protocol.bodies.replica import OtherReplicaBody, ReplicaStatusBody
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.remoting.waiting import wait_event
from skylarkmq.store.log.log_walk import LogWalk

log = logging.getLogger(__name__)


class ReplicaAdmin:
    """The `Replicated` of a broker whose replicas elect their master. Loop thread."""

    def __init__(self, lives: Lives, driver: ReplicaDriver, role: ReplicaRole) -> None:
        self._lives = lives
        self._driver = driver
        self._role = role
        self._is_switching = False

    def status(self) -> ReplicaStatusBody:
        driver, state, config = self._driver, self._driver.state, self._lives.config
        places, view = self._lives.places, driver.engine.view
        record = None if view is None else view.state
        return ReplicaStatusBody(
            replica=driver.me,
            broker_id=config.broker_id,
            state=state.state,
            term=0 if record is None else record.term,
            master="" if record is None else record.master,
            in_sync=[] if record is None else list(record.in_sync),
            start=0 if record is None else record.start,
            end=places.end,
            durable_end=places.durable_end,
            confirmed=state.shown or 0,
            min_in_sync=config.min_in_sync_replicas,
            mastership_changes=driver.engine.mastership_changes,
            engine_reachable=driver.engine.is_reachable,
            halted=self._role.halted,
            others=[] if view is None else self._others(view),
        )

    def _others(self, view: ClusterView) -> list[OtherReplicaBody]:
        in_sync = self._driver.state.in_sync
        found: list[OtherReplicaBody] = []
        ids = {self._lives.config.broker_id} | {
            record.broker_id for replica, record in view.replicas.items() if replica in view.alive
        }
        for replica in sorted({*view.alive, *view.replicas}):
            if replica == self._driver.me:
                continue
            alive, record = view.alive.get(replica), view.replicas.get(replica)
            if alive is None and record is not None and record.broker_id in ids:
                continue  # another store took its place
            durable_end = 0 if alive is None else alive.durable_end
            if in_sync is not None:
                durable_end = max(durable_end, in_sync.durable_end(replica))
            found.append(
                OtherReplicaBody(
                    replica=replica,
                    broker_id=None if record is None else record.broker_id,
                    address="" if alive is None else alive.address,
                    alive=alive is not None,
                    durable_end=durable_end,
                )
            )
        return found

    async def switch_over(self, target: str) -> None:
        driver, clock = self._driver, self._lives.now.peer_clock
        until_s = clock.monotonic() + driver.rules.hand_over_s
        while driver.state.state is State.MASTER and not self._lives.serves:  # it has only begun
            self._role.changed.clear()
            left_s = until_s - clock.monotonic()
            if left_s <= 0 or not await wait_event(clock, self._role.changed, left_s):
                raise _refused("this replica has only begun to lead: try again")
        if self._is_switching:
            raise _refused("this replica hands over already")
        if driver.state.state is not State.MASTER or driver.state.in_sync is None:
            raise _refused(f"this replica does not lead {self._lives.config.broker_name}")
        target = target or self._best()
        if not target:
            raise _refused("no other replica is alive and in sync")
        if target == driver.me or target not in driver.state.in_sync.members:
            members = ", ".join(sorted(driver.state.in_sync.members - {driver.me}))
            raise _refused(f"replica {target} is not in sync; those that are: {members}")
        log.info("handing %s over to replica %s", self._lives.config.broker_name, target)
        life, parts = self._lives.now, self._lives.now.parts
        self._is_switching = True
        try:
            await parts.stop_master_services()
            await self._hand_over(target)
        finally:
            self._is_switching = False
            if self._lives.serves and life is self._lives.now and not self._lives.is_stopping:
                parts.start_master_services()  # it leads on
        if driver.state.state is State.MASTER:
            raise _refused(f"{target} did not catch up, so this replica leads on")
        if driver.engine.view is None or driver.engine.view.state is None:
            return
        if driver.engine.view.state.master != target:
            raise _refused(f"{target} did not take over: see its log")

    async def _hand_over(self, target: str) -> None:
        """Let all that was written go over, then the lead; return when it is decided."""
        driver, store = self._driver, self._lives.store
        try:
            await self._lives.now.parts.metadata.written()
        except StoreError as error:
            log.warning("the last changes of tables may not go over: %s", error)
        store.writer.commit_open()
        driver.look_at_log()
        driver.hear(SwitchOver(target))
        while driver.state.state in (State.HANDING_OVER, State.HANDED_OVER):
            self._role.changed.clear()
            await wait_event(
                self._lives.now.peer_clock, self._role.changed, driver.rules.hand_over_s
            )

    def _best(self) -> str:
        """Return the other member that has most, empty without one that lives."""
        in_sync, view = self._driver.state.in_sync, self._driver.engine.view
        if in_sync is None or view is None:
            return ""
        others = [
            each for each in in_sync.members if each != self._driver.me and each in view.alive
        ]
        return max(others, key=lambda each: (in_sync.durable_end(each), each), default="")

    async def force(self) -> int:
        state, view = self._driver.state, self._driver.engine.view
        if state.state not in (State.FOLLOWER, State.WAITING) or view is None:
            raise _refused(f"this replica is {state.state.value}: only one that follows is forced")
        if view.master is not None:
            raise _refused(f"replica {view.master.replica} leads: switch over instead")
        if not self._driver.engine.is_reachable:
            raise _refused("the coordination engine does not answer")
        at_risk = await asyncio.to_thread(self._count_after, state.shown or 0)
        log.warning("failover is forced: %d messages may be lost elsewhere or here", at_risk)
        self._driver.hear(ForceFailover())
        return at_risk

    def _count_after(self, offset: int) -> int:
        """Count the records from an offset on: those that not every replica may have."""
        files = self._lives.store.commit_log.mapped_files
        begin = max(offset, self._lives.store.commit_log.min_offset)
        return sum(1 for _ in LogWalk(files, check_crc=False).records(begin))


def _refused(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)
