"""What 5.x's remoting consumers receive from, when they leave that to the broker
(`setClientRebalance(false)`): which queues (400), and whether they pop or pull (401).

    a group that pops    each broker of the topic, with the queue id -1: any queue of it
    a group that pulls   the client's share of the queues, by the strategy that it names
    `%RETRY%<group>`     nothing in a group that pops: a pop looks there by itself

The mode is a group's and stands in its configuration, so that it goes where that goes. Unlike
RocketMQ, which has it by topic and group: a group is consumed in one way at a time. So the mode
that is set for one topic holds for all, and nothing is divided among those who pop
(popShareQueueNum). While members that divide the queues by themselves pull, all do.

Other brokers of a topic are those that the name servers know.

Source: apache/rocketmq@rocketmq-all-5.3.3 broker/.../processor/QueryAssignmentProcessor.java
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import msgspec

from skylarkmq.broker.net.handlers import Answer, Call, NoFields, handles, refused
from skylarkmq.broker.requests.processor import Context, Processor, check_group, check_topic
from skylarkmq.protocol.bodies.group import MODE_POP, MODE_PULL
from skylarkmq.protocol.bodies.pop import (
    MessageQueueAssignment,
    MessageRequestModeBody,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from skylarkmq.protocol.bodies.route import TopicRouteData
from skylarkmq.protocol.bodies.text import MessageQueueBody, decode_body
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import shown
from skylarkmq.protocol.flags import is_readable, is_retry_topic

ANY_QUEUE: Final = -1
AVERAGELY: Final = "AVG"
BY_CIRCLE: Final = "AVG_BY_CIRCLE"

Routes = Callable[[str], Awaitable[list[TopicRouteData | None]]]
ClientView = Callable[[TopicConfig], TopicConfig]


class AssignmentProcessor(Processor):
    """Answers consumers that ask what they are to receive from. Loop thread."""

    def __init__(
        self, context: Context, find_routes: Callable[[], Routes | None], client_view: ClientView
    ) -> None:
        """Make it.

        Args:
            find_routes: returns what asks the name servers for a topic's route; None while this
                broker is registered nowhere.
            client_view: returns a topic as clients may see it: its permission may be withheld.
        """
        super().__init__(context)
        self._find_routes = find_routes
        self._client_view = client_view
        context.consumers.pops_by_setting = self._pops

    def _pops(self, group: str) -> bool:
        config = self._groups.table.get(group)
        return config is not None and config.pops

    @handles(RequestCode.SET_MESSAGE_REQUEST_MODE, NoFields)
    def set_mode(self, call: Call[NoFields]) -> Answer:
        """Let a group pop or pull from now on (401); it is made if need be.

        The code is 16 for a topic of retries, 29 for a mode that is none.
        """
        body = decode_body(MessageRequestModeBody, call.request.body)
        group, topic = body.consumer_group, body.topic
        check_group(group)
        check_topic(topic)
        if is_retry_topic(topic):
            raise refused("retry topic is not allowed to set mode", ResponseCode.NO_PERMISSION)
        if body.mode not in (MODE_PULL, MODE_POP):
            why = f"the mode is {MODE_PULL} or {MODE_POP}, not {shown(body.mode)}"
            raise refused(why, ResponseCode.INVALID_PARAMETER)
        config = self._groups.find(group)
        if config is None:
            raise refused(
                f"subscription group [{group}] does not exist",
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        self._groups.update(msgspec.structs.replace(config, message_request_mode=body.mode))
        self._consumers.setting_changed(group)
        return Answer(after=(self._groups,))

    @handles(RequestCode.QUERY_ASSIGNMENT, NoFields)
    async def query_assignment(self, call: Call[NoFields]) -> Answer:
        """Tell a consumer what it is to receive from (400).

        Where that cannot be told, since the topic or the client is not known or it names a strategy
        of its own, nothing changes for the client.
        """
        body = decode_body(QueryAssignmentRequestBody, call.request.body)
        group, topic = body.consumer_group, body.topic
        check_group(group)
        check_topic(topic)
        info = self._consumers.group(group)
        pops = self._pops(group) if info is None else info.pops
        if pops and is_retry_topic(topic):
            return Answer(QueryAssignmentResponseBody())
        places = await self._places(topic)
        queues = list(_queues(topic, places, pops=pops))
        if not pops:
            queues = _share(queues, self._consumers.client_ids(group), body)
        if not places or not (queues or pops or self._knows(body)):
            return Answer(QueryAssignmentResponseBody(message_queue_assignments=None))
        mode = MODE_POP if pops else MODE_PULL
        return Answer(
            QueryAssignmentResponseBody(
                message_queue_assignments=[
                    MessageQueueAssignment(message_queue=queue, mode=mode) for queue in queues
                ]
            )
        )

    def _knows(self, body: QueryAssignmentRequestBody) -> bool:
        """Return whether a share without a queue is one."""
        is_member = body.client_id in self._consumers.client_ids(body.consumer_group)
        return is_member and body.strategy_name in (AVERAGELY, BY_CIRCLE)

    async def _places(self, topic: str) -> dict[str, int]:
        """Return how many queues of a topic each broker has to read."""
        routes = self._find_routes()
        found: dict[str, int] = {}
        if routes is not None:
            for route in filter(None, await routes(topic)):
                for queue in route.queue_datas:
                    if is_readable(queue.perm):
                        found[queue.broker_name] = queue.read_queue_nums
        config = self._topics.get(topic)
        if config is not None and is_readable(self._client_view(config).perm):
            found.setdefault(self._config.broker_name, config.read_queue_nums)
        return dict(sorted(found.items()))


def _queues(topic: str, places: dict[str, int], *, pops: bool) -> Iterator[MessageQueueBody]:
    for broker_name, count in places.items():
        for queue_id in (ANY_QUEUE,) if pops else range(count):
            yield MessageQueueBody(broker_name=broker_name, queue_id=queue_id, topic=topic)


def _share(
    queues: list[MessageQueueBody], client_ids: list[str], body: QueryAssignmentRequestBody
) -> list[MessageQueueBody]:
    """Return a client's queues as RocketMQ's clients divide them by themselves."""
    members = sorted(client_ids)
    if body.client_id not in members:
        return []
    index, count = members.index(body.client_id), len(members)
    if body.strategy_name == BY_CIRCLE:
        return queues[index::count]
    if body.strategy_name != AVERAGELY:
        return []
    size, more = divmod(len(queues), count)
    start = index * size + min(index, more)
    return queues[start : start + size + (index < more)]
