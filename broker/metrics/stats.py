"""What the broker counts: plain integers and small histograms, owned by the loop thread.

A processor looks its counter up once and then adds to its attributes:

    counter = stats.topic_in("orders")      # one dict lookup
    counter.count += 1
    counter.bytes += size

Labels that grow with user data (topic, group) are capped at `series_limit` a family; what comes
later is counted under the name `__other__`, and each such fold is itself counted. Series of a topic
or group that is deleted go with it.
"""

from __future__ import annotations

from typing import Final

from skylarkmq.common.histogram import Histogram
from skylarkmq.protocol.frame import SerializeType

OTHER: Final = "__other__"
SERIES_LIMIT: Final = 10_000

MESSAGE_TYPES: Final = ("normal", "delay", "transaction")
PROTOCOL_ERROR_KINDS: Final = (
    "bad_length",
    "bad_header",
    "too_large",
    "tls",
    "unknown_code",
    "idle_timeout",
)
PULL_RESULTS: Final = (
    "found",
    "no_new",
    "no_matched",
    "offset_moved",
)
# Why a connection ended: the peer closed it, the socket failed, the peer broke the protocol,
# was silent, did not read or did not finish a frame; the broker stopped, or had no room for it.
CLOSE_REASONS: Final = (
    "peer",
    "error",
    "protocol_error",
    "idle_timeout",
    "slow_reader",
    "slow_sender",
    "shutdown",
    "limit",
    "other",
)
SERIES_FAMILIES: Final = ("messages_in", "messages_out", "messages_sent_back", "consumer_lag")
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
        self.count = 0
        self.bytes = 0


class BrokerStats:
    """Counters of one broker since its start. Loop thread."""

    __slots__ = (
        "auth_failures",
        "connections_closed",
        "connections_opened",
        "forgotten_out",
        "frames_in",
        "frames_out",
        "heartbeats_refused",
        "loop_lag",
        "protocol_errors",
        "pull_results",
        "rejections",
        "requests",
        "sent_back",
        "series_dropped",
        "series_limit",
        "topics_in",
        "topics_out",
    )

    def __init__(self, series_limit: int = SERIES_LIMIT) -> None:
        self.series_limit = series_limit
        # Family -> folds.
        self.series_dropped: dict[str, int] = dict.fromkeys(SERIES_FAMILIES, 0)
        self.topics_in: dict[tuple[str, str], Traffic] = {}  # (topic, message type)
        self.topics_out: dict[tuple[str, str], Traffic] = {}  # (topic, group)
        self.sent_back: dict[tuple[str, str], Traffic] = {}  # (topic, group that gave it back)
        self.forgotten_out = 0  # messages that were counted for topics and groups deleted since
        # Whole frames with their bytes, by the type byte of their header.
        self.frames_in: dict[int, Traffic] = {kind.value: Traffic() for kind in SerializeType}
        self.frames_out: dict[int, Traffic] = {kind.value: Traffic() for kind in SerializeType}
        self.protocol_errors: dict[str, int] = dict.fromkeys(PROTOCOL_ERROR_KINDS, 0)
        self.pull_results: dict[str, int] = dict.fromkeys(PULL_RESULTS, 0)
        self.auth_failures: dict[str, int] = dict.fromkeys(AUTH_FAILURES, 0)
        self.heartbeats_refused = 0
        self.connections_opened = 0
        self.connections_closed: dict[str, int] = dict.fromkeys(CLOSE_REASONS, 0)
        self.requests: dict[tuple[int, str], Histogram] = {}  # (code, outcome) -> s
        self.loop_lag = Histogram()  # s
        self.rejections: dict[tuple[str, str], int] = {}  # (kind of request, cause) -> count

    def rejected(self, kind: str, cause: str) -> None:
        """Count a request that was refused for overload; causes as in REJECTION_CAUSES."""
        self.rejections[kind, cause] = self.rejections.get((kind, cause), 0) + 1

    def topic_in(self, topic: str, message_type: str = "normal") -> Traffic:
        """Return the counter of messages stored for a topic; `message_type` as in MESSAGE_TYPES."""
        counter = self.topics_in.get((topic, message_type))
        if counter is None:
            counter = self._new_series(
                "messages_in", self.topics_in, (topic, message_type), (OTHER, message_type)
            )
        return counter

    def topic_out(self, topic: str, group: str) -> Traffic:
        """Return the counter of messages of a topic handed to a consumer group."""
        counter = self.topics_out.get((topic, group))
        if counter is None:
            counter = self._new_series(
                "messages_out", self.topics_out, (topic, group), (OTHER, OTHER)
            )
        return counter

    def topic_back(self, topic: str, group: str) -> Traffic:
        """Return the counter of messages of a topic that a consumer group gave back."""
        counter = self.sent_back.get((topic, group))
        if counter is None:
            counter = self._new_series(
                "messages_sent_back", self.sent_back, (topic, group), (OTHER, OTHER)
            )
        return counter

    @property
    def messages_out(self) -> int:
        """Messages handed to all consumer groups."""
        return self.forgotten_out + sum(traffic.count for traffic in self.topics_out.values())

    def forget_topic(self, topic: str) -> None:
        """Forget a topic that is deleted; who holds a counter of it looks it up anew."""
        for message_type in MESSAGE_TYPES:
            self.topics_in.pop((topic, message_type), None)
        self._forget_out([key for key in self.topics_out if key[0] == topic])
        self._forget_back([key for key in self.sent_back if key[0] == topic])

    def forget_group(self, group: str) -> None:
        """Forget a consumer group that is deleted."""
        self._forget_out([key for key in self.topics_out if key[1] == group])
        self._forget_back([key for key in self.sent_back if key[1] == group])

    def _forget_out(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            self.forgotten_out += self.topics_out.pop(key).count

    def _forget_back(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            del self.sent_back[key]

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
        table: dict[tuple[str, str], Traffic],
        key: tuple[str, str],
        folded: tuple[str, str],
    ) -> Traffic:
        if len(table) >= self.series_limit:
            self.series_dropped[family] += 1
            key = folded  # Invariant: the table grows past the limit by folded keys alone
        counter = table.get(key)
        if counter is None:
            counter = table[key] = Traffic()
        return counter
