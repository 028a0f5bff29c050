"""Who leads: switch-overs and failovers of replicas that elect their master, and taking the load
off a broker before its machine is worked on.

Switching over is for brokers of SkylarkMQ with `controllerEndpoints`; `drain` works with all: a
broker of SkylarkMQ does it itself (30004), for others name servers stop the writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, cast

from skylarkmq.client.admin.base import each
from skylarkmq.client.admin.cluster import ClusterAdmin
from skylarkmq.client.admin.results import Result
from skylarkmq.client.admin.status import BrokerStatus, FailoverStatus, ReplicaStatus
from skylarkmq.client.errors import (
    BrokerError,
    ConnectionFailed,
    IllegalState,
    NotFound,
    NotSupported,
)
from skylarkmq.client.wire.ask import read_header
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import MASTER_ID
from skylarkmq.protocol.headers.drain import DrainBrokerRequestHeader, DrainBrokerResponseHeader
from skylarkmq.protocol.headers.replica import (
    ForceFailoverRequestHeader,
    ForceFailoverResponseHeader,
    SwitchOverRequestHeader,
    SwitchOverResponseHeader,
)

UNKNOWN_ID: Final = -1
TAKE_OVER_TIMEOUT_S: Final = 30.0
"""A replica answers when another one leads, or has not begun to in its time."""
TOLD_LIMIT_S: Final = 10.0
"""A broker answers when its name servers know what they are to tell."""


@dataclass(frozen=True, slots=True)
class Mastership(Result):
    """Who leads a set now: its replica id, and the number of its mastership."""

    broker: str
    master: str
    term: int


@dataclass(frozen=True, slots=True)
class ForcedFailover(Result):
    """Who leads by force, and how many messages at the end of the old log it may have cost."""

    broker: str
    master: str
    term: int
    messages_at_risk: int


@dataclass(frozen=True, slots=True)
class Drained(Result):
    """How the load was taken off a broker.

    `switched_over`: `master` leads now. `writes_stopped`: name servers tell producers not to send
    there, `topic_count` topics changed. `nothing_to_do`: it takes no messages, as it is no master.
    """

    broker: str
    how: Literal["switched_over", "writes_stopped", "nothing_to_do"]
    master: str = ""
    topic_count: int = 0


DrainPhase = Literal["serving", "producers", "consumers", "drained", "impossible"]


@dataclass(frozen=True, slots=True)
class DrainProgress(Result):
    """How far the drain of a broker is.

    `serving`: nobody asked for one. `producers`, then `consumers`: these are moving, and
    `waits_for` says what has to happen yet. `drained`: a stop is not seen by clients, but by those
    of the `stay_count` topics that no other broker takes. `impossible`: `why`.
    """

    broker: str
    phase: DrainPhase
    topic_count: int
    stay_count: int
    waits_for: str = ""
    why: str = ""


class FailoverAdmin(ClusterAdmin):
    """The part of Admin for masters that change."""

    async def switch_over(self, broker: str, to: int | str | None = None) -> Mastership:
        """Let another replica of a set lead; return who does.

        Nothing is lost, and a producer sees one more try. It does not last: whoever leads next is
        found anew when that one is lost.

        Args:
            broker: name of the set.
            to: its broker id, or its replica id; None: the one with the most of the log.

        Raises:
            NotFound: no such broker or replica, or nobody of the set answers.
            NotSupported: the broker is no set that elects its master.
            IllegalState: no replica leads now.
            BrokerError: the replica cannot lead: it is not in sync, or did not take over in time;
                then the old master leads on.
        """
        status = await self._set(broker)
        leader = _leader(status)
        return await self._switch_over(status, leader, to)

    async def failover(
        self, broker: str, *, on: int | str, accept_loss: bool = False
    ) -> ForcedFailover:
        """Let a replica lead although messages may be lost: the last resort.

        It is for a set whose replicas in sync are all lost. While one of them can be started, start
        that one: it leads by itself, and nothing is lost. What only the lost ones had is gone.

        Args:
            broker: name of the set.
            on: which one leads: its broker id, its replica id, or its address, host:port.
            accept_loss: has to be True.

        Raises:
            ValueError: `accept_loss` is not said.
            NotFound: no such broker or replica, or nobody of the set answers.
            NotSupported: the broker is no set that elects its master.
            BrokerError: there is a master, or the replica does not reach etcd.
        """
        if not accept_loss:
            raise ValueError(
                "a forced failover may lose messages that were acknowledged: say accept_loss=True"
            )
        address = on if isinstance(on, str) and ":" in on else await self._find(broker, on)
        dialled = self._dial(address)
        told = await self._ask_failover(address)
        if told is None:
            raise _no_set(broker)
        answer = await self._api.call(
            dialled,
            RequestCode.FORCE_FAILOVER,
            ForceFailoverRequestHeader(accept_loss=True),
            timeout_s=max(self._timeout_s, TAKE_OVER_TIMEOUT_S),
        )
        header = read_header(ForceFailoverResponseHeader, answer, dialled)
        return ForcedFailover(broker, told.replica, header.term, header.messages_at_risk)

    async def drain(self, broker: str, *, broker_id: int | None = None) -> Drained:
        """Take the load off a broker before its process or machine is worked on.

        Of replicas that elect their master, another one leads then, if it is the master that is
        meant. Who is no master has nothing to give away. Of other brokers name servers tell
        producers not to send to the master; it takes up to 30 s until those know.

        A broker of SkylarkMQ whose topics are on others, too, goes on from there by itself: when
        consumers have confirmed what is there, they are told to go as well. Then its page
        `/drainz` says `drained`, and nobody sees its stop; a new name server, or a topic that
        changes, undoes nothing. Of a broker that is alone, and of Apache's, the writes are stopped
        at the name servers (`stop_writes`), which keep that in memory.

        Args:
            broker: its name.
            broker_id: of the process that is meant, as configured; None: the master.

        Raises:
            NotFound: no such broker, or it does not answer, so that nobody knows what it is.
            IllegalState: no replica leads now.
            BrokerError: no other replica of the set can lead.
        """
        status = await self._status_of(broker)
        if status.failover is not None:
            leader = _leader(status)
            found = _told(leader)
            if broker_id not in (None, MASTER_ID, found.broker_id):
                _replica_id(status, broker_id)
                return Drained(broker, "nothing_to_do")
            switched = await self._switch_over(status, leader, None)
            return Drained(broker, "switched_over", master=switched.master)
        process = _process(status, broker_id)
        if process.error is not None:
            raise NotFound(
                f"{broker} does not answer, so it is not known what it is: {process.error}",
                hint=f"stop_writes({broker!r}) keeps producers away from it in any case",
            )
        if not process.is_master:
            return Drained(broker, "nothing_to_do")
        told = await self._drain_itself(process.address, "start")
        moved = 0 if told is None or told.state == "impossible" else told.moved
        count = moved or await self.stop_writes(broker)
        return Drained(broker, "writes_stopped", topic_count=count)

    async def drain_progress(self, broker: str, *, broker_id: int | None = None) -> DrainProgress:
        """Return how far the drain of a broker of SkylarkMQ is.

        Args:
            broker: its name.
            broker_id: of the process that is meant, as configured; None: the master.

        Raises:
            NotFound: no such broker.
            NotSupported: it is Apache's, which does not know.
        """
        process = _process(await self._status_of(broker), broker_id)
        told = await self._drain_itself(process.address, "status")
        if told is None:
            raise NotSupported(
                f"{broker} cannot say how far its drain is: it is not of SkylarkMQ",
                hint="stop it when groups have read it to its end",
            )
        return DrainProgress(
            broker,
            cast("DrainPhase", told.state),
            told.moved,
            told.stays,
            told.waits_for or "",
            told.why or "",
        )

    async def undrain(self, broker: str) -> int:
        """Undo `drain`: let producers send again; return how many topics changed.

        Replicas that elect their master stay as they are: `switch_over` lets another one lead. All
        topics of the broker are made writable, also those that were not before.

        Raises:
            NotFound: no such broker.
        """
        status = await self._status_of(broker)
        if status.failover is not None:
            return 0
        for process in status.replicas:
            if process.error is None and process.is_master:
                await self._drain_itself(process.address, "undo")
        return await self.allow_writes(broker)

    async def _drain_itself(self, address: str, action: str) -> DrainBrokerResponseHeader | None:
        """Have a broker do it; return how it stands, None when it knows no drains.

        Raises:
            BrokerError: it refuses; AuthError: it does not know this account as an admin's.
        """
        dialled = self._dial(address)
        try:
            answer = await self._api.call(
                dialled,
                RequestCode.DRAIN_BROKER,
                DrainBrokerRequestHeader(action=action),
                timeout_s=max(self._timeout_s, TOLD_LIMIT_S),
            )
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            return None
        return read_header(DrainBrokerResponseHeader, answer, dialled)

    async def _switch_over(
        self, status: BrokerStatus, leader: ReplicaStatus, to: int | str | None
    ) -> Mastership:
        target = None if to is None else _replica_id(status, to)
        told = _told(leader)
        if target == told.replica:
            return Mastership(status.name, told.replica, told.term)
        dialled = self._dial(leader.address)
        try:
            answer = await self._api.call(
                dialled,
                RequestCode.SWITCH_OVER,
                SwitchOverRequestHeader(target=target),
                timeout_s=max(self._timeout_s, TAKE_OVER_TIMEOUT_S),
            )
        except ConnectionFailed:  # whoever leads no more may start anew before it has answered
            seen = (await self._status_of(status.name)).failover
            if seen is None or not seen.leads or seen.term <= told.term:
                raise
            return Mastership(status.name, seen.replica, seen.term)
        header = read_header(SwitchOverResponseHeader, answer, dialled)
        return Mastership(status.name, header.master, header.term)

    async def _status_of(self, broker: str) -> BrokerStatus:
        data = (await self._cluster_info()).broker_addr_table.get(broker)
        if data is None:
            raise NotFound(f"no broker {broker} is registered with the name server")
        status = await self._ask_broker(broker, data)
        return status if status.failover is None else await self._with_others(status)

    async def _with_others(self, status: BrokerStatus) -> BrokerStatus:
        """Return it with the replicas that name servers do not know now, and etcd does."""
        asked = {one.address for one in status.replicas}
        places: dict[str, int] = {
            other.address: UNKNOWN_ID if other.broker_id is None else other.broker_id
            for one in status.replicas
            if one.failover is not None
            for other in one.failover.others
            if other.is_alive and other.address and other.address not in asked
        }
        more = await each(
            lambda place: self._ask_replica(place[1], place[0]), sorted(places.items())
        )
        return replace(status, replicas=(*status.replicas, *more))

    async def _set(self, broker: str) -> BrokerStatus:
        status = await self._status_of(broker)
        if status.failover is None:
            errors = [one.error for one in status.replicas if one.error is not None]
            if len(errors) == len(status.replicas):
                raise NotFound(f"nobody of {broker} answers: {'; '.join(errors)}")
            raise _no_set(broker)
        return status

    async def _find(self, broker: str, on: int | str) -> str:
        """Return the address of a replica."""
        status = await self._set(broker)
        wanted = _replica_id(status, on)
        for one in status.replicas:
            if one.failover is not None and one.failover.replica == wanted:
                return one.address
        raise NotFound(f"the replica {on} of {broker} does not answer")


def _no_set(broker: str) -> NotSupported:
    return NotSupported(
        f"{broker} is no set of replicas that elects its master",
        hint="That takes controllerEndpoints; the role of other brokers is configured",
    )


def _leader(status: BrokerStatus) -> ReplicaStatus:
    """Return the replica that leads.

    Raises:
        IllegalState: none does.
    """
    leading = [one for one in status.replicas if one.failover is not None and one.failover.leads]
    if not leading:
        raise IllegalState(
            f"no replica of {status.name} leads now",
            hint="Start the replicas in sync: one of them leads by itself",
        )
    return max(leading, key=lambda one: _told(one).term)


def _told(replica: ReplicaStatus) -> FailoverStatus:
    assert replica.failover is not None
    return replica.failover


def _replica_id(status: BrokerStatus, wanted: int | str | None) -> str:
    """Return the replica id of a broker id or replica id of a set.

    Raises:
        NotFound: the set has none such.
    """
    known = dict(_ids(status))
    for replica, broker_id in known.items():
        if wanted == (broker_id if isinstance(wanted, int) else replica):
            return replica
    listed = ", ".join(
        f"{replica} (broker id {'unknown' if broker_id is None else broker_id})"
        for replica, broker_id in sorted(known.items())
    )
    raise NotFound(f"{status.name} has no replica {wanted}; known: {listed}")


def _ids(status: BrokerStatus) -> Sequence[tuple[str, int | None]]:
    """Return replica id and configured broker id of a set; the last says it best."""
    told = [_told(one) for one in status.replicas if one.failover is not None]
    others = [(other.replica, other.broker_id) for one in told for other in one.others]
    return [*others, *((one.replica, one.broker_id) for one in told)]


def _process(status: BrokerStatus, broker_id: int | None) -> ReplicaStatus:
    place = MASTER_ID if broker_id is None else broker_id
    for one in status.replicas:
        if one.broker_id == place:
            return one
    raise NotFound(f"no broker {status.name} with the id {place} is registered")
