"""What a task of the sink, or of the job replay, sends with; made in the task, from its options.

Runs in a Spark worker.
"""

from __future__ import annotations

from collections.abc import Callable

from skylarkmq.spark.cluster import BlockingClient, client_for, patiently
from skylarkmq.spark.writing.outgoing import Queue
from skylarkmq.spark.writing.sink_options import SinkOptions
from skylarkmq.spark.writing.window import SendWindow


def task_window(options: SinkOptions) -> tuple[SendWindow, Callable[[str], list[Queue]]]:
    """Return a window over the worker's client, and what finds the queues of a topic.

    The latter waits `retryTimeoutMs` for a name server that is away, as sending waits for brokers;
    it raises as `BlockingClient.write_queues`.
    """
    client = client_for(options.connection)
    window = SendWindow(
        client,
        group=options.producer_group,
        max_in_flight=options.requests_max,
        max_in_flight_bytes=options.unacknowledged_size,
        accepted=options.accepted,
    )
    return window, lambda topic: lasting_write_queues(client, topic)


def lasting_write_queues(client: BlockingClient, topic: str) -> list[Queue]:
    """Return the queues of a topic, trying again while no name server answers."""
    return patiently(
        lambda: client.write_queues(topic),
        client.clock,
        client.settings.retry_timeout_s,
        f"topic {topic}",
    )
