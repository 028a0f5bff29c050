"""One client for each settings, process and thread, kept between the tasks of a Spark worker.

Spark runs one task after the other in the same Python process, forked from a daemon: what a task
connected serves the next one. Nothing is opened at import. A client is one thread's, and what was
inherited over a fork connects anew. Connections that were idle for a minute are closed when the
next client is asked for; a worker that does nothing at all keeps them until its broker closes them.
"""

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
    """Return this thread's client for `settings`, made at the first call."""
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
    table = _clients.table
    while table:
        _, client = table.popitem()
        client.close()
