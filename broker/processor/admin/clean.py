"""Cleaning on request: log files that have expired go now, whatever the hour (329).

The answer comes at once; `store/upkeep/cleaning.py` tells what is removed. The queues follow the
log by themselves, and a deleted topic takes its queues along, so the other requests to clean have
nothing to do here.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(deleteExpiredCommitLog)
"""

from __future__ import annotations

import logging

from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.router import Handler
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.store.message_store import MessageStore

log = logging.getLogger(__name__)


class CleanProcessor:
    """Serves administrators who want room. Loop thread."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def handlers(self) -> dict[int, Handler]:
        """The codes that this processor answers."""
        return {RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired_commitlog}

    def delete_expired_commitlog(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Begin to remove expired log files (329)."""
        log.info("%s wants expired log files removed", connection.remote_address)
        self._store.cleaning.clean_now()
        return request.reply(ResponseCode.SUCCESS)
