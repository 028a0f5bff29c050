"""Administration of replicas that elect their master: how one stands (30001), a planned switch-over
(30002), and the forced failover, which may lose messages (30003).

The replica itself says whether it may: 30002 is for the one that leads, 30003 for one of a set
without a master. A broker that is no replica refuses all three with 604.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.net.handlers import Answer, Call, NoFields, handles, refused
from skylarkmq.broker.requests.processor import Context, Processor
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import shown
from skylarkmq.protocol.headers.replica import (
    ForceFailoverRequestHeader,
    ForceFailoverResponseHeader,
    SwitchOverRequestHeader,
    SwitchOverResponseHeader,
)

if TYPE_CHECKING:
    from skylarkmq.broker.replication.failover.replica_status import Replicated

log = logging.getLogger(__name__)


class AdminReplicaProcessor(Processor):
    """Tells how a replica stands, and changes who leads. Loop thread."""

    def __init__(
        self, context: Context, replica: Callable[[], Replicated | None], stats: BrokerStats
    ) -> None:
        """Take what is administered.

        Args:
            replica: None, as long as the broker is none.
        """
        super().__init__(context)
        self._replica = replica
        self._stats = stats

    @handles(RequestCode.GET_REPLICA_STATUS, NoFields)
    def get_status(self, call: Call[NoFields]) -> Answer:
        """Answer where the replica stands (30001)."""
        return Answer(self._required().status())

    @handles(RequestCode.SWITCH_OVER, SwitchOverRequestHeader)
    async def switch_over(self, call: Call[SwitchOverRequestHeader]) -> Answer:
        """Let another member lead; answered when it does (30002)."""
        replica, target = self._required(), call.header.target or ""
        log.warning(
            "%s wants %s to lead", call.remote_address, shown(target) if target else "another one"
        )
        await replica.switch_over(target)
        status = replica.status()
        return Answer(header=SwitchOverResponseHeader(master=status.master, term=status.term))

    @handles(RequestCode.FORCE_FAILOVER, ForceFailoverRequestHeader)
    async def force_failover(self, call: Call[ForceFailoverRequestHeader]) -> Answer:
        """Lead, though others may know more (30003)."""
        replica = self._required()
        if not call.header.accept_loss:
            raise refused(
                "a forced failover may lose messages that were acknowledged: it is done with "
                "acceptLoss=true alone"
            )
        log.warning("%s forces this replica to lead, and accepts the loss", call.remote_address)
        at_risk = await replica.force()
        self._stats.forced_failovers += 1
        self._stats.messages_at_risk += at_risk
        term = replica.status().term
        told = f"this replica leads in term {term} by force; messages at risk: {at_risk}"
        log.critical("%s", told)
        return Answer(
            header=ForceFailoverResponseHeader(messages_at_risk=at_risk, term=term), remark=told
        )

    def _required(self) -> Replicated:
        replica = self._replica()
        if replica is None:
            raise refused(
                f"{self._config.broker_name} is no replica under a controller: its configuration "
                "has no controllerEndpoints",
                ResponseCode.ILLEGAL_OPERATION,
            )
        return replica
