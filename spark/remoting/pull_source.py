"""Where a range's pulls go: the master, a slave that it suggests, whoever of them answers.

A broker whose memory no longer holds what is read suggests another member of its set. That one may
lag behind: when it has not what is asked for, the master is asked again, and suggestions count no
more. After a failure the next member is tried, with a fresh route; a route that was known stays
good while the name servers are away or have lost it, because the broker may be restarting.
"""

from __future__ import annotations

import logging
from typing import Final

from skylarkmq.client.errors import RocketMQError
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.offsets import describe
from skylarkmq.spark.remoting.routes import MASTER_ID, ROUTE_RETRY_AGE_S

log = logging.getLogger(__name__)

STAY_S: Final = 30.0
"""How long suggestions are passed over after a failure."""


class PullSource:
    """The broker that one queue is read from at the moment."""

    def __init__(self, client: BlockingClient, queue: MessageQueue) -> None:
        self._client = client
        self._queue = queue
        self._members: dict[int, str] = {}
        self._broker_id = MASTER_ID
        self._slave_lags = False
        # Suggestions count from then on: a slave names a master that is away.
        self._suggestions_from_s = 0.0

    @property
    def address(self) -> str:
        """Whom to ask.

        Raises:
            RocketMQError: no broker is known for this queue.
        """
        if not self._members:
            self._members = self._client.members_of(self._queue)
        if self._broker_id not in self._members:
            self._broker_id = min(self._members)
        return self._members[self._broker_id]

    @property
    def is_master(self) -> bool:
        """Whether the one that is asked has all that there is."""
        return self._broker_id == MASTER_ID

    def suggested(self, broker_id: int) -> None:
        """Take the suggestion that came with an answer, when there is such a member."""
        if broker_id == self._broker_id or self._slave_lags or broker_id not in self._members:
            return
        if self._client.clock.monotonic() >= self._suggestions_from_s:
            self._broker_id = broker_id

    def back_to_master(self) -> bool:
        """Ask the master from now on, because a slave has not what is asked for; return whether
        that is news."""
        news, self._slave_lags = not self._slave_lags, True
        if news:
            log.info("%s: a slave lags behind, going on at the master", describe(self._queue))
        self._broker_id = MASTER_ID
        self._refresh()
        return news

    def failed(self) -> None:
        """Turn to the next member, after the one that is asked has failed; stay there a while."""
        self._suggestions_from_s = self._client.clock.monotonic() + STAY_S
        self._refresh()
        members = sorted(self._members)
        if members:
            later = [member for member in members if member > self._broker_id]
            self._broker_id = (later or members)[0]

    def _refresh(self) -> None:
        try:
            self._members = self._client.members_of(self._queue, max_age_s=ROUTE_RETRY_AGE_S)
        except RocketMQError as error:
            log.debug("%s: no fresh route: %s", describe(self._queue), error)
