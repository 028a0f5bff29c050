"""Puts the gRPC service of a broker together.

Loaded by a broker whose configuration has `grpcListenPort`, and by no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skylarkmq.broker.access import rpc_rights
from skylarkmq.broker.access.rpc_control import RpcAccess
from skylarkmq.broker.forwarding.cluster import ClusterRpcs
from skylarkmq.broker.forwarding.cluster_sessions import (
    Cluster,
    ClusterRouteRpcs,
    ClusterSessionRpcs,
)
from skylarkmq.broker.forwarding.forwarder import Forwarder
from skylarkmq.broker.forwarding.upstream import Upstreams
from skylarkmq.broker.grpc.calls import RpcHandlers
from skylarkmq.broker.grpc.endpoint import (
    EndpointLimits,
    GrpcEndpoint,
    Refusal,
    Service,
    refuse_nothing,
)
from skylarkmq.broker.grpc.endpoints import OwnEndpoints
from skylarkmq.broker.grpc.other_brokers import OtherBrokers
from skylarkmq.broker.grpc.recall import RecallHandlers
from skylarkmq.broker.grpc.receiving import Receiving
from skylarkmq.broker.grpc.routes import RouteRpcs
from skylarkmq.broker.grpc.sending import SendHandlers
from skylarkmq.broker.grpc.sessions import Sessions
from skylarkmq.broker.grpc.telemetry import SessionRpcs
from skylarkmq.broker.grpc.transactions import TransactionHandlers
from skylarkmq.broker.metrics.runtime_info import GrpcPlaces
from skylarkmq.broker.net.server import PeerLimits
from skylarkmq.broker.transaction.verdicts import Verdicts
from skylarkmq.protocol.bodies.topic import TopicConfig

if TYPE_CHECKING:
    from skylarkmq.broker.components import BrokerParts
    from skylarkmq.broker.net.router import Router
    from skylarkmq.broker.net.tls_context import OutgoingTls


def message_handlers(parts: BrokerParts, sessions: Sessions) -> list[RpcHandlers]:
    """Return what handles the calls about messages of this broker."""
    send, clock, peer_clock = parts.send, parts.context.clock, parts.peer_clock
    verdicts = Verdicts(parts.store, parts.transactions, clock, parts.stats)
    return [
        Receiving(parts.context, parts.pop, sessions.receives, peer_clock),
        SendHandlers(parts.context, send, parts.transactions),
        TransactionHandlers(verdicts, parts.config.broker_name),
        RecallHandlers(parts.context, send.store_host),
    ]


def own_handlers(
    parts: BrokerParts, sessions: Sessions, own: OwnEndpoints, other_brokers: OtherBrokers
) -> list[RpcHandlers]:
    """Return what handles calls at an endpoint of this broker alone.

    Args:
        sessions: has the clients.
        own: where clients are told to find this broker.
        other_brokers: knows the other brokers.
    """
    clock, body_max = parts.context.clock, parts.config.store.max_message_size
    return [
        RouteRpcs(parts.context, own, lambda topic: parts.as_registered(topic), other_brokers.of),
        SessionRpcs(sessions, parts.groups, clock, parts.peer_clock, body_max),
        *message_handlers(parts, sessions),
    ]


def cluster_handlers(
    parts: BrokerParts,
    sessions: Sessions,
    own: OwnEndpoints,
    other_brokers: OtherBrokers,
    forwarder: Forwarder,
    refusal: Refusal,
) -> list[RpcHandlers]:
    """Return what handles calls at an endpoint that stands for several brokers.

    Args:
        sessions, own, other_brokers: as of `own_handlers`.
        refusal: tells what this broker refuses of what it would handle itself.
    """
    name, body_max = parts.config.broker_name, parts.config.store.max_message_size
    cluster = Cluster(
        name, parts.topics, lambda: parts.leads, other_brokers, forwarder, parts.peer_clock
    )
    return [
        ClusterRouteRpcs(parts.context, own, lambda topic: parts.as_registered(topic), cluster),
        ClusterSessionRpcs(sessions, parts.groups, parts.context.clock, cluster, body_max),
        ClusterRpcs(
            message_handlers(parts, sessions),
            forwarder,
            other_brokers,
            name,
            lambda topic: _told(parts, topic),
            refusal,
            sessions.receives,
        ),
    ]


def _told(parts: BrokerParts, name: str) -> TopicConfig | None:
    """Return a topic as clients are told of it: its permission may be withheld."""
    topic = parts.topics.get(name)
    return None if topic is None else parts.as_registered(topic)


def _access(parts: BrokerParts) -> RpcAccess | None:
    if parts.access_files is None:
        return None
    origins = parts.pop.registry.topics_of_retries
    access = RpcAccess(rpc_rights.RPCS, parts.stats, origins)
    parts.access_files.serve(access)
    return access


def make_endpoint(
    parts: BrokerParts, router: Router, own: str, tls: OutgoingTls | None
) -> GrpcEndpoint:
    """Return the endpoint over the parts of a broker; it does not listen yet.

    Args:
        own: `host:port` where it will listen, as the broker knows itself.
        router: says what the broker refuses just now, as a replica that begins to lead.
        tls: of connections to other brokers; None: plain text.
    """
    config, access = parts.config, _access(parts)
    sessions = Sessions(
        parts.consumers,
        parts.producers,
        parts.context.clock,
        parts.peer_clock,
        config.store.max_message_size,
        config.broker_name,
    )
    # Nothing is prolonged any more for a client that has gone.
    sessions.release = parts.pop.settlement.release_client
    forwards = config.grpc_proxy_mode == "CLUSTER"
    endpoints = OwnEndpoints(own, config.grpc_advertised_address, forwards=forwards)
    parts.info.grpc = GrpcPlaces(endpoints.address, own)
    other_brokers = OtherBrokers(
        lambda name: name == config.broker_name and parts.leads,
        parts.peer_clock,
        lambda: parts.find_routes,
        lambda address: parts.find_grpc(address),
    )
    services: list[Service] = [sessions, other_brokers]
    forwarder: Forwarder | None = None
    refusal: Refusal = router.refusal
    if forwards:
        upstreams = Upstreams(parts.peer_clock, tls)
        services.append(upstreams)
        forwarder = Forwarder(upstreams, parts.peer_clock, own, access)
        handlers = cluster_handlers(parts, sessions, endpoints, other_brokers, forwarder, refusal)
        refusal = refuse_nothing  # of what is forwarded
    else:
        handlers = own_handlers(parts, sessions, endpoints, other_brokers)
    endpoint = GrpcEndpoint(
        handlers,
        parts.peer_clock,
        parts.stats,
        limits=EndpointLimits(config.store.max_message_size, PeerLimits.of(config)),
        access=access,
        refusal=refusal,
        gate=parts.fast_failure,
    )
    if parts.access_files is not None:
        parts.access_files.add_revoker(endpoint.revoke)
        parts.access_files.add_revoker(sessions.revoke)
    endpoint.services += services
    endpoint.forwards = forwards
    if forwarder is not None:
        endpoint.forwarded = forwarder.answered
        endpoint.end_polls = forwarder.end_polls
    return endpoint
