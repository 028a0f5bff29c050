"""What a Java push consumer of 4.9 does with one queue, by its requests.

It remembers its position, pulls there through every reconnect, and commits with each pull. To
PULL_OFFSET_MOVED it says yes: it commits the offset that the broker names, drops the queue, and
10 s later asks where its group stands and goes on there.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/consumer/DefaultMQPushConsumerImpl.java
(pullMessage, case OFFSET_ILLEGAL)
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any, Final

from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.flags import PullSysFlag
from skylarkmq.protocol.frame import FrameDecoder
from skylarkmq.protocol.record import decode_messages
from skylarkmq.remoting.stream import Network, Stream
from skylarkmq.remoting.waiting import sleep
from tests.support.manual_clock import ManualClock
from tests.support.raw_client import pull_fields

AGAIN_S: Final = 3.0
"""PULL_TIME_DELAY_MILLS_WHEN_EXCEPTION"""
MOVED_S: Final = 10.0
FLAGS: Final = PullSysFlag.FLAG_COMMIT_OFFSET | PullSysFlag.FLAG_SUSPEND


class _Link(asyncio.Protocol):
    """One connection: answers by their numbers."""

    def __init__(self) -> None:
        self.stream: Stream
        self.is_lost = False
        self._decoder = FrameDecoder()
        self._opaque = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}

    async def call(self, code: int, fields: dict[str, str], body: bytes = b"") -> RemotingCommand:
        """Ask and wait.

        Raises:
            ConnectionError: the connection ends first.
        """
        opaque = next(self._opaque)
        answer = self._waiting[opaque] = asyncio.get_running_loop().create_future()
        self.stream.write(
            encode_command(RemotingCommand.request(code, fields, body, opaque=opaque))
        )
        return await answer

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            command = decode_command(frame)
            if command.is_response and command.opaque in self._waiting:
                self._waiting.pop(command.opaque).set_result(command)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        for answer in [each for each in self._waiting.values() if not each.done()]:
            answer.set_exception(ConnectionResetError("the broker is gone"))
        self._waiting.clear()


class JavaPuller:
    """One queue of one group."""

    def __init__(
        self,
        network: Network,
        clock: ManualClock,
        find_address: Callable[[], str],
        queue: tuple[str, int],
        group: str,
    ) -> None:
        self._network = network
        self._clock = clock
        self._find_address = find_address
        self._topic, self._queue_id = queue
        self._group = group
        self._link: _Link | None = None
        self._offset = -1

    async def start(self) -> None:
        """Connect, join the group, and find out where it stands."""
        await self._ask_where()

    async def run(self, got: Callable[[bytes], None]) -> None:
        """Pull for ever."""
        while True:
            try:
                if self._offset < 0:
                    await self._ask_where()
                await self._pull(got)
            except OSError:
                self._link = None
                await sleep(self._clock, AGAIN_S)

    async def _pull(self, got: Callable[[bytes], None]) -> None:
        fields = pull_fields(
            self._topic, self._queue_id, self._offset, self._group,
            sysFlag=str(int(FLAGS)), commitOffset=str(self._offset),
        )  # fmt: skip
        link = await self._connected()
        answer = await link.call(RequestCode.PULL_MESSAGE, fields)
        if answer.code not in (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        ):
            await sleep(self._clock, AGAIN_S)
            return
        following = int(answer.ext_fields["nextBeginOffset"])
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            self._offset = -1
            await sleep(self._clock, MOVED_S)
            await self._commit(following)
            return
        if answer.code == ResponseCode.SUCCESS:
            for message in decode_messages(answer.body):
                got(message.body)
        self._offset = following

    async def _commit(self, offset: int) -> None:
        fields = {**self._place(), "commitOffset": str(offset)}
        await (await self._connected()).call(RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    async def _ask_where(self) -> None:
        link = await self._connected()
        answer = await link.call(RequestCode.QUERY_CONSUMER_OFFSET, self._place())
        self._offset = int(answer.ext_fields["offset"]) if answer.code == 0 else 0

    def _place(self) -> dict[str, str]:
        return {
            "consumerGroup": self._group,
            "topic": self._topic,
            "queueId": str(self._queue_id),
        }

    async def _connected(self) -> _Link:
        if self._link is None or self._link.is_lost:
            link = _Link()
            link.stream = await self._network.connect(self._find_address(), link)
            await link.call(RequestCode.HEART_BEAT, {}, self._heartbeat())
            self._link = link
        return self._link

    def _heartbeat(self) -> bytes:
        subscription: dict[str, Any] = {
            "topic": self._topic, "subString": "*", "tagsSet": [], "codeSet": [],
            "subVersion": 0, "expressionType": "TAG", "classFilterMode": False,
        }  # fmt: skip
        consumer: dict[str, Any] = {
            "groupName": self._group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [subscription],
        }
        body: dict[str, Any] = {
            "clientID": "192.0.2.9@java", "consumerDataSet": [consumer], "producerDataSet": [],
        }  # fmt: skip
        return json.dumps(body).encode()
