"""Which client serves a task: one of its thread for the same settings, kept from task to task."""

from __future__ import annotations

import threading
from typing import Final

from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.settings import ConnectionSettings

CLIENTS_MAX: Final = 16
"""Settings that one thread keeps clients for; the one used longest ago is closed first."""


class _Clients(threading.local):
    """This thread's clients, the one used last at the end."""

    def __init__(self) -> None:
        self.table: dict[ConnectionSettings, BlockingClient] = {}


_clients: Final = _Clients()


def client_for(settings: ConnectionSettings) -> BlockingClient:
    """Return this thread's client for `settings`, made at the first call.

    Spark runs one task after the other in the same Python process: what a task connected serves
    the next one. A worker that does nothing at all keeps its connections until brokers close them.
    """
    table = _clients.table
    client = table.pop(settings, None) or BlockingClient(settings)
    table[settings] = client
    for other in table.values():
        other.drop_idle()
    if len(table) > CLIENTS_MAX:
        table.pop(next(iter(table))).close()
    return client


def close_all() -> None:
    """Close this thread's clients."""
    while _clients.table:
        _, client = _clients.table.popitem()
        client.close()
