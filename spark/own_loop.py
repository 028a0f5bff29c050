"""The SDK's connections, routes and name servers on a loop that runs only when it is told to.

    client's thread   begin: a request is written     ... Spark works ...     wait: the loop runs
    kernel            answers gather in the socket's buffer meanwhile

So nothing happens between calls: a connection that the peer closed is seen at the next turn, and a
deadline counts only while a call waits. One thread at a time.
"""

from __future__ import annotations

import asyncio
import math
import os
import ssl
from collections.abc import Callable
from random import Random
from typing import Final

from skylarkmq.client.errors import ConnectionFailed, RocketMQError
from skylarkmq.client.wire.acl_hook import Signer
from skylarkmq.client.wire.api_consumer import ConsumerApi
from skylarkmq.client.wire.nameserver import NameServers
from skylarkmq.client.wire.route import RouteTable
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.client import RemotingClient
from skylarkmq.remoting.connection import Connection
from skylarkmq.remoting.send_answer import StoredAnswer, as_command
from skylarkmq.remoting.stream import AsyncioNetwork
from skylarkmq.remoting.tls import ClientTls
from skylarkmq.spark.clock import BlockingClock, LoopClock
from skylarkmq.spark.settings import ConnectionSettings

LOOK_TURNS: Final = 3
"""Turns of the loop in which a connection that the peer closed is seen to be lost."""
TLS_OPTIONS_HINT: Final = (
    "Here these are the options tls.caFile, tls.serverName, addressMap, and tls.certFile with "
    "tls.keyFile"
)
TLS_FILES_HINT: Final = (
    "Are the files of tls.caFile, tls.certFile, tls.keyFile PEM files that are on this machine, "
    "driver and every executor, and is tls.keyPassword right?"
)


class Pending:
    """A request under way, good for one `wait`; implements the connection's `Waiter`."""

    __slots__ = ("connection", "deadline_s", "opaque", "outcome", "wake")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.deadline_s = math.inf
        """Infinite before a call waits: the answer may lie there while Spark works on a block."""
        self.opaque = 0
        self.outcome: RemotingCommand | RocketMQError | None = None
        self.wake: Callable[[], None] | None = None
        """Called when there is an outcome, while a call waits."""

    @property
    def address(self) -> str:
        """The peer that it went to."""
        return self.connection.address

    def answered(self, answer: RemotingCommand) -> None:
        self._end(answer)

    def stored(self, answer: StoredAnswer) -> None:
        self._end(as_command(answer))

    def failed(self, error: RocketMQError) -> None:
        self._end(error)

    def _end(self, outcome: RemotingCommand | RocketMQError) -> None:
        self.outcome = outcome
        if self.wake is not None:
            self.wake()


class OwnLoop:
    """What a client has open in its process: an event loop, and the SDK's parts on it."""

    def __init__(self, settings: ConnectionSettings, clock: BlockingClock) -> None:
        """Read the files of certificates; connect at the first call."""
        tls = client_tls(settings)
        self.process_id = os.getpid()
        # Not uvloop: a write is to leave at once, while the loop stands still.
        self.loop = asyncio.SelectorEventLoop()
        self.clock = LoopClock(self.loop, clock)
        self.remoting = RemotingClient(
            AsyncioNetwork(tls),
            self.clock,
            random := Random(),
            "json",
            _pass_over,
            sign=Signer(settings.credentials).sign if settings.credentials else None,
        )
        timeout_s = settings.request_timeout_s
        self.source = NameServers(
            self.remoting, settings.name_servers, timeout_s, random, self.clock
        )
        self.routes = RouteTable(self.source, settings.dialled, self.clock, _pass_over)
        self.consumers = ConsumerApi(self.remoting)
        self.run = self.loop.run_until_complete

    def look(self) -> None:
        """Take what has come in, and notice connections that were lost."""
        for _ in range(LOOK_TURNS):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def close(self) -> None:
        """Close all connections."""
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.run(self.routes.stop())
        self.run(self.remoting.stop())
        self.look()
        self.loop.close()


def _pass_over(*_: object) -> None:
    """Do nothing: brokers push to members of groups, and this client is not one."""


def client_tls(settings: ConnectionSettings) -> ClientTls:
    tls = settings.tls
    if tls is None:
        return ClientTls(None)
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
        if not tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if tls.cert_file is not None:
            # A callable: OpenSSL would ask the terminal for a password that was not given.
            context.load_cert_chain(tls.cert_file, tls.key_file, lambda: tls.key_password or "")
    except (OSError, ValueError) as error:
        why = f"TLS is not set up: {error}"
        raise ConnectionFailed(settings.text, why, hint=TLS_FILES_HINT) from error
    return ClientTls(context, tls.server_name, settings_hint=TLS_OPTIONS_HINT)
