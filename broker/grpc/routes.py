"""Routes: which queues a topic has and where, for producers and consumers (QueryRoute), and what a
push consumer is to receive from (QueryAssignment).

    queues        those with an id below both counts may be read and written; the rest of the larger
                  count follows
    types         what the topic's attribute `message.type` says; without it all but PRIORITY; all
                  where other brokers alone have the topic, for they check it
    endpoints     of this broker's queues see `endpoints.py`, of other brokers' `other_brokers.py`;
                  with grpcProxyMode=CLUSTER this broker's for all
    assignments   of an orderly group each queue; of others one for each broker, with the id -1,
                  which is any queue of it: nothing is divided among clients

A topic that does not exist is made by the question where autoCreateTopicEnable and, because a
question does not say who asks, grpcAutoCreateTopicEnable are on.

Source: apache/rocketmq@rocketmq-all-5.3.3 proxy/.../grpc/v2/route/RouteActivity.java
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple

from skylarkmq.broker.access.accounts import PUB, Kind, need_of
from skylarkmq.broker.grpc.calls import OK, Call, RpcHandlers, RpcRefused, rpc
from skylarkmq.broker.grpc.endpoints import OwnEndpoints, endpoints, place_of
from skylarkmq.broker.grpc.names import group_of, topic_of
from skylarkmq.broker.grpc.other_brokers import OtherBroker
from skylarkmq.broker.requests.processor import Context
from skylarkmq.broker.tables.persist import durable
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.flags import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    DLQ_GROUP_TOPIC_PREFIX,
    MASTER_ID,
    RETRY_GROUP_TOPIC_PREFIX,
    is_readable,
    is_writeable,
)
from skylarkmq.protocol.topic_attributes import message_types_of
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code

ANY_QUEUE: Final = -1
_TYPES: Final = {
    "NORMAL": schema_pb2.NORMAL,
    "FIFO": schema_pb2.FIFO,
    "DELAY": schema_pb2.DELAY,
    "TRANSACTION": schema_pb2.TRANSACTION,
    "PRIORITY": schema_pb2.PRIORITY,
}
ClientView = Callable[[TopicConfig], TopicConfig]
Others = Callable[[str], Awaitable[list[OtherBroker]]]


async def _nobody(topic: str) -> list[OtherBroker]:
    return []


class Place(NamedTuple):
    """The queues of a topic on one broker, and where clients find them."""

    broker: schema_pb2.Broker
    read: int  # queues that may be read, 0 without the permission
    write: int

    @classmethod
    def of(cls, broker: schema_pb2.Broker, perm: int, read: int, write: int) -> Place:
        """Return what a permission leaves of two counts."""
        return cls(broker, read if is_readable(perm) else 0, write if is_writeable(perm) else 0)

    def queues(self) -> Iterator[tuple[int, schema_pb2.Permission]]:
        """Yield each queue's id, and what may be done with it."""
        both, most = sorted((self.read, self.write))
        rest = schema_pb2.READ if self.read > self.write else schema_pb2.WRITE
        for queue_id in range(most):
            yield queue_id, schema_pb2.READ_WRITE if queue_id < both else rest


class RouteRpcs(RpcHandlers):
    """Answers where topics are. Loop thread."""

    def __init__(
        self, context: Context, own: OwnEndpoints, client_view: ClientView, others: Others = _nobody
    ) -> None:
        """Make it.

        Args:
            client_view: returns a topic as clients may see it: its permission may be withheld.
            others: finds a topic's queues on other brokers.
        """
        self._config = context.config
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._consumers = context.consumers
        self._own = own
        self._client_view = client_view
        self._others = others

    @rpc("QueryRoute", schema_pb2.QueryRouteRequest, schema_pb2.QueryRouteResponse)
    async def query_route(
        self, call: Call, request: schema_pb2.QueryRouteRequest
    ) -> schema_pb2.QueryRouteResponse:
        """Return a topic's queues.

        Raises:
            RpcRefused: ILLEGAL_TOPIC, ILLEGAL_ACCESS_POINT, TOPIC_NOT_FOUND, or FORBIDDEN: nothing
                of the topic may be read or written.
        """
        topic = topic_of(request.topic)
        answer = schema_pb2.QueryRouteResponse(status=OK)
        places = await self._places(call, topic, request.endpoints, may_make=True)
        types = self._types(topic)
        for place in places:
            for queue_id, permission in place.queues():
                answer.message_queues.add(
                    topic=request.topic,
                    id=queue_id,
                    permission=permission,
                    broker=place.broker,
                    accept_message_types=types,
                )
        if not answer.message_queues:
            raise RpcRefused(Code.FORBIDDEN, f"no queue of topic {topic} may be read or written")
        return answer

    @rpc(
        "QueryAssignment",
        schema_pb2.QueryAssignmentRequest,
        schema_pb2.QueryAssignmentResponse,
    )
    async def query_assignment(
        self, call: Call, request: schema_pb2.QueryAssignmentRequest
    ) -> schema_pb2.QueryAssignmentResponse:
        """Return what a member of a group is to receive from.

        Raises:
            RpcRefused: as `query_route`; ILLEGAL_CONSUMER_GROUP; FORBIDDEN: no queue may be read.
            RemoteProtocolError: NO_PERMISSION; others consume the group in another way.
        """
        topic, group = topic_of(request.topic), group_of(request.group)
        self._consumers.check_mode(group, pops=True)
        answer = schema_pb2.QueryAssignmentResponse(status=OK)
        settings = self._groups.table.get(group)
        is_orderly = settings is not None and settings.is_orderly
        for place in await self._places(call, topic, request.endpoints):
            queue_ids = range(place.read) if is_orderly else (ANY_QUEUE,) * bool(place.read)
            for queue_id in queue_ids:
                answer.assignments.add().message_queue.MergeFrom(
                    schema_pb2.MessageQueue(
                        topic=request.topic,
                        id=queue_id,
                        permission=schema_pb2.READ,
                        broker=place.broker,
                    )
                )
        if not answer.assignments:
            raise RpcRefused(Code.FORBIDDEN, f"no queue of topic {topic} may be read")
        return answer

    async def _places(
        self, call: Call, topic: str, asked: schema_pb2.Endpoints, *, may_make: bool = False
    ) -> list[Place]:
        told = self._own.told(asked)
        are_forwarded = self._config.grpc_proxy_mode == "CLUSTER"
        places = [
            _place(other, told if are_forwarded else endpoints([place_of(other.endpoint)]))
            for other in await self._others(topic)
        ]
        config = self._topics.get(topic)
        if config is None and may_make and not places:
            config = self._made(call, topic)
        if config is None and not places:
            raise RpcRefused(
                Code.TOPIC_NOT_FOUND, f"there is no topic {topic}; create it, and ask again"
            )
        if config is None:
            return places
        if may_make and self._topics.pending:  # what is sent to it must not be there before
            await durable(self._topics)
        config = self._client_view(config)
        name = self._config.broker_name
        broker = schema_pb2.Broker(name=name, id=MASTER_ID, endpoints=told)
        own = Place.of(broker, config.perm, config.read_queue_nums, config.write_queue_nums)
        # A replica that follows has the queues in its tables, whoever leads.
        return [own, *(place for place in places if place.broker.name != name)]

    def _made(self, call: Call, topic: str) -> TopicConfig | None:
        """Make a topic that is asked for, where that is wanted; None where it is not."""
        config = self._config
        if not config.grpc_auto_create_topic_enable or self._store.follows:
            return None
        if topic.startswith((RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX)):
            return None
        account = call.account
        if account is not None and not account.allows(*need_of(Kind.TOPIC, topic, PUB)):
            return None
        return self._topics.create_in_send(
            topic, AUTO_CREATE_TOPIC_KEY_TOPIC, config.default_topic_queue_nums, call.source
        )

    def _types(self, topic: str) -> list[schema_pb2.MessageType]:
        config = self._topics.get(topic)
        kinds = _TYPES if config is None else message_types_of(config.attributes_map)
        return [_TYPES[kind] for kind in kinds]


def _place(other_broker: OtherBroker, told: schema_pb2.Endpoints) -> Place:
    queues = other_broker.queues
    broker = schema_pb2.Broker(name=other_broker.name, id=MASTER_ID, endpoints=told)
    return Place.of(broker, queues.perm, queues.read_queue_nums, queues.write_queue_nums)
