"""The commands `skylarkmq msg ...`: single messages by id, key or time; their traces; a copy."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

import click

from skylarkmq.client.admin import Admin
from skylarkmq.client.errors import NotFound
from skylarkmq.client.instance import Client
from skylarkmq.client.message_json import BodyForm, message_to_send
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.client.producer.producer import Producer
from skylarkmq.client.producer.trace import TRACE_TOPIC
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.message_id import decode_offset_message_id
from skylarkmq.tools.connection import Change, Session, changes, online
from skylarkmq.tools.moments import Moment, instant
from skylarkmq.tools.output import Columns, moment
from skylarkmq.tools.running import EXIT_CODES, NOT_FOUND, fail
from skylarkmq.tools.showing import BODY_MIN, LIST_COLUMNS, body_option, result_row, show_message

TRACE_COLUMNS: Final[Columns] = {
    "AT": moment("at"), "EVENT": "event", "GROUP": "group", "CLIENT": "client",
    "COST MS": "cost_ms", "RESULT": "result",
}  # fmt: skip
topic_option = click.option(
    "--topic", metavar="TOPIC", help="Where it lies; needed for the id that a producer gave."
)


@click.group(epilog=EXIT_CODES)
def msg() -> None:
    """Messages: find them, see what became of them, send a copy."""


@msg.command(epilog=EXIT_CODES)
@click.argument("msg_id")
@topic_option
@body_option
@click.option("--body-only", is_flag=True, help="Print the body as it is, and nothing else.")
@online
def get(session: Session, msg_id: str, topic: str | None, form: BodyForm, body_only: bool) -> None:
    """Show the message with the offset id, or the producer's id, MSG_ID.

    An offset id (`offset_msg_id`) names a place on a broker. The id that a producer gave (`msg_id`)
    is looked up in the index of --topic.
    """

    async def work(admin: Admin) -> None:
        message = await find(admin, msg_id, topic)
        if body_only:
            click.echo(message.body, nl=False)
            return
        show_message(session.output, message, form)

    session.look(work)


@msg.command(epilog=EXIT_CODES)
@click.argument("topic")
@click.option("--key", metavar="KEY", help="One of its keys.")
@click.option("--id", "msg_id", metavar="ID", help="The id that its producer gave.")
@click.option("--since", type=Moment(), help="Stored then or later: a time, or 10m for ten "
              "minutes ago.")  # fmt: skip
@click.option("--until", type=Moment(), help="Stored before that.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=64, show_default=True)
@body_option
@online
def query(
    session: Session,
    topic: str,
    key: str | None,
    msg_id: str | None,
    since: datetime | timedelta | None,
    until: datetime | timedelta | None,
    limit: int,
    form: BodyForm,
) -> None:
    """List messages of TOPIC by key, by id, or by time, the oldest first.

    Of more than --limit: by key or id the newest, by time the first. Exit code 3: there is none.
    """
    if key is None and msg_id is None and since is None and until is None:
        raise click.UsageError("say what to look for: --key, --id, --since or --until")
    if key is not None and msg_id is not None:
        raise click.UsageError("--key or --id, not both")

    async def work(client: Client) -> int:
        start, stop = instant(since, client), instant(until, client)
        async with session.looking(client) as admin:
            found = await admin.query(
                topic, key=key, msg_id=msg_id, start=start, stop=stop, limit=limit
            )
        rows = [message.to_json(form) for message in found]
        session.output.rows(rows, LIST_COLUMNS, none="no such message", fits=BODY_MIN)
        return 0 if rows else NOT_FOUND

    session.run(work)


@msg.command(epilog=EXIT_CODES)
@click.argument("msg_id")
@click.option("--trace-topic", default=TRACE_TOPIC, show_default=True, metavar="TOPIC")
@online
def trace(session: Session, msg_id: str, trace_topic: str) -> None:
    """Show what clients told of the message that its producer named MSG_ID.

    Clients with tracing write traces; the broker needs traceTopicEnable or the topic. Exit code 3
    when nothing is known.
    """

    async def work(admin: Admin) -> int:
        found = await admin.trace(msg_id, topic=trace_topic)
        if not (found.sends or found.deliveries or found.ends):
            return fail(
                f"nobody told of {msg_id} in {trace_topic}; do its clients trace, and is it the id "
                "that the producer gave?",
                NOT_FOUND,
            )
        if not session.output.is_table:
            session.output.one(found.to_json())
            return 0
        events: list[dict[str, Any]] = []
        for sent in found.sends:
            outcome = "stored" if sent.success else "failed"
            events.append(_event(sent.at, f"sent ({sent.kind})", sent.group, sent.client_host,
                                 sent.cost_ms, outcome))  # fmt: skip
        for ended in found.ends:
            events.append(_event(ended.at, "transaction ended", ended.group, None, None,
                                 ended.state))  # fmt: skip
        for given in found.deliveries:
            event = f"delivered, retry {given.retries}" if given.retries else "delivered"
            events.append(_event(given.started_at, event, given.group, None, given.cost_ms,
                                 given.outcome or "not ended"))  # fmt: skip
        session.output.rows(sorted(events, key=lambda row: row["at"] or ""), TRACE_COLUMNS)
        return 0

    session.look(work)


@msg.command(epilog=EXIT_CODES)
@click.argument("msg_id")
@topic_option
@click.option("--to", "target", metavar="TOPIC", help="Default: the topic it was sent to first.")
@changes
@online
def resend(
    session: Session, change: Change, msg_id: str, topic: str | None, target: str | None
) -> None:
    """Send a copy of the message MSG_ID, to its topic or another one.

    The copy has body, tag, keys, properties and sharding key of the message, an id of its own, and
    no delay. Every group that consumes the topic gets it; `dlq redrive` sends dead letters to one
    group alone.
    """

    async def work(client: Client) -> None:
        async with Admin(client=client, timeout=session.timeout) as admin:
            message = await find(admin, msg_id, topic)
        to = target or message.origin_topic
        if change.allowed(resend_text(message, msg_id, to)):
            session.output.one(await send_copy(session, client, message, to))

    session.run(work)


def resend_text(message: StoredMessage, msg_id: str, to: str) -> str:
    """Return what sending a copy does, in words."""
    return f"send a copy of {msg_id} ({len(message.body)} bytes) to {to}"


async def send_copy(
    session: Session, client: Client, message: StoredMessage, to: str
) -> dict[str, Any]:
    """Send a copy of a message to a topic, and return what programs get."""
    async with Producer(client=client, send_timeout=session.timeout) as producer:
        result = await producer.send(message_to_send(to, message.to_json("base64")))
    return {**result_row(result), "copy_of": message.msg_id}


async def find(admin: Admin, msg_id: str, topic: str | None) -> StoredMessage:
    """Return a message by either of its ids.

    Raises:
        NotFound: it is not there, or cannot be found by what is said.
    """
    if topic is not None:
        found = await admin.query(topic, msg_id=msg_id, limit=1)
        if found:
            return found[-1]
    try:
        host = str(decode_offset_message_id(msg_id)[0])
    except RemoteProtocolError as error:
        raise _not_found(msg_id, topic, f"it is no offset id ({error.remark})") from error
    message = await admin.message(msg_id)
    if message is None:  # both kinds of id have 32 hex digits: it may be a producer's
        why = f"as an offset id it names a place of {host}, and no broker here has a message of it"
        raise _not_found(msg_id, topic, f"{why} (any more)")
    return message


def _not_found(msg_id: str, topic: str | None, why: str) -> NotFound:
    if topic is None:
        cure = "A producer's id needs its topic, too: --topic"
        return NotFound(f"{msg_id} is not found: {why}", hint=cure)
    return NotFound(f"{msg_id} is not found: the index of {topic} does not have it, and {why}")


def _event(
    at: datetime | None, event: str, group: str, client: str | None, cost: int | None, result: str
) -> dict[str, Any]:
    return {
        "at": None if at is None else at.isoformat(timespec="milliseconds"), "event": event,
        "group": group, "client": client, "cost_ms": cost, "result": result,
    }  # fmt: skip
