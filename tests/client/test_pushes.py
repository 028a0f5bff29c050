"""Requests that a broker sends: who handles them, what goes back, and what failures cost."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from skylarkmq.client.wire.pushes import TASKS_MAX, PushRouter
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.connection import Connection
from tests.support.manual_clock import settle

CODE = 307


class FakeConnection:
    """Keeps the answers."""

    address = "broker:1"
    closed = False

    def __init__(self) -> None:
        self.replies: list[RemotingCommand] = []

    def reply(self, answer: RemotingCommand) -> None:
        self.replies.append(answer)


@pytest.fixture
def connection() -> FakeConnection:
    return FakeConnection()


def push(router: PushRouter, connection: FakeConnection, **changes: bool) -> None:
    command = RemotingCommand.request(CODE, {"a": "1"}, opaque=7, **changes)
    router.take(cast("Connection", connection), command)


async def test_an_answer_at_once_carries_the_opaque_of_the_push(connection: FakeConnection) -> None:
    router = PushRouter()
    router.on(CODE, lambda _, command: command.reply(0, ext_fields=command.ext_fields))
    push(router, connection)
    [answer] = connection.replies
    assert (answer.opaque, answer.is_response, answer.ext_fields) == (7, True, {"a": "1"})


async def test_an_answer_that_takes_time(connection: FakeConnection) -> None:
    router, gate = PushRouter(), asyncio.Event()

    async def handle(_: Connection, command: RemotingCommand) -> RemotingCommand:
        await gate.wait()
        return command.reply(0)

    router.on(CODE, handle)
    push(router, connection)
    await settle()
    assert connection.replies == []
    gate.set()
    await settle()
    assert [answer.code for answer in connection.replies] == [0]


async def test_nobody_answers_an_unknown_code(connection: FakeConnection) -> None:
    push(PushRouter(), connection)
    assert connection.replies == []


@pytest.mark.parametrize("later", [False, True])
async def test_a_failure_is_answered_with_its_cause(
    connection: FakeConnection, later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Connection, command: RemotingCommand) -> RemotingCommand:
        raise ValueError("no such group")

    async def fail_later(_: Connection, command: RemotingCommand) -> RemotingCommand:
        raise ValueError("no such group")

    router = PushRouter()
    router.on(CODE, fail_later if later else fail)
    push(router, connection)
    await settle()
    [answer] = connection.replies
    assert (answer.code, answer.remark) == (1, "ValueError: no such group")
    assert "request 307 of broker:1 failed" in caplog.text


async def test_a_one_way_push_is_never_answered(connection: FakeConnection) -> None:
    router = PushRouter()
    router.on(CODE, lambda _, command: command.reply(0))
    push(router, connection, oneway=True)
    assert connection.replies == []


async def test_the_number_of_answers_under_way_is_bounded(connection: FakeConnection) -> None:
    router = PushRouter()

    async def hang(_: Connection, command: RemotingCommand) -> RemotingCommand:
        await asyncio.Event().wait()
        return command.reply(0)

    router.on(CODE, hang)
    for _ in range(TASKS_MAX + 3):
        push(router, connection)
    await settle()
    assert [answer.code for answer in connection.replies] == [ResponseCode.SYSTEM_BUSY] * 3
    tasks = [task for task in asyncio.all_tasks() if task.get_name() == f"skylarkmq-push-{CODE}"]
    assert len(tasks) == TASKS_MAX
    await router.stop()
    await settle()
    assert all(task.cancelled() for task in tasks)


async def test_no_answer_to_a_connection_that_has_closed(connection: FakeConnection) -> None:
    router = PushRouter()
    router.on(CODE, lambda _, command: command.reply(0))
    connection.closed = True
    push(router, connection)
    assert connection.replies == []
