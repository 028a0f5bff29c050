"""What a handler can ask for by the type of an argument.

async def handle(body: Order, message: RocketMQMessage, broker: RocketMQBroker) -> None: ...
"""

from typing import Annotated

from faststream import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from skylarkmq.integrations.faststream.broker import RocketMQBroker as Broker
from skylarkmq.integrations.faststream.message import RocketMQMessage as StreamMessage

RocketMQMessage = Annotated[StreamMessage, Context("message")]
RocketMQBroker = Annotated[Broker, Context("broker")]

__all__ = ["ContextRepo", "Logger", "NoCast", "RocketMQBroker", "RocketMQMessage"]
