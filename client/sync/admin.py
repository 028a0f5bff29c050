"""Admin, blocking.

with Admin(namesrv_addr="127.0.0.1:9876") as admin:
    admin.create_topic("orders", queues=4)
"""

from __future__ import annotations

from skylarkmq.client.admin.admin import TIMEOUT_S
from skylarkmq.client.admin.admin import Admin as AsyncAdmin
from skylarkmq.client.sync.admin_groups import GroupAdmin, OffsetAdmin
from skylarkmq.client.sync.admin_messages import MessageAdmin
from skylarkmq.client.sync.admin_topics import ClusterAdmin, TopicAdmin
from skylarkmq.client.sync.client import Client
from skylarkmq.client.sync.on_client import OnClient


class Admin(TopicAdmin, ClusterAdmin, GroupAdmin, OffsetAdmin, MessageAdmin, OnClient[AsyncAdmin]):
    """Administers a cluster; `skylarkmq.client.Admin` without await. Any thread."""

    def __init__(
        self,
        *,
        client: Client | None = None,
        namesrv_addr: str | None = None,
        timeout: float = TIMEOUT_S,
    ) -> None:
        """Take the settings, as the asynchronous one does; `client` is a blocking one."""
        self._stand_on(
            client, namesrv_addr, lambda inside: AsyncAdmin(client=inside, timeout=timeout)
        )

    def start(self) -> None:
        """Connect to a name server; does nothing when started."""
        self._inner.start()

    def stop(self) -> None:
        """Close the connections, unless the client is shared."""
        self._end(lambda it: it.stop())
