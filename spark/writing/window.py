"""Sends with several requests under way, bounded by count and bytes; every answer is awaited.

    send     a request joins the line of its queue, or goes at once; waits while the window is full
    line     without `others`: one request of a queue is under way at a time, so that one which is
             sent again does not overtake the next
    flush    waits until nothing is left, and returns what every request came to

    sink  --Batch, per queue-->  SendWindow  --Receipt per request-->  sink

A request that was refused for a reason that passes, that has no answer, or whose status is not
accepted, is sent again: to the same queue, or to one of `others` on another broker. A broker that
refuses or is away is left alone for a doubling time, for all requests. What was sent again after no
answer may be stored twice, under the same unique keys. Topics are the application's, without the
namespace. A request that finds no place for
`retry_timeout_s` fails, and with it the window: Spark repeats the task. A topic that is not there
or may not be written to is tried at other brokers, `retries` times in all, and not for that long.

A Spark worker's main thread.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../producer/DefaultMQProducer.java
(retryResponseCodes), client/.../impl/MQClientAPIImpl.java (processSendResponse)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from skylarkmq.client.errors import (
    DEFAULT_RETRY_CODES,
    AuthError,
    BrokerError,
    ConnectionFailed,
    MessageIllegal,
    NotConfirmed,
    ProtocolError,
    RocketMQError,
    TlsError,
)
from skylarkmq.client.send_result import STORED_CODES, SendStatus
from skylarkmq.client.wire.api_send import SendRequest, SendTemplate, send_refusal, stored_answer
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.waiting import Backoff
from skylarkmq.spark.cluster import DEFAULT_QUEUE_COUNT, BlockingClient
from skylarkmq.spark.errors import SendFailed
from skylarkmq.spark.offsets import describe
from skylarkmq.spark.own_loop import Pending

log = logging.getLogger(__name__)

PAUSE_FIRST_S: Final = 0.02
PAUSE_MAX_S: Final = 2.0
"""How long a broker is left alone after a failure: doubling, capped."""
RETRY_CODES: Final = DEFAULT_RETRY_CODES | {int(ResponseCode.FLOW_CONTROL)}
ELSEWHERE_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)
"""Of these the answers that waiting does not change: only another broker may give another one."""
ILLEGAL_HINT: Final = "See maxMessageSize of the broker and the message's topic, keys and tags"


class Outgoing(NamedTuple):
    """One message ready for the wire."""

    body: bytes
    """As it is stored: compressed when `sys_flag` says so."""
    properties: bytes
    """The encoded text, UNIQ_KEY in it; at most 32,767 bytes."""
    unique_key: str
    flag: int = 0
    sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one acknowledged request stored; its messages follow one another in `queue`."""

    queue: MessageQueue
    """Where they are: one of `others` when the first queue's broker was away."""
    count: int
    size: int
    """Bytes of bodies."""
    first_unique_key: str
    last_unique_key: str
    first_queue_offset: int
    resent: int = 0
    """Tries before without an answer: each may have left a copy with the same unique keys."""


@dataclass(slots=True, eq=False)
class _Unsent:
    """One request that has no acknowledgement yet, encoded once.

    A batch (320) is stored together or not at all; a message alone (310) has `properties`, and may
    be compressed or delayed.
    """

    index: int
    queue: MessageQueue
    others: tuple[MessageQueue, ...]
    batch: Batch
    properties: str = ""
    flag: int = 0
    sys_flag: int = 0
    resent: int = 0
    """Tries that may have stored it without saying so."""
    unconfirmed: int = 0
    """How often it was stored with a status that is not accepted."""
    refused: int = 0
    """How often a broker refused it for a reason that waiting does not change."""
    failed_s: float | None = None
    """When it first failed."""

    @property
    def size(self) -> int:
        """Bytes that it holds in memory."""
        return len(self.batch.body) + len(self.properties)


@dataclass(frozen=True, slots=True)
class Batch:
    """Several messages of one queue, encoded (see protocol/batch.py)."""

    body: bytes
    count: int
    body_size: int
    """Of the messages' bodies."""
    first_unique_key: str
    last_unique_key: str


class SendWindow:
    """Sends requests of one producer group; one thread."""

    def __init__(
        self,
        client: BlockingClient,
        *,
        group: str,
        max_in_flight: int = 64,
        max_in_flight_bytes: int = 16 * 1024 * 1024,
        accepted: frozenset[SendStatus] = frozenset({SendStatus.SEND_OK}),
    ) -> None:
        """Send nothing yet.

        Args:
            max_in_flight_bytes: of bodies; one request that is larger goes alone.
            accepted: what counts as stored; any other status is sent again.
        """
        self._client = client
        self._group = client.namespace.wrap(group)
        self._count_max, self._size_max = max_in_flight, max_in_flight_bytes
        self._accepted = accepted
        # Invariant: a request is in _lines from `send` to its receipt when it has no others, in
        # _due while it is to be sent, in _under_way while it waits for its answer.
        self._lines: dict[MessageQueue, deque[_Unsent]] = {}
        self._due: deque[_Unsent] = deque()
        self._under_way: dict[_Unsent, Pending] = {}
        self._count = self._size = 0
        self._templates: dict[MessageQueue, SendTemplate] = {}
        self._receipts: list[tuple[int, Receipt]] = []
        self._sent_count = 0
        self._quiet: dict[str, Backoff] = {}
        self._failure: SendFailed | None = None

    def send(
        self,
        queue: MessageQueue,
        what: Outgoing | Batch,
        *,
        others: Sequence[MessageQueue] = (),
    ) -> None:
        """Put one request on its way.

        Waits while the window is full. Without `others` the requests of a queue follow one
        another, each after the acknowledgement of the one before, so a resend changes no order;
        with them several are under way and one that fails goes to another of them.

        Raises:
            SendFailed: one of the requests has failed for good; no more can be sent.
        """
        request = _Unsent(
            self._sent_count,
            MessageQueue(*queue),
            tuple(MessageQueue(*other) for other in others),
            what if isinstance(what, Batch) else _alone(what),
        )
        if isinstance(what, Outgoing):
            request.properties = what.properties.decode()
            request.flag, request.sys_flag = what.flag, what.sys_flag
        self._sent_count += 1
        while self._count and (
            self._count >= self._count_max or self._size + request.size > self._size_max
        ):
            self._turn()
        self._count += 1
        self._size += request.size
        line = None if others else self._lines.setdefault(request.queue, deque())
        if line is None or not line:
            self._due.append(request)
        if line is not None:
            line.append(request)
        self._start_due()

    def flush(self) -> list[Receipt]:
        """Wait for all answers; return the receipts since the last flush, in the order of sending.

        Raises:
            SendFailed: one of the requests has failed for good.
        """
        while self._count:
            self._turn()
        self._raise_failure()
        receipts = [receipt for _, receipt in sorted(self._receipts, key=lambda pair: pair[0])]
        self._receipts.clear()
        return receipts

    # Inside

    def _turn(self) -> None:
        """Take an answer, or wait for the end of a broker's pause."""
        self._start_due()
        if not self._under_way:
            now_s = self._client.clock.monotonic()
            until_s = min(self._quiet_until_s(request) for request in self._due)
            self._client.clock.sleep(max(0.0, until_s - now_s))
            return
        oldest = next(iter(self._under_way))
        for request, pending in list(self._under_way.items()):
            if request is oldest or self._client.has_answer(pending):
                self._take(request, self._under_way.pop(request))

    def _start_due(self) -> None:
        """Send what is to be sent to brokers that are not left alone."""
        self._raise_failure()
        now_s = self._client.clock.monotonic()
        for _ in range(len(self._due)):
            request = self._due.popleft()
            self._choose(request, now_s)
            if self._quiet_until_s(request) > now_s:
                self._due.append(request)
                continue
            try:
                address = self._client.master_of(request.queue)
                self._under_way[request] = self._client.begin(address, self._command(request))
            except RocketMQError as error:
                self._failed(request, error)

    def _command(self, request: _Unsent) -> RemotingCommand:
        """Return the command of one try, to the queue that the request stands at."""
        template = self._templates.get(request.queue)
        if template is None:
            wire = self._client.namespace.wrap_queue(request.queue)
            template = SendTemplate(self._group, wire, DEFAULT_QUEUE_COUNT)
            self._templates[request.queue] = template
        return template.command(
            SendRequest(
                topic=template.queue.topic,
                body=request.batch.body,
                properties=request.properties,
                unique_key=request.batch.first_unique_key,
                born_timestamp=self._client.clock.now_ms(),
                flag=request.flag,
                sys_flag=request.sys_flag,
                batch=not request.properties,
            )
        )

    def _choose(self, request: _Unsent, now_s: float) -> None:
        """Turn to another of the queues when the request's own is on a broker left alone."""
        if request.others and self._quiet_until_s(request) > now_s:
            for queue in request.others:
                quiet = self._quiet.get(queue.broker_name)
                if quiet is None or quiet.until_s <= now_s:
                    request.queue = queue
                    return

    def _take(self, request: _Unsent, pending: Pending) -> None:
        """Take the answer to a request, waiting for it if need be."""
        client = self._client
        try:
            answer = client.wait(pending, client.deadline_s())
            status = STORED_CODES.get(answer.code)
            if status is None:
                raise send_refusal(answer, pending.address)
            if status not in self._accepted:
                request.unconfirmed += 1
                raise SendFailed(
                    f"{pending.address} stored it, durability not confirmed: {status.value}",
                    hint=f"Option acceptStatus={status.value} takes that for stored",
                )
            receipt = self._receipt(request, answer, pending.address)
        except RocketMQError as error:
            self._failed(request, error)
            return
        self._receipts.append((request.index, receipt))
        self._quiet.pop(request.queue.broker_name, None)
        self._count -= 1
        self._size -= request.size
        if not request.others:
            line = self._lines[request.queue]
            line.popleft()
            if line:
                self._due.append(line[0])
            else:
                del self._lines[request.queue]

    def _receipt(self, request: _Unsent, answer: RemotingCommand, address: str) -> Receipt:
        _, _, _, queue_id, queue_offset, *_ = stored_answer(answer)
        topic, broker_name, _ = request.queue
        return Receipt(
            MessageQueue(topic, broker_name, queue_id),
            request.batch.count,
            request.batch.body_size,
            request.batch.first_unique_key,
            request.batch.last_unique_key,
            queue_offset,
            request.resent,
        )

    def _failed(self, request: _Unsent, error: RocketMQError) -> None:
        """Plan to send it again; raise the window's failure when that no longer helps."""
        client, settings = self._client, self._client.settings
        now_s = client.clock.monotonic()
        if request.failed_s is None:
            request.failed_s = now_s
        if _may_be_stored(error):
            request.resent += 1
        if isinstance(error, BrokerError) and error.code in ELSEWHERE_CODES:
            request.refused += 1
        if isinstance(error, NotConfirmed):
            request.unconfirmed += 1
        tried_s = now_s - request.failed_s
        if (
            not _passes(error)
            or tried_s >= settings.retry_timeout_s
            or max(request.unconfirmed, request.refused) > settings.retries
        ):
            self._failure = self._final(request, error, tried_s)
            self._failure.__cause__ = error
            raise self._failure
        quiet = self._quiet.setdefault(
            request.queue.broker_name, Backoff(PAUSE_FIRST_S, PAUSE_MAX_S)
        )
        if now_s >= quiet.until_s:  # else it failed together with those that were under way
            quiet.failed(now_s)
            log.warning("%s: %s; sending again", describe(request.queue), error)
        client.forget_routes(request.queue)
        self._due.append(request)

    def _final(self, request: _Unsent, error: RocketMQError, tried_s: float) -> SendFailed:
        hint = error.hint or (ILLEGAL_HINT if isinstance(error, MessageIllegal) else "")
        batch = request.batch
        keys = batch.first_unique_key
        if batch.count > 1:
            keys += f" to {batch.last_unique_key}"
        return SendFailed(
            f"{describe(request.queue)}: {batch.count} messages, "
            f"{batch.body_size} bytes, msgId {keys}, are not acknowledged"
            f"{f', tried for {tried_s:.3g} s' if tried_s else ''}: {error}",
            hint="" if hint in str(error) else hint,
        )

    def _quiet_until_s(self, request: _Unsent) -> float:
        quiet = self._quiet.get(request.queue.broker_name)
        return 0.0 if quiet is None else quiet.until_s

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _alone(message: Outgoing) -> Batch:
    size, key = len(message.body), message.unique_key
    return Batch(message.body, 1, size, key, key)


def _passes(error: RocketMQError) -> bool:
    """Return whether the same request may succeed later, or at another broker."""
    if isinstance(error, AuthError | TlsError | MessageIllegal):
        return False
    if isinstance(error, BrokerError):
        return error.code in RETRY_CODES
    return isinstance(error, ConnectionFailed | ProtocolError | SendFailed) or error.retryable


def _may_be_stored(error: RocketMQError) -> bool:
    """Return whether the try that ended so may have been stored, or is known to be."""
    if isinstance(error, ConnectionFailed):
        return error.reached
    return isinstance(error, NotConfirmed) or not isinstance(error, BrokerError)
