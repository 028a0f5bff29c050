"""Administration of the broker itself: its configuration (25, 26) and its figures (28).

Unlike RocketMQ, the configuration is changed by peers on this machine alone, as long as there is no
access control: its change was the road of command execution in RocketMQ's past. Whoever connects
through a proxy on this machine counts as such a peer.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(updateBrokerConfig, getBrokerConfig, getBrokerRuntimeInfo)
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Coroutine
from typing import Any, Final

from skylarkmq.broker.config.live_config import FixedKeyError, LiveConfig
from skylarkmq.broker.config.properties_file import PropertiesError, read_properties
from skylarkmq.broker.metrics.runtime_info import RuntimeInfo
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.router import Handler
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.common.files import Files
from skylarkmq.common.worker import Worker
from skylarkmq.protocol.bodies.route import KVTable
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.protocol.headers.topic import GetBrokerConfigResponseHeader
from skylarkmq.protocol.record import read_record
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.upkeep.cleaning import Spaces, measure

NO_TIME: Final = -1
UPDATE_SIZE_MAX: Final = 64 << 10
"""Bytes of properties in one request."""


class AdminBrokerProcessor:
    """Serves administrators of the broker. Loop thread."""

    def __init__(
        self,
        live_config: LiveConfig,
        info: RuntimeInfo,
        store: MessageStore,
        files: Files,
        worker: Worker,
    ) -> None:
        """Take what is administered.

        Args:
            worker: measures the disk.
        """
        self._live = live_config
        self._info = info
        self._store = store
        self._files = files
        self._worker = worker

    def handlers(self) -> dict[int, Handler]:
        """The codes that this processor answers."""
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.update_config,
            RequestCode.GET_BROKER_CONFIG: self.get_config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.get_runtime_info,
        }

    def update_config(
        self, connection: Connection, request: RemotingCommand
    ) -> Coroutine[Any, Any, RemotingCommand]:
        """Change keys that may change while the broker runs (25); the body holds properties."""
        if not is_local(connection.remote_address):
            raise RemoteProtocolError(
                ResponseCode.NO_PERMISSION,
                "the configuration is changed from the broker's own machine alone, as there is no "
                "access control; use 127.0.0.1, or set the key where the broker is started",
            )
        if len(request.body) > UPDATE_SIZE_MAX:
            raise _refused(f"the body has {len(request.body)} bytes, {UPDATE_SIZE_MAX} are allowed")
        written: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def done(why: str) -> None:
            if not written.done():
                written.set_result(why)

        try:
            texts = {item.key: item.value for item in read_properties(request.body)}
            self._live.update(texts, done)
        except PropertiesError as error:
            raise _refused(f"the body is no properties text: {error}") from error
        except ConfigError as error:
            why = f"{shown(error.key)}={shown(error.value)}: {error.cure}"
            if isinstance(error, FixedKeyError):
                raise RemoteProtocolError(ResponseCode.NO_PERMISSION, why) from error
            raise _refused(why) from error
        return self._answer_when_written(request, written)

    @staticmethod
    async def _answer_when_written(
        request: RemotingCommand, written: asyncio.Future[str]
    ) -> RemotingCommand:
        return request.reply(ResponseCode.SUCCESS, await written or None)

    def get_config(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer every key with its value, but for secrets (26)."""
        version = encode_body(self._live.version).decode()
        text = "".join(f"{key}={value}\n" for key, value in self._live.rows())
        fields = encode_fields(GetBrokerConfigResponseHeader(version=version))
        return request.reply(ResponseCode.SUCCESS, ext_fields=fields, body=text.encode())

    async def get_runtime_info(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Answer the broker's figures (28)."""
        spaces = await self._measure()
        table = self._info.table(spaces, await self._earliest_ms())
        return request.reply(ResponseCode.SUCCESS, body=encode_body(KVTable(table=table)))

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

    async def _earliest_ms(self) -> int:
        read: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def done(record: bytes | None) -> None:
            if not read.done():
                read.set_result(record)

        self._store.read_record(self._store.commit_log.min_offset, done)
        record = await read
        if record is None:
            return NO_TIME
        return read_record(record, 0, check_crc=False).store_timestamp


def is_local(remote_address: str) -> bool:
    """Whether a peer, `host:port`, is on this machine by a loopback address."""
    host = remote_address.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _refused(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)
