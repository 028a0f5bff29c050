"""Serves the application on a socket until it is told to stop."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Generator
from typing import Final

import uvicorn
from starlette.applications import Starlette

LIMIT_S: Final = 2
"""How long open answers, live tails among them, may take at the end."""
CONNECTIONS_MAX: Final = 256


class ConsoleServer(uvicorn.Server):
    """One listener and its application."""

    def __init__(self, app: Starlette, listener: socket.socket) -> None:
        self.listener = listener
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                log_level=logging.WARNING,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                ws="none",
                http="h11",
                lifespan="on",
                limit_concurrency=CONNECTIONS_MAX,
                timeout_graceful_shutdown=LIMIT_S,
            )
        )

    @property
    def address(self) -> str:
        """Where it listens, for a browser."""
        host, port = self.listener.getsockname()[:2]
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the one who runs this server."""
        yield

    async def run_until_told(self) -> None:
        """Serve until `should_exit` is set."""
        await self.serve(sockets=[self.listener])


def listen(host: str, port: int) -> socket.socket:
    """Return a listener; port 0 picks a free one.

    Raises:
        OSError: the address is taken, or is not this machine's.
    """
    return socket.create_server(
        (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
    )
