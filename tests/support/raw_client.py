"""A peer that speaks in frames: what a test writes is what goes over the wire."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import Mapping

from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.frame import FrameDecoder, RawFrame, SerializeType
from tests.support.patience import LIMIT_S


class RawClient:
    """One connection. Answers are matched by opaque; requests of the peer gather in `pushes`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self._opaques = itertools.count(1)
        self._answers: dict[int, RemotingCommand] = {}
        self.frames: list[RawFrame] = []
        self.pushes: list[RemotingCommand] = []

    @classmethod
    async def open(cls, address: tuple[str, int], tls: ssl.SSLContext | None = None) -> RawClient:
        return cls(*await asyncio.open_connection(*address, ssl=tls))

    def send(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        oneway: bool = False,
        serialize_type: int = SerializeType.JSON,
    ) -> int:
        """Write a request and return its opaque."""
        opaque = next(self._opaques)
        request = RemotingCommand.request(
            code, fields, body, oneway=oneway, opaque=opaque, serialize_type=serialize_type
        )
        self.writer.write(encode_command(request))
        return opaque

    async def answer(self, opaque: int) -> RemotingCommand:
        """The answer to a request, waiting for it."""
        async with asyncio.timeout(LIMIT_S):
            while opaque not in self._answers:
                await self._read()
        return self._answers.pop(opaque)

    async def call(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        serialize_type: int = SerializeType.JSON,
    ) -> RemotingCommand:
        """Ask and wait for the answer."""
        return await self.answer(self.send(code, fields, body, serialize_type=serialize_type))

    async def push(self) -> RemotingCommand:
        """The next request of the peer, waiting for it."""
        async with asyncio.timeout(LIMIT_S):
            while not self.pushes:
                await self._read()
        return self.pushes.pop(0)

    async def closed(self) -> None:
        """Return when the peer has closed the connection."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    await self._read()
                except ConnectionError:
                    return

    async def _read(self) -> None:
        data = await self._reader.read(1 << 16)
        if not data:
            raise ConnectionResetError("the peer has closed the connection")
        for frame in self._decoder.feed(data):
            self.frames.append(frame)
            command = decode_command(frame)
            if command.is_response:
                self._answers[command.opaque] = command
            else:
                self.pushes.append(command)

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


def send_fields(topic: str, queue_id: int = 0, properties: str = "", **more: str) -> dict[str, str]:
    """The header of a send under its short names."""
    return {
        "a": "pg",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
        **more,
    }


def pull_fields(
    topic: str, queue_id: int = 0, offset: int = 0, group: str = "cg", **more: str
) -> dict[str, str]:
    """The header of a pull that carries its own subscription to everything."""
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
        **more,
    }


def long_names(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of a send under the names that its first version has (code 10)."""
    names = {
        "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
        "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
        "j": "reconsumeTimes", "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch",
    }  # fmt: skip
    return {names[name]: value for name, value in fields.items()}
