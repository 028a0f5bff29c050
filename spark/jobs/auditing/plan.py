"""What the job `audit` compares of an archive and its topics: pure, but for the brokers' answers.

start of the archive      first message of the broker        end of the archive       end
       |----- expired: promised by commits ---|------ live: compared ------|--- not yet ---|
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from skylarkmq.spark.archive.spans import Spans, gaps
from skylarkmq.spark.archive.state import ArchiveError, TableState
from skylarkmq.spark.jobs.common import USAGE, JobError
from skylarkmq.spark.offsets import QueueKey, describe

Hole = tuple[str, str, int, int, int]
"""Topic, broker, queue, start, end."""


class Brokers(Protocol):
    """What is asked of the cluster; the blocking client has it."""

    def read_queues(self, topic: str, *, max_age_s: float = 0.0) -> list[QueueKey]: ...

    def min_offsets(self, queues: Iterable[QueueKey]) -> dict[QueueKey, int]: ...

    def max_offsets(self, queues: Iterable[QueueKey]) -> dict[QueueKey, int]: ...


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """What to compare."""

    topics: tuple[str, ...]
    live: Spans
    """What brokers and archive should both have."""
    expired: Spans
    """What the archive alone can have."""
    holes: list[Hole]
    """What neither has: messages that expired without being archived."""
    ahead: int
    """Messages behind the archive's end."""
    rows: int
    """Messages in the archive's files of these topics, by its commits."""
    stops: dict[QueueKey, int]
    """The archive's end in each queue that it knows: what came behind it later is not compared."""
    notes: list[str]


def plan_archive(state: TableState, topics: Sequence[str], brokers: Brokers) -> ArchivePlan:
    """Return what to compare; asks name servers and brokers.

    Raises:
        JobError: a topic that the archive does not have.
        ArchiveError: the archive has no topic at all.
        RocketMQError: no such topic, or no answer.
    """
    known = state.topics()
    if not known:
        raise ArchiveError("the archive is empty: there is nothing to compare")
    unknown = sorted(set(topics) - set(known))
    if unknown:
        raise JobError(
            f"the archive does not have {', '.join(unknown)}; it has {', '.join(known)}",
            exit_code=USAGE,
        )
    chosen = tuple(topics) or tuple(known)
    live, expired, notes = Spans(), Spans(), list[str]()
    holes: list[Hole] = []
    ahead = 0
    queues = [QueueKey(*queue) for topic in chosen for queue in brokers.read_queues(topic)]
    begins, ends = brokers.min_offsets(queues), brokers.max_offsets(queues)
    for key in sorted({*queues, *state.queues(chosen)}):
        start, stop = state.start.get(key), state.next_offset(key)
        runs = state.spans.runs(key)
        if key not in begins:
            notes.append(f"{describe(key)} is not there any more: only its commits are checked.")
            begin = end = stop or 0
        else:
            begin, end = begins[key], ends[key]
        if stop is None:  # a queue that came after the last run
            ahead += max(0, end - begin)
            continue
        first = min([low for low in (start, runs[0][0] if runs else None) if low is not None])
        if end < stop:
            notes.append(
                f"{describe(key)} ends at {end}, before the archive's {stop}: its topic was made "
                "anew, or its broker lost its last messages."
            )
        ahead += max(0, end - max(stop, begin))
        live.add(key, max(first, begin), min(stop, end))
        for low, high in runs:
            expired.add(key, low, min(high, begin))
        holes += [
            (key.topic, key.broker_name, key.queue_id, low, high)
            for low, high in gaps(runs, first, min(begin, stop))
        ]
    rows = sum(file.rows for file in state.files.values() if file.value("topic") in chosen)
    known_queues = state.queues(chosen)
    stops = {key: stop for key in known_queues if (stop := state.next_offset(key)) is not None}
    return ArchivePlan(chosen, live, expired, holes, ahead, rows, stops, notes)
