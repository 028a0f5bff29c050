"""Calls of other brokers' endpoints."""

from __future__ import annotations

from skylarkmq.broker.grpc.connection import GrpcStatus


class UpstreamError(Exception):
    """A call of another endpoint that did not end well.

    Attributes:
        status: how gRPC sees it.
        reached: False: it surely did not arrive there.
    """

    def __init__(self, status: GrpcStatus, why: str, *, reached: bool) -> None:
        super().__init__(why)
        self.status = status
        self.reached = reached
