"""What the SDK logs and what its errors say holds no body, no key and no secret, at any level."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client import Client, Consumer, Credentials, Message, Producer, StartFrom
from skylarkmq.client.errors import RocketMQError
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.consumer.support import GROUP, Group

ROOT = Path(__file__).parents[2]
BODY = "sesame-body"
KEY = "sesame-key"
VALUE = "sesame-value"
SECRET = "sesame-secret"
TOKEN = "sesame-token"
PRIVATE = (BODY, KEY, VALUE, SECRET, TOKEN)
SETTINGS = Credentials("access-key", SECRET, security_token=TOKEN)


class Talkative(Group):
    """All of its clients sign."""

    def client(self) -> Client:
        plain = super().client()
        self._seed += 1
        return Client(
            self.cluster.namesrv,
            network=plain._network,
            clock=self.clock,
            client_ip="192.0.2.1",
            instance_name=f"member-{self._seed}",
            codec="json",
            credentials=SETTINGS,
        )


async def eventful(it: Talkative) -> list[str]:
    """Send, fail, consume, fail again; return the texts of all errors and objects on the way."""
    texts: list[str] = []
    message = Message("orders", BODY, keys=KEY, properties={"a": VALUE})
    producer = Producer(client=it.client(), retries=1)
    await it.wait(producer.start())
    await it.wait(producer.send(message))
    for code in (
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.NO_PERMISSION,
    ):
        it.broker.refuse(RequestCode.SEND_MESSAGE_V2, code, code)
        try:
            await it.wait(producer.send(message))
        except RocketMQError as error:
            texts += [str(error), repr(error)]
    with suppress(RocketMQError):
        await it.wait(producer.send_oneway(message))
    await it.wait(producer.stop())

    async def handle(received: Any) -> None:
        texts.append(repr(received))
        if not received.reconsume_times:
            raise ValueError("cannot use it")

    consumer = Consumer("orders", group=GROUP, start_from=StartFrom.FIRST)
    consumer._client = it.client()
    await it.wait(consumer.start())
    it.broker.refuse(RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SYSTEM_ERROR)
    it.broker.refuse(RequestCode.PULL_MESSAGE, ResponseCode.SYSTEM_ERROR)
    working = it.wait(consumer.run(handle, concurrency=1))
    with suppress(AssertionError):  # it would run for ever
        await working
    await it.stop(consumer)
    texts += [repr(consumer), repr(producer), repr(SETTINGS), str(SETTINGS)]
    return texts


async def test_no_record_and_no_error_holds_what_is_private(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="skylarkmq")
    texts = await eventful(Talkative({"orders": 1}))
    formatter = logging.Formatter("%(name)s %(message)s")
    records = [formatter.format(record) for record in caplog.records]
    assert len(records) > 5
    assert len(texts) > 5
    assert [text for text in records + texts if any(word in text for word in PRIVATE)] == []


async def test_loggers_have_the_names_of_their_modules_and_no_handler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="skylarkmq")
    await eventful(Talkative({"orders": 1}))
    names = {record.name for record in caplog.records}
    assert names
    assert all(name.startswith(("skylarkmq.client.", "skylarkmq.remoting.")) for name in names)
    assert all(not logging.getLogger(name).handlers for name in [*names, "skylarkmq"])


def test_every_module_logs_under_its_own_name() -> None:
    odd = [
        path.name
        for room in ("client", "remoting")
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"^\w+ = .*getLogger\((?!__name__)", path.read_text(), re.MULTILINE)
    ]
    assert odd == []
