"""Connections cut at any byte while two talk: a transaction's verdict, a request and its reply, and
the answer to a broker's question. Nothing is lost without a word, nothing is done twice."""

from __future__ import annotations

import asyncio

import pytest

from skylarkmq.client import HalfMessage, Message, RocketMQError
from skylarkmq.client import TransactionState as State
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.remoting_command import RemotingCommand
from tests.client.cancel_place import Place
from tests.client.cancel_sends import request
from tests.support.fake_queues import record
from tests.support.manual_clock import advance_async, settle

REQUEST, ANSWER = "cut_request_at", "cut_answer_at"
ORDER = Message("orders", b"half")
END = RequestCode.END_TRANSACTION
STEP = 23


def sizes(place: Place) -> dict[str, int]:
    """Bytes so far of the one connection to the broker, by direction."""
    (stream,) = place.broker.streams
    return {REQUEST: sum(map(len, stream.writes)), ANSWER: stream.said_size}


def some_of(size: int) -> list[int]:
    return sorted({*range(1, min(size, 6)), *range(6, size, STEP), *range(max(1, size - 4), size)})


async def verdict_over(cut: int | None) -> int:
    """Commit over a connection that breaks at a byte; return the size of the verdict."""
    place = Place()
    asked: list[str] = []

    def check(half: HalfMessage) -> State:
        asked.append(half.transaction_id)
        return State.ROLLBACK  # never asked: this process knows how it ended

    producer = await place.producer(check=check)
    transaction = producer.transaction(ORDER)
    await place.run(transaction.__aenter__())
    before = sizes(place)[REQUEST]
    if cut is not None:
        place.broker.cut_request_at = before + cut
    await place.run(transaction.commit())
    await settle(30)
    size = sum(map(len, place.broker.streams[0].writes)) - before if cut is None else 0
    place.broker.cut_request_at = None
    told = [each.ext_fields["commitOrRollback"] for each in place.broker.of_code(END)]
    assert told == ([] if cut is not None else ["8"]), f"cut at {cut}"
    assert transaction.state is State.COMMIT
    await place.it.pass_time(3)
    await place.sends(producer)
    if cut is not None:  # the broker asks about it, as it does after a while
        half = transaction.result
        queue_id, offset = half.queue.queue_id, half.queue_offset
        stored = place.broker.topics["orders"].queues[queue_id][offset]
        question = {
            "commitLogOffset": "1000", "tranStateTableOffset": str(offset), "offsetMsgId": "",
            "msgId": half.msg_id, "transactionId": half.msg_id,
        }  # fmt: skip
        body = record(0, "orders", queue_id, offset, stored)
        code = RequestCode.CHECK_TRANSACTION_STATE
        place.broker.push(RemotingCommand.request(code, question, body, oneway=True))
        await settle(30)
        (end,) = place.broker.of_code(END)
        assert end.ext_fields["commitOrRollback"] == "8"
        assert end.ext_fields["fromTransactionCheck"] == "true"
    assert asked == []
    await place.end()
    return size


async def test_a_verdict_cut_at_any_byte_is_remembered_for_the_question() -> None:
    size = await verdict_over(None)
    assert size > 200
    for position in some_of(size):
        await verdict_over(position)


async def talk_over(cut: str | None, position: int) -> dict[str, int]:
    """Ask and be answered over one connection that breaks at a byte; it is the asker's, too."""
    place = Place()
    producer = await place.producer()
    assert (await place.run(request(place, producer))).body == b"yes"
    place.broker.topics["rpc"].queues[0].clear()
    before = sizes(place)
    if cut is not None:
        setattr(place.broker, cut, before[cut] + position)
    asking = asyncio.create_task(request(place, producer))
    await settle(80)
    after = sizes(place) if cut is None else before
    if cut is not None:
        setattr(place.broker, cut, None)
    await advance_async(place.clock, 12)
    assert asking.done(), f"{cut} {position}: hangs"
    try:
        assert asking.result().body == b"yes"
    except RocketMQError as error:
        assert str(error), "it is told, with a cause"
    stored = place.broker.bodies("rpc")
    assert stored.count(b"?") <= 2
    place.broker.topics["rpc"].queues[0].clear()
    assert (await place.run(request(place, producer))).body == b"yes", "the next one goes"
    await place.end()
    return {way: after[way] - before[way] for way in (REQUEST, ANSWER)}


@pytest.mark.parametrize("cut", [REQUEST, ANSWER])
async def test_a_request_and_its_reply_cut_at_some_bytes(cut: str) -> None:
    size = (await talk_over(None, 0))[cut]
    assert size > 200
    for position in some_of(size):
        await talk_over(cut, position)


async def test_the_answer_to_a_question_of_a_broker_cut_at_any_byte() -> None:
    for position in (*range(1, 40), None):
        place = Place()
        client = place.client
        await client.start()
        await services_of(client).peer(place.broker.address)
        done: list[int] = []

        def answer(_: object, push: RemotingCommand, done: list[int] = done) -> RemotingCommand:
            done.append(push.opaque)
            return push.reply(0, body=b"heard")

        services_of(client).pushes.on(999, answer)
        if position is not None:
            place.broker.cut_request_at = sizes(place)[REQUEST] + position
        place.broker.streams[0].say(RemotingCommand.request(999, opaque=7))
        await settle(30)
        place.broker.cut_request_at = None
        heard = [each for each in place.broker.requests if each.is_response]
        assert done == [7], "it was done once, whatever became of the answer"
        assert len(heard) == (1 if position is None else 0)
        await place.it.pass_time(3)
        assert await place.run(services_of(client).peer(place.broker.address)) is not None
        await place.end()
