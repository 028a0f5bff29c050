"""Code 46: a consumer asks whether its filter will do, before it starts.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/ClientManageProcessor.java
(checkClientConfig)
"""

from __future__ import annotations

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.filter.tag_filter import is_tag_type
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.router import Handler
from skylarkmq.broker.processor.pull_subscription import compile_subscription, no_filter
from skylarkmq.protocol.bodies.group import CheckClientRequestBody
from skylarkmq.protocol.bodies.text import decode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand


class CheckClientProcessor:
    """Compiles expressions for those who ask; keeps nothing. Loop thread."""

    def __init__(self, config: BrokerConfig) -> None:
        self._enabled = config.enable_property_filter

    def handlers(self) -> dict[int, Handler]:
        """The code that this processor answers."""
        return {RequestCode.CHECK_CLIENT_CONFIG: self.handle}

    def handle(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Say whether the subscription can be served: 1 when filters are off, 23 what is wrong."""
        data = decode_body(CheckClientRequestBody, request.body).subscription_data
        if not is_tag_type(data.expression_type):
            if not self._enabled:
                raise no_filter(data.expression_type)
            compile_subscription(data.expression_type, data.sub_string)
        return request.reply(ResponseCode.SUCCESS)
