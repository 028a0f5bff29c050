"""Admin, blocking.

with Admin("127.0.0.1:9876") as admin:
    admin.create_topic("orders", queues=4)
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from skylarkmq.client.admin.admin import TIMEOUT_S
from skylarkmq.client.admin.admin import Admin as AsyncAdmin
from skylarkmq.client.sync.admin_groups import GroupAdmin, OffsetAdmin
from skylarkmq.client.sync.admin_messages import MessageAdmin
from skylarkmq.client.sync.admin_topics import ClusterAdmin, TopicAdmin
from skylarkmq.client.sync.client import Client
from skylarkmq.client.sync.inner import Inner


class Admin(TopicAdmin, ClusterAdmin, GroupAdmin, OffsetAdmin, MessageAdmin):
    """Administers a cluster; `skylarkmq.client.Admin` without await. Any thread."""

    def __init__(self, client: Client | str | None = None, *, timeout: float = TIMEOUT_S) -> None:
        """Take the settings, as the asynchronous one does; `client` is a blocking one."""
        self._owned = not isinstance(client, Client)
        self._client = client if isinstance(client, Client) else Client(client)
        make = self._client.maker(lambda inside: AsyncAdmin(inside, timeout=timeout))
        super().__init__(Inner(self._client.portal, make))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Connect to a name server; does nothing when started."""
        self._inner.start()

    def stop(self) -> None:
        """Close the connections, unless the client is shared."""
        try:
            self._inner.end(lambda it: it.stop())
        finally:
            if self._owned:
                self._client.close()
