"""What a client asks of pop consumption, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from skylarkmq.broker.filter.pull_subscription import compile_subscription, no_filter
from skylarkmq.broker.filter.tag_filter import SEPARATOR, is_tag_type, parse_tags
from skylarkmq.broker.pop.handles import Receipt
from skylarkmq.protocol.properties import TAGS_AND_SEPARATOR, find_property
from skylarkmq.protocol.record import record_properties
from skylarkmq.store.read.filtering import RecordFilter
from skylarkmq.store.read.message_reader import Filter

COUNT_MAX: Final = 32
"""Messages of one receive, whatever is asked."""
FILTERS_CACHED: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class PopFilter:
    """Which messages a receive wants.

    Attributes:
        stored: what the store is asked with; None: every message.
        tags: the tags exactly, for what `stored` found by their hashes; None: that was exact.
    """

    stored: Filter | None = None
    tags: frozenset[bytes] | None = None

    def wants(self, record: bytes | memoryview) -> bool:
        """Return whether a record that `stored` found is wanted."""
        if self.tags is None:
            return True
        properties = record_properties(record, 0, len(record)) or b""
        return (find_property(properties, TAGS_AND_SEPARATOR) or b"") in self.tags

    def accepts(self, record: bytes | memoryview) -> bool:
        """Return whether a record is wanted that the store was not asked for by `stored`."""
        if isinstance(self.stored, RecordFilter):
            return self.stored.matches(record_properties(record, 0, len(record)) or b"")
        return self.wants(record)


EVERYTHING: Final = PopFilter()


@lru_cache(FILTERS_CACHED)
def pop_filter(kind: str, expression: str, *, sql_enabled: bool = True) -> PopFilter:
    """Return the filter of an expression, the same object for the same text while it is used.

    Args:
        kind: TAG (also when empty) or SQL92.
        expression: tags separated by `||`, or a condition; empty or `*`: every message.
        sql_enabled: enablePropertyFilter.

    Raises:
        RemoteProtocolError: SUBSCRIPTION_PARSE_FAILED for an expression that cannot be used,
            SYSTEM_ERROR for a filter by properties where it is not enabled.
    """
    if is_tag_type(kind):
        stored = parse_tags(expression)
        if stored is None:
            return EVERYTHING
        tags = (part.strip() for part in expression.split(SEPARATOR))
        return PopFilter(stored, frozenset(tag.encode() for tag in tags if tag))
    if not sql_enabled:
        raise no_filter(kind)
    compiled = compile_subscription(kind, expression)
    return PopFilter(RecordFilter(compiled.matches, compiled.cost, key=compiled.text))


class PopRequest(msgspec.Struct, frozen=True, gc=False):
    """One receive.

    Attributes:
        client_id: whose deliveries they are, see `Settlement.release_client`; "": nobody's.
        count: messages at most; more than COUNT_MAX is taken for that.
        invisible_ms: how long nobody else gets them; the caller has checked its limits.
        until_s: end of the long poll on the broker's peer clock; not later than now: do not wait.
        attempt_id: of an ordered consumer: the same id gets the same messages again, although they
            are in hand; "": none.
        queue_id: the only queue of the topic to take from; -1: all.
        is_fifo: the group consumes in order, one batch of a queue at a time.
        is_renewed: the deliveries do not end at their time, but are prolonged in place (for
            1, 3, 5, 10, 30 minutes, then an hour each) while the client is there, for 3 hours; then
            once more, for the group's wait after that attempt.
        from_min: a group without an offset begins with the queues' first messages.
    """

    group: str
    topic: str
    client_id: str = ""
    matches: PopFilter = EVERYTHING
    count: int = COUNT_MAX
    invisible_ms: int = 60_000
    until_s: float = 0.0
    attempt_id: str = ""
    queue_id: int = -1
    is_fifo: bool = False
    is_renewed: bool = False
    from_min: bool = False


class Popped(NamedTuple):
    """One message that a client gets.

    Attributes:
        record: as it is stored; its topic may be one of retries.
        attempt: the number of this delivery, 1 for the first.
    """

    receipt: Receipt
    record: bytes | memoryview
    attempt: int
