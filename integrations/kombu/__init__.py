"""A Kombu transport over RocketMQ's protocol, and with it Celery.

    import skylarkmq.integrations.kombu      # makes skylarkmq:// known

    app = Celery("shop", broker="skylarkmq://127.0.0.1:9876", backend="rpc://")

Applications import it once, for Kombu has no entry point for transports. `transport.py` is what
Kombu calls. `hub.py` has the connection that a process has to a cluster, `topics.py` says which
AMQP name is which topic.
"""

from kombu.transport import TRANSPORT_ALIASES

from skylarkmq.integrations.kombu.transport import Transport

__all__ = ["Transport"]

TRANSPORT_ALIASES.setdefault("skylarkmq", f"{Transport.__module__}:{Transport.__qualname__}")
