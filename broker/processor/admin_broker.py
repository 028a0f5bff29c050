"""Administration of the broker itself: its configuration (25, 26).

Unlike RocketMQ, the configuration is changed by peers on this machine alone, as long as there is no
access control: its change was the road of command execution in RocketMQ's past. Whoever connects
through a proxy on this machine counts as such a peer.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(updateBrokerConfig, getBrokerConfig)
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Coroutine
from typing import Any, Final

from skylarkmq.broker.connection import Connection
from skylarkmq.broker.live_config import FixedKeyError, LiveConfig
from skylarkmq.broker.properties_file import PropertiesError, read_properties
from skylarkmq.broker.router import Handler
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.headers.admin import GetBrokerConfigResponseHeader
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.store.config_fields import ConfigError

UPDATE_SIZE_MAX: Final = 64 << 10
"""Bytes of properties in one request."""


class AdminBrokerProcessor:
    """Serves administrators of the broker. Loop thread."""

    def __init__(self, live_config: LiveConfig) -> None:
        self._live = live_config

    def handlers(self) -> dict[int, Handler]:
        """The codes that this processor answers."""
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.update_config,
            RequestCode.GET_BROKER_CONFIG: self.get_config,
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
