"""OpenTelemetry: spans of sends, receives and handlers, and the context that joins them.

    span              kind       parent
    send <topic>      PRODUCER   the caller's current span; its context goes into the message
    receive <topic>   CLIENT     none; links to the messages' contexts
    process <topic>   CONSUMER   the message's context, for one message; a batch has links instead
    ack <topic>       CLIENT     the caller's current span; a link to the message's context

A SimpleConsumer's receive has the caller's current span as its parent, and lasts from the call to
the messages; one that brings none has no span. `change_invisible_duration <topic>` is like the
ack. What is between them is the program's: it makes the `process` spans.

The context travels in the message properties `traceparent` and `tracestate`, as the propagator of
the program writes them. A property that the program has set itself is not changed. All messages of
one send carry the context of its one span.

Needs the extra `otel` (opentelemetry-api); loaded only when a Client is given a tracer provider.
Source: OpenTelemetry semantic conventions, messaging spans and messaging/rocketmq
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextvars import Token
from typing import Final, Literal

from opentelemetry import context as otel_context
from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace import get_current_span as span_of
from opentelemetry.trace import set_span_in_context as with_span

from skylarkmq.client import errors
from skylarkmq.client.errors import BrokerError, ConsumerClosed
from skylarkmq.client.observe.hooks import (
    ClientHook,
    ConsumeContext,
    Consumed,
    ReceiveContext,
    SendContext,
    SettleContext,
)
from skylarkmq.client.popped_message import PoppedMessage
from skylarkmq.client.received_message import ConsumeOutcome, ReceivedMessage
from skylarkmq.client.send_result import SendResult
from skylarkmq.client.services import Services
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.message import Message

SCOPE: Final = "skylarkmq.client"
PREFIX: Final = "messaging.rocketmq."
STABLE_PREFIX: Final = "rocketmq."
"""The prefix in newer revisions of the conventions."""
OPT_IN_VARIABLE: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"

Value = str | int | Sequence[str]
MessageType = Literal["normal", "fifo", "delay", "transaction"]
GONE: Final = (asyncio.CancelledError, ConsumerClosed)
"""How a receive ends that nobody waits for any more; that is no failure."""


class OpenTelemetryHook(ClientHook):
    """The spans of one client. Loop thread."""

    def __init__(self, services: Services, provider: TracerProvider) -> None:
        self._services = services
        self._tracer = provider.get_tracer(SCOPE)
        self._prefixes = prefixes(os.environ.get(OPT_IN_VARIABLE, ""))

    # Sends

    def before_send(self, context: SendContext) -> None:
        """Begin the span and put its context into the message."""
        span = self._tracer.start_span(f"send {context.topic}", kind=SpanKind.PRODUCER)
        context.state[self] = span
        propagate.inject(context.properties, with_span(span))
        for name in list(context.properties):
            if any(name in message.properties for message in context.messages):
                del context.properties[name]

    def after_send(
        self, context: SendContext, result: SendResult | None, error: BaseException | None
    ) -> None:
        """End the span with the outcome of the send."""
        span: Span | None = context.state.pop(self, None)
        if span is None:
            return
        if span.is_recording():
            span.set_attributes(self._common(context.topic, "send"))
            span.set_attributes(self._specific(_of_message(context)))
            if context.unique_ids and len(context.messages) == 1:
                span.set_attribute("messaging.message.id", context.unique_ids[0])
            if len(context.messages) > 1:
                span.set_attribute("messaging.batch.message_count", len(context.messages))
            span.set_attribute("messaging.message.body.size", context.body_size)
            queue = context.queue if result is None else result.queue
            if queue is not None:
                partition = f"{queue.broker_name}:{queue.queue_id}"
                span.set_attribute("messaging.destination.partition.id", partition)
            span.set_attributes(server_attributes(context.broker_addr))
        _fail(span, error)
        span.end()

    # Receives

    def received(self, group: str, messages: Sequence[ReceivedMessage]) -> None:
        """Make a span for messages that have arrived and wait for a handler from now on."""
        first = messages[0]
        span = self._tracer.start_span(
            f"receive {first.topic}",
            context=Context(),
            kind=SpanKind.CLIENT,
            links=_links(messages),
        )
        if span.is_recording():
            span.set_attributes(self._consumed(group, messages, "receive"))
        span.end()

    # Handlers

    def before_consume(self, context: ConsumeContext) -> None:
        """Begin the span and make it the current one of the handler's task."""
        messages = context.messages
        parent = _context_of(messages[0]) if len(messages) == 1 else Context()
        span = self._tracer.start_span(
            f"process {messages[0].topic}",
            context=parent,
            kind=SpanKind.CONSUMER,
            links=_links(messages),
        )
        if span.is_recording():
            span.set_attributes(self._consumed(context.group, messages, "process"))
        context.state[self] = span, otel_context.attach(with_span(span, parent))

    def after_consume(
        self, context: ConsumeContext, outcome: ConsumeOutcome, error: BaseException | None
    ) -> None:
        """End the span; a message that was given back without an error is no failure."""
        held: tuple[Span, Token[Context]] | None = context.state.pop(self, None)
        if held is None:
            return
        span, token = held
        otel_context.detach(token)
        if span.is_recording():
            span.set_attribute("skylarkmq.outcome", outcome)
        _fail(span, error)
        span.end()

    # A SimpleConsumer

    def before_receive(self, context: ReceiveContext) -> None:
        """Remember when; whether there is anything to tell of is seen at the end."""
        context.state[self] = self._services.clock.now_ms()

    def after_receive(
        self,
        context: ReceiveContext,
        messages: Sequence[PoppedMessage],
        error: BaseException | None,
    ) -> None:
        """Make the span of a receive that brought messages or failed."""
        began_ms: int | None = context.state.pop(self, None)
        if began_ms is None or (error is None and not messages) or isinstance(error, GONE):
            return
        span = self._tracer.start_span(
            f"receive {messages[0].topic}" if messages else "receive",
            kind=SpanKind.CLIENT,
            links=_links(messages),
            start_time=began_ms * 1_000_000,
        )
        if span.is_recording():
            span.set_attributes(self._consumed(context.group, messages, "receive"))
        _fail(span, error)
        span.end()

    def before_settle(self, context: SettleContext) -> None:
        """Begin the span."""
        message, operation = context.message, context.operation
        context.state[self] = self._tracer.start_span(
            f"{operation} {message.topic}", kind=SpanKind.CLIENT, links=_links([message])
        )

    def after_settle(self, context: SettleContext, error: BaseException | None) -> None:
        """End the span with what the broker said."""
        span: Span | None = context.state.pop(self, None)
        if span is None:
            return
        if span.is_recording():
            span.set_attributes(
                self._consumed(context.group, [context.message], context.operation, "settle")
            )
        _fail(span, error)
        span.end()

    # Attributes

    def _common(
        self, topic: str, operation: str, operation_type: str | None = None
    ) -> dict[str, Value]:
        return {
            "messaging.system": "rocketmq",
            "messaging.operation.name": operation,
            "messaging.operation.type": operation_type or operation,
            "messaging.destination.name": topic,
            "messaging.client.id": self._services.client_id,
        }

    def _consumed(
        self,
        group: str,
        messages: Sequence[Consumed],
        operation: str,
        operation_type: str | None = None,
    ) -> dict[str, Value]:
        """Return what is said of messages of one topic; without messages, of their group."""
        topic = messages[0].topic if messages else ""
        found = self._common(topic, operation, operation_type)
        found["messaging.consumer.group.name"] = group
        if not topic:
            del found["messaging.destination.name"]
        queues = {message.queue for message in messages}
        if len(queues) == 1:
            (queue,) = queues
            found["messaging.destination.partition.id"] = f"{queue.broker_name}:{queue.queue_id}"
        if len(messages) > 1 or operation == "receive":
            found["messaging.batch.message_count"] = len(messages)
        if len(messages) == 1:
            found["messaging.message.id"] = messages[0].msg_id
            specific = _of_properties(messages[0].properties)
        else:
            specific = {}
        specific["client_group"] = group
        member = self._services.members.get(group)
        data = None if member is None else member.consumer_data()
        if data is not None:
            specific["consumption_model"] = data.message_model.lower()
        return found | self._specific(specific)

    def _specific(self, values: Mapping[str, Value]) -> dict[str, Value]:
        found = dict(values)
        namespace = self._services.config.namespace
        if namespace:
            found["namespace"] = namespace
        return {prefix + name: found[name] for prefix in self._prefixes for name in found}


def prefixes(opt_in: str) -> list[str]:
    """Return the prefixes of RocketMQ's attributes that the program asks for.

    `messaging` takes the newer names, `messaging/dup` both, anything else the older ones.
    """
    wanted = {word.strip() for word in opt_in.split(",")}
    if "messaging/dup" in wanted:
        return [PREFIX, STABLE_PREFIX]
    return [STABLE_PREFIX] if "messaging" in wanted else [PREFIX]


def server_attributes(address: str) -> dict[str, Value]:
    """Return host and port of `host:port`; nothing for an unknown address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return {}
    return {"server.address": host.strip("[]"), "server.port": int(port)}


def error_type(error: BaseException) -> str:
    """Return the broker's code by name, or the class of the error."""
    if isinstance(error, BrokerError):
        try:
            return ResponseCode(error.code).name
        except ValueError:
            return str(error.code)
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    # Users import the SDK's errors from there, whichever room declares them.
    ours = vars(errors).get(kind.__qualname__) is kind
    return f"{errors.__name__ if ours else kind.__module__}.{kind.__qualname__}"


def _of_message(context: SendContext) -> dict[str, Value]:
    """Return RocketMQ's own attributes of a send, without prefix."""
    found: dict[str, Value] = {"client_group": context.group}
    if len(context.messages) != 1:
        return found
    message = context.messages[0]
    found["message.type"] = _message_type(context, message)
    if message.tags:
        found["message.tag"] = message.tags
    if message.keys:
        found["message.keys"] = message.keys.split()
    if message.sharding_key:
        found["message.group"] = message.sharding_key
    if message.delay_level:
        found["message.delay_time_level"] = message.delay_level
    if message.deliver_at is not None:
        found["message.delivery_timestamp"] = int(message.deliver_at.timestamp() * 1000)
    return found


def _message_type(context: SendContext, message: Message) -> MessageType:
    if context.kind == "half":
        return "transaction"
    if message.delay_level or message.delay is not None or message.deliver_at is not None:
        return "delay"
    return "fifo" if message.sharding_key else "normal"


def _of_properties(properties: Mapping[str, str]) -> dict[str, Value]:
    """Return RocketMQ's own attributes of a stored message, without prefix."""
    found: dict[str, Value] = {}
    if names.TAGS in properties:
        found["message.tag"] = properties[names.TAGS]
    if names.KEYS in properties:
        found["message.keys"] = properties[names.KEYS].split()
    if names.SHARDING_KEY in properties:
        found["message.group"] = properties[names.SHARDING_KEY]
    return found


def _context_of(message: Consumed) -> Context:
    """Return the context that travelled with the message, or an empty one."""
    return propagate.extract(message.properties, context=Context())


def _links(messages: Sequence[Consumed]) -> list[Link]:
    """Return a link to the context of each message that has one."""
    found: list[Link] = []
    for message in messages:
        origin = span_of(_context_of(message)).get_span_context()
        if origin.is_valid:
            found.append(Link(origin, {"messaging.message.id": message.msg_id}))
    return found


def _fail(span: Span, error: BaseException | None) -> None:
    if error is None or not span.is_recording():
        return
    kind = error_type(error)
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, kind))
