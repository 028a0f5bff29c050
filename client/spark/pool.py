"""One client for each settings, process and thread, kept between the tasks of a Spark worker."""

from __future__ import annotations

from skylarkmq.client.spark.client import BlockingClient
from skylarkmq.client.spark.settings import ConnectionSettings


def client_for(settings: ConnectionSettings) -> BlockingClient:
    """Return this thread's client for `settings`, made at its first call in this process."""
    raise NotImplementedError


def close_all() -> None:
    """Close this thread's clients."""
