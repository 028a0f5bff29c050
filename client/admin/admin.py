"""Admin: topics, groups, offsets, messages and brokers of a cluster.

    async with Admin(namesrv_addr="127.0.0.1:9876") as admin:
        await admin.create_topic("orders", queues=4)
        print((await admin.progress("billing")).lag)

Works on SkylarkMQ and on Apache RocketMQ. Every call asks the name server who serves what now, and
speaks to masters; nothing is cached, no group is joined.
"""

from __future__ import annotations

from typing import Final

from skylarkmq.client.admin.groups import GroupAdmin
from skylarkmq.client.admin.messages import MessageAdmin
from skylarkmq.client.errors import IllegalState
from skylarkmq.client.instance import Client, OnClient
from skylarkmq.client.wire.api_admin import AdminApi

TIMEOUT_S: Final = 5.0


class Admin(GroupAdmin, MessageAdmin, OnClient):
    """Administers a cluster. One loop; any number of tasks may use it at the same time.

    Calls over several brokers end with the first error once those under way have ended. Cancelled,
    a call that changes something may have changed it on some of the brokers.
    """

    def __init__(
        self,
        *,
        client: Client | None = None,
        namesrv_addr: str | None = None,
        timeout: float = TIMEOUT_S,
    ) -> None:
        """Take the settings; nothing is connected before `start`.

        Args:
            client: shared with producers and consumers.
            namesrv_addr: in place of `client`: name servers (default as for Client) for a client
                of this object's own.
            timeout: seconds for each request to a broker or a name server.
        """
        if timeout <= 0:
            raise ValueError(f"timeout is above 0, not {timeout}")
        OnClient.__init__(self, client, namesrv_addr)
        self._stopped = False
        super().__init__(self._client, timeout)

    async def start(self) -> None:
        """Connect to a name server; does nothing when started.

        Raises:
            ConnectionFailed: no name server can be reached.
            IllegalState: stopped before.
        """
        if self._stopped:
            raise IllegalState("the admin has stopped")
        await self._client.start()
        self._calls = AdminApi(self._services.remoting, self._timeout_s)

    async def stop(self) -> None:
        """Close the connections, unless the client is shared."""
        self._stopped = True
        self._calls = None
        await self._stop_own_client()
