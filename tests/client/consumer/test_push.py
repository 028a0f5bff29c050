"""Consumer: messages to handlers, retries, and a clean good-bye."""

from __future__ import annotations

import asyncio

import pytest

from skylarkmq.client import (
    ConnectionFailed,
    Consumer,
    ConsumerClosed,
    IllegalState,
    ReceivedMessage,
    Tag,
)
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.consumer.support import GROUP, Group
from tests.support.manual_clock import settle


class Seen:
    """A handler that remembers, and fails or waits as told."""

    def __init__(self, *, fail_first: int = 0) -> None:
        self.messages: list[ReceivedMessage] = []
        self.running = 0
        self.most_running = 0
        self.gate: asyncio.Event | None = None
        self._fail_first = fail_first

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    async def __call__(self, message: ReceivedMessage) -> None:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if self.gate is not None:
                await self.gate.wait()
            self.messages.append(message)
            if len(self.messages) <= self._fail_first:
                raise RuntimeError("on purpose")
        finally:
            self.running -= 1


async def test_the_first_consume_frame_by_frame() -> None:
    it = Group({"orders": 2})
    it.broker.add("orders", 0, b"a")
    consumer = await it.consumer()
    assert [request.code for request in it.broker.requests][:5] == [34, 38, 38, 14, 14]
    await settle()
    data = it.broker.heartbeats[0].consumer_data_set[0]
    assert (data.group_name, data.consume_type, data.message_model, data.consume_from_where) == (
        GROUP, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET",
    )  # fmt: skip
    assert {each.topic for each in data.subscription_data_set} == {"orders", f"%RETRY%{GROUP}"}
    pulls = it.broker.of_code(RequestCode.PULL_MESSAGE)
    pull = next(request for request in pulls if request.ext_fields["topic"] == "orders")
    assert pull.ext_fields == {
        "consumerGroup": GROUP, "topic": "orders", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "32", "sysFlag": "2", "commitOffset": "0", "suspendTimeoutMillis": "15000",
        "subVersion": str(data.subscription_data_set[0].sub_version), "bname": "broker-a",
    }  # fmt: skip
    await it.stop(consumer)
    assert it.broker.of_code(RequestCode.UNREGISTER_CLIENT)[0].ext_fields["consumerGroup"] == GROUP


async def test_run_gives_every_message_once_and_commits() -> None:
    it = Group()
    for queue_id in range(4):
        it.broker.add("orders", queue_id, *[b"%d-%d" % (queue_id, n) for n in range(100)])
    consumer = await it.consumer()
    seen = Seen()
    running = asyncio.create_task(consumer.run(seen, concurrency=5))
    await it.pass_time(6)
    assert sorted(seen.bodies) == sorted(it.broker.bodies("orders"))
    assert [it.offset(queue_id) for queue_id in range(4)] == [100] * 4
    it.broker.add("orders", 2, b"late")
    await it.pass_time(0)
    assert seen.bodies[-1] == b"late"
    await it.stop(consumer)
    await running
    assert it.offset(2) == 101, "committed at stop"


async def test_no_more_handlers_run_than_concurrency_says() -> None:
    it = Group()
    it.broker.add("orders", 0, *[b"%d" % n for n in range(50)])
    consumer = await it.consumer()
    seen = Seen()
    seen.gate = asyncio.Event()
    running = asyncio.create_task(consumer.run(seen, concurrency=7))
    await it.pass_time(1)
    assert seen.running == 7
    handlers = [t for t in asyncio.all_tasks() if "handler" in t.get_name()]
    assert len(handlers) == 7
    seen.gate.set()
    await it.pass_time(1)
    assert len(seen.messages) == 50
    await it.stop(consumer)
    await running


async def test_a_message_that_fails_comes_again_under_its_own_topic() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"hard", b"easy", KEYS="k1")
    consumer = await it.consumer()
    seen = Seen(fail_first=1)
    running = asyncio.create_task(consumer.run(seen, concurrency=1))
    await it.pass_time(10)
    assert seen.bodies == [b"hard", b"easy", b"hard"]
    first, _, again = seen.messages
    assert (first.reconsume_times, again.reconsume_times) == (0, 1)
    assert again.topic == "orders"
    assert again.queue.topic == f"%RETRY%{GROUP}"
    assert again.msg_id == first.msg_id
    (back,) = it.broker.of_code(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert back.ext_fields == {
        "offset": str(first.commit_log_offset), "group": GROUP, "delayLevel": "0",
        "originMsgId": first.msg_id, "originTopic": "orders", "unitMode": "false",
        "maxReconsumeTimes": "16",
    }  # fmt: skip
    await it.stop(consumer)
    await running
    assert it.offset(0) == 2, "the failed one does not hold the offset back"


async def test_when_handing_back_fails_a_copy_is_sent_to_the_retry_topic() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"hard", TAGS="T")
    it.broker.refuse(RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SYSTEM_ERROR)
    consumer = await it.consumer()
    seen = Seen(fail_first=1)
    running = asyncio.create_task(consumer.run(seen))
    await it.pass_time(10)
    (copy,) = it.broker.of_code(RequestCode.SEND_MESSAGE_V2)
    assert (copy.ext_fields["b"], copy.ext_fields["j"], copy.ext_fields["l"]) == (
        f"%RETRY%{GROUP}", "1", "16",
    )  # fmt: skip
    properties = it.broker.topics[f"%RETRY%{GROUP}"].queues[0][0].properties
    assert properties["RETRY_TOPIC"] == "orders"
    assert properties["DELAY"] == "3"
    assert properties["TAGS"] == "T"
    assert properties["ORIGIN_MESSAGE_ID"] == seen.messages[0].msg_id
    assert seen.bodies == [b"hard", b"hard"]
    assert seen.messages[1].topic == "orders"
    await it.stop(consumer)
    await running


async def test_when_nothing_works_the_message_is_retried_here_and_holds_the_offset() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"hard", b"easy")
    it.broker.refuse(RequestCode.CONSUMER_SEND_MSG_BACK, *[ResponseCode.SYSTEM_ERROR] * 99)
    it.broker.refuse(RequestCode.SEND_MESSAGE_V2, *[ResponseCode.MESSAGE_ILLEGAL] * 99)
    consumer = await it.consumer()
    seen = Seen(fail_first=2)
    running = asyncio.create_task(consumer.run(seen, concurrency=1))
    await it.pass_time(4)
    assert seen.bodies == [b"hard", b"easy"]
    assert it.offset(0) in (None, 0)
    await it.pass_time(8)
    assert seen.bodies == [b"hard", b"easy", b"hard", b"easy"]
    await it.pass_time(5)
    assert it.offset(0) == 2
    await it.stop(consumer)
    await running


async def test_a_batch_handler_gets_lists_and_keeps_what_it_acked_itself() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, *[b"%d" % n for n in range(10)])
    consumer = await it.consumer()
    batches: list[list[bytes]] = []

    async def handle(messages: list[ReceivedMessage]) -> None:
        batches.append([message.body for message in messages])
        if len(batches) == 1:
            await messages[0].ack()
            raise RuntimeError("the rest failed")

    running = asyncio.create_task(consumer.run(handle, concurrency=1, max_batch=4))
    await it.pass_time(10)
    assert batches[0] == [b"0", b"1", b"2", b"3"]
    assert batches[1] == [b"4", b"5", b"6", b"7"]
    assert sorted(batches[2:]) == [[b"1", b"2", b"3"], [b"8", b"9"]], "one queue a batch"
    await it.stop(consumer)
    await running


async def test_a_plain_function_may_be_the_handler() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"a", b"b")
    consumer = await it.consumer()
    bodies: list[bytes] = []
    running = asyncio.create_task(consumer.run(lambda message: bodies.append(message.body)))
    await it.pass_time(1)
    assert bodies == [b"a", b"b"]
    await it.stop(consumer)
    await running


async def test_stop_waits_for_the_handlers_at_work_and_commits_them() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, *[b"%d" % n for n in range(10)])
    consumer = await it.consumer()
    seen = Seen()
    seen.gate = asyncio.Event()
    running = asyncio.create_task(consumer.run(seen, concurrency=3))
    await it.pass_time(1)
    stopping = asyncio.create_task(consumer.stop())
    await it.pass_time(1)
    assert not stopping.done()
    seen.gate.set()
    await it.wait(stopping)
    await running
    assert seen.bodies == [b"0", b"1", b"2"], "nothing new was begun"
    assert it.offset(0) == 3


async def test_stop_cancels_handlers_that_never_end() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"a")
    consumer = await it.consumer()
    seen = Seen()
    seen.gate = asyncio.Event()
    running = asyncio.create_task(consumer.run(seen))
    await it.pass_time(1)
    await it.wait(consumer.stop(timeout=2))
    await running
    assert seen.messages == []
    assert it.offset(0) in (None, 0), "not done, so not committed"


async def test_a_handler_may_stop_its_own_consumer() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"a", b"b")
    consumer = await it.consumer()

    async def handle(message: ReceivedMessage) -> None:
        await consumer.stop()

    await it.wait(consumer.run(handle, concurrency=1))
    with pytest.raises(ConsumerClosed):
        await consumer.getone()


async def test_a_cancelled_run_gives_its_messages_back() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"a", b"b")
    consumer = await it.consumer()
    seen = Seen()
    seen.gate = asyncio.Event()
    running = asyncio.create_task(consumer.run(seen, concurrency=1))
    await it.pass_time(1)
    running.cancel()
    await settle()
    assert running.cancelled()
    bodies = [(await it.wait(consumer.getone())).body for _ in range(2)]
    assert bodies == [b"a", b"b"]
    await it.stop(consumer)


async def test_one_client_has_one_consumer_of_a_group() -> None:
    it = Group()
    client = it.client()
    first = Consumer("orders", client=client, group=GROUP)
    await it.wait(first.start())
    second = Consumer("orders", client=client, group=GROUP)
    with pytest.raises(IllegalState, match="Client of its own"):
        await it.wait(second.start())
    await it.wait(first.stop())
    await it.wait(client.stop())


async def test_tags_are_compared_by_their_text() -> None:
    it = Group({"orders": 1})
    # "Aa" and "BB" have one Java hash, so the broker lets both through.
    for tag in ("Aa", "BB", "C"):
        it.broker.add("orders", 0, tag.encode(), TAGS=tag)
    it.broker.add("orders", 0, b"none")
    consumer = await it.consumer(selector=Tag("Aa || C"))
    bodies = [(await it.wait(consumer.getone())).body for _ in range(2)]
    assert bodies == [b"Aa", b"C"]
    subscription = it.broker.heartbeats[-1].consumer_data_set[0].subscription_data_set[0]
    assert (subscription.sub_string, subscription.tags_set) == ("Aa || C", ["Aa", "C"])
    assert subscription.code_set == [2112, 67]
    await it.wait(consumer.commit())
    assert it.offset(0) == 4, "what was filtered out is done too"
    await it.stop(consumer)


async def test_start_needs_a_name_server() -> None:
    it = Group()
    consumer = Consumer("orders", namesrv_addr="nowhere:1", group=GROUP)
    consumer._client = it.client()
    it.cluster.name_server.connect_error = ConnectionRefusedError("down")
    with pytest.raises(ConnectionFailed):
        await consumer.start()
    await consumer.stop()


@pytest.mark.parametrize("group", ["", "a b", "x" * 121, "g/../h"])
def test_illegal_groups_are_refused(group: str) -> None:
    with pytest.raises(ValueError, match="group"):
        Consumer("orders", namesrv_addr="nowhere:1", group=group)
