"""The commands `skylarkmq bench ...`: how many messages a second, and how long each takes.

Both are bounded by a number of messages and by time. Latency of `send` is from the call to the
broker's answer; of `consume` it is from when a message was born, by its producer's clock and to the
millisecond, to when it is here: end to end, where both machines' clocks agree.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from itertools import accumulate
from typing import Any, Final

import click

from skylarkmq.client.consumer.consumer import Consumer
from skylarkmq.client.consumer.peek_reader import PeekReader
from skylarkmq.client.consumer.subscription import StartFrom
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.instance import Client, services_of
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.client.producer.producer import Producer
from skylarkmq.common.clock import Clock
from skylarkmq.common.histogram import Histogram
from skylarkmq.protocol.message import Message
from skylarkmq.tools.connection import Change, Session, changes, online
from skylarkmq.tools.moments import Span
from skylarkmq.tools.output import Columns, ProgressBar, size_text
from skylarkmq.tools.running import EXIT_CODES, FAILED

FIRST_S: Final = 0.000_01
STEP: Final = 1.02
BOUNDS: Final = tuple(FIRST_S * STEP**power for power in range(850))
"""10 us to 200 s, so a percentile is at most 2 % too high."""
PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999}
GETMANY: Final = 1000
NEVER: Final = 1 << 30
"""Bodies are sent as they are: this one would be small when compressed."""
COLUMNS: Final[Columns] = {
    "messages": "messages",
    "seconds": "seconds",
    "messages/s": "messages_per_s",
    "MB/s": "mb_per_s",
    "latency ms": lambda row: "  ".join(
        f"{name.replace('_', '.')} {value}" for name, value in row["latency_ms"].items()
    ),
    "errors": lambda row: ", ".join(f"{n} {name}" for name, n in row["errors"].items()) or None,
}
messages_option = click.option(
    "--messages", type=click.IntRange(1), default=10_000, show_default=True, metavar="N",
    help="End after N messages.",
)  # fmt: skip
for_option = click.option(
    "--for", "span", type=Span(), default="60s", show_default=True, metavar="SPAN",
    help="End after that.",
)  # fmt: skip


@click.group(epilog=EXIT_CODES)
def bench() -> None:
    """Measure a cluster: messages a second, latency."""


@bench.command(epilog=EXIT_CODES)
@click.argument("topic")
@messages_option
@for_option
@click.option("--size", type=click.IntRange(0, 4 << 20), default=1024, show_default=True,
              help="Bytes of each body.")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(1, 10_000), default=64, show_default=True,
              help="Sends under way at the same time.")  # fmt: skip
@click.option("--batch", type=click.IntRange(1, 256), default=1, show_default=True,
              help="Messages in one send.")  # fmt: skip
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N",
              help="At most N messages a second.")  # fmt: skip
@changes
@online
def send(
    session: Session,
    change: Change,
    topic: str,
    messages: int,
    span: timedelta,
    size: int,
    concurrency: int,
    batch: int,
    rate: float | None,
) -> None:
    """Send messages to TOPIC and say how quick that is.

    They stay there, and every group that consumes the topic gets them: name a topic made for it.
    Exit code 1 when sends failed.
    """
    what = f"send up to {messages} messages of {size_text(size)} to {topic}"
    if not change.allowed(what):
        return

    async def work(client: Client) -> int:
        clock = services_of(client).clock
        tally = Tally(clock)
        pace = Pace(clock, messages, span, rate)
        body = bytes(index % 94 + 33 for index in range(size))
        limit_s = session.timeout

        async def sender(producer: Producer, progress: ProgressBar) -> None:
            while (count := await pace.take(batch)) > 0:
                begun_s = clock.monotonic()
                try:
                    if count == 1:
                        await producer.send(Message(topic, body))
                    else:
                        await producer.send_batch([Message(topic, body)] * count)
                except RocketMQError as error:
                    tally.failed(error, count)
                else:
                    tally.done(count, count * size, clock.monotonic() - begun_s)
                progress("send", tally.messages, messages)

        async with Producer(client=client, send_timeout=limit_s, compress_over=NEVER) as producer:
            try:
                with ProgressBar() as progress:
                    pace.begin()
                    await asyncio.gather(*(sender(producer, progress) for _ in range(concurrency)))
            finally:  # interrupted, it says what it measured until then
                row = tally.row(topic, pace.begun_s)
                row |= {"size": size, "concurrency": concurrency, "batch": batch, "rate": rate}
                session.output.one(row, COLUMNS)
        return FAILED if tally.errors or not tally.messages else 0

    session.run(work)


@bench.command(epilog=EXIT_CODES)
@click.argument("topic")
@messages_option
@for_option
@click.option("--group", metavar="GROUP", help="Consume and commit as a member of this group; "
              "default: read without a group.")  # fmt: skip
@click.option("--from", "start", type=click.Choice(["now", "first"]), default="now",
              show_default=True, help="Where to begin; a group goes on where it was.")  # fmt: skip
@changes
@online
def consume(
    session: Session,
    change: Change,
    topic: str,
    messages: int,
    span: timedelta,
    group: str | None,
    start: str,
) -> None:
    """Read messages of TOPIC and say how quick that is, and how long they were on their way.

    Latency says something of messages that are sent meanwhile. The time counts from the first
    message to the last. With --group the group's other members do not get what is read here, so
    that needs --yes. Exit code 1 when none came.
    """
    what = f"consume up to {messages} messages of {topic} as the group {group}"
    if (group or change.dry_run) and not change.allowed(what):
        return
    start_from = StartFrom.FIRST if start == "first" else StartFrom.NOW

    async def work(client: Client) -> int:
        clock = services_of(client).clock
        tally = Tally(clock)
        begun_s = clock.monotonic()
        source = _as_member(client, topic, group, start_from) if group else _peek(
            client, topic, start_from
        )  # fmt: skip
        ending = asyncio.timeout(span.total_seconds())
        try:
            with ProgressBar() as progress:
                async with ending, aclosing(source):
                    async for message in source:
                        if not tally.messages:
                            begun_s = clock.monotonic()
                        born_ms = message.stored.born_timestamp
                        latency_s = max(0, clock.now_ms() - born_ms) / 1000
                        tally.done(1, len(message.stored.body), latency_s)
                        progress("consume", tally.messages, messages)
                        if tally.messages >= messages:
                            break
        except TimeoutError:
            if not ending.expired():
                raise
        finally:  # interrupted, it says what it measured until then
            session.output.one(tally.row(topic, begun_s) | {"group": group}, COLUMNS)
        return 0 if tally.messages else FAILED

    session.run(work)


async def _peek(client: Client, topic: str, start: StartFrom) -> AsyncGenerator[StoredMessage]:
    async with PeekReader(topic, client=client, start=start) as reader:
        async for message in reader:
            yield message


async def _as_member(
    client: Client, topic: str, group: str, start: StartFrom
) -> AsyncGenerator[StoredMessage]:
    """Yield what the group gets; what is yielded is done."""
    async with Consumer(
        topic, client=client, group=group, start_from=start, ack="manual"
    ) as consumer:
        while True:
            for messages in (await consumer.getmany(GETMANY, timeout=1)).values():
                for message in messages:
                    await message.ack()
                    yield message


class Tally:
    """What was done, and how long each took."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times = Histogram(BOUNDS)
        self._longest_s = 0.0
        self._last_s = 0.0
        self._bytes = 0
        self.messages = 0
        self.errors: Counter[str] = Counter()

    def done(self, count: int, size: int, took_s: float) -> None:
        """Note messages, their bytes, and the time that one request of them took."""
        self.messages += count
        self._bytes += size
        self._times.observe(took_s)
        self._longest_s = max(self._longest_s, took_s)
        self._last_s = self._clock.monotonic()

    def failed(self, error: RocketMQError, count: int) -> None:
        """Note messages that were not sent, or not known to be."""
        self.errors[type(error).__name__] += count

    def row(self, topic: str, begun_s: float) -> dict[str, Any]:
        """Return the figures for programs."""
        seconds = max(self._last_s - begun_s, 0.0) if self.messages else 0.0
        count = self._times.count
        latency = {
            name: _ms(min(percentile(self._times, part), self._longest_s) if count else None)
            for name, part in PERCENTILES.items()
        }
        return {
            "topic": topic,
            "messages": self.messages,
            "bytes": self._bytes,
            "seconds": round(seconds, 3),
            "messages_per_s": round(self.messages / seconds, 1) if seconds else None,
            "mb_per_s": round(self._bytes / 1e6 / seconds, 3) if seconds else None,
            "latency_ms": {
                "mean": _ms(self._times.sum / count if count else None),
                **latency,
                "max": _ms(self._longest_s if count else None),
            },
            "errors": dict(self.errors),
        }


class Pace:
    """Gives out messages to send: no more than wanted, no longer, no quicker."""

    def __init__(self, clock: Clock, messages: int, span: timedelta, rate: float | None) -> None:
        self._clock = clock
        self._left = messages
        self._span_s = span.total_seconds()
        self._rate = rate
        self._given = 0
        self.begun_s = 0.0

    def begin(self) -> None:
        """Start the time."""
        self.begun_s = self._clock.monotonic()

    async def take(self, count: int) -> int:
        """Return how many to send now, `count` at most; 0: it is over."""
        passed_s = self._clock.monotonic() - self.begun_s
        count = min(count, self._left)
        if not count or passed_s >= self._span_s:
            return 0
        due_s = self._given / self._rate if self._rate else 0.0
        if due_s >= self._span_s:
            return 0
        self._left -= count
        self._given += count
        if due_s > passed_s:
            await asyncio.sleep(due_s - passed_s)
        return count


def percentile(times: Histogram, part: float) -> float:
    """Return the bound below which that part of the values lies."""
    wanted = part * times.count
    for bound, below in zip(times.bounds, accumulate(times.counts), strict=False):
        if below >= wanted:
            return bound
    return times.bounds[-1]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
