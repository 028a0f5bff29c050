"""Gives back every byte it gets: what the event loop and the kernel cost by themselves."""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop


class Echo(asyncio.Protocol):
    """One read, one write."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        uvloop.run(serve())
    except KeyboardInterrupt:
        sys.exit(0)
