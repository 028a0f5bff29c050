"""Load over plain frames: connections that keep a number of sends in flight, and read all back."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from random import Random

from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.frame import FrameDecoder
from skylarkmq.protocol.record import decode_messages
from tests.support.patience import is_slow_disk
from tests.support.raw_client import RawClient, pull_fields, send_fields
from tests.support.send_history import Attempt, Queue, SendHistory

TOPICS = ("kill-a", "kill-b")
QUEUES_PER_TOPIC = 4
IN_FLIGHT = 32
SIZES = (1, 10, 100, 100, 500, 1024, 1024, 4096, 16384)
# Codes that say for certain that nothing was stored.
_REFUSALS = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.MESSAGE_ILLEGAL,
    }
)
_connections = itertools.count()


class SendingPeer(asyncio.Protocol):
    """One connection with sends in flight, all into queues of its own choice."""

    def __init__(
        self, history: SendHistory, rng: Random, on_answer: Callable[[], object], in_flight: int
    ) -> None:
        self._history = history
        self._rng = rng
        self._on_answer = on_answer
        self._in_flight = in_flight
        self._number = next(_connections)
        self._opaques = itertools.count(1)
        self._pending: dict[int, Attempt] = {}
        self._decoder = FrameDecoder()
        self.ended = asyncio.get_running_loop().create_future()
        self.bad_codes: list[tuple[int, str | None]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        transport.writelines([self._request() for _ in range(self._in_flight)])

    def data_received(self, data: bytes) -> None:
        requests: list[bytes] = []
        for frame in self._decoder.feed(data):
            self._answered(decode_command(frame))
            requests.append(self._request())
        if requests:
            self._transport.write(b"".join(requests))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def cut_answer_size(self) -> int:
        """Bytes of an answer that came only in part."""
        return self._decoder.buffered_size

    def close(self) -> None:
        self._transport.abort()

    def _request(self) -> bytes:
        rng = self._rng
        queue = rng.choice(TOPICS), rng.randrange(QUEUES_PER_TOPIC)
        attempt = self._history.sent(self._number, queue, rng.choice(SIZES))
        opaque = next(self._opaques)
        self._pending[opaque] = attempt
        fields = send_fields(*queue, f"N\x01{attempt.number}\x02")
        command = RemotingCommand.request(
            RequestCode.SEND_MESSAGE_V2, fields, attempt.body, opaque=opaque
        )
        return encode_command(command)

    def _answered(self, answer: RemotingCommand) -> None:
        attempt = self._pending.pop(answer.opaque)
        if answer.code == ResponseCode.SUCCESS:
            fields = answer.ext_fields
            place = int(fields["msgId"][-16:], 16)
            self._history.acked(attempt, int(fields["queueOffset"]), place)
            self._on_answer()
        else:
            if not is_slow_disk(answer.remark):
                self.bad_codes.append((answer.code, answer.remark))
            if answer.code in _REFUSALS:
                self._history.refused(attempt)


class FrameLoad:
    """Several sending connections."""

    def __init__(self, history: SendHistory, rng: Random, *, in_flight: int = IN_FLIGHT) -> None:
        self._history = history
        self._rng = rng
        self._in_flight = in_flight
        self.peers: list[SendingPeer] = []
        self.acks = 0
        self._wanted = 0
        self._reached = asyncio.Event()

    async def start(self, address: tuple[str, int], connections: int) -> None:
        """Connect, and send from then on."""
        loop = asyncio.get_running_loop()
        for _ in range(connections):
            _, peer = await loop.create_connection(
                lambda: SendingPeer(
                    self._history, Random(self._rng.random()), self._count, self._in_flight
                ),
                *address,
            )
            self.peers.append(peer)

    def _count(self) -> None:
        self.acks += 1
        if self.acks >= self._wanted:
            self._reached.set()

    async def acked(self, count: int) -> None:
        """Wait for so many acknowledgements."""
        self._wanted = count
        if self.acks < count:
            self._reached.clear()
            await self._reached.wait()

    async def ended(self) -> None:
        """Wait until the broker has closed every connection."""
        await asyncio.gather(*(peer.ended for peer in self.peers))

    def close(self) -> None:
        for peer in self.peers:
            peer.close()

    @property
    def bad_codes(self) -> list[tuple[int, str | None]]:
        """Answers that were no acknowledgement."""
        return [code for peer in self.peers for code in peer.bad_codes]


class Shown:
    """What a reader sees of the queues while others send, as max offsets."""

    def __init__(self) -> None:
        self.max_offsets: dict[Queue, int] = {}

    async def watch(self, address: tuple[str, int]) -> None:
        """Ask all the time until the connection ends; a broker may be gone before there is one."""
        try:
            client = await RawClient.open(address)
        except ConnectionError:
            return
        try:
            while True:
                for topic in TOPICS:
                    for queue_id in range(QUEUES_PER_TOPIC):
                        fields = {"topic": topic, "queueId": str(queue_id)}
                        answer = await client.call(RequestCode.GET_MAX_OFFSET, fields)
                        if answer.code == ResponseCode.SUCCESS:
                            offset = int(answer.ext_fields["offset"])
                            self.max_offsets[topic, queue_id] = offset
        except ConnectionError:
            return
        finally:
            await client.close()


async def read_back(
    address: tuple[str, int], history: SendHistory, *, shown: Shown | None = None
) -> int:
    """Read everything behind what the history knows, and check all of it.

    Args:
        shown: the end of the log may be gone, but for what this reader has seen.

    Returns:
        The number of acknowledged messages that are gone.
    """
    client = await RawClient.open(address)
    try:
        for topic in TOPICS:
            for queue_id in range(QUEUES_PER_TOPIC):
                await _read_queue(client, (topic, queue_id), history)
    finally:
        await client.close()
    if shown is not None:
        return history.settle_losses(shown.max_offsets)
    history.check()
    return 0


async def _read_queue(client: RawClient, queue: Queue, history: SendHistory) -> None:
    offset = len(history.found.get(queue, []))
    while True:
        fields = pull_fields(*queue, offset, group="reader", sysFlag="4", maxMsgBytes="4194304")
        fields["maxMsgNums"] = "1024"
        answer = await client.call(RequestCode.PULL_MESSAGE, fields)
        if answer.code != ResponseCode.SUCCESS:
            # Nothing more, or a topic that no send has reached.
            assert answer.code in (
                ResponseCode.PULL_NOT_FOUND,
                ResponseCode.PULL_OFFSET_MOVED,
                ResponseCode.TOPIC_NOT_EXIST,
            ), answer.remark
            return
        messages = decode_messages(answer.body)
        assert messages, "an answer without messages"
        history.read(queue, messages)
        offset += len(messages)
        assert int(answer.ext_fields["nextBeginOffset"]) == offset
