"""Commands that look again and again: `--watch`, with --every and --times."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import update_wrapper
from typing import Any, Final, TypeVar

import click

from skylarkmq.client.errors import RocketMQError
from skylarkmq.tools.connection import Command, Session
from skylarkmq.tools.moments import Span
from skylarkmq.tools.output import Output

EVERY: Final = "2s"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Watch:
    """Whether to look once or again and again, how often, and how many times at most."""

    on: bool
    every_s: float
    times: int | None

    @property
    def open_ended(self) -> bool:
        """Whether only a signal ends it."""
        return self.on and self.times is None

    def output(self, session: Session) -> Output:
        """Return where to print: JSON on lines where many answers follow each other."""
        many = self.on and session.output.form == "json"
        return Output("ndjson", session.output.unanswered) if many else session.output

    async def look(
        self,
        session: Session,
        ask: Callable[[], Awaitable[T]],
        show: Callable[[T, Output], None],
        enough: Callable[[T], bool] = lambda _: False,
    ) -> T:
        """Ask and show, once or until `enough`, --times or a signal; return the last answer.

        A terminal is cleared before each. Once there was an answer, an error is told and the next
        look is waited for: servers that are started again are what is watched.

        Raises:
            RocketMQError: at the first look or the last one.
        """
        output, count = self.output(session), 0
        while True:
            count += 1
            is_last = not self.on or count == self.times
            session.output.forget_unanswered()
            try:
                found = await ask()
            except RocketMQError as error:
                if count == 1 or is_last:
                    raise
                click.echo(f"warning: {error}", err=True)
            else:
                if self.on and output.is_table and sys.stdout.isatty():
                    click.clear()
                show(found, output)
                session.output.tell_unanswered()
                if is_last or enough(found):
                    return found
            await asyncio.sleep(self.every_s)


def watched(command: Command) -> Command:
    """Add --watch, --every and --times; the command gets `watch`."""

    def with_watch(watch: bool, every: timedelta, times: int | None, **options: Any) -> None:
        if every <= timedelta():
            raise click.BadParameter("it is above 0", param_hint="--every")
        command(watch=Watch(watch, every.total_seconds(), times), **options)

    update_wrapper(with_watch, command)
    options = (
        click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C."),
        click.option(
            "--every", type=Span(), default=EVERY, show_default=True, metavar="SPAN",
            help="With --watch: time between two looks.",
        ),
        click.option(
            "--times", type=click.IntRange(1), help="With --watch: end after so many looks."
        ),
    )  # fmt: skip
    for option in reversed(options):
        with_watch = option(with_watch)
    return with_watch
