"""One of our ends of HTTP/2 and the other end by the library h2, and frames taken apart."""

from __future__ import annotations

import random
from collections.abc import Iterator

import h2.config
import h2.connection
import h2.events

from skylarkmq.protocol.http2.client import Http2Client
from skylarkmq.protocol.http2.connection import Event
from skylarkmq.protocol.http2.frames import UINT32, FrameType
from skylarkmq.protocol.http2.server import Http2Server


class Pair:
    """Our end and the library's, joined by bytes cut as `rng` says."""

    def __init__(self, ours: Http2Client | Http2Server, seed: int) -> None:
        self.rng = random.Random(seed)
        config = h2.config.H2Configuration(
            client_side=isinstance(ours, Http2Server), header_encoding="utf-8"
        )
        self.ours = ours
        self.theirs = h2.connection.H2Connection(config)
        self.theirs.initiate_connection()
        self.seen: list[Event] = []
        self.told: list[h2.events.Event] = []

    def carry(self) -> None:
        """Carry bytes both ways until there are none."""
        while True:
            ours, theirs = self.ours.take_outgoing(), self.theirs.data_to_send()
            if not ours and not theirs:
                return
            for part in self._cut(theirs):
                self.seen += self.ours.receive(part)
            for part in self._cut(ours):
                for event in self.theirs.receive_data(part):
                    self.told.append(event)
                    if isinstance(event, h2.events.DataReceived):
                        self._open(event)

    def _open(self, event: h2.events.DataReceived) -> None:
        """Let as much come again as has come."""
        size, stream_id = event.flow_controlled_length or 0, event.stream_id
        if size:
            self.theirs.increment_flow_control_window(size)
            if self.theirs.streams[stream_id].open:
                self.theirs.increment_flow_control_window(size, stream_id)

    def _cut(self, data: bytes) -> Iterator[bytes]:
        while data:
            size = self.rng.choice((1, 2, 8, 9, 10, 100, 1 << 20))
            yield data[:size]
            data = data[size:]


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Type, flags, stream, payload of each frame."""
    found: list[tuple[int, int, int, bytes]] = []
    while data:
        end = 9 + int.from_bytes(data[:3], "big")
        found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9:end]))
        data = data[end:]
    return found


def resets(data: bytes) -> list[tuple[int, int]]:
    """The streams that frames end, with their codes."""
    return [
        (stream_id, UINT32.unpack(payload)[0])
        for kind, _, stream_id, payload in frames(data)
        if kind == FrameType.RST_STREAM
    ]
