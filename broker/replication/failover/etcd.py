"""Coordination by etcd 3.4 or later, through its JSON gateway: POST with a body in JSON.

    /v3/kv/range            read, linearizable
    /v3/kv/txn              swap
    /v3/lease/grant, /v3/lease/keepalive, /v3/lease/revoke
    /v3/watch               watch: an answer that goes on, one line for each change
    /v3/auth/authenticate   a token, where etcd wants to know who asks

One connection carries reads and swaps, one after the other, so that a later answer knows no less
than an earlier one. Another one carries what is about leases, because a renewal must not wait for a
slow read, and each watch has one of its own. A request that fails goes to the next endpoint, each
of them once; one that works is kept.

A swap is different, because it must not happen twice: it goes on to another endpoint only while
it certainly did not reach the one before. After that its fate is UNKNOWN, unless etcd itself says
that it refused.

Keys stand below `/skylarkmq/<cluster>/<broker name>/`, see `prefix_of`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from skylarkmq.broker.base.endpoints import Endpoint
from skylarkmq.broker.net.http_client import HttpAnswer, HttpConnection, HttpFailure, connect
from skylarkmq.broker.replication.failover.coordination import (
    Change,
    CompactedError,
    Condition,
    CoordinationError,
    Event,
    LeaseEndedError,
    Snapshot,
    Swapped,
    check_swap,
)
from skylarkmq.broker.replication.failover.etcd_answers import (
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    PERMISSION_DENIED,
    UNAUTHENTICATED,
    Answer,
    LeaseAnswer,
    NonsenseError,
    Prefix,
    RangeAnswer,
    Refusal,
    Seen,
    TokenAnswer,
    TxnAnswer,
    WatchAnswer,
    decode,
    decode_line,
    decode_refusal,
    number,
)
from skylarkmq.common.clock import Clock
from skylarkmq.remoting.tls import ClientTls
from skylarkmq.remoting.waiting import within

log = logging.getLogger(__name__)

WATCH_SILENCE_S: Final = 60.0
"""A watch that hears nothing for so long begins anew, where it was: its connection may be dead."""
NEEDS_LEADER: Final = (("Grpc-Metadata-hasleader", "true"),)
"""Ends a watch when its member loses the others; without it, it would be silent."""
TOKEN: Final = re.compile(r"[!-~]+")
"""What may stand in a header as it is."""
DEAF: Final = (
    "Is etcd running there, version 3.4 or later, and are controllerEndpoints its client URLs?"
)
CURES: Final = {
    FAILED_PRECONDITION: "If its authentication is off, take user and password out",
    INVALID_ARGUMENT: "If it is about user or password, correct them",
    PERMISSION_DENIED: "Let the role of that user read and write what begins with /skylarkmq/",
    UNAUTHENTICATED: "Correct user and password",
}
"""By code, for those that an administrator can do something about."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class EtcdConfig:
    """Where etcd is and how to ask it."""

    endpoints: tuple[Endpoint, ...]
    """Client URLs of one cluster's members, at least one."""
    user: str = ""
    """Empty: etcd asks nobody who they are, or takes the certificate for it."""
    password: str = field(default="", repr=False)
    request_limit_s: float = 2.0
    """For one request to one endpoint, its connection included."""


def prefix_of(cluster: str, broker_name: str) -> bytes:
    """Return what the keys of a broker name begin with; no two names share one.

    Raises:
        ValueError: a name is empty.
    """
    if not cluster or not broker_name:
        raise ValueError("cluster and broker name must not be empty")
    return f"/skylarkmq/{quote(cluster, safe='')}/{quote(broker_name, safe='')}/".encode()


class UnansweredError(CoordinationError):
    """What was asked may have happened."""


class RefusedError(CoordinationError):
    """etcd said no, and did nothing."""

    def __init__(self, endpoint: Endpoint, refusal: Refusal) -> None:
        cure = CURES.get(refusal.code, "")
        super().__init__(f"{endpoint} refused: {refusal}.{' ' if cure else ''}{cure}")
        self.refusal = refusal


class _Line:
    """A connection that is made when it is needed, and whose turn it is to use it."""

    def __init__(self) -> None:
        self.endpoint_number = 0
        self.connection: HttpConnection | None = None
        self.one_at_a_time = asyncio.Lock()

    def drop(self) -> None:
        """Close the connection; the next request makes another one."""
        if self.connection is not None:
            self.connection.abort()
            self.connection = None


class Etcd:
    """One broker name's keys in etcd; a `Coordination`.

    Attributes:
        seen: which cluster and member answered last.
    """

    def __init__(
        self, config: EtcdConfig, prefix: bytes, clock: Clock, tls: ClientTls | None = None
    ) -> None:
        """Take where etcd is and whose keys these are; connects when it is first asked.

        Args:
            prefix: of `prefix_of`.
            tls: for the endpoints that speak TLS; None: what the system trusts.
        """
        if not config.endpoints:
            raise ValueError("no endpoint: name at least one in controllerEndpoints")
        if tls is None or tls.context is None:
            tls = ClientTls(True if any(each.is_tls for each in config.endpoints) else None)
        self.seen = Seen()
        self._config = config
        self._prefix = Prefix(prefix)
        self._clock = clock
        self._tls = tls
        self._token = ""
        self._keys = _Line()
        self._leases = _Line()
        self._watch_number = 0
        self._watches: set[HttpConnection] = set()

    async def read(self) -> Snapshot:
        asked = {"key": self._prefix.begin, "range_end": self._prefix.end}

        def understood(body: bytes) -> Snapshot:
            answer = decode(body, RangeAnswer)
            revision = self.seen.check(answer, is_linearizable=True)
            return self._prefix.snapshot(answer, revision)

        return await self._ask(self._keys, "/v3/kv/range", asked, understood)

    async def swap(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> Swapped:
        check_swap(conditions, changes)
        asked = {
            "compare": [each for one in conditions for each in self._comparisons(one)],
            "success": [self._operation(change) for change in changes],
        }

        def understood(body: bytes) -> Swapped:
            answer = decode(body, TxnAnswer)
            self.seen.check(answer, is_linearizable=True)
            return Swapped.DONE if answer.succeeded else Swapped.REFUSED

        try:
            return await self._ask(self._keys, "/v3/kv/txn", asked, understood, once=True)
        except UnansweredError as error:
            log.warning("a change in etcd may or may not have happened: %s", error)
            return Swapped.UNKNOWN
        except RefusedError as error:
            if not error.refusal.is_lease_ended:
                raise
            leases = sorted({change.lease for change in changes if change.lease})
            raise LeaseEndedError(
                f"of the leases {leases} one has ended, so nothing changed: ask for a new one"
            ) from error

    async def grant(self, ttl_s: int) -> int:
        def understood(body: bytes) -> int:
            answer = self._lease(decode(body, LeaseAnswer))
            if answer.error:
                raise NonsenseError(f"a lease with the error {answer.error[:80]!a}")
            number(answer.ttl, "TTL", ttl_s)
            return number(answer.id, "ID", 1)

        return await self._ask(self._leases, "/v3/lease/grant", {"TTL": str(ttl_s)}, understood)

    async def renew(self, lease: int) -> bool:
        def understood(body: bytes) -> bool:
            said = decode_line(body.partition(b"\n")[0], LeaseAnswer)
            if isinstance(said, Refusal):
                raise CoordinationError(f"it did not renew the lease: {said}")
            answer = self._lease(said)
            if number(answer.id, "ID") != lease:
                raise NonsenseError(f"it is about lease {answer.id}, not {lease}")
            return number(answer.ttl, "TTL") > 0

        return await self._ask(self._leases, "/v3/lease/keepalive", {"ID": str(lease)}, understood)

    async def revoke(self, lease: int) -> None:
        def understood(body: bytes) -> None:
            self.seen.check(decode(body, Answer), is_linearizable=False)

        try:
            await self._ask(self._leases, "/v3/lease/revoke", {"ID": str(lease)}, understood)
        except RefusedError as error:
            if not error.refusal.is_lease_ended:
                raise

    async def watch(self, after_revision: int) -> AsyncGenerator[Event]:
        while True:
            connection, lines = await self._open_watch(after_revision)
            self._watches.add(connection)
            try:
                async with aclosing(lines):
                    while (answer := await self._next_change(lines, connection)) is not None:
                        for event in self._prefix.events(answer, after_revision):
                            after_revision = event.revision
                            yield event
            finally:
                self._watches.discard(connection)
                connection.abort()

    def close(self) -> None:
        """Close all connections; what waits for an answer fails."""
        self._keys.drop()
        self._leases.drop()
        for connection in self._watches:
            connection.abort()

    # Requests

    async def _ask(
        self,
        line: _Line,
        path: str,
        asked: Mapping[str, object],
        understood: Callable[[bytes], T],
        *,
        once: bool = False,
    ) -> T:
        """Send a request to one endpoint after the other until one gives an answer.

        Args:
            understood: returns what an answer's body says; raises NonsenseError.
            once: it must not happen twice.

        Raises:
            RefusedError: etcd refused, and nothing happened. UnansweredError: it may have happened,
            of `once` alone. CoordinationError: no endpoint answered, or nonsense; nothing happened
            when it is `once`.
        """
        body = msgspec.json.encode(asked)
        async with line.one_at_a_time:
            failures: list[str] = []
            # One more where the first one finds a connection that has died since it was last used.
            tries = len(self._config.endpoints) + (line.connection is not None)
            for _ in range(tries):
                endpoint = self._config.endpoints[line.endpoint_number]
                try:
                    return await self._ask_endpoint(line, endpoint, path, body, understood, once)
                except (NonsenseError, UnansweredError, RefusedError):
                    raise
                except CoordinationError as error:
                    failures.append(str(error))
            raise CoordinationError(f"no endpoint of etcd answers: {'; '.join(failures)}. {DEAF}")

    async def _ask_endpoint(
        self,
        line: _Line,
        endpoint: Endpoint,
        path: str,
        body: bytes,
        understood: Callable[[bytes], T],
        once: bool,
    ) -> T:
        """Ask one endpoint; when it fails, the next request goes to another one."""
        try:
            answer = await self._exchange(line, endpoint, path, body)
            if answer.status == 200:
                return understood(answer.body)
            refusal = decode_refusal(answer.status, answer.body)
        except BaseException as error:
            # Also when the caller does not wait any more: the answer may still come.
            was_sent = line.connection is not None and line.connection.sent
            self._give_up(line, endpoint)
            if once and was_sent and isinstance(error, CoordinationError):
                raise UnansweredError(str(error)) from error
            raise
        if refusal.changed_nothing:
            raise RefusedError(endpoint, refusal)
        self._give_up(line, endpoint)
        kind = UnansweredError if once else CoordinationError
        raise kind(f"{endpoint}: {refusal}")

    async def _exchange(
        self, line: _Line, endpoint: Endpoint, path: str, body: bytes
    ) -> HttpAnswer:
        """Return the answer of one endpoint, with a new token where the old one is refused."""
        limit_s = self._config.request_limit_s
        try:
            if line.connection is None or not line.connection.is_usable:
                line.drop()
                line.connection = await within(self._clock, limit_s, connect(endpoint, self._tls))
            connection = line.connection
            if self._config.user and not self._token:
                await self._authenticate(connection)
            answer = await self._post(connection, path, body)
            if answer.status == 200 or not self._config.user:
                return answer
            if not decode_refusal(answer.status, answer.body).wants_token:
                return answer
            log.info("%s wants a new token", endpoint)
            await self._authenticate(connection)
            return await self._post(connection, path, body)
        except (TimeoutError, HttpFailure) as error:
            raise _said_of(endpoint, error, limit_s) from error

    async def _authenticate(self, connection: HttpConnection) -> None:
        """Get a token for the user."""
        self._token = ""
        config = self._config
        asked = msgspec.json.encode({"name": config.user, "password": config.password})
        answer = await self._post(connection, "/v3/auth/authenticate", asked)
        connection.sent = False  # not what the caller asks for
        if answer.status != 200:
            refusal = decode_refusal(answer.status, answer.body)
            if refusal.status < 500 and refusal.code >= 0:
                raise RefusedError(connection.endpoint, refusal)
            raise CoordinationError(f"{connection.endpoint}: {refusal}")
        token = decode(answer.body, TokenAnswer)
        self.seen.check(token, is_linearizable=False)
        if not TOKEN.fullmatch(token.token):
            raise NonsenseError("there is no token in it")
        self._token = token.token

    async def _post(self, connection: HttpConnection, path: str, body: bytes) -> HttpAnswer:
        posted = connection.post(path, body, self._headers())
        return await within(self._clock, self._config.request_limit_s, posted)

    def _headers(self) -> list[tuple[str, str]]:
        return [("Authorization", self._token)] if self._token else []

    def _give_up(self, line: _Line, endpoint: Endpoint) -> None:
        """Begin with the next endpoint, on a new connection."""
        line.drop()
        endpoints = self._config.endpoints
        line.endpoint_number = (endpoints.index(endpoint) + 1) % len(endpoints)

    # Watches

    async def _open_watch(
        self, after_revision: int
    ) -> tuple[HttpConnection, AsyncGenerator[HttpAnswer]]:
        """Return a watch that has begun, at one endpoint after the other until one is found."""
        failures: list[str] = []
        endpoints = self._config.endpoints
        for _ in endpoints:
            endpoint = endpoints[self._watch_number]
            try:
                return await self._begin_watch(endpoint, after_revision)
            except (NonsenseError, CompactedError):
                raise
            except CoordinationError as error:
                failures.append(str(error))
            finally:
                # The next watch is another member's, so that one that is behind is left soon.
                self._watch_number = (self._watch_number + 1) % len(endpoints)
        raise CoordinationError(f"no endpoint of etcd lets watch: {'; '.join(failures)}. {DEAF}")

    async def _begin_watch(
        self, endpoint: Endpoint, after_revision: int
    ) -> tuple[HttpConnection, AsyncGenerator[HttpAnswer]]:
        # From the known revision, not the next one: when the history up to a deletion is forgotten,
        # etcd 3.5 lets a watch from that deletion begin, and never tells it.
        asked = {
            "create_request": {
                "key": self._prefix.begin,
                "range_end": self._prefix.end,
                "start_revision": str(max(after_revision, 1)),
            }
        }
        limit_s = self._config.request_limit_s
        connection: HttpConnection | None = None
        try:
            connection = await within(self._clock, limit_s, connect(endpoint, self._tls))
            if self._config.user and not self._token:
                await self._authenticate(connection)
            headers = [*self._headers(), *NEEDS_LEADER]
            lines = connection.lines("/v3/watch", msgspec.json.encode(asked), headers)
            first = await within(self._clock, limit_s, anext(lines))
            if not self._watch_answer(first, endpoint).created:
                raise NonsenseError("a watch that begins without saying so")
        except BaseException as error:
            if connection is not None:
                connection.abort()
            if isinstance(error, TimeoutError | HttpFailure):
                raise _said_of(endpoint, error, limit_s) from error
            raise
        return connection, lines

    async def _next_change(
        self, lines: AsyncGenerator[HttpAnswer], connection: HttpConnection
    ) -> WatchAnswer | None:
        """Return what the watch says next; None: nothing for so long that it must begin anew."""
        try:
            line = await within(self._clock, WATCH_SILENCE_S, anext(lines))
        except TimeoutError:
            return None
        except HttpFailure as error:
            raise CoordinationError(
                f"the watch at {connection.endpoint} was lost ({error}): read again"
            ) from error
        return self._watch_answer(line, connection.endpoint)

    def _watch_answer(self, line: HttpAnswer, endpoint: Endpoint) -> WatchAnswer:
        """Return what a line of a watch says, when the watch goes on."""
        if line.status != 200:
            answer: WatchAnswer | Refusal = decode_refusal(line.status, line.body)
        else:
            answer = decode_line(line.body, WatchAnswer)
        if isinstance(answer, Refusal):
            self._forget_token(answer)
            raise CoordinationError(f"{endpoint} ended the watch: {answer}")
        self.seen.check(answer, is_linearizable=False)
        compacted = number(answer.compact_revision, "compact_revision")
        if compacted:
            raise CompactedError(
                f"etcd has forgotten the changes before revision {compacted}: read again"
            )
        if answer.canceled:
            self._forget_token(Refusal(200, UNAUTHENTICATED, answer.cancel_reason))
            raise CoordinationError(
                f"{endpoint} ended the watch ({answer.cancel_reason[:300]!a}): read again"
            )
        return answer

    def _forget_token(self, refusal: Refusal) -> None:
        if refusal.wants_token:
            self._token = ""

    # Forms

    def _comparisons(self, condition: Condition) -> list[dict[str, object]]:
        """Return what etcd is to compare; a key that is missing has revision 0 and lease 0."""
        same = {"key": self._prefix.full(condition.key), "result": "EQUAL"}
        compared: list[dict[str, object]] = []
        if condition.revision is not None:
            revision = str(condition.revision)
            compared.append({**same, "target": "MOD", "mod_revision": revision})
        if condition.lease is not None:
            compared.append({**same, "target": "LEASE", "lease": str(condition.lease)})
        return compared

    def _operation(self, change: Change) -> dict[str, Any]:
        key = self._prefix.full(change.key)
        if change.value is None:
            return {"request_delete_range": {"key": key}}
        return {"request_put": {"key": key, "value": change.value, "lease": str(change.lease)}}

    def _lease(self, answer: LeaseAnswer) -> LeaseAnswer:
        self.seen.check(answer, is_linearizable=False)
        return answer


def _said_of(
    endpoint: Endpoint, error: TimeoutError | HttpFailure, limit_s: float
) -> CoordinationError:
    """Return what callers are told of an endpoint that failed."""
    if isinstance(error, TimeoutError):
        return CoordinationError(f"{endpoint}: no answer within {limit_s:g} s")
    return CoordinationError(f"{endpoint}: {error}")
