"""Who may connect to an HA port. No I/O.

haAllowedAddresses set                 the addresses on it
access control, or TLS is enforced     this machine alone: the port knows neither, and gives
                                       away every message
else                                   everybody, as in RocketMQ

Who may connect is believed: how far it has the log, and which replica it is. The address that a
replica is registered under is not compared: machines have several, and it would prove no more.
"""

from __future__ import annotations

from typing import Final

from skylarkmq.broker.base.addresses import AddressList
from skylarkmq.broker.net.addresses import is_loopback

COMINGS_TOLD_MAX: Final = 10
"""Lines in a minute about peers of an address that come, and as many about those that go."""


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
