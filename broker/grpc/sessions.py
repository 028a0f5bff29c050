"""The clients of the gRPC service, by their ids, and their memberships in groups.

    settings      a client is known by them; they count until others come over any of its streams
    heartbeats    every 10 s: it is still there, and in its groups
    receives      a consumer is a member by what it asks for, too: after this broker's start SDKs
                  send their settings when they open their stream anew, some of them minutes later,
                  and of a further topic of a simple consumer they tell after minutes
    termination   it leaves, and what it holds may be given to others soon
    silence       of 120 s: the same

The end of a stream ends nothing: it is opened again. A producer is in a producer group for each of
its topics, under the topic's name, as its half messages are. A consumer is in one group, and not
in it while others consume the group in another way: then its heartbeats and receives say so, and
its settings are answered all the same, for no client starts without.

Unlike RocketMQ: clients and what they say are bounded; and a receive without settings is served.

Source: apache/rocketmq@rocketmq-all-5.3.3 proxy/.../grpc/v2/client/ClientActivity.java,
proxy/.../grpc/v2/common/GrpcClientSettingsManager.java
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from skylarkmq.broker.access.revoking import Revoked, access_key_of
from skylarkmq.broker.groups.consumer_manager import ConsumerManager
from skylarkmq.broker.groups.producer_manager import ProducerManager
from skylarkmq.broker.grpc.calls import Call, RpcRefused
from skylarkmq.broker.grpc.peer import LEAVES, VERSION, GrpcPeer
from skylarkmq.broker.grpc.settings import ClientSettings, subscription_of, with_subscription
from skylarkmq.common.clock import Clock
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.host_address import network_at
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code

log = logging.getLogger(__name__)

SILENT_S: Final = 120.0
SCAN_INTERVAL_S: Final = 10.0
CLIENTS_MAX: Final = 65_536
CLIENTS_PER_HOST_MAX: Final = 16_384
ALL_SETTINGS_SIZE_MAX: Final = 64 << 20
"""Bytes of what all clients say of themselves."""

Key = tuple[str, str]  # (access key, client id): an account says nothing for another one
Release = Callable[[str, str], None]  # (client id, group)


class Sessions:
    """Knows the clients. Loop thread.

    Attributes:
        release: told of a consumer that has gone, with its group: what it holds is free.
    """

    def __init__(
        self,
        consumers: ConsumerManager,
        producers: ProducerManager,
        clock: Clock,
        peer_clock: Clock,
        body_max: int,
        broker_name: str,
    ) -> None:
        """Begin without a client.

        Args:
            clock: tells the versions of subscriptions.
            peer_clock: what clients' silence is measured by.
            body_max: bytes of a body that the broker takes.
        """
        self.release: Release = lambda client_id, group: None
        self._releases = True
        self._consumers = consumers
        self._producers = producers
        self._clock = clock
        self._peer_clock = peer_clock
        self._body_max = body_max
        self._broker_name = broker_name
        self._peers: dict[Key, GrpcPeer] = {}
        self._hosts: Counter[bytes] = Counter()  # clients by the address that they came from first
        self._host_of: dict[GrpcPeer, bytes] = {}
        self._size = 0  # of all settings
        self._timer = IntervalTimer(peer_clock, SCAN_INTERVAL_S, self.scan)

    def __len__(self) -> int:
        """Return how many clients are known."""
        return len(self._peers)

    def start(self) -> None:
        """Look for silent clients from now on."""
        self._timer.start()

    def stop(self) -> None:
        """End all clients' memberships; nothing they hold is given to others."""
        self._timer.stop()
        self._releases = False
        for peer in list(self._peers.values()):
            peer.close("shutdown")
        self._releases = True

    def find(self, call: Call) -> GrpcPeer | None:
        """Return the client that makes a call, None when it is not known."""
        return self._peers.get(key_of(call.client_id, call.account))

    def settle(self, call: Call, settings: ClientSettings) -> GrpcPeer:
        """Take in what a client's settings say, and join its groups where it may.

        Raises:
            RpcRefused: TOO_MANY_REQUESTS; there is no room for it.
        """
        peer = self._keep(call, settings)
        with contextlib.suppress(RemoteProtocolError):  # it was logged, and its calls will be told
            self._join(peer)
        return peer

    def beat(self, call: Call) -> None:
        """Take a heartbeat.

        Raises:
            RpcRefused: UNRECOGNIZED_CLIENT_TYPE; nothing is known of the client.
            RemoteProtocolError: NO_PERMISSION; others consume its group in another way.
        """
        peer = self.find(call)
        if peer is None:
            raise RpcRefused(
                Code.UNRECOGNIZED_CLIENT_TYPE,
                "no settings of this client are known: they come first, by Telemetry",
            )
        peer.heard(call)
        self._join(peer)

    def receives(
        self, call: Call, group: str, topic: str, expression: schema_pb2.FilterExpression
    ) -> float:
        """Note that a client asks for messages; it is heard of, and a member from now on.

        Returns:
            How long it waits for other answers, s.

        Raises:
            RpcRefused: ILLEGAL_FILTER_EXPRESSION or TOO_MANY_REQUESTS, of a new client.
            RemoteProtocolError: NO_PERMISSION; others consume its group in another way.
        """
        peer = self.find(call)
        if peer is not None:
            settings = peer.settings
            if settings.group and settings.group != group:  # of one id, two groups
                self._consumers.check_mode(group, pops=True)
                return settings.request_timeout_s
            if settings.group and topic in settings.subscriptions:
                peer.heard(call)
                member = self._consumers.clients(group).get(peer)
                if member is None:
                    self._join(peer)
                else:
                    member.last_update_ms = int(peer.last_s * 1000)
                return settings.request_timeout_s
        before = None if peer is None else peer.settings
        subscription = subscription_of(topic, expression, self._clock.now_ms())
        settings = with_subscription(before, group, subscription)
        self._join(self._keep(call, settings))
        return settings.request_timeout_s

    def leave(self, call: Call) -> None:
        """Forget a client that says so; nothing happens to one that is not known."""
        peer = self.find(call)
        if peer is not None:
            peer.close(LEAVES)

    def revoke(self, revoked: Revoked) -> None:
        """Forget the clients who may less now: they come again as what they still are."""
        for peer in list(self._peers.values()):
            if revoked.takes_from((access_key_of(peer.account),), peer.remote_address):
                log.info("client %s may less now", shown(peer.client_id))
                peer.close("revoked")

    def scan(self) -> None:
        """Forget the clients that have been silent for too long."""
        before_s = self._peer_clock.monotonic() - SILENT_S
        for peer in [peer for peer in self._peers.values() if peer.last_s < before_s]:
            log.info("client %s is silent for %g s", shown(peer.client_id), SILENT_S)
            peer.close("idle_timeout")

    def _keep(self, call: Call, settings: ClientSettings) -> GrpcPeer:
        peer = self.find(call)
        known = 0 if peer is None else peer.settings.size
        if self._size + settings.size - known > ALL_SETTINGS_SIZE_MAX:
            raise _no_room(f"clients' settings have {self._size} bytes")
        if peer is None:
            peer = self._add(call, settings)
        else:
            peer.heard(call)
            self._change(peer, settings)
        self._size += settings.size - known
        return peer

    def _add(self, call: Call, settings: ClientSettings) -> GrpcPeer:
        host = network_at(call.source)
        count = self._hosts[host]
        if len(self._peers) >= CLIENTS_MAX or count >= CLIENTS_PER_HOST_MAX:
            raise _no_room(f"there are {len(self._peers)} clients, {count} of {call.source}")
        peer = GrpcPeer(call, settings, self._peer_clock, self._body_max, self._broker_name)
        self._peers[key_of(call.client_id, call.account)] = peer
        self._hosts[host] += 1
        self._host_of[peer] = host
        peer.add_close_listener(self._gone)
        return peer

    def _change(self, peer: GrpcPeer, settings: ClientSettings) -> None:
        """Let a client be in the groups of its new settings alone."""
        before, peer.settings = peer.settings, settings
        for topic in set(before.topics).difference(settings.topics):
            self._producers.unregister(peer, topic)
        if before.group and before.group != settings.group:
            self._consumers.unregister(peer, before.group)
            self.release(peer.client_id, before.group)

    def _join(self, peer: GrpcPeer) -> None:
        settings = peer.settings
        for topic in settings.topics:
            self._producers.register(peer, peer.client_id, peer.language, VERSION, topic)
        if not settings.group:
            return
        try:
            changed = self._consumers.register(
                peer, peer.client_id, peer.language, VERSION, settings.consumer_data, divides=False
            )
        except RemoteProtocolError as error:
            if not peer.is_told:
                peer.is_told = True
                log.warning(
                    "client %s at %s may not consume yet: %s",
                    shown(peer.client_id),
                    peer.remote_address,
                    error.remark,
                )
            raise
        peer.is_told = False
        if changed:
            asyncio.get_running_loop().call_soon(self._consumers.tell, settings.group)

    def _gone(self, peer: GrpcPeer) -> None:
        del self._peers[key_of(peer.client_id, peer.account)]
        host = self._host_of.pop(peer)
        self._hosts[host] -= 1
        if not self._hosts[host]:
            del self._hosts[host]
        self._size -= peer.settings.size
        if peer.settings.group and self._releases:
            self.release(peer.client_id, peer.settings.group)


def key_of(client_id: str, account: object) -> Key:
    return access_key_of(account), client_id


def _no_room(why: str) -> RpcRefused:
    return RpcRefused(Code.TOO_MANY_REQUESTS, f"{why}, there is no room for another; try later")
