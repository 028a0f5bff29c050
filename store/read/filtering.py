"""Reads that want only messages with certain properties: the store's side of SQL92 filters.

The encoded properties are taken out of each record and shown to the filter. One read spends
WORK_MAX at most, so that an expensive filter over long properties delays no other work. What it did
not look at is left to the next read, which begins there.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (getMessage),
broker/.../filter/ExpressionMessageFilter.java
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from skylarkmq.protocol.record import is_intact, record_properties
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.log.mapped_file import MappedFile
from skylarkmq.store.results import GetMessageResult, GetMessageStatus
from skylarkmq.store.stats import StoreStats

WORK_MAX: Final = 16_384
"""What one read may spend: the filter's cost for each record, and again for each KiB of properties
that it searches."""
COLD_BYTES_MAX: Final = 4 << 20
"""Bytes of records that one filtered read takes from the disk."""
COLD_RUN_MAX: Final = 256 << 10
"""Bytes of records that are read with one call."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordFilter:
    """Which messages a reader wants, by their properties. Called on any thread.

    Attributes:
        matches: called with encoded properties.
        cost: of one call, about the count of properties and values that it looks at.
        key: the same for filters that answer the same.
    """

    matches: Callable[[bytes], bool]
    cost: int = 1
    key: object = None


class _Work:
    """Counts what one read spends."""

    __slots__ = ("_cost", "_left", "examined")

    def __init__(self, cost: int) -> None:
        self._cost = cost
        self._left = WORK_MAX
        self.examined = 0

    def spend(self, properties: bytes) -> bool:
        """Take one record into account; False when the read has done enough. The first passes."""
        if self._left < 0:
            return False
        self._left -= self._cost + (self._cost * len(properties) >> 10)
        self.examined += 1
        return True


class Take(Protocol):
    """What a walk over units does with the ones that are wanted."""

    def add(self, commit_offset: int, record_size: int, queue_offset: int) -> bool:
        """Take a record; False when it is not to be had."""
        ...


class FilteredTake:
    """Looks at records in memory and hands the wanted ones on. Loop thread; for one read."""

    def __init__(
        self,
        record_filter: RecordFilter,
        commit_log: CommitLog,
        take: Take,
        stats: StoreStats,
    ) -> None:
        self._matches = record_filter.matches
        self._work = _Work(record_filter.cost)
        self._log = commit_log
        self._take = take
        self._stats = stats
        self._stopped_at = -1  # queue offset of the first record that was not looked at
        self._view = memoryview(b"")
        self._start = self._end = 0  # places of the log that `_view` shows

    def add(self, commit_offset: int, record_size: int, queue_offset: int) -> bool:
        """Take a record if it is wanted; False when it is not, or not to be had."""
        if self._stopped_at >= 0:
            return False
        if not self._start <= commit_offset < self._end:
            found = self._log.locate(commit_offset)
            if found is None:
                return False
            mapped = found[0]
            self._view, self._start = mapped.view, mapped.start_offset
            self._end = mapped.start_offset + mapped.committed_position
        properties = record_properties(self._view, commit_offset - self._start, record_size)
        if properties is not None:  # else it is damaged, which the next one finds
            if not self._work.spend(properties):
                self._stopped_at = queue_offset
                return False
            if not self._matches(properties):
                return False
        return self._take.add(commit_offset, record_size, queue_offset)

    def finish(self, result: GetMessageResult) -> None:
        """Let the next read begin where this one stopped to look; count."""
        if self._stopped_at >= 0:
            result.next_begin_offset = self._stopped_at
        count_filtered(self._stats, self._work.examined, result.count)


def count_filtered(stats: StoreStats, examined: int, matched: int) -> None:
    """Count what one filtered read looked at. Loop thread."""
    stats.filter_examined += examined
    stats.filter_matched += matched


@dataclass(frozen=True, slots=True)
class Place:
    """A record to be read: its file, where it lies in it, how long it is."""

    mapped: MappedFile
    position: int
    size: int
    queue_offset: int

    @property
    def commit_offset(self) -> int:
        return self.mapped.start_offset + self.position


@dataclass(slots=True)
class ColdMatches:
    """What a filtered read found on the disk."""

    records: list[bytes]
    damaged: list[Place]
    examined: int = 0
    stopped_at: int = -1  # queue offset of the first record that was not looked at, -1 for none


def read_matching(
    places: Sequence[Place],
    owner: tuple[int, bytes] | None,
    record_filter: RecordFilter,
    count_max: int,
    size_max: int,
) -> ColdMatches:
    """Read records in order and keep the wanted ones, up to the limits. Blocks; reads worker."""
    found = ColdMatches([], [])
    work = _Work(record_filter.cost)
    size = bytes_read = 0
    for run in runs(places, COLD_RUN_MAX):
        first, last = run[0], run[-1]
        if bytes_read >= COLD_BYTES_MAX or len(found.records) >= count_max:
            found.stopped_at = first.queue_offset
            break
        run_size = last.position + last.size - first.position
        data = first.mapped.file.pread(run_size, first.position)
        bytes_read += run_size
        for place in run:
            at = place.position - first.position
            properties = None
            if is_intact(data, at, place.size, place.commit_offset, place.queue_offset, owner):
                properties = record_properties(data, at, place.size)
            if properties is None:
                found.damaged.append(place)
                continue
            if not work.spend(properties):
                found.stopped_at = place.queue_offset
                break
            if not record_filter.matches(properties):
                continue
            count = len(found.records)
            if count and (count >= count_max or size + place.size > size_max):
                found.stopped_at = place.queue_offset
                break
            found.records.append(data[at : at + place.size])
            size += place.size
        if found.stopped_at >= 0:
            break
    found.examined = work.examined
    return found


def runs(places: Iterable[Place], size_max: int = 1 << 62) -> list[list[Place]]:
    """Split records into runs of neighbours, each at most so many bytes or one record."""
    result: list[list[Place]] = []
    end: tuple[MappedFile | None, int] = (None, 0)
    for place in places:
        if (
            end == (place.mapped, place.position)
            and place.position + place.size - result[-1][0].position <= size_max
        ):
            result[-1].append(place)
        else:
            result.append([place])
        end = place.mapped, place.position + place.size
    return result


def settle(result: GetMessageResult, records: list[bytes]) -> None:
    """Put the records that were read into the answer of the walk that chose them."""
    result.views = list(records)
    result.count = len(records)
    result.size = sum(map(len, records))
    if not records and result.status is GetMessageStatus.FOUND:
        result.status = GetMessageStatus.NO_MATCHED_MESSAGE  # all that were wanted are damaged
