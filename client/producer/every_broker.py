"""Being known to every broker: a producer that is called back is told so by brokers it never used.

A broker asks about transactions (39) and hands on replies (326) over connections that a heartbeat
named. Heartbeats go to the brokers of known routes, so this client takes the routes of the topics
`<cluster>_REPLY_TOPIC`, which every broker of a cluster has; the route table keeps them fresh.

Unlike RocketMQ, where producers ask for the route of TBW102, which brokers without automatic
creation of topics do not have: a producer that only waits for checks is not asked by those.
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../MixAll.java (getReplyTopic),
broker/.../topic/TopicConfigManager.java, client/.../producer/DefaultMQProducerImpl.java (start)
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.services import Services
from skylarkmq.protocol.flags import reply_topic
from skylarkmq.remoting.waiting import sleep

log = logging.getLogger(__name__)

NONE_YET_S: Final = 5.0
"""How soon the name server is asked again while it knows no cluster."""


class EveryBroker:
    """Keeps the brokers of all clusters among the known routes. Loop thread."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.looked = asyncio.Event()
        """Set when the first search has ended, well or not."""
        self._task: asyncio.Task[None] | None = None
        self._clusters: set[str] = set()
        self._stopped = False

    def start(self) -> None:
        """Look for brokers now and then until `stop`; after it, do nothing."""
        if self._task is None and not self._stopped:
            self._task = asyncio.create_task(self._run(), name="skylarkmq-every-broker")

    async def look(self) -> None:
        """Look now; failures are logged."""
        services = self._services
        try:
            clusters = await services.name_servers.clusters()
        except RocketMQError as error:
            log.warning("clusters not asked for: %s", error)
            return
        for cluster in sorted(clusters - self._clusters):
            try:
                if await services.routes.refresh(reply_topic(cluster)) is not None:
                    self._clusters.add(cluster)
            except RocketMQError as error:
                log.warning("brokers of cluster %s not asked for: %s", cluster, error)

    async def stop(self) -> None:
        """End."""
        self._stopped = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("the search for brokers failed, tried again in its time")
            self.looked.set()
            wait_s = self._services.config.route_refresh_s if self._clusters else NONE_YET_S
            await sleep(self._services.clock, wait_s)
