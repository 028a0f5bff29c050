"""The commands `skylarkmq dlq ...`: messages that a group gave up, and how they get another try.

A replay keeps a ledger, so that one that was interrupted goes on, and a later one sends only what
was given up since. The ledger has a line for each letter, written once its copy is stored:

    {"group": "billing", "to": "group", "namesrv": "10.0.0.1:9876"}
    {"broker": "broker-a", "queue_id": 0, "offset": 12, "offset_msg_id": "0A00..."}

A letter whose copy was stored when the process was killed, and whose line was not written, is sent
a second time: at least once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Generator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TextIO

import click

from skylarkmq.client.admin import Admin, MessageScan, ReplayOutcome, ReplayTarget, StoredMessage
from skylarkmq.client.errors import BrokerError, NotFound, RocketMQError
from skylarkmq.client.instance import Client, services_of
from skylarkmq.client.state_folder import file_name, state_folder
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.tools.connection import Change, Session, changes, online
from skylarkmq.tools.local.private_file import replaced_file
from skylarkmq.tools.moments import Moment, instant
from skylarkmq.tools.output import Columns, ProgressBar, as_json, moment
from skylarkmq.tools.running import EXIT_CODES, FAILED, NOT_FOUND
from skylarkmq.tools.showing import (
    BodyForm,
    body_option,
    brief,
    row_of,
    show_message,
)

LIST_COLUMNS: Final[Columns] = {
    "GIVEN UP": moment("stored_at"),
    "TOPIC": "origin_topic",
    "QUEUE": lambda row: f"{row['broker']}/{row['queue_id']}",
    "OFFSET": "queue_offset",
    "KEYS": "keys",
    "OFFSET ID": "offset_msg_id",
    "BODY": brief,
}
OUTCOME_COLUMNS: Final[Columns] = {
    "STATUS": "status", "TARGET": "target", "OFFSET ID": "offset_msg_id",
    "ERROR": "error",
}  # fmt: skip
since_option = click.option(
    "--since", type=Moment(), help="Given up then or later: a time, or 10m for ten minutes ago."
)
until_option = click.option("--until", type=Moment(), help="Given up before that.")
Time = datetime | timedelta | None


@click.group(epilog=EXIT_CODES)
def dlq() -> None:
    """Dead letters: what a group gave up after its last try."""


@dlq.command("list", epilog=EXIT_CODES)
@click.argument("group")
@since_option
@until_option
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True)
@body_option
@online
def list_letters(
    session: Session, group: str, since: Time, until: Time, limit: int, form: BodyForm
) -> None:
    """List the dead letters of GROUP, queue after queue, the oldest of each first."""

    async def work(client: Client) -> None:
        async with session.looking(client) as admin:
            rows: list[dict[str, Any]] = []
            async for letter in _letters(client, admin, group, since, until):
                rows.append(row_of(letter, letter.queue, form))
                if len(rows) == limit:
                    break
            if not rows:
                await _require_group(admin, group)
        none = f"{group} has no dead letters"
        session.output.rows(rows, LIST_COLUMNS, none=none, fits=True)

    session.run(work)


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
              "topic that each letter was sent to first.")  # fmt: skip
@since_option
@until_option
@click.option("--limit", type=click.IntRange(1), help="Replay at most so many letters.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N",
              help="At most N messages a second.")  # fmt: skip
@click.option("--ledger", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="What was replayed before is left out and what is replayed is noted there; "
              "default: a file for each cluster and group in "
              "~/.local/state/skylarkmq/replays.")  # fmt: skip
@click.option("--again", is_flag=True, help="Replay also what the ledger says was replayed.")
@changes
@online
def replay(
    session: Session,
    change: Change,
    group: str,
    target: ReplayTarget,
    since: Time,
    until: Time,
    limit: int | None,
    rate: float | None,
    ledger: Path | None,
    again: bool,
) -> None:
    """Send the dead letters of GROUP again. The letters stay where they are.

    Interrupted, the same command goes on where it ended. Exit code 1 when letters failed: they are
    listed, and the same command tries them again.
    """

    async def work(client: Client) -> int:
        async with Admin(client=client, timeout=session.timeout) as admin:
            path = ledger or _ledger_path(session.namesrv, group, target)
            with Ledger.open(
                path, group, target, session.namesrv, write=not change.dry_run
            ) as kept:
                if again:
                    kept.done.clear()
                run = _Replay(client, admin, kept, group, target, rate)
                letters = await run.count(_letters(client, admin, group, since, until), limit)
                if not letters:
                    await _require_group(admin, group)
                    click.echo(f"{group} has no dead letter to replay", err=True)
                where = f"the group {group}" if target == "group" else "their first topics"
                what = f"replay {letters} dead letters of {group} to {where}"
                if letters and (change.dry_run or change.allowed(what)):
                    scan = _letters(client, admin, group, since, until)
                    try:
                        await run.replay(scan, letters, dry_run=change.dry_run)
                    except asyncio.CancelledError:  # interrupted, it says what it did until then
                        run.report(session, path, dry_run=change.dry_run)
                        raise
        return run.report(session, path, dry_run=change.dry_run)

    session.run(work)


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
        with ProgressBar(counts=True) as progress, _opened(file) as stream:
            async with Admin(client=client, timeout=session.timeout) as admin:
                scan = _letters(client, admin, group, since, until)
                async for letter in scan:
                    stream.write(as_json(row_of(letter, letter.queue, form), indent=None) + "\n")
                    count += 1
                    progress("export", scan.progress.scanned, scan.progress.total)
                if not count:
                    await _require_group(admin, group)
        click.echo(f"{count} dead letters written", err=True)
        return 0 if count else NOT_FOUND

    session.run(work)


class Ledger:
    """Which letters were replayed; see the head of this file."""

    def __init__(self, file: TextIO | None, done: set[tuple[str, int, int]]) -> None:
        self._file = file
        self.done = done

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, path: Path, group: str, target: str, namesrv: str, *, write: bool
    ) -> Generator[Ledger]:
        """Read a ledger, and keep it open to add lines; nobody else may meanwhile.

        Raises:
            click.ClickException: it is of something else, cannot be read, or is in use.
        """
        head = {"group": group, "to": target, "namesrv": namesrv}
        if not write:
            yield cls(None, _read_ledger(path, head) if path.exists() else set())
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"{path}: {error.strerror}") from error
        with file:
            import fcntl  # which Windows does not have

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise click.ClickException(
                    f"another replay of {group} is under way: it holds {path}"
                ) from error
            done = _read_ledger(path, head)
            if not path.stat().st_size:
                file.write(as_json(head, indent=None) + "\n")
            elif not path.read_bytes().endswith(b"\n"):
                file.write("\n")  # a line that a kill cut; it counts as not written
            file.flush()
            yield cls(file, done)

    def add(self, letter: StoredMessage) -> None:
        """Note that a letter's copy is stored."""
        self.done.add(_place(letter))
        if self._file is not None:
            line = {
                "broker": letter.queue.broker_name, "queue_id": letter.queue.queue_id,
                "offset": letter.queue_offset, "offset_msg_id": letter.offset_msg_id,
            }  # fmt: skip
            self._file.write(as_json(line, indent=None) + "\n")
            self._file.flush()


class _Replay:
    """One replay: what came of it."""

    def __init__(
        self,
        client: Client,
        admin: Admin,
        ledger: Ledger,
        group: str,
        target: ReplayTarget,
        rate: float | None,
    ) -> None:
        self._clock = services_of(client).clock
        self._admin = admin
        self._ledger = ledger
        self._group = group
        self._target: ReplayTarget = target
        self._rate = rate
        self._counts = {"replayed": 0, "would_replay": 0, "failed": 0}
        self._shown: list[ReplayOutcome] = []
        self.passed = 0
        """Letters that the ledger has."""

    async def count(self, scan: MessageScan, limit: int | None) -> int:
        """Return how many letters there are to replay."""
        count = 0
        async for letter in scan:
            if _place(letter) not in self._ledger.done:
                count += 1
                if limit is not None and count >= limit:
                    break
            else:
                self.passed += 1
        return count

    async def replay(self, scan: MessageScan, count: int, *, dry_run: bool) -> None:
        """Replay letters, with progress, no quicker than the rate."""
        begun_s = self._clock.monotonic()
        number = 0
        with ProgressBar(counts=True) as progress:
            async for letter in scan:
                if _place(letter) in self._ledger.done:
                    continue
                if self._rate is not None and not dry_run:
                    wait_s = begun_s + number / self._rate - self._clock.monotonic()
                    await asyncio.sleep(max(0.0, wait_s))
                outcome = await self._admin.replay_dead_letter(
                    letter, self._group, to=self._target, dry_run=dry_run
                )
                self._counts[outcome.status] += 1
                if outcome.status == "replayed":
                    self._ledger.add(letter)
                else:
                    self._shown.append(outcome)
                number += 1
                progress("replay", number, count)
                if number >= count:
                    return

    def report(self, session: Session, path: Path, *, dry_run: bool) -> int:
        """Print what came of it; return the exit code."""
        failed = [one for one in self._shown if one.status == "failed"]
        counts = {**self._counts, "replayed_before": self.passed}
        if session.output.is_table:
            session.output.rows([one.to_json() for one in self._shown], OUTCOME_COLUMNS)
            session.output.one({**counts, "ledger": str(path)})
        else:
            outcomes = [one.to_json() for one in self._shown]
            session.output.one(
                {**counts, "dry_run": dry_run, "ledger": str(path), "outcomes": outcomes}
            )
        return FAILED if failed else 0


def _letters(client: Client, admin: Admin, group: str, since: Time, until: Time) -> MessageScan:
    return admin.dead_letters(group, start=instant(since, client), stop=instant(until, client))


async def _require_group(admin: Admin, group: str) -> None:
    """Raise NotFound where no letters are found, as there is no such group: its name is wrong."""
    with contextlib.suppress(BrokerError):  # the account may not ask
        await admin.describe_group(group)


def _place(letter: StoredMessage) -> tuple[str, int, int]:
    queue: MessageQueue = letter.queue
    return queue.broker_name, queue.queue_id, letter.queue_offset


def _ledger_path(namesrv: str, group: str, target: str) -> Path:
    return state_folder("replays") / f"{file_name(f'{namesrv} {group} {target}')}.ndjson"


def _read_ledger(path: Path, head: dict[str, str]) -> set[tuple[str, int, int]]:
    done: set[tuple[str, int, int]] = set()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{path}: {error}") from error
    for number, line in enumerate(lines):
        try:
            row: dict[str, Any] = json.loads(line)
            if number == 0:
                found = {key: row.get(key) for key in ("group", "to")}
                if found != {key: head[key] for key in found}:
                    raise click.ClickException(
                        f"{path} is the ledger of another replay ({line[:120]}); name another "
                        "--ledger"
                    )
                continue
            done.add((row["broker"], row["queue_id"], row["offset"]))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            if number == 0:
                raise click.ClickException(f"{path} is no ledger of a replay") from error
            # A line that a kill cut: its letter counts as not replayed.
    return done


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
