"""The commands `skylarkmq dlq ...`: messages that a group gave up, and how they get another try.

A redrive sends each letter once, whatever ends it:

    where its copy will go --> ledger, synced --> the send --> ledger --> the next letter

The next run looks for the copy of a letter whose send has no outcome in the ledger. It sends the
letter when the copy is not there, and leaves it when that cannot be told.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Generator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TextIO

import click

from skylarkmq.client.admin import Admin, MessageScan, RedriveTarget, base
from skylarkmq.client.consumer.retry import DEAD_LETTER_REASON
from skylarkmq.client.errors import AuthError, BrokerError, NotFound, RocketMQError, RouteNotFound
from skylarkmq.client.instance import Client, services_of
from skylarkmq.client.message_json import BodyForm
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.flags import DLQ_GROUP_TOPIC_PREFIX
from skylarkmq.tools.connection import ASKED_AT_ONCE, Change, Session, changes, online
from skylarkmq.tools.local.ledger import Ledger, LetterKey, ledger_path
from skylarkmq.tools.local.private_file import replaced_file
from skylarkmq.tools.moments import Moment, instant
from skylarkmq.tools.output import Columns, ProgressBar, Report, Row, as_json, counted, moment
from skylarkmq.tools.running import EXIT_CODES, FAILED, NOT_FOUND, removed
from skylarkmq.tools.showing import body_option, brief, short, show_message


def _reason_and_body(row: Row) -> str:
    reason = row["properties"].get(DEAD_LETTER_REASON)
    return f"({short(reason)}) {brief(row)}" if reason else brief(row)


LIST_COLUMNS: Final[Columns] = {
    "GIVEN UP": moment("stored_at"),
    "TOPIC": "origin_topic",
    "KEYS": "keys",
    "OFFSET ID": "offset_msg_id",
    "(REASON) BODY": _reason_and_body,
}
REASON_MIN: Final = 32
"""Characters of the last column that a narrow terminal shows."""
GROUP_COLUMNS: Final[Columns] = {
    "GROUP": "group", "LETTERS": "letters", "LAST GIVEN UP": moment("last_given_up_at"),
}  # fmt: skip
OUTCOME_COLUMNS: Final[Columns] = {
    "STATUS": "status", "OFFSET ID": "offset_msg_id", "TARGET": "target", "ERROR": "error",
}  # fmt: skip
LETTER_KEYS: Final = ("msg_id", "offset_msg_id", "broker", "queue_id", "queue_offset")
"""What an outcome says of its letter."""
RIGHT_MISSING: Final = "No default permission"
"""In RocketMQ's refusal of an account that is right, and lacks a right to a topic or group."""
OUTCOMES: Final = ("sent", "found", "would_send", "failed", "unknown", "sent_before")
since_option = click.option(
    "--since", type=Moment(), help="Given up then or later: a time, or 10m for ten minutes ago."
)
until_option = click.option("--until", type=Moment(), help="Given up before that.")
Time = datetime | timedelta | None


@click.group(epilog=EXIT_CODES)
def dlq() -> None:
    """Dead letters: what a group gave up after its last try."""


@dlq.command(
    "list",
    epilog=EXIT_CODES,
    short_help="List the dead letters of GROUP, or the groups that have some.",
)
@click.argument("group", required=False)
@since_option
@until_option
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True)
@body_option
@online
def list_letters(
    session: Session, group: str | None, since: Time, until: Time, limit: int, form: BodyForm
) -> None:
    """List the dead letters of GROUP, queue after queue, the oldest of each first.

    Without GROUP: the groups that have dead letters, the one with most first; those that the
    account may not look at have no number, and the exit code is 6.
    """
    if group is None and (since is not None or until is not None):
        raise click.UsageError("--since and --until need a GROUP")

    async def work(client: Client) -> None:
        async with session.looking(client) as admin:
            if group is None:
                rows = (await groups_with_letters(admin))[:limit]
            else:
                rows = await _rows(client, admin, group)
        if group is None:
            session.output.rows(rows, GROUP_COLUMNS, none="no group has dead letters")
        else:
            none = f"{group} has no dead letters"
            session.output.rows(rows, LIST_COLUMNS, none=none, fits=REASON_MIN)

    async def _rows(client: Client, admin: Admin, group: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        async for letter in letters_of(client, admin, group, since, until):
            rows.append(letter.to_json(form))
            if len(rows) == limit:
                break
        if not rows:
            await require_group(admin, group)
        return rows

    session.run(work)


async def groups_with_letters(admin: Admin) -> list[dict[str, Any]]:
    """Return the groups with dead letters, most letters first.

    None are the letters of a group that the account may not look at.
    """
    topics = [
        name
        for name in await admin.list_topics(groups=True)
        if name.startswith(DLQ_GROUP_TOPIC_PREFIX)
    ]

    async def look(topic: str) -> dict[str, Any]:
        row = {"group": topic.removeprefix(DLQ_GROUP_TOPIC_PREFIX), "letters": 0}
        try:
            found = await admin.describe_topic(topic)
        except RouteNotFound:  # deleted meanwhile
            return row
        except AuthError as error:
            if RIGHT_MISSING not in error.remark:
                raise
            return {**row, "letters": None, "last_given_up_at": None}
        times = [each.last_stored_at for each in found.queues if each.last_stored_at is not None]
        return {
            **row,
            "letters": found.message_count,
            "last_given_up_at": max(times).isoformat(timespec="milliseconds") if times else None,
        }

    found = [row for row in await base.each(look, topics, ASKED_AT_ONCE) if row["letters"] != 0]
    return sorted(found, key=lambda row: (-(row["letters"] or 0), row["group"]))


@dlq.command(epilog=EXIT_CODES)
@click.argument("group")
@click.argument("msg_id")
@body_option
@online
def show(session: Session, group: str, msg_id: str, form: BodyForm) -> None:
    """Show the dead letter MSG_ID of GROUP: its offset id, or the id that its producer gave."""

    async def work(admin: Admin) -> None:
        async for letter in admin.dead_letters(group):
            if msg_id in (letter.offset_msg_id, letter.msg_id):
                break
        else:
            raise NotFound(
                f"{group} has no dead letter {msg_id}", hint="`skylarkmq dlq list` shows them"
            )
        show_message(session.output, letter, form)

    session.look(work)


@dlq.command(epilog=EXIT_CODES)
@click.argument("group")
@click.option("--to", "target", type=click.Choice(["group", "topic"]), default="group",
              show_default=True, help="Who gets the copies: this group alone, or all groups of the "
              "topic that each letter was sent to first. Copies to the topic keep the order of "
              "priorities, those to the group do not.")  # fmt: skip
@since_option
@until_option
@click.option("--limit", type=click.IntRange(1), help="Send at most so many letters.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N",
              help="At most N messages a second.")  # fmt: skip
@click.option("--ledger", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="What became of each letter, kept from run to run; default: a file for each "
              "cluster and group in ~/.local/state/skylarkmq/redrives. Name a file that is kept "
              "where that folder is not, as in a container.")  # fmt: skip
@click.option("--again", is_flag=True, help="Send also what the ledger says was sent.")
@click.option("--resend-unknown", is_flag=True, help="Send also letters of which it cannot be told "
              "whether an earlier run sent them.")  # fmt: skip
@changes
@online
def redrive(
    session: Session,
    change: Change,
    group: str,
    target: RedriveTarget,
    since: Time,
    until: Time,
    limit: int | None,
    rate: float | None,
    ledger: Path | None,
    again: bool,
    resend_unknown: bool,
) -> None:
    """Send the dead letters of GROUP again, each once. The letters stay where they are.

    Interrupted or killed, the same command goes on where it ended: it looks for the copies that
    the earlier run may have sent. Exit code 1 when letters failed, or when it is unknown whether
    their copies are stored. They are listed, and the same command tries them again.
    """

    async def work(client: Client) -> int:
        async with Admin(client=client, timeout=session.timeout) as admin:
            path = ledger or ledger_path(session.namesrv, group, target)
            with Ledger.open(
                path, group, target, session.namesrv, write=not change.dry_run
            ) as kept:
                if again:
                    kept.done.clear()
                run = Redrive(
                    admin, kept, services_of(client).clock, group, target,
                    rate=rate, resend_unknown=resend_unknown, dry_run=change.dry_run,
                )  # fmt: skip
                letters = await run.count(letters_of(client, admin, group, since, until), limit)
                if not letters:
                    await require_group(admin, group)
                    cure = ". --again sends those, too" if run.sent_before else ""
                    click.echo(f"{run.nothing_to_send}{cure}", err=True)
                where = f"the group {group}" if target == "group" else "their first topics"
                what = f"send {counted(letters, 'dead letter')} of {group} to {where}"
                if letters and (change.dry_run or change.allowed(what)):
                    try:
                        scan = letters_of(client, admin, group, since, until)
                        with ProgressBar() as progress:
                            await run.run(scan, letters, progress)
                    except asyncio.CancelledError:  # interrupted, it says what it did until then
                        run.report(session, path)
                        raise
        return run.report(session, path)

    session.run(work)


removed(dlq, "replay", "`skylarkmq dlq redrive` sends each letter once")


@dlq.command(epilog=EXIT_CODES)
@click.argument("group")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), default="-")
@since_option
@until_option
@body_option
@online
def export(
    session: Session, group: str, file: str, since: Time, until: Time, form: BodyForm
) -> None:
    """Write the dead letters of GROUP to FILE, a JSON object a line; - is standard output.

    Without --body, or with --body base64, a program can read every body back. FILE is
    replaced when all letters are written, and stays as it was after an error. Exit code 3 when
    there is none.
    """

    async def work(client: Client) -> int:
        count = 0
        with ProgressBar() as progress, _opened(file) as stream:
            async with Admin(client=client, timeout=session.timeout) as admin:
                scan = letters_of(client, admin, group, since, until)
                async for letter in scan:
                    stream.write(as_json(letter.to_json(form), indent=None) + "\n")
                    count += 1
                    progress("export", scan.progress.scanned, scan.progress.total)
                if not count:
                    await require_group(admin, group)
        click.echo(f"{counted(count, 'dead letter')} written", err=True)
        return 0 if count else NOT_FOUND

    session.run(work)


class Redrive:
    """One run over a group's letters, and what came of it."""

    def __init__(
        self,
        admin: Admin,
        ledger: Ledger,
        clock: Clock,
        group: str,
        to: RedriveTarget,
        *,
        rate: float | None,
        resend_unknown: bool,
        dry_run: bool,
    ) -> None:
        self._admin = admin
        self._ledger = ledger
        self._clock = clock
        self._group = group
        self._to: RedriveTarget = to
        self._rate = rate
        self._next_s = clock.monotonic()
        self._resend_unknown = resend_unknown
        self._dry_run = dry_run
        self._counts: Counter[str] = Counter()
        self._shown: list[dict[str, Any]] = []

    @property
    def sent_before(self) -> int:
        """How many letters the ledger says were sent."""
        return self._counts["sent_before"]

    @property
    def nothing_to_send(self) -> str:
        """What to say where no letter was counted."""
        before = f"; sent before: {self.sent_before:,}" if self.sent_before else ""
        return f"{self._group} has no dead letter to send{before}"

    async def count(self, scan: MessageScan, limit: int | None) -> int:
        """Return how many letters there are to redrive."""
        count = 0
        async for letter in scan:
            if LetterKey.of(letter) not in self._ledger.done:
                count += 1
                if limit is not None and count >= limit:
                    break
            else:
                self._counts["sent_before"] += 1
        return count

    async def run(self, scan: MessageScan, count: int, report: Report) -> None:
        """Redrive so many letters, in their order; a dry run looks for copies and sends none.

        Raises:
            OSError: the ledger cannot be written; nothing is sent after that.
        """
        number = 0
        async for letter in scan:
            key = LetterKey.of(letter)
            if key in self._ledger.done:
                continue
            try:
                if not await self._is_there(letter, key):
                    await self._send(letter, key)
            except RocketMQError as error:
                self._add(letter, "failed", "", str(error))
            number += 1
            report("redrive", number, count)
            if number >= count:
                return

    async def _is_there(self, letter: StoredMessage, key: LetterKey) -> bool:
        """Look for the copy of a letter that an earlier run may have sent; True: do not send it."""
        place = self._ledger.pending.get(key)
        if place is None:
            return False
        target = place.queue.topic
        try:
            copy = await self._admin.find_copy(letter, place, taken=self._ledger.copies)
        except RocketMQError as error:
            if self._resend_unknown:
                return False
            self._add(letter, "unknown", target, str(error))
            return True
        if copy is None:
            return False
        self._ledger.note(key, "sent", copy)
        self._add(letter, "found", target)
        return True

    async def _send(self, letter: StoredMessage, key: LetterKey) -> None:
        """Send a copy. RocketMQError: there is nowhere to send it."""
        place = await self._admin.plan_copy(letter, self._group, to=self._to)
        if self._dry_run:
            self._add(letter, "would_send", place.queue.topic)
            return
        await self._wait_for_turn()
        self._ledger.note(key, "sending", place)
        outcome = await self._admin.redrive_dead_letter(
            letter, self._group, to=self._to, place=place
        )
        if outcome.status != "unknown":
            copy = outcome.place if outcome.status == "sent" else None
            self._ledger.note(key, outcome.status, copy)
        self._add(letter, outcome.status, outcome.target, outcome.error)

    async def _wait_for_turn(self) -> None:
        if self._rate is not None:
            now_s = self._clock.monotonic()
            wait_s = max(0.0, self._next_s - now_s)
            self._next_s = now_s + wait_s + 1 / self._rate
            await asyncio.sleep(wait_s)

    def _add(self, letter: StoredMessage, status: str, target: str, error: str = "") -> None:
        self._counts[status] += 1
        if status != "sent":
            row = letter.to_json("none")
            letter_row = {name: row[name] for name in LETTER_KEYS}
            self._shown.append({**letter_row, "target": target, "status": status, "error": error})

    def report(self, session: Session, path: Path) -> int:
        """Print what came of it; return the exit code."""
        counts = {name: self._counts[name] for name in OUTCOMES}
        if session.output.is_table:
            session.output.rows(self._shown, OUTCOME_COLUMNS)
            session.output.one({**counts, "ledger": str(path)})
        else:
            session.output.one(self.to_json(path))
        if counts["unknown"]:
            click.echo(
                f"{counts['unknown']} letters are unknown: their copies are stored, or not. The "
                "same command looks for them; where it cannot tell, --resend-unknown sends them",
                err=True,
            )
        return FAILED if counts["failed"] or counts["unknown"] else 0

    def to_json(self, path: Path) -> dict[str, Any]:
        """Return what came of it as programs get it: counts, and the letters that stand out."""
        counts = {name: self._counts[name] for name in OUTCOMES}
        about = {"dry_run": self._dry_run, "ledger": str(path), "outcomes": self._shown}
        return {**counts, **about}


def letters_of(client: Client, admin: Admin, group: str, since: Time, until: Time) -> MessageScan:
    """Return a scan of a group's dead letters that were given up in this time."""
    return admin.dead_letters(group, start=instant(since, client), stop=instant(until, client))


async def require_group(admin: Admin, group: str) -> None:
    """Raise NotFound where no letters are found, as there is no such group: its name is wrong."""
    with contextlib.suppress(BrokerError):  # the account may not ask
        await admin.describe_group(group)


@contextlib.contextmanager
def _opened(file: str) -> Generator[TextIO]:
    if file == "-":
        yield sys.stdout
        return
    try:
        with replaced_file(Path(file)) as stream:
            yield stream
    except RocketMQError:  # one of which is an OSError, too
        raise
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error
