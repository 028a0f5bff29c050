"""What etcd says in JSON, and the checks that it means something. No I/O.

    name             written as
    number           a string of digits, "7"; left out when it is 0
    key, value       base64; left out when empty
    an error         {"code": 5, "message": "..."}, with an HTTP status that is not 200
    an answer that   {"result": {...}}, one line each, or {"error": {"grpc_code": 5,
    goes on           "message": "..."}}

Names and forms as etcd 3.4 and later have them; seen on 3.5.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from skylarkmq.broker.replication.failover.coordination import (
    CoordinationError,
    Entry,
    Event,
    Snapshot,
)

INT64_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1
INVALID_ARGUMENT: Final = 3
NOT_FOUND: Final = 5
PERMISSION_DENIED: Final = 7
FAILED_PRECONDITION: Final = 9
UNAUTHENTICATED: Final = 16
CHANGED_NOTHING: Final = frozenset(
    {INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, UNAUTHENTICATED}
)
"""Codes of refusals before anything was done. Not RESOURCE_EXHAUSTED (8): when its disk quota is
used up, etcd may make a change and then answer with that error."""
TOKEN_REFUSALS: Final = (
    "invalid auth token",
    "revision of auth store is old",
    "user name is empty",
)
"""Words of refusals that a new token may cure; etcd has codes 3 and 16 for them."""
UNHEALTHY: Final = (
    "If that is not the etcd of this cluster, correct controllerEndpoints; if it is, look at its "
    "log and whether something between changes its answers"
)

Number = int | str
T = TypeVar("T")


class NonsenseError(CoordinationError):
    """An answer that etcd does not give."""

    def __init__(self, why: str, cure: str = UNHEALTHY) -> None:
        super().__init__(f"etcd's answer makes no sense: {why}. {cure}")


class Header(msgspec.Struct):
    """Who answers, and of when."""

    cluster_id: Number = 0
    member_id: Number = 0
    revision: Number = 0


class KeyValue(msgspec.Struct):
    """A key, as it is stored."""

    key: bytes = b""
    value: bytes = b""
    mod_revision: Number = 0
    lease: Number = 0


class Answer(msgspec.Struct):
    """What all answers have."""

    header: Header | None = None


class RangeAnswer(Answer):
    """Of /v3/kv/range."""

    kvs: list[KeyValue] | None = None
    more: bool = False


class TxnAnswer(Answer):
    """Of /v3/kv/txn."""

    succeeded: bool = False


class LeaseAnswer(Answer):
    """Of /v3/lease/grant, and a line of /v3/lease/keepalive."""

    id: Number = msgspec.field(name="ID", default=0)
    ttl: Number = msgspec.field(name="TTL", default=0)
    error: str = ""


class TokenAnswer(Answer):
    """Of /v3/auth/authenticate."""

    token: str = ""


class WatchEvent(msgspec.Struct):
    """One key that changed."""

    type: str | int = "PUT"
    kv: KeyValue | None = None


class WatchAnswer(Answer):
    """A line of /v3/watch."""

    created: bool = False
    canceled: bool = False
    compact_revision: Number = 0
    cancel_reason: str = ""
    events: list[WatchEvent] | None = None


class Refusal(NamedTuple):
    """An error that etcd, or something before it, gave for an answer."""

    status: int
    code: int
    """gRPC's; -1: the answer is not etcd's."""
    message: str

    @property
    def changed_nothing(self) -> bool:
        """Whether what was asked for certainly did not happen."""
        return self.code in CHANGED_NOTHING

    @property
    def is_lease_ended(self) -> bool:
        """Whether a lease was named that etcd does not have; not that the path is unknown."""
        return self.code == NOT_FOUND and "lease not found" in self.message

    @property
    def wants_token(self) -> bool:
        """Whether a new token may help."""
        return self.code in (INVALID_ARGUMENT, UNAUTHENTICATED) and any(
            words in self.message for words in TOKEN_REFUSALS
        )

    def __str__(self) -> str:
        return f"{self.message[:300]!a} (HTTP status {self.status}, code {self.code})"


@dataclass(slots=True)
class Seen:
    """What earlier answers said of the cluster; an answer that contradicts them is not believed."""

    cluster_id: int = 0
    member_id: int = 0
    """Who answered last."""
    revision: int = 0
    """The highest of a linearizable answer."""

    def check(self, answer: Answer, *, is_linearizable: bool) -> int:
        """Return the revision in the header, and remember who answered.

        Args:
            is_linearizable: no earlier such answer may have a higher revision. Answers about
                leases and of watches may lag behind.

        Raises:
            NonsenseError: there is no header, another cluster answers, or its history went back.
        """
        if answer.header is None:
            raise NonsenseError("it has no header")
        cluster_id = number(answer.header.cluster_id, "cluster_id", 1, UINT64_MAX)
        member_id = number(answer.header.member_id, "member_id", 0, UINT64_MAX)
        revision = number(answer.header.revision, "revision", 0)
        if self.cluster_id not in (0, cluster_id):
            raise NonsenseError(
                f"it comes from cluster {cluster_id:x}, and earlier ones from {self.cluster_id:x}",
                "All controllerEndpoints must be members of one cluster; if etcd was made anew on "
                "purpose, restart the brokers",
            )
        if is_linearizable and revision < max(self.revision, 1):
            raise NonsenseError(
                f"it is of revision {revision}, and an earlier one was of {self.revision}",
                "etcd's data went back, as after a restore: compare the replicas, then restart "
                "the brokers",
            )
        self.cluster_id, self.member_id = cluster_id, member_id
        if is_linearizable:
            self.revision = revision
        return revision


def decode(body: bytes, form: type[T]) -> T:
    """Return an answer in its form.

    Raises:
        NonsenseError: it is no JSON, or has values of other types.
    """
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise NonsenseError(f"{error}; it begins with {body[:80]!a}") from error


def decode_line(line: bytes, form: type[T]) -> T | Refusal:
    """Return what stands in a line of an answer that goes on.

    Raises:
        NonsenseError: neither a result nor an error.
    """
    raw = decode(line, dict[str, msgspec.Raw])
    if "result" in raw:
        return decode(bytes(raw["result"]), form)
    if "error" in raw:
        return decode_refusal(200, line)
    raise NonsenseError(f"neither result nor error: {line[:80]!a}")


def decode_refusal(status: int, body: bytes) -> Refusal:
    """Return the error in an answer; what is not etcd's keeps its words, without a code."""
    unknown = Refusal(status, -1, body[:300].decode("utf-8", "replace"))
    try:
        raw: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return unknown
    if not isinstance(raw, dict):
        return unknown
    said = cast("dict[str, Any]", raw)
    inner = said.get("error")
    fields = cast("dict[str, Any]", inner) if isinstance(inner, dict) else said
    code = fields.get("code", fields.get("grpc_code"))
    message = fields.get("message", "")
    if type(code) is not int or not isinstance(message, str):
        return unknown
    return Refusal(status, code, message)


def number(value: Number, name: str, least: int = 0, most: int = INT64_MAX) -> int:
    """Return a number of an answer.

    Raises:
        NonsenseError: it is none, or out of its bounds.
    """
    if isinstance(value, int):
        read = value
    elif value.isascii() and value.removeprefix("-").isdigit() and len(value) <= 20:
        read = int(value)
    else:
        raise NonsenseError(f"{name} is {value[:40]!a}")
    if not least <= read <= most:
        raise NonsenseError(f"{name} is {read}")
    return read


class Prefix:
    """The keys of one broker name, and how they are called in etcd."""

    def __init__(self, prefix: bytes) -> None:
        """Take what all those keys begin with; it ends with a slash."""
        self.begin = prefix
        self.end = prefix[:-1] + bytes([prefix[-1] + 1])

    def full(self, key: str) -> bytes:
        """Return a key's whole name."""
        return self.begin + key.encode()

    def snapshot(self, answer: RangeAnswer, revision: int) -> Snapshot:
        """Return the keys that were read at a revision.

        Raises:
            NonsenseError: keys of others, keys twice, parts, revisions that are not there yet.
        """
        if answer.more:
            raise NonsenseError("it leaves keys out, and was asked for all")
        entries: dict[str, Entry] = {}
        for stored in answer.kvs or ():
            entry = self._entry(stored)
            if entry.key in entries:
                raise NonsenseError(f"{entry.key!a} stands there twice")
            if entry.revision > revision:
                raise NonsenseError(f"{entry.key!a} is of revision {entry.revision}, of {revision}")
            entries[entry.key] = entry
        return Snapshot(revision, entries)

    def events(self, answer: WatchAnswer, after_revision: int) -> Iterator[Event]:
        """Yield what a watch told, one for each revision; those up to `after_revision` are known.

        Raises:
            NonsenseError: keys of others, or revisions that are not in order.
        """
        entries: dict[str, Entry | None] = {}
        last = 0
        for told in answer.events or ():
            if told.kv is None:
                raise NonsenseError("an event without a key")
            if told.type not in ("PUT", "DELETE", 0, 1):
                raise NonsenseError(f"an event of type {told.type!a}")
            entry = self._entry(told.kv)
            if entry.revision < last:
                raise NonsenseError(f"an event of revision {entry.revision} after one of {last}")
            if entry.revision > last:
                if entries:
                    yield Event(last, entries)
                entries, last = {}, entry.revision
            if entry.revision > after_revision:
                entries[entry.key] = None if told.type in ("DELETE", 1) else entry
        if entries:
            yield Event(last, entries)

    def _entry(self, stored: KeyValue) -> Entry:
        if not stored.key.startswith(self.begin) or stored.key == self.begin:
            raise NonsenseError(f"a key that was not asked for: {stored.key[:80]!a}")
        try:
            key = stored.key[len(self.begin) :].decode()
        except UnicodeDecodeError:
            raise NonsenseError(
                f"a key that is no text: {stored.key[:80]!a}", "Delete it: no broker wrote it"
            ) from None
        revision = number(stored.mod_revision, "mod_revision", 1)
        return Entry(key, stored.value, revision, number(stored.lease, "lease"))
