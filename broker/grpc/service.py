"""Puts the gRPC service of a broker together.

Loaded by a broker whose configuration has `grpcListenPort`, and by no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skylarkmq.broker.access import rpc_rights
from skylarkmq.broker.access.rpc_control import RpcAccess
from skylarkmq.broker.grpc.calls import RpcHandlers
from skylarkmq.broker.grpc.endpoint import EndpointLimits, GrpcEndpoint
from skylarkmq.broker.grpc.recall import RecallHandlers
from skylarkmq.broker.grpc.sending import SendHandlers
from skylarkmq.broker.grpc.transactions import TransactionHandlers
from skylarkmq.broker.net.server import PeerLimits
from skylarkmq.broker.transaction.verdicts import Verdicts

if TYPE_CHECKING:
    from skylarkmq.broker.components import BrokerParts
    from skylarkmq.broker.net.router import Router


def rpc_handlers(parts: BrokerParts) -> list[RpcHandlers]:
    """Return what handles the calls of clients of RocketMQ 5."""
    send, clock = parts.send, parts.context.clock
    verdicts = Verdicts(parts.store, parts.transactions, clock, parts.stats)
    return [
        SendHandlers(parts.context, send, parts.transactions),
        TransactionHandlers(verdicts),
        RecallHandlers(parts.context, send.store_host),
    ]


def make_endpoint(parts: BrokerParts, router: Router) -> GrpcEndpoint:
    """Return the endpoint over the parts of a broker; it does not listen yet.

    Args:
        router: says what the broker refuses just now, as a replica that begins to lead.
    """
    config = parts.config
    access = None
    if parts.access_files is not None:
        access = RpcAccess(rpc_rights.RPCS, parts.stats, parts.peer_clock)
        parts.access_files.serve(access)
    return GrpcEndpoint(
        rpc_handlers(parts),
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
    )
