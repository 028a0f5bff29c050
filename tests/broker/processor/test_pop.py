"""Pop consumption in the words of RocketMQ 5's remoting protocol."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skylarkmq.broker.net.handlers import Handler
from skylarkmq.broker.pop import handles
from skylarkmq.broker.pop.handles import Receipt
from skylarkmq.broker.pop.requests import Popped
from skylarkmq.broker.processor.pop import OLD_RETRY_QUEUE, PopMessageProcessor
from skylarkmq.protocol.bodies.group import ConsumerData
from skylarkmq.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.codes import LanguageCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.pop import Checkpoint, retry_mark, topic_of_delivery
from skylarkmq.protocol.record import decode_messages
from tests.broker.group_rig import FakeConnection, request
from tests.broker.pop.pop_rig import GROUP, PLUS_RETRY, RETRY, TOPIC, PopRig
from tests.support.bit_sets import bits_of
from tests.support.fake_queues import Stored
from tests.support.fake_queues import record as record_of

POP, ACK, PEEK, CHANGE, NOTIFY, INFO, BATCH = (
    200050, 200051, 200052, 200053, 200054, 200055, 200151,
)  # fmt: skip
OLD_RETRY = f"%RETRY%{GROUP}"


class Rig(PopRig):
    """Requests of one client; the handles are made as RocketMQ's client makes them."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.handlers: dict[int, Handler] = PopMessageProcessor(
            self.context, self.pop, self.clock
        ).handlers()
        self.peer: Any = FakeConnection()

    async def ask(
        self, code: int, body: bytes = b"", peer: Any = None, **fields: Any
    ) -> RemotingCommand:
        return await self.wait(self.begin_ask(code, body, peer, **fields))

    def begin_ask(
        self, code: int, body: bytes = b"", peer: Any = None, **fields: Any
    ) -> asyncio.Task[RemotingCommand]:
        asked = request(code, fields, body)

        async def answered() -> RemotingCommand:
            try:
                result: Any = self.handlers[code](peer or self.peer, asked)
                return await result if asyncio.iscoroutine(result) else result
            except RemoteProtocolError as error:
                return asked.reply(error.response_code, error.remark)

        return asyncio.create_task(answered())

    async def wait(self, task: asyncio.Task[RemotingCommand]) -> RemotingCommand:
        await self.rest()
        assert task.done(), "it waits"
        return task.result()

    def pop_fields(self, **changes: Any) -> dict[str, Any]:
        return {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 32,
            "invisibleTime": 10_000, "pollTime": 0, "bornTime": 0, "initMode": 0, **changes,
        }  # fmt: skip

    async def take(self, **changes: Any) -> list[tuple[MessageExt, Checkpoint]]:
        return handles_of(await self.ask(POP, **self.pop_fields(**changes)))

    async def ack_message(self, checkpoint: Checkpoint, **changes: Any) -> int:
        return (await self.ask(ACK, **self.fields_of(checkpoint, **changes))).code

    def fields_of(self, checkpoint: Checkpoint, **changes: Any) -> dict[str, Any]:
        return {
            "consumerGroup": GROUP,
            "topic": topic_of_delivery(TOPIC, GROUP, checkpoint.retry),
            "queueId": checkpoint.queue_id,
            "extraInfo": checkpoint.text,
            "offset": checkpoint.queue_offset,
            **changes,
        }


def handles_of(answer: RemotingCommand) -> list[tuple[MessageExt, Checkpoint]]:
    """What RocketMQ's client makes of an answer (MQClientAPIImpl.processPopResponse)."""
    assert answer.code == 0, answer.remark
    fields = answer.ext_fields
    starts, offsets = (
        {tuple(part.split(" ")[:2]): part.split(" ")[2] for part in fields[name].split(";")}
        for name in ("startOffsetInfo", "msgOffsetInfo")
    )
    found: list[tuple[MessageExt, Checkpoint]] = []
    messages = decode_messages(answer.body)
    for message in messages:
        key = (retry_mark(message.topic), str(message.queue_id))
        same = [
            each.queue_offset
            for each in messages
            if (retry_mark(each.topic), str(each.queue_id)) == key
        ]
        offset = int(offsets[key].split(",")[sorted(same).index(message.queue_offset)])
        assert offset == message.queue_offset
        checkpoint = Checkpoint(
            int(starts[key]), int(fields["popTime"]), int(fields["invisibleTime"]),
            int(fields["reviveQid"]), key[0], "broker-a", message.queue_id, offset,
        )  # fmt: skip
        found.append((message, checkpoint))
    return found


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.start(queues=2)
    return rig


async def test_an_answer_tells_what_handles_are_made_of(rig: Rig) -> None:
    rig.send_all(2, queue_id=0)
    rig.send_all(1, queue_id=1)
    answer = await rig.ask(POP, **rig.pop_fields(maxMsgNums=2))
    first = {"0 0 0": "0 0 0,1", "0 1 0": "0 1 0"}
    fields = answer.ext_fields
    assert (answer.code, answer.remark) == (0, "FOUND")
    assert (fields["invisibleTime"], fields["reviveQid"]) == ("10000", "0")
    assert int(fields["restNum"]) == 1
    assert "orderCountInfo" not in fields
    for start, offsets in zip(
        fields["startOffsetInfo"].split(";"), fields["msgOffsetInfo"].split(";"), strict=True
    ):
        assert offsets in (first[start], "0 0 0")
    rest = await rig.take()
    assert {each.body for each, _ in [*handles_of(answer), *rest]} == {b"0", b"1"}


async def test_what_is_acknowledged_is_done(rig: Rig) -> None:
    rig.send_all(3)
    taken = await rig.take()
    assert [await rig.ack_message(handle) for _, handle in taken] == [0, 0, 0]
    assert rig.mark() == 3
    assert await rig.ack_message(taken[0][1]) == 0, "once more says no more"
    await rig.advance(60)
    assert (await rig.ask(POP, **rig.pop_fields())).code == 210


async def test_several_at_once(rig: Rig) -> None:
    rig.send_all(20)
    rig.send_all(2, queue_id=1)
    taken = await rig.take()
    acks: list[BatchAck] = []
    for queue_id, kept in ((0, {3}), (1, set[int]())):
        those = [handle for _, handle in taken if handle.queue_id == queue_id]
        offsets = [each.queue_offset for each in those if each.queue_offset not in kept]
        start = those[0].start_offset
        acks.append(
            BatchAck(
                consumer_group=GROUP, topic=TOPIC, queue_id=queue_id, start_offset=start,
                pop_time=those[0].pop_time, bit_set=bits_of(offsets, start),
            )
        )  # fmt: skip
    body = encode_body(BatchAckMessageRequestBody(acks=acks, broker_name="broker-a"))
    assert (await rig.ask(BATCH, body)).code == 0
    assert (rig.mark(0), rig.mark(1)) == (3, 2)
    await rig.advance(11)
    ((again, handle),) = await rig.take()
    assert (again.topic, again.body) == (RETRY, b"3")
    late = BatchAck(consumer_group=GROUP, topic=TOPIC, retry="1", queue_id=0, start_offset=0,
                    pop_time=handle.pop_time, bit_set=b"\1")  # fmt: skip
    body = encode_body(BatchAckMessageRequestBody(acks=[late]))
    assert (await rig.ask(BATCH, body)).code == 0
    assert rig.mark(topic=RETRY) == 1
    assert (await rig.ask(BATCH, b'{"acks":[]}')).code == 208
    gone = encode_body(BatchAckMessageRequestBody(acks=[acks[0]]))
    rig.pop.registry.find(GROUP, TOPIC).ended.clear()  # type: ignore[union-attr]
    assert (await rig.ask(BATCH, gone)).code == 208


async def test_what_comes_again_has_its_attempt_and_a_handle_of_its_own(rig: Rig) -> None:
    rig.send(b"body")
    ((_, first),) = await rig.take()
    await rig.advance(11)
    ((message, second),) = await rig.take()
    assert (message.topic, message.reconsume_times, second.retry) == (RETRY, 1, "1")
    assert await rig.ack_message(first) == 208
    assert await rig.ack_message(second._replace(pop_time=first.pop_time)) == 208
    assert await rig.ack_message(second) == 0


async def test_all_topics_of_retries_in_one_answer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All have one queue, and the messages stand at the same offset: their handles differ."""
    kinds = handles.RETRY, handles.OLD_RETRY, handles.PLUS_RETRY, handles.MAIN
    receipts = [Receipt(kind, 0, 7, 1) for kind in kinds]
    popped: list[Popped] = []
    for receipt, topic in zip(receipts, (RETRY, OLD_RETRY, PLUS_RETRY, TOPIC), strict=True):
        stored = Stored(b"body", {"UNIQ_KEY": topic}, 0)
        record = record_of(0, topic, 0, 7, stored)
        popped.append(Popped(receipt, memoryview(record), 3))
    done: list[Receipt] = []

    async def receive(*_: Any) -> list[Popped]:
        return popped

    async def ack(group: str, topic: str, receipt: Receipt) -> bool:
        assert (group, topic) == (GROUP, TOPIC)
        done.append(receipt)
        return True

    monkeypatch.setattr(rig.pop.receiver, "receive", receive)
    monkeypatch.setattr(rig.pop.settlement, "ack", ack)
    taken = await rig.take()
    assert [message.reconsume_times for message, _ in taken] == [2, 2, 2, 2]
    assert [handle.queue_id for _, handle in taken] == [0, OLD_RETRY_QUEUE, 0, 0]
    assert [handle.retry for _, handle in taken] == [*"1120"]
    for _, handle in taken:
        assert await rig.ack_message(handle) == 0
    assert done == receipts
    acks = [
        BatchAck(consumer_group=GROUP, topic=TOPIC, retry=handle.retry, queue_id=handle.queue_id,
                 start_offset=7, pop_time=1, bit_set=b"\1")
        for _, handle in taken
    ]  # fmt: skip

    async def ack_all(group: str, topic: str, those: list[Receipt]) -> list[bool]:
        assert (group, topic, those) == (GROUP, TOPIC, receipts)
        return [True]

    monkeypatch.setattr(rig.pop.settlement, "ack_all", ack_all)
    assert (await rig.ask(BATCH, encode_body(BatchAckMessageRequestBody(acks=acks)))).code == 0


async def test_what_a_4_x_consumer_gave_back_is_popped_too(rig: Rig) -> None:
    rig.topic(OLD_RETRY, 1)
    rig.topic("U")
    rig.send(b"pulled", topic=OLD_RETRY, properties=b"RETRY_TOPIC\x01T\x02", reconsume_times=2)
    rig.send(b"another", topic=OLD_RETRY, properties=b"RETRY_TOPIC\x01U\x02")
    rig.send(b"new")
    taken = {message.body: (message, handle) for message, handle in await rig.take()}
    assert taken.keys() == {b"pulled", b"new"}
    message, handle = taken[b"pulled"]
    assert (message.topic, message.reconsume_times) == (OLD_RETRY, 2)
    assert handle.queue_id == OLD_RETRY_QUEUE
    assert await rig.ack_message(handle) == 0
    assert rig.mark(topic=OLD_RETRY) == 1, "the other one waits for a pop of its own topic"


async def test_another_invisible_time_gives_a_new_handle(rig: Rig) -> None:
    rig.send(b"body")
    ((_, old),) = await rig.take()
    answer = await rig.ask(CHANGE, **rig.fields_of(old, invisibleTime=30_000))
    assert (answer.code, answer.ext_fields["invisibleTime"]) == (0, "30000")
    new = old._replace(pop_time=int(answer.ext_fields["popTime"]))
    assert await rig.ack_message(old) == 208
    await rig.advance(29)
    assert (await rig.ask(POP, **rig.pop_fields())).code == 210
    assert await rig.ack_message(new) == 0
    answer = await rig.ask(CHANGE, **rig.fields_of(new, invisibleTime=0))
    assert answer.code == 208, "what is done is not called back"
    assert (await rig.ask(CHANGE, **rig.fields_of(old, invisibleTime=-1))).code == 29


async def test_a_request_waits_for_a_message(rig: Rig) -> None:
    waiting = rig.begin_ask(POP, **rig.pop_fields(pollTime=15_000))
    await rig.advance(14)
    assert not waiting.done()
    assert (await info(rig)) == 1
    rig.send(b"body")
    await rig.rest()
    assert [message.body for message, _ in handles_of(await waiting)] == [b"body"]
    waiting = rig.begin_ask(POP, **rig.pop_fields(pollTime=9_000))
    await rig.advance(9.1)
    answer = await waiting
    assert (answer.code, answer.remark) == (210, "NO_MESSAGE_IN_QUEUE")
    assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= answer.ext_fields.keys()


async def info(rig: Rig) -> int:
    answer = await rig.ask(INFO, consumerGroup=GROUP, topic=TOPIC, queueId=-1)
    return int(answer.ext_fields["pollingNum"])


async def test_a_client_that_goes_takes_nothing_with_it(rig: Rig) -> None:
    peer = FakeConnection("192.0.2.9:9")
    waiting = rig.begin_ask(POP, peer=peer, **rig.pop_fields(pollTime=15_000))
    await rig.rest()
    peer.close("gone")
    await rig.rest()
    assert waiting.cancelled()
    assert await info(rig) == 0
    rig.send(b"body")
    ((message, _),) = await rig.take()
    assert message.body == b"body"
    assert peer.listeners == []


async def test_what_finds_its_client_gone_is_given_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.send(b"body")
    peer = FakeConnection("192.0.2.9:9")
    receive = rig.pop.receiver.receive

    async def slow(*args: Any) -> Any:
        found = await receive(*args)
        peer.closed = True  # its listeners are told later
        return found

    with monkeypatch.context() as patch:
        patch.setattr(rig.pop.receiver, "receive", slow)
        await rig.ask(POP, peer=peer, **rig.pop_fields())
    await rig.advance(1.1)
    ((message, _),) = await rig.take()
    assert message.reconsume_times == 0, "not counted"


async def test_a_client_is_told_that_there_is_something(rig: Rig) -> None:
    fields: dict[str, Any] = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "pollTime": 15_000, "bornTime": 0,
    }  # fmt: skip
    waiting = rig.begin_ask(NOTIFY, **fields)
    await rig.advance(3)
    assert not waiting.done()
    rig.send(b"body")
    answer = await rig.wait(waiting)
    assert answer.ext_fields == {"hasMsg": "true", "pollingFull": "false"}
    assert (await rig.ask(NOTIFY, **fields)).ext_fields["hasMsg"] == "true"
    assert len(await rig.take()) == 1
    waiting = rig.begin_ask(NOTIFY, **fields)
    await rig.advance(16)
    assert (await waiting).ext_fields["hasMsg"] in ("false", "true")


async def test_a_broker_that_stops_answers_who_waits_and_takes_what_is_done(rig: Rig) -> None:
    rig.send(b"body")
    ((_, handle),) = await rig.take()
    waiting = rig.begin_ask(POP, **rig.pop_fields(pollTime=15_000))
    told = rig.begin_ask(
        NOTIFY, consumerGroup=GROUP, topic=TOPIC, queueId=-1, pollTime=15_000, bornTime=0
    )
    await rig.rest()
    rig.pop.receiver.end_polls()
    assert (await rig.wait(waiting)).code == 210
    assert (await rig.wait(told)).ext_fields["hasMsg"] == "false"
    assert (await rig.ask(POP, **rig.pop_fields(pollTime=15_000))).code == 210
    assert await rig.ack_message(handle) == 0


async def test_too_many_wait(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylarkmq.broker.pop.receiving.WAITING_MAX", 1)
    waiting = rig.begin_ask(POP, **rig.pop_fields(pollTime=15_000))
    await rig.rest()
    answer = await rig.ask(POP, **rig.pop_fields(pollTime=15_000))
    assert (answer.code, answer.remark) == (209, "polling full")
    assert "popTime" in answer.ext_fields
    fields: dict[str, Any] = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": -1,
        "pollTime": 9,
        "bornTime": 0,
    }
    answer = await rig.ask(NOTIFY, **fields)
    assert (answer.code, answer.ext_fields["pollingFull"]) == (0, "true")
    waiting.cancel()


async def test_a_look_takes_nothing(rig: Rig) -> None:
    rig.send_all(3)
    rig.send_all(2, queue_id=1)

    async def peek(**changes: Any) -> RemotingCommand:
        fields: dict[str, Any] = {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": -1,
            "maxMsgNums": 4,
            **changes,
        }
        return await rig.ask(PEEK, **fields)

    answer = await peek()
    assert [message.body for message in decode_messages(answer.body)] == [b"0", b"1", b"2", b"0"]
    assert answer.ext_fields["restNum"] == "5"
    assert len(await rig.take()) == 5
    answer = await peek()
    assert (answer.code, answer.remark) == (19, "NO_MESSAGE_IN_QUEUE")
    assert (await peek(queueId=1, consumerGroup="unknown")).code == 26
    assert (await peek(topic="unknown")).code == 17
    assert (await peek(queueId=2)).code == 29
    assert (await peek(maxMsgNums=0)).code == 29


async def test_a_look_shows_the_highest_priority_first(rig: Rig) -> None:
    rig.topic(TOPIC, 2, kind="PRIORITY")
    rig.send(b"low", 0)
    rig.send(b"high", 1)
    answer = await rig.ask(PEEK, consumerGroup=GROUP, topic=TOPIC, queueId=-1, maxMsgNums=4)
    assert [message.body for message in decode_messages(answer.body)] == [b"high", b"low"]
    assert [message.body for message, _ in await rig.take()] == [b"high", b"low"]


async def test_filters(rig: Rig) -> None:
    for tag in "abc":
        rig.send(tag.encode(), tag=tag)
    taken = await rig.take(exp="a || c", expType="TAG")
    assert [message.body for message, _ in taken] == [b"a", b"c"]
    rig.send(b"d", properties=b"n\x015\x02")
    answer = await rig.ask(POP, **rig.pop_fields(exp="n > 3", expType="SQL92"))
    assert answer.code == 1
    assert "enablePropertyFilter" in (answer.remark or "")
    other = Rig(enable_property_filter=True)
    other.start()
    other.send(b"d", properties=b"n\x015\x02")
    other.send(b"e", properties=b"n\x012\x02")
    taken = await other.take(exp="n > 3", expType="SQL92")
    assert [message.body for message, _ in taken] == [b"d"]
    answer = await other.ask(POP, **other.pop_fields(exp="n > >", expType="SQL92"))
    assert answer.code == 23


async def test_an_ordered_group_gets_one_batch_after_the_other(rig: Rig) -> None:
    rig.group(consume_message_orderly=True)
    rig.send_all(4)
    answer = await rig.ask(POP, **rig.pop_fields(maxMsgNums=2, order="true", attemptId="x"))
    assert answer.ext_fields["reviveQid"] == "999"
    assert answer.ext_fields["orderCountInfo"] == "0 qo0%0 0;0 qo0%1 0;0 0 0"
    taken = handles_of(answer)
    assert (await rig.ask(POP, **rig.pop_fields())).code == 210
    again = await rig.take(maxMsgNums=2, order="true", attemptId="x")
    assert [message.body for message, _ in again] == [b"0", b"1"]
    assert await rig.ack_message(taken[0][1]) == 208
    assert await rig.ack_message(again[0][1]) == 0
    await rig.advance(11)
    answer = await rig.ask(POP, **rig.pop_fields(order="true", attemptId="y"))
    taken = handles_of(answer)
    assert taken[0][0].body == b"1"
    assert taken[0][0].reconsume_times == 1
    assert answer.ext_fields["orderCountInfo"].startswith("0 qo0%1 1;")
    answer = await rig.ask(CHANGE, **rig.fields_of(taken[0][1], invisibleTime=1000))
    assert answer.ext_fields["reviveQid"] == "999"


async def test_a_group_that_pulls_is_not_popped(rig: Rig) -> None:
    data = ConsumerData(
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        consume_type="CONSUME_PASSIVELY",
        group_name=GROUP,
        message_model="CLUSTERING",
    )
    rig.consumers.register(rig.peer, "old-client", LanguageCode.JAVA, 409, data)
    answer = await rig.ask(POP, **rig.pop_fields())
    assert answer.code == 16
    assert "old-client" in (answer.remark or "")


@pytest.mark.parametrize(("changes", "code"), [
    ({"topic": "unknown"}, 17),
    ({"topic": "no topic!"}, 1),
    ({"consumerGroup": "no group!"}, 1),
    ({"queueId": 2}, 29),
    ({"queueId": -9}, 210),
    ({"maxMsgNums": 33}, 29),
    ({"maxMsgNums": 0}, 29),
    ({"invisibleTime": 0}, 29),
    ({"invisibleTime": 2**62}, 29),
    ({"pollTime": -(2**63)}, 210),
    ({"exp": "||"}, 23),
    ({"exp": "x" * 40_000}, 23),
])  # fmt: skip
async def test_what_cannot_be_meant_is_refused(rig: Rig, changes: Any, code: int) -> None:
    assert (await rig.ask(POP, **rig.pop_fields(**changes))).code == code


@pytest.mark.parametrize(("changes", "code"), [
    ({"topic": "unknown"}, 17),
    ({"topic": "%RETRY%other_T"}, 17),
    ({"topic": "%RETRY%G+T"}, 208),
    ({"topic": "%RETRY%other+T"}, 17),
    ({"queueId": 2}, 13),
    ({"queueId": -1}, 13),
    ({"offset": 2**62}, 208),
    ({"offset": -1}, 208),
    ({"extraInfo": "nonsense"}, 1),
    ({"extraInfo": "0 0 0 0 0 b 0 0"}, 208),
    ({"consumerGroup": "other"}, 208),
])  # fmt: skip
async def test_handles_that_are_made_up(rig: Rig, changes: Any, code: int) -> None:
    rig.send(b"body")
    ((_, handle),) = await rig.take()
    assert await rig.ack_message(handle, **changes) == code
    answer = await rig.ask(CHANGE, **rig.fields_of(handle, invisibleTime=0, **changes))
    assert answer.code == code
    assert await rig.ack_message(handle) == 0


async def test_a_batch_without_end_is_refused(rig: Rig) -> None:
    ack = BatchAck(
        consumer_group=GROUP, topic=TOPIC, queue_id=0, start_offset=0, pop_time=1,
        bit_set=b"\xff" * 600,
    )  # fmt: skip
    body = encode_body(BatchAckMessageRequestBody(acks=[ack]))
    assert (await rig.ask(BATCH, body)).code == 29
