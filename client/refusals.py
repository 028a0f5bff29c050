"""Which brokers refuse the heartbeats of a client.

Such a broker does not know the client: its consumers receive nothing from it, and go on with the
others. When all brokers of a consumer's topics have refused REFUSALS_MIN times in a row, over
REFUSED_S or longer, its reader gets the refusal as an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from skylarkmq.client.errors import BrokerError
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
        # By address, since the last heartbeat that was taken: how many, and the time of the first.
        self._refusals: dict[str, tuple[int, float]] = {}
        self._told: set[str] = set()  # remarks, since a heartbeat was taken after a refusal

    def keep(self, addresses: Iterable[str]) -> None:
        """Forget all brokers but these."""
        for address in self._refusals.keys() - set(addresses):
            del self._refusals[address]

    def taken(self, address: str) -> None:
        """Note that a broker has taken a heartbeat."""
        if self._refusals.pop(address, None) is not None:
            self._told.clear()
            for member in list(self._members.values()):
                if address in self._addresses_of(member):
                    member.refused(None)

    def note(self, address: str, error: BrokerError) -> bool:
        """Note a refusal; those of the broker's state alone do not count.

        Returns:
            Whether it is worth a warning: no broker has refused with the same words before.
        """
        if error.code in LATER_CODES:
            return True
        now_s = self._monotonic()
        count, since_s = self._refusals.get(address, (0, now_s))
        self._refusals[address] = count + 1, since_s
        for member in list(self._members.values()):
            addresses = self._addresses_of(member)
            if address in addresses and all(map(self._refuses, addresses)):
                member.refused(error)
        if error.remark in self._told:
            return False
        if len(self._told) >= TOLD_MAX:
            self._told.clear()
        self._told.add(error.remark)
        return True

    def _refuses(self, address: str) -> bool:
        """Return whether the broker has refused heartbeats for so long that it will go on so."""
        count, since_s = self._refusals.get(address, (0, 0.0))
        return count >= REFUSALS_MIN and self._monotonic() - since_s >= REFUSED_S

    def _addresses_of(self, member: Member) -> set[str]:
        """Return the brokers that a member gets messages of its topics from."""
        data = member.consumer_data()
        wanted = [] if data is None else data.subscription_data_set
        routes = [
            self._routes.known(each.topic) for each in wanted if not is_retry_topic(each.topic)
        ]
        return {
            address
            for route in routes
            if route is not None
            for broker in route.brokers.values()
            for address in broker.values()
        }
