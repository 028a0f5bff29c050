# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
"""A router for FastAPI: subscribers beside the paths of a web application.

    router = RocketMQRouter("127.0.0.1:9876", group="shop")

    @router.subscriber("orders")
    async def order(body: Order, database: Annotated[Database, Depends(database)]) -> None: ...

    app = FastAPI()
    app.include_router(router)

The broker starts and stops with the application; `router.broker` publishes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from fastapi import Depends
from fastapi.datastructures import Default
from faststream._internal.context import ContextRepo as ContextRepository
from faststream._internal.fastapi.context import Context, ContextRepo, Logger
from faststream._internal.fastapi.router import StreamRouter

from skylarkmq.integrations.faststream.broker import RocketMQBroker
from skylarkmq.integrations.faststream.publisher import TopicPublisher

RESPONSE: Final[dict[str, Any]] = {
    "response_model": Default(None),
    "response_model_include": None,
    "response_model_exclude": None,
    "response_model_by_alias": True,
    "response_model_exclude_unset": False,
    "response_model_exclude_defaults": False,
    "response_model_exclude_none": False,
}
"""FastAPI's own defaults."""

__all__ = ["Context", "ContextRepo", "Depends", "Logger", "RocketMQRouter"]


class RocketMQRouter(StreamRouter[Any]):
    """An APIRouter with a RocketMQBroker."""

    broker_class = RocketMQBroker
    broker: RocketMQBroker

    def __init__(
        self,
        namesrv_addr: str | None = None,
        *,
        context: ContextRepository | None = None,
        **settings: Any,
    ) -> None:
        """Take the settings of `RocketMQBroker` and of `fastapi.APIRouter`."""
        super().__init__(namesrv_addr, context=context, **settings)

    def subscriber(  # type: ignore[override]
        self, topic: str, *, dependencies: Iterable[Any] = (), **settings: Any
    ) -> Any:
        """Do as `RocketMQBroker.subscriber`; FastAPI's `Depends` and `response_model` work."""
        return super().subscriber(topic, dependencies=dependencies, **{**RESPONSE, **settings})

    def publisher(  # type: ignore[override]
        self, topic: str, **settings: Any
    ) -> TopicPublisher:
        """Do as `RocketMQBroker.publisher`."""
        return self.broker.publisher(topic, **settings)
