"""Fast failure: requests that waited too long, or for which there is no room, are refused at once.

A client waits three seconds for an answer and then asks again. A broker that answers older requests
first helps no client. The answer is code 2 with the cause and its figures:

    [TIMEOUT_CLEAN_QUEUE]   the request waited longer than waitTimeMillsIn*Queue for its turn
    [OVERLOAD]              too many requests wait already: for the disk, for a client's answer
    [REJECTREQUEST]         the disk is slow: an append has been under way for
                            osPageCacheBusyTimeOutMills, or the transient pool is empty
                            (`processor/send_checks.py`)

How long a request waited. There is no queue of requests here: a request waits in the socket while
the loop is busy. Linux knows when the last bytes of a socket arrived, so each request of a read
waited at least since then. The broker asks for that only while a tick of the loop is late, so it
costs nothing otherwise. After one pause of the process nothing is refused: the backlog is answered
faster than it is refused. After LATE_TICKS late ticks in a row the broker is overloaded, and
refuses requests that waited beyond their limit. On other systems no request is refused for its
waiting.

Unlike RocketMQ, which has a queue for each kind of request, refuses after a single pause too, and
answers some refusals of one-way requests.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../latency/BrokerFastFailure.java,
remoting/.../netty/NettyRemotingAbstract.java (processRequestCommand)
"""

from __future__ import annotations

import logging
import math
from typing import Final

from skylarkmq.broker.base.loop_lag import TICK_S
from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.net.connection import Connection, Gate
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import decode_command
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.frame import BadFrameError, RawFrame

log = logging.getLogger(__name__)

LATE_TICKS: Final = 3
OVERLOAD: Final = "[OVERLOAD]system busy, start flow control for a while"
TIMEOUT: Final = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while"

# Code -> the kind of request, as RocketMQ divides them among its queues.
KINDS: Final[dict[int, str]] = {
    RequestCode.SEND_MESSAGE: "send",
    RequestCode.SEND_MESSAGE_V2: "send",
    RequestCode.SEND_BATCH_MESSAGE: "send",
    RequestCode.CONSUMER_SEND_MSG_BACK: "send",
    RequestCode.RECALL_MESSAGE: "send",
    RequestCode.PULL_MESSAGE: "pull",
    RequestCode.LITE_PULL_MESSAGE: "pull",
    RequestCode.POP_MESSAGE: "pull",
    RequestCode.HEART_BEAT: "heartbeat",
    RequestCode.END_TRANSACTION: "transaction",
}


def refusal(stats: BrokerStats, kind: str, cause: str, remark: str) -> RemoteProtocolError:
    """Count a refusal for overload and return the error that answers it.

    Args:
        kind: of the request: a queue of RocketMQ's, or `other`.
        cause: one of `stats.REJECTION_CAUSES`.
    """
    stats.rejected(kind, cause)
    return RemoteProtocolError(ResponseCode.SYSTEM_BUSY, remark)


class FastFailure(Gate):
    """Looks at what was read while the broker has too much to do. Loop thread."""

    def __init__(self, config: BrokerConfig, stats: BrokerStats) -> None:
        self._stats = stats
        # Kind -> (limit in ms, the key that sets it)
        self._limits: dict[str, tuple[int, str]] = {}
        if config.broker_fast_failure_enable:
            self._limits = {
                "send": (config.wait_time_mills_in_send_queue, "waitTimeMillsInSendQueue"),
                "pull": (config.wait_time_mills_in_pull_queue, "waitTimeMillsInPullQueue"),
                "heartbeat": (
                    config.wait_time_mills_in_heartbeat_queue,
                    "waitTimeMillsInHeartbeatQueue",
                ),
                "transaction": (
                    config.wait_time_mills_in_transaction_queue,
                    "waitTimeMillsInTransactionQueue",
                ),
            }
        shortest_ms = min((limit for limit, _ in self._limits.values()), default=0)
        # A tick this late says that requests may wait beyond the shortest limit.
        self._late_s = shortest_ms / 2000 if self._limits else math.inf
        self._late_count = 0
        self.watch_after_s = math.inf

    def ticked(self, due_s: float, now_s: float) -> None:
        """A tick of the loop that was due at `due_s` runs at `now_s`."""
        if now_s - due_s > self._late_s:
            self._late_count += 1
            if self._late_count == LATE_TICKS:
                log.warning("the event loop is behind: %d ticks in a row were late", LATE_TICKS)
            self.watch_after_s = 0.0
        else:
            self._late_count = 0
            self.watch_after_s = now_s + TICK_S + self._late_s

    def sift(self, connection: Connection, frames: list[RawFrame]) -> list[RawFrame]:
        """Refuse the requests of one read that waited too long; return the others.

        A frame that cannot be read stays: its connection ends when its turn comes.
        """
        behind = self._late_count >= LATE_TICKS
        waited_ms = int(connection.silence_s() * 1000) if behind else 0
        if all(waited_ms <= limit for limit, _ in self._limits.values()):
            return frames
        kept: list[RawFrame] = []
        for frame in frames:
            try:
                command = decode_command(frame)
            except BadFrameError:
                kept.append(frame)
                continue
            is_asked = not command.is_response
            remark = self._remark(command.code, waited_ms, len(frames)) if is_asked else ""
            if remark:
                self._count(frame)
                connection.reply(command, command.reply(ResponseCode.SYSTEM_BUSY, remark))
            else:
                kept.append(frame)
        return kept

    def late(self, code: int, waited_s: float) -> RemoteProtocolError | None:
        """Return the error for a request of another protocol that has waited too long.

        Args:
            code: of the request that does the same here.
        """
        if self._late_count < LATE_TICKS:
            return None
        remark = self._remark(code, int(waited_s * 1000), 1)
        return RemoteProtocolError(ResponseCode.SYSTEM_BUSY, remark) if remark else None

    def _remark(self, code: int, waited_ms: int, count: int) -> str:
        """Why a request is refused; empty when it is not."""
        kind = KINDS.get(code, "other")
        limit = self._limits.get(kind)
        if limit is not None and waited_ms > limit[0]:
            self._stats.rejected(kind, "queue_wait")
            return (
                f"{TIMEOUT}, period in queue: {waited_ms}ms, size of queue: {count}; "
                f"{limit[1]}={limit[0]}, try again later or on another broker"
            )
        return ""

    def _count(self, frame: RawFrame) -> None:
        traffic = self._stats.frames_in.get(frame.serialize_type)
        if traffic is not None:
            traffic.count += 1
            traffic.bytes += len(frame.header) + len(frame.body) + 8
