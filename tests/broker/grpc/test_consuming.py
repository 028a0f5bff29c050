"""A consumer's calls over real pop consumption with its store and tables, by the test's clock."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.grpc.calls import Call, RpcRefused, failure
from skylarkmq.broker.grpc.receiving import Receiving
from skylarkmq.broker.pop.receiving import WAITING_MAX
from skylarkmq.protocol.bodies.group import (
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
)
from skylarkmq.protocol.tags_code import tags_code
from skylarkmq.protocol.v5 import schema_pb2 as v5
from skylarkmq.protocol.v5.codes import Code
from tests.broker.pop.pop_rig import DEAD, GROUP, TOPIC, PopRig
from tests.store.clean_rig import RARE_TIMERS

CLIENT = "host@1@0@abc"
MINUTE_S = 60


class Answer:
    """What the client of one receive has got; `room` lets it take more."""

    def __init__(self, room: int = 1000) -> None:
        self.frames: list[v5.ReceiveMessageResponse] = []
        self.task: asyncio.Task[None]
        self._room = asyncio.Semaphore(room)

    async def send(self, response: v5.ReceiveMessageResponse) -> None:
        await self._room.acquire()
        self.frames.append(response)

    @property
    def code(self) -> int:
        return self.frames[0].status.code

    @property
    def messages(self) -> list[v5.Message]:
        return [frame.message for frame in self.frames if frame.HasField("message")]

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    @property
    def handles(self) -> list[str]:
        return [message.system_properties.receipt_handle for message in self.messages]

    @property
    def attempts(self) -> list[int]:
        return [message.system_properties.delivery_attempt for message in self.messages]


class ConsumerRig(PopRig):
    """Clients of the gRPC protocol, without a transport."""

    def start(self, queues: int = 1, retry_max_times: int = 16) -> ConsumerRig:
        super().start(queues, retry_max_times)
        self.handlers = Receiving(self.context, self.pop, self._note, self.clock)
        return self

    def _note(self, call: Call, group: str, topic: str, expression: v5.FilterExpression) -> float:
        """Sessions are not there."""
        return 3.0

    def begin_receive(
        self, *, room: int = 1000, deadline_s: float | None = None, **fields: Any
    ) -> Answer:
        """Begin a receive, which may wait."""
        fields.setdefault("invisible_duration", {"seconds": 10})
        fields.setdefault("batch_size", 32)
        topic, client = fields.pop("topic", TOPIC), fields.pop("client", CLIENT)
        request = v5.ReceiveMessageRequest(
            group={"name": GROUP}, message_queue={"topic": {"name": topic}}, **fields
        )
        call = Call(client, peer="192.0.2.1:5000")
        if deadline_s is not None:
            call.deadline_s = self.clock.monotonic() + deadline_s
        answer = Answer(room)

        async def receive() -> None:
            try:
                await self.handlers.receive_message(call, request, answer.send)
            except Exception as error:
                refused = failure(error, "ReceiveMessage", call)
                await answer.send(v5.ReceiveMessageResponse(status=refused))

        answer.task = asyncio.create_task(receive())
        return answer

    async def take(self, **fields: Any) -> Answer:
        """Receive what is there, without waiting."""
        answer = self.begin_receive(long_polling_timeout={}, **fields)
        await self.rest()
        assert answer.task.done()
        return answer

    async def ask(self, request: Any) -> Any:
        """Ask one of the unary calls; return its answer."""
        (found,) = [rpc for rpc in self.handlers.rpcs() if rpc.request is type(request)]
        call = Call(CLIENT)
        try:
            return await found.handler(call, request)
        except RpcRefused as error:
            return found.answer(failure(error, found.name, call))

    async def done(self, handle: str, topic: str = TOPIC, group: str = GROUP) -> int:
        """Acknowledge; return the code."""
        request = v5.AckMessageRequest(
            group={"name": group}, topic={"name": topic}, entries=[{"receipt_handle": handle}]
        )
        code: int = (await self.ask(request)).status.code
        return code

    async def change(self, handle: str, seconds: int) -> tuple[int, str]:
        """Change the invisible time; return the code and the new handle."""
        answer = await self.ask(
            v5.ChangeInvisibleDurationRequest(
                group={"name": GROUP},
                topic={"name": TOPIC},
                receipt_handle=handle,
                invisible_duration={"seconds": seconds},
            )
        )
        return answer.status.code, answer.receipt_handle

    async def forward(self, handle: str) -> int:
        """Send to the dead letters; return the code."""
        request = v5.ForwardMessageToDeadLetterQueueRequest(
            group={"name": GROUP}, topic={"name": TOPIC}, receipt_handle=handle
        )
        task = asyncio.create_task(self.ask(request))
        await self.rest()
        code: int = (await task).status.code
        return code


async def test_what_is_acknowledged_is_done() -> None:
    rig = ConsumerRig().start()
    rig.send_all(3)
    answer = await rig.take()
    assert (answer.code, answer.bodies, answer.attempts) == (20000, [b"0", b"1", b"2"], [1, 1, 1])
    assert (await rig.take()).code == Code.MESSAGE_NOT_FOUND

    for handle in reversed(answer.handles):
        assert await rig.done(handle) == Code.OK
    assert rig.mark() == 3
    await rig.advance(MINUTE_S)
    assert (await rig.take()).code == Code.MESSAGE_NOT_FOUND
    assert await rig.done(answer.handles[0], group="other") == Code.INVALID_RECEIPT_HANDLE
    assert await rig.done(answer.handles[0], topic="other") == Code.INVALID_RECEIPT_HANDLE


async def test_what_is_not_acknowledged_comes_again_with_another_handle() -> None:
    rig = ConsumerRig().start()
    rig.send_all(1)
    first = await rig.take()
    await rig.advance(9)
    assert not (await rig.take()).messages
    await rig.advance(2)
    second = await rig.take()

    assert (second.bodies, second.attempts) == ([b"0"], [2])
    assert second.messages[0].topic.name == TOPIC
    assert await rig.done(first.handles[0]) == Code.INVALID_RECEIPT_HANDLE
    await rig.advance(11)
    third = await rig.take()  # the old handle ended nothing
    assert third.attempts == [3]
    assert await rig.done(third.handles[0]) == Code.OK


async def test_a_poll_waits_for_a_message() -> None:
    rig = ConsumerRig().start()
    answer = rig.begin_receive(deadline_s=23)
    await rig.advance(19)
    assert not answer.frames
    rig.send_all(1)
    await rig.rest()
    assert answer.bodies == [b"0"]


@pytest.mark.parametrize(("poll", "deadline_s"), [({}, 3.0), ({"seconds": 20}, 3.0), (None, 5.0)])
async def test_an_empty_poll_is_answered_before_the_client_stops_waiting(
    poll: dict[str, int] | None, deadline_s: float
) -> None:
    rig = ConsumerRig().start()
    fields: dict[str, Any] = {} if poll is None else {"long_polling_timeout": poll}
    answer = rig.begin_receive(deadline_s=deadline_s, **fields)
    await rig.advance(deadline_s - 0.1)
    assert answer.code == Code.MESSAGE_NOT_FOUND
    assert answer.task.done()


async def test_a_poll_that_is_cancelled_takes_nothing() -> None:
    rig = ConsumerRig().start()
    first, second = rig.begin_receive(), rig.begin_receive()
    await rig.rest()
    first.task.cancel()
    await rig.rest()
    rig.send_all(1)
    await rig.rest()
    assert (first.messages, second.bodies) == ([], [b"0"])


async def test_a_poll_that_is_cancelled_as_it_is_woken_takes_nothing() -> None:
    for turns in range(6):
        rig = ConsumerRig().start()
        first = rig.begin_receive()
        await rig.rest()
        rig.send_all(1)
        for _ in range(turns):
            await asyncio.sleep(0)
        first.task.cancel()
        await rig.advance(1.5)
        second = await rig.take()
        if first.messages and len(first.frames) == 3:
            assert not second.messages  # it was over before
        else:
            assert (second.bodies, second.attempts) == ([b"0"], [1])


async def test_an_answer_that_breaks_off_in_the_middle_comes_again_soon() -> None:
    rig = ConsumerRig().start()
    rig.send_all(5)
    answer = rig.begin_receive(room=3, invisible_duration={"seconds": 3600})
    await rig.rest()
    assert len(answer.messages) == 2
    answer.task.cancel()
    await rig.rest()
    assert not (await rig.take()).messages
    await rig.advance(1.2)
    again = await rig.take()

    assert again.bodies == [b"0", b"1", b"2", b"3", b"4"]
    assert again.attempts == [1] * 5  # nobody has tried them
    for handle in again.handles:
        assert await rig.done(handle) == Code.OK
    assert rig.mark() == 5


async def test_a_change_ends_the_old_handle() -> None:
    rig = ConsumerRig().start()
    rig.send_all(1)
    first = (await rig.take()).handles[0]
    code, second = await rig.change(first, 30)
    assert code == Code.OK
    assert await rig.change(first, 30) == (Code.INVALID_RECEIPT_HANDLE, "")
    assert await rig.done(first) == Code.INVALID_RECEIPT_HANDLE
    await rig.advance(29)
    assert not (await rig.take()).messages
    assert await rig.done(second) == Code.OK
    assert await rig.change(second, 0) == (Code.INVALID_RECEIPT_HANDLE, "")
    await rig.advance(MINUTE_S)
    assert not (await rig.take()).messages  # what is acknowledged never comes again


async def test_a_message_can_be_given_back_at_once() -> None:
    rig = ConsumerRig().start()
    rig.send_all(1)
    poll = rig.begin_receive(invisible_duration={"seconds": 3600})
    await rig.rest()
    waiting = rig.begin_receive()
    assert (await rig.change(poll.handles[0], 0))[0] == Code.OK
    await rig.advance(1)
    assert (waiting.bodies, waiting.attempts) == ([b"0"], [2])


async def test_a_dead_letter_is_stored_once() -> None:
    rig = ConsumerRig().start()
    rig.send_all(1)
    (handle,) = (await rig.take()).handles
    assert await rig.forward(handle) == Code.OK
    assert await rig.forward(handle) in (Code.OK, Code.INVALID_RECEIPT_HANDLE)
    assert [message.body for message in rig.stored(DEAD)] == [b"0"]
    assert await rig.change(handle, 0) == (Code.INVALID_RECEIPT_HANDLE, "")
    await rig.advance(MINUTE_S)
    assert not (await rig.take()).messages

    dead = (await rig.take(topic=DEAD)).messages[0]
    assert dead.topic.name == DEAD
    origin = dead.system_properties.dead_letter_queue
    assert (origin.topic, origin.message_id) == (TOPIC, "0")


async def test_attempts_end_in_the_dead_letters() -> None:
    rig = ConsumerRig().start(retry_max_times=2)
    rig.send_all(1)
    attempts: list[int] = []
    for _ in range(4):
        attempts += (await rig.take()).attempts
        await rig.advance(11)
    assert attempts == [1, 2, 3]
    assert [message.body for message in rig.stored(DEAD)] == [b"0"]


@pytest.mark.parametrize(
    ("kind", "text", "bodies"),
    [
        (v5.TAG, "a || c", [b"1", b"3"]),
        (v5.TAG, "*", [b"1", b"2", b"3"]),
        (v5.SQL, "size > 5", [b"2"]),
        (v5.SQL, "TAGS = 'c'", [b"3"]),
    ],
)
async def test_filters(kind: v5.FilterType, text: str, bodies: list[bytes]) -> None:
    rig = ConsumerRig(enable_property_filter=True).start()
    rig.send(b"1", tag="a")
    rig.send(b"2", properties=b"TAGS\x01b\x02size\x019", tags_code=tags_code("b"))
    rig.send(b"3", tag="c")
    answer = await rig.take(filter_expression={"type": kind, "expression": text})
    assert answer.bodies == bodies


# Push consumers


async def test_a_listener_may_take_75_seconds() -> None:
    rig = ConsumerRig().start()
    rig.send_all(1)
    answer = await rig.take(auto_renew=True)
    polls: list[Answer] = []
    for _ in range(5):
        polls.append(rig.begin_receive(auto_renew=True, long_polling_timeout={"seconds": 15}))
        await rig.advance(15)

    assert not any(poll.messages for poll in polls)
    assert await rig.done(answer.handles[0]) == Code.OK
    await rig.advance(2 * 3600)
    assert not (await rig.take()).messages


@pytest.mark.parametrize(
    ("policy", "wait_s"),
    [
        (None, 1),
        ({"customized_retry_policy": CustomizedRetryPolicy(next=(600_000, 1))}, 600),
        (
            {
                "type": "EXPONENTIAL",
                "exponential_retry_policy": ExponentialRetryPolicy(initial=300_000),
            },
            300,
        ),
    ],
)
async def test_a_listener_that_takes_hours_loses_its_message(
    policy: dict[str, Any] | None, wait_s: int
) -> None:
    rig = ConsumerRig(**RARE_TIMERS).start()
    if policy is not None:
        rig.group(group_retry_policy=GroupRetryPolicy(**policy))
    rig.send_all(1)
    answer = await rig.take(auto_renew=True)
    await rig.advance(3 * 3600 + wait_s - 2)
    assert not (await rig.take()).messages
    await rig.advance(4)
    assert (await rig.take()).attempts == [2]
    assert await rig.done(answer.handles[0]) == Code.INVALID_RECEIPT_HANDLE


async def test_a_push_consumer_says_when_a_message_comes_again() -> None:
    rig = ConsumerRig().start()
    rig.send_all(1)
    (handle,) = (await rig.take(auto_renew=True)).handles
    assert (await rig.change(handle, 5))[0] == Code.OK
    await rig.advance(4)
    assert not (await rig.take()).messages
    await rig.advance(2)
    assert (await rig.take()).attempts == [2]


async def test_what_a_lost_push_consumer_has_comes_again_soon() -> None:
    rig = ConsumerRig().start()
    rig.send_all(2)
    await rig.take(auto_renew=True, batch_size=1)
    await rig.take(auto_renew=True, batch_size=1, client="other")
    rig.pop.settlement.release_client(CLIENT, GROUP)
    await rig.advance(0.5)
    assert not (await rig.take()).messages
    await rig.advance(1)
    assert (await rig.take()).bodies == [b"0"]


async def test_what_a_simple_consumer_has_stays_its_own() -> None:
    """Its handles may be in other hands: it has said for how long they are good."""
    rig = ConsumerRig().start()
    rig.send_all(1)
    (handle,) = (await rig.take(invisible_duration={"seconds": 60})).handles
    rig.pop.settlement.release_client(CLIENT, GROUP)
    await rig.advance(30)
    assert await rig.done(handle) == Code.OK


# Order


async def test_an_ordered_attempt_is_answered_again() -> None:
    rig = ConsumerRig().start()
    rig.group(consume_message_orderly=True)
    rig.send_all(3)
    first = await rig.take(attempt_id="a", batch_size=2)
    assert not (await rig.take(attempt_id="b")).messages
    again = await rig.take(attempt_id="a", batch_size=2)

    assert (again.bodies, again.attempts) == ([b"0", b"1"], [1, 1])
    assert set(again.handles).isdisjoint(first.handles)
    assert await rig.done(first.handles[0]) == Code.INVALID_RECEIPT_HANDLE
    for handle in again.handles:
        assert await rig.done(handle) == Code.OK
    assert (await rig.take(attempt_id="b")).bodies == [b"2"]


async def test_an_ordered_answer_that_breaks_off_keeps_the_order() -> None:
    rig = ConsumerRig().start()
    rig.group(consume_message_orderly=True)
    rig.send_all(3)
    answer = rig.begin_receive(room=2, attempt_id="a")
    await rig.rest()
    answer.task.cancel()
    await rig.advance(1.2)
    again = await rig.take(attempt_id="b")
    assert (again.bodies, again.attempts) == ([b"0", b"1", b"2"], [1, 1, 1])


# Many who wait


async def test_so_many_polls_wait_and_no_more() -> None:
    rig = ConsumerRig().start()
    hour = {"seconds": 3600}
    polls = [rig.begin_receive(deadline_s=23, invisible_duration=hour) for _ in range(WAITING_MAX)]
    await rig.rest()
    assert rig.pop.receiver.waiting(GROUP, TOPIC) == WAITING_MAX
    refused = rig.begin_receive()
    await rig.rest()
    assert refused.code == Code.TOO_MANY_REQUESTS

    rig.send_all(1)
    await rig.rest()
    assert sum(len(poll.messages) for poll in polls) == 1
    await rig.advance(21)
    assert all(poll.task.done() for poll in polls)
    assert rig.pop.receiver.waiting(GROUP, TOPIC) == 0
    assert [poll.code for poll in polls].count(Code.MESSAGE_NOT_FOUND) == WAITING_MAX - 1


async def test_polls_that_come_and_go_leave_nothing() -> None:
    rig = ConsumerRig().start()

    async def round_of_polls() -> None:
        polls = [rig.begin_receive() for _ in range(200)]
        await rig.rest()
        for poll in polls:
            poll.task.cancel()
        await rig.advance(25)  # this clock forgets a timer when its time has come

    await round_of_polls()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(5):
            await round_of_polls()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 200_000  # of 1,000 polls
    assert rig.pop.receiver.waiting(GROUP, TOPIC) == 0
    assert rig.pop.receiver.waiting_count == 0
