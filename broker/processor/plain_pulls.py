"""The fast path of pulls: messages that are there and in memory, for a subscription that is known.

The pulls of a read that follow each other are answered in one call. A lane leads from what a pull
names to its queue, filter and counter; the slow path, `PullProcessor.handle`, opens it to a peer
when it has checked all of that. When a topic, a group or a subscription changes, all lanes are
forgotten.

The slow path takes what the fast one is not sure of: the first pull of its kind, one that waits,
has nothing to get or asks for old messages, filters by properties, and whatever is refused. Both
give the same answers and counts; tests hold that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from skylarkmq.broker.base.stats import BrokerStats, Traffic
from skylarkmq.broker.filter.tag_filter import is_tag_type
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.requests.processor import Context
from skylarkmq.common.clock import Clock
from skylarkmq.kernel import twin
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import CODECS, ONEWAY_FLAG, RESPONSE_FLAG
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import MASTER_ID, PullSysFlag, is_readable
from skylarkmq.protocol.frame import PREFIX, PREFIX_SIZE, RawFrame, SerializeType
from skylarkmq.protocol.headers.fields import java_int, java_long
from skylarkmq.protocol.headers.pull import PullMessageRequestHeader
from skylarkmq.store.queue.consume_queue import UNIT_SIZE, ConsumeQueue
from skylarkmq.store.read.filtering import RecordFilter
from skylarkmq.store.read.message_reader import (
    Filter,
    Locate,
    Matches,
    NearTerms,
    near,
    owner_of,
)
from skylarkmq.store.results import GetMessageResult, GetMessageStatus

LANES_MAX: Final = 1024
"""One more, and all are opened anew: a lane keeps up to 40 KiB of its queue's units."""
OPEN_MAX: Final = 65_536
"""The same for lanes and peers that may take them."""

# How a pull's header begins: code 11 as Java and we write it.
_BEGINS: Final = {
    int(SerializeType.JSON): b'{"code":11,',
    int(SerializeType.MSGPACK): b"\x97\x0b",
    int(SerializeType.ROCKETMQ): b"\x00\x0b",
}
_FOUND: Final = {
    kind: codec.pull_response_parts(ResponseCode.SUCCESS, GetMessageStatus.FOUND.value, MASTER_ID)
    for kind, codec in CODECS.items()
}
_NONE: Final = {
    kind: codec.pull_response_parts(
        ResponseCode.PULL_RETRY_IMMEDIATELY, GetMessageStatus.NO_MATCHED_MESSAGE.value, MASTER_ID
    )
    for kind, codec in CODECS.items()
}
_KEY_ENDS: Final = 3
"""Zeros of a lane's key; one more would make two pulls alike that are not."""
_CODE: Final = int(RequestCode.PULL_MESSAGE)
_COMMITS: Final = PullSysFlag.FLAG_COMMIT_OFFSET
_NOT_PLAIN: Final = RESPONSE_FLAG | ONEWAY_FLAG


class PullLane:
    """Where the pulls of one group from one queue lead, with one subscription."""

    __slots__ = (
        "_read",
        "first_unit",
        "group",
        "matches",
        "pulled",
        "queue",
        "sub_version",
        "traffic",
        "units",
    )

    def __init__(
        self,
        group: str,
        queue: ConsumeQueue,
        matches: Matches | None,
        sub_version: int,
        traffic: Traffic,
        pulled: dict[int, int],
        read: Callable[[ConsumeQueue, int], bytes],
    ) -> None:
        """Make a lane.

        Args:
            pulled: where the offset after each answer is noted, by queue id.
            sub_version: of the group's subscription; of no account where it is in the request.
            read: returns units of a queue from a queue offset on.
        """
        self.group = group
        self.queue = queue
        self.matches = matches
        self.sub_version = sub_version
        self.traffic = traffic
        self.pulled = pulled
        self.units = b""  # some of the queue's, for the next pulls
        self.first_unit = 0
        self._read = read

    def read_units(self, offset: int) -> bytes:
        """Return units from a queue offset on, and keep them."""
        self.units, self.first_unit = self._read(self.queue, offset), offset
        return self.units

    def units_at(self, offset: int, end: int, *, may_read: bool) -> bytes:
        """Return the units [offset, end), fewer where they are not kept."""
        queue = self.queue
        if offset >= queue.tail_start:
            return queue.tail_units(offset, end - offset)
        if not self.first_unit <= offset < end <= self.first_unit + len(self.units) // UNIT_SIZE:
            if not may_read:
                return b""
            self.read_units(offset)
        first = self.first_unit
        return self.units[(offset - first) * UNIT_SIZE : (end - first) * UNIT_SIZE]


def lane_key(group: str, topic: str, queue_id: int | str, subscription: str | None) -> bytes:
    """Return what stands for the lanes of one kind.

    Args:
        subscription: as it is in the request; None where the group's own counts.
    """
    text = "-" if subscription is None else f"+{subscription}"
    return f"{group}\0{topic}\0{queue_id}\0{text}".encode()


Commit = tuple[PullLane, int]  # an offset that came with a pull
Taken = tuple[int, int, bytes, int, list[Commit]]
Planned = tuple[PullLane, int, int, GetMessageResult]  # with opaque, and offset to commit or -1


@twin
def take_pulls(
    frames: list[RawFrame],
    start: int,
    lanes: dict[bytes, PullLane],
    terms: NearTerms,
    locate: Locate,
    found: tuple[bytes, ...],
    none: tuple[bytes, ...],
    room: int,
) -> Taken | None:
    """Answer the plain pulls of one codec that follow each other from `start` on.

    It ends at whatever the slow path must look at, and when the answers fill `room`. The counters
    of the lanes move.

    Args:
        found: what stands in an answer around its numbers, for the kernel.
        none: the same, where no message is wanted of those that were looked at.

    Returns:
        How many, the bytes of their frames, their answers, how many of those hold messages, and the
        offsets that came with them. None when the first one is not plain.
    """
    kind, position, wire_size, found_count = frames[start].serialize_type, start, 0, 0
    answers: list[bytes | memoryview] = []
    commits: list[Commit] = []
    while position < len(frames) and room >= 0:
        frame = frames[position]
        planned = _plan(frame, lanes, terms, locate) if frame.serialize_type == kind else None
        if planned is None:
            break
        lane, opaque, commit_offset, result = planned
        lane.pulled[lane.queue.queue_id] = result.next_begin_offset
        code = ResponseCode.SUCCESS if result.count else ResponseCode.PULL_RETRY_IMMEDIATELY
        head = CODECS[kind].encode_pull_response(
            code, opaque, result.status.value, MASTER_ID, result.next_begin_offset,
            result.min_offset, result.max_offset,
        )  # fmt: skip
        length = PREFIX_SIZE - 4 + len(head) + result.size
        answers += (PREFIX.pack(length, kind << 24 | len(head)), head, *result.views)
        if result.count:
            found_count += 1
            lane.traffic.count += result.count
            lane.traffic.bytes += result.size
        if commit_offset >= 0:
            commits.append((lane, commit_offset))
        room -= length + 4
        wire_size += len(frame.header) + PREFIX_SIZE
        position += 1
    if position == start:
        return None
    return position - start, wire_size, b"".join(answers), found_count, commits


def _plan(
    frame: RawFrame, lanes: dict[bytes, PullLane], terms: NearTerms, locate: Locate
) -> Planned | None:
    """Read what a plain pull asks for; None when it is not plain."""
    command = CODECS[frame.serialize_type].decode_pull_fast(frame.header)
    if command is None or frame.body or command.flag & _NOT_PLAIN:
        return None
    fields = command.ext_fields
    subscription = None
    try:
        sys_flag = java_int(fields.sys_flag, "")
        offset = java_long(fields.queue_offset, "")
        count = min(max(java_int(fields.max_msg_nums, ""), 1), terms.big_count)
        sub_version = java_long(fields.sub_version, "")
        commit_offset = java_long(fields.commit_offset, "")
        size_max = 0 if fields.max_msg_bytes is None else java_int(fields.max_msg_bytes, "")
        java_long(fields.suspend_timeout_millis, "")
    except RemoteProtocolError:
        return None  # the slow path meets the same and words the refusal
    if sys_flag & PullSysFlag.FLAG_SUBSCRIPTION:
        if not is_tag_type(fields.expression_type):
            return None
        subscription = fields.subscription or ""
    lane = lanes.get(lane_key(fields.consumer_group, fields.topic, fields.queue_id, subscription))
    if lane is None or (subscription is None and sub_version > lane.sub_version):
        return None
    queue = lane.queue
    if queue.removed or not queue.min_offset <= offset < queue.max_offset:
        return None
    limits = min(count, terms.count_max), terms.size_max
    if size_max > terms.size_max:
        limits = count, min(size_max, terms.big_size)
    end = offset + (limits[0] if lane.matches is None else max(terms.units_min, count))
    end = min(end, queue.max_offset)
    if offset < queue.tail_start:  # a read of units ends with their file
        end = min(end, offset - offset % terms.units_per_file + terms.units_per_file)
    units = lane.units_at(offset, end, may_read=not terms.only_kept)
    if len(units) < (end - offset) * UNIT_SIZE:
        return None
    result = near(queue, offset, units, lane.matches, limits, terms, locate)
    if result is None:
        return None
    return lane, command.opaque, commit_offset if sys_flag & _COMMITS else -1, result


def _key_of(header: PullMessageRequestHeader) -> bytes:
    """Return the key of the lane that a pull would take."""
    inline = header.sys_flag & PullSysFlag.FLAG_SUBSCRIPTION
    subscription = header.subscription or "" if inline else None
    return lane_key(header.consumer_group, header.topic, header.queue_id, subscription)


class PlainPulls:
    """Answers plain pulls. Loop thread."""

    def __init__(
        self,
        context: Context,
        stats: BrokerStats,
        peer_clock: Clock,
        settle: Callable[[], None],
    ) -> None:
        """Begin without lanes.

        Args:
            settle: commits the sends that were gathered, so that the next pull finds them.
        """
        self._config = context.config
        self._clock = peer_clock
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._consumers = context.consumers
        self._earlier = context.earlier
        self._offsets = context.offsets
        self._stats = stats
        self._settle = settle
        self._lanes: dict[bytes, PullLane] = {}
        self._opened: list[dict[bytes, PullLane]] = []  # to some peer
        self._open_count = 0  # lanes there
        self._changes = (0, 0, 0, 0)

    def take(self, connection: Connection, frames: list[RawFrame], start: int) -> int:
        """Answer plain pulls from `start` on; return how many, 0 for what is something else."""
        kind, header, _ = frames[start]
        begins = _BEGINS.get(kind)
        if begins is None or not header.startswith(begins):
            return 0
        self._settle()
        config = self._config
        if (
            not self._known()
            or connection.closed
            or config.slave_read_enable
            or not is_readable(config.broker_permission)
        ):
            return 0
        started = self._clock.monotonic()
        taken = take_pulls(
            frames, start, connection.lanes, self._store.near_terms(),
            self._store.commit_log.locate, _FOUND[kind], _NONE[kind], connection.room,
        )  # fmt: skip
        if taken is None:
            return 0
        count, wire_size, answers, found_count, commits = taken
        connection.send(answers)
        for lane, offset in () if self._store.follows else commits:
            queue = lane.queue
            self._offsets.commit(
                connection.remote_address, lane.group, queue.topic, queue.queue_id, offset
            )
        stats = self._stats
        stats.pull_results["found"] += found_count
        stats.pull_results["no_matched"] += count - found_count
        traffic = stats.frames_in[kind]
        traffic.count += count
        traffic.bytes += wire_size
        traffic = stats.frames_out[kind]
        traffic.count += count
        traffic.bytes += len(answers)
        each_s = (self._clock.monotonic() - started) / count
        stats.request(_CODE).observe_many(each_s, count)
        return count

    def _close(self) -> None:
        """Forget all lanes."""
        self._lanes.clear()
        for lanes in self._opened:
            lanes.clear()
        self._opened.clear()
        self._open_count = 0

    def _known(self) -> bool:
        """Return whether there are lanes, after those that may have changed were forgotten."""
        changes = (
            self._topics.changes,
            self._groups.changes,
            self._consumers.changes,
            self._earlier.changes,
        )
        if changes != self._changes:
            self._changes = changes
            self._close()
        return bool(self._lanes)

    def open(
        self, connection: Connection, header: PullMessageRequestHeader, matches: Filter | None
    ) -> None:
        """Open the lane of a pull that was checked to its peer, if there can be one."""
        self._known()
        key = _key_of(header)
        if key in connection.lanes or isinstance(matches, RecordFilter):
            return
        if self._consumers.pops(header.consumer_group):
            return  # what may be pulled is decided pull by pull
        if key not in self._lanes:
            self._make(key, header, matches)
        lane = self._lanes.get(key)
        if lane is None:
            return
        if not connection.lanes:
            self._opened.append(connection.lanes)
        connection.lanes[key] = lane
        self._open_count += 1
        if self._open_count >= OPEN_MAX:
            self._close()

    def _make(self, key: bytes, header: PullMessageRequestHeader, matches: Matches | None) -> None:
        topic, group = header.topic, header.consumer_group
        queue = self._store.queues.get(topic, header.queue_id)
        traffic = self._stats.topics_out.get((topic, group))
        if (
            queue is None
            or queue.ext is not None
            or owner_of(queue) is None
            or traffic is None  # nothing was handed out yet, or it is counted among others
            or key.count(b"\0") != _KEY_ENDS
        ):
            return
        known = self._consumers.find_subscription(group, topic)
        version = -1 if known is None else known.sub_version
        if len(self._lanes) >= LANES_MAX:
            self._close()
        pulled = self._stats.pulled_by(topic, group)
        self._lanes[key] = PullLane(
            group, queue, matches, version, traffic, pulled, self._store.units_ahead
        )

    def keep_units(self, header: PullMessageRequestHeader, offset: int, units: bytes) -> None:
        """Keep what the disk gave for a pull, for the next ones: their messages may be in memory.

        Args:
            units: from `offset` on; none where the pull needed none.
        """
        lane = self._lanes.get(_key_of(header)) if units else None
        if lane is not None:
            lane.units, lane.first_unit = units, offset
