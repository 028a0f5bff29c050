"""The commands `tail`, `peek` and `request`: reading a topic without a group, asking a consumer.

`tail` and `peek` join no group and commit nothing: consumers notice nothing of them.
"""

from __future__ import annotations

import asyncio
import re
import sys
from bisect import insort
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta

import click

from skylarkmq.client.admin import MessageScan, QueueStats
from skylarkmq.client.consumer.peek_reader import PeekReader, PeekStart
from skylarkmq.client.consumer.subscription import Selector, Sql92, StartFrom, Tag
from skylarkmq.client.errors import NotFound, RocketMQError
from skylarkmq.client.instance import Client
from skylarkmq.client.message_json import BodyForm, encoded_body
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.client.producer.producer import Producer
from skylarkmq.protocol.message import Message, MessageQueue
from skylarkmq.tools.connection import Session, online
from skylarkmq.tools.moments import Moment, Span, instant
from skylarkmq.tools.running import EXIT_CODES, NOT_FOUND, USAGE, fail
from skylarkmq.tools.showing import BODY_MIN, LIST_COLUMNS, body_option, body_text, line_of


@click.command(epilog=EXIT_CODES)
@click.argument("topic")
@click.option("--last", type=click.IntRange(1, 10_000), metavar="N", help="Begin N messages back.")
@click.option("--since", type=Moment(), help="Begin then: a time, or 10m for ten minutes ago.")
@click.option("--tags", metavar="EXPR", help="Only messages with these tags: 'A || B'.")
@click.option("--sql", metavar="EXPR", help="Only messages that SQL92 selects by properties; the "
              "broker needs enablePropertyFilter.")  # fmt: skip
@click.option("--grep", "pattern", metavar="REGEX", help="Only messages with this in body, tag, "
              "keys or properties.")  # fmt: skip
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after N messages.")
@click.option("--for", "span", type=Span(), metavar="SPAN", help="End after that: 30s, 5m.")
@body_option
@online
def tail(
    session: Session,
    topic: str,
    last: int | None,
    since: datetime | timedelta | None,
    tags: str | None,
    sql: str | None,
    pattern: str | None,
    count: int | None,
    span: timedelta | None,
    form: BodyForm,
) -> None:
    """Print the messages of all queues of TOPIC as they come, from now on, until Ctrl-C.

    Joins no group. Prints a line for each message, JSON where no terminal reads it. A broker that
    does not answer is named, and unless --last is given read once it does.
    """
    if last is not None and since is not None:
        raise click.UsageError("--last or --since, not both")
    selector, wanted = _selector(tags, sql), _regex(pattern)

    async def work(client: Client) -> None:
        limit_s = None if span is None else span.total_seconds()
        ending = asyncio.timeout(limit_s)
        try:
            async with ending:
                await follow(client)
        except TimeoutError:
            if not ending.expired():
                raise

    async def follow(client: Client) -> None:
        start: PeekStart = StartFrom.NOW
        if (moment := instant(since, client)) is not None:
            start = StartFrom.timestamp(moment)
        left = count or sys.maxsize
        if last is not None:
            recent, start = await _recent(session, client, topic, last, selector)
            session.output.tell_unanswered()
            shown = [message for message in recent if _has(message, wanted)][:left]
            for message in shown:
                _print(session, message, form)
            left -= len(shown)
        if not left:
            return
        async with PeekReader(
            topic, client=client, start=start, selector=selector, without=session.without
        ) as reader:
            async for message in reader:
                if _has(message, wanted):
                    _print(session, message, form)
                    left -= 1
                if not left:
                    return

    session.run(work, open_ended=count is None and span is None)


@click.command(epilog=EXIT_CODES)
@click.argument("topic")
@click.option("--count", type=click.IntRange(1, 10_000), default=10, show_default=True, metavar="N")
@click.option("--queue", metavar="BROKER/ID", help="One queue; default: all.")
@click.option("--offset", type=click.IntRange(0), help="Begin at this offset of the queue.")
@click.option("--since", type=Moment(), help="Begin with what was stored then: a time, or 10m for "
              "ten minutes ago.")  # fmt: skip
@click.option("--first", is_flag=True, help="Begin with the oldest message.")
@body_option
@online
def peek(
    session: Session,
    topic: str,
    count: int,
    queue: str | None,
    offset: int | None,
    since: datetime | timedelta | None,
    first: bool,
    form: BodyForm,
) -> None:
    """List some messages of TOPIC, the oldest first: the last ones unless a place is named.

    Joins no group. Exit code 3 when there is none.
    """
    if sum((offset is not None, since is not None, first)) > 1:
        raise click.UsageError("only one of --offset, --since and --first")

    async def work(client: Client) -> int:
        async with session.looking(client) as admin:
            queues = _chosen((await admin.describe_topic(topic)).queues, topic, queue)
            if offset is not None:
                after = {each.queue: max(each.begin, offset) for each in queues}
            elif first or since is not None:
                after = {each.queue: each.begin for each in queues}
            else:
                after = {each.queue: max(each.begin, each.end - count) for each in queues}
            scan = admin.scan(topic, start=instant(since, client), after=after)
            if first or since is not None or offset is not None:
                found = await _earliest(scan, count)
            else:
                found = sorted([message async for message in scan], key=_stored)[-count:]
        rows = [message.to_json(form) for message in found]
        session.output.rows(rows, LIST_COLUMNS, none="no message there", fits=BODY_MIN)
        return 0 if rows else NOT_FOUND

    session.run(work)


@click.command(epilog=EXIT_CODES)
@click.argument("topic")
@click.argument("body", default="-")
@click.option("--tags", metavar="TAG", help="The request's tag.")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Index key; repeatable.")
@body_option
@online
def request(
    session: Session, topic: str, body: str, tags: str | None, keys: tuple[str, ...], form: BodyForm
) -> None:
    """Send BODY as a request to TOPIC and print what its consumer replies.

    Without BODY, or with -, standard input is the body. --timeout bounds all of it: exit code 4
    when nobody replies in time.
    """
    content = sys.stdin.buffer.read() if body == "-" else body.encode()

    async def work(client: Client) -> int:
        async with Producer(client=client, send_timeout=session.timeout) as producer:
            message = Message(topic, content, tags=tags, keys=keys)
            reply = await producer.request(message, session.timeout)
        try:
            encoding, shown = encoded_body(reply.body, form if form != "none" else "base64")
        except ValueError as error:
            return fail(error, USAGE)
        row = {
            "correlation_id": reply.correlation_id,
            "tags": reply.tags,
            "keys": reply.keys,
            "properties": dict(reply.properties),
            "born_at": reply.born_at.isoformat(timespec="milliseconds"),
            "born_host": str(reply.born_host),
            "body": shown,
            "body_encoding": encoding,
        }
        if session.output.is_table:
            click.echo(body_text(row))
        else:
            session.output.one(row)
        return 0

    session.run(work)


def _selector(tags: str | None, sql: str | None) -> Selector | None:
    if tags is not None and sql is not None:
        raise click.UsageError("--tags or --sql, not both; in SQL, TAGS is a property")
    return Tag(tags) if tags else Sql92(sql) if sql else None


def _regex(pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        return re.compile(pattern)
    except re.error as error:
        raise click.BadParameter(f"{pattern!r}: {error}", param_hint="--grep") from error


def _has(message: StoredMessage, pattern: re.Pattern[str] | None) -> bool:
    if pattern is None:
        return True
    texts = [message.tags or "", message.keys, *message.properties.values()]
    with suppress(RocketMQError):  # a body that cannot be opened
        texts.append(message.body.decode("utf-8", "replace"))
    return any(pattern.search(text) for text in texts)


def _print(session: Session, message: StoredMessage, form: BodyForm) -> None:
    row = message.to_json(form)
    session.output.line(row, line_of(row))


async def _recent(
    session: Session, client: Client, topic: str, count: int, selector: Selector | None
) -> tuple[list[StoredMessage], Mapping[MessageQueue, int]]:
    """Return the last messages of a topic, the oldest first, and where to go on."""
    async with session.looking(client) as admin:
        queues = (await admin.describe_topic(topic)).queues
    begins = {each.queue: max(each.begin, each.end - count) for each in queues}
    ends = {each.queue: each.end for each in queues}
    found: list[StoredMessage] = []
    async with PeekReader(
        topic,
        client=client,
        start=begins,
        stop=ends,
        selector=selector,
        without=session.without,
    ) as reader:
        found += [message async for message in reader]
    return sorted(found, key=_stored)[-count:], ends


async def _earliest(scan: MessageScan, count: int) -> list[StoredMessage]:
    """Return the oldest messages of a scan."""
    found: list[StoredMessage] = []
    async for message in scan:
        insort(found, message, key=_stored)
        if len(found) > count:
            found.pop()
            if _stored(message) >= _stored(found[-1]):
                scan.skip_queue()  # what follows in it is younger still
    return found


def _chosen(
    queues: tuple[QueueStats, ...], topic: str, wanted: str | None
) -> tuple[QueueStats, ...]:
    if wanted is None:
        return queues
    broker, _, number = wanted.rpartition("/")
    if not number.isdigit():
        raise click.BadParameter(f"{wanted!r} is not BROKER/ID", param_hint="--queue")
    found = tuple(
        each
        for each in queues
        if each.queue.queue_id == int(number) and broker in ("", each.queue.broker_name)
    )
    if not found:
        known = ", ".join(f"{each.queue.broker_name}/{each.queue.queue_id}" for each in queues)
        raise NotFound(f"{topic} has no queue {wanted}; it has {known or 'none'}")
    return found


def _stored(message: StoredMessage) -> datetime:
    return message.stored_at
