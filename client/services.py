"""Services: the connections, routes and tasks of a started client.

One connection to each broker, one route table, one heartbeat for all groups, one client id. Four
tasks run: heartbeats, the refresh of all routes, the search for routes that are still missing, and
the look at routes that are in doubt, because a broker that they name is away or does not lead.

After a connection was made again a heartbeat goes out, locks and offsets are told anew; another
master of a broker's name counts as such (`masters.py`). `refusals.py` has brokers that refuse
heartbeats.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/factory/MQClientInstance.java
(startScheduledTask, sendHeartbeatToAllBroker), client/.../ClientConfig.java (buildMQClientId)
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from ipaddress import ip_address
from random import Random
from typing import Any, Final, Literal, Protocol

from msgspec.structs import replace

from skylarkmq.client.config import MISSING_ROUTE_REFRESH_S, ClientConfig
from skylarkmq.client.errors import (
    BrokerError,
    IllegalState,
    RequestTimeout,
    RocketMQError,
    is_away,
)
from skylarkmq.client.masters import Masters
from skylarkmq.client.namespace import Namespace
from skylarkmq.client.observe.hooks import ClientHook, each
from skylarkmq.client.producer.reply_table import ReplyTable
from skylarkmq.client.refusals import LATER_CODES, Refusals
from skylarkmq.client.wire.acl_hook import Signer
from skylarkmq.client.wire.api_consumer import ConsumerApi
from skylarkmq.client.wire.nameserver import NameServers
from skylarkmq.client.wire.pushes import Answer, CheckRouter, PushRouter
from skylarkmq.client.wire.route import RouteTable
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.group import ConsumerData, HeartbeatData, ProducerData
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import MASTER_ID
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.headers.group import UnregisterClientRequestHeader
from skylarkmq.protocol.message_id import UniqueIdGenerator
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.client import RemotingClient
from skylarkmq.remoting.connection import CODEC_FIELD, CODEC_OFFER, Connection, Peer, peer_of
from skylarkmq.remoting.stream import Network
from skylarkmq.remoting.waiting import sleep, wait_event

log = logging.getLogger(__name__)

MEMBER_CODES: Final = (
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)
"""What brokers ask one member of a group for."""
JITTER: Final = 0.1
HEARTBEAT_DELAY_S: Final = 0.2
"""A wanted heartbeat waits that long, so that several wishes become one."""
DOUBT_AGE_S: Final = 0.5
"""A route in doubt is asked for again when it is older, and not before that after the last time."""


class Member(Protocol):
    """A consumer, as the client sees it."""

    @property
    def group(self) -> str:
        """Its consumer group."""
        ...

    def consumer_data(self) -> ConsumerData | None:
        """Return its part of the heartbeat; None when it is no member of its group."""
        ...

    def pushed(self, push: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Answer what a broker asks this member for: 220, 221, 307, 309."""
        ...

    def wake(self) -> None:
        """Rebalance soon: the group's members or a route may have changed."""
        ...

    def refused(self, error: RocketMQError | None) -> None:
        """Give the error to a task that waits for messages: all its brokers refuse this client.

        None: one of them does not any more.
        """
        ...

    def buffered(self) -> dict[str, tuple[int, int]]:
        """Return how many messages it holds of each topic, and their bytes. Any thread."""
        ...


class Services:
    """What all producers and consumers of one client share. Loop thread.

    Its size is one idea: one life, which begins and ends with the connections.
    """

    def __init__(self, config: ClientConfig, network: Network, clock: Clock, random: Random):
        self.config = config
        self.clock = clock
        self.random = random
        self.members: dict[str, Member] = {}
        """Consumers by group."""
        self.beat_wanted = asyncio.Event()
        self.hooks: list[ClientHook] = []
        self.reconnect_listeners: set[Callable[[str], None]] = set()
        """Told the address when a lost connection was made again, or a broker's name has another
        master there."""
        self.route_listeners: set[Callable[[str], None]] = set()
        """Told the topic whose route has changed."""
        self._doubted: set[str] = set()
        self._doubt_wanted = asyncio.Event()
        self.pushes = PushRouter()
        self.pushes.on(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._members_changed)
        for code in MEMBER_CODES:
            self.pushes.on(code, self._to_member)
        self.check_listeners = CheckRouter()
        self.pushes.on(RequestCode.CHECK_TRANSACTION_STATE, self.check_listeners.take)
        self.namespace = Namespace(config.namespace)
        """Wraps names of topics and groups on their way in, and unwraps them on their way out."""
        self.client_id = ""
        """`<ip>@<instance>[@<unit>]`, as brokers know this client."""
        self.unique_ids: UniqueIdGenerator
        """The ids that its messages get; from `name_itself` on."""
        self._producer_groups: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self.replies = ReplyTable(clock, self.namespace.unwrap)
        self.pushes.on(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self.replies.take)
        self.remoting = RemotingClient(
            network,
            clock,
            random,
            config.codec,
            self.pushes.take,
            sign=None if config.credentials is None else Signer(config.credentials).sign,
            on_reconnect=self._reconnected,
        )
        self.name_servers = NameServers(
            self.remoting, config.name_servers, config.request_timeout_s, random, clock
        )
        self.routes = RouteTable(self.name_servers, config.mapped, clock, self._route_changed)
        self.consumer_api = ConsumerApi(self.remoting)
        self._masters = Masters(self.remoting, self.routes, clock, self._tell_listeners)
        self._refusals = Refusals(clock.monotonic, self.routes, self.members)

    # Life

    def name_itself(self, local_ip: str) -> None:
        """Take the name that brokers know this client by, and the ids of its messages."""
        config, random = self.config, self.random
        ip = config.client_ip or local_ip
        try:
            address = ip_address(ip.partition("%")[0])
        except ValueError:  # the client id may have a name in it; message ids need an address
            address = ip_address(local_ip.partition("%")[0])
        instance = config.instance_name or f"{os.getpid()}#{random.getrandbits(48):x}"
        parts = [ip, instance, config.unit_name]
        self.client_id = "@".join(part for part in parts if part)
        seed = random.getrandbits(32)
        self.unique_ids = UniqueIdGenerator(address.packed, os.getpid(), seed, self.clock)

    def begin(self) -> None:
        """Start the tasks."""
        self._run(self._beat(), "heartbeat")
        self._run(self._refresh(self.config.route_refresh_s, missing_only=False), "routes")
        self._run(self._refresh(MISSING_ROUTE_REFRESH_S, missing_only=True), "missing-routes")
        self._run(self._resolve_doubts(), "doubted-routes")

    async def stop(self) -> None:
        """End the tasks and close all connections, which are closed even when this is cancelled."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self._masters.stop()
        self.pushes.cancel()
        self.routes.cancel()
        self.remoting.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.pushes.stop()
        await self.routes.stop()
        await self.remoting.stop()

    # Groups

    def join_producer(self, group: str) -> None:
        """Name the producer group in heartbeats; the next one goes out soon."""
        self._producer_groups[group] += 1
        self.beat_wanted.set()

    async def leave_producer(self, group: str) -> None:
        """Undo one `join_producer`; the last one tells the brokers."""
        self._producer_groups[group] -= 1
        if self._producer_groups[group] <= 0:
            del self._producer_groups[group]
            await self._unregister(
                UnregisterClientRequestHeader(client_id=self.client_id, producer_group=group)
            )

    def join_consumer(self, member: Member) -> None:
        """Add a consumer.

        Raises:
            IllegalState: this client is in that group already. Brokers tell the members of a group
                apart by the client id, so a second one needs a client of its own.
        """
        if member.group in self.members:
            raise IllegalState(
                f"this client has a consumer in group {member.group} already",
                hint="Give the second consumer a Client of its own",
            )
        self.members[member.group] = member

    def refusal_of(self, member: Member) -> BrokerError | None:
        """Return with what all brokers of a consumer's topics refuse its group for good, if so."""
        return self._refusals.of(member)

    async def leave_consumer(self, member: Member) -> None:
        """Remove a consumer and tell the brokers."""
        if self.members.get(member.group) is member:
            del self.members[member.group]
            header = UnregisterClientRequestHeader(
                client_id=self.client_id, consumer_group=member.group
            )
            await self._unregister(header)

    async def send_heartbeats(self) -> None:
        """Send a heartbeat to every broker of the known routes now; failures are logged.

        A client that has only producers sends to masters only, as in Java.
        """
        self.beat_wanted.clear()
        everyone = [member.consumer_data() for member in self.members.values()]
        consumers = [data for data in everyone if data is not None]
        producers = [ProducerData(group_name=name) for name in self._producer_groups]
        if not consumers and not producers:
            return
        data = HeartbeatData(
            client_id=self.client_id, consumer_data_set=consumers, producer_data_set=producers
        )
        addresses = {
            address
            for broker in self.routes.brokers().values()
            for broker_id, address in broker.items()
            if consumers or broker_id == MASTER_ID
        }
        self._refusals.keep(addresses, self.members)
        await asyncio.gather(*(self._beat_to(address, data) for address in addresses))

    # Brokers

    def failed(self, topic: str, error: RocketMQError) -> None:
        """Look at the topic's route soon if the error may mean that a broker was replaced."""
        if is_away(error):
            self.doubt(topic)

    def doubt(self, topic: str) -> None:
        """Look at the topic's route soon: a broker that it names may have been replaced."""
        self._doubted.add(topic)
        self._doubt_wanted.set()

    def known_peer(self, address: str) -> Peer | None:
        """Return what is known of the broker at `address`; None without a connection. No I/O."""
        connection = self.remoting.ready(address)
        return None if connection is None else connection.peer

    async def peer(self, address: str) -> Peer:
        """Return what the broker at `address` is; if unknown, ask it by an empty heartbeat.

        Raises:
            RocketMQError: no connection, or no answer.
        """
        connection = await self.remoting.connection(address)
        if connection.peer is None:
            body = encode_body(HeartbeatData(client_id=self.client_id))
            offer = {CODEC_FIELD: CODEC_OFFER}
            question = RemotingCommand.request(RequestCode.HEART_BEAT, offer, body)
            timeout_s = self.config.request_timeout_s
            answer = await connection.call(question, timeout_s, SerializeType.JSON)
            connection.peer = connection.peer or peer_of(answer)
        return connection.peer

    def _reconnected(self, address: str) -> None:
        # A broker knows a client by its connection: the new one needs a heartbeat.
        self.beat_wanted.set()
        self._tell_listeners(address)
        if self.hooks:
            kind: Literal["broker", "namesrv"] = (
                "namesrv" if address in self.config.name_servers else "broker"
            )
            each(self.hooks, lambda hook: hook.reconnected(kind))

    def _tell_listeners(self, address: str) -> None:
        for listener in list(self.reconnect_listeners):
            listener(address)

    def _members_changed(self, connection: Connection, push: RemotingCommand) -> None:
        member = self.members.get(push.ext_fields.get("consumerGroup", ""))
        if member is not None:
            member.wake()

    def _to_member(
        self, connection: Connection, push: RemotingCommand
    ) -> Answer | Awaitable[Answer]:
        group = push.ext_fields.get("consumerGroup") or push.ext_fields.get("group", "")
        member = self.members.get(group)
        if member is not None:
            return member.pushed(push)
        remark = f"The Consumer Group <{group}> not exist in this consumer"
        return push.reply(ResponseCode.SYSTEM_ERROR, remark)

    def _route_changed(self, topic: str) -> None:
        log.info("route of %s changed", topic)
        self.beat_wanted.set()  # there may be a broker that does not know this client yet
        route = self.routes.known(topic)
        if route is not None:
            self._masters.look_at(route)
        for listener in list(self.route_listeners):
            listener(topic)
        for member in self.members.values():
            member.wake()

    # Inside

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=f"skylarkmq-client-{name}"))

    async def _refresh(self, interval_s: float, *, missing_only: bool) -> None:
        while True:
            jitter = self.random.uniform(1 - JITTER, 1 + JITTER)
            await sleep(self.clock, interval_s * jitter)
            try:
                await self.routes.refresh_all(missing_only=missing_only)
            except Exception:
                log.exception("route refresh failed, the next one comes in its time")

    async def _resolve_doubts(self) -> None:
        while True:
            await self._doubt_wanted.wait()
            self._doubt_wanted.clear()
            topics, self._doubted = self._doubted, set()
            for topic in sorted(topics):
                try:
                    await self.routes.refresh(topic, max_age_s=DOUBT_AGE_S)
                except RocketMQError as error:
                    log.debug("route of %s not asked for again: %s", topic, error)
                    break  # no name server answers, and what is in doubt will be so again
                except Exception:
                    log.exception("route of %s not asked for again", topic)
            await sleep(self.clock, DOUBT_AGE_S)

    async def _beat(self) -> None:
        while True:
            if await wait_event(self.clock, self.beat_wanted, self.config.heartbeat_interval_s):
                # Several wishes become one, and another task may have sent the heartbeat.
                await sleep(self.clock, HEARTBEAT_DELAY_S)
                if not self.beat_wanted.is_set():
                    continue
            try:
                await self.send_heartbeats()
            except Exception:
                log.exception("heartbeat failed, the next one goes out in its time")

    async def _beat_to(self, address: str, data: HeartbeatData) -> None:
        connection: Connection | None = None
        seen_count = 0
        try:
            connection = await self.remoting.connection(address)
            seen_count = connection.answers_count
            await self._beat_groups(address, data)
        except RequestTimeout as error:
            log.warning("heartbeat to %s: %s", address, error)
            if connection is not None and connection.answers_count == seen_count:
                # Half open: no answer at all came back. A new connection finds out.
                connection.give_up("no answer to a heartbeat")
        except RocketMQError as error:
            log.warning("heartbeat to %s: %s", address, error)

    async def _beat_groups(self, address: str, data: HeartbeatData) -> None:
        """Send a heartbeat of all groups together but those that were refused: each has its own."""
        refused = self._refusals.at(address)
        together = [each for each in data.consumer_data_set if each.group_name not in refused]
        parts = [[each] for each in data.consumer_data_set if each.group_name in refused]
        if together or not parts:
            parts.insert(0, together)
        for part in parts:
            await self._beat_part(address, replace(data, consumer_data_set=part))

    async def _beat_part(self, address: str, data: HeartbeatData) -> None:
        """Send a heartbeat; where it is refused each group's own, since one may be the cause."""
        groups = [each.group_name for each in data.consumer_data_set]
        try:
            await self.consumer_api.heartbeat(address, data, self.config.request_timeout_s)
        except BrokerError as error:
            if len(groups) > 1 and error.code not in LATER_CODES:
                for consumer in data.consumer_data_set:
                    await self._beat_part(address, replace(data, consumer_data_set=[consumer]))
                return
            is_new = self._refusals.note(address, groups, error)
            log.log(
                logging.WARNING if is_new else logging.DEBUG, "heartbeat to %s: %s", address, error
            )
        else:
            self._refusals.taken(address, groups)

    async def _unregister(self, header: UnregisterClientRequestHeader) -> None:
        """Tell the connected brokers; the others forget the client after a while."""
        if self._closed:
            return  # the end of its connections has told the brokers
        calls = [
            self.consumer_api.unregister(address, header, self.config.request_timeout_s)
            for broker in self.routes.brokers().values()
            for address in broker.values()
            if self.remoting.ready(address) is not None
        ]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                log.debug("unregistering: %s", outcome)
