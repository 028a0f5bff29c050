"""Calls of administrators, with a time limit of their own, to brokers and name servers.

A code that the peer does not serve is answered with 3, by RocketMQ's name servers not at all.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/MQClientAPIImpl.java
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.wire.ask import SUCCESS, ask, read_body, read_header
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.client import RemotingClient

B = TypeVar("B", bound=msgspec.Struct)


class AdminApi:
    """The calls, over one client's connections; `timeout_s` bounds each."""

    def __init__(self, remoting: RemotingClient, timeout_s: float) -> None:
        self._remoting = remoting
        self.timeout_s = timeout_s

    async def call(
        self,
        address: str,
        code: int,
        header: msgspec.Struct | None = None,
        *,
        body: bytes = b"",
        extra: dict[str, str] | None = None,
        accepted: frozenset[int] = SUCCESS,
        timeout_s: float | None = None,
    ) -> RemotingCommand:
        """Send one request and return its answer; arguments and errors are those of `ask`.

        Args:
            timeout_s: seconds, for a call that takes longer than others.
        """
        limit_s = timeout_s or self.timeout_s
        return await ask(
            self._remoting, address, code, limit_s, header,
            body=body, extra=extra, accepted=accepted,
        )  # fmt: skip

    async def body(
        self,
        kind: type[B],
        address: str,
        code: int,
        header: msgspec.Struct | None = None,
        *,
        timeout_s: float | None = None,
    ) -> B:
        """Send one request and return the answer's body as a `kind`."""
        answer = await self.call(address, code, header, timeout_s=timeout_s)
        return read_body(kind, answer, address)

    async def fields(
        self, kind: type[B], address: str, code: int, header: msgspec.Struct | None = None
    ) -> B:
        """Send one request and return the answer's header as a `kind`."""
        return read_header(kind, await self.call(address, code, header), address)

    async def all_of(
        self,
        addresses: Sequence[str],
        code: int,
        header: msgspec.Struct | None = None,
        *,
        accepted: frozenset[int] = SUCCESS,
    ) -> list[tuple[RemotingCommand, str]]:
        """Ask all at the same time; return each answer with who gave it, in the order asked.

        Raises:
            RocketMQError: nobody answered; one of their errors.
        """
        if len(addresses) == 1:
            (address,) = addresses
            return [(await self.call(address, code, header, accepted=accepted), address)]
        errors: list[RocketMQError] = []

        async def ask_one(address: str) -> tuple[RemotingCommand, str] | None:
            try:
                return await self.call(address, code, header, accepted=accepted), address
            except RocketMQError as error:
                errors.append(error)
                return None

        found = await asyncio.gather(*map(ask_one, addresses))
        answers = [answer for answer in found if answer is not None]
        if not answers:
            raise errors[-1]
        return answers
