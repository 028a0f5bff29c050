"""Live tail: new messages as they are stored, without a group.

The page holds a stream of events open (`text/event-stream`). A reader of the SDK's own (PeekReader)
feeds it: it joins no group and commits nothing. A stream shows so many messages a second; it counts
those that it leaves out, and names the brokers that do not answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

from starlette.responses import Response, StreamingResponse

from skylarkmq.client.admin import Unanswered
from skylarkmq.client.consumer.peek_reader import PeekReader
from skylarkmq.client.consumer.subscription import StartFrom, Tag
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.common.clock import Clock
from skylarkmq.tools.console.bodies import preview
from skylarkmq.tools.console.text import exact
from skylarkmq.tools.console.visit import NotAllowed, Visit, explained

STREAMS_MAX: Final = 16
RATE_MAX: Final = 50
"""Messages a second that a page is told."""
BEAT_S: Final = 10.0
TOLD_S: Final = 1.0
"""After the last message of those that came too fast, until their count is told."""
SHOWN_BEFORE: Final = 10


async def tail(visit: Visit) -> Response:
    """Show the page, which asks for the stream itself."""
    topics = await (await visit.admin()).list_topics(groups=True)
    return visit.page(
        "tail.html", topics=topics, topic=visit.asked("topic"), tag=visit.asked("tag")
    )


class Tails:
    """The streams that are open; makes the function of the stream's route."""

    def __init__(self) -> None:
        self._open = 0

    async def stream(self, visit: Visit) -> Response:
        """Answer with the stream."""
        if self._open >= STREAMS_MAX:
            raise NotAllowed(
                f"{STREAMS_MAX} live tails are open, which is the limit.", "Close another one.", 429
            )
        topic, tag, access = visit.asked("topic"), visit.asked("tag"), visit.access
        admin = await visit.admin()
        selector = Tag(tag) if tag else None
        queues = (await admin.describe_topic(topic)).queues
        starts = {each.queue: max(each.begin, each.end - SHOWN_BEFORE) for each in queues}

        def without(broker: str, address: str, error: RocketMQError) -> None:
            visit.unanswered[broker] = Unanswered(broker, address, error)

        reader = PeekReader(
            topic,
            client=access.client,
            start=starts or StartFrom.NOW,
            selector=selector,
            without=without,
        )
        events = self._events(reader, access.clock, visit)
        return StreamingResponse(
            events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )

    async def _events(self, reader: PeekReader, clock: Clock, visit: Visit) -> AsyncGenerator[str]:
        self._open += 1
        try:
            await reader.start()
            yield "retry: 3000\n\n"
            async for event in events_of(reader, clock, visit.unanswered):
                yield event
        except RocketMQError as error:
            failure = explained(error, visit.settings)
            yield _event("failed", {"cause": failure.cause, "cure": failure.cure})
        finally:
            self._open -= 1
            await reader.stop()


async def events_of(
    reader: PeekReader, clock: Clock, unanswered: Mapping[str, Unanswered]
) -> AsyncGenerator[str]:
    """Yield the text of events: messages, what was left out, and beats while nothing comes.

    Args:
        unanswered: brokers that do not answer, by name; the reader's `without` adds some.
    """
    second_s, told, left_out = clock.monotonic(), 0, 0
    named = 0
    while True:
        if len(unanswered) > named:
            named = len(unanswered)
            yield _event("without", {"brokers": [str(each) for each in unanswered.values()]})
        try:
            message = await asyncio.wait_for(anext(reader), TOLD_S if left_out else BEAT_S)
        except (TimeoutError, StopAsyncIteration) as error:
            yield _event("skipped", {"count": left_out}) if left_out else ": nothing new\n\n"
            left_out = 0
            if isinstance(error, StopAsyncIteration):
                return
            continue
        now_s = clock.monotonic()
        if now_s - second_s >= 1:
            if left_out:
                yield _event("skipped", {"count": left_out})
            second_s, told, left_out = now_s, 0, 0
        if told >= RATE_MAX:
            left_out += 1
            continue
        told += 1
        yield _event("message", _fields(message))


def _fields(message: StoredMessage) -> dict[str, Any]:
    return {
        "stored": exact(message.stored_at),
        "queue": f"{message.queue.broker_name} / {message.queue.queue_id}",
        "offset": message.queue_offset,
        "tags": message.tags or "",
        "keys": message.keys,
        "body": preview(message),
        "size": message.size,
        "id": message.offset_msg_id,
    }


def _event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
