"""Queues by hand: `assign(queues)` in place of a group's division.

A consumer that was started without topics is nobody's member. Its first `subscribe` makes it a
member of its group; its first `assign` makes it one that stands alone: it tells no broker that it
is in the group, so it takes no share from the members; each pull says what is wanted. Its offsets
are those of the group all the same.

Unlike RocketMQ: the Java client (DefaultLitePullConsumer, assign) counts as a member, and queues
that the division gives to it are consumed by nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from skylarkmq.client.consumer.pull_service import PullService
from skylarkmq.client.consumer.queues.rebalance import Rebalance
from skylarkmq.client.consumer.queues.shares import FixedShares, Shares
from skylarkmq.client.consumer.received_message import Returner
from skylarkmq.client.consumer.subscription import Selector, Subscription, check_filter
from skylarkmq.client.errors import IllegalState
from skylarkmq.client.services import Services
from skylarkmq.protocol.message import MessageQueue

BY_TOPICS: Final = "the consumer has subscribed to topics, so its queues come by those"


class Standing:
    """Whether a consumer is a member or stands alone, and its shares. Implements `Shares`."""

    def __init__(
        self,
        services: Services,
        group: str,
        subscriptions: dict[str, Subscription],
        as_member: Shares,
        returner: Returner,
    ) -> None:
        """Take the parts.

        Args:
            as_member: the shares of a member.
            returner: takes back messages of one that stands alone: here, because nobody reads the
                retry topic of a group without members.
        """
        self.alone = False
        self._services = services
        self._group = group
        self._subscriptions = subscriptions
        self._as_member = as_member
        self._returner = returner
        self._fixed = FixedShares()

    @property
    def settled(self) -> bool:
        """Whether the last answer is final."""
        return self.alone or self._as_member.settled

    @property
    def takes_over(self) -> bool:
        """Whether queues may come from members that are still there."""
        return not self.alone and self._as_member.takes_over

    async def of(self, topic: str) -> set[MessageQueue] | None:
        """Return this consumer's queues of the topic."""
        return await (self._fixed if self.alone else self._as_member).of(topic)

    def check_member(self) -> None:
        """See that topics may be subscribed to.

        Raises:
            IllegalState: queues were assigned by hand.
        """
        if self.alone:
            raise IllegalState("queues were assigned to this consumer by hand, so it has no topics")

    async def assign(
        self,
        queues: Collection[MessageQueue],
        selector: Selector | None,
        pulls: PullService,
        rebalance: Rebalance,
    ) -> None:
        """Take these queues, and give up all others.

        Raises:
            IllegalState: the consumer has subscribed to topics.
            FilterRefused: a broker does not filter so.
            RocketMQError: no name server knows where the topics are, or a broker cannot be asked
                whether it can filter so.
        """
        if not self.alone and self._subscriptions:
            raise IllegalState(BY_TOPICS)
        topics = {queue.topic for queue in queues}
        await asyncio.gather(*(self._services.routes.refresh(topic) for topic in topics))
        for topic in topics:
            wanted = Subscription(topic, selector, 0)
            await check_filter(self._services, self._group, wanted, inline=True)
        if not self.alone and self._subscriptions:
            raise IllegalState(BY_TOPICS)  # it has subscribed meanwhile
        if not self.alone:
            self.alone = True
            pulls.stand_alone(self._returner)
        for topic in list(self._subscriptions):
            if topic not in topics:
                del self._subscriptions[topic]
        version = self._services.clock.now_ms()
        renewed: list[str] = []
        for topic in topics:
            old, new = self._subscriptions.get(topic), Subscription(topic, selector, version)
            self._subscriptions[topic] = new
            if old is not None and old.data.sub_string != new.data.sub_string:
                renewed.append(topic)
        self._fixed.fix(queues)
        for topic in renewed:
            pulls.renew(topic, rebalance)
        try:
            if not await rebalance.round():
                rebalance.wake()
        except BaseException:
            rebalance.wake()  # the round that follows in the background does the rest
            raise
