"""What the broker counts: plain integers and small histograms, owned by the loop thread.

A processor looks its counter up once and then adds to its attributes:

    counter = stats.topic_out("orders", "billing")      # one dict lookup
    counter.count += 1
    counter.bytes += size

Labels that grow with user data (topic, group) are capped at `series_limit` a family; what comes
later is counted under the name `__other__`, and each such fold is itself counted. Series of a topic
or group that is deleted go with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from skylarkmq.common.histogram import Histogram
from skylarkmq.protocol.frame import SerializeType

OTHER: Final = "__other__"
SERIES_LIMIT: Final = 10_000

MESSAGE_TYPES: Final = ("normal", "delay", "transaction", "priority")
PROTOCOL_ERROR_KINDS: Final = (
    "bad_length",
    "bad_header",
    "too_large",
    "tls",
    "unknown_code",
    "idle_timeout",
    "http2",
)
PULL_RESULTS: Final = (
    "found",
    "no_new",
    "no_matched",
    "offset_moved",
)
# Why a connection ended: the peer closed it, the socket failed, the peer broke the protocol,
# was silent, did not read or did not finish a frame; the broker stopped, or had no room for it; its
# account or address may less since the accounts changed.
CLOSE_REASONS: Final = (
    "peer",
    "error",
    "protocol_error",
    "idle_timeout",
    "slow_reader",
    "slow_sender",
    "shutdown",
    "limit",
    "revoked",
    "other",
)
SERIES_FAMILIES: Final = (
    "messages_in",
    "messages_out",
    "messages_sent_back",
    "dead_letters",
    "transactions",
    "consumer_lag",
    "consumer_inflight",
    "topic_offset",
)
FINISH_BOUNDS_S: Final = (5.0, 60.0, 600.0, 3600.0, 43_200.0, 86_400.0)
"""RocketMQ's, of the time that transactions take."""
SIZE_BOUNDS: Final = (1024, 4096, 524_288, 1_048_576, 2_097_152, 4_194_304)
"""RocketMQ's, of the sizes of records in bytes; `kernel/sends.pxi` has them, too."""
OUTCOMES: Final = ("ok", "error")
# Why a request was refused for overload: it waited too long for its turn, too many wait already.
REJECTION_CAUSES: Final = ("queue_wait", "queue_full", "acl")
# Why access control refused a request: without an access key, of no account, wrongly signed; its
# account lacks a right, is no admin, or may not read everything.
AUTH_FAILURES: Final = (
    "no_access_key",
    "unknown_account",
    "bad_signature",
    "no_permission",
    "not_admin",
    "not_reader",
)


class Traffic:
    """How many, and how many bytes of them."""

    __slots__ = ("bytes", "count")

    def __init__(self) -> None:
        self.count: int = 0
        self.bytes = 0


class TrafficIn(Traffic):
    """What was sent to a topic; bytes are those of its records."""

    __slots__ = ("sizes",)

    def __init__(self) -> None:
        super().__init__()
        self.sizes = Histogram(SIZE_BOUNDS)

    def add(self, size: int, count: int = 1) -> None:
        """Count what one request stored; in `sizes` a batch shows once, as the average.

        Args:
            size: bytes of its records.
            count: its messages.
        """
        self.count += count
        self.bytes += size
        self.sizes.observe(size // count)


_AnyTraffic = TypeVar("_AnyTraffic", bound=Traffic)


class TransactionEnds:
    """How the transactions of a topic ended."""

    __slots__ = ("committed", "finish_s", "rolled_back")

    def __init__(self) -> None:
        self.committed = 0
        self.rolled_back = 0
        self.finish_s = Histogram(FINISH_BOUNDS_S)  # whole seconds from birth to commit


class BrokerStats:
    """Counters of one broker since its start. Loop thread.

    Its size is one idea: an attribute is one measure, and none depends on another.
    """

    __slots__ = (
        "auth_failures",
        "connections_closed",
        "connections_opened",
        "dead_letters",
        "forced_failovers",
        "forgotten_out",
        "frames_in",
        "frames_out",
        "heartbeats_refused",
        "loop_lag",
        "messages_at_risk",
        "protocol_errors",
        "pull_results",
        "pulled",
        "rejections",
        "requests",
        "sent_back",
        "series_dropped",
        "series_limit",
        "topics_in",
        "topics_out",
        "transactions",
    )

    def __init__(self, series_limit: int = SERIES_LIMIT) -> None:
        self.series_limit = series_limit
        # Family -> folds.
        self.series_dropped: dict[str, int] = dict.fromkeys(SERIES_FAMILIES, 0)
        self.topics_in: dict[tuple[str, str], TrafficIn] = {}  # (topic, message type)
        self.topics_out: dict[tuple[str, str], Traffic] = {}  # (topic, group)
        self.sent_back: dict[tuple[str, str], Traffic] = {}  # (topic, group that gave it back)
        self.dead_letters: dict[tuple[str, str], Traffic] = {}  # (topic it was for, group)
        self.transactions: dict[str, TransactionEnds] = {}  # by topic
        # (topic, group) -> queue id -> the queue offset after what was handed out last
        self.pulled: dict[tuple[str, str], dict[int, int]] = {}
        self.forgotten_out = 0  # messages that were counted for topics and groups deleted since
        # Whole frames with their bytes, by the type byte of their header.
        self.frames_in: dict[int, Traffic] = {kind.value: Traffic() for kind in SerializeType}
        self.frames_out: dict[int, Traffic] = {kind.value: Traffic() for kind in SerializeType}
        self.protocol_errors: dict[str, int] = dict.fromkeys(PROTOCOL_ERROR_KINDS, 0)
        self.pull_results: dict[str, int] = dict.fromkeys(PULL_RESULTS, 0)
        self.auth_failures: dict[str, int] = dict.fromkeys(AUTH_FAILURES, 0)
        self.heartbeats_refused = 0
        self.forced_failovers = 0
        self.messages_at_risk = 0  # by forced failovers
        self.connections_opened = 0
        self.connections_closed: dict[str, int] = dict.fromkeys(CLOSE_REASONS, 0)
        self.requests: dict[tuple[int, str], Histogram] = {}  # (code, outcome) -> s
        self.loop_lag = Histogram()  # s
        self.rejections: dict[tuple[str, str], int] = {}  # (kind of request, cause) -> count

    def rejected(self, kind: str, cause: str) -> None:
        """Count a request that was refused for overload; causes as in REJECTION_CAUSES."""
        self.rejections[kind, cause] = self.rejections.get((kind, cause), 0) + 1

    def topic_in(self, topic: str, message_type: str = "normal") -> TrafficIn:
        """Return the counter of messages stored for a topic; `message_type` as in MESSAGE_TYPES."""
        counter = self.topics_in.get((topic, message_type))
        if counter is None:
            key, folded = (topic, message_type), (OTHER, message_type)
            counter = self._new_series("messages_in", self.topics_in, key, folded, TrafficIn)
        return counter

    def topic_out(self, topic: str, group: str) -> Traffic:
        """Return the counter of messages of a topic handed to a consumer group."""
        counter = self.topics_out.get((topic, group))
        if counter is None:
            key, folded = (topic, group), (OTHER, OTHER)
            counter = self._new_series("messages_out", self.topics_out, key, folded, Traffic)
        return counter

    def topic_back(self, topic: str, group: str) -> Traffic:
        """Return the counter of messages of a topic that a consumer group gave back."""
        counter = self.sent_back.get((topic, group))
        if counter is None:
            key, folded = (topic, group), (OTHER, OTHER)
            counter = self._new_series("messages_sent_back", self.sent_back, key, folded, Traffic)
        return counter

    def dead_letter(self, topic: str, group: str) -> Traffic:
        """Return the counter of messages of a topic that went to a group's dead letters."""
        counter = self.dead_letters.get((topic, group))
        if counter is None:
            key, folded = (topic, group), (OTHER, OTHER)
            counter = self._new_series("dead_letters", self.dead_letters, key, folded, Traffic)
        return counter

    def transactions_of(self, topic: str) -> TransactionEnds:
        """Return the counters of the transactions of a topic."""
        ends = self.transactions.get(topic)
        if ends is None:
            if len(self.transactions) >= self.series_limit:
                self.series_dropped["transactions"] += 1
                topic = OTHER
            ends = self.transactions.setdefault(topic, TransactionEnds())
        return ends

    def pulled_by(self, topic: str, group: str) -> dict[int, int]:
        """Return where a group goes on in the queues of a topic, as its last pulls were answered.

        The caller notes by queue id the offset after what it hands out. Beyond the limit of series
        what it notes is lost.
        """
        offsets = self.pulled.get((topic, group))
        if offsets is None:
            offsets = {}
            if len(self.pulled) < self.series_limit:
                self.pulled[topic, group] = offsets
            else:
                self.series_dropped["consumer_inflight"] += 1
        return offsets

    @property
    def messages_out(self) -> int:
        """Messages handed to all consumer groups."""
        return self.forgotten_out + sum(traffic.count for traffic in self.topics_out.values())

    def forget_topic(self, topic: str) -> None:
        """Forget a topic that is deleted; who holds a counter of it looks it up anew."""
        for message_type in MESSAGE_TYPES:
            self.topics_in.pop((topic, message_type), None)
        self.transactions.pop(topic, None)
        self._forget(lambda key: key[0] == topic)

    def forget_group(self, group: str) -> None:
        """Forget a consumer group that is deleted."""
        self._forget(lambda key: key[1] == group)

    def _forget(self, is_gone: Callable[[tuple[str, str]], bool]) -> None:
        """Forget what is counted by (topic, group) of those that are gone."""
        for key in [*filter(is_gone, self.topics_out)]:
            self.forgotten_out += self.topics_out.pop(key).count
        tables: tuple[dict[tuple[str, str], Any], ...]
        tables = self.sent_back, self.dead_letters, self.pulled
        for table in tables:
            for key in [*filter(is_gone, table)]:
                del table[key]

    def request(self, code: int, outcome: str = "ok") -> Histogram:
        """Return the durations of requests with a code that is served, s; outcomes as in OUTCOMES.

        Unknown codes are counted in `protocol_errors` instead: a peer can send any number.
        """
        durations = self.requests.get((code, outcome))
        if durations is None:
            durations = self.requests[code, outcome] = Histogram()
        return durations

    def connection_closed(self, reason: str) -> None:
        """Count the end of a connection; a reason outside CLOSE_REASONS counts as `other`."""
        self.connections_closed[reason if reason in self.connections_closed else "other"] += 1

    def _new_series(
        self,
        family: str,
        table: dict[tuple[str, str], _AnyTraffic],
        key: tuple[str, str],
        folded: tuple[str, str],
        make: type[_AnyTraffic],
    ) -> _AnyTraffic:
        if len(table) >= self.series_limit:
            self.series_dropped[family] += 1
            key = folded  # Invariant: the table grows past the limit by folded keys alone
        counter = table.get(key)
        if counter is None:
            counter = table[key] = make()
        return counter
