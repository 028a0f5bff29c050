"""Which broker handles a call at an endpoint that stands for several; nothing is sent anywhere."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.access.forwarded import CLIENT
from skylarkmq.broker.forwarding import cluster as limits
from skylarkmq.broker.forwarding.cluster import ClusterRpcs, broker_of_group
from skylarkmq.broker.forwarding.forwarder import NotForwarded
from skylarkmq.broker.grpc.calls import OK, Call, Rpc, RpcHandlers, RpcRefused, rpc, status
from skylarkmq.broker.grpc.names import transaction_id
from skylarkmq.broker.grpc.other_brokers import OtherBroker
from skylarkmq.broker.grpc.queue_choice import queue_of_group
from skylarkmq.broker.grpc.receiving import ENTRIES_MAX
from skylarkmq.broker.grpc.sending import MESSAGES_MAX
from skylarkmq.broker.pop.handles import MAIN, Receipt
from skylarkmq.broker.processor.recall import recall_handle
from skylarkmq.protocol.bodies.route import QueueData
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.v5 import schema_pb2 as v5
from skylarkmq.protocol.v5.codes import Code
from tests.broker.grpc.session_rig import a_call, resource
from tests.support.manual_clock import settle

TOPIC = "orders"
HERE = "own"
ANSWERS: dict[str, Any] = {
    "AckMessage": (v5.AckMessageRequest, v5.AckMessageResponse),
    "ChangeInvisibleDuration": (
        v5.ChangeInvisibleDurationRequest,
        v5.ChangeInvisibleDurationResponse,
    ),
    "ForwardMessageToDeadLetterQueue": (
        v5.ForwardMessageToDeadLetterQueueRequest,
        v5.ForwardMessageToDeadLetterQueueResponse,
    ),
    "EndTransaction": (v5.EndTransactionRequest, v5.EndTransactionResponse),
    "RecallMessage": (v5.RecallMessageRequest, v5.RecallMessageResponse),
    "SendMessage": (v5.SendMessageRequest, v5.SendMessageResponse),
}


def answer_of(name: str, request: Any, broker_name: str) -> Any:
    """What a broker of these tests answers: whatever it is given is done, and it says by whom."""
    answer = ANSWERS[name][1](status=OK)
    if name == "SendMessage":
        for message in request.messages:
            answer.entries.add(status=OK, message_id=f"{broker_name}:{message.body.decode()}")
    if name == "AckMessage":
        for entry in request.entries:
            answer.entries.add(
                status=OK, message_id=entry.message_id, receipt_handle=entry.receipt_handle
            )
    return answer


class Local(RpcHandlers):
    """The handlers of this broker."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def rpcs(self) -> list[Rpc]:
        def handler(name: str) -> Any:
            async def handle(call: Call, request: Any) -> Any:
                return self._rig.handled(HERE, name, request)

            return handle

        unary = [
            Rpc(name, request, response, handler(name))
            for name, (request, response) in ANSWERS.items()
        ]
        return [*super().rpcs(), *unary]

    @rpc("ReceiveMessage", v5.ReceiveMessageRequest, v5.ReceiveMessageResponse)
    async def receive_message(self, call: Call, request: Any, send: Any) -> None:
        self._rig.handled(HERE, "ReceiveMessage", request)
        await send(v5.ReceiveMessageResponse(status=OK))


class Rig:
    """An endpoint among brokers.

    Attributes:
        brokers: the other brokers of the topic, by name.
        unreachable: brokers that are not reached; True: it is not known whether they were.
        refused: by brokers as a whole.
        work: who did what, in order.
    """

    def __init__(self, *brokers: str) -> None:
        self.leads = True
        self.brokers = {name: other_broker(name) for name in brokers}
        self.unreachable: dict[str, bool] = {}
        self.refused: dict[str, Exception] = {}
        self.work: list[tuple[str, str]] = []
        self.requests: list[Any] = []
        self.noted: list[tuple[str, str, str]] = []
        self.answered: Counter[tuple[str, int]] = Counter()
        self.topics = {TOPIC: TopicConfig(topic_name=TOPIC)}
        self.is_cold = False
        self.looks_until_found = 0
        self.refusal: Callable[[int], Exception | None] = lambda code: None
        self.frames: Sequence[v5.ReceiveMessageResponse] = ()
        self.has_ended = False
        self.rpcs = ClusterRpcs(
            [Local(self)],
            cast(Any, self),
            cast(Any, self),
            HERE,
            lambda name: self.topics.get(name),
            lambda code: self.refusal(code),
            self._note,
        )
        self.table = {each.name: each.handler for each in self.rpcs.rpcs()}

    def _note(self, call: Call, group: str, topic: str, expression: Any) -> None:
        assert topic == TOPIC
        self.noted.append((call.client_id, group, expression.expression))
        if group == "refused":
            raise RemoteProtocolError(ResponseCode.NO_PERMISSION, "others consume it otherwise")

    # As `OtherBrokers`

    def is_own(self, name: str) -> bool:
        return name == HERE and self.leads

    def known(self, topic: str) -> list[OtherBroker] | None:
        return None if self.is_cold else list(self.brokers.values())

    async def of(self, topic: str) -> list[OtherBroker]:
        self.is_cold = False
        return list(self.brokers.values())

    async def find(self, broker_name: str, topic: str) -> OtherBroker | None:
        assert topic == TOPIC
        return self.brokers.get(broker_name)

    async def again(self, topic: str, deadline_s: float | None) -> bool:
        assert topic == TOPIC
        if deadline_s is None or not self.looks_until_found:
            return False
        self.looks_until_found -= 1
        if not self.looks_until_found:
            self.unreachable.clear()
        return True

    # As `Forwarder`

    async def unary(self, rpc: Rpc, to: OtherBroker, call: Call, request: Any) -> Any:
        self._reach(to)
        return self.handled(to.name, rpc.name, request)

    @asynccontextmanager
    async def stream(self, rpc: Rpc, to: OtherBroker, call: Call) -> AsyncGenerator[Any]:
        self._reach(to)
        self.work.append((to.name, "opened"))
        frames = iter(self.frames)

        async def write(data: bytes) -> None:
            self.handled(to.name, rpc.name, v5.ReceiveMessageRequest.FromString(data))

        async def read() -> bytes | None:
            frame = next(frames, None)
            return None if frame is None else frame.SerializeToString()

        try:
            yield SimpleNamespace(
                write=write, end=lambda: None, read=read, has_ended=self.has_ended
            )
        finally:
            self.work.append((to.name, "left"))

    async def polled(self, stream: Any) -> bytes | None:
        frame: bytes | None = await stream.read()
        return frame

    def count(self, to: OtherBroker, code: int) -> None:
        self.answered[to.name, code] += 1

    def _reach(self, to: OtherBroker) -> None:
        if to.name in self.unreachable:
            reached = self.unreachable[to.name]
            raise NotForwarded(Code.INTERNAL_SERVER_ERROR, f"no way to {to.name}", reached=reached)

    def handled(self, broker_name: str, name: str, request: Any) -> Any:
        self.work.append((broker_name, name))
        self.requests.append(request)
        if broker_name in self.refused:
            raise self.refused[broker_name]
        return None if name == "ReceiveMessage" else answer_of(name, request, broker_name)

    # As a client

    async def call(self, name: str, request: Any, call: Call | None = None) -> Any:
        return await self.table[name](call or a_call(), request)

    async def by(self, name: str, request: Any, call: Call | None = None) -> str:
        """Which broker handled a call."""
        self.work.clear()
        await self.call(name, request, call)
        ((broker_name, done),) = self.work
        assert done == name
        return broker_name

    async def sent(self, *messages: v5.Message) -> list[str]:
        """Which broker took each message, by the answer, in order."""
        answer = await self.call("SendMessage", v5.SendMessageRequest(messages=messages))
        names = [entry.message_id.partition(":") for entry in answer.entries]
        assert [body for _, _, body in names] == [each.body.decode() for each in messages]
        return [name for name, _, _ in names]

    async def receive(
        self, broker_name: str = "", call: Call | None = None, group: str = "g"
    ) -> list[Any]:
        got: list[Any] = []

        async def send(frame: Any) -> None:
            got.append(frame)

        await self.table["ReceiveMessage"](call or a_call(), receive_of(broker_name, group), send)
        return got


def other_broker(name: str, perm: int = 6, queues: int = 4) -> OtherBroker:
    data = QueueData(broker_name=name, perm=perm, read_queue_nums=queues, write_queue_nums=queues)
    return OtherBroker(data, f"{name}:8081", f"{name}.internal:8081")


def forwarded() -> Call:
    return a_call(metadata={CLIENT: "192.0.2.5:1"})


def handle(broker_name: str, offset: int = 7) -> str:
    return Receipt(MAIN, 0, offset, 1).to_text(broker_name)


def ack(*handles: str) -> v5.AckMessageRequest:
    entries = [
        v5.AckMessageEntry(message_id=f"m{number}", receipt_handle=each)
        for number, each in enumerate(handles)
    ]
    return v5.AckMessageRequest(group=resource("g"), topic=resource(TOPIC), entries=entries)


def message(body: str = "x", group: str = "", topic: str = TOPIC) -> v5.Message:
    made = v5.Message(topic=resource(topic), body=body.encode())
    if group:
        made.system_properties.message_group = group
    return made


def named(name: str, broker_name: str) -> Any:
    """A call about something of a broker; of no broker: something that nobody made."""
    request = ANSWERS[name][0](topic=resource(TOPIC))
    if name == "EndTransaction":
        request.transaction_id = transaction_id("m", broker_name) if broker_name else "m"
    elif name == "RecallMessage":
        request.recall_handle = recall_handle(TOPIC, broker_name, 10**12, "m")
    elif name == "AckMessage":
        request.entries.add(receipt_handle=handle(broker_name) if broker_name else "made up")
    else:
        request.receipt_handle = handle(broker_name) if broker_name else "made up"
    return request


NAMED = [name for name in ANSWERS if name != "SendMessage"]


@pytest.mark.parametrize("name", NAMED)
async def test_the_broker_that_is_named(name: str) -> None:
    rig = Rig("b", "c")
    assert await rig.by(name, named(name, "b")) == "b"
    assert await rig.by(name, named(name, "c")) == "c"
    assert await rig.by(name, named(name, HERE)) == HERE
    assert rig.requests[1] == named(name, "c"), "as it came"


async def test_a_message_id_may_have_the_sign_before_a_broker_s_name() -> None:
    rig = Rig("b")
    for message_id in ("m", "m@x", "@", ""):
        request = named("EndTransaction", "b")
        request.transaction_id = transaction_id(message_id, "b")
        assert await rig.by("EndTransaction", request) == "b"


@pytest.mark.parametrize("name", NAMED)
async def test_what_names_no_broker_is_for_this_one(name: str) -> None:
    rig = Rig("b")
    assert await rig.by(name, named(name, "")) == HERE
    rig.leads = False
    rig.brokers[HERE] = other_broker(HERE)
    assert await rig.by(name, named(name, "")) == HERE
    assert rig.requests, "its master has it"


@pytest.mark.parametrize("name", NAMED)
async def test_a_broker_that_nobody_knows_may_come_back(name: str) -> None:
    rig = Rig("b")
    with pytest.raises(RpcRefused, match=r"'gone' .*may come back") as caught:
        await rig.call(name, named(name, "gone"))
    assert caught.value.code == Code.INTERNAL_SERVER_ERROR
    assert not rig.work


@pytest.mark.parametrize("name", [*NAMED, "SendMessage"])
async def test_what_was_forwarded_is_handled_here(name: str) -> None:
    rig = Rig("b")
    for broker_name in ("b", "gone") if name in NAMED else ("",):
        request = named(name, broker_name) if name in NAMED else v5.SendMessageRequest()
        assert await rig.by(name, request, forwarded()) == HERE
    if name == "AckMessage":
        assert await rig.by(name, ack(handle("b"), handle("gone")), forwarded()) == HERE
        assert await rig.by(name, ack(), forwarded()) == HERE


@pytest.mark.parametrize("name", [*NAMED, "SendMessage", "ReceiveMessage"])
async def test_this_broker_refuses_what_it_would_handle_and_nothing_else(name: str) -> None:
    rig = Rig("b")
    asked: list[int] = []

    def refusal(code: int) -> Exception:
        asked.append(code)
        return RemoteProtocolError(ResponseCode.SYSTEM_ERROR, "it is about to lead")

    rig.refusal = refusal
    rig.topics.clear()
    with pytest.raises(RemoteProtocolError, match="about to lead"):
        if name == "ReceiveMessage":
            await rig.receive(HERE)
        elif name == "SendMessage":
            await rig.call(name, v5.SendMessageRequest(messages=[message()]), forwarded())
        else:
            await rig.call(name, named(name, HERE))
    assert not rig.work and len(asked) == 1
    assert asked[0] in (
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.RECALL_MESSAGE,
        RequestCode.END_TRANSACTION,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    )
    if name == "ReceiveMessage":
        await rig.receive("b")
    elif name == "SendMessage":
        assert await rig.sent(message()) == ["b"]
    else:
        assert await rig.by(name, named(name, "b")) == "b"


async def test_nobody_asks_about_topics_that_cannot_be() -> None:
    rig = Rig("b")
    request = ack(handle("b"))
    request.topic.name = "no topic!"
    with pytest.raises(RpcRefused) as caught:
        await rig.call("AckMessage", request)
    assert caught.value.code == Code.ILLEGAL_TOPIC


# Acknowledgements of several brokers' messages


async def test_an_acknowledgement_is_split_and_put_together_in_order() -> None:
    rig = Rig("b", "c")
    rig.refused = {"c": RpcRefused(Code.FORBIDDEN, "not you")}
    names = ["b", HERE, "c", "b", "gone", "made up", "c"]
    handles = [each if each == "made up" else handle(each, at) for at, each in enumerate(names)]
    request = ack(*handles)
    answer = await rig.call("AckMessage", request)
    assert [entry.message_id for entry in answer.entries] == [f"m{at}" for at in range(7)]
    assert [entry.receipt_handle for entry in answer.entries] == handles
    assert [entry.status.code for entry in answer.entries] == [
        Code.OK,
        Code.OK,
        Code.FORBIDDEN,
        Code.OK,
        Code.INTERNAL_SERVER_ERROR,
        Code.OK,
        Code.FORBIDDEN,
    ]
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert sorted(name for name, _ in rig.work) == ["b", "c", HERE, HERE]
    pieces = {request.entries[0].message_id: request for request in rig.requests}
    assert [entry.message_id for entry in pieces["m0"].entries] == ["m0", "m3"]
    assert pieces["m0"].group.name == "g" and pieces["m0"].topic.name == TOPIC


async def test_an_acknowledgement_with_one_result_says_so() -> None:
    rig = Rig("b", "c")
    assert (await rig.call("AckMessage", ack(handle("b"), handle("c")))).status == OK
    rig.unreachable = {"b": False, "c": True}
    answer = await rig.call("AckMessage", ack(handle("b"), handle("c")))
    assert answer.status.code == Code.INTERNAL_SERVER_ERROR
    assert [entry.status.message for entry in answer.entries] == ["no way to b", "no way to c"]


async def test_a_bug_in_a_part_costs_that_part(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig("b", "c")
    rig.refused = {"b": ZeroDivisionError()}
    answer = await rig.call("AckMessage", ack(handle("b"), handle("c")))
    assert [entry.status.code for entry in answer.entries] == [Code.INTERNAL_SERVER_ERROR, Code.OK]
    assert "AckMessage of 'c@1'" in caplog.text


async def test_an_acknowledgement_of_a_thousand_brokers() -> None:
    rig = Rig("b")
    handles = [handle(f"nobody-{at}") for at in range(ENTRIES_MAX - 1)]
    answer = await rig.call("AckMessage", ack(*handles, handle("b")))
    assert [entry.receipt_handle for entry in answer.entries] == [*handles, handle("b")]
    assert [entry.status.code for entry in answer.entries] == [
        *[Code.INTERNAL_SERVER_ERROR] * len(handles),
        Code.OK,
    ]
    assert [len(request.entries) for request in rig.requests] == [1]


@pytest.mark.parametrize("count", [0, ENTRIES_MAX + 1])
async def test_an_acknowledgement_of_too_many_is_not_split(count: int) -> None:
    rig = Rig("b", "c")
    request = ack(*(handle("bc"[at % 2]) for at in range(count)))
    assert await rig.by("AckMessage", request) == HERE
    assert rig.requests == [request]


# Sends


async def test_sends_go_to_one_broker_after_the_other() -> None:
    rig = Rig("a", "z")
    took = [(await rig.sent(message()))[0] for _ in range(6)]
    assert took == ["a", HERE, "z"] * 2
    rig.topics["other"] = rig.topics[TOPIC]
    assert await rig.sent(message(topic="other")) == ["a"], "each topic by itself"
    assert await rig.sent(message("1"), message("2")) == ["a", "a"], "of one request together"


async def test_a_broker_that_is_not_reached_is_passed_over() -> None:
    rig = Rig("a", "b")
    rig.unreachable = {"a": False}
    assert [(await rig.sent(message()))[0] for _ in range(4)] == ["b", "b", HERE, "b"]
    rig.unreachable = {"a": False, "b": False}
    assert [(await rig.sent(message()))[0] for _ in range(3)] == [HERE] * 3
    rig.topics.clear()
    with pytest.raises(NotForwarded, match="no way to"):
        await rig.sent(message())


@pytest.mark.parametrize("group", ["", "g"])
async def test_a_call_waits_for_the_replica_that_leads_next(group: str) -> None:
    rig = Rig(HERE)
    rig.leads = False
    calls = [
        ("SendMessage", v5.SendMessageRequest(messages=[message("x", group)])),
        *((name, named(name, HERE)) for name in NAMED),
    ]
    for name, request in calls:
        rig.unreachable, rig.looks_until_found = {HERE: False}, 3
        if name != "AckMessage":  # whose entries have a status each
            with pytest.raises(NotForwarded, match="no way to"):
                await rig.call(name, request)  # its client does not say how long it waits
        assert await rig.by(name, request, a_call(deadline_s=3.0)) == HERE
        assert not rig.looks_until_found
        rig.unreachable, rig.looks_until_found = {HERE: True}, 3
        if name != "AckMessage":
            with pytest.raises(NotForwarded, match="no way to"):
                await rig.call(name, request, a_call(deadline_s=3.0))
            assert rig.looks_until_found == 3, "it may have arrived"


async def test_a_send_waits_while_no_replica_leads() -> None:
    rig = Rig(HERE)
    rig.leads, rig.looks_until_found = False, 3
    leader = rig.brokers.pop(HERE)

    async def again(topic: str, deadline_s: float | None) -> bool:
        rig.looks_until_found -= 1
        if not rig.looks_until_found:
            rig.brokers[HERE] = leader
        return True

    cast(Any, rig).again = again
    assert await rig.sent(message()) == [HERE]
    assert not rig.looks_until_found


async def test_nothing_waits_for_a_topic_that_is_not_there() -> None:
    rig = Rig(HERE)
    rig.leads, rig.looks_until_found = False, 3
    del rig.brokers[HERE]
    rig.topics.clear()
    calls = [("SendMessage", v5.SendMessageRequest(messages=[message()]))]
    calls += [(name, named(name, HERE)) for name in NAMED if name != "AckMessage"]
    for name, request in calls:
        with pytest.raises(RpcRefused, match="is known; it may come back"):
            await rig.call(name, request, a_call(deadline_s=3.0))
    assert rig.looks_until_found == 3


async def test_a_message_that_may_have_arrived_is_sent_to_nobody_else() -> None:
    rig = Rig("a", "b")
    rig.unreachable = {"a": True}
    with pytest.raises(NotForwarded, match="no way to a"):
        await rig.sent(message())
    assert not rig.work


async def test_an_answer_of_refusal_is_final() -> None:
    rig = Rig("a", "b")
    rig.refused = {"a": RpcRefused(Code.TOO_MANY_REQUESTS, "slow down")}
    with pytest.raises(RpcRefused, match="slow down"):
        await rig.sent(message())
    assert rig.work == [("a", "SendMessage")]


async def test_this_broker_is_passed_over_while_it_refuses() -> None:
    rig = Rig("z")
    rig.refusal = lambda code: RemoteProtocolError(ResponseCode.SYSTEM_ERROR, "not now")
    assert [(await rig.sent(message()))[0] for _ in range(4)] == ["z"] * 4
    rig.brokers.clear()
    with pytest.raises(RemoteProtocolError, match="not now"):
        await rig.sent(message())


async def test_brokers_where_nothing_may_be_written_get_nothing() -> None:
    rig = Rig()
    rig.brokers = {
        "read-only": other_broker("read-only", perm=4),
        "empty": other_broker("empty", queues=0),
        "b": other_broker("b"),
    }
    rig.topics[TOPIC] = TopicConfig(topic_name=TOPIC, perm=4)
    assert [(await rig.sent(message()))[0] for _ in range(3)] == ["b"] * 3
    assert await rig.sent(message(group="g")) == ["b"]
    del rig.brokers["b"]
    assert await rig.sent(message()) == [HERE], "this broker says why not"
    rig.leads = False
    rig.brokers[HERE] = other_broker(HERE, perm=4)
    assert await rig.sent(message()) == [HERE]


async def test_a_replica_that_follows_forwards_to_its_master() -> None:
    rig = Rig("b", HERE)
    rig.leads = False
    rig.refusal = lambda code: RemoteProtocolError(ResponseCode.SYSTEM_ERROR, "it follows")
    assert [(await rig.sent(message()))[0] for _ in range(4)] == ["b", HERE] * 2


async def test_what_was_known_of_this_broker_before_it_led_counts_no_more() -> None:
    rig = Rig("b", HERE)
    rig.topics[TOPIC] = TopicConfig(topic_name=TOPIC, perm=4)
    assert [(await rig.sent(message()))[0] for _ in range(2)] == ["b", "b"]
    rig.topics[TOPIC] = TopicConfig(topic_name=TOPIC)
    assert {(await rig.sent(message()))[0] for _ in range(2)} == {"b", HERE}


async def test_the_first_send_waits_for_the_name_servers() -> None:
    rig = Rig("a")
    rig.is_cold = True
    assert await rig.sent(message()) == ["a"]


async def test_a_group_has_one_broker() -> None:
    rig = Rig("b", "c")
    groups = [f"group-{number}" for number in range(30)]
    first = [(await rig.sent(message(group=group)))[0] for group in groups]
    assert set(first) == {"b", "c", HERE}
    assert await rig.sent(*(message(str(at), group) for at, group in enumerate(groups))) == first
    mixed = await rig.sent(message("1"), message("2", groups[0]), message("3"))
    assert mixed[1] == first[0] and mixed[0] == mixed[2]
    rig.unreachable = {"b": False, "c": False}
    for group, owner in zip(groups, first, strict=True):
        if owner == HERE:
            assert await rig.sent(message(group=group)) == [HERE]
        else:
            with pytest.raises(NotForwarded):  # its messages stay in order: nobody else has them
                await rig.sent(message(group=group))


async def test_what_one_broker_refuses_is_the_answer_to_its_messages_alone() -> None:
    rig = Rig("b")
    owners = {broker_of_group(group, ("b", HERE)): group for group in map(str, range(50))}
    rig.refused = {"b": RpcRefused(Code.ILLEGAL_MESSAGE_TAG, "what a tag")}
    request = v5.SendMessageRequest(
        messages=[message("1", owners["b"]), message("2", owners[HERE]), message("3", owners["b"])]
    )
    answer = await rig.call("SendMessage", request)
    assert [(entry.status.code, entry.message_id) for entry in answer.entries] == [
        (Code.ILLEGAL_MESSAGE_TAG, ""),
        (Code.OK, f"{HERE}:2"),
        (Code.ILLEGAL_MESSAGE_TAG, ""),
    ]
    assert answer.status.code == Code.MULTIPLE_RESULTS


async def test_requests_that_no_broker_takes_are_refused_here() -> None:
    rig = Rig("b")
    rig.leads = False
    rig.refusal = lambda code: RemoteProtocolError(ResponseCode.SYSTEM_ERROR, "it follows")
    many = [message()] * (MESSAGES_MAX + 1)
    for messages in ([], [message(), message(topic="other")], many):
        assert await rig.by("SendMessage", v5.SendMessageRequest(messages=messages)) == HERE


async def test_turns_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TURNS_MAX", 3)
    rig = Rig("b")
    for number in range(10):
        await rig.sent(message(topic=f"T{number}"))
    assert len(cast(Any, rig.rpcs)._turns) <= 3


def test_groups_are_spread_and_stay() -> None:
    groups = [f"order-{number}" for number in range(3000)]
    three, two = ("a", "b", "c"), ("a", "c")
    before = {group: broker_of_group(group, three) for group in groups}
    counts = Counter(before.values())
    assert all(850 < counts[name] < 1150 for name in three), counts
    after = {group: broker_of_group(group, two) for group in groups}
    assert all(after[group] == owner for group, owner in before.items() if owner != "b")
    queues = Counter(queue_of_group(group, 4) for group in groups if before[group] == "a")
    assert all(180 < queues[queue_id] < 320 for queue_id in range(4)), queues
    known = "".join(broker_of_group(f"order-{number}", three) for number in range(16))
    assert known == "accacacbcbcbbacc", "endpoints of several versions must agree"


# Receives


def receive_of(broker_name: str, group: str = "g") -> v5.ReceiveMessageRequest:
    queue = v5.MessageQueue(topic=resource(TOPIC), broker=v5.Broker(name=broker_name))
    return v5.ReceiveMessageRequest(
        group=resource(group), message_queue=queue, filter_expression={"expression": "tag"}
    )


def frames(*bodies: str, code: int = Code.OK) -> list[v5.ReceiveMessageResponse]:
    found = [
        v5.ReceiveMessageResponse(
            message={"body": each.encode(), "system_properties": {"receipt_handle": f"h{each}"}}
        )
        for each in bodies
    ]
    last = v5.ReceiveMessageResponse(delivery_timestamp={"seconds": 1})
    return [v5.ReceiveMessageResponse(status=status(code)), *found, last]


async def test_a_receive_goes_to_the_broker_of_the_queue() -> None:
    rig = Rig("b")
    rig.frames = frames("1", "2")
    assert await rig.receive("b") == rig.frames
    assert rig.work == [("b", "opened"), ("b", "ReceiveMessage"), ("b", "left")]
    assert rig.answered == {("b", Code.OK): 1}
    assert rig.requests[0].message_queue.broker.name == "b"
    rig.frames = frames(code=Code.MESSAGE_NOT_FOUND)
    await rig.receive("b")
    assert rig.answered["b", Code.MESSAGE_NOT_FOUND] == 1
    assert await rig.receive(HERE) == [v5.ReceiveMessageResponse(status=OK)]
    with pytest.raises(RpcRefused, match="'gone'"):
        await rig.receive("gone")


async def test_the_client_of_a_receive_that_is_forwarded_is_known_here_too() -> None:
    rig = Rig("b")
    rig.frames = frames()
    await rig.receive("b")
    assert rig.noted == [("c@1", "g", "tag")]
    await rig.receive(HERE)
    await rig.receive("b", forwarded())
    assert len(rig.noted) == 1, "the handler notes it by itself"
    with pytest.raises(RemoteProtocolError, match="otherwise"):
        await rig.receive("b", group="refused")
    with pytest.raises(RpcRefused) as caught:
        await rig.receive("b", group="no group!")
    assert caught.value.code == Code.ILLEGAL_CONSUMER_GROUP
    assert rig.work.count(("b", "opened")) == 1


async def test_a_receive_without_a_broker() -> None:
    rig = Rig("b", "c")
    rig.frames = frames()

    async def taker() -> str:
        rig.work.clear()
        await rig.receive()
        return rig.work[0][0]

    assert [await taker() for _ in range(3)] == [HERE] * 3
    rig.topics.clear()
    assert [await taker() for _ in range(4)] == ["b", "c"] * 2
    rig.leads = False
    rig.brokers[HERE] = other_broker(HERE)
    await rig.receive()
    assert rig.work[-3:] == [(HERE, "opened"), (HERE, "ReceiveMessage"), (HERE, "left")]
    rig.leads = True
    del rig.brokers[HERE]
    rig.brokers["b"] = other_broker("b", perm=2)
    assert [await taker() for _ in range(2)] == ["c"] * 2
    rig.brokers.clear()
    assert await taker() == HERE, "this broker says why not"


async def test_a_receive_that_was_forwarded_is_handled_here() -> None:
    rig = Rig("b")
    rig.topics.clear()
    for name in ("", "b", "gone"):
        assert await rig.receive(name, forwarded()) == [v5.ReceiveMessageResponse(status=OK)]


@pytest.mark.parametrize("has_ended", [False, True])
async def test_what_a_client_did_not_take_is_given_back(has_ended: bool) -> None:
    """The other broker does it by itself, unless it has sent everything."""
    rig = Rig("b")
    rig.frames, rig.has_ended = frames("1", "2", "3"), has_ended
    took: list[Any] = []

    async def send(frame: Any) -> None:
        took.append(frame)
        if len(took) == 3:
            raise asyncio.CancelledError

    request = receive_of("b")
    deadline_s = 1.0
    with pytest.raises(asyncio.CancelledError):
        await rig.table["ReceiveMessage"](a_call(deadline_s=deadline_s), request, send)
    await settle(10)
    given = [each for each in rig.requests if isinstance(each, v5.ChangeInvisibleDurationRequest)]
    assert [each.receipt_handle for each in given] == (["h1", "h2", "h3"] if has_ended else [])
    for each in given:
        assert (each.group.name, each.topic.name) == ("g", TOPIC)
        assert not each.invisible_duration.seconds
    assert not rig.answered, "of a receive that was not answered"
    assert not cast(Any, rig.rpcs)._giving


async def test_giving_back_ends_where_nobody_is_reached(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    rig = Rig("b")
    rig.frames, rig.has_ended = frames("1", "2"), True

    async def send(frame: Any) -> None:
        rig.unreachable = {"b": True}
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await rig.table["ReceiveMessage"](a_call(), receive_of("b"), send)
    await settle(10)
    assert [text for text in caplog.messages if "given back" in text] == [
        "messages are not given back: no way to b"
    ]
    monkeypatch.setattr(limits, "GIVING_MAX", 0)
    rig.unreachable = {}
    with pytest.raises(asyncio.CancelledError):
        await rig.table["ReceiveMessage"](a_call(), receive_of("b"), send)
    assert not cast(Any, rig.rpcs)._giving
