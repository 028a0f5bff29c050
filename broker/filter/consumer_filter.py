"""The SQL92 filters of consumer groups, kept in `consumerFilter.json`, RocketMQ's own form.

A heartbeat registers the expressions of a group; a pull that relies on them finds them compiled
here. A newer version of a subscription replaces an older one. When the group goes, or no longer
subscribes, its filter is dead and stays for `filterDataCleanTimeSpan`: its bits in the bitmaps of
the meantime are right, should the group come back.

    born_time   messages that are stored later than this have the group's bits in their bitmap

Invariant: a filter's bits are only trusted for messages that were published while it was in the
table. Unlike RocketMQ, whose filters are born by the clock, a filter is born at the newest store
time at least, so that a clock that was set back leaves no gap; and after a crash all are born anew,
because the file may be older than the bitmaps.

Unlike RocketMQ too, a dead filter gives way to an older version: clients take their versions from
their clocks, and a group that comes back must not be filtered by what it wanted before.

The table is bounded in filters and in characters. The file follows changes within 10 s and at a
clean stop; a crash loses what the next heartbeat brings again. Loop thread, but for `load`.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../filter/ConsumerFilterManager.java,
ConsumerFilterData.java, CommitLogDispatcherCalcBitMap.java
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.filter.bloom import BloomBits, BloomFilter
from skylarkmq.broker.filter.tag_filter import is_tag_type
from skylarkmq.broker.tables.json_table import load_table, table_text
from skylarkmq.broker.tables.persist import TableFile
from skylarkmq.common.clock import Clock
from skylarkmq.common.files import Files
from skylarkmq.common.first_use import on_first_use
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.common.table_file import TableWriter, Text
from skylarkmq.protocol.bodies import group as bodies
from skylarkmq.protocol.bodies.group import SubscriptionData
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.flags import validate_group, validate_topic
from skylarkmq.protocol.sql92.errors import ExpressionError
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.read.filtering import RecordFilter

if TYPE_CHECKING:
    import skylarkmq.protocol.sql92.expression as sql92
else:  # by the first consumer that filters with it
    sql92 = on_first_use("skylarkmq.protocol.sql92.expression")

log = logging.getLogger(__name__)

FILE_NAME: Final = "consumerFilter.json"
EXPRESSION_SQL92: Final = "SQL92"
FLUSH_INTERVAL_S: Final = 10.0
FILTERS_MAX: Final = 10_000
CHARACTERS_MAX: Final = 1 << 20
"""Characters of all expressions together: compiled they take about a hundred times that."""
BITMAP_COST_MAX: Final = 256
"""Cost of all filters of a topic at which its messages get no bitmap: every reader looks then."""
DEAD_AT_LOAD_MS: Final = 30_000


@dataclass(slots=True, eq=False)
class ConsumerFilterData:
    """One group's filter of one topic; times in ms since the epoch."""

    topic: str
    group: str
    expression: sql92.Expression
    client_version: int
    born_time: int
    bits: BloomBits
    dead_time: int = 0  # 0: the group is there
    record_filter: RecordFilter = field(init=False)

    def __post_init__(self) -> None:
        mask, size, born_time = self.bits.mask, self.bits.bit_count // 8, self.born_time

        def may_match(store_timestamp: int, bitmap: bytes) -> bool:
            if store_timestamp <= born_time or len(bitmap) != size:
                return True
            return int.from_bytes(bitmap, "little") & mask == mask

        expression = self.expression
        self.record_filter = RecordFilter(
            expression.matches, expression.cost, may_match, expression.text
        )

    @property
    def is_dead(self) -> bool:
        return self.dead_time >= self.born_time


class ConsumerFilterManager:
    """The table of filters."""

    def __init__(
        self,
        config: BrokerConfig,
        files: Files,
        writer: TableWriter,
        clock: Clock,
        store: MessageStore,
    ) -> None:
        self._enabled = config.enable_property_filter
        self._dead_max_ms = config.filter_data_clean_time_span
        self._files = files
        self._clock = clock
        self._store = store
        self._path = store.paths.config / FILE_NAME
        self._file = TableFile(writer, self._path, self._take)
        self._timer = IntervalTimer(clock, FLUSH_INTERVAL_S, self._tick)
        self.bloom = BloomFilter(
            config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter
        )
        self._by_topic: dict[str, dict[str, ConsumerFilterData]] = {}
        self._by_group: dict[str, dict[str, ConsumerFilterData]] = {}
        # Invariant: the counts and the sum of characters of all filters in the table.
        self.count = 0
        self._characters = 0
        # By topic, what a message is held against; None where that would cost too much.
        self._bitmap_plans: dict[str, list[tuple[sql92.Expression, int]] | None] = {}
        if config.enable_calc_filter_bit_map:
            store.queues.bitmap_of = self.bitmap_of

    # Life cycle

    def load(self) -> None:
        """Read the file, after the store. Blocks.

        Raises:
            CorruptFileError: neither the file nor its `.bak` can be read.
        """
        table = load_table(self._files, self._path, bodies.ConsumerFilterWrapper)
        if table is None:
            return
        rows = [
            row
            for by_group in table.filter_data_by_topic.values()
            for row in by_group.group_filter_data.values()
        ]
        recovery = self._store.recovery
        reborn = recovery is None or not recovery.clean
        for row in rows:
            if not self._load_row(row, reborn=reborn):
                self._file.mark()  # a broker that takes over must not trust what it is not part of
        if reborn and self.count:
            self._file.mark()

    def _load_row(self, row: bodies.ConsumerFilterData, *, reborn: bool) -> bool:
        why = validate_topic(row.topic) or validate_group(row.consumer_group)
        if why is not None or self.get(row.topic, row.consumer_group) is not None:
            log.error("%s: leaving out a filter: %s", self._path, why or "it is there twice")
            return False
        bits = self.bloom.bits_of(row.consumer_group, row.topic)
        saved = row.bloom_filter_data
        if saved is None or (saved.bit_num, (*saved.bit_pos,)) != bits[:2]:
            log.warning("%s: the filters are of other Bloom parameters", self._path)
            return False
        if row.expression_type != EXPRESSION_SQL92:
            return False
        try:
            expression = sql92.compile_expression(row.expression)
        except ExpressionError as error:
            log.warning(
                "%s: leaving out the filter of group %s for topic %s: %s",
                self._path, row.consumer_group, row.topic, error,
            )  # fmt: skip
            return False
        now = self._clock.now_ms()
        born_time = self._birth() if reborn else row.born_time
        dead_time = row.dead_time or max(now - DEAD_AT_LOAD_MS, born_time)
        if not self._make_room(len(expression.text)):
            return False
        data = ConsumerFilterData(
            row.topic, row.consumer_group, expression, row.client_version, born_time, bits
        )
        data.dead_time = max(dead_time, born_time)
        self._put(data)
        return True

    def start(self) -> None:
        """Begin to write the file at intervals."""
        self._timer.start()

    async def stop(self) -> None:
        """Write what is not on the disk yet; a failure is logged."""
        self._timer.stop()
        await self._file.flush()

    def _tick(self) -> None:
        self._clean()
        if self._file.pending:
            self._file.write()

    def _clean(self) -> None:
        before = self._clock.now_ms() - self._dead_max_ms
        for data in [data for data in self._all() if data.is_dead and data.dead_time <= before]:
            log.info("filter of group %s for topic %s: dead too long", data.group, data.topic)
            self._remove(data)

    # Questions

    def get(self, topic: str, group: str) -> ConsumerFilterData | None:
        """Return the filter of a group for a topic, dead or alive."""
        by_group = self._by_topic.get(topic)
        return None if by_group is None else by_group.get(group)

    def shown(self, topic: str, group: str) -> str | None:
        """Return a filter as the file has it; None without."""
        data = self.get(topic, group)
        return None if data is None else encode_body(_row(data)).decode()

    def of_group(self, group: str) -> Collection[ConsumerFilterData]:
        """Return all filters of a group."""
        return self._by_group.get(group, {}).values()

    def counts(self) -> dict[str, int]:
        """Return the number of filters by state, for the metrics."""
        dead = sum(data.is_dead for data in self._all())
        return {"live": self.count - dead, "dead": dead}

    def _all(self) -> Iterator[ConsumerFilterData]:
        for by_group in self._by_topic.values():
            yield from by_group.values()

    # Changes

    def register(self, group: str, subscriptions: Collection[SubscriptionData]) -> None:
        """Take in the subscriptions of one heartbeat; filters of other topics of the group die."""
        if not self._enabled:
            return
        for subscription in subscriptions:
            if not is_tag_type(subscription.expression_type) and subscription.sub_string:
                self._register(group, subscription)
        known = self._by_group.get(group)
        if known:
            topics = {subscription.topic for subscription in subscriptions}
            for topic in known.keys() - topics:
                self._die(known[topic])

    def unregister(self, group: str) -> None:
        """Note that a group has no member any more: its filters die."""
        for data in self.of_group(group):
            self._die(data)

    def forget_topic(self, topic: str) -> None:
        """Drop the dead filters of a topic that was deleted; a live group still wants its word."""
        for data in list(self._by_topic.get(topic, {}).values()):
            if data.is_dead:
                self._remove(data)

    def _register(self, group: str, subscription: SubscriptionData) -> None:
        topic, text = subscription.topic, subscription.sub_string
        version = subscription.sub_version
        old = self.get(topic, group)
        # A dead filter does not count: the group that comes back may have an older clock.
        if old is not None and version <= old.client_version and not old.is_dead:
            return
        if old is not None and old.expression.text == text:
            old.client_version = version
            self._revive(old)
            return
        if old is not None:
            self._remove(old)
        if subscription.expression_type != EXPRESSION_SQL92:
            return
        try:
            expression = sql92.compile_expression(text)
        except ExpressionError as error:
            log.warning("group %s filters topic %s wrongly: %s", group, topic, error)
            return
        if not self._make_room(len(text)):
            log.warning(
                "the filter of group %s for topic %s is not taken: %d filters are known",
                group, topic, self.count,
            )  # fmt: skip
            return
        bits = self.bloom.bits_of(group, topic)
        self._put(ConsumerFilterData(topic, group, expression, version, self._birth(), bits))
        log.info("group %s filters topic %s by %.200r", group, topic, text)

    def _birth(self) -> int:
        return max(self._clock.now_ms(), self._store.commit_log.store_timestamp)

    def _make_room(self, size: int) -> bool:
        """Drop those that are dead for longest until one more filter fits."""
        while self.count >= FILTERS_MAX or self._characters + size > CHARACTERS_MAX:
            dead = [data for data in self._all() if data.is_dead]
            if not dead:
                return False
            dead.sort(key=lambda data: data.dead_time)
            for data in dead[: max(1, len(dead) // 8)]:
                self._remove(data)
        return True

    def _put(self, data: ConsumerFilterData) -> None:
        self._by_topic.setdefault(data.topic, {})[data.group] = data
        self._by_group.setdefault(data.group, {})[data.topic] = data
        self.count += 1
        self._characters += len(data.expression.text)
        self._changed(data.topic)

    def _remove(self, data: ConsumerFilterData) -> None:
        for table, key, inner in (
            (self._by_topic, data.topic, data.group),
            (self._by_group, data.group, data.topic),
        ):
            del table[key][inner]
            if not table[key]:
                del table[key]
        self.count -= 1
        self._characters -= len(data.expression.text)
        self._changed(data.topic)

    def _revive(self, data: ConsumerFilterData) -> None:
        data.dead_time = 0
        self._file.mark()

    def _die(self, data: ConsumerFilterData) -> None:
        if not data.is_dead:
            data.dead_time = max(self._clock.now_ms(), data.born_time)
            self._file.mark()

    def _changed(self, topic: str) -> None:
        self._bitmap_plans.pop(topic, None)
        self._file.mark()

    # Bitmaps

    def bitmap_of(self, topic: str, properties: bytes) -> bytes:
        """Return the bitmap of a message that is published; empty when its topic has no filter.

        Args:
            properties: encoded.
        """
        if topic not in self._by_topic:
            return b""
        plan = self._bitmap_plans.get(topic) or self._bitmap_plan(topic)
        if plan is None:
            return b""
        bitmap = 0
        for expression, mask in plan:
            if expression.matches(properties):
                bitmap |= mask
        return bitmap.to_bytes(self.bloom.byte_count, "little")

    def _bitmap_plan(self, topic: str) -> list[tuple[sql92.Expression, int]] | None:
        if topic not in self._bitmap_plans:
            filters = self._by_topic[topic].values()
            cost = sum(data.expression.cost for data in filters)
            self._bitmap_plans[topic] = (
                None
                if cost > BITMAP_COST_MAX
                else [(data.expression, data.bits.mask) for data in filters]
            )
        return self._bitmap_plans[topic]

    # The file

    def _take(self) -> Text:
        rows = {
            topic: bodies.FilterDataMapByTopic(
                group_filter_data={group: _row(data) for group, data in by_group.items()},
                topic=topic,
            )
            for topic, by_group in self._by_topic.items()
        }
        return partial(table_text, "filterDataByTopic", rows, None)


def _row(data: ConsumerFilterData) -> bodies.ConsumerFilterData:
    return bodies.ConsumerFilterData(
        bloom_filter_data=bodies.BloomFilterData(
            bit_num=data.bits.bit_count, bit_pos=list(data.bits.positions)
        ),
        born_time=data.born_time,
        client_version=data.client_version,
        consumer_group=data.group,
        dead=data.is_dead,
        dead_time=data.dead_time,
        expression=data.expression.text,
        expression_type=EXPRESSION_SQL92,
        topic=data.topic,
    )
