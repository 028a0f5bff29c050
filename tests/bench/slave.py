"""Follows a broker as its slave does, and keeps nothing: what a slave costs the master."""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

from skylarkmq.broker.base.ha_protocol import PartDecoder, encode_report


class Slave(asyncio.Protocol):
    """Confirms everything that a read has brought."""

    def __init__(self) -> None:
        self._decoder = PartDecoder()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(encode_report(0))
        print("connected", flush=True)

    def data_received(self, data: bytes) -> None:
        parts = self._decoder.feed(data)
        if parts:
            offset, last = parts[-1]
            self._transport.write(encode_report(offset + len(last)))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def follow(port: int) -> None:
    loop = asyncio.get_running_loop()
    _, slave = await loop.create_connection(Slave, "127.0.0.1", port)
    await slave.ended


if __name__ == "__main__":
    try:
        uvloop.run(follow(int(sys.argv[1])))
    except KeyboardInterrupt:
        sys.exit(0)
