r"""Waiting entries in the order of their due times: a few in memory, the rest in sorted runs.

    insert --> memory --freeze--> run, written in the background --merge--> longer run
                  \                  |
                   +---- take -------+     always the smallest entry of all

Memory does not grow with what waits: `MEMORY_MAX` entries, as many again in each run that is being
written, and a few pages of each of the other runs, of which there are `FAN_IN` a tier at most.

    base        the queue offset from which on entries may be in no written run: where reading
                begins again after a crash
    hand        entries that were taken and are not confirmed; one batch at a time
    position    no waiting entry sorts before it

Invariant: the entries that were taken out of a set of runs are the first ones in their common
order, so a merged run goes on at their number.

Loop thread; knows no disk. What blocks is in `run_file.py`, for the timer thread.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Final, NamedTuple

from skylarkmq.store.timer.run_file import ENTRY, KEY_SIZE

MEMORY_MAX: Final = 8192
"""Entries that wait in memory before they become a run."""
REREAD_MAX: Final = 131_072
"""Queue offsets between `base` and the newest entry before memory becomes a run anyway."""
UNWRITTEN_MAX: Final = 3
"""Runs that may wait for the disk; then nothing more is taken in."""
FAN_IN: Final = 16
"""Runs of one tier that are merged into one of the next."""


class Run:
    """A sorted run, as far as the loop knows it."""

    def __init__(self, number: int, tier: int, count: int, consumed: int, min_physical: int):
        self.number = number
        self.tier = tier
        self.count = count
        self.consumed = consumed  # entries before it are done with
        self.taken = consumed  # entries before it are done with, or in hand
        self.min_physical = min_physical  # no entry has a record before it
        self.rolled = 0  # entries before it were stored again, while that goes on
        self.entries: list[bytes] = []  # in memory
        self.next = 0  # among them: the first that was not taken
        self.last = b""  # no entry that was not taken sorts before it
        self.written = True
        self.base = 0  # of the memory that it was; 0 for one that a checkpoint knew, or merged

    @property
    def loaded(self) -> bool:
        return self.next < len(self.entries)

    @property
    def is_spent(self) -> bool:
        return self.consumed == self.count


class Taken(NamedTuple):
    """An entry in hand and where it came from."""

    entry: bytes
    run: Run | None  # None: memory
    is_void: bool  # a newer copy stands for it


class TimerIndex:
    """The waiting entries of one kind. Loop thread."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.hand: list[Taken] = []
        self.merging: list[Run] = []  # the parts of a merge that is under way
        self.garbage: list[int] = []  # numbers of written runs that are not needed anymore
        self.void_below = 0  # entries whose records lie below it in the log have newer copies
        self.rolling_below = 0  # the same as far as the runs' `rolled` says; 0: none
        self.voided = 0  # entries in the runs that have newer copies
        self._memory: list[bytes] = []  # a heap
        self._base = 0

    # Life

    def reset(self, base: int) -> None:
        """Forget everything; entries from queue offset `base` on will be inserted."""
        self.garbage += [run.number for run in self.runs if run.written]
        self.runs.clear()
        self.hand.clear()
        self.merging.clear()
        self._memory.clear()
        self.voided = self.rolling_below = 0
        self._base = base

    def load(self, state: dict[str, Any]) -> None:
        """Take over what `state` gave.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        self.reset(int(state["base"]))
        self.voided = int(state["voided"])
        due_ms, queue_offset = state["position"]
        floor = key(due_ms, queue_offset)
        for number, tier, count, consumed, min_physical, rolled in state["runs"]:
            run = Run(number, tier, count, consumed, min_physical)
            if not 0 <= consumed < count:
                raise ValueError(f"run {number} has {count} entries, {consumed} are done")
            run.rolled, run.last = int(rolled), floor
            self.runs.append(run)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint says, in plain values; what lies after `base` is not in it."""
        return {
            "base": self.base,
            "voided": self.voided,
            "position": list(ENTRY.unpack(self.position.ljust(ENTRY.size, b"\0"))[:2]),
            "runs": [
                [run.number, run.tier, run.count, run.consumed, run.min_physical, run.rolled]
                for run in self._settled()
                if not run.is_spent
            ],
        }

    def _settled(self) -> list[Run]:
        """Return the written runs; all that was read before their entries is written, too.

        After a crash, reading begins before the entries of the others, and they come in once more.
        """
        base = self.base
        return [run for run in self.runs if run.written and run.base < base]

    @property
    def base(self) -> int:
        """The queue offset from which on entries may be in no written run."""
        return min((run.base for run in self.runs if not run.written), default=self._base)

    @property
    def position(self) -> bytes:
        """A key that no waiting entry sorts before; the greatest one when nothing waits."""
        firsts = [taken.entry for taken in self.hand]
        firsts += self._memory[:1]
        for run in self.runs:
            if run.taken < run.count:
                firsts.append(run.entries[run.next] if run.loaded else run.last)
        return min(firsts)[:KEY_SIZE] if firsts else GREATEST

    @property
    def waiting_count(self) -> int:
        """Entries that wait, in hand or not."""
        in_runs = sum(run.count - run.consumed for run in self.runs)
        in_hand = sum(taken.run is None for taken in self.hand)
        return max(0, in_runs + in_hand + len(self._memory) - self.voided)

    # Coming in

    def insert(self, entry: bytes) -> None:
        """Let an entry wait."""
        heappush(self._memory, entry)

    def has_read(self, queue_offset: int) -> None:
        """Note that everything of the queue below an offset was inserted, or need not wait."""
        if not self._memory and not self._holds_memory:
            self._base = queue_offset

    @property
    def _holds_memory(self) -> bool:
        return any(taken.run is None for taken in self.hand)

    @property
    def has_room(self) -> bool:
        """True while more may be inserted."""
        return len(self._memory) < MEMORY_MAX

    def must_freeze(self, queue_offset: int) -> bool:
        """Return whether memory should become a run, after the queue was read up to an offset."""
        return (
            bool(self._memory)
            and not self._holds_memory
            and (len(self._memory) >= MEMORY_MAX or queue_offset - self._base >= REREAD_MAX)
            and sum(not run.written for run in self.runs) < UNWRITTEN_MAX
        )

    def freeze(self, number: int, queue_offset: int) -> Run | None:
        """Make memory a run, to be written; None when it is empty, or entries of it are in hand.

        Args:
            queue_offset: everything below it was inserted.
        """
        if not self._memory or self._holds_memory:
            return None
        entries, self._memory = sorted(self._memory), []
        run = Run(number, 0, len(entries), 0, min(ENTRY.unpack(entry)[2] for entry in entries))
        run.entries, run.last = entries, entries[0]
        run.written, run.base = False, self._base
        self._base = queue_offset
        self.runs.append(run)
        return run

    def run_written(self, run: Run) -> None:
        """Note that the file of a run is on the disk; from now on it is read page by page."""
        run.written = True
        if run.taken < run.count:
            run.last = run.entries[run.next]
            run.entries, run.next = [], 0
        self._drop_spent()

    # Going out

    def unloaded(self) -> list[Run]:
        """Return the runs whose next entries must be read before anything can be taken."""
        return [run for run in self.runs if run.taken < run.count and not run.loaded]

    def head(self) -> bytes | None:
        """Return the first entry that waits and is not in hand; nothing may be unloaded."""
        firsts = [run.entries[run.next] for run in self.runs if run.loaded]
        firsts += self._memory[:1]
        return min(firsts, default=None)

    def take(self, bound: bytes, max_count: int, max_bytes: int) -> None:
        """Take entries that sort before `bound` in hand, as long as the next one is known.

        Args:
            max_bytes: of their records; the first one counts as fitting.
        """
        heads: list[tuple[bytes, int]] = [
            (run.entries[run.next], place) for place, run in enumerate(self.runs) if run.loaded
        ]
        if self._memory:
            heads.append((self._memory[0], -1))
        heapify(heads)
        if self.unloaded():
            return
        hand, size = self.hand, 0
        while heads and len(hand) < max_count:
            entry, place = heads[0]
            _, _, physical_offset, record_size = ENTRY.unpack(entry)
            size += record_size
            if entry >= bound or (hand and size > max_bytes):
                return
            if place < 0:
                heappop(self._memory)
                hand.append(Taken(entry, None, physical_offset < self.void_below))
                following = self._memory[0] if self._memory else None
            else:
                run = self.runs[place]
                is_void = physical_offset < self.void_below or (
                    physical_offset < self.rolling_below and run.taken < run.rolled
                )
                hand.append(Taken(entry, run, is_void))
                run.taken += 1
                run.next += 1
                run.last = entry
                if run.taken < run.count and not run.loaded:
                    return
                following = run.entries[run.next] if run.loaded else None
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, (following, place))

    def confirm(self, count: int) -> None:
        """Drop the first entries in hand: they are done with."""
        for taken in self.hand[:count]:
            if taken.run is not None:
                taken.run.consumed += 1
            self.voided -= taken.is_void
        del self.hand[:count]
        self._drop_spent()

    def give_back(self) -> None:
        """Let what is in hand wait again."""
        for entry, run, _ in reversed(self.hand):
            if run is None:
                heappush(self._memory, entry)
                continue
            run.taken -= 1
            run.last = entry
            if run.next:
                run.next -= 1
            else:
                run.entries = []  # written meanwhile: to be read again
        self.hand.clear()

    def _drop_spent(self) -> None:
        spent = [
            run for run in self.runs if run.is_spent and run.written and run not in self.merging
        ]
        if spent:
            self.garbage += [run.number for run in spent]
            self.runs = [run for run in self.runs if run not in spent]

    # Merging

    def to_merge(self) -> list[Run]:
        """Return runs that should become one; none when there are few, or a merge is under way."""
        if self.merging:
            return []
        tiers: dict[int, list[Run]] = {}
        for run in self._settled():
            tiers.setdefault(run.tier, []).append(run)
        for runs in tiers.values():
            if len(runs) >= FAN_IN:
                return runs[:FAN_IN]
        return []

    def replace_merged(self, number: int, count: int, starts: list[int]) -> None:
        """Put a merged run in the place of those in `merging`; nothing of them may be in hand.

        Args:
            count: entries of the merged run: those of its parts from `starts` on.
        """
        parts, self.merging = self.merging, []
        done = sum(run.consumed - start for run, start in zip(parts, starts, strict=True))
        run = Run(number, parts[0].tier + 1, count, done, min(run.min_physical for run in parts))
        run.last = min(run.last for run in parts)
        self.garbage += [part.number for part in parts]
        self.runs = [kept for kept in self.runs if kept not in parts]
        self.runs.append(run)
        self._drop_spent()

    # Storing again what lies in a log file that is to go

    def has_below(self, physical_offset: int) -> bool:
        """Return whether an entry may wait whose record lies below a place of the log."""
        if self.void_below >= physical_offset:
            return False
        in_memory = self._memory + [taken.entry for taken in self.hand]
        return any(
            run.min_physical < physical_offset and not run.is_spent for run in self.runs
        ) or any(ENTRY.unpack(entry)[2] < physical_offset for entry in in_memory)

    def rolled(self, run: Run, end: int, count: int) -> None:
        """Note that a run's entries before number `end` have newer copies, `count` more of them."""
        run.rolled = end
        self.voided += count


def key(due_ms: int, queue_offset: int) -> bytes:
    """Return what orders entries: their first bytes."""
    return ENTRY.pack(due_ms, queue_offset, 0, 0)[:KEY_SIZE]


GREATEST: Final = key(0x7FFFFFFFFFFFFFFF, 0x7FFFFFFFFFFFFFFF)
