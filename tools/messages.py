"""The commands `skylarkmq send` and `skylarkmq consume`: messages in and out of a shell.

Results and messages go to standard output, one JSON object a line; everything else to standard
error. Exit codes: those of `running.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Final, Literal

import click

from skylarkmq.client.consumer.consumer import Consumer
from skylarkmq.client.consumer.subscription import StartFrom, Tag
from skylarkmq.client.errors import RequestTimeout, RocketMQError
from skylarkmq.client.instance import Client, services_of
from skylarkmq.client.message_json import BodyForm, message_to_send
from skylarkmq.client.producer.producer import Producer
from skylarkmq.client.send_result import SendResult
from skylarkmq.protocol.message import Message
from skylarkmq.protocol.properties import PRIORITY_MAX
from skylarkmq.tools.connection import Session, connected
from skylarkmq.tools.output import as_json, visible
from skylarkmq.tools.running import EXIT_CODES, FAILED, NOT_FOUND, fail
from skylarkmq.tools.showing import body_option, result_row

READ_SIZE: Final = 65_536
LINES_AHEAD: Final = 4


@click.command(epilog=EXIT_CODES)
@click.argument("topic")
@click.argument("body", default="-")
@click.option("--input", "input_form", type=click.Choice(["text", "json"]), default="text",
              show_default=True, help="What a body is; json: a whole message as `consume`, `tail` "
              "and others print it.")  # fmt: skip
@click.option("--tags", metavar="TAG", help="The message's tag.")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Index key; repeatable.")
@click.option(
    "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Property; repeatable."
)
@click.option("--delay-level", type=click.IntRange(0, 18), default=0, help="1 (1s) to 18 (2h).")
@click.option("--priority", type=click.IntRange(0, PRIORITY_MAX), metavar="NUMBER",
              help="0 or more, in a topic of type PRIORITY.")  # fmt: skip
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=3.0, show_default=True,
    help="Seconds for one message.",
)  # fmt: skip
@connected
def send(
    topic: str,
    body: str,
    input_form: str,
    tags: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    delay_level: int,
    priority: int | None,
    timeout: float,
    session: Session,
) -> None:
    """Send BODY to TOPIC; without BODY, or with -, one message for each line of standard input.

    With --input json each is a message in JSON, of `-o ndjson` where a command prints lists. Body,
    tag, keys, flag, priority, sharding key and the application's properties are sent again; ids and
    times are new ones.

    Prints a JSON line with status, ids, queue and offset for each message as it is stored, in their
    order. The first line that fails is the last one read: what is under way then is still printed.
    """
    named = dict(_property(text) for text in properties)
    if input_form == "json" and (tags or keys or named or delay_level or priority is not None):
        raise click.UsageError(
            "with --input json a message says its own tag, keys, properties and priority"
        )

    def message(content: bytes | str) -> Message:
        if input_form == "json":
            return message_to_send(topic, _parsed(content))
        return Message(
            topic, content, tags=tags, keys=keys, properties=named, delay_level=delay_level,
            priority=priority,
        )  # fmt: skip

    async def work(client: Client) -> int:
        async with Producer(client=client, send_timeout=timeout) as producer:
            if body != "-":
                _print_result(await producer.send(message(body)))
                return 0
            return await _send_lines(producer, message)

    session.run(work)


@click.command(epilog=EXIT_CODES)
@click.argument("topic")
@click.option("--group", required=True, help="The consumer group, which keeps the offsets.")
@click.option(
    "--from", "start", type=click.Choice(["first", "last", "now"]), default="last",
    show_default=True,
    help="Where a group that is new to the topic starts; with last, RocketMQ's rule, at the first "
    "message of a topic that is still young, with now at none of them.",
)  # fmt: skip
@click.option("--tags", metavar="EXPR", help="Only messages with these tags: 'A || B'.")
@click.option("--max", "max_count", type=click.IntRange(1), help="End after so many messages.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True),
    help="End when no message came for so many seconds.",
)  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["json"]), default="json", show_default=True)
@body_option
@connected
def consume(
    topic: str,
    group: str,
    start: Literal["first", "last", "now"],
    tags: str | None,
    max_count: int | None,
    timeout: float | None,
    output: str,
    form: BodyForm,
    session: Session,
) -> None:
    """Print the messages of TOPIC as a member of a group, one JSON object a line.

    A message is acknowledged once it is printed. Ends by Ctrl-C, SIGTERM, --max or --timeout, and
    commits. With --max, ending earlier by --timeout is a failure (1).
    """

    async def work(client: Client) -> int:
        consumer = Consumer(
            topic,
            client=client,
            group=group,
            selector=Tag(tags) if tags else None,
            start_from=StartFrom(start),
            ack="manual",
        )
        async with consumer:
            known = services_of(client).routes.known
            if known(topic) is None:
                click.echo(f"topic {topic} does not exist yet, waiting", err=True)
            count = await _print_messages(consumer, max_count, timeout, form)
            if count == 0 and known(topic) is None:
                click.echo(f"error: topic {topic} does not exist", err=True)
                return NOT_FOUND
        if max_count is None or count >= max_count:
            return 0
        if count:
            return fail(
                f"no further message within {timeout:g} s, {count} of {max_count} came", FAILED
            )
        return fail(f"no message within {timeout:g} s", FAILED)

    session.run(work, open_ended=max_count is None)


async def _send_lines(producer: Producer, message: Callable[[bytes], Message]) -> int:
    """Send each line, many in flight; print each result as it comes, in order.

    The first failure, or a signal, ends the reading; what is under way then is printed, too.
    """
    under_way: asyncio.Queue[asyncio.Future[SendResult] | None] = asyncio.Queue()

    async def read() -> None:
        async for line in _input_lines():
            try:
                await producer.room(len(line))
                under_way.put_nowait(producer.send_nowait(message(line)))
            except (RocketMQError, ValueError) as error:
                under_way.put_nowait(refused := asyncio.Future[SendResult]())
                refused.set_exception(error)
                return

    async def show() -> None:
        number, failure = 0, None
        while (future := await under_way.get()) is not None:
            number += 1
            try:
                _print_result(await future)
            except (RocketMQError, ValueError) as error:
                click.echo(f"line {number}: {visible(str(error))}", err=True)
                failure = failure or error
                reading.cancel()
        if failure is not None:
            raise failure

    reading, showing = asyncio.create_task(read()), asyncio.create_task(show())
    try:
        await asyncio.wait([reading, showing], return_when=asyncio.FIRST_COMPLETED)
    finally:
        reading.cancel()
        under_way.put_nowait(None)
        await showing
    if reading.done() and not reading.cancelled():
        await reading  # raises what was wrong with the input
    return 0


async def _print_messages(
    consumer: Consumer, max_count: int | None, timeout_s: float | None, form: BodyForm
) -> int:
    """Print and acknowledge until one of the ends; return how many."""
    count = 0
    while max_count is None or count < max_count:
        try:
            message = await consumer.getone(timeout=timeout_s)
        except RequestTimeout:
            break
        click.echo(as_json(message.to_json(form), indent=None))
        await message.ack()
        count += 1
    return count


async def _input_lines() -> AsyncGenerator[bytes]:
    """Yield the lines of standard input without their ends.

    A daemon thread reads, because a file cannot be watched by the loop and a pipe may never end.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | Exception] = asyncio.Queue()
    ahead = threading.Semaphore(LINES_AHEAD)  # bounds the queue

    def read() -> None:
        data: bytes | Exception = b"more"
        while data and isinstance(data, bytes):
            ahead.acquire()
            try:
                data = os.read(sys.stdin.fileno(), READ_SIZE)
            except (OSError, AttributeError) as error:  # closed, or there is none
                data = error
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, data)
            except RuntimeError:  # the loop has ended before the input
                return

    threading.Thread(target=read, name="skylarkmq-stdin", daemon=True).start()
    rest = b""
    while data := await chunks.get():
        if isinstance(data, Exception):
            raise ValueError(f"standard input cannot be read: {data}")
        ahead.release()
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest


def _print_result(result: SendResult) -> None:
    click.echo(as_json(result_row(result), indent=None))


def _parsed(text: bytes | str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no message in JSON: {error}; `-o ndjson` prints one a line") from error


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--property")
    return name, value
