"""Replies of request-reply: handed to who asked, stored, and answered by whether they arrived."""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from typing import Any

import pytest

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.groups.client_calls import CALLS_MAX
from skylarkmq.broker.processor.reply import PUSH_TIMEOUT_S, ReplyProcessor
from skylarkmq.broker.processor.send_checks import SendChecks
from skylarkmq.broker.topics.topic_config import TOPICS_FILE
from skylarkmq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.message_id import decode_offset_message_id
from skylarkmq.protocol.record import decode_message
from tests.broker.calls_rig import CallsRig, Client
from tests.broker.group_rig import ask, begin, request
from tests.store.support import HOST
from tests.support.manual_clock import settle
from tests.support.raw_client import send_fields

TOPIC = "DefaultCluster_REPLY_TOPIC"
ASKING = "asking@1"
PROPERTIES = f"MSG_TYPE\x01reply\x02CORRELATION_ID\x01c1\x02REPLY_TO_CLIENT\x01{ASKING}\x02"
V1 = RequestCode.SEND_REPLY_MESSAGE
V2 = RequestCode.SEND_REPLY_MESSAGE_V2


class Rig(CallsRig):
    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.stats = BrokerStats()
        self.processor = ReplyProcessor(
            self.context,
            SendChecks(self.config, self.topics, self.groups, random.Random(1)),
            self.client_calls,
            self.stats,
            HOST,
        )
        self.replier: Any = Client(self.clock, "192.0.2.7:7")
        self.asking: Any = Client(self.clock, "192.0.2.1:1")

    def start(self) -> Rig:
        super().start()
        self.producers.register(self.asking, ASKING, LanguageCode.JAVA, 409, "asks")
        return self

    def request(
        self, topic: str = TOPIC, properties: str = PROPERTIES, **more: str
    ) -> RemotingCommand:
        return request(V2, send_fields(topic, 0, properties, **more), b"the answer")

    async def ask(self, command: RemotingCommand | None = None) -> RemotingCommand:
        return await ask(self, self.processor, self.replier, command or self.request())

    async def begin(self, command: RemotingCommand | None = None) -> asyncio.Task[RemotingCommand]:
        """Send a reply, and go on until it has been handed on."""
        pending: asyncio.Task[RemotingCommand]
        pending = begin(self.processor, self.replier, command or self.request())
        await settle(5)
        return pending

    def stored(self, topic: str = TOPIC) -> list[Any]:
        """The messages of a topic's first queue."""
        count = self.store.max_offset(topic, 0)
        units = self.store.queue_units(topic, 0, 0, count) if count else []
        found: list[bytes | None] = []
        self.store.read_records(
            [unit.commit_offset for unit in units], lambda got, _: found.extend(got or ())
        )
        self.workers.run_all()
        return [decode_message(record) for record in found if record is not None]


@pytest.fixture
async def rig() -> Rig:
    return Rig().start()


async def test_the_reply_is_handed_to_who_asked_and_stored(rig: Rig) -> None:
    pending = await rig.begin()
    (push,) = rig.asking.asked
    assert (push.code, push.is_oneway, push.body) == (326, False, b"the answer")
    now_ms = rig.clock.now_ms()
    properties = push.ext_fields.pop("properties")
    assert properties == PROPERTIES + f"PUSH_REPLY_TIME\x01{now_ms}"
    assert push.ext_fields == {
        "producerGroup": "pg",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "bornHost": "192.0.2.7:7",
        "storeHost": "127.0.0.1:10911",
        "storeTimestamp": str(now_ms),
    }
    assert rig.stored() == [], "the asking client first"
    rig.asking.answer(0)
    answer = await pending
    assert (answer.code, answer.remark) == (0, None)
    (message,) = rig.stored()
    assert (message.topic, message.body) == (TOPIC, b"the answer")
    assert message.properties["CORRELATION_ID"] == "c1"
    assert "PUSH_REPLY_TIME" not in message.properties
    _, place = decode_offset_message_id(answer.ext_fields.pop("msgId"))
    assert place == message.physical_offset
    assert answer.ext_fields == {
        "queueId": "0",
        "queueOffset": "0",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    counted = rig.stats.topic_in(TOPIC)
    assert (counted.count, counted.bytes, counted.sizes.sum) == (1, *[message.store_size] * 2)


async def test_both_forms_of_the_header_are_read(rig: Rig) -> None:
    fields = {
        "producerGroup": "pg",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "-1",
        "sysFlag": "1",
        "bornTimestamp": "5",
        "flag": "3",
        "properties": PROPERTIES,
    }
    pending = await rig.begin(request(V1, fields, zlib.compress(b"zipped")))
    (push,) = rig.asking.asked
    assert (push.ext_fields["sysFlag"], push.ext_fields["flag"]) == ("1", "3")
    assert push.ext_fields["queueId"] == "0", "one queue there is"
    rig.asking.answer(0)
    assert (await pending).code == 0


async def test_one_that_is_not_to_be_stored_only_goes_to_who_asked() -> None:
    rig = Rig(store_reply_message_enable=False).start()
    pending = await rig.begin()
    rig.asking.answer(0)
    answer = await pending
    assert answer.code == 0
    assert answer.ext_fields["msgId"] == "0", "which a Java client can read"
    assert rig.store.commit_log.max_offset == 0


@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        ("", "reply message properties[REPLY_TO_CLIENT] is null"),
        ("REPLY_TO_CLIENT\x01nobody\x02", "channel of <'nobody'> not found."),
        (f"REPLY_TO_CLIENT\x01{'x' * 3000}\x02", "not found."),
    ],
)
async def test_nobody_who_asked(rig: Rig, properties: str, remark: str) -> None:
    answer = await rig.ask(rig.request(properties=properties))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in str(answer.remark)
    assert len(str(answer.remark)) < 300
    assert len(rig.stored()) == 1, "it is stored all the same"
    assert not rig.asking.asked


async def test_who_asked_does_not_take_it(rig: Rig) -> None:
    pending = await rig.begin()
    rig.asking.answer(1, "no such request")
    answer = await pending
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "it answered 1" in str(answer.remark)
    pending = await rig.begin()
    rig.clock.advance(PUSH_TIMEOUT_S)
    answer = await pending
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "did not answer in 10 s" in str(answer.remark)
    pending = await rig.begin()
    rig.asking.close()
    answer = await pending
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "has left" in str(answer.remark)
    assert (await rig.ask()).code == ResponseCode.SYSTEM_ERROR
    assert len(rig.stored()) == 4


async def test_a_client_that_came_again_gets_it_over_its_new_connection(rig: Rig) -> None:
    new: Any = Client(rig.clock, "192.0.2.1:2")
    rig.producers.register(new, ASKING, LanguageCode.JAVA, 409, "asks")
    rig.asking.close()
    pending = await rig.begin()
    new.answer(0)
    assert (await pending).code == 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "a b"}, ResponseCode.SYSTEM_ERROR),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION),
        ({"topic": "unknown", "c": "nothing"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"properties": PROPERTIES + "TRAN_MSG\x01true\x02"}, None),
        ({"properties": "x" * 40_000}, ResponseCode.MESSAGE_ILLEGAL),
        ({"g": "soon"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_what_can_not_be_sent_is_not_handed_on(
    rig: Rig, changes: dict[str, str], code: int | None
) -> None:
    answer = await rig.ask(rig.request(**changes))
    assert answer.code != ResponseCode.SUCCESS
    assert code is None or answer.code == code, answer.remark
    assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
    assert not rig.asking.asked
    assert rig.store.commit_log.max_offset == 0


async def test_so_many_replies_may_wait(rig: Rig) -> None:
    rig.client_calls.waiting_count = CALLS_MAX
    answer = await rig.ask()
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert not rig.asking.asked


async def test_a_topic_that_a_reply_made_is_on_the_disk_first(rig: Rig) -> None:
    pending = await rig.begin(rig.request("fresh"))
    rig.asking.answer(0)
    await settle(5)
    assert not pending.done()
    rig.workers.run_all()
    await settle(5)
    assert (await pending).code == 0
    stored = json.loads(rig.files.read_all(rig.store.paths.config / TOPICS_FILE))
    assert "fresh" in stored["topicConfigTable"]


async def test_under_sync_flush_the_answer_waits_for_the_disk() -> None:
    rig = Rig(flush_disk_type="SYNC_FLUSH").start()
    rig.workers.run_all()
    pending = await rig.begin()
    rig.asking.answer(0)
    await settle(5)
    assert not pending.done()
    rig.workers.run_all()
    await settle(5)
    assert (await pending).code == 0


async def test_traces_are_off_when_the_broker_says_so() -> None:
    rig = Rig(trace_on=False).start()
    answer = await rig.ask(rig.request(properties=""))
    assert answer.ext_fields["TRACE_ON"] == "false"
