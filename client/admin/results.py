"""What administrators are told: frozen, and each with a form for JSON that stays as it is.

All offsets are queue offsets, all times UTC. `to_json()` uses the attributes' names; a time is text
in ISO 8601, a queue an object of topic, broker and queue_id, bytes are text in base64.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import Enum
from typing import Literal, cast

from skylarkmq.client.errors import ConnectionFailed, RequestTimeout, RocketMQError, RouteNotFound
from skylarkmq.client.message_json import JsonValue as JsonValue
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.protocol.message import MessageQueue


class Result:
    """Root of the results."""

    __slots__ = ()

    def to_json(self) -> dict[str, JsonValue]:
        """Return the same as plain dicts, lists, texts and numbers."""
        return {
            each.name: as_json(getattr(self, each.name))
            for each in fields(self)  # type: ignore[arg-type]
        }


def as_json(value: object) -> JsonValue:
    """Return any result's attribute in the form for JSON."""
    if isinstance(value, MessageQueue):
        return {
            "topic": value.topic, "broker": value.broker_name, "queue_id": value.queue_id
        }  # fmt: skip
    if isinstance(value, Enum):
        return as_json(value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Result | StoredMessage):
        return value.to_json()
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        rows = cast("Mapping[object, object]", value)
        if any(isinstance(key, MessageQueue) for key in rows):
            return [{"queue": as_json(key), "offset": as_json(item)} for key, item in rows.items()]
        return {str(key): as_json(item) for key, item in rows.items()}
    return [as_json(item) for item in cast("Iterable[object]", value)]


# Who did not answer


Why = Literal["silent", "away", "refused"]


def why(error: RocketMQError) -> Why:
    """Return in one word why a server did not answer."""
    if isinstance(error, RequestTimeout):
        return "silent"
    return "away" if isinstance(error, ConnectionFailed | RouteNotFound) else "refused"


@dataclass(frozen=True, slots=True)
class Unanswered(Result):
    """A broker that was asked and did not answer: what it knows is missing in what others told."""

    broker: str
    address: str
    error: RocketMQError

    def to_json(self) -> dict[str, JsonValue]:
        """Return the same as plain texts; `why` is silent, away or refused."""
        return {
            "broker": self.broker, "address": self.address, "why": why(self.error),
            "error": str(self.error),
        }  # fmt: skip

    def __str__(self) -> str:
        return f"{self.broker} ({self.address}), {why(self.error)}: {self.error}"


# Groups


@dataclass(frozen=True, slots=True)
class GroupSettings(Result):
    """A consumer group on one broker."""

    broker: str
    consume_enabled: bool = True
    broadcast_enabled: bool = True
    from_min_enabled: bool = True
    retry_queues: int = 1
    max_retries: int = 16
    notify_members: bool = True
    broker_id: int = 0
    broker_id_when_slow: int = 1
    orderly: bool = False


@dataclass(frozen=True, slots=True)
class Connection(Result):
    """One client of a group, and the brokers that it is connected to."""

    client_id: str
    address: str
    language: str
    version: int
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscriptionSummary(Result):
    """What a group wants of a topic; `kind` is TAG or SQL92, `*` means all."""

    topic: str
    expression: str
    kind: str


@dataclass(frozen=True, slots=True)
class GroupMembers(Result):
    """Who is in a consumer group now; without members the other parts are empty.

    `model` is CLUSTERING or BROADCASTING, `kind` CONSUME_PASSIVELY or CONSUME_ACTIVELY.
    `differing` names members that subscribe to something else than others; brokers of ours only.
    """

    group: str
    members: tuple[Connection, ...]
    model: str = ""
    kind: str = ""
    start_from: str = ""
    subscriptions: tuple[SubscriptionSummary, ...] = ()
    differing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupDescription(Result):
    """A consumer group: its settings by broker, and who is in it."""

    group: str
    settings: tuple[GroupSettings, ...]
    members: GroupMembers


@dataclass(frozen=True, slots=True)
class QueueProgress(Result):
    """How far a group is in one queue; `consumed_at`: when its last done message was stored."""

    queue: MessageQueue
    committed: int
    end: int
    consumed_at: datetime | None

    @property
    def lag(self) -> int:
        """Messages that are not done."""
        return max(0, self.end - self.committed)

    def to_json(self) -> dict[str, JsonValue]:
        return {**Result.to_json(self), "lag": self.lag}


@dataclass(frozen=True, slots=True)
class GroupProgress(Result):
    """How far a group is in all queues for which it has committed; `tps` messages a second."""

    group: str
    tps: float
    queues: tuple[QueueProgress, ...]

    @property
    def lag(self) -> int:
        """Messages that are not done, retries included."""
        return sum(queue.lag for queue in self.queues)

    def to_json(self) -> dict[str, JsonValue]:
        return {**Result.to_json(self), "lag": self.lag}


@dataclass(frozen=True, slots=True)
class MemberQueue(Result):
    """One queue as a member holds it."""

    queue: MessageQueue
    values: Mapping[str, int | bool] = field(hash=False)


@dataclass(frozen=True, slots=True)
class MemberInfo(Result):
    """What one member of a group is doing, as it says itself."""

    client_id: str
    properties: Mapping[str, str] = field(hash=False)
    subscriptions: tuple[SubscriptionSummary, ...]
    queues: tuple[MemberQueue, ...]
    topics: Mapping[str, Mapping[str, float]] = field(hash=False)
    """By topic: rates a second (consumeOKTPS ...) and times in ms (consumeRT, pullRT)."""
    stack: str | None = None


@dataclass(frozen=True, slots=True)
class MessageTrack(Result):
    """How one group stands to one message, as its offset and its members' subscription tell.

    A group passes a message that a member has handled, that it handed back for a retry, and that it
    was moved beyond.
    """

    group: str
    members: int
    kind: str
    """As of `GroupMembers`; who consumes actively keeps its offsets as it likes."""
    is_passed: bool | None
    """None: the group has committed nothing in that queue."""
    is_wanted: bool | None
    """Whether the subscription has its tag; None: nobody tells, or it is no subscription by tag."""


# Offsets


@dataclass(frozen=True, slots=True)
class QueueReset(Result):
    """One queue of a reset: where the group stood (None: nowhere yet), and where it goes on.

    `how`: `members` are told by the broker and commit themselves, which takes them some seconds;
    `broker` moves it at once, also where members pop; `written` by a commit in the group's name.
    """

    queue: MessageQueue
    before: int | None
    after: int
    how: Literal["members", "broker", "written"]

    @property
    def moved(self) -> int:
        """Messages skipped, or below 0: to be consumed again."""
        return self.after - (self.before or 0)


@dataclass(frozen=True, slots=True)
class OffsetReset(Result):
    """What a reset did or, as a dry run, would do."""

    group: str
    topic: str
    dry_run: bool
    queues: tuple[QueueReset, ...]


@dataclass(frozen=True, slots=True)
class ConsumedDirectly(Result):
    """What came of it: CR_SUCCESS, CR_LATER, CR_THROW_EXCEPTION ...; the member's own words."""

    outcome: str
    remark: str
    spent_ms: int
