"""Where a slave finds its master: by its configuration, else as name servers say.

A name server tells both addresses of the master in its answer to each registration of a slave. One
that does not know the master, or not yet, tells nothing, and what was known stays: another may know
it, and the master may only be starting again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.protocol.errors import shown
from skylarkmq.protocol.headers.route import RegisterBrokerResponseHeader

log = logging.getLogger(__name__)

ADDRESS_SIZE_MAX: Final = 255


class MasterAddress:
    """The addresses of a slave's master, each `host:port`; None while unknown. Loop thread.

    Attributes:
        address: where it answers requests.
        listeners: called when one of the two has changed.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.address: str | None = None
        self.listeners: list[Callable[[], None]] = []
        self._configured = config.store.ha_master_address
        self._told: str | None = None

    @property
    def ha_address(self) -> str | None:
        """Where it sends its log to slaves."""
        return self._configured or self._told

    def told(self, answer: RegisterBrokerResponseHeader) -> None:
        """Take what a name server says about the master."""
        address, ha_address = answer.master_addr, answer.ha_server_addr
        if not address or not ha_address or max(len(address), len(ha_address)) > ADDRESS_SIZE_MAX:
            return
        if (address, ha_address) == (self.address, self._told):
            return
        log.info("the master is %s, and its log comes from %s", shown(address), shown(ha_address))
        self.address, self._told = address, ha_address
        for listener in self.listeners:
            listener()
