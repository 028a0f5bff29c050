"""Connections by address: made at first use, looked at before each use, made again when lost.

Requests to brokers are signed when there are credentials; those to name servers never. One thread
at a time; a process that was forked drops what its parent opened, without a word to the peers.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from skylarkmq.client.errors import ConnectionFailed, RocketMQError
from skylarkmq.client.wire.acl_hook import Signer
from skylarkmq.client.wire.tls import ClientTls
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.spark.clock import BlockingClock
from skylarkmq.spark.remoting.connection import Connection, connect
from skylarkmq.spark.settings import ConnectionSettings, TlsSettings

IDLE_MAX_S: Final = 60.0
"""Brokers close a connection after 120 s without a request."""
UNLOOKED_S: Final = 0.5
"""How long after its last answer a connection is taken to be alive without a look."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A request under way; good for one `wait`."""

    connection: Connection
    opaque: int

    @property
    def address(self) -> str:
        """Whom it went to."""
        return self.connection.address


class Connections:
    """All connections of one client."""

    def __init__(self, settings: ConnectionSettings, clock: BlockingClock) -> None:
        """Connect to nobody yet; files of certificates are read with the first connection."""
        self._settings = settings
        self._clock = clock
        self._signer = Signer(settings.credentials) if settings.credentials else None
        self._name_servers = frozenset(settings.name_servers)
        self._tls: ClientTls | None = None
        self._open: dict[str, Connection] = {}
        self._process_id = os.getpid()

    def to(self, address: str, deadline_s: float) -> Connection:
        """Return a connection to `address`, connecting if need be.

        Raises:
            ConnectionFailed: no connection; TlsError of it.
        """
        if self._process_id != os.getpid():
            self.close()
            self._process_id = os.getpid()
        found = self._open.get(address)
        if found is not None:
            idle_s = self._clock.monotonic() - found.used_s
            if not found.closed_why and (
                idle_s < UNLOOKED_S
                or not found.is_idle
                or (idle_s < IDLE_MAX_S and found.is_alive())
            ):
                return found
            found.close("the connection was idle or lost")
            del self._open[address]
        signer = None if address in self._name_servers else self._signer
        made = connect(address, self._clock, self._client_tls(address), signer, deadline_s)
        self._open[address] = made
        return made

    def begin(
        self, address: str, command: RemotingCommand, deadline_s: float, *, hold: bool = False
    ) -> Pending:
        """Send a request, connecting if need be; several may be under way.

        With `hold` it leaves with the next one, or with `send_held`.

        Raises:
            ConnectionFailed, RequestTimeout: not sent.
        """
        connection = self.to(address, deadline_s)
        return Pending(connection, connection.begin(command, deadline_s, hold=hold))

    def send_held(self, address: str, deadline_s: float) -> None:
        """Send what was held back for that peer; raises as `begin`, for all of it."""
        connection = self._open.get(address)
        if connection is not None:
            connection.send_held(deadline_s)

    def wait(self, pending: Pending, deadline_s: float) -> RemotingCommand:
        """Return the answer, whatever its code; raises as `Connection.wait`."""
        return pending.connection.wait(pending.opaque, deadline_s)

    def call(self, address: str, command: RemotingCommand, deadline_s: float) -> RemotingCommand:
        """Send a request and return its answer, whatever its code.

        Raises:
            ConnectionFailed, RequestTimeout, ProtocolError: there is none.
        """
        return self.wait(self.begin(address, command, deadline_s), deadline_s)

    def close(self) -> None:
        """Close all; later calls connect anew."""
        while self._open:
            _, connection = self._open.popitem()
            connection.close("the client was closed")

    def drop_idle(self, keep: Collection[str] = ()) -> None:
        """Close the connections that were idle for IDLE_MAX_S, or are lost."""
        now_s = self._clock.monotonic()
        for address, connection in list(self._open.items()):
            old = connection.is_idle and now_s - connection.used_s > IDLE_MAX_S
            if connection.closed_why or (old and address not in keep):
                connection.close("the connection was idle")
                del self._open[address]

    def _client_tls(self, address: str) -> ClientTls:
        if self._tls is None:
            tls = self._settings.tls
            try:
                context = None if tls is None else _context(tls)
            except (OSError, ValueError) as error:
                raise _no_context(address, error) from error
            self._tls = ClientTls(context, None if tls is None else tls.server_name)
        return self._tls


def _context(tls: TlsSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca_file)
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_file is not None:
        # A callable: OpenSSL would ask the terminal for a password that was not given.
        context.load_cert_chain(tls.cert_file, tls.key_file, lambda: tls.key_password or "")
    return context


def _no_context(address: str, error: Exception) -> RocketMQError:
    return ConnectionFailed(
        address,
        f"TLS is not set up: {error}",
        hint="Are the files of tls.caFile, tls.certFile, tls.keyFile PEM files that are on this "
        "machine, driver and every executor, and is tls.keyPassword right?",
    )
