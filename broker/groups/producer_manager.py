"""Who produces: the clients of each producer group, for the questions a broker asks of them.

Nobody is told of changes. Loop thread.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../client/ProducerManager.java
"""

from __future__ import annotations

import logging

from skylarkmq.broker.groups.memberships import ClientChannelInfo, Member, Memberships
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.codes import LanguageCode
from skylarkmq.protocol.flags import CLIENT_INNER_PRODUCER_GROUP

log = logging.getLogger(__name__)


class ProducerManager(Memberships):
    """The producer groups that have a client here."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        # The last connection that a client sent a heartbeat over, by its id.
        self._by_client_id: dict[str, Member] = {}
        self._client_ids: dict[Member, str] = {}

    def find_client(self, client_id: str) -> Member | None:
        """Return the newest connection of a client of any group, None when it is not here."""
        return self._by_client_id.get(client_id)

    def register(
        self,
        connection: Member,
        client_id: str,
        language: LanguageCode,
        version: int,
        group: str,
    ) -> None:
        """Take in what one heartbeat says of one group; a closed connection is not taken in."""
        if connection.closed:
            return
        if self._join(connection, group, client_id, language, version):
            _log(group, "%s joins from %s", client_id, connection.remote_address)
        if self._client_ids.get(connection) != client_id:
            self._forget_id(connection)
            self._client_ids[connection] = client_id
        self._by_client_id[client_id] = connection

    def _left(self, connection: Member, group: str, client: ClientChannelInfo, how: str) -> None:
        _log(group, "%s %s", client.client_id, how)
        if not self.groups_of(connection):
            self._forget_id(connection)

    def _forget_id(self, connection: Member) -> None:
        client_id = self._client_ids.pop(connection, None)
        if client_id is not None and self._by_client_id.get(client_id) is connection:
            del self._by_client_id[client_id]


def _log(group: str, text: str, *values: str) -> None:
    """Log a change; of the group that every Java client is in, at the level of debugging alone."""
    level = logging.DEBUG if group == CLIENT_INNER_PRODUCER_GROUP else logging.INFO
    log.log(level, f"producer group %s: {text}", group, *values)
