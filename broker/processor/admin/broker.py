"""Administration of the broker itself: its configuration (25, 26), its figures (28), and cleaning
on request: log files that have expired go now, whatever the hour (329), and so do files of queues
that hold nothing of the log any more (306).

Unlike RocketMQ, the configuration is changed by peers on this machine alone, as long as there is no
access control: its change was the way of command execution in RocketMQ's past. A peer that
connects through a proxy on this machine counts as local.

The answers to 306 and 329 come at once; `store/upkeep/cleaning.py` tells what is removed. The
queues follow the log by themselves, too. Unlike RocketMQ, whose 306 removes a queue whose messages
have all expired, so that it begins at offset 0 again, a queue keeps its offsets.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(updateBrokerConfig, getBrokerConfig, getBrokerRuntimeInfo, deleteExpiredCommitLog,
cleanExpiredConsumeQueue)
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
from collections.abc import Coroutine
from typing import Any, Final

from skylarkmq.broker.config.properties_file import PropertiesError, read_properties
from skylarkmq.broker.metrics.runtime_info import RuntimeInfo
from skylarkmq.broker.net.handlers import Answer, Call, NoFields, handles, refused
from skylarkmq.broker.requests.processor import Context, Processor
from skylarkmq.broker.tables.live_config import FixedKeyError, LiveConfig
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.common.files import Files
from skylarkmq.common.worker import Worker
from skylarkmq.protocol.bodies.route import KVTable
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import shown
from skylarkmq.protocol.headers.topic import GetBrokerConfigResponseHeader
from skylarkmq.store.upkeep.disk_watch import Spaces, measure

log = logging.getLogger(__name__)

NO_TIME: Final = -1
UPDATE_SIZE_MAX: Final = 64 << 10
"""Bytes of properties in one request."""
FOR_TOOLS: Final = {
    "clientCallbackExecutorThreads": str(os.cpu_count() or 1),  # taken for the number of CPUs
    "filterServerNums": "0",
    "useTLS": "false",  # of the broker as a client
}
"""Keys that are none here; without them `exportConfigs` ends in an error."""


class AdminBrokerProcessor(Processor):
    """Serves administrators of the broker. Loop thread."""

    def __init__(
        self,
        context: Context,
        live_config: LiveConfig,
        info: RuntimeInfo,
        files: Files,
        worker: Worker,
    ) -> None:
        """Take what is administered; `worker` measures the disk."""
        super().__init__(context)
        self._live = live_config
        self._info = info
        self._files = files
        self._worker = worker

    @handles(RequestCode.UPDATE_BROKER_CONFIG, NoFields)
    def update_config(self, call: Call[NoFields]) -> Coroutine[Any, Any, RemotingCommand]:
        """Change keys that may change while the broker runs (25); the body holds properties."""
        if not self._config.acl_enable and not is_local(call.remote_address):
            raise refused(
                "the configuration is changed from the broker's own machine alone, as there is no "
                "access control; use 127.0.0.1, or set the key where the broker is started",
                ResponseCode.NO_PERMISSION,
            )
        body = call.request.body
        if len(body) > UPDATE_SIZE_MAX:
            raise refused(f"the body has {len(body)} bytes, {UPDATE_SIZE_MAX} are allowed")
        try:
            texts = {item.key: item.value for item in read_properties(body)}
            return self._answer_when_written(call.request, self._live.update(texts))
        except PropertiesError as error:
            raise refused(f"the body is no properties text: {error}") from error
        except FixedKeyError as error:
            raise refused(_told(error), ResponseCode.NO_PERMISSION) from error
        except ConfigError as error:
            raise refused(_told(error)) from error

    @staticmethod
    async def _answer_when_written(
        request: RemotingCommand, written: Coroutine[Any, Any, str]
    ) -> RemotingCommand:
        return request.reply(ResponseCode.SUCCESS, await written or None)

    @handles(RequestCode.GET_BROKER_CONFIG, NoFields)
    def get_config(self, call: Call[NoFields]) -> Answer:
        """Answer every key with its value, but for secrets (26)."""
        version = encode_body(self._live.version).decode()
        rows = {**FOR_TOOLS, **dict(self._live.rows())}
        text = "".join(f"{key}={value}\n" for key, value in sorted(rows.items()))
        return Answer(text.encode(), GetBrokerConfigResponseHeader(version=version))

    @handles(RequestCode.GET_BROKER_RUNTIME_INFO, NoFields)
    async def get_runtime_info(self, call: Call[NoFields]) -> Answer:
        """Answer the broker's figures (28)."""
        spaces = await self._measure()
        return Answer(KVTable(table=self._info.table(spaces, await self._info.earliest.measure())))

    async def _measure(self) -> Spaces:
        measured: asyncio.Future[Spaces] = asyncio.get_running_loop().create_future()
        paths = self._store.paths

        def done(spaces: Spaces | None, _: BaseException | None) -> None:
            if not measured.done():
                measured.set_result(spaces or Spaces(None, None))

        self._worker.submit(
            lambda: measure(self._files, paths.commit_log, paths.consume_queue, paths.root), done
        )
        return await measured

    @handles(RequestCode.DELETE_EXPIRED_COMMITLOG, NoFields)
    def delete_expired_commitlog(self, call: Call[NoFields]) -> Answer:
        """Begin to remove expired log files (329)."""
        log.info("%s wants expired log files removed", call.remote_address)
        self._store.cleaning.clean_now()
        return Answer()

    @handles(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, NoFields)
    def clean_expired_queues(self, call: Call[NoFields]) -> Answer:
        """Begin to remove expired files of queues (306)."""
        log.info("%s wants expired files of queues removed", call.remote_address)
        self._store.cleaning.clean_queues_now()
        return Answer()


def is_local(remote_address: str) -> bool:
    """Return whether a peer, `host:port`, connects by a loopback address."""
    host = remote_address.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _told(error: ConfigError) -> str:
    return f"{shown(error.key)}={shown(error.value)}: {error.cure}"
