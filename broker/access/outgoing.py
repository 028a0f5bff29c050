"""The connections that a broker opens: to name servers, and a slave's to its master."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from skylarkmq.broker.access.files import AccessFiles
from skylarkmq.broker.net.tls_context import OutgoingTls
from skylarkmq.common.clock import Clock
from skylarkmq.common.first_use import on_first_use
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.remoting.client import RemotingClient
from skylarkmq.remoting.connection import Connection
from skylarkmq.remoting.stream import AsyncioNetwork

if TYPE_CHECKING:
    import skylarkmq.protocol.signature as signatures
else:  # where there is access control
    signatures = on_first_use("skylarkmq.protocol.signature")


def outgoing_client(
    clock: Clock,
    tls: OutgoingTls | None,
    access: AccessFiles | None,
    on_lost: Callable[[str], None] | None = None,
) -> RemotingClient:
    """Return a client without connections; they are made by its calls.

    Args:
        tls: for the connections; None: plain text.
        access: has the account of an admin, which signs the requests.
        on_lost: told the address when a connection has ended.
    """

    def sign(command: RemotingCommand) -> None:
        account = None if access is None else access.rules.admin()
        if account is not None:
            signatures.sign_request(command, account.access_key, account.secret_key)

    return RemotingClient(
        AsyncioNetwork(None if tls is None else tls.client),
        clock,
        Random(),
        "json",
        answer_push,
        sign=None if access is None else sign,
        on_lost=on_lost,
    )


def answer_push(connection: Connection, request: RemotingCommand) -> None:
    """Answer the other end, which may ask whether this broker is still there."""
    if not request.is_oneway:
        code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        connection.reply(request.reply(code, "a broker answers no requests on this connection"))
