"""The calls of a client's life where one endpoint stands for all brokers of its topics.

The client has one stream of telemetry, to this endpoint. For each other broker of its topics this
endpoint opens one more there, in the client's name, and gives it the client's settings:

    settings      the answer is this broker's where it has one of the topics, else the first one of
                  another broker; without any within ANSWER_LIMIT_S it is this broker's
    questions     of the others go to the client; a nonce gets the broker's name (`7@broker-b`), by
                  which the client's answer finds its way back
    heartbeats    go to all of them; one that refuses the client counts more than those that do not,
                  one that cannot be reached counts for nothing, and one that does not know the
                  client gets its settings anew
    termination   goes to all of them

A stream that breaks is opened again after a while, which grows, at the broker's present master; at
once when a heartbeat has told that the broker is there, or when the client says its settings. It is
over with the client's own, and with the last topic that the broker had.

To a replica that follows, its set's master is one of the other brokers. The session that each
client has here, too, stays when it comes to lead.

A call that another endpoint has forwarded is handled here, as by `telemetry.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, NamedTuple

from skylarkmq.broker.forwarding.forwarder import Forwarder, NotForwarded, is_forwarded
from skylarkmq.broker.forwarding.grpc_client import UpstreamError, UpstreamStream
from skylarkmq.broker.groups.subscription_group import SubscriptionGroupManager
from skylarkmq.broker.grpc.calls import TELEMETRY, Call, Rpc, RpcRefused, TelemetryStream, rpc_table
from skylarkmq.broker.grpc.endpoints import OwnEndpoints
from skylarkmq.broker.grpc.other_brokers import OtherBroker, OtherBrokers
from skylarkmq.broker.grpc.peer import Outbox
from skylarkmq.broker.grpc.routes import ClientView, RouteRpcs
from skylarkmq.broker.grpc.sessions import Key, Sessions, key_of
from skylarkmq.broker.grpc.settings import ClientSettings
from skylarkmq.broker.grpc.telemetry import SessionRpcs
from skylarkmq.broker.requests.processor import Context
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from skylarkmq.remoting.waiting import backoff_s, fail_after, wait_event, within

log = logging.getLogger(__name__)

ANSWER_LIMIT_S: Final = 1.5
"""For other brokers' answers; clients wait for 3 s."""
WRITE_LIMIT_S: Final = 1.0
"""For another broker to take a command."""
FIRST_WAIT_S: Final = 0.5
MOST_WAIT_S: Final = 15.0
"""Before a stream that broke is opened again."""
BROKERS_MAX: Final = 64
"""Other brokers of one client's topics."""
TOPICS_AT_A_TIME: Final = 32
"""Of one client, that are looked up."""
_REFUSALS: Final = (Code.FORBIDDEN, Code.UNAUTHORIZED)
_QUESTIONS: Final = ("verify_message_command", "print_thread_stack_trace_command")
_ANSWERS: Final = ("verify_message_result", "thread_stack_trace")
_ORPHAN: Final = "recover_orphaned_transaction_command"
_Command = schema_pb2.TelemetryCommand


class Cluster(NamedTuple):
    """How the other brokers of a client's topics are found and reached.

    Attributes:
        topics: of this broker.
        leads: tells whether this broker leads its set.
        clock: of peers.
    """

    broker_name: str
    topics: TopicConfigManager
    leads: Callable[[], bool]
    other_brokers: OtherBrokers
    forwarder: Forwarder
    clock: Clock

    async def brokers_of(self, settings: ClientSettings) -> dict[str, OtherBroker]:
        """Return the other brokers of a client's topics by their names."""
        found: dict[str, OtherBroker] = {}
        unknown: list[str] = []
        for topic in _topics(settings):
            known = self.other_brokers.known(topic)
            if known is None:
                unknown.append(topic)
            else:
                self._add(found, known)
        for start in range(0, len(unknown), TOPICS_AT_A_TIME):
            part = unknown[start : start + TOPICS_AT_A_TIME]
            for others in await asyncio.gather(*map(self.other_brokers.of, part)):
                self._add(found, others)
        return found

    def _add(self, found: dict[str, OtherBroker], others: Iterable[OtherBroker]) -> None:
        for other in others:
            is_own = other.name == self.broker_name and self.leads()
            if not is_own and (len(found) < BROKERS_MAX or other.name in found):
                found[other.name] = other

    def has_any(self, settings: ClientSettings) -> bool:
        """Return whether this broker has a topic of a client, or the client has none."""
        topics = _topics(settings)
        return not topics or any(self.topics.get(topic) is not None for topic in topics)


def _topics(settings: ClientSettings) -> Iterable[str]:
    return settings.topics or settings.subscriptions


class _Link:
    """A client's stream to one other broker, opened again while the client's own is there.

    Attributes:
        to: the broker.
        answer: to the client's newest settings; None as its result: there is none.
    """

    def __init__(self, to: OtherBroker, client: ClientLinks) -> None:
        self.to = to
        self.answer: asyncio.Future[_Command | None] = asyncio.get_running_loop().create_future()
        self._client = client
        self._stream: UpstreamStream | None = None
        self._unanswered = 0  # settings
        self._failures = 0  # in a row
        self._may_try = asyncio.Event()  # without waiting on
        self._task = client.spawn(self._run())

    async def _run(self) -> None:
        client, clock = self._client, self._client.cluster.clock
        while True:
            try:
                await self._serve()
                # Perhaps because the client is silent: its next heartbeat opens it again.
                why, first_s = "the broker has ended it", MOST_WAIT_S
            except NotForwarded as error:
                why, first_s = error.message, FIRST_WAIT_S
            except TimeoutError:
                why, first_s = "the broker takes no settings", FIRST_WAIT_S
            self._failures += 1
            self._settled(None)
            wait_s = backoff_s(self._failures, first_s, MOST_WAIT_S)
            log.debug(
                "the stream of %s to %s is over, again in %g s: %s",
                shown(client.call.client_id),
                self.to.name,
                wait_s,
                why,
            )
            self._may_try.clear()
            await wait_event(clock, self._may_try, wait_s)
            await client.refresh()

    async def _serve(self) -> None:
        client = self._client
        forwarder, to = client.cluster.forwarder, self.to
        async with forwarder.stream(client.rpc, to, client.call, has_limit=False) as stream:
            self._unanswered = 1
            self._stream = stream
            try:
                await within(client.cluster.clock, WRITE_LIMIT_S, stream.write(client.settings))
                while (data := await stream.read()) is not None:
                    self._take(_Command.FromString(data))
            finally:
                if self._stream is stream:
                    self._stream = None

    def _take(self, command: _Command) -> None:
        """Take what the broker says."""
        kind = command.WhichOneof("command")
        if kind == _ORPHAN:
            self._client.outbox.put(command)
        elif kind in _QUESTIONS:
            question: Any = getattr(command, kind)
            question.nonce = f"{question.nonce}@{self.to.name}"
            self._client.outbox.put(command)
        elif kind in ("settings", None):
            self._client.cluster.forwarder.count(self.to, command.status.code)
            self._unanswered = max(0, self._unanswered - 1)
            if kind is not None:
                self._failures = 0
            if kind is None or not self._unanswered:
                self._settled(command)

    def _settled(self, command: _Command | None) -> None:
        if not self.answer.done():
            self.answer.set_result(command)

    async def settle(self) -> None:
        """Give the broker the client's newest settings."""
        if self.answer.done():
            self.answer = asyncio.get_running_loop().create_future()
        if self._stream is not None:
            self._unanswered += 1
            await self.write(self._client.settings)
        elif self._failures:
            self._settled(None)
            self._may_try.set()

    async def write(self, data: bytes) -> None:
        """Send the broker a command; nothing happens while the stream is not open."""
        stream = self._stream
        if stream is None:
            return
        try:
            await within(self._client.cluster.clock, WRITE_LIMIT_S, stream.write(data))
        except TimeoutError:
            if self._stream is stream:  # nobody else has left it meanwhile
                self._begin_again()
        except UpstreamError as error:  # `_run` is told as well
            log.debug("%s takes no command: %s", self.to.name, error)

    def move(self, to: OtherBroker) -> None:
        """Go where the broker is now: another replica may lead."""
        is_elsewhere = to.address != self.to.address
        self.to = to
        if is_elsewhere and self._stream is not None:
            self._begin_again()

    def _begin_again(self) -> None:
        self._stream = None
        self._task.cancel()
        self._task = self._client.spawn(self._run())

    def close(self) -> None:
        """End it."""
        self._stream = None
        self._settled(None)
        self._task.cancel()


class ClientLinks:
    """The streams of a client to the other brokers of its topics. Loop thread.

    Attributes:
        call: by which the client's own stream was opened.
        outbox: of it.
        settings: the client's newest, in a command.
    """

    def __init__(
        self,
        call: Call,
        outbox: Outbox,
        rpc: Rpc,
        cluster: Cluster,
        client_settings: Callable[[], ClientSettings],
    ) -> None:
        """Begin without a stream.

        Args:
            rpc: Telemetry.
            client_settings: returns what the client is known to want.
        """
        self.call = call
        self.outbox = outbox
        self.rpc = rpc
        self.cluster = cluster
        self.settings = b""
        self._client_settings = client_settings
        self._links: dict[str, _Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def brokers(self) -> list[OtherBroker]:
        """The other brokers, as they were found last."""
        return [link.to for link in self._links.values()]

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a link's work until `close`."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def settle(self, settings: schema_pb2.Settings) -> None:
        """Give all brokers the client's settings; those that were not found yet get them, too."""
        self.settings = _Command(settings=settings).SerializeToString()
        self._is_closed = False
        known = list(self._links.values())
        await asyncio.gather(self.refresh(), *(link.settle() for link in known))

    async def settle_again(self, broker_name: str) -> None:
        """Give a broker the settings that it has forgotten."""
        link = self._links.get(broker_name)
        if link is not None:
            await link.settle()

    async def refresh(self) -> None:
        """Look where the client's topics are."""
        self.use(await self.cluster.brokers_of(self._client_settings()))

    def use(self, brokers: dict[str, OtherBroker]) -> None:
        """Have a stream to each of these brokers, and to no other."""
        if self._is_closed or not self.settings:
            return
        for name in self._links.keys() - brokers.keys():
            self._links.pop(name).close()
        for name, to in brokers.items():
            link = self._links.get(name)
            if link is None:
                self._links[name] = _Link(to, self)
            else:
                link.move(to)

    async def answer(self) -> _Command | None:
        """Return another broker's answer to the settings: the first with settings, else any.

        None: there is none in time.
        """
        waiting = {link.answer for link in self._links.values()}
        other: _Command | None = None
        with contextlib.suppress(TimeoutError):
            async with fail_after(self.cluster.clock, ANSWER_LIMIT_S):
                while waiting:
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for command in (each.result() for each in done):
                        if command is not None and command.HasField("settings"):
                            return command
                        other = other or command
        return other

    async def take_answer(self, command: _Command) -> bool:
        """Forward the client's answer to a question; False: no other broker has asked."""
        kind = command.WhichOneof("command")
        if kind not in _ANSWERS:
            return False
        answer: Any = getattr(command, kind)
        answer.nonce, at, name = answer.nonce.partition("@")
        link = self._links.get(name)
        if link is not None:
            await link.write(command.SerializeToString())
        return bool(at)

    async def close(self) -> None:
        """End all streams, until settings come again."""
        self._is_closed = True
        for link in self._links.values():
            link.close()
        self._links.clear()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class ClusterSessionRpcs(SessionRpcs):
    """Handles the calls of clients' lives for all brokers of their topics. Loop thread."""

    def __init__(
        self,
        sessions: Sessions,
        groups: SubscriptionGroupManager,
        clock: Clock,
        cluster: Cluster,
        body_max: int,
    ) -> None:
        """Make it.

        Args:
            body_max: bytes of a body that the broker takes.
        """
        super().__init__(sessions, groups, clock, cluster.clock, body_max)
        self._cluster = cluster
        self._clients: dict[Key, ClientLinks] = {}  # with the newest stream that has settings
        self._rpcs = rpc_table([self])

    async def _read(self, call: Call, stream: TelemetryStream, outbox: Outbox) -> None:
        if is_forwarded(call):
            self._check_leads()
            await super()._read(call, stream, outbox)
            return
        key = key_of(call.client_id, call.account)
        links = ClientLinks(
            call, outbox, self._rpcs[TELEMETRY], self._cluster, lambda: self._client_settings(call)
        )
        try:
            while (command := await stream.read()) is not None:
                if command.HasField("settings"):
                    client_settings = self._settle(call, command.settings, outbox)
                    before, self._clients[key] = self._clients.get(key), links
                    if before not in (None, links):
                        await before.close()
                    await self._settle_all(links, command.settings, client_settings)
                elif not await links.take_answer(command):
                    self._take_answer(call, command)
        finally:
            if self._clients.get(key) is links:
                del self._clients[key]
            await links.close()

    async def _settle_all(
        self, links: ClientLinks, settings: schema_pb2.Settings, client_settings: ClientSettings
    ) -> None:
        """Give other brokers a client's settings, and answer the client."""
        answer, is_own = (
            self._own_answer(settings, client_settings),
            self._cluster.has_any(client_settings),
        )
        if is_own:
            self._answer(links.outbox, answer)
        with contextlib.suppress(TimeoutError):
            await within(self._cluster.clock, ANSWER_LIMIT_S, links.settle(settings))
        if is_own:
            return
        found = await links.answer()
        if found is not None and found.HasField("settings"):
            answer = found.settings
        elif found is not None and found.status.code in _REFUSALS:
            raise RpcRefused(found.status.code, found.status.message)
        self._answer(links.outbox, answer)

    async def heartbeat(
        self, call: Call, request: schema_pb2.HeartbeatRequest
    ) -> schema_pb2.HeartbeatResponse:
        """Keep a client in its groups at all brokers of its topics."""
        if is_forwarded(call):
            self._check_leads()
            return await super().heartbeat(call, request)
        answer = schema_pb2.HeartbeatResponse()
        refusal: RemoteProtocolError | None = None
        try:
            answer = await super().heartbeat(call, request)
        except RemoteProtocolError as error:  # the other brokers hear of it all the same
            refusal = error
        answers = await self._tell_all(call, "Heartbeat", request, await self._brokers(call))
        links = self._clients.get(key_of(call.client_id, call.account))
        for name, other in answers.items():
            if other.status.code in _REFUSALS:
                answer = other
            elif other.status.code == Code.UNRECOGNIZED_CLIENT_TYPE and links is not None:
                await links.settle_again(name)
        if refusal is not None:
            raise refusal
        return answer

    async def notify_client_termination(
        self, call: Call, request: schema_pb2.NotifyClientTerminationRequest
    ) -> schema_pb2.NotifyClientTerminationResponse:
        """Take a client out of its groups at all brokers of its topics."""
        brokers: list[OtherBroker] = []
        if is_forwarded(call):
            self._check_leads()
        else:
            brokers = await self._brokers(call)
        # Of one with several access points, the stream may be here and the last call elsewhere.
        links = self._clients.pop(key_of(call.client_id, call.account), None)
        if links is not None:
            await links.close()
        answer = await super().notify_client_termination(call, request)
        await self._tell_all(call, "NotifyClientTermination", request, brokers)
        return answer

    async def _brokers(self, call: Call) -> list[OtherBroker]:
        """Return the other brokers of a client's topics; its streams follow them."""
        links = self._clients.get(key_of(call.client_id, call.account))
        found = self._cluster.brokers_of(self._client_settings(call))
        try:
            brokers = await within(self._cluster.clock, ANSWER_LIMIT_S, found)
        except TimeoutError:
            return [] if links is None else links.brokers
        if links is not None:
            links.use(brokers)
        return list(brokers.values())

    async def _tell_all(
        self, call: Call, name: str, request: Any, brokers: list[OtherBroker]
    ) -> dict[str, Any]:
        """Forward a call to each of these brokers; return the answers that there are by name."""
        answers = await asyncio.gather(*(self._tell(call, name, request, to) for to in brokers))
        return {
            to.name: answer
            for to, answer in zip(brokers, answers, strict=True)
            if answer is not None
        }

    async def _tell(self, call: Call, name: str, request: Any, to: OtherBroker) -> Any:
        forwarded = self._cluster.forwarder.unary(self._rpcs[name], to, call, request)
        try:
            return await within(self._cluster.clock, ANSWER_LIMIT_S, forwarded)
        except (TimeoutError, NotForwarded) as error:
            log.debug("%s of %s: %s", name, shown(call.client_id), error)
            return None

    def _client_settings(self, call: Call) -> ClientSettings:
        peer = self._sessions.find(call)
        return ClientSettings(0) if peer is None else peer.settings

    def _check_leads(self) -> None:
        """Refuse a call that another endpoint has forwarded to the wrong replica.

        Raises:
            RemoteProtocolError: this one does not lead.
        """
        if not self._cluster.leads():
            raise RemoteProtocolError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"this replica does not lead {self._cluster.broker_name}: ask its master",
            )


class ClusterRouteRpcs(RouteRpcs):
    """Answers where topics are, also while this broker follows. Loop thread."""

    def __init__(
        self, context: Context, own: OwnEndpoints, client_view: ClientView, cluster: Cluster
    ) -> None:
        """Make it.

        Args:
            client_view: returns a topic as clients may see it.
        """
        super().__init__(context, own, client_view, cluster.other_brokers.of)
        self._cluster = cluster
        self._rpc = rpc_table([self])["QueryRoute"]

    async def query_route(
        self, call: Call, request: schema_pb2.QueryRouteRequest
    ) -> schema_pb2.QueryRouteResponse:
        """Return a topic's queues; of one that is not known here, the master of this set is asked.

        It may have been made a moment ago, or be made by the question.
        """
        cluster = self._cluster
        try:
            return await super().query_route(call, request)
        except RpcRefused as error:
            if error.code != Code.TOPIC_NOT_FOUND or is_forwarded(call) or cluster.leads():
                raise
            # Each broker has a topic of its own name.
            master = await cluster.other_brokers.find(cluster.broker_name, cluster.broker_name)
            if master is None:
                raise
        answer: schema_pb2.QueryRouteResponse
        answer = await cluster.forwarder.unary(self._rpc, master, call, request)
        told = self._own.told(request.endpoints)
        for queue in answer.message_queues:
            queue.broker.endpoints.CopyFrom(told)
        return answer
