"""Heartbeats: one for all groups of a client, to every broker of its routes.

A broker that refuses them does not know the client, and its consumers receive nothing from it. One
that has refused REFUSALS_MIN in a row, for REFUSED_S or longer, is taken at its word: who waits for
messages of a consumer gets the refusal as an error.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/factory/MQClientInstance.java
(sendHeartbeatToAllBroker)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from skylarkmq.client.clock import sleep, wait_event
from skylarkmq.client.errors import BrokerError, RequestTimeout, RocketMQError
from skylarkmq.client.services import Services
from skylarkmq.client.wire.connection import Connection
from skylarkmq.client.wire.route import MASTER_ID
from skylarkmq.protocol.bodies.group import HeartbeatData, ProducerData
from skylarkmq.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

HEARTBEAT_DELAY_S: Final = 0.2
"""Wishes for a heartbeat wait that long for others to join them."""
REFUSED_S: Final = 10.0
"""A broker that starts, or whose access control is read anew, has that long to think again."""
REFUSALS_MIN: Final = 3
LATER_CODES: Final[frozenset[int]] = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
    }
)
"""Answers that speak of the broker's state, not of the client."""


class Heartbeat:
    """The heartbeats of one client. Loop thread."""

    def __init__(
        self, services: Services, client_id: str, producer_groups: Iterable[str], interval_s: float
    ) -> None:
        self._services = services
        self._client_id = client_id
        self._producer_groups = producer_groups
        self._interval_s = interval_s
        # By address, since the last one was taken: how many, and the time of the first.
        self._refusals: dict[str, tuple[int, float]] = {}

    async def run(self) -> None:
        """Beat for ever; the client cancels it."""
        services = self._services
        while True:
            if await wait_event(services.clock, services.beat_wanted, self._interval_s):
                # Several wishes at the same time are one, and one that somebody fulfils is none.
                await sleep(services.clock, HEARTBEAT_DELAY_S)
                if not services.beat_wanted.is_set():
                    continue
            try:
                await self.send()
            except Exception:
                log.exception("heartbeat failed, the next one goes out in its time")

    async def send(self) -> None:
        """Send one to every broker now; failures are logged. Producers alone: masters only."""
        services = self._services
        services.beat_wanted.clear()
        everyone = [member.consumer_data() for member in services.members.values()]
        consumers = [data for data in everyone if data is not None]
        data = HeartbeatData(
            client_id=self._client_id,
            consumer_data_set=consumers,
            producer_data_set=[ProducerData(group_name=name) for name in self._producer_groups],
        )
        if not data.consumer_data_set and not data.producer_data_set:
            return
        addresses = {
            address
            for broker in services.routes.brokers().values()
            for broker_id, address in broker.items()
            if consumers or broker_id == MASTER_ID
        }
        for address in self._refusals.keys() - addresses:
            del self._refusals[address]
        await asyncio.gather(*(self._send_to(address, data) for address in addresses))

    async def _send_to(self, address: str, data: HeartbeatData) -> None:
        services = self._services
        connection: Connection | None = None
        seen_count = 0
        try:
            connection = await services.remoting.connection(address)
            seen_count = connection.answers_count
            timeout_s = services.config.request_timeout_s
            await services.consumer_api.heartbeat(address, data, timeout_s)
            self._refusals.pop(address, None)
        except RequestTimeout as error:
            log.warning("heartbeat to %s: %s", address, error)
            if connection is not None and connection.answers_count == seen_count:
                # Half open: nothing at all came back. A new connection finds out.
                connection.give_up("no answer to a heartbeat")
        except RocketMQError as error:
            log.warning("heartbeat to %s: %s", address, error)
            if isinstance(error, BrokerError) and error.code not in LATER_CODES:
                self._refused(address, error)

    def _refused(self, address: str, error: BrokerError) -> None:
        now_s = self._services.clock.monotonic()
        count, since_s = self._refusals.get(address, (0, now_s))
        self._refusals[address] = count + 1, since_s
        if count + 1 >= REFUSALS_MIN and now_s - since_s >= REFUSED_S:
            for member in list(self._services.members.values()):
                if member.consumer_data() is not None:
                    member.refused(error)
