"""Where clients find this broker: what a route names as the endpoints of its queues.

Clients send everything that is about a queue to the endpoints of its broker in the route. A wrong
address there is a client that hangs at its start and says nothing.

    grpcAdvertisedAddress is set    that, whatever a client says
    a client names one address      that again: it has just reached this broker by it, through
                                    whatever translates addresses in between
    it names several                this broker's own, if it is among them; else all of them, which
                                    lead to one broker or to brokers behind one another. Where calls
                                    are forwarded, all of them: the others forward as well, and one
                                    that is lost leaves the client the others
    it names none                   this broker's own: brokerIP1 and grpcListenPort

Unlike RocketMQ's proxy beside a broker, which says its own address to everybody.
Source: apache/rocketmq@rocketmq-all-5.3.3 proxy/.../grpc/v2/route/RouteActivity.java
(convertToAddressList), proxy/.../service/route/ClusterTopicRouteService.java
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from skylarkmq.broker.grpc.calls import RpcRefused
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code

ADDRESSES_MAX: Final = 16
"""Addresses of one access point."""
_DOMAIN: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})")

Place = tuple[str, int]  # (host, port)


def place_of(address: str) -> Place:
    """Return host and port of `host:port`; an IPv6 host may have brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class OwnEndpoints:
    """What clients are told of this broker."""

    def __init__(self, own: str, advertised: str | None = None, *, forwards: bool = False) -> None:
        """Take the addresses, each `host:port`.

        Args:
            own: as the broker knows itself.
            advertised: as the configuration has it.
            forwards: calls about other brokers' queues are forwarded from here.
        """
        self._own = place_of(advertised or own)
        self._is_fixed = bool(advertised)
        self._forwards = forwards
        self.address = advertised or own

    def told(self, asked: schema_pb2.Endpoints) -> schema_pb2.Endpoints:
        """Return the endpoints for a client that has reached this broker by others.

        Raises:
            RpcRefused: ILLEGAL_ACCESS_POINT.
        """
        if len(asked.addresses) > ADDRESSES_MAX:
            why = f"{len(asked.addresses)} addresses are too many, {ADDRESSES_MAX} are allowed"
            raise RpcRefused(Code.ILLEGAL_ACCESS_POINT, why)
        places = [(address.host, address.port) for address in asked.addresses]
        for host, port in places:
            if _scheme(host) is None or not 0 < port <= 0xFFFF:
                why = f"an endpoint is no address: {host[:64]!a}, port {port}"
                raise RpcRefused(Code.ILLEGAL_ACCESS_POINT, why)
        is_one_of_them = len(places) > 1 and self._own in places and not self._forwards
        if self._is_fixed or not places or is_one_of_them:
            places = [self._own]
        return endpoints(places)


def endpoints(places: Iterable[Place]) -> schema_pb2.Endpoints:
    """Return addresses under the scheme that fits them; those of another scheme are left out.

    Clients refuse several hosts under a domain name's scheme, so of those there is one.
    """
    told = schema_pb2.Endpoints()
    for host, port in places:
        scheme = _scheme(host)
        if not told.addresses:
            told.scheme = scheme or schema_pb2.DOMAIN_NAME
        elif scheme != told.scheme or scheme == schema_pb2.DOMAIN_NAME:
            continue
        told.addresses.add(host=host, port=port)
    return told


def _scheme(host: str) -> schema_pb2.AddressScheme | None:
    """Return the scheme of a host, None when it can be none."""
    try:
        is_v6 = ip_address(host).version == 6
    except ValueError:
        return schema_pb2.DOMAIN_NAME if _DOMAIN.fullmatch(host) else None
    return schema_pb2.IPv6 if is_v6 else schema_pb2.IPv4
