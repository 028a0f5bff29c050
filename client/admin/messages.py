"""Messages by key, id, place and time.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/MQAdminImpl.java (queryMessage,
viewMessage, queryMessageByUniqKey)
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from skylarkmq.client.admin.base import AdminBase, TopicPlace, each
from skylarkmq.client.admin.reading import MessageScan
from skylarkmq.client.clock import ceil_ms, floor_ms
from skylarkmq.client.consumer.offset_search import first_since
from skylarkmq.client.errors import RouteNotFound
from skylarkmq.client.message_view import StoredMessage, stored_message
from skylarkmq.client.wire.ask import read_messages
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import TOOLS_CONSUMER_GROUP
from skylarkmq.protocol.headers.fields import LONG_MAX
from skylarkmq.protocol.headers.pull import QueryMessageRequestHeader
from skylarkmq.protocol.message import MessageExt, MessageQueue

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
UNIQUE_KEY_MAX: Final = 32
QUERY_TIMEOUT_S: Final = 15.0
INDEX_TICK_MS: Final = 1000
"""The brokers' index knows times to the second, rounded down."""
HAVE_OR_NOT: Final = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND)})


class MessageAdmin(AdminBase):
    """The part of Admin for messages."""

    async def query(
        self,
        topic: str,
        *,
        key: str | None = None,
        msg_id: str | None = None,
        start: datetime | None = None,
        stop: datetime | None = None,
        limit: int = 64,
    ) -> list[StoredMessage]:
        """Return messages of a topic, oldest first, `limit` at most: of many, the newest ones
        by key or id, the first ones by time alone.

        Keys and ids come from the brokers' index, which forgets old ones and is a moment late;
        by time alone the queues are read, so `scan` is better for many.

        Args:
            key: one of a message's keys.
            msg_id: the id that the producer gave; retries and dead letters, which keep it, are in
                their own topics.
            start, stop: stored at `start` or later, before `stop`.

        Raises:
            RouteNotFound: there is no such topic.
            ValueError: both `key` and `msg_id`, or nothing to look for.
        """
        if limit < 1:
            raise ValueError("limit is 1 or more")
        if key is not None and msg_id is not None:
            raise ValueError("key or msg_id, not both")
        wanted = key if msg_id is None else msg_id
        if wanted is not None:
            place = await self._place(self._topic(topic))
            found = await self._by_key(place, wanted, msg_id is not None, start, stop, limit)
            return found[-limit:]
        if start is None and stop is None:
            raise ValueError("query wants a key, a msg_id, or a time")
        scan = self.scan(topic, start=start, stop=stop)
        messages: list[StoredMessage] = []
        async for message in scan:
            insort(messages, message, key=_stored_ms)
            if len(messages) > limit:
                messages.pop()
                if _stored_ms(message) >= _stored_ms(messages[-1]):
                    scan.skip_queue()  # what follows in it is younger still
        return messages

    async def message(self, offset_msg_id: str) -> StoredMessage | None:
        """Return the message at a place, which an offset id names; None when it is gone.

        The id has the address that the broker had when it stored the message. Where no broker has
        it now, as the broker is registered by a host name, has moved, or another one leads in its
        place, all brokers are asked: whoever has the message has its id, too.

        Raises:
            ValueError: no offset id.
            RocketMQError: a broker does not answer, and none of the others has the message.
        """
        try:
            found = await self._find_message(offset_msg_id)
        except RemoteProtocolError as error:
            hint = "an id that a producer made is found by query(topic, msg_id=...)"
            raise ValueError(f"{error.remark}; {hint}") from error
        return None if found is None else stored_message(found[2], found[0], self._namespace)

    def scan(
        self,
        topic: str,
        *,
        start: datetime | None = None,
        stop: datetime | None = None,
        after: Mapping[MessageQueue, int] | None = None,
    ) -> MessageScan:
        """Go through a topic, queue after queue: `async for message in admin.scan(...)`.

        It ends where each queue ended when it began, holds one page of messages at a time, joins
        no group and commits nothing. `progress` of what is returned tells how far it is.

        Args:
            start, stop: stored at `start` or later, before `stop`.
            after: go on there, in these queues only: `progress.positions` of an earlier scan.

        Raises:
            RouteNotFound: there is no such topic; at the first message.
            NotFound: a queue of `after` is not there, for instance while its broker is away; at the
                first message.
        """
        return self._scan(self._topic(topic), start, stop, after)

    async def ranges(
        self, topic: str, *, start: datetime | None = None, stop: datetime | None = None
    ) -> dict[MessageQueue, tuple[int, int]]:
        """Return for each queue the first offset of a time, and the one after the last.

        Args:
            start, stop: stored at `start` or later, before `stop`.

        Raises:
            RouteNotFound: there is no such topic.
        """
        place, services = await self._place(self._topic(topic)), self._services
        masters, limit_s = place.masters, self._timeout_s

        async def since(queue: MessageQueue, when_ms: int) -> int:
            address = masters[queue.broker_name]
            return await first_since(
                services, address, TOOLS_CONSUMER_GROUP, queue, when_ms, limit_s
            )

        async def find(queue: MessageQueue) -> tuple[int, int]:
            first = await since(queue, 0 if start is None else floor_ms(start))
            if stop is not None:
                return first, max(first, await since(queue, ceil_ms(stop)))
            address = masters[queue.broker_name]
            return first, await services.consumer_api.max_offset(address, queue, limit_s)

        async def on(broker: str, _: str) -> dict[MessageQueue, tuple[int, int]]:
            queues = [queue for queue in place.read_queues if queue.broker_name == broker]
            names = map(self._namespace.unwrap_queue, queues)
            return dict(zip(names, await each(find, queues), strict=True))

        brokers = {queue.broker_name: masters[queue.broker_name] for queue in place.read_queues}
        found = await self._ask(on, brokers)
        return {queue: bounds for table in found.values() for queue, bounds in table.items()}

    # Inside: scans and queries

    def _scan(
        self,
        topic: str,
        start: datetime | None,
        stop: datetime | None,
        after: Mapping[MessageQueue, int] | None,
        *,
        may_be_absent: bool = False,
    ) -> MessageScan:
        find = self._place_if_any if may_be_absent else self._place
        return MessageScan(
            self._services,
            self._api.timeout_s,
            lambda: find(topic),
            None if start is None else floor_ms(start),
            None if stop is None else ceil_ms(stop),
            after,
            self._unanswered,
        )

    async def _place_if_any(self, topic: str) -> TopicPlace | None:
        """Return where a topic lives; None when the brokers that there are have none.

        Raises:
            RouteNotFound: there are no brokers.
        """
        place = await self._find_place(topic)
        if place is None and not (await self._cluster_info()).broker_addr_table:
            hint = f"No broker is registered with {', '.join(self._name_servers)} (yet)"
            raise RouteNotFound(topic, "no_broker", hint)
        return place

    async def _by_key(
        self,
        place: TopicPlace,
        key: str,
        unique: bool,
        start: datetime | None,
        stop: datetime | None,
        limit: int,
    ) -> list[StoredMessage]:
        start_ms = 0 if start is None else floor_ms(start)
        stop_ms = LONG_MAX if stop is None else ceil_ms(stop)
        header = QueryMessageRequestHeader(
            topic=place.topic,
            key=key,
            max_num=UNIQUE_KEY_MAX if unique else limit,
            begin_timestamp=max(0, start_ms - INDEX_TICK_MS),
            end_timestamp=stop_ms - 1,
        )

        async def ask(broker: str, address: str) -> list[StoredMessage]:
            answer = await self._api.call(
                address,
                RequestCode.QUERY_MESSAGE,
                header,
                extra={UNIQUE_KEY_QUERY: "true" if unique else "false"},
                accepted=HAVE_OR_NOT,
                timeout_s=max(QUERY_TIMEOUT_S, self._timeout_s),
            )
            found = read_messages(answer, address) if answer.code == ResponseCode.SUCCESS else []
            return [
                stored_message(message, broker, self._namespace)
                for message in found
                if message.topic == place.topic
                and _has(message, key, unique)
                and start_ms <= message.store_timestamp < stop_ms
            ]

        lists = await self._ask(ask, place.masters)
        return sorted(
            (message for found in lists.values() for message in found),
            key=_stored_ms,
        )


def _stored_ms(message: StoredMessage) -> int:
    return message.stored.store_timestamp


def _has(message: MessageExt, key: str, unique: bool) -> bool:
    """Return whether the message has the key; the index knows hashes of keys only."""
    return message.unique_key == key if unique else key in message.keys.split()
