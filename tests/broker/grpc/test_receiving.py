"""The calls of consumers about messages, over a pop service that does what a test says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.grpc.calls import Call, RpcRefused, failure
from skylarkmq.broker.grpc.receiving import (
    ATTEMPT_ID_MAX,
    DEADLINE_MARGIN_S,
    ENTRIES_MAX,
    POLL_MAX_S,
    POLL_MIN_S,
    RENEWED_MS,
    TURN_SIZE,
    Receiving,
)
from skylarkmq.broker.pop.handles import Receipt
from skylarkmq.broker.pop.requests import Popped, PopRequest, pop_filter
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.v5 import schema_pb2 as v5
from skylarkmq.protocol.v5.codes import Code
from tests.broker.group_rig import GroupRig
from tests.support.fake_queues import Stored, record

CLIENT = "host@1@0@abc"
BROKER = "broker-a"
RECEIPTS = tuple(Receipt(0, 3, offset, 1_700_000_000_000) for offset in range(40))
HANDLES = tuple(receipt.to_text(BROKER) for receipt in RECEIPTS)
HOURS_12_S = 12 * 3600


class ScriptedPop:
    """A pop service: `ready` is what the next receive gets, `known` the receipts that are good."""

    def __init__(self) -> None:
        self.requests: list[PopRequest] = []
        self.ready: list[Popped] | Exception = []
        self.given_back: list[tuple[str, str, list[Receipt]]] = []
        self.known: set[Receipt] = set(RECEIPTS)
        self.calls: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self.receiver = self.settlement = self

    async def receive(self, request: PopRequest, remote_address: str) -> list[Popped]:
        self.requests.append(request)
        await asyncio.sleep(0)
        if isinstance(self.ready, Exception):
            raise self.ready
        return self.ready

    def give_back(self, group: str, topic: str, receipts: Iterable[Receipt]) -> None:
        self.given_back.append((group, topic, list(receipts)))

    async def ack_all(self, group: str, topic: str, receipts: Sequence[Receipt]) -> list[bool]:
        return [self._end("ack", group, topic, receipt) for receipt in receipts]

    async def forward_to_dlq(self, group: str, topic: str, receipt: Receipt) -> bool:
        return self._end("forward", group, topic, receipt)

    async def change_invisible(
        self, group: str, topic: str, receipt: Receipt, invisible_ms: int, *, suspends: bool
    ) -> Receipt | None:
        name = "suspend" if suspends else "change"
        is_known = self._end(name, group, topic, receipt, invisible_ms)
        return receipt._replace(serial=receipt.serial + 1) if is_known else None

    def _end(self, name: str, group: str, topic: str, receipt: Receipt, *more: int) -> bool:
        self.calls.append((name, group, topic, receipt, *more))
        if self.error is not None:
            raise self.error
        return receipt in self.known


class Rig(GroupRig):
    """The handlers over real tables; `sent` is what the client got."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.start()
        self.topic("orders")
        self.pop = ScriptedPop()
        self.noted: list[tuple[str, str, str]] = []
        self.note_error: Exception | None = None
        self.request_timeout_s = 3.0
        self.sent: list[v5.ReceiveMessageResponse] = []
        self.break_after = -1  # messages that go out before the stream breaks
        self.handlers = Receiving(
            self.context,
            self.pop,  # type: ignore[arg-type]
            self._note,
            self.clock,
        )

    def _note(self, call: Call, group: str, topic: str, expression: v5.FilterExpression) -> float:
        self.noted.append((call.client_id, group, topic))
        if self.note_error is not None:
            raise self.note_error
        return self.request_timeout_s

    def hold(self, *bodies: bytes) -> None:
        """Let the next receive get these."""
        self.pop.ready = [
            Popped(RECEIPTS[offset], record(0, "orders", 3, offset, Stored(body, {})), 1)
            for offset, body in enumerate(bodies)
        ]

    async def send(self, response: v5.ReceiveMessageResponse) -> None:
        if len(self.sent) == self.break_after:
            raise ConnectionResetError
        self.sent.append(response)

    async def receive(
        self, request: v5.ReceiveMessageRequest | None = None, *, deadline_s: float | None = None
    ) -> int:
        """Receive; return the code that the client gets."""
        call = Call(CLIENT, peer="192.0.2.1:5000")
        if deadline_s is not None:
            call.deadline_s = self.clock.monotonic() + deadline_s
        self.sent = []
        try:
            await self.handlers.receive_message(call, request or receive_request(), self.send)
        except Exception as error:
            return failure(error, "ReceiveMessage", call).code
        return self.sent[0].status.code

    async def answer(self, request: Any) -> Any:
        """Ask one of the unary calls; return its answer, or the status that it fails with."""
        call = Call(CLIENT, peer="192.0.2.1:5000")
        (found,) = [rpc for rpc in self.handlers.rpcs() if rpc.request is type(request)]
        try:
            return await found.handler(call, request)
        except RpcRefused as error:
            return found.answer(failure(error, found.name, call))

    @property
    def wanted(self) -> PopRequest:
        return self.pop.requests[-1]


def receive_request(
    topic: str = "orders", group: str = "group", **fields: Any
) -> v5.ReceiveMessageRequest:
    fields.setdefault("invisible_duration", {"seconds": 30})
    fields.setdefault("batch_size", 16)
    return v5.ReceiveMessageRequest(
        group=v5.Resource(name=group),
        message_queue=v5.MessageQueue(topic=v5.Resource(name=topic), id=-1),
        **fields,
    )


def ack_request(*handles: str, group: str = "group", topic: str = "orders") -> Any:
    return v5.AckMessageRequest(
        group=v5.Resource(name=group),
        topic=v5.Resource(name=topic),
        entries=[
            v5.AckMessageEntry(message_id=f"id{place}", receipt_handle=handle)
            for place, handle in enumerate(handles)
        ],
    )


def change_request(handle: str = HANDLES[0], seconds: int = 30, nanos: int = 0) -> Any:
    return v5.ChangeInvisibleDurationRequest(
        group=v5.Resource(name="group"),
        topic=v5.Resource(name="orders"),
        receipt_handle=handle,
        invisible_duration={"seconds": seconds, "nanos": nanos},
    )


def forward_request(handle: str = HANDLES[0]) -> Any:
    return v5.ForwardMessageToDeadLetterQueueRequest(
        group=v5.Resource(name="group"), topic=v5.Resource(name="orders"), receipt_handle=handle
    )


def kinds(sent: Sequence[v5.ReceiveMessageResponse]) -> list[str | None]:
    return [response.WhichOneof("content") for response in sent]


# Receive


async def test_messages_stand_between_status_and_time() -> None:
    rig = Rig()
    rig.hold(b"a", b"b")
    assert await rig.receive() == Code.OK

    assert kinds(rig.sent) == ["status", "message", "message", "delivery_timestamp"]
    first, second = (response.message for response in rig.sent[1:3])
    assert (first.body, second.body) == (b"a", b"b")
    assert first.topic.name == "orders"
    assert first.system_properties.receipt_handle == HANDLES[0]
    assert second.system_properties.receipt_handle == HANDLES[1]
    assert rig.sent[-1].delivery_timestamp.ToMilliseconds() == rig.clock.now_ms()
    assert not rig.pop.given_back
    assert rig.noted == [(CLIENT, "group", "orders")]


async def test_nothing_is_a_status_of_its_own() -> None:
    rig = Rig()
    assert await rig.receive() == Code.MESSAGE_NOT_FOUND
    assert kinds(rig.sent) == ["status", "delivery_timestamp"]


async def test_what_pop_is_asked() -> None:
    rig = Rig()
    expression = v5.FilterExpression(type=v5.TAG, expression="a || b")
    request = receive_request(
        filter_expression=expression,
        batch_size=8,
        invisible_duration={"seconds": 11, "nanos": 500_000_000},
        long_polling_timeout={"seconds": 7},
        attempt_id="attempt-1",
    )
    request.message_queue.id = 2
    await rig.receive(request)

    assert rig.wanted == PopRequest(
        group="group",
        topic="orders",
        client_id=CLIENT,
        matches=pop_filter("TAG", "a || b", sql_enabled=rig.config.enable_property_filter),
        count=8,
        invisible_ms=11_500,
        until_s=rig.clock.monotonic() + 7,
        attempt_id="attempt-1",
    )
    request.message_queue.topic.resource_namespace = "NS"
    rig.hold(b"a")
    await rig.receive(request)
    assert rig.sent[1].message.topic.resource_namespace == "NS"


async def test_an_ordered_group() -> None:
    rig = Rig()
    group = rig.groups.find("group")
    assert group is not None
    rig.groups.update(msgspec.structs.replace(group, consume_message_orderly=True))
    await rig.receive()
    assert rig.wanted.is_fifo


@pytest.mark.parametrize(("asked", "count"), [(33, 32), (1 << 30, 32), (1, 1), (0, 1), (-5, 1)])
async def test_the_batch_is_cut(asked: int, count: int) -> None:
    rig = Rig()
    await rig.receive(receive_request(batch_size=asked))
    assert rig.wanted.count == count


@pytest.mark.parametrize(
    ("seconds", "nanos", "code"),
    [
        (10, 0, Code.MESSAGE_NOT_FOUND),
        (9, 999_999_999, Code.ILLEGAL_INVISIBLE_TIME),
        (HOURS_12_S, 0, Code.MESSAGE_NOT_FOUND),
        (HOURS_12_S, 1_000_000, Code.ILLEGAL_INVISIBLE_TIME),
        (0, 0, Code.ILLEGAL_INVISIBLE_TIME),
        (-1, 0, Code.ILLEGAL_INVISIBLE_TIME),
        ((1 << 63) - 1, (1 << 31) - 1, Code.ILLEGAL_INVISIBLE_TIME),
        (-(1 << 63), -(1 << 31), Code.ILLEGAL_INVISIBLE_TIME),
    ],
)
async def test_limits_of_the_invisible_time(seconds: int, nanos: int, code: int) -> None:
    rig = Rig()
    request = receive_request(invisible_duration={"seconds": seconds, "nanos": nanos})
    assert await rig.receive(request) == code
    assert len(rig.pop.requests) == (code == Code.MESSAGE_NOT_FOUND)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (9, "the invisibleTime is too small. min is 10000"),
        (HOURS_12_S + 1, "the invisibleTime is too large. max is 43200000"),
    ],
)
async def test_refusals_have_the_words_that_programs_look_for(seconds: int, said: str) -> None:
    rig = Rig()
    request = receive_request(invisible_duration={"seconds": seconds})
    with pytest.raises(RpcRefused, match=said):
        await rig.handlers.receive_message(Call(CLIENT, peer="192.0.2.1:5000"), request, rig.send)
    (entry,) = (await rig.answer(ack_request("made up"))).entries
    assert "INVALID_RECEIPT_HANDLE" in entry.status.message


async def test_a_push_consumer_names_no_invisible_time() -> None:
    rig = Rig()
    await rig.receive(receive_request(auto_renew=True, invisible_duration={"seconds": 1}))
    assert (rig.wanted.invisible_ms, rig.wanted.is_renewed) == (RENEWED_MS, True)
    await rig.receive()
    assert not rig.wanted.is_renewed


@pytest.mark.parametrize(
    ("poll", "deadline_s", "wait_s"),
    [
        (None, None, POLL_MAX_S),
        ({"seconds": 40}, 43.0, POLL_MAX_S),
        ({"seconds": 3}, 6.0, 3.0),
        ({"nanos": 100_000_000}, 3.1, 0.1),
        ({"seconds": 3}, 3.0, 3.0 - DEADLINE_MARGIN_S),
        ({}, 3.0, 0.0),
        ({"seconds": -5}, 3.0, 0.0),
        ({"seconds": (1 << 63) - 1}, 60 * 365 * 86_400.0, POLL_MAX_S),
    ],
)
async def test_the_poll_ends_before_the_client_stops_waiting(
    poll: dict[str, int] | None, deadline_s: float | None, wait_s: float
) -> None:
    rig = Rig()
    request = receive_request() if poll is None else receive_request(long_polling_timeout=poll)
    await rig.receive(request, deadline_s=deadline_s)
    assert rig.wanted.until_s - rig.clock.monotonic() == pytest.approx(wait_s)
    assert DEADLINE_MARGIN_S >= 0.1


@pytest.mark.parametrize(
    ("deadline_s", "request_timeout_s", "wait_s"),
    [
        (40.0, 3.0, POLL_MAX_S),
        (23.0, 3.0, POLL_MAX_S),
        (13.0, 3.0, 11.5),
        (13.0, 6.0, 10.0),
        (13.0, 30.0, POLL_MIN_S),
        (6.0, 3.0, POLL_MIN_S),
        (4.0, 3.0, 4.0 - DEADLINE_MARGIN_S),
    ],
)
async def test_a_poll_without_a_time_leaves_the_answer_half_a_request_timeout(
    deadline_s: float, request_timeout_s: float, wait_s: float
) -> None:
    rig = Rig()
    rig.request_timeout_s = request_timeout_s
    await rig.receive(deadline_s=deadline_s)
    assert rig.wanted.until_s - rig.clock.monotonic() == pytest.approx(wait_s)


@pytest.mark.parametrize("deadline_s", [0.1, 0.0, -3.0])
async def test_a_deadline_that_leaves_no_time_for_an_answer(deadline_s: float) -> None:
    rig = Rig()
    rig.hold(b"a")
    assert await rig.receive(deadline_s=deadline_s) == Code.ILLEGAL_POLLING_TIME
    assert not rig.pop.requests


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ({"type": v5.TAG, "expression": "*"}, Code.MESSAGE_NOT_FOUND),
        ({"type": v5.FILTER_TYPE_UNSPECIFIED, "expression": "a"}, Code.MESSAGE_NOT_FOUND),
        ({"type": v5.SQL, "expression": "a > 5"}, Code.MESSAGE_NOT_FOUND),
        ({"type": v5.TAG, "expression": "||"}, Code.ILLEGAL_FILTER_EXPRESSION),
        ({"type": v5.TAG, "expression": "x" * 40_000}, Code.ILLEGAL_FILTER_EXPRESSION),
        ({"type": v5.SQL, "expression": "a >"}, Code.ILLEGAL_FILTER_EXPRESSION),
        ({"type": v5.SQL, "expression": ""}, Code.ILLEGAL_FILTER_EXPRESSION),
        ({"type": 7, "expression": "a"}, Code.ILLEGAL_FILTER_EXPRESSION),
    ],
)
async def test_filters(expression: dict[str, Any], code: int) -> None:
    rig = Rig(enable_property_filter=True)
    request = receive_request(filter_expression=v5.FilterExpression(**expression))
    assert await rig.receive(request) == code


async def test_filters_by_properties_may_be_forbidden() -> None:
    rig = Rig(enable_property_filter=False)
    expression = v5.FilterExpression(type=v5.SQL, expression="a > 5")
    request = receive_request(filter_expression=expression)
    assert await rig.receive(request) == Code.ILLEGAL_FILTER_EXPRESSION


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "nowhere"}, Code.TOPIC_NOT_FOUND),
        ({"topic": ""}, Code.ILLEGAL_TOPIC),
        ({"topic": "a b"}, Code.ILLEGAL_TOPIC),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, Code.ILLEGAL_TOPIC),
        ({"group": ""}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"group": "x" * 121}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"group": "CID_RMQ_SYS_TRANS"}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"attempt_id": "x" * ATTEMPT_ID_MAX}, Code.MESSAGE_NOT_FOUND),
        ({"attempt_id": "x" * (ATTEMPT_ID_MAX + 1)}, Code.BAD_REQUEST),
    ],
)
async def test_names(fields: dict[str, str], code: int) -> None:
    rig = Rig()
    assert await rig.receive(receive_request(**fields)) == code
    assert bool(rig.noted) == bool(rig.pop.requests) == (code == Code.MESSAGE_NOT_FOUND)


async def test_groups_are_made_where_they_may_be() -> None:
    rig = Rig()
    await rig.receive()
    assert "group" in rig.groups.table
    strict = Rig(auto_create_subscription_group=False)
    assert await strict.receive() == Code.CONSUMER_GROUP_NOT_FOUND


async def test_what_may_not_be_read() -> None:
    rig = Rig()
    rig.topic("written", perm=2)
    assert await rig.receive(receive_request("written")) == Code.FORBIDDEN
    await rig.receive()
    rig.groups.update(msgspec.structs.replace(rig.groups.table["group"], consume_enable=False))
    assert await rig.receive() == Code.FORBIDDEN
    assert await Rig(broker_permission=2).receive() == Code.FORBIDDEN


async def test_refusals_of_others_are_handed_on() -> None:
    rig = Rig()
    rig.pop.ready = RemoteProtocolError(ResponseCode.SYSTEM_BUSY, "polling full")
    assert await rig.receive() == Code.TOO_MANY_REQUESTS
    rig.note_error = RpcRefused(Code.FORBIDDEN, "the group is consumed by pulling")
    assert await rig.receive() == Code.FORBIDDEN
    assert len(rig.pop.requests) == 1  # nothing is taken for the one that was refused


async def test_a_damaged_message_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.hold(b"good", b"bad", b"good")
    assert isinstance(rig.pop.ready, list)
    damaged = bytearray(rig.pop.ready[1].record)
    damaged[88] ^= 1
    rig.pop.ready[1] = rig.pop.ready[1]._replace(record=bytes(damaged))
    with caplog.at_level(logging.ERROR):
        assert await rig.receive() == Code.OK
    assert kinds(rig.sent) == ["status", "message", "message", "delivery_timestamp"]
    assert len(caplog.records) == 1

    rig.pop.ready = [rig.pop.ready[1]]
    assert await rig.receive() == Code.MESSAGE_NOT_FOUND
    assert not rig.pop.given_back  # it would come again at once, for ever


async def test_large_bodies_leave_turns_to_others() -> None:
    rig = Rig()
    rig.hold(*[bytes(TURN_SIZE + 1)] * 8)
    call = asyncio.ensure_future(rig.receive())
    turns = 0
    while not call.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 8


# A call that breaks off


@pytest.mark.parametrize("break_after", range(4))
async def test_a_broken_stream_gives_back_all(break_after: int) -> None:
    rig = Rig()
    rig.hold(b"a", b"b")
    rig.break_after = break_after
    call = Call(CLIENT)
    with pytest.raises(ConnectionResetError):
        await rig.handlers.receive_message(call, receive_request(), rig.send)
    assert rig.pop.given_back == [("group", "orders", list(RECEIPTS[:2]))]


async def test_a_cancelled_call_gives_back_all() -> None:
    rig = Rig()
    rig.hold(b"a", b"b")
    full = asyncio.Event()

    async def send(response: v5.ReceiveMessageResponse) -> None:
        if response.HasField("message"):
            full.set()
            await asyncio.Event().wait()  # a client that does not read

    call = asyncio.ensure_future(
        rig.handlers.receive_message(Call(CLIENT), receive_request(), send)
    )
    await full.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert rig.pop.given_back == [("group", "orders", list(RECEIPTS[:2]))]


async def test_an_empty_answer_that_breaks_off_has_nothing_to_give_back() -> None:
    rig = Rig()
    rig.break_after = 1
    with pytest.raises(ConnectionResetError):
        await rig.handlers.receive_message(Call(CLIENT), receive_request(), rig.send)
    assert not rig.pop.given_back


# Acknowledgements


async def test_an_acknowledgement() -> None:
    rig = Rig()
    answer = await rig.answer(ack_request(HANDLES[5]))
    assert answer.status.code == Code.OK
    (entry,) = answer.entries
    assert (entry.message_id, entry.receipt_handle, entry.status.code) == ("id0", HANDLES[5], 20000)
    assert rig.pop.calls == [("ack", "group", "orders", RECEIPTS[5])]


async def test_entries_have_results_of_their_own() -> None:
    rig = Rig()
    rig.pop.known = {RECEIPTS[1]}
    handles = (HANDLES[0], HANDLES[1], "made up", "", HANDLES[1][:-1] + "x", "9" * 100_000)
    answer = await rig.answer(ack_request(*handles))

    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in answer.entries] == [
        Code.INVALID_RECEIPT_HANDLE,
        Code.OK,
        *[Code.INVALID_RECEIPT_HANDLE] * 4,
    ]
    assert [entry.receipt_handle for entry in answer.entries] == list(handles)
    assert [call[3] for call in rig.pop.calls] == [RECEIPTS[0], RECEIPTS[1]]


@pytest.mark.parametrize("count", [1, 2, ENTRIES_MAX])
async def test_a_common_result_is_that_of_the_call(count: int) -> None:
    rig = Rig()
    rig.pop.known = set()
    answer = await rig.answer(ack_request(*(HANDLES * 26)[:count]))
    assert answer.status.code == Code.INVALID_RECEIPT_HANDLE
    assert len(answer.entries) == count


@pytest.mark.parametrize("count", [0, ENTRIES_MAX + 1])
async def test_so_many_are_not_acknowledged_at_once(count: int) -> None:
    rig = Rig()
    answer = await rig.answer(ack_request(*(HANDLES * 26)[:count]))
    assert answer.status.code == Code.BAD_REQUEST
    assert not rig.pop.calls


async def test_an_acknowledgement_that_is_not_kept() -> None:
    rig = Rig()
    rig.pop.error = RemoteProtocolError(ResponseCode.SYSTEM_ERROR, "the disk is full")
    answer = await rig.answer(ack_request(HANDLES[0], "made up"))
    assert [entry.status.code for entry in answer.entries] == [
        Code.INTERNAL_SERVER_ERROR,
        Code.INVALID_RECEIPT_HANDLE,
    ]


# Change and forward


@pytest.mark.parametrize(
    ("seconds", "nanos", "invisible_ms"),
    [(0, 0, 0), (0, 1_000_000, 1), (30, 0, 30_000), (HOURS_12_S, 0, HOURS_12_S * 1000)],
)
async def test_a_change_gives_a_new_handle(seconds: int, nanos: int, invisible_ms: int) -> None:
    rig = Rig()
    answer = await rig.answer(change_request(HANDLES[0], seconds, nanos))
    assert answer.status.code == Code.OK
    receipt = RECEIPTS[0]
    assert answer.receipt_handle == receipt._replace(serial=receipt.serial + 1).to_text(BROKER)
    assert rig.pop.calls == [("change", "group", "orders", receipt, invisible_ms)]


async def test_a_change_may_suspend_the_message() -> None:
    rig, request = Rig(), change_request()
    request.MergeFromString(b"\x38\x01")  # field 7
    assert (await rig.answer(request)).status.code == Code.OK
    assert rig.pop.calls == [("suspend", "group", "orders", RECEIPTS[0], 30_000)]


@pytest.mark.parametrize(("seconds", "nanos"), [(HOURS_12_S, 1_000_000), (-1, 0), (0, -1)])
async def test_limits_of_a_change(seconds: int, nanos: int) -> None:
    rig = Rig()
    answer = await rig.answer(change_request(HANDLES[0], seconds, nanos))
    assert answer.status.code == Code.ILLEGAL_INVISIBLE_TIME
    assert not rig.pop.calls


@pytest.mark.parametrize("make", [change_request, forward_request])
@pytest.mark.parametrize(
    "handle", ["", "made up", HANDLES[0] + "0", HANDLES[9], RECEIPTS[0].to_text("other")]
)
async def test_handles_that_are_not_good(make: Any, handle: str) -> None:
    rig = Rig()
    rig.pop.known = set(RECEIPTS[:5])
    answer = await rig.answer(make(handle))
    assert answer.status.code == Code.INVALID_RECEIPT_HANDLE


async def test_a_message_goes_to_the_dead_letters() -> None:
    rig = Rig()
    answer = await rig.answer(forward_request())
    assert answer.status.code == Code.OK
    assert rig.pop.calls == [("forward", "group", "orders", RECEIPTS[0])]


@pytest.mark.parametrize("make", [ack_request, change_request, forward_request])
@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("topic", "", Code.ILLEGAL_TOPIC),
        ("topic", "RMQ_SYS_TRANS_HALF_TOPIC", Code.ILLEGAL_TOPIC),
        ("group", "a b", Code.ILLEGAL_CONSUMER_GROUP),
    ],
)
async def test_names_of_other_calls(make: Any, name: str, value: str, code: int) -> None:
    rig = Rig()
    request = make(HANDLES[0])
    getattr(request, name).name = value
    answer = await rig.answer(request)
    assert answer.status.code == code
    assert not rig.pop.calls
