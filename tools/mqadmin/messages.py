"""mqadmin's commands for messages.

Source: apache/rocketmq@rocketmq-all-4.9.8 tools/.../command/message/,
tools/.../admin/DefaultMQAdminExtImpl.java (messageTrackDetail, consumed)
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Final

import click

from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.client.producer.producer import Producer
from skylarkmq.protocol.message import Message, MessageQueue
from skylarkmq.tools.mqadmin.consumers import ACTIVELY
from skylarkmq.tools.mqadmin.java_text import (
    java,
    message_text,
    millis_text,
    parsed_time,
    queue_text,
    seconds_text,
)
from skylarkmq.tools.mqadmin.table import Call, Letter, OldCommand
from skylarkmq.tools.running import FAILED, NOT_FOUND

BY_KEY_MAX: Final = 64
BY_ID_MAX: Final = 32
CONSUMED_MAX: Final = 128
TRACE: Final = "{:<10} {:<20} {:<20} {:<20} {:<10} {:<10}"
SENT: Final = "{:<32}  {:<4}  {:<20}    {}"


async def query_msg_by_id(call: Call) -> int:
    """Show, resend or hand to a consumer the messages with these offset ids."""
    code = 0
    for msg_id in filter(None, map(str.strip, call.text("i").split(","))):
        if call.has("g") and call.has("d"):
            await _hand_over(call, msg_id)
            continue
        message = await call.admin.message(msg_id)
        if message is None:
            click.echo(
                "\nMessage not found!" if not call.has("s") else f"no message. msgId={msg_id}"
            )
            code = NOT_FOUND
        elif call.has("s"):
            if call.true("s", False):
                await _resend(call, message, msg_id)
        else:
            await print_message(call, message, with_id=True)
    return code


async def _hand_over(call: Call, msg_id: str) -> None:
    done = await call.admin.consume_directly(call.text("g"), call.text("d"), msg_id)
    click.echo(
        f"ConsumeMessageDirectlyResult [consumeResult={done.outcome}, remark={done.remark}, "
        f"spentTimeMills={done.spent_ms}]"
    )


async def _resend(call: Call, message: StoredMessage, msg_id: str) -> None:
    click.echo(f"prepare resend msg. originalMsgId={msg_id}")
    again = Message(
        message.topic, message.body, tags=message.tags, keys=tuple(message.keys.split()),
    )  # fmt: skip
    async with Producer(client=call.client) as producer:
        result = await producer.send(again)
    click.echo(
        f"SendResult [sendStatus={result.status.name}, msgId={result.msg_id}, "
        f"offsetMsgId={result.offset_msg_id}, messageQueue={queue_text(result.queue)}, "
        f"queueOffset={result.queue_offset}]"
    )


async def print_message(call: Call, message: StoredMessage, *, with_id: bool) -> None:
    """Show a message, write its body into a file, and say which groups have consumed it."""
    folder = Path(tempfile.mkdtemp(prefix="mqadmin-msgbodys-"))
    name = message.msg_id or message.offset_msg_id
    file = folder / "".join(letter for letter in name if letter.isalnum() or letter in "_-")
    file.write_bytes(message.body)
    parts = {
        **({"OffsetID:": message.offset_msg_id} if with_id else {}),
        "Topic:": message.topic,
        "Tags:": f"[{java(message.tags)}]",
        "Keys:": f"[{message.keys or 'null'}]",
        "Queue ID:": message.queue.queue_id,
        "Queue Offset:": message.queue_offset,
        "CommitLog Offset:": message.commit_log_offset,
        "Reconsume Times:": message.reconsume_times,
        "Born Timestamp:": millis_text(message.born_at),
        "Store Timestamp:": millis_text(message.stored_at),
        "Born Host:": message.born_host,
        "Store Host:": message.store_host,
        "System Flag:": message.sys_flag,
        "Properties:": java(message.properties),
        "Message Body Path:": file,
    }
    for title, value in parts.items():
        click.echo(f"{title:<20} {value}")
    tracks = [await _track(call, message, group) for group in await _groups(call, message.topic)]
    click.echo("\n")
    if not tracks:
        click.echo("WARN: No Consumer")
    for track in tracks:
        click.echo(track)


async def _groups(call: Call, topic: str) -> list[str]:
    try:
        return await call.admin.topic_groups(topic)
    except RocketMQError:
        return []


async def _track(call: Call, message: StoredMessage, group: str) -> str:
    """Return what a group has done with a message, as far as its offset tells."""
    why = "null"
    track = await call.admin.track(message, group)
    if not track.members:
        kind, why = "NOT_ONLINE", f"CODE:206 DESC:the consumer group[{group}] not online"
    elif track.kind == ACTIVELY:
        kind = "PULL"
    elif not track.is_passed:
        kind = "NOT_CONSUME_YET"
    else:
        kind = "CONSUMED_BUT_FILTERED" if track.is_wanted is False else "CONSUMED"
    return f"MessageTrack [consumerGroup={group}, trackType={kind}, exceptionDesc={why}]"


async def query_msg_by_key(call: Call) -> None:
    """List the messages with a key."""
    click.echo(f"{'#Message ID':<50} {'#QID':>4} {'#Offset':>40}")
    found = await call.admin.query(call.text("t"), key=call.text("k"), limit=BY_KEY_MAX)
    for each in found:
        click.echo(f"{each.msg_id:<50} {each.queue.queue_id:>4} {each.queue_offset:>40}")


async def query_msg_by_unique_key(call: Call) -> int:
    """Show the messages with a producer's id, the first one or all, or hand it to a consumer."""
    found = await call.admin.query(call.text("t"), msg_id=call.text("i"), limit=BY_ID_MAX)
    if not found:
        return NOT_FOUND
    if call.has("g") and call.has("d"):
        await _hand_over(call, found[0].offset_msg_id)
        return 0
    for each in found if call.has("a") else found[:1]:
        await print_message(call, each, with_id=False)
    return 0


async def query_msg_by_offset(call: Call) -> int:
    """Show the message at an offset of a queue."""
    queue = MessageQueue(call.text("t"), call.text("b"), call.number("i", 0))
    offset = call.number("o", 0)
    async for message in call.admin.scan(call.text("t"), after={queue: offset}):
        if message.queue_offset != offset:
            break
        await print_message(call, message, with_id=True)
        return 0
    return NOT_FOUND


async def query_msg_trace_by_id(call: Call) -> int:
    """Show who sent a message and who got it, where clients trace."""
    topic = {"topic": call.text("t")} if call.has("t") else {}
    found = await call.admin.trace(call.text("i"), **topic)
    for send in found.sends:
        heads = ("#Type", "#ProducerGroup", "#ClientHost", "#SendTime", "#CostTimes", "#Status")
        status = "success" if send.success else "failed"
        at = seconds_text(send.at)
        row = ("Pub", send.group, send.client_host or "-", at, f"{send.cost_ms}ms", status)
        click.echo(f"{TRACE.format(*heads)}\n{TRACE.format(*row)}\n")
    for group in dict.fromkeys(each.group for each in found.deliveries):
        heads = ("#Type", "#ConsumerGroup", "#ClientHost", "#ConsumerTime", "#CostTimes", "#Status")
        click.echo(TRACE.format(*heads))
        for each in found.deliveries:
            if each.group == group and each.success is not None:
                status = "success" if each.success else "failed"
                at = seconds_text(each.started_at)
                click.echo(TRACE.format("Sub", group, "-", at, f"{each.cost_ms}ms", status))
        click.echo()
    return 0 if found.sends or found.deliveries else NOT_FOUND


# Whole queues


async def print_msg(call: Call) -> None:
    """Print the messages of a topic, queue after queue."""
    topic, charset = call.text("t"), call.text("c", "UTF-8")
    wanted = {tag.strip() for tag in call.text("s", "*").split("||")}
    start, stop = _time(call, "b"), _time(call, "e")
    try:
        "".encode(charset)
    except LookupError as error:
        raise click.UsageError(f"-c {charset}: there is no such character set") from error
    for row in (await call.admin.describe_topic(topic)).queues:
        if row.queue.queue_id >= 0:
            click.echo(f"minOffset={row.begin}, maxOffset={row.end}, {queue_text(row.queue)}")
            async for each in _of_queue(call, row.queue, row.begin, start, stop):
                if "*" in wanted or each.tags in wanted:
                    shown = each.body.decode(charset, "replace")
                    _print_line(each, shown if call.true("d", True) else "NOT PRINT BODY")
            click.echo("-" * 56)


async def consume_message(call: Call) -> int:
    """Print messages of a topic, of a queue, or from an offset on; no group moves."""
    topic, count = call.text("t"), call.number("c", CONSUMED_MAX)
    start, stop = _time(call, "s"), _time(call, "e")
    if count <= 0:
        raise click.UsageError("Please input a positive messageNumber!")
    if call.has("i") and not call.has("b"):
        raise click.UsageError("Please set the brokerName before queueId!")
    if call.has("o") and not call.has("i"):
        raise click.UsageError("Please set queueId before offset!")
    for row in (await call.admin.describe_topic(topic)).queues:
        queue = row.queue
        if call.has("b") and queue.broker_name != call.text("b"):
            continue
        if call.has("i") and queue.queue_id != call.number("i", 0):
            continue
        offset = max(row.begin, call.number("o", row.begin))
        if offset > row.end:
            click.echo(f"{queue_text(queue)} no matched msg, offset={offset}")
            return FAILED
        async for each in _of_queue(call, queue, offset, start, stop):
            click.echo("Consume ok")
            _print_line(each, each.body.decode("utf-8", "replace"))
            count -= 1
            if not count:
                return 0
    return 0


def _time(call: Call, letter: str) -> datetime | None:
    return parsed_time(call.text(letter)) if call.has(letter) else None


async def _of_queue(
    call: Call, queue: MessageQueue, offset: int, start: datetime | None, stop: datetime | None
) -> AsyncIterator[StoredMessage]:
    async for each in call.admin.scan(queue.topic, start=start, stop=stop, after={queue: offset}):
        yield each


def _print_line(message: StoredMessage, body: str) -> None:
    name = message.msg_id or message.offset_msg_id
    click.echo(f"MSGID: {name} {message_text(message)} BODY: {body}")


async def send_message(call: Call) -> None:
    """Send a message."""
    topic = call.text("t")
    if call.has("i") and not call.has("b"):
        raise click.UsageError("Broker name must be set if the queue is chosen!")
    queue = None
    if call.has("i"):
        queue = MessageQueue(topic, call.text("b"), call.number("i", 0))
    message = Message(
        topic, call.text("p"), tags=call.text("c") or None, keys=tuple(call.text("k").split())
    )
    async with Producer(client=call.client) as producer:
        result = await producer.send(message, queue=queue)
    click.echo(SENT.format("#Broker Name", "#QID", "#Send Result", "#MsgId"))
    sent_to = result.queue
    click.echo(
        SENT.format(sent_to.broker_name, sent_to.queue_id, result.status.name, result.msg_id)
    )


TOPIC: Final = Letter("t", "topic", "Topic name.", needed=True)
GROUP: Final = Letter("g", "consumerGroup", "With -d: hand it to a member of this group.")
CLIENT: Final = Letter("d", "clientId", "With -g: the member.")
BEGIN: Final = Letter("b", "beginTimestamp", "ms, or yyyy-MM-dd#HH:mm:ss:SSS.")
END: Final = Letter("e", "endTimestamp", "ms, or yyyy-MM-dd#HH:mm:ss:SSS.")
COMMANDS: Final = (
    OldCommand(
        "queryMsgById", "Query Message by Id",
        (
            Letter("i", "msgId", "Offset ids, separated by commas.", needed=True), GROUP, CLIENT,
            Letter("s", "sendMessage", "Send it again: true or false."),
            Letter("u", "unitName", "No effect."),
        ),
        query_msg_by_id,
    ),
    OldCommand("queryMsgByKey", "Query Message by Key",
               (TOPIC, Letter("k", "msgKey", "The key.", needed=True)), query_msg_by_key),
    OldCommand(
        "queryMsgByUniqueKey", "Query Message by Unique key",
        (
            Letter("i", "msgId", "The producer's id.", needed=True), GROUP, CLIENT, TOPIC,
            Letter("a", "showAll", "All of them, at most 32.", bare=True),
        ),
        query_msg_by_unique_key,
    ),
    OldCommand(
        "queryMsgByOffset", "Query Message by offset",
        (
            TOPIC, Letter("b", "brokerName", "Broker name.", needed=True),
            Letter("i", "queueId", "Queue id.", needed=True),
            Letter("o", "offset", "Queue offset.", needed=True),
        ),
        query_msg_by_offset,
    ),
    OldCommand(
        "queryMsgTraceById", "Query a message trace",
        (
            Letter("i", "msgId", "The producer's id.", needed=True),
            Letter("t", "traceTopic", "Where clients trace; default RMQ_SYS_TRACE_TOPIC."),
        ),
        query_msg_trace_by_id,
    ),
    OldCommand(
        "printMsg", "Print Message Detail",
        (
            TOPIC, Letter("c", "charsetName", "Such as UTF-8, GBK."),
            Letter("s", "subExpression", "Such as TagA || TagB."), BEGIN, END,
            Letter("d", "printBody", "true (the default) or false."),
        ),
        print_msg,
    ),
    OldCommand(
        "sendMessage", "Send a message",
        (
            TOPIC, Letter("p", "body", "The message body, as UTF-8.", needed=True),
            Letter("k", "key", "Message keys."), Letter("c", "tags", "Message tags."),
            Letter("b", "broker", "To this broker."), Letter("i", "qid", "With -b: to this queue."),
            Letter("m", "msgTraceEnable", "No effect: this command does not trace."),
        ),
        send_message, would="send the message",
    ),
    OldCommand(
        "consumeMessage", "Consume message",
        (
            TOPIC, Letter("b", "brokerName", "Broker name."), Letter("i", "queueId", "Queue id."),
            Letter("o", "offset", "Queue offset."),
            Letter("g", "consumerGroup", "No effect: no group is joined."),
            BEGIN._replace(letter="s"), END,
            Letter("c", "MessageNumber", "At most so many; default 128."),
        ),
        consume_message,
    ),
)  # fmt: skip
