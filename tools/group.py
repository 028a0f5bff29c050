"""The commands `skylarkmq group ...`: consumer groups, their members, and where they stand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import click

from skylarkmq.client.admin import Admin, GroupProgress, OffsetReset
from skylarkmq.client.errors import NotFound
from skylarkmq.client.instance import Client
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.tools.connection import (
    Change,
    Command,
    Session,
    Where,
    changes,
    online,
    targeted,
)
from skylarkmq.tools.moments import Moment, now
from skylarkmq.tools.output import (
    Columns,
    Output,
    Parts,
    ProgressBar,
    Report,
    Row,
    moment,
    release_text,
    version_text,
)
from skylarkmq.tools.running import EXIT_CODES, removed
from skylarkmq.tools.watching import Watch, watched

SETTINGS: Final[Columns] = {
    "BROKER": "broker", "CONSUMES": "consume_enabled", "BROADCASTS": "broadcast_enabled",
    "RETRY QUEUES": "retry_queues", "RETRIES": "max_retries", "NOTIFIES": "notify_members",
    "READS FROM": "broker_id", "WHEN SLOW": "broker_id_when_slow",
}  # fmt: skip
MEMBERS: Final[Columns] = {
    "CLIENT": "client_id", "ADDRESS": "address", "LANGUAGE": "language",
    "VERSION": lambda row: release_text(version_text(row["version"])), "BROKERS": "brokers",
}  # fmt: skip
SUBSCRIPTIONS: Final[Columns] = {"TOPIC": "topic", "KIND": "kind", "EXPRESSION": "expression"}
LAGS: Final[Columns] = {
    "TOPIC": lambda row: row["queue"]["topic"],
    "BROKER": lambda row: row["queue"]["broker"],
    "QUEUE": lambda row: row["queue"]["queue_id"],
    "COMMITTED": "committed", "END": "end", "LAG": "lag", "CONSUMED UP TO": moment("consumed_at"),
}  # fmt: skip
TOTALS: Final[Columns] = {
    "GROUP": "group", "MEMBERS": "members", "LAG": "lag", "A SECOND": "tps",
}  # fmt: skip
RESETS: Final[Columns] = {
    "BROKER": lambda row: row["queue"]["broker"],
    "QUEUE": lambda row: row["queue"]["queue_id"],
    "FROM": "before", "TO": "after", "MOVED": "moved", "HOW": "how",
}  # fmt: skip
To = datetime | Literal["begin", "end"]
ENDS: Final[dict[str, Literal["begin", "end"]]] = {"first": "begin", "last": "end"}


@click.group(epilog=EXIT_CODES)
def group() -> None:
    """Consumer groups: list, look at, lag, move, create, change, delete."""


@group.command("list", epilog=EXIT_CODES)
@click.option("--system", is_flag=True, help="The brokers' and tools' own groups, too.")
@online
def list_groups(session: Session, system: bool) -> None:
    """List the consumer groups that brokers know."""

    async def work(admin: Admin) -> None:
        rows = [{"group": name} for name in await admin.list_groups(system=system)]
        session.output.rows(rows, none="no groups")

    session.look(work)


@group.command("describe", epilog=EXIT_CODES)
@click.argument("group")
@online
def describe(session: Session, group: str) -> None:
    """Show a group: its settings on each broker, its members, what they want."""

    async def work(admin: Admin) -> None:
        fields: dict[str, Any] = (await admin.describe_group(group)).to_json()
        members = fields["members"]
        parts: Parts = {
            "Settings": (fields["settings"], SETTINGS),
            "Members": (members["members"], MEMBERS),
            "Subscriptions": (members["subscriptions"], SUBSCRIPTIONS),
        }
        session.output.parts(fields, parts)

    session.look(work)


@group.command("members", epilog=EXIT_CODES)
@click.argument("group")
@online
def members(session: Session, group: str) -> None:
    """Show who is in a group now, and what the members subscribe to."""

    async def work(admin: Admin) -> None:
        found = await admin.consumers(group)
        if not found.members:
            await admin.describe_group(group)  # raises when there is no such group
            click.echo(f"group {group} has no members now", err=True)
        fields: dict[str, Any] = found.to_json()
        parts: Parts = {
            "Members": (fields["members"], MEMBERS),
            "Subscriptions": (fields["subscriptions"], SUBSCRIPTIONS),
        }
        session.output.parts(fields, parts)
        if found.differing:
            names = ", ".join(found.differing)
            click.echo(
                f"warning: {names}: subscribed to something else than the other members, so "
                "messages are lost to the group; give all members the same subscriptions",
                err=True,
            )

    session.look(work)


@group.command("lag", epilog=EXIT_CODES)
@click.argument("group", required=False)
@click.option("--topic", help="In this topic only.")
@watched
@online
def lag(session: Session, watch: Watch, group: str | None, topic: str | None) -> None:
    """Show how many messages wait for a group, queue by queue; without GROUP, for all groups."""
    if group is None and topic is not None:
        raise click.UsageError("--topic needs a GROUP")

    def show_one(found: GroupProgress, output: Output) -> None:
        fields: dict[str, Any] = found.to_json()
        if not output.is_table:
            output.one(fields)
            return
        output.rows(fields["queues"], LAGS, none="nothing committed yet")
        click.echo(f"lag {found.lag}, {found.tps:.1f} messages a second")

    def show_all(rows: list[Row], output: Output) -> None:
        output.rows(rows, TOTALS, none="no groups")

    async def work(admin: Admin) -> None:
        async def ask_all() -> list[Row]:
            with ProgressBar() as bar:
                return await all_lags(admin, bar)

        if group is None:
            await watch.look(session, ask_all, show_all)
            return
        name = group
        await watch.look(session, lambda: admin.progress(name, topic), show_one)

    session.look(work, open_ended=watch.open_ended)


async def all_lags(admin: Admin, report: Report) -> list[Row]:
    """Return members, lag and rate of each group, the one that lags most first."""
    names = await admin.list_groups()
    rows: list[Row] = []
    for count, name in enumerate(names, 1):
        try:
            told = await admin.progress(name)
        except NotFound:  # deleted meanwhile
            continue
        count_of_members = len((await admin.consumers(name)).members)
        tps = round(told.tps, 2)
        rows.append({"group": name, "members": count_of_members, "lag": told.lag, "tps": tps})
        report("groups", count, len(names))
    return sorted(rows, key=lambda row: (-row["lag"], row["group"]))


# Where a group stands


def _target(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> To | timedelta | None:
    return None if text is None else target_of(text)


def target_of(text: str) -> To | timedelta:
    """Return where a group is to go: a time, how long ago it was, or an end.

    Raises:
        click.BadParameter: it is none of them.
    """
    if text in ENDS:
        return ENDS[text]
    try:
        return Moment().convert(text, None, None)
    except click.BadParameter as error:
        raise click.BadParameter(f"{error.message}; or first, or last") from error


@group.command("reset", epilog=EXIT_CODES)
@click.argument("group")
@click.argument("topic")
@click.option(
    "--to", metavar="TIME", callback=_target,
    help="To the first message stored then or later: a time, or 10m for ten minutes ago; or first, "
    "or last.",
)  # fmt: skip
@click.option("--offset", type=click.IntRange(0), help="To this offset of every queue.")
@changes
@online
def reset(
    session: Session,
    change: Change,
    group: str,
    topic: str,
    to: To | timedelta | None,
    offset: int | None,
) -> None:
    """Move a group to another place in a topic, with or without members at work.

    With --dry-run it shows from where to where each queue would go. Members that are at work take
    the new place within some seconds.
    """
    if (to is None) == (offset is None):
        raise click.UsageError("give one of --to and --offset")

    async def work(client: Client) -> None:
        when = None if to is None else pinned(to, client)
        what = reset_text(group, topic, when, offset)
        async with Admin(client=client, timeout=session.timeout) as admin:
            await _moved(
                session, change, what,
                lambda dry: admin.reset_offset(
                    group, topic, when=when, offset=offset, dry_run=dry
                ),
            )  # fmt: skip

    session.run(work)


removed(group, "skip", "`skylarkmq group reset GROUP TOPIC --to last`")


@group.command("seek", epilog=EXIT_CODES)
@click.argument("group")
@click.argument("topic")
@click.option("--broker", required=True, metavar="NAME", help="Of the queue.")
@click.option("--queue", type=click.IntRange(0), required=True, help="Its number.")
@click.option("--offset", type=click.IntRange(0), required=True, help="Where to go on.")
@changes
@online
def seek(
    session: Session,
    change: Change,
    group: str,
    topic: str,
    broker: str,
    queue: int,
    offset: int,
) -> None:
    """Move a group in one queue of a topic to an offset.

    RocketMQ 4.9's brokers do that only for a group without members.
    """
    offsets = {MessageQueue(topic, broker, queue): offset}
    what = f"move the group {group} in queue {queue} of {topic} on {broker} to offset {offset}"
    _move(
        session, change, what,
        lambda admin, dry: admin.reset_offset(group, topic, offset=offsets, dry_run=dry),
    )  # fmt: skip


def pinned(to: To | timedelta, client: Client) -> To:
    """Return where a group is to go, with a time of day in place of how long ago it was."""
    return now(client).replace(microsecond=0) - to if isinstance(to, timedelta) else to


def reset_text(group: str, topic: str, when: To | None, offset: int | None) -> str:
    """Return what a reset does, in words."""
    ends = {"begin": "its first messages", "end": "its end", None: f"offset {offset}"}
    place = when.isoformat() if isinstance(when, datetime) else ends[when]
    return f"move the group {group} in the topic {topic} to {place}"


def _move(
    session: Session,
    change: Change,
    what: str,
    reset_offset: Callable[[Admin, bool], Awaitable[OffsetReset]],
) -> None:
    async def work(admin: Admin) -> None:
        await _moved(session, change, what, lambda dry: reset_offset(admin, dry))

    session.administer(work)


async def _moved(
    session: Session,
    change: Change,
    what: str,
    reset_offset: Callable[[bool], Awaitable[OffsetReset]],
) -> None:
    """Show the plan, ask, move, and show what became of it."""

    def show(result: OffsetReset) -> None:
        fields = reset_json(result)
        title = f"{result.group} in {result.topic}"
        session.output.parts(fields, {title: (fields["queues"], RESETS)})

    asks = not change.yes and not change.dry_run
    if change.dry_run or (asks and session.output.is_table):
        show(await reset_offset(True))
    if change.allowed(what):
        show(await reset_offset(False))


def reset_json(result: OffsetReset) -> dict[str, Any]:
    """Return from where to where each queue goes, as programs get it."""
    rows = [{**each.to_json(), "moved": each.moved} for each in result.queues]
    return {**result.to_json(), "queues": rows}


@group.command("clone", epilog=EXIT_CODES)
@click.argument("source")
@click.argument("target")
@click.option("--topic", help="In this topic only.")
@changes
@online
def clone(session: Session, change: Change, source: str, target: str, topic: str | None) -> None:
    """Give the group TARGET the offsets of the group SOURCE.

    Members of TARGET commit over it: stop them before.
    """

    async def work(admin: Admin) -> None:
        online_members = (await admin.consumers(target)).members
        if online_members:
            click.echo(
                f"warning: {target} has {len(online_members)} members, which commit over it",
                err=True,
            )
        place = f"the topic {topic}" if topic else "all topics"
        if not change.allowed(f"give {target} the offsets of {source} in {place}"):
            return
        await admin.clone_offsets(source, target, topic)
        fields = {"action": "cloned", "source": source, "target": target, "topic": topic}
        session.output.done(fields, f"{target} stands where {source} does in {place}")

    session.administer(work)


# Settings


def _settings_options(command: Command) -> Command:
    """Add the settings of a group, each None when not given."""
    options = (
        click.option("--retry-queues", type=click.IntRange(0),
                     help="Of its retry topic when that is made; then `topic update` does it."),
        click.option("--max-retries", type=click.IntRange(0),
                     help="Before a dead letter: the limit for consumers that do not send their "
                     "own. Consumers of this SDK and of Java send theirs (max_reconsume, 16 by "
                     "default), which then counts."),
        click.option("--consume/--no-consume", "consume_enabled", default=None,
                     help="Whether it may consume."),
        click.option("--broadcast/--no-broadcast", "broadcast_enabled", default=None,
                     help="Whether its members may each get all messages."),
        click.option("--from-min/--no-from-min", "from_min_enabled", default=None,
                     help="Kept and told; RocketMQ's brokers do not look at it."),
        click.option("--notify/--no-notify", "notify_members", default=None,
                     help="Whether members hear at once who comes and goes."),
        click.option("--orderly/--no-orderly", "orderly", default=None,
                     help="Whether those who pop, as clients of RocketMQ 5, get a queue's messages "
                     "one batch after the other."),
        click.option("--read-from", "broker_id", type=click.IntRange(0),
                     help="Broker id to read from; 0 is the master."),
        click.option("--read-from-when-slow", "broker_id_when_slow", type=click.IntRange(0),
                     help="Broker id to read old messages from."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@group.command("create", epilog=EXIT_CODES)
@click.argument("group")
@click.option("--exist-ok", is_flag=True, help="Leave a group that is there as it is.")
@_settings_options
@targeted
@changes
@online
def create(
    session: Session, change: Change, where: Where, group: str, exist_ok: bool, **given: Any
) -> None:
    """Create a consumer group; needed only where brokers create none on demand.

    What is not given: 1 retry queue, 16 retries, consuming and broadcasting allowed, members
    notified, reading from the master, old messages from broker id 1.
    """
    settings = {name: value for name, value in given.items() if value is not None}
    if not change.allowed(f"create the group {group} on {where}", harmless=True):
        return

    async def work(admin: Admin) -> None:
        fields = await make_group(
            admin, group, cluster=where.cluster, brokers=where.brokers, exist_ok=exist_ok,
            **settings,
        )  # fmt: skip
        session.output.done(fields, f"group {group} is on {', '.join(fields['brokers'])}")

    session.administer(work)


async def make_group(admin: Admin, group: str, **settings: Any) -> dict[str, Any]:
    """Create a group, and return what programs get."""
    await admin.create_group(group, **settings)
    made = [each.broker for each in (await admin.describe_group(group)).settings]
    return {"action": "created", "group": group, "brokers": made}


@group.command("update", epilog=EXIT_CODES)
@click.argument("group")
@_settings_options
@targeted
@changes
@online
def update(session: Session, change: Change, where: Where, group: str, **given: Any) -> None:
    """Change what is given of a group, on all brokers that have it or on those named."""
    wanted = {name: value for name, value in given.items() if value is not None}
    if not wanted:
        raise click.UsageError("nothing to change: see --help for the settings")

    async def work(admin: Admin) -> None:
        before = (await admin.describe_group(group)).settings
        now = "; ".join(
            f"{each.broker}: {', '.join(f'{name}={getattr(each, name)}' for name in wanted)}"
            for each in before
        )
        asked = ", ".join(f"{name}={value}" for name, value in wanted.items())
        if not change.allowed(f"set {asked} of the group {group} on {where} (now {now})"):
            return
        await admin.update_group(group, cluster=where.cluster, brokers=where.brokers, **wanted)
        fields = {"action": "updated", "group": group, "changes": wanted}
        session.output.done(fields, f"group {group} has {asked} now")

    session.administer(work)


@group.command("delete", epilog=EXIT_CODES)
@click.argument("groups", nargs=-1, required=True)
@click.option("--keep-offsets", is_flag=True, help="Do not forget where it stands.")
@click.option("--messages", is_flag=True, help="Its retries and dead letters, too.")
@targeted
@changes
@online
def delete(
    session: Session,
    change: Change,
    where: Where,
    groups: tuple[str, ...],
    keep_offsets: bool,
    messages: bool,
) -> None:
    """Delete groups. A member that is connected brings its group back with its next heartbeat."""

    async def work(admin: Admin) -> None:
        known = await admin.list_groups(system=True)
        absent = [name for name in groups if name not in known]
        if absent:
            raise NotFound(f"there is no group {', '.join(absent)}; nothing is deleted")
        for name in groups:
            if count := len((await admin.consumers(name)).members):
                click.echo(f"warning: {name} has {count} members, which bring it back", err=True)
        parts = [] if keep_offsets else ["offsets"]
        parts += ["retries and dead letters"] if messages else []
        whole = f" with {' and '.join(parts)}" if parts else ""
        if not change.allowed(f"delete {', '.join(groups)}{whole} from {where}"):
            return
        with ProgressBar() as bar:
            for count, name in enumerate(groups, 1):
                await admin.delete_group(
                    name,
                    remove_offsets=not keep_offsets,
                    remove_messages=messages,
                    cluster=where.cluster,
                    brokers=where.brokers,
                )
                bar("deleting", count, len(groups))
        fields = {"action": "deleted", "groups": [*groups]}
        session.output.done(fields, f"deleted {', '.join(groups)}")

    session.administer(work)
