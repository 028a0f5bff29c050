"""The commands `skylarkmq topic ...`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import starmap
from typing import Any, Final, Literal

import click

from skylarkmq.client import DeduplicationWindow
from skylarkmq.client.admin import Admin, Statistic, TopicRoute
from skylarkmq.client.admin.topics import read_queues_after
from skylarkmq.client.errors import ConnectionFailed, NotFound, RequestTimeout
from skylarkmq.protocol.topic_attributes import (
    ANY_MESSAGE_TYPE,
    MESSAGE_TYPE,
    MESSAGE_TYPES,
    PRIORITY_TYPE,
    MessageType,
    deduplication_of,
)
from skylarkmq.tools.connection import Change, Session, Where, changes, online, targeted
from skylarkmq.tools.output import Columns, Output, ProgressBar, Row, moment
from skylarkmq.tools.running import EXIT_CODES
from skylarkmq.tools.watching import Watch, watched

SETTINGS: Final[Columns] = {
    "BROKER": "broker", "WRITE QUEUES": "write_queues", "READ QUEUES": "read_queues",
    "PERM": "perm", "ORDER": "order",
    "TYPE": "message_type",
    "DEDUPLICATION": lambda row: _window_text(row["deduplication"]),
}  # fmt: skip
QUEUES: Final[Columns] = {
    "BROKER": lambda row: row["queue"]["broker"],
    "QUEUE": lambda row: row["queue"]["queue_id"],
    "FIRST": "begin", "END": "end",
    "MESSAGES": lambda row: row["end"] - row["begin"],
    "LAST STORED": moment("last_stored_at"),
}  # fmt: skip
RATES: Final[Columns] = {
    "BROKER": "broker", "WHAT": "what", "GROUP": "group", "A SECOND": "minute_per_second",
    "MINUTE": "minute", "HOUR": "hour", "DAY": "day",
}  # fmt: skip
QUEUE_COUNT: Final = click.IntRange(1)


def _window(
    context: click.Context, option: click.Parameter, text: str | None
) -> DeduplicationWindow | Literal[False] | None:
    """Read seconds, and after a colon the keys; 0 is none."""
    if text is None:
        return None
    try:
        window = DeduplicationWindow(*map(int, text.split(":")))
    except (TypeError, ValueError) as error:
        why = f"{text!r} is neither SECONDS nor SECONDS:KEYS, like 600:100000"
        raise click.BadParameter(why, context, option) from error
    return window if window.seconds else False


def _window_text(window: Any) -> str | None:
    return None if window is None else f"{window['seconds']} s, {window['keys']} keys"


_message_type: Final = click.option(
    "--message-type",
    type=click.Choice([*MESSAGE_TYPES, ANY_MESSAGE_TYPE, PRIORITY_TYPE]),
    help="What clients of RocketMQ 5 may send; MIXED, the default, is anything but a priority. "
    "With PRIORITY each queue is a level of priority, the last one the highest.",
)
_DEDUPLICATE: Final = "--deduplicate"
_DEDUPLICATE_HELP: Final = (
    "Store a message of the same unique key once within so many seconds; each broker remembers "
    "up to KEYS keys."
)


@click.group(epilog=EXIT_CODES)
def topic() -> None:
    """Topics: list, look at, create, change, delete."""


@topic.command("list", epilog=EXIT_CODES)
@click.option("--system", is_flag=True, help="The brokers' own topics, too.")
@click.option("--groups", is_flag=True, help="The groups' retry and dead letter topics, too.")
@click.option("--cluster", metavar="NAME", help="Of this cluster only.")
@online
def list_topics(session: Session, system: bool, groups: bool, cluster: str | None) -> None:
    """List the topics."""

    async def work(admin: Admin) -> None:
        names = await admin.list_topics(cluster=cluster, system=system, groups=groups)
        session.output.rows([{"topic": name} for name in names], none="no topics")

    session.look(work)


@topic.command("describe", epilog=EXIT_CODES)
@click.argument("topic")
@online
def describe(session: Session, topic: str) -> None:
    """Show a topic: its settings on each broker, its queues, the groups that consume it."""

    async def work(admin: Admin) -> None:
        fields = await described(admin, topic)
        groups = [{"group": name} for name in fields["groups"]]
        session.output.parts(
            fields,
            {
                "Settings": (fields["settings"], SETTINGS),
                "Queues": (fields["queues"], QUEUES),
                "Groups": (groups, None),
            },
        )

    session.look(work)


async def described(admin: Admin, topic: str) -> dict[str, Any]:
    """Return a topic as programs get it: settings with type and window, queues, groups."""
    found = await admin.describe_topic(topic)
    fields: dict[str, Any] = {**found.to_json(), "message_count": found.message_count}
    attributes = await admin.topic_attributes(topic)
    for row in fields["settings"]:
        named = attributes.get(row["broker"], {})
        row["message_type"] = named.get(MESSAGE_TYPE)
        window = deduplication_of(named)
        row["deduplication"] = None if window is None else window._asdict()
    return fields


@topic.command("groups", epilog=EXIT_CODES)
@click.argument("topic")
@online
def groups(session: Session, topic: str) -> None:
    """List the groups that have consumed or consume a topic."""

    async def work(admin: Admin) -> None:
        rows = [{"group": name} for name in await admin.topic_groups(topic)]
        session.output.rows(rows, none="no groups")

    session.look(work)


@topic.command("stats", epilog=EXIT_CODES)
@click.argument("topic")
@watched
@online
def stats(session: Session, watch: Watch, topic: str) -> None:
    """Show how much is sent to a topic and taken from it by each group, broker by broker.

    Brokers count once in ten seconds or more; what none has counted yet is left out.
    """

    async def work(admin: Admin) -> None:
        wrapped = session.wrap(topic)

        async def ask() -> list[Row]:
            await admin.topic_route(topic)
            asked: list[tuple[str, str | None, str, str]] = [("sent", None, "TOPIC_PUT", wrapped)]
            asked += [
                ("taken", name, "GROUP_GET", f"{wrapped}@{session.wrap(name)}")
                for name in await admin.topic_groups(topic)
            ]
            rows: list[Row] = []
            for what, group, name, key in asked:
                for unit, suffix in (("messages", "NUMS"), ("bytes", "SIZE")):
                    found = await admin.statistic(f"{name}_{suffix}", key)
                    rows += [_rate(f"{what} {unit}", group, each) for each in found]
            return rows

        def show(rows: list[Row], output: Output) -> None:
            output.rows(rows, RATES, none="nothing counted yet")

        await watch.look(session, ask, show)

    session.look(work, open_ended=watch.open_ended)


def _rate(what: str, group: str | None, found: Statistic) -> Row:
    return {
        "broker": found.broker,
        "what": what,
        "group": group,
        "minute_per_second": round(found.minute.per_second, 2),
        "minute": found.minute.total,
        "hour": found.hour.total,
        "day": found.day.total,
    }


@topic.command("create", epilog=EXIT_CODES)
@click.argument("topic")
@click.option(
    "--queues", type=QUEUE_COUNT, default=8, show_default=True, help="On each broker, to write to."
)
@click.option("--read-queues", type=QUEUE_COUNT, help="To read from; default as many.")
@click.option("--perm", default="rw", show_default=True, help="Letters of r, w and x (inherited).")
@click.option("--order", is_flag=True, help="Keep its queues in the route while a broker is away.")
@click.option(
    _DEDUPLICATE,
    "deduplication",
    callback=_window,
    metavar="SECONDS[:KEYS]",
    help=_DEDUPLICATE_HELP,
)
@_message_type
@click.option("--exist-ok", is_flag=True, help="Leave a topic that is there as it is.")
@targeted
@changes
@online
def create(
    session: Session,
    change: Change,
    where: Where,
    topic: str,
    queues: int,
    read_queues: int | None,
    perm: str,
    order: bool,
    deduplication: DeduplicationWindow | Literal[False] | None,
    message_type: MessageType | None,
    exist_ok: bool,
) -> None:
    """Create a topic and wait until the name servers tell clients of it."""
    if not change.allowed(f"create the topic {topic} on {where}", harmless=True):
        return

    async def work(admin: Admin) -> None:
        fields = await make_topic(
            admin,
            topic,
            queues=queues,
            read_queues=read_queues,
            perm=perm,
            order=order,
            deduplication=deduplication or None,
            message_type=message_type,
            cluster=where.cluster,
            brokers=where.brokers,
            exist_ok=exist_ok,
        )
        session.output.done(fields, f"topic {topic} is on {', '.join(fields['brokers'])}")

    session.administer(work)


async def make_topic(admin: Admin, topic: str, **settings: Any) -> dict[str, Any]:
    """Create a topic, and return what programs get."""
    await admin.create_topic(topic, **settings)
    made = (await admin.topic_route(topic)).settings
    return {"action": "created", "topic": topic, "brokers": [each.broker for each in made]}


@topic.command("update", epilog=EXIT_CODES)
@click.argument("topic")
@click.option("--queues", type=QUEUE_COUNT, help="To write to, on each broker.")
@click.option(
    "--read-queues",
    type=QUEUE_COUNT,
    help="To read from; default as before, and at least --queues.",
)
@click.option("--perm", help="Letters of r, w and x (inherited), or '' for none.")
@click.option("--order/--no-order", default=None, help="Keep its queues in the route, or not.")
@click.option(
    _DEDUPLICATE,
    "deduplication",
    callback=_window,
    metavar="SECONDS[:KEYS]",
    help=f"{_DEDUPLICATE_HELP} 0: no more.",
)
@_message_type
@targeted
@changes
@online
def update(session: Session, change: Change, where: Where, topic: str, **given: Any) -> None:
    """Change what is given of a topic, on all its brokers or on those named.

    Messages in queues that are not read stay unread: lower --queues first, which leaves the queues
    to read as they are, and --read-queues once what is in the others is consumed. --dry-run says
    what each broker gets, and how many messages are in queues that would be read no more.
    """
    wanted = {name: value for name, value in given.items() if value is not None}
    if not wanted:
        options = "--queues, --read-queues, --perm, --order, --deduplicate or --message-type"
        raise click.UsageError(f"nothing to change: give {options}")

    async def work(admin: Admin) -> None:
        before = await admin.topic_route(topic)
        brokers = where.brokers
        if where.cluster is not None:
            known = (await admin.cluster()).clusters
            if where.cluster not in known:
                raise NotFound(f"there is no cluster {where.cluster}; known: {', '.join(known)}")
            there = known[where.cluster]
            brokers = tuple(each.broker for each in before.settings if each.broker in there)
        asked = ", ".join(f"{name.replace('_', '-')}={_shown(wanted[name])}" for name in wanted)
        effects = await _effects(admin, before, brokers, wanted)
        if not effects:
            raise NotFound(f"{where} has no topic {topic}")
        if not change.allowed(f"set {asked} of the topic {topic} on {where} ({effects})"):
            return
        await admin.update_topic(topic, brokers=brokers, **wanted)
        told = {name: _plain(value) for name, value in wanted.items()}
        fields = {"action": "updated", "topic": topic, "changes": told}
        session.output.done(fields, f"topic {topic} has {asked} now")

    session.administer(work)


def _plain(value: Any) -> Any:
    return value._asdict() if isinstance(value, DeduplicationWindow) else value


def _shown(value: Any) -> str:
    return str(_window_text(_plain(value)) if isinstance(value, DeduplicationWindow) else value)


async def _effects(
    admin: Admin, before: TopicRoute, brokers: Collection[str] | None, wanted: Mapping[str, Any]
) -> str:
    """Return what a change makes of a topic on each of these brokers that has it."""
    told: list[str] = []
    addresses = {each.name: each.addresses.values() for each in before.brokers}
    for old in before.settings:
        name = old.broker
        if brokers is not None and not {name, *addresses[name]}.intersection(brokers):
            continue
        reads = read_queues_after(old.read_queues, wanted.get("queues"), wanted.get("read_queues"))
        steps = (
            ("queues", old.write_queues, wanted.get("queues", old.write_queues)),
            ("read-queues", old.read_queues, reads),
            ("perm", old.perm, wanted.get("perm", old.perm)),
        )
        told += [f"{name}: " + ", ".join(starmap(_step, steps))]
        if reads < old.read_queues:
            count = await _count_beyond(admin, before.topic, name, reads)
            told[-1] += (
                f", and queues from {reads} on are read no more (messages there, consumed or not: "
                f"{count})"
            )
    return "; ".join(told)


async def _count_beyond(admin: Admin, topic: str, broker: str, queue_id: int) -> str:
    """Return how many messages a broker has in the queues from this one on."""
    try:
        queues = (await admin.describe_topic(topic)).queues
    except (ConnectionFailed, RequestTimeout):
        return "not known, as a broker does not answer"
    lost = [q for q in queues if q.queue.broker_name == broker and q.queue.queue_id >= queue_id]
    return str(sum(each.end - each.begin for each in lost))


def _step(name: str, old: object, new: object) -> str:
    return f"{name}={old}" if new == old else f"{name}={old} -> {new}"


@topic.command("delete", epilog=EXIT_CODES)
@click.argument("topics", nargs=-1, required=True)
@click.option("--cluster", metavar="NAME", help="From this cluster only.")
@changes
@online
def delete(session: Session, change: Change, topics: tuple[str, ...], cluster: str | None) -> None:
    """Delete topics with their messages from brokers and name servers.

    Producers that go on sending create a topic again where brokers create topics on demand.
    """

    async def work(admin: Admin) -> None:
        known = await admin.list_topics(system=True, groups=True)
        absent = [name for name in topics if name not in known]
        if absent:
            raise NotFound(f"there is no topic {', '.join(absent)}; nothing is deleted")
        place = "all brokers" if cluster is None else f"cluster {cluster}"
        many = "topics" if len(topics) > 1 else "topic"
        what = f"delete the {many} {', '.join(topics)} with all messages from {place}"
        if not change.allowed(what):
            return
        with ProgressBar() as bar:
            for count, name in enumerate(topics, 1):
                await admin.delete_topic(name, cluster=cluster)
                bar("deleting", count, len(topics))
        fields: Mapping[str, Any] = {"action": "deleted", "topics": [*topics], "cluster": cluster}
        session.output.done(fields, f"deleted {', '.join(topics)}")

    session.administer(work)
