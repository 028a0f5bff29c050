"""A client of the gRPC service as groups know it: what can be told and asked over its stream.

The broker speaks to its clients in requests of the remoting protocol; of these, three have a
counterpart here, and the client's answers become what a member that pulls would have answered:

    39   is a transaction to be committed?    recover_orphaned_transaction_command; answered by
                                              EndTransaction
    307  what is the client doing?            print_thread_stack_trace_command, where stacks are
                                              wanted; else the broker knows as much
    309  consume this message now             verify_message_command

Other questions are answered here, by "not supported"; what it is only told of is dropped, for it
divides no queues and keeps no offsets.

A client without an open stream is told nothing, and is no less a client: it opens one again within
seconds, some of them within minutes. Its membership goes by its heartbeats.

Source: apache/rocketmq@rocketmq-all-5.3.3 proxy/.../grpc/v2/channel/GrpcClientChannel.java,
proxy/.../grpc/v2/client/ClientActivity.java
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from skylarkmq.broker.grpc.calls import Call, TelemetryStream
from skylarkmq.broker.grpc.messages import fill_message
from skylarkmq.broker.grpc.names import transaction_id
from skylarkmq.broker.grpc.settings import ClientSettings
from skylarkmq.broker.net.peer_connection import CloseListeners
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.group import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.codes import LanguageCode, MQVersion, RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.flags import RETRY_GROUP_TOPIC_PREFIX
from skylarkmq.protocol.headers.fields import decode_fields
from skylarkmq.protocol.headers.group import GetConsumerRunningInfoRequestHeader
from skylarkmq.protocol.headers.send import CheckTransactionStateRequestHeader
from skylarkmq.protocol.properties import RETRY_TOPIC, find_property
from skylarkmq.protocol.record import read_record
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from skylarkmq.remoting.errors import ConnectionFailed, RequestTimeout
from skylarkmq.remoting.pending_calls import FutureWaiter, PendingCalls

VERSION: Final = MQVersion.V5_3_3
"""What tools are told: the version of RocketMQ whose protocol it is."""
BEHIND_COUNT: Final = 64
BEHIND_SIZE: Final = 1 << 20
"""Commands, and bytes of them, past which a client is taken for one that does not read."""
UNSENT_COUNT_MAX: Final = 256
UNSENT_SIZE_MAX: Final = 16 << 20
"""What may wait to be sent to one client."""
CALLS_MAX: Final = 64
"""Questions that one client may leave unanswered."""
_RETRY_TOPIC: Final = RETRY_TOPIC.encode() + b"\x01"
STACK_SIZE_MAX: Final = 1 << 20
"""Characters of stacks that are forwarded."""
_LANGUAGES: Final = {
    "CPP": LanguageCode.CPP,
    "DOT_NET": LanguageCode.DOTNET,
    "DOTNET": LanguageCode.DOTNET,
    "GO": LanguageCode.GO,
    "GOLANG": LanguageCode.GO,
    "HTTP": LanguageCode.NODE_JS,  # what Node's client says
    "JAVA": LanguageCode.JAVA,
    "NODE_JS": LanguageCode.NODE_JS,
    "PHP": LanguageCode.PHP,
    "PYTHON": LanguageCode.PYTHON,
    "RUBY": LanguageCode.RUBY,
    "RUST": LanguageCode.RUST,
}
_RESULTS: Final[dict[int, str]] = {
    Code.OK: "CR_SUCCESS",
    Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}


class Outbox:
    """Commands on their way to one stream, in order. Loop thread.

    Attributes:
        behind_since_s: since when the client has not read enough, monotonic; 0 when it has.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[tuple[schema_pb2.TelemetryCommand, int]] = deque()
        self._size = 0
        self._wake = asyncio.Event()
        self._closed = False
        self.behind_since_s = 0.0

    def put(self, command: schema_pb2.TelemetryCommand) -> bool:
        """Have a command sent; False when the stream is over, or too much waits already."""
        size = command.ByteSize()
        is_full = len(self._waiting) >= UNSENT_COUNT_MAX or self._size + size > UNSENT_SIZE_MAX
        if self._closed or (is_full and self._waiting):
            return False
        self._waiting.append((command, size))
        self._size += size
        self._note()
        self._wake.set()
        return True

    def close(self) -> None:
        """Have nothing sent that comes later."""
        self._closed = True
        self._wake.set()

    async def write_to(self, stream: TelemetryStream) -> None:
        """Send what comes, until `close`; what came before that leaves, too."""
        while True:
            while self._waiting:
                command, size = self._waiting[0]
                await stream.write(command)
                self._waiting.popleft()
                self._size -= size
                self._note()
            if self._closed:
                return
            self._wake.clear()
            await self._wake.wait()

    def _note(self) -> None:
        if len(self._waiting) < BEHIND_COUNT and self._size < BEHIND_SIZE:
            self.behind_since_s = 0.0
        elif not self.behind_since_s:
            self.behind_since_s = self._clock.monotonic()


class GrpcPeer(PendingCalls, CloseListeners):
    """One client, by its id; a `Member`. Loop thread.

    Attributes:
        client_id: as it says.
        settings: what it says it wants, or its receives before it has sent any.
        last_s: when it was heard of last, on the clock of peers.
        is_told: that its group is consumed in another way was logged.
    """

    def __init__(
        self, call: Call, settings: ClientSettings, clock: Clock, body_max: int, broker_name: str
    ) -> None:
        PendingCalls.__init__(self, clock)
        CloseListeners.__init__(self)
        self.client_id = call.client_id
        self.remote_address = call.peer
        self.account: object = call.account
        self.settings = settings
        self.last_s = clock.monotonic()
        self.closed = False
        self.is_told = False
        self._started_s = self.last_s
        self._said = call.language, call.version
        self._body_max = body_max
        self._broker_name = broker_name
        self._outbox: Outbox | None = None
        self._lost_since_s = self.last_s

    def heard(self, call: Call) -> None:
        """Note a sign of life; who makes it and from where is what counts from now on."""
        self.last_s = self._clock.monotonic()
        self._said = call.language, call.version
        self.remote_address = call.peer
        self.account = call.account

    @property
    def language(self) -> LanguageCode:
        """Its language as the remoting protocol has it."""
        return _LANGUAGES.get(self._said[0], LanguageCode.OTHER)

    # The stream

    def attach(self, outbox: Outbox) -> None:
        """Tell it things over this stream from now on: the newest one is the one it reads."""
        self._outbox = outbox

    def detach(self, outbox: Outbox) -> None:
        """Note that a stream is over."""
        if self._outbox is outbox:
            self._outbox = None
            self._lost_since_s = self._clock.monotonic()

    @property
    def paused_since_s(self) -> float:
        return self._lost_since_s if self._outbox is None else self._outbox.behind_since_s

    # As a member

    def push(self, command: RemotingCommand) -> None:
        """Forward the question about a transaction, and drop what has no counterpart."""
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            return
        header = decode_fields(CheckTransactionStateRequestHeader, command.ext_fields)
        asked = schema_pb2.TelemetryCommand()
        question = asked.recover_orphaned_transaction_command
        question.transaction_id = transaction_id(header.transaction_id or "", self._broker_name)
        self._fill(question.message, command.body)
        self._put(asked)

    async def call(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Ask it, and return its answer in the form of one of the remoting protocol.

        Raises:
            RequestTimeout: no answer within `timeout_s`.
            ConnectionFailed: it has no stream open, or leaves too many questions unanswered.
        """
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            header = decode_fields(GetConsumerRunningInfoRequestHeader, command.ext_fields)
            if not header.jstack_enable:
                return self._running_info(command, None)
            return await self._stacks(command, timeout_s)
        if command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            return await self._verify(command, timeout_s)
        return command.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f"{self.client_id} is a client of RocketMQ 5's protocol, which has no such question",
        )

    async def _stacks(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        nonce = self.take_opaque()
        question = schema_pb2.PrintThreadStackTraceCommand(nonce=str(nonce))
        answer = await self._ask(
            nonce,
            schema_pb2.TelemetryCommand(print_thread_stack_trace_command=question),
            timeout_s,
        )
        return self._running_info(command, answer.body.decode("utf-8", "replace"))

    async def _verify(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        nonce, began_s = self.take_opaque(), self._clock.monotonic()
        asked = schema_pb2.TelemetryCommand()
        asked.verify_message_command.nonce = str(nonce)
        self._fill(asked.verify_message_command.message, command.body)
        answer = await self._ask(nonce, asked, timeout_s)
        result = ConsumeMessageDirectlyResult(
            auto_commit=True,
            consume_result=_RESULTS.get(answer.code, "CR_LATER"),
            order=False,
            remark=answer.remark,
            spent_time_mills=int((self._clock.monotonic() - began_s) * 1000),
        )
        return command.reply(ResponseCode.SUCCESS, body=encode_body(result))

    def _fill(self, message: schema_pb2.Message, record: bytes) -> None:
        """Fill a message from a record, under the topic that the client knows it by."""
        view = read_record(record, 0, check_crc=False)
        topic = view.topic.decode("utf-8", "replace")
        if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            original = find_property(view.properties, _RETRY_TOPIC)
            topic = topic if original is None else original.decode("utf-8", "replace")
        fill_message(message, record, topic, self._body_max)

    async def _ask(
        self, nonce: int, question: schema_pb2.TelemetryCommand, timeout_s: float
    ) -> RemotingCommand:
        """Return what `told` made of the client's answer."""
        if self.pending_count >= CALLS_MAX:
            why = f"the client leaves {CALLS_MAX} questions unanswered"
            raise ConnectionFailed(self.remote_address, why)
        waiter = FutureWaiter(self._clock.monotonic() + timeout_s)
        self.expect(nonce, waiter)
        try:
            if not self._put(question):
                why = "the client has no stream open over which it could be asked"
                raise ConnectionFailed(self.remote_address, why)
            return await waiter.future
        except RequestTimeout:
            why = f"{self.remote_address} did not answer in {timeout_s:g} s"
            raise RequestTimeout(why) from None
        finally:
            self.forget(nonce)

    def take_answer(self, command: schema_pb2.TelemetryCommand) -> None:
        """Take the client's answer to a question; one that nobody waits for is passed over."""
        if command.HasField("thread_stack_trace"):
            stacks = command.thread_stack_trace
            text = stacks.thread_stack_trace[:STACK_SIZE_MAX]
            self._answered(stacks.nonce, command.status, text.encode("utf-8", "replace"))
        elif command.HasField("verify_message_result"):
            self._answered(command.verify_message_result.nonce, command.status)

    def _answered(self, nonce: str, status: schema_pb2.Status, body: bytes = b"") -> None:
        if not (nonce.isascii() and nonce.isdigit() and len(nonce) <= 10):
            return
        answer = RemotingCommand.request(status.code or Code.OK, {}, body, opaque=int(nonce))
        answer.remark = status.message[:STACK_SIZE_MAX] or None
        self.answered(answer)

    def _running_info(self, command: RemotingCommand, stacks: str | None) -> RemotingCommand:
        settings = self.settings
        started_ms = (self._started_s - self._clock.monotonic()) * 1000 + self._clock.now_ms()
        info = ConsumerRunningInfo(
            jstack=stacks,
            mq_table=[],
            properties={
                "PROP_CLIENT_VERSION": " ".join(self._said),
                "PROP_CONSUME_TYPE": settings.consume_type,
                "PROP_CONSUMEORDERLY": "false",
                "PROP_CONSUMER_START_TIMESTAMP": str(int(started_ms)),
                "consumerGroup": settings.group,
            },
            status_table={},
            subscription_set=list(settings.subscriptions.values()),
        )
        return command.reply(ResponseCode.SUCCESS, body=encode_body(info))

    def _put(self, command: schema_pb2.TelemetryCommand) -> bool:
        return self._outbox is not None and self._outbox.put(command)

    # The end

    def close(self, reason: str) -> None:
        """End its memberships and its stream; it may come again as a new one."""
        if self.closed:
            return
        self.closed = True
        self.fail_calls(ConnectionFailed(self.remote_address, "the client has gone", reached=True))
        if self._outbox is not None and reason != LEAVES:
            self._outbox.close()
        self._outbox = None
        self._tell_listeners()


LEAVES: Final = "leaves"
"""The reason of `GrpcPeer.close` for a client that says so: it ends its stream by itself."""
