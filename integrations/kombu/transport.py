# pyright: basic, reportIncompatibleMethodOverride=false, reportAttributeAccessIssue=false
# Kombu has no types.
# mypy: disable-error-code="no-untyped-call, union-attr, override, assignment"
"""What Kombu calls: a transport and its channels.

    supported        direct, topic and fanout exchanges; acknowledgements; reject and requeue;
                     prefetch; Celery's countdown and eta; remote control, events, `rpc://` results
                     priorities of queues that are declared with `x-max-priority`
    not supported    message and queue time to live

`drain_events` waits until a source has something; nothing is polled.
"""

from __future__ import annotations

import logging
import threading
from datetime import datetime
from queue import Empty
from typing import Any, Final

from kombu.transport import base, virtual
from kombu.utils.json import dumps
from kombu.utils.scheduling import FairCycle

from skylarkmq import __version__
from skylarkmq.client import Credentials
from skylarkmq.client.errors import RocketMQError
from skylarkmq.integrations.kombu.hub import QUEUES, Declared, Held, Hub, join, leave
from skylarkmq.integrations.kombu.topics import EXCHANGE, encoded, exchange_topic, topic_of

log = logging.getLogger(__name__)

PORT: Final = 9876
PRIORITY_MAX: Final = 255
"""As RabbitMQ's: a level is a queue of the topic."""
LOOK_S: Final = 0.5
"""How long a connection waits for messages before Kombu may look at its own time limit."""
GET_WAIT_S: Final = 1.0
"""How long `basic_get` waits for the first message of a queue that was not consumed here before."""


class DeliveredMessage(virtual.Message):
    """A message with the place that it came from."""

    def __init__(self, payload: Any, channel: Any = None, **settings: Any) -> None:
        self.held: Held | None = payload if isinstance(payload, Held) else None
        content = payload.payload if isinstance(payload, Held) else payload
        super().__init__(content, channel=channel, **settings)
        redelivered = bool(content.get("redelivered"))
        self.delivery_info = {**self.delivery_info, "redelivered": redelivered}


class Deliveries(virtual.QoS):
    """The messages of a channel that are not acknowledged yet."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge one."""
        if (held := self._taken_out(delivery_tag)) is not None:
            held.ack()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give one up, or hand it out again."""
        if (held := self._taken_out(delivery_tag)) is not None:
            if requeue:
                held.requeue()
            else:
                held.reject()

    def _taken_out(self, delivery_tag: str) -> Held | None:
        """Free a message's place, whatever becomes of it; None when that was done before."""
        delivered: Any = self._delivered
        done: Any = self._dirty
        message: DeliveredMessage | None = delivered.get(delivery_tag)
        if message is None or delivery_tag in done:
            return None
        super().ack(delivery_tag)
        return message.held


class Channel(virtual.Channel):
    """A channel; the hub of its connection has the queues."""

    Message = DeliveredMessage
    QoS = Deliveries
    supports_fanout = True

    def __init__(self, connection: Any, **settings: Any) -> None:
        super().__init__(connection, **settings)
        self._hub: Hub = connection.hub
        self._unacked: set[str] = set()  # queues whose messages need no acknowledgement
        self._opened: dict[str, str] = {}

    # Declaring

    def prepare_queue_arguments(self, arguments: Any, **settings: Any) -> Any:
        """Return a queue's arguments with what it says by names of its own, as `max_priority`."""
        return base.to_rabbitmq_queue_arguments(arguments, **settings)

    def _new_queue(self, queue: str, **settings: Any) -> None:
        arguments = settings.get("arguments") or {}
        levels = min(int(arguments.get("x-max-priority") or -1), PRIORITY_MAX) + 1
        transient = bool(settings.get("auto_delete") or settings.get("exclusive"))
        known = self._hub.declared.setdefault(queue, Declared(transient))
        if known.transient:
            self._hub.source(queue)  # listens from now on, not from its first consumer on
        else:
            self._hub.ensure_topic(topic_of(queue), levels)

    def _has_queue(self, queue: str, **_settings: Any) -> bool:
        return queue in self._hub.declared or self._hub.has_queue(queue)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **settings: Any,
    ) -> None:
        """Let a queue have messages of an exchange."""
        super().queue_bind(queue, exchange, routing_key, arguments, **settings)
        name = exchange or "amq.direct"
        kind = self.typeof(name).type
        known = self._hub.declared.setdefault(queue, Declared(transient=False))
        if not known.transient:
            if kind == "fanout":
                self._hub.bind_group(queue, name)
                known.fanouts.add(name)
        elif kind == "topic":
            match: Any = self.typeof(name)
            pattern = match.key_to_pattern(routing_key)
            self._hub.source(queue).read(
                name,
                None,
                lambda payload: bool(match._match(pattern, _routing_key(payload))),
                pattern,
            )
        else:
            self._hub.source(queue).read(name, routing_key if kind == "direct" else None)

    def _queue_bind(self, *_binding: Any) -> None:
        """Kombu asks for it beside `queue_bind`."""

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any
    ) -> None:
        """Delete a queue with its messages."""
        if if_empty and self._size(queue):
            return
        self.state.queue_bindings_delete(queue)
        for declared in self.state.exchanges.values():
            declared["table"] = [bound for bound in declared["table"] if bound[2] != queue]
        self._hub.delete(queue)

    def _size(self, queue: str) -> int:
        return self._hub.size(queue)

    def _purge(self, queue: str) -> int:
        return self._hub.purge(queue)

    # Publishing

    def basic_publish(self, message: Any, exchange: str, routing_key: str, **settings: Any) -> None:
        """Store a message where the consumers of its queues find it."""
        self._inplace_augment_message(message, exchange, routing_key)
        for topic, tag in self._places(exchange, routing_key):
            self._store(topic, message, tag)

    def _put(self, queue: str, message: Any, **_settings: Any) -> None:
        self._store(topic_of(queue), message, None)

    def _places(self, exchange: str, routing_key: str) -> list[tuple[str, str | None]]:
        """Return the topics, each with a tag, that a message goes to."""
        if exchange:
            if self.typeof(exchange).type == "fanout":
                return [(exchange_topic(exchange), None)]
            queues = [
                queue
                for queue in self._lookup(exchange, routing_key)
                if queue and not self._hub.declared.get(queue, Declared(transient=False)).transient
            ]
        else:
            queues = [routing_key] if self._hub.has_queue(routing_key) else []
        if queues:
            return [(topic_of(queue), None) for queue in queues]
        return [(exchange_topic(exchange), encoded(routing_key) or None)]

    def _store(self, topic: str, message: Any, tag: str | None) -> None:
        self._hub.ensure_topic(topic)
        task_id = message["properties"].get("correlation_id") or ""
        keys = (task_id,) if task_id and not any(map(str.isspace, task_id)) else ()
        priority = _priority(message)
        if priority and (topic.startswith(EXCHANGE) or not self._hub.has_priorities(topic)):
            priority = 0
        self._hub.send_at(
            topic, dumps(message), _eta(message), tags=tag, keys=keys, priority=priority or None
        )

    # Consuming

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **settings: Any
    ) -> None:
        """Begin to consume a queue."""
        if no_ack:
            self._unacked.add(queue)
        self._hub.use(queue)
        self._opened[consumer_tag] = queue
        super().basic_consume(queue, no_ack, callback, consumer_tag, **settings)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Consume no more; what was taken may still be acknowledged."""
        super().basic_cancel(consumer_tag)
        queue = self._opened.pop(consumer_tag, None)
        if queue is not None:
            self._hub.leave(queue)

    def basic_get(self, queue: str, no_ack: bool = False, **settings: Any) -> Any:
        """Return the next message, None without one."""
        source = self._hub.source(queue)
        source.wait_first(GET_WAIT_S)
        message = super().basic_get(queue, no_ack, **settings)
        if message is not None and no_ack and queue not in self._unacked:
            message.held.ack()
        return message

    def _get(self, queue: str, timeout: float | None = None) -> Held:
        held = self._hub.source(queue).take()
        if held is None:
            raise Empty
        if queue in self._unacked:
            held.ack()
        return held

    def _restore(self, message: Any) -> None:
        if message.held is not None:
            message.held.requeue()


class WaitingCycle(FairCycle):
    """Kombu's turns over channels; where none has a message it waits until one comes."""

    arrived: threading.Event

    def get(self, callback: Any, timeout: float | None = None, **settings: Any) -> Any:
        """Return what one channel does with its next message.

        Raises:
            Empty: none came; Kombu looks at its time limit and asks again.
        """
        self.arrived.clear()
        try:
            return super().get(callback, timeout=timeout, **settings)
        except Empty:
            wait_s = LOOK_S if timeout is None else min(timeout, LOOK_S)
            if not self.arrived.wait(wait_s):
                raise
            return super().get(callback, timeout=timeout, **settings)


class Transport(virtual.Transport):
    """Kombu's transport `skylarkmq://[access_key:secret_key@]host[:9876][/namespace]`.

    Its `transport_options`:

        namesrv_addr    several name servers, `a:9876;b:9876`, in place of the URL's
        queues          of topics that are made here, on each broker; default 8
        consumer        settings of `skylarkmq.client.sync.Consumer`, as `{"prefetch": 100}`
        client          further settings of `skylarkmq.client.sync.Client`
    """

    Channel = Channel
    Cycle = WaitingCycle
    default_port = PORT
    polling_interval = None
    driver_type = "rocketmq"
    driver_name = "skylarkmq"
    connection_errors = (*base.Transport.connection_errors, RocketMQError)
    recoverable_connection_errors = connection_errors
    implements = base.Transport.implements.extend(
        asynchronous=False,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
        heartbeats=False,
    )

    hub: Hub

    def __init__(self, client: Any, **settings: Any) -> None:
        super().__init__(client, **settings)
        cycle: Any = self.cycle
        self.arrived = cycle.arrived = threading.Event()
        self.polling_interval = None
        self._joined = False

    def driver_version(self) -> str:
        """Return SkylarkMQ's version."""
        return __version__

    def establish_connection(self) -> Any:
        """Connect, or share the connection that this process has.

        Raises:
            RocketMQError: no name server can be reached.
        """
        if not self._joined:
            settings, options = self._settings(), self.client.transport_options
            key = tuple(
                # An account's text has no secret, and another secret is another connection.
                (name, value if isinstance(value, Credentials) else repr(value))
                for name, value in sorted(settings.items())
            )
            queues = options.get("queues", QUEUES)
            consumer = options.get("consumer", {})
            self.hub = join((key, queues, repr(consumer)), lambda: Hub(settings, queues, consumer))
            self._joined = True
            self.state = self.hub.state
            self.hub.wakes(self.arrived)
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Close the channels; the last connection of this process closes the SDK's."""
        super().close_connection(connection)
        if self._joined:
            self._joined = False
            leave(self.hub)

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Hand the next message to its consumer."""
        self.hub.check()
        super().drain_events(connection, timeout=timeout)

    def verify_connection(self, connection: Any) -> bool:
        """Return whether it is open."""
        return self._joined

    def _settings(self) -> dict[str, Any]:
        """Return the settings of the SDK's client."""
        info, options = self.client, self.client.transport_options
        host = f"{info.hostname or '127.0.0.1'}:{info.port or PORT}"
        settings: dict[str, Any] = {
            "namesrv_addr": options.get("namesrv_addr", host),
            "start_timeout": info.connect_timeout or 0,  # then Kombu's own tries and URLs follow
        }
        if info.virtual_host not in (None, "", "/"):
            settings["namespace"] = info.virtual_host.strip("/")
        if info.userid:
            settings["credentials"] = Credentials(info.userid, info.password or "")
        if info.ssl:
            settings["ssl"] = True
        return settings | dict(options.get("client", {}))


def _routing_key(payload: Any) -> str:
    return str(payload["properties"]["delivery_info"].get("routing_key") or "")


def _priority(message: Any) -> int:
    """Return a message's priority, 0 without one."""
    try:
        return min(max(0, int(message["properties"].get("priority") or 0)), PRIORITY_MAX)
    except (TypeError, ValueError):
        return 0


def _eta(message: Any) -> datetime | None:
    """Return when Celery wants a task to run, if it says so with its time zone."""
    text = (message.get("headers") or {}).get("eta")
    if not isinstance(text, str):
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.utcoffset() is not None else None
