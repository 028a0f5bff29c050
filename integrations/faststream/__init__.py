"""A FastStream broker over RocketMQ's protocol.

    from faststream import FastStream
    from skylarkmq.integrations.faststream import RocketMQBroker

    broker = RocketMQBroker("127.0.0.1:9876", group="billing")
    app = FastStream(broker)

    @broker.subscriber("orders")
    @broker.publisher("bills")
    async def bill(order: Order) -> Bill: ...

Applications call it. It adds no thread and no task of its own beside FastStream's: the SDK's
`Producer` and `Consumer` do the work. FastStream's base classes are private to FastStream and
change with its minor releases, so the extra `faststream` pins one. `fastapi.py` has the router
for FastAPI; it is not imported here.
"""

from skylarkmq.client import Sql92, StartFrom, Tag
from skylarkmq.integrations.faststream.broker import RocketMQBroker
from skylarkmq.integrations.faststream.message import RocketMQMessage
from skylarkmq.integrations.faststream.registrator import (
    RocketMQPublisher,
    RocketMQRoute,
    RocketMQRouter,
)
from skylarkmq.integrations.faststream.response import RocketMQPublishCommand, RocketMQResponse
from skylarkmq.integrations.faststream.testing import TestRocketMQBroker

__all__ = [
    "RocketMQBroker",
    "RocketMQMessage",
    "RocketMQPublishCommand",
    "RocketMQPublisher",
    "RocketMQResponse",
    "RocketMQRoute",
    "RocketMQRouter",
    "Sql92",
    "StartFrom",
    "Tag",
    "TestRocketMQBroker",
]
