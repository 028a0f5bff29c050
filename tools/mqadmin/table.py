"""What a command of mqadmin is: a row with its letters; and the click command made of it.

Source: apache/rocketmq@rocketmq-all-4.9.8 tools/.../command/MQAdminStartup.java, and
srvutil/.../ServerUtil.java (buildCommandlineOptions)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import update_wrapper
from typing import Any, Final, NamedTuple, TypedDict

import click

from skylarkmq.client.admin import Admin, Unanswered
from skylarkmq.client.errors import NotFound
from skylarkmq.client.instance import Client
from skylarkmq.tools.connection import TIMEOUT_S, Session, connected
from skylarkmq.tools.running import EXIT_CODES
from skylarkmq.tools.secret_options import masked

HELP: Final = {"help_option_names": ["-h", "--help"]}


class Letter(NamedTuple):
    """An option: its letter and its long name, what it is, whether it is needed or has no value."""

    letter: str
    name: str
    text: str
    needed: bool = False
    bare: bool = False


class Targets(TypedDict, total=False):
    """Where a change goes, as Admin takes it."""

    cluster: str
    brokers: list[str]


@dataclass(frozen=True, slots=True)
class Call:
    """One run of a command: what it was given, and whom it asks."""

    client: Client
    admin: Admin
    given: Mapping[str, str | bool | None]
    unanswered: dict[str, Unanswered]
    """Where brokers are noted that did not answer."""

    def has(self, letter: str) -> bool:
        """Return whether an option was given."""
        return self.given.get(letter) not in (None, False)

    def text(self, letter: str, default: str = "") -> str:
        """Return the value of an option without the blanks around it."""
        value = self.given.get(letter)
        return value.strip() if isinstance(value, str) else default

    def number(self, letter: str, default: int) -> int:
        """Return a whole number.

        Raises:
            click.UsageError: it is none.
        """
        if not self.has(letter):
            return default
        try:
            return int(self.text(letter))
        except ValueError as error:
            raise click.UsageError(f"-{letter} {self.text(letter)!r} is no number") from error

    def true(self, letter: str, default: bool) -> bool:
        """Return whether an option says true; anything else means false, as in Java."""
        return self.text(letter).lower() == "true" if self.has(letter) else default

    @property
    def targets(self) -> Targets:
        """Where -b and -c say that a change goes."""
        return {"brokers": [self.text("b")]} if self.has("b") else {"cluster": self.text("c")}

    async def masters(self) -> dict[str, str]:
        """Return the brokers that -b and -c mean: address, or what -b says, to name.

        Raises:
            NotFound: no such cluster or broker.
        """
        if self.has("b"):
            return {self.text("b"): await self.name_of(self.text("b"))}
        return {
            addresses[0]: name
            for name, addresses in (await self.members()).items()
            if 0 in addresses
        }

    async def members(self) -> dict[str, Mapping[int, str]]:
        """Return the brokers of the cluster that -c names, with their addresses by broker id.

        Raises:
            NotFound: there is no such cluster.
        """
        summary = await self.admin.cluster()
        found = {
            each.name: each.addresses for each in summary.brokers if each.cluster == self.text("c")
        }
        if not found:
            known = ", ".join(summary.clusters) or "none"
            raise NotFound(f"there is no cluster {self.text('c')}; known: {known}")
        return found

    async def name_of(self, broker: str) -> str:
        """Return the name of a broker that is named by its address, or by its name.

        Raises:
            NotFound: none such is registered.
        """
        summary = await self.admin.cluster()
        for each in summary.brokers:
            if broker == each.name or broker in each.addresses.values():
                return each.name
        raise NotFound(f"no broker {broker} is registered with the name server")


Work = Callable[[Call], Awaitable[int | None]]


@dataclass(frozen=True, slots=True)
class OldCommand:
    """A row: name, what it does, its letters, the work.

    `one_of` are letters of which one is needed. `would` says what a change does, for --dry-run; a
    command without it changes nothing.
    """

    name: str
    text: str
    letters: tuple[Letter, ...]
    work: Work
    one_of: str = ""
    would: str = ""
    alias: str = ""


def made(row: OldCommand) -> click.Command:
    """Return the click command of a row."""

    def command(session: Session, timeout: float, dry_run: bool = False, **given: Any) -> None:
        letters = {letter.letter: given[f"letter_{letter.letter}"] for letter in row.letters}
        if row.one_of and not any(letters[letter] for letter in row.one_of):
            wanted = " or ".join(f"-{letter}" for letter in row.one_of)
            raise click.UsageError(f"Missing option: {wanted} is needed.")
        if dry_run:
            words = ", ".join(
                f"-{each.letter} {masked(each.name, str(letters[each.letter]))}"
                for each in row.letters
                if letters[each.letter]
            )
            click.echo(f"would {row.would} ({words})", err=True)
            return

        async def work(client: Client) -> int | None:
            looking = replace(session, timeout=timeout).looking(client)
            async with Admin(client=client, timeout=timeout) if row.would else looking as admin:
                return await row.work(Call(client, admin, letters, session.output.unanswered))

        replace(session, timeout=timeout).run(work)

    with_session = connected(command)

    def entry(letter_n: str | None, **options: Any) -> None:
        if letter_n is not None:
            options["namesrv"] = letter_n
        with_session(**options)

    update_wrapper(entry, with_session)
    result: Any = entry
    if row.would:
        result = click.option("--dry-run", is_flag=True, help="Only say what would be done.")(
            result
        )
    result = click.option(
        "--timeout", type=click.FloatRange(min=0, min_open=True), default=TIMEOUT_S,
        show_default=True, help="Seconds for each request.",
    )(result)  # fmt: skip
    for each in reversed(row.letters):
        result = click.option(
            f"-{each.letter}", f"--{each.name}", f"letter_{each.letter}",
            required=each.needed, is_flag=each.bare, help=each.text,
        )(result)  # fmt: skip
    result = click.option(
        "-n", "--namesrvAddr", "letter_n", metavar="HOST:PORT", help="The same as --namesrv."
    )(result)
    return click.command(row.name, help=f"{row.text}.", epilog=EXIT_CODES, context_settings=HELP)(
        result
    )
