"""Who may connect to an HA port, and how often the log tells of each one. No I/O.

haAllowedAddresses set                 the addresses on it
access control, or TLS is enforced     this machine alone: the port knows neither, and gives
                                       away every message
else                                   everybody, as in RocketMQ

Who may connect is believed: how far it has the log, and which replica it is. The address that a
replica is registered under is not compared: machines have several, and it would prove no more.
"""

from __future__ import annotations

import logging
from typing import Final

from skylarkmq.broker.base.addresses import AddressList
from skylarkmq.broker.net.addresses import is_loopback
from skylarkmq.common.clock import Clock

TOLD_INTERVAL_S: Final = 60.0
"""For which an address has one line of the log for each reason why it is refused."""
COMINGS_TOLD_MAX: Final = 10
"""Lines in that time about peers of an address that come, and as many about those that go."""
TOLD_MAX: Final = 256
"""Kinds and addresses that are remembered for that."""


def why_not_allowed(host: str, allowed: AddressList | None, only_local: bool) -> str:
    """Return why an address must not copy the log; "" when it may."""
    if allowed is not None:
        return "" if allowed.matches(host) else f"haAllowedAddresses does not have {host}"
    if not only_local or is_loopback(host.removeprefix("::ffff:")):
        return ""
    return (
        "access control or TLS protects the messages here, and this port knows neither: set "
        "haAllowedAddresses to the addresses of the slaves"
    )


class Telling:
    """Writes lines about peers into a log, not too many of a kind about one address."""

    def __init__(self, clock: Clock, log: logging.Logger) -> None:
        self._clock = clock
        self._log = log
        self._told: dict[tuple[str, str], tuple[float, int]] = {}  # until when, how many lines

    def tell(
        self, kind: str, peer: str, text: str, limit: int = 1, level: int = logging.WARNING
    ) -> None:
        """Log a line, unless the address has had `limit` of its kind lately.

        Args:
            peer: `host:port`.
        """
        now_s, key = self._clock.monotonic(), (kind, peer.rpartition(":")[0])
        until_s, count = self._told.get(key, (0.0, 0))
        if now_s >= until_s:
            until_s, count = now_s + TOLD_INTERVAL_S, 0
        if len(self._told) >= TOLD_MAX:
            self._told.clear()
        self._told[key] = until_s, count + 1
        if count < limit:
            self._log.log(level, "%s", text)
