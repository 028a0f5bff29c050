"""The command `skylarkmq top`: brokers, topics and groups with their rates, again and again.

Rates come from two looks at the offsets of all queues: what was stored, and what groups committed.
So they are those of the interval, on any broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

import click

from skylarkmq.client.admin import Admin, GroupProgress, TopicDescription, base
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.instance import Client, services_of
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.flags import is_retry_topic
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.tools.connection import ASKED_AT_ONCE, Session, online
from skylarkmq.tools.moments import Span
from skylarkmq.tools.output import Output, table
from skylarkmq.tools.running import EXIT_CODES

SORTS: Final = {"i": "in", "o": "out", "l": "lag", "n": "name"}
KEYS_MAX: Final = 64
HEADS: Final = 6
"""Lines of the screen that are no rows: three heads, two between, the one with the keys."""
CLEAR: Final = "\x1b[H\x1b[J"
KEYS_TEXT: Final = "sort: i in, o out, l lag, n name   q: end"
Row = dict[str, Any]


@dataclass(slots=True)
class Look:
    """What was seen at one time."""

    at_s: float
    ends: dict[MessageQueue, int] = field(default_factory=dict[MessageQueue, int])
    committed: dict[tuple[str, MessageQueue], int] = field(
        default_factory=dict[tuple[str, MessageQueue], int]
    )
    lags: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    members: dict[str, int] = field(default_factory=dict[str, int])
    brokers: list[Row] = field(default_factory=list[Row])


@click.command(epilog=EXIT_CODES)
@click.option("--every", type=Span(), default="2s", show_default=True, metavar="SPAN",
              help="Time between two looks.")  # fmt: skip
@click.option("--times", type=click.IntRange(1), help="End after so many looks.")
@click.option("--sort", type=click.Choice([*SORTS.values()]), default="lag", show_default=True)
@click.option("--topics", "pattern", metavar="REGEX", help="Only topics with this in their name.")
@click.option("--groups", "group_pattern", metavar="REGEX", help="Only groups with this in their "
              "name.")  # fmt: skip
@online
def top(
    session: Session,
    every: timedelta,
    times: int | None,
    sort: str,
    pattern: str | None,
    group_pattern: str | None,
) -> None:
    """Show brokers, topics and groups with messages a second and lag, until q or Ctrl-C.

    Without a terminal it prints a JSON object a line, a snapshot each. On large clusters name the
    topics and groups: each is asked for, on every look.
    """
    topics, groups = _regex(pattern, "--topics"), _regex(group_pattern, "--groups")

    async def work(client: Client) -> None:
        async with session.looking(client) as admin:
            clock = services_of(client).clock
            screen = Screen(session.output, sort, every)
            before = await look(admin, clock, topics, groups)
            left = times or sys.maxsize
            with screen.keys():
                while left and await screen.wait(every.total_seconds()):
                    left -= 1
                    session.output.forget_unanswered()
                    try:
                        now = await look(admin, clock, topics, groups)
                    except RocketMQError as error:  # while a name server is away
                        click.echo(f"error: {error}", err=True)
                        continue
                    screen.show(snapshot(before, now))
                    before = now

    session.run(work, open_ended=times is None)


async def look(
    admin: Admin, clock: Clock, topics: re.Pattern[str], groups: re.Pattern[str]
) -> Look:
    """Ask for the offsets of all topics and groups; what has gone meanwhile is left out."""
    status = await admin.cluster_status()
    seen = Look(clock.monotonic())
    for broker in status.brokers:
        for each in broker.replicas:
            seen.brokers.append(
                {
                    "broker": broker.name, "broker_id": each.broker_id, "address": each.address,
                    "version": each.version, "disk_used": each.disk_used,
                    "behind": broker.behind(each), "error": each.error,
                }
            )  # fmt: skip

    async def topic(name: str) -> None:
        with contextlib.suppress(RocketMQError):
            _note_topic(seen, await admin.describe_topic(name))

    async def group(name: str) -> None:
        with contextlib.suppress(RocketMQError):
            members = await admin.consumers(name)
            _note_group(seen, name, await admin.progress(name))
            seen.members[name] = len(members.members)

    questions = [partial(topic, name) for name in await admin.list_topics() if topics.search(name)]
    questions += [partial(group, name) for name in await admin.list_groups() if groups.search(name)]
    seen.at_s = clock.monotonic()
    await base.each(lambda ask: ask(), questions, ASKED_AT_ONCE)
    return seen


def _note_topic(seen: Look, topic: TopicDescription) -> None:
    for queue in topic.queues:
        seen.ends[queue.queue] = queue.end


def _note_group(seen: Look, group: str, progress: GroupProgress) -> None:
    for each in progress.queues:
        seen.committed[(group, each.queue)] = each.committed
        key = (group, each.queue.topic)
        seen.lags[key] = seen.lags.get(key, 0) + each.lag


def snapshot(before: Look, now: Look) -> Row:
    """Return the rates between two looks, for programs.

    A group's `out_per_s` is what it committed, a topic's and a broker's is that of all groups
    together.
    """
    passed_s = max(now.at_s - before.at_s, 1e-9)
    stored = _sums(
        (queue.topic, _grown(before.ends, queue, end)) for queue, end in now.ends.items()
    )
    done = _sums(
        ((key[0], key[1].topic), _grown(before.committed, key, offset))
        for key, offset in now.committed.items()
    )
    names = [name for name in now.members if not any(key[0] == name for key in now.lags)]
    groups = [
        {
            "group": group, "topic": topic, "members": now.members.get(group, 0),
            "out_per_s": round(done.get((group, topic), 0) / passed_s, 1), "lag": lag,
        }
        for (group, topic), lag in now.lags.items()
        if not (is_retry_topic(topic) and lag == 0)
    ]  # fmt: skip
    groups += [
        {"group": name, "topic": None, "members": now.members[name], "out_per_s": 0.0, "lag": 0}
        for name in names
    ]
    outs = _sums((topic, count) for (_, topic), count in done.items())
    lags = _sums((topic, lag) for (_, topic), lag in now.lags.items())
    topics = [
        {
            "topic": topic, "in_per_s": round(count / passed_s, 1),
            "out_per_s": round(outs.get(topic, 0) / passed_s, 1), "lag": lags.get(topic, 0),
            "messages": sum(end for queue, end in now.ends.items() if queue.topic == topic),
        }
        for topic, count in stored.items()
    ]  # fmt: skip
    return {
        "interval_s": round(passed_s, 3), "brokers": _brokers(before, now, passed_s),
        "topics": topics, "groups": groups,
    }  # fmt: skip


def _brokers(before: Look, now: Look, passed_s: float) -> list[Row]:
    """Return the brokers with the rates of their queues; slaves have none of their own."""
    ins = _sums((queue.broker_name, _grown(before.ends, queue, end))
                for queue, end in now.ends.items())  # fmt: skip
    outs = _sums((key[1].broker_name, _grown(before.committed, key, offset))
                 for key, offset in now.committed.items())  # fmt: skip

    def rate(counts: Mapping[str, int], row: Row) -> float | None:
        return None if row["broker_id"] else round(counts.get(row["broker"], 0) / passed_s, 1)

    return [
        {**row, "in_per_s": rate(ins, row), "out_per_s": rate(outs, row)} for row in now.brokers
    ]


def _grown(before: Mapping[Any, int], key: Any, now: int) -> int:
    """Return by how much an offset has grown; a new one or one that was moved back: not at all."""
    return max(0, now - before.get(key, now))


def _sums(rows: Iterable[tuple[Any, int]]) -> dict[Any, int]:
    found: dict[Any, int] = {}
    for key, count in rows:
        found[key] = found.get(key, 0) + count
    return found


class Screen:
    """Shows snapshots on a terminal, or prints them."""

    def __init__(self, output: Output, sort: str, every: timedelta) -> None:
        self._output = output
        self._sort = sort
        self._every = every
        self._pressed = asyncio.Event()
        self._over = False
        self._last: Row | None = None

    @contextlib.contextmanager
    def keys(self) -> Generator[None]:
        """Take keys as they are pressed, where a person can press some."""
        if not (self._output.is_table and sys.stdin.isatty() and sys.stdout.isatty()):
            yield
            return
        import termios  # which Windows does not have
        import tty

        loop, number = asyncio.get_running_loop(), sys.stdin.fileno()
        before = termios.tcgetattr(number)
        tty.setcbreak(number)
        loop.add_reader(number, self._read)
        try:
            yield
        finally:
            loop.remove_reader(number)
            termios.tcsetattr(number, termios.TCSADRAIN, before)

    def _read(self) -> None:
        for key in os.read(sys.stdin.fileno(), KEYS_MAX).decode("utf-8", "replace"):
            self.press(key)

    def press(self, key: str) -> None:
        """Take a key: another order, or the end."""
        if key in SORTS:
            self._sort = SORTS[key]
            if self._last is not None:
                self.show(self._last)
        elif key == "q":
            self._over = True
            self._pressed.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for the next look; return whether there shall be one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._pressed.wait()
        return not self._over

    def show(self, seen: Row) -> None:
        """Show a snapshot."""
        self._last = seen
        if not self._output.is_table:
            self._output.line(self._output.with_unanswered(seen), "")
            return
        if not sys.stdout.isatty():
            click.echo("\n".join(screen_lines(seen, self._sort)))
            return
        height = shutil.get_terminal_size().lines
        lines = screen_lines(seen, self._sort, height - HEADS)[: height - 1]
        click.echo(CLEAR + "\n".join([*lines, KEYS_TEXT]), nl=False)


def screen_lines(seen: Row, sort: str, room: int = sys.maxsize) -> list[str]:
    """Return a snapshot as tables.

    Args:
        room: rows of all tables together; topics and groups share what the brokers leave.
    """
    brokers = [
        [
            f"{row['broker']} ({row['broker_id']})", row["address"], row["version"] or None,
            row["in_per_s"], row["out_per_s"],
            None if row["disk_used"] is None else f"{row['disk_used']:.0%}", row["behind"],
            row["error"] or "ok",
        ]
        for row in seen["brokers"]
    ]  # fmt: skip
    topics = sorted(seen["topics"], key=_order(sort, "topic"))
    groups = sorted(seen["groups"], key=_order("out" if sort == "in" else sort, "group"))
    left = max(2, room - len(brokers))
    of_groups = min(len(groups), max(left // 2, left - len(topics)))
    topics, groups = topics[: left - of_groups], groups[:of_groups]
    return [
        *table(
            ["BROKER", "ADDRESS", "VERSION", "IN/S", "OUT/S", "DISK", "BEHIND", "STATE"], brokers
        ),
        "",
        *table(
            ["TOPIC", "IN/S", "OUT/S", "LAG"],
            [[row["topic"], row["in_per_s"], row["out_per_s"], row["lag"]] for row in topics],
        ),
        "",
        *table(
            ["GROUP", "TOPIC", "MEMBERS", "OUT/S", "LAG"],
            [[row["group"], row["topic"], row["members"], row["out_per_s"], row["lag"]]
             for row in groups],
        ),
    ]  # fmt: skip


def _order(sort: str, name: str) -> Callable[[Row], tuple[float, str]]:
    key = {"in": "in_per_s", "out": "out_per_s"}.get(sort, sort)
    return lambda row: (0.0 if sort == "name" else -float(row[key]), str(row[name]))


def _regex(pattern: str | None, option: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern or "")
    except re.error as error:
        raise click.BadParameter(f"{pattern!r}: {error}", param_hint=option) from error
