"""Puts the gRPC service of a broker together.

Loaded by a broker whose configuration has `grpcListenPort`, and by no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skylarkmq.broker.access import rpc_rights
from skylarkmq.broker.access.rpc_control import RpcAccess
from skylarkmq.broker.grpc.calls import RpcHandlers
from skylarkmq.broker.grpc.endpoint import EndpointLimits, GrpcEndpoint
from skylarkmq.broker.grpc.endpoints import OwnEndpoints
from skylarkmq.broker.grpc.neighbours import Neighbours
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

if TYPE_CHECKING:
    from skylarkmq.broker.components import BrokerParts
    from skylarkmq.broker.net.router import Router


def rpc_handlers(
    parts: BrokerParts, sessions: Sessions, own: OwnEndpoints, neighbours: Neighbours
) -> list[RpcHandlers]:
    """Return what handles the calls of clients of RocketMQ 5.

    Args:
        sessions: has the clients.
        own: where clients are told to find this broker.
        neighbours: knows where topics are beside.
    """
    send, clock, peer_clock = parts.send, parts.context.clock, parts.peer_clock
    body_max = parts.config.store.max_message_size
    verdicts = Verdicts(parts.store, parts.transactions, clock, parts.stats)
    return [
        RouteRpcs(parts.context, own, lambda topic: parts.as_told(topic), neighbours.of),
        SessionRpcs(sessions, parts.groups, clock, peer_clock, body_max),
        Receiving(parts.context, parts.pop, sessions.receives, peer_clock),
        SendHandlers(parts.context, send, parts.transactions),
        TransactionHandlers(verdicts, parts.config.broker_name),
        RecallHandlers(parts.context, send.store_host),
    ]


def make_endpoint(parts: BrokerParts, router: Router, own: str) -> GrpcEndpoint:
    """Return the endpoint over the parts of a broker; it does not listen yet.

    Args:
        own: `host:port` where it will listen, as the broker knows itself.
        router: says what the broker refuses just now, as a replica that begins to lead.
    """
    config = parts.config
    access = None
    if parts.access_files is not None:
        access = RpcAccess(rpc_rights.RPCS, parts.stats, parts.peer_clock)
        parts.access_files.serve(access)
    sessions = Sessions(
        parts.consumers,
        parts.producers,
        parts.context.clock,
        parts.peer_clock,
        config.store.max_message_size,
        config.broker_name,
    )
    sessions.release = parts.pop.release_client
    endpoints = OwnEndpoints(own, config.grpc_advertised_address)
    parts.info.grpc = GrpcPlaces(endpoints.address, own)
    neighbours = Neighbours(
        lambda name: name == config.broker_name and parts.leads,
        parts.peer_clock,
        lambda: parts.find_routes,
        lambda address: parts.find_grpc(address),
    )
    endpoint = GrpcEndpoint(
        rpc_handlers(parts, sessions, endpoints, neighbours),
        parts.peer_clock,
        parts.stats,
        limits=EndpointLimits(
            config.store.max_message_size,
            PeerLimits(
                config.server_channel_max_idle_time_seconds,
                config.max_connections,
                config.connections_per_address,
            ),
            config.max_inbound_buffered,
            config.max_outbound_buffered,
        ),
        access=access,
        refusal=router.refusal,
        gate=parts.fast_failure,
    )
    endpoint.hands_on = config.grpc_proxy_mode == "CLUSTER"
    endpoint.services += (sessions, neighbours)
    return endpoint
