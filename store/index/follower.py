"""How the key index keeps up with the log: live by what is published, else by reading it again.

    repairing slots that a crash left damaged are repaired (`file.py`)
    behind    the log is read in slices, one after the other, up to what is published
    live      entries of published records wait here and go to the index thread in batches, a little
              later

A start is behind by what the last checkpoint did not cover. The index falls behind, too, when
more is published than may wait, or when the machine refused something. Then what waits is dropped,
because the log has it all.

One job repairs, reads or builds at a time, and the loop has its turn between two jobs, so that none
keeps the interpreter for more than a millisecond or two.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from skylarkmq.common.clock import TimerHandle
from skylarkmq.common.refusal import Refusal, refusal
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.kernel import compiled as kernel
from skylarkmq.store.environment import Environment
from skylarkmq.store.index.builder import SLICE_SIZE, IndexBuilder, Progress
from skylarkmq.store.index.keys import ENTRY_SIZE, offset_of
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.log.mapped_file import MappedFile

log = logging.getLogger(__name__)

BATCH_SIZE: Final = 512 * ENTRY_SIZE
"""Entries of so many bytes make a job without waiting for more."""
JOB_SIZE: Final = 2 * BATCH_SIZE if kernel is None else 16 * BATCH_SIZE
"""Bytes of the entries of one job, about 2 ms. Where fewer are taken than come while it runs, the
index falls behind."""
LINGER_S: Final = 0.02
"""How long fewer entries than a batch wait for more."""
WAITING_SIZE_MAX: Final = (1 << 18) * ENTRY_SIZE
"""Bytes of entries that may wait."""
JOIN_SIZE: Final = 4 * SLICE_SIZE
"""When so few bytes are left to read, what is published meanwhile waits for the reading to end."""
RETRY_S: Final = 1.0


class IndexFollower:
    """Feeds the builder. Loop thread.

    Its size is one idea: how far the index has come, and the one job that brings it on.
    """

    def __init__(self, env: Environment, builder: IndexBuilder, commit_log: CommitLog) -> None:
        self._builder = builder
        self._env = env
        self._log = commit_log
        self._retry = IntervalTimer(env.clock, RETRY_S, self._try_again)
        self._running = False
        self._jobs = 0  # of repairing, reading or building that are under way
        self._repaired = True
        self._why_halted = ""  # until the next try
        # Invariant: while `_live`, or on the way to it with `_join_offset`, `_waiting` holds the
        # entries of all records that are published and were not handed to the index thread, which
        # has what lies below `_given_offset`; else it is empty.
        self._live = False
        self._join_offset = -1
        self._waiting = bytearray()
        self._given_offset = 0
        self._linger: TimerHandle | None = None
        self.indexed_offset = 0  # records below it are in the index, as far as the loop knows
        self.published_offset = 0
        self.refused: Refusal | None = None

    def begin_at(self, indexed_offset: int, *, repaired: bool) -> None:
        """Take over what a start found; all of the log is published."""
        self.indexed_offset = indexed_offset
        self.published_offset = max(self._log.max_offset, indexed_offset)
        self._repaired = repaired

    def start(self) -> None:
        """Begin to follow."""
        self._running = True
        self._retry.start()
        self._go_on()

    def end(self) -> None:
        """Start no more jobs."""
        self._running = False
        self._retry.stop()
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    @property
    def behind_bytes(self) -> int:
        """Bytes of the published log that are not in the index yet."""
        return max(0, self.published_offset - max(self.indexed_offset, self._log.min_offset))

    @property
    def missing(self) -> str:
        """What a search that begins now may not find, for a human; empty when nothing."""
        if not self._env.config.message_index_enable:
            return "the key index is not kept up (messageIndexEnable is false)"
        if self._live:
            return ""
        if not self._repaired:
            return "the key index is being repaired after an unclean stop, ask again later"
        why = f" ({self._why_halted})" if self._why_halted else ""
        return (
            f"the key index is being built again{why}: {self.behind_bytes} bytes of the log are "
            "not in it yet, ask again later"
        )

    def take(self, entries: bytearray | None, end_offset: int) -> None:
        """Take the entries of records that were published after all earlier ones.

        Args:
            entries: None: too many, to be read from the log.
        """
        if end_offset <= self.published_offset:
            return
        self.published_offset = end_offset
        if not self._live and self._join_offset < 0:
            return
        waiting = self._waiting
        waiting += entries or b""
        if entries is None or len(waiting) > WAITING_SIZE_MAX:
            self._fall_behind("too much was published meanwhile")
            self._go_on()
        elif self._live and self._running and not self._jobs:  # else `build_rest` takes it
            if len(waiting) >= BATCH_SIZE:
                self._go_on()
            elif self._linger is None:
                self._wait_for_more()

    def submit_waiting(self) -> None:
        """Hand all that waits to the index thread, before what is submitted next."""
        if self._live and self._running:
            while self._has_waiting:
                self._build_batch()

    def build_rest(self) -> None:
        """Build here and now what waits live. Blocks; after the workers have ended."""
        if self._live and self._has_waiting:
            waiting, self._waiting = self._waiting, bytearray()
            self._note(self._builder.build(waiting, self.published_offset))

    @property
    def _has_waiting(self) -> bool:
        """True while published records, perhaps without keys, wait for the index thread."""
        return self._given_offset < self.published_offset

    # Jobs

    def _go_on(self) -> None:
        """Start the next job when there is one and none is under way."""
        if not self._running or self._jobs or self._why_halted:
            return
        if not self._repaired:
            self._jobs += 1
            self._env.workers.index.submit(self._builder.repair_some, self._slice_repaired)
        elif not self._env.config.message_index_enable:
            return
        elif not self._live:
            self._read_slice()
        elif len(self._waiting) >= BATCH_SIZE:
            self._build_batch()
        elif self._has_waiting and self._linger is None:
            self._wait_for_more()

    def _slice_repaired(self, done: bool | None, error: BaseException | None) -> None:
        self._jobs -= 1
        if error is not None:
            self._halt(error)
        else:
            self.refused = None
            self._repaired = bool(done)
            self._go_on()

    def _read_slice(self) -> None:
        offset = max(self.indexed_offset, self._log.min_offset)
        mapped = self._log.mapped_files.find(offset)
        if offset >= self.published_offset or mapped is None:
            self._begin_live(self.published_offset)
            return
        if self._join_offset < 0 and self.published_offset - offset <= JOIN_SIZE:
            self._join_offset = self.published_offset
        end_offset = self._join_offset if self._join_offset >= 0 else self.published_offset
        mapped.hold()
        self._jobs += 1
        self._env.workers.index.submit(
            partial(self._builder.catch_up, mapped, offset, end_offset),
            partial(self._slice_read, mapped),
        )

    def _slice_read(
        self, mapped: MappedFile, progress: Progress | None, error: BaseException | None
    ) -> None:
        self._jobs -= 1
        mapped.release()
        if error is not None:
            self._halt(error)
        elif progress is not None and self._note(progress):
            self._env.stats.index_records_read += progress.record_count
            if self.indexed_offset == self._join_offset:
                self._begin_live(self._join_offset)
                log.info("the key index has caught up with the log at %d", self.indexed_offset)
            self._go_on()

    def _begin_live(self, offset: int) -> None:
        self._live, self._join_offset, self._given_offset = True, -1, offset

    def _wait_for_more(self) -> None:
        deadline = self._env.clock.monotonic() + LINGER_S
        self._linger = self._env.clock.call_at(deadline, self._lingered)

    def _lingered(self) -> None:
        self._linger = None
        if self._live and self._has_waiting and not self._jobs:
            self._build_batch()

    def _build_batch(self) -> None:
        waiting, size, end_offset = self._waiting, JOB_SIZE, self.published_offset
        while size < len(waiting):
            following = offset_of(waiting, size)
            if following != offset_of(waiting, size - ENTRY_SIZE):
                end_offset = following
                break
            size += ENTRY_SIZE  # all entries of a record go together
        batch = waiting[:size]
        del waiting[:size]
        self._given_offset = end_offset
        self._jobs += 1
        self._env.workers.index.submit(partial(self._builder.build, batch, end_offset), self._built)

    def _built(self, progress: Progress | None, error: BaseException | None) -> None:
        self._jobs -= 1
        if error is not None:
            self._halt(error)
        elif progress is not None and self._note(progress):
            self._go_on()

    def _note(self, progress: Progress) -> bool:
        """Take a job's outcome; whether it went well."""
        self.indexed_offset = progress.next_offset
        self._env.stats.index_entries += progress.entry_count
        if progress.passed_over:
            log.warning(
                "the log is damaged before offset %d: %d bytes are not in the key index",
                progress.next_offset,
                progress.passed_over,
            )
        if progress.error is None:
            self.refused = None
            return True
        if refusal(progress.error) is None:
            self._env.fail(progress.error)
        self._halt(progress.error)
        return False

    # Trouble

    def _halt(self, error: BaseException) -> None:
        """Do nothing until the next try."""
        before, self.refused = self.refused, refusal(error)
        why = f"{type(error).__name__}: {error}" if self.refused is None else self.refused.why
        if self.refused is None:
            log.error("the key index does not go on: %s", why, exc_info=error)
        elif self.refused != before:
            log.error("the key index does not go on: %s", error)
        self._fall_behind(why)
        self._why_halted = why

    def _fall_behind(self, why: str) -> None:
        if self._live and not self._why_halted:
            log.warning("the key index falls behind at %d: %s", self.indexed_offset, why)
        self._live = False
        self._join_offset = -1
        self._waiting.clear()

    def _try_again(self) -> None:
        if self._why_halted and not self._jobs:
            self._why_halted = ""
            self._go_on()
