"""The commands `skylarkmq delay ...`: messages that wait for their time."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import click

from skylarkmq.client.admin import Admin, DelayedMessage
from skylarkmq.client.errors import NotFound, NotSupported
from skylarkmq.client.instance import Client
from skylarkmq.client.producer.producer import Producer
from skylarkmq.client.send_result import SendResult, SendStatus
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.tools.connection import Change, Session, changes, online
from skylarkmq.tools.moments import age_text, now
from skylarkmq.tools.output import Columns, moment
from skylarkmq.tools.running import EXIT_CODES, FAILED, fail

COLUMNS: Final[Columns] = {
    "DUE": moment("due_at"), "IN": lambda row: age_text(timedelta(seconds=row["due_in_s"])),
    "TOPIC": "topic", "LEVEL": lambda row: row["level"] or None, "TAG": "tags", "KEYS": "keys",
    "MESSAGE ID": "msg_id",
}  # fmt: skip
LIMIT_MAX: Final = 100_000
WAITING_MAX: Final = 1_000_000
"""Among which a message is looked for."""


@click.group(epilog=EXIT_CODES)
def delay() -> None:
    """Delayed messages: list what waits, take one back."""


@delay.command("list", epilog=EXIT_CODES)
@click.option("--topic", metavar="TOPIC", help="Only what goes there.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=100, show_default=True)
@online
def list_delayed(session: Session, topic: str | None, limit: int) -> None:
    """List the messages that wait, the next one first: delay levels, and times of their own.

    A time of its own needs SkylarkMQ or RocketMQ 5; level 0 marks it in JSON. Exit code 3: there is
    no such topic.
    """

    async def work(client: Client) -> None:
        async with session.looking(client) as admin:
            found = await admin.delayed(topic=topic, limit=limit)
            if topic is not None and not found:
                await admin.topic_route(topic)  # which says so when there is no such topic
        at = now(client)
        rows = [
            {**one.to_json(), "due_in_s": round((one.due_at - at).total_seconds(), 1)}
            for one in found
        ]
        session.output.rows(rows, COLUMNS, none="no message waits")

    session.run(work)


@delay.command(epilog=EXIT_CODES)
@click.argument("msg_id")
@changes
@online
def cancel(session: Session, change: Change, msg_id: str) -> None:
    """Take back the waiting message MSG_ID, its producer's id or its offset id.

    That is possible for a message with a time of its own, on SkylarkMQ and on RocketMQ 5. It is not
    for a delay level, which 4.9 has alone: its brokers have no request for it, and no message that
    takes another one back. Exit code 5 then, 1 when its time has come meanwhile.
    """

    async def work(client: Client) -> int:
        async with Admin(client=client, timeout=session.timeout) as admin:
            message = await waiting_message(admin, msg_id)
        what = f"take back {message.msg_id}, due at {message.due_at.isoformat()} in {message.topic}"
        if not change.allowed(what):
            return 0
        if not await take_back(client, message, session.timeout):
            return fail(f"the time of {msg_id} has come, it is delivered", FAILED)
        session.output.one({**message.to_json(), "cancelled": True})
        return 0

    session.run(work)


async def waiting_message(admin: Admin, msg_id: str) -> DelayedMessage:
    """Return the waiting message with this id, the producer's or the offset id.

    Raises:
        NotFound: none waits.
        NotSupported: it waits for a delay level.
    """
    for message in await admin.delayed(limit=WAITING_MAX):
        if msg_id not in (message.msg_id, message.offset_msg_id):
            continue
        if message.level:
            raise NotSupported(
                f"{msg_id} waits for delay level {message.level}: RocketMQ's protocol has no way "
                "to take such a message back",
                hint="Let its consumers skip it; a message with a time of its own "
                "(deliver_at, delay) can be taken back",
            )
        return message
    raise NotFound(
        f"{msg_id} does not wait for its time on any broker",
        hint="`skylarkmq delay list` shows what waits",
    )


async def take_back(client: Client, message: DelayedMessage, timeout_s: float) -> bool:
    """Take back a message that waits for a time of its own; False: its time has come."""
    queue = MessageQueue(message.topic, message.broker, message.queue_id)
    sent = SendResult(SendStatus.SEND_OK, message.msg_id, message.offset_msg_id, queue, -1)
    async with Producer(client=client, send_timeout=timeout_s) as producer:
        return await producer.cancel(sent)
