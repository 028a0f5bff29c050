"""Which brokers refuse the heartbeats of a client, group by group.

Such a broker does not know the member: it receives nothing from it, and goes on with the others.
When all brokers of a consumer's topics have refused REFUSALS_MIN times in a row, over REFUSED_S or
longer, its reader gets the refusal as an error; at its start at once, where others consume its
group in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from skylarkmq.client.errors import BrokerError, NoPermission
from skylarkmq.client.wire.route import RouteTable
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.flags import is_retry_topic

if TYPE_CHECKING:
    from skylarkmq.client.services import Member

REFUSED_S: Final = 10.0
"""How long a broker may refuse heartbeats, as while it starts or reads its access control again."""
REFUSALS_MIN: Final = 3
TOLD_MAX: Final = 100
"""Refusals with different words that are remembered."""
LATER_CODES: Final[frozenset[int]] = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
    }
)
"""Refusals because of the state of the broker, not of the client."""


class Refusals:
    """The refusals of one client's heartbeats. Loop thread."""

    def __init__(
        self, monotonic: Callable[[], float], routes: RouteTable, members: Mapping[str, Member]
    ) -> None:
        """Take the client's consumers, by group."""
        self._monotonic = monotonic
        self._routes = routes
        self._members = members
        # By address and group, since the last heartbeat that was taken: how many, the time of the
        # first, and the last.
        self._refusals: dict[tuple[str, str], tuple[int, float, BrokerError]] = {}
        self._told: set[str] = set()  # remarks, since a heartbeat was taken after a refusal

    def keep(self, addresses: Collection[str], groups: Collection[str]) -> None:
        """Forget all brokers and groups but these."""
        for address, group in list(self._refusals):
            if address not in addresses or group not in groups:
                del self._refusals[address, group]

    def at(self, address: str) -> set[str]:
        """Return the groups whose last heartbeat a broker has refused."""
        return {group for refused_at, group in self._refusals if refused_at == address}

    def taken(self, address: str, groups: Iterable[str]) -> None:
        """Note that a broker has taken a heartbeat of these groups."""
        for group in groups:
            if self._refusals.pop((address, group), None) is not None:
                self._told.clear()
                member = self._members.get(group)
                if member is not None and address in self._addresses_of(member):
                    member.refused(None)

    def note(self, address: str, groups: Iterable[str], error: BrokerError) -> bool:
        """Note a refusal; those of the broker's state alone do not count.

        Returns:
            Whether it is worth a warning: no broker has refused with the same words before.
        """
        if error.code in LATER_CODES:
            return True
        now_s = self._monotonic()
        for group in groups:
            count, since_s, _ = self._refusals.get((address, group), (0, now_s, error))
            self._refusals[address, group] = count + 1, since_s, error
            member = self._members.get(group)
            if member is None:
                continue  # it has just left
            addresses = self._addresses_of(member)
            if address in addresses and all(self._refuses(each, group) for each in addresses):
                member.refused(error)
        if error.remark in self._told:
            return False
        if len(self._told) >= TOLD_MAX:
            self._told.clear()
        self._told.add(error.remark)
        return True

    def of(self, member: Member) -> BrokerError | None:
        """Return what a consumer that starts is refused with by all brokers of its topics.

        Only where that does not pass by itself: others consume its group in another way.
        """
        error: BrokerError | None = None
        for address in self._addresses_of(member):
            *_, error = self._refusals.get((address, member.group), (None,))
            if not isinstance(error, NoPermission):
                return None
        return error

    def _refuses(self, address: str, group: str) -> bool:
        """Return whether the broker has refused heartbeats for so long that it will go on so."""
        refusal = self._refusals.get((address, group))
        if refusal is None:
            return False
        count, since_s, _ = refusal
        return count >= REFUSALS_MIN and self._monotonic() - since_s >= REFUSED_S

    def _addresses_of(self, member: Member) -> set[str]:
        """Return the brokers that know the members of a group: masters, else their first slaves.

        Other slaves take who is refused by their master, as they do not know who pops there.
        """
        data = member.consumer_data()
        wanted = [] if data is None else data.subscription_data_set
        routes = [
            self._routes.known(each.topic) for each in wanted if not is_retry_topic(each.topic)
        ]
        return {
            broker[min(broker)]
            for route in routes
            if route is not None
            for broker in route.brokers.values()
            if broker
        }
