"""A broker's queue as a model, and a client whose pulls it answers: no socket, no thread.

What goes wrong is a plan: a callable that is asked before each answer and may fail the pull, change
the model, or have a slave answer. Answers come when they are waited for, or earlier, as the plan
says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from skylarkmq.client.errors import ConnectionFailed, RocketMQError
from skylarkmq.client.wire.api_pull import PullTemplate
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.record import encode_record
from skylarkmq.protocol.remoting_command import RESPONSE_FLAG, RemotingCommand
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.settings import ConnectionSettings
from tests.spark.support.blocking_clock import TestClock

QUEUE = MessageQueue("T", "broker-a", 0)
SETTINGS = ConnectionSettings(("ns:1",), retry_timeout_s=5.0)
MASTER, SLAVE = "master:1", "slave:1"


def record(queue_offset: int, body_size: int = 1, tags: str = "") -> bytes:
    """One stored record of QUEUE."""
    properties = f"TAGS\x01{tags}".encode() if tags else b""
    return encode_record(
        queue_id=0,
        flag=0,
        queue_offset=queue_offset,
        physical_offset=queue_offset * 1000,
        sys_flag=0,
        born_timestamp=0,
        born_host=bytes(8),
        store_timestamp=queue_offset,
        store_host=bytes(8),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=bytes(body_size),
        topic=b"T",
        properties=properties,
    )


@dataclass
class QueueModel:
    """Messages [minimum, maximum), answered as RocketMQ's brokers do."""

    minimum: int = 0
    maximum: int = 0
    count_cap: int = 32
    size_cap: int = 256 * 1024
    matches: Callable[[int], bool] = lambda offset: True
    scan_cap: int = 800
    """Messages that one filtered pull looks at."""
    body_size: Callable[[int], int] = lambda offset: 1
    slave_maximum: int | None = None
    suggested: int = 0

    def pull(self, offset: int, wanted: int, *, slave: bool = False) -> RemotingCommand:
        """Answer a pull."""
        end = self.maximum
        if slave and self.slave_maximum is not None:
            end = min(end, self.slave_maximum)
        if end <= self.minimum and offset != 0:
            return self._answer(ResponseCode.PULL_OFFSET_MOVED, 0, end, "NO_MESSAGE_IN_QUEUE")
        if end <= self.minimum:
            return self._answer(ResponseCode.PULL_NOT_FOUND, 0, end, "NO_MESSAGE_IN_QUEUE")
        if offset < self.minimum:
            code = ResponseCode.PULL_OFFSET_MOVED
            return self._answer(code, self.minimum, end, "OFFSET_TOO_SMALL")
        if offset == end:
            return self._answer(ResponseCode.PULL_NOT_FOUND, offset, end, "OFFSET_OVERFLOW_ONE")
        if offset > end:
            code = ResponseCode.PULL_OFFSET_MOVED
            return self._answer(code, end, end, "OFFSET_OVERFLOW_BADLY")
        found: list[bytes] = []
        size, at = 0, offset
        while at < min(end, offset + self.scan_cap) and len(found) < min(wanted, self.count_cap):
            if self.matches(at):
                one = record(at, self.body_size(at))
                if found and size + len(one) > self.size_cap:
                    break
                found.append(one)
                size += len(one)
            at += 1
        if not found:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
            return self._answer(code, at, end, "NO_MATCHED_MESSAGE")
        return self._answer(ResponseCode.SUCCESS, at, end, "FOUND", b"".join(found))

    def _answer(
        self, code: int, next_offset: int, end: int, remark: str, body: bytes = b""
    ) -> RemotingCommand:
        fields = {
            "suggestWhichBrokerId": str(self.suggested),
            "nextBeginOffset": str(next_offset),
            "minOffset": str(self.minimum),
            "maxOffset": str(end),
        }
        return RemotingCommand(
            code, flag=RESPONSE_FLAG, remark=remark, ext_fields=fields, body=body
        )


@dataclass(eq=False)
class FakePending:
    """One pull under way."""

    address: str
    offset: int
    wanted: int
    answer: RemotingCommand | None = None
    dropped: bool = False


Plan = Callable[["FakePullClient", FakePending], RocketMQError | RemotingCommand | None]


def nothing_happens(client: FakePullClient, pending: FakePending) -> None:
    """The plan of a good day."""


@dataclass
class FakePullClient:
    """The part of `BlockingClient` that a RangeReader uses."""

    model: QueueModel
    plan: Plan = nothing_happens
    members: Mapping[int, str] = field(default_factory=lambda: {0: MASTER})
    settings: ConnectionSettings = SETTINGS
    answers_early: Callable[[], bool] = lambda: False
    clock: TestClock = field(default_factory=TestClock)
    pulls: list[FakePending] = field(default_factory=list[FakePending])
    under_way: list[FakePending] = field(default_factory=list[FakePending])
    most_under_way: int = 0

    @property
    def typed(self) -> BlockingClient:
        return cast(BlockingClient, self)

    def pulls_of(self, queue: MessageQueue, max_bytes: int, **names: Any) -> PullTemplate:
        return BlockingClient(self.settings).pulls_of(queue, max_bytes, **names)

    def members_of(self, queue: MessageQueue, *, max_age_s: float = 30.0) -> Mapping[int, str]:
        if not self.members:
            raise ConnectionFailed(queue.broker_name, "not registered")
        return self.members

    def deadline_s(self) -> float:
        return self.clock.monotonic() + 3

    def begin(self, address: str, command: RemotingCommand, *, hold: bool = False) -> FakePending:
        fields = command.ext_fields
        pending = FakePending(address, int(fields["queueOffset"]), int(fields["maxMsgNums"]))
        self.pulls.append(pending)
        self.under_way.append(pending)
        self.most_under_way = max(self.most_under_way, len(self.under_way))
        return pending

    def send_held(self, address: str) -> None: ...

    def has_answer(self, pending: FakePending) -> bool:
        if pending.answer is None and self.answers_early():
            answer = self._answer(pending)
            if isinstance(answer, RocketMQError):
                return False
            pending.answer = answer
        return pending.answer is not None

    def wait(self, pending: FakePending, deadline_s: float) -> RemotingCommand:
        assert not pending.dropped
        self.under_way.remove(pending)
        if pending.answer is not None:
            return pending.answer
        answer = self._answer(pending)
        if isinstance(answer, RocketMQError):
            raise answer
        return answer

    def forget(self, pending: FakePending) -> None:
        pending.dropped = True
        self.under_way.remove(pending)

    def _answer(self, pending: FakePending) -> RocketMQError | RemotingCommand:
        said = self.plan(self, pending)
        if said is not None:
            return said
        slave = pending.address == SLAVE
        return self.model.pull(pending.offset, pending.wanted, slave=slave)
