"""What is asked of one client through the broker is handed on, its answer comes back as it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skylarkmq.broker.groups.client_calls import CALLS_MAX
from skylarkmq.broker.processor.admin.client_call import CALL_TIMEOUT_S, ClientCallProcessor
from skylarkmq.protocol import flags
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.message_id import offset_message_id
from skylarkmq.protocol.record import decode_message
from tests.broker.calls_rig import CallsRig
from tests.broker.group_rig import FakeConnection, ask, begin, request
from tests.store.support import HOST
from tests.support.manual_clock import settle

INFO = RequestCode.GET_CONSUMER_RUNNING_INFO
DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY
CLIENT_ID = "client@192.0.2.1:1"


class Rig(CallsRig):
    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.processor = ClientCallProcessor(self.context, self.client_calls)

    async def ask(self, code: int, **fields: Any) -> RemotingCommand:
        asked = {"consumerGroup": "g", "clientId": CLIENT_ID, **fields}
        return await ask(self, self.processor, FakeConnection(), request(code, asked))

    async def begin(self, code: int, **fields: Any) -> asyncio.Task[RemotingCommand]:
        """Ask, and go on until the client has been asked."""
        asked = {"consumerGroup": "g", "clientId": CLIENT_ID, **fields}
        pending: asyncio.Task[RemotingCommand]
        pending = begin(self.processor, FakeConnection(), request(code, asked))
        for _ in range(3):
            await settle(3)
            self.workers.run_all()
        return pending

    def message_id(self, topic: str = "T") -> str:
        """The id of a message that is stored."""
        self.put(topic, 0, b"hello", properties=b"UNIQ_KEY\x01U\x02")
        return offset_message_id(HOST, self.results[-1].physical_offset)


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.start()
    return rig


async def test_the_request_goes_to_the_client_and_its_answer_comes_back(rig: Rig) -> None:
    client = rig.join("T")
    pending = await rig.begin(INFO, jstackEnable="true", AccessKey="k", **{"skylarkmq.codec": "x"})
    (asked,) = client.asked
    assert (asked.code, asked.is_oneway) == (307, False)
    assert asked.ext_fields == {
        "consumerGroup": "g",
        "clientId": CLIENT_ID,
        "jstackEnable": "true",
        "AccessKey": "k",
    }
    client.answer(207, "as the client says", b"\x00whatever it writes")
    answer = await pending
    assert (answer.code, answer.remark) == (207, "as the client says")
    assert answer.body == b"\x00whatever it writes"
    assert answer.ext_fields == {"told": "yes"}
    assert answer.opaque == 5, "that of who asked"
    assert rig.client_calls.waiting_count == 0


async def test_the_newest_connection_of_a_client_is_asked(rig: Rig) -> None:
    old, other = rig.join("T"), rig.join("T", name="192.0.2.1:2")
    new = rig.join("T", name="192.0.2.1:1")
    await rig.begin(INFO, jstackEnable="false")
    assert [len(client.asked) for client in (old, other, new)] == [0, 0, 1]
    new.close()
    old.close()


async def test_a_client_that_does_not_answer_is_answered_for(rig: Rig) -> None:
    client = rig.join("T")
    pending = await rig.begin(INFO, jstackEnable="false")
    rig.clock.advance(CALL_TIMEOUT_S - 0.1)
    await settle(3)
    assert not pending.done()
    rig.clock.advance(0.1)
    answer = await pending
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert answer.remark == f"consumer <g> <{CLIENT_ID}> Timeout: no answer within 10 s"
    client.answer(0)  # too late, and nobody's any more
    assert rig.client_calls.outcomes["timeout"] == 1


async def test_a_client_that_leaves_meanwhile(rig: Rig) -> None:
    client = rig.join("T")
    pending = await rig.begin(INFO, jstackEnable="false")
    client.close()
    answer = await pending
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert str(answer.remark).startswith(f"invoke consumer <g> <{CLIENT_ID}> Exception: ")
    answer = await rig.ask(INFO, jstackEnable="false")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"The Consumer <g> <'{CLIENT_ID}'> not online"


async def test_a_client_that_is_too_old_is_not_asked(rig: Rig) -> None:
    client = rig.join("T", version=1)
    answer = await rig.ask(INFO, jstackEnable="false")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "too low to finish, please upgrade it" in str(answer.remark)
    assert not client.asked


async def test_so_many_requests_may_wait_for_clients(rig: Rig) -> None:
    client = rig.join("T")
    rig.client_calls.waiting_count = CALLS_MAX
    answer = await rig.ask(INFO, jstackEnable="false")
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert not client.asked


async def test_a_message_goes_along_as_it_is_stored(rig: Rig) -> None:
    client = rig.join("T")
    rig.message_id()
    pending = await rig.begin(DIRECTLY, msgId=rig.message_id().lower(), brokerName="elsewhere")
    (asked,) = client.asked
    assert asked.code == 309
    assert asked.ext_fields["brokerName"] == "broker-a"
    message = decode_message(asked.body)
    assert (message.topic, message.body, message.queue_offset) == ("T", b"hello", 1)
    client.answer(0, body=b'{"consumeResult":"CR_SUCCESS"}')
    answer = await pending
    assert (answer.code, answer.body) == (0, b'{"consumeResult":"CR_SUCCESS"}')


@pytest.mark.parametrize("message_id", ["", "x", "0" * 31, "z" * 32, "0" * 32 + "é", "F" * 32])
async def test_ids_that_name_no_message(rig: Rig, message_id: str) -> None:
    client = rig.join("T")
    answer = await rig.ask(DIRECTLY, msgId=message_id)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert not client.asked


async def test_a_place_without_a_message(rig: Rig) -> None:
    client = rig.join("T")
    rig.message_id()
    answer = await rig.ask(DIRECTLY, msgId=offset_message_id(HOST, 1))
    assert (answer.code, answer.remark) == (1, "can not find message by the offset, 1")
    assert not client.asked


@pytest.mark.parametrize(
    "topic",
    [
        flags.RMQ_SYS_SCHEDULE_TOPIC,
        flags.RMQ_SYS_WHEEL_TIMER_TOPIC,
        flags.RMQ_SYS_TRANS_HALF_TOPIC,
        flags.RMQ_SYS_TRANS_OP_HALF_TOPIC,
    ],
)
async def test_what_waits_is_not_consumed_early(rig: Rig, topic: str) -> None:
    client = rig.join("T")
    answer = await rig.ask(DIRECTLY, msgId=rig.message_id(topic))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "it is not consumed before" in str(answer.remark)
    assert not client.asked


@pytest.mark.parametrize("fields", [{"clientId": ""}, {"consumerGroup": "a b"}])
async def test_without_a_name_nobody_is_asked(rig: Rig, fields: dict[str, str]) -> None:
    client = rig.join("T")
    for code in (INFO, DIRECTLY):
        more = {"jstackEnable": "false", "msgId": rig.message_id()}
        assert (await rig.ask(code, **more, **fields)).code == ResponseCode.SYSTEM_ERROR
    assert not client.asked
