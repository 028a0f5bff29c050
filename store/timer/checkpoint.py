"""What a crash leaves of the timed messages: one small file beside the runs.

    <root>/skylarkmq/timer/checkpoint       `sidecar.py`'s framing around this map; with a `.bak`
    <root>/skylarkmq/timer/<20 digits>      runs, `run_file.py`

    queue_offset   units of the timer topic's queue below it were read
    void_below     messages whose records lie below this place of the log were stored again
    rolling_below  the same is going on up to this place, as far as the runs say; 0 for no
    next_number    of a run
    history        [end of the log, queue_offset, void_below, position of messages, of cancels]:
                   what was said here and before, and how long the log was (`log_history.py`)
    forgotten      [due time ms, queue offset]: what takes messages back was forgotten up to that
                   time while messages below that offset were read; none is needed for a message
                   that sorts before its position
    messages, cancels
        base       units from here on may be in no run: reading begins again here
        position   [due time ms, queue offset]: what sorts before it and has a queue offset below
                   queue_offset is delivered
        voided     entries of the runs that were stored again
        runs       [number, tier, entries, entries done with, place of the log below which no record
                   of its lies, entries stored again while that goes on]

Everything here is derived from the timer topic's queue. Without runs, or with a damaged one, the
queue is read again from its start, and `queue_offset` and `position` tell what is delivered. An
older checkpoint says less, but nothing wrong. Without any, everything in the queue counts as not
delivered: repeated rather than lost.

A shorter log has lost copies of delivered messages, and has what waited still. What was said of a
log that long counts then, and what was delivered after comes again.

A message may come back: one that was delivered counts as not delivered when the clock went back and
one of an earlier time came. What takes it back then comes back with it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final, NamedTuple

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.files import Files
from skylarkmq.common.refusal import refusal
from skylarkmq.common.sidecar import Kind, decode_sidecar, encode_sidecar
from skylarkmq.store.log_history import LogHistory
from skylarkmq.store.timer.index import Run, TimerIndex, key
from skylarkmq.store.timer.run_file import DUE_SIZE, ENTRY, check_run, run_path

log = logging.getLogger(__name__)

CHECKPOINT_NAME: Final = "checkpoint"
BACKUP: Final = ".bak"

_UNTOLD_MS: Final = 0x7FFFFFFFFFFFFFFF  # up to which time another broker has forgotten something

State = dict[str, Any]


class TimerProgress(NamedTuple):
    """How far the timed messages of a queue are done with, for who has the queue and no runs.

    Attributes:
        queue_offset, void_below: as in the checkpoint.
        messages, cancels: [due time ms, queue offset]: what sorts before is done with.
    """

    queue_offset: int
    void_below: int
    messages: list[int]
    cancels: list[int]


NO_PROGRESS: Final = TimerProgress(0, 0, [0, 0], [0, 0])


class TimerState:
    """The timed messages of a store as far as a checkpoint knows them. Loop thread."""

    def __init__(self) -> None:
        self.messages = TimerIndex()
        self.cancels = TimerIndex()
        self.queue_offset = 0  # units below it were read
        self.next_number = 1
        # What is below this queue offset and sorts before its position is delivered: for units that
        # are read again.
        self.known_below = 0
        self.known_positions = (b"", b"")  # of messages, of cancels
        self.known_bases = (0, 0)  # what is below is in the runs
        # What takes messages back is forgotten up to a due time; messages from a queue offset on
        # have not been there then.
        self._forgotten_ms = 0
        self._forgotten_below = 0
        self._history = LogHistory[TimerProgress]()
        self._said: State = {}  # last

    @property
    def indexes(self) -> tuple[TimerIndex, TimerIndex]:
        return self.messages, self.cancels

    @property
    def runs(self) -> list[Run]:
        """The runs of both indexes."""
        return self.messages.runs + self.cancels.runs

    @property
    def void_below(self) -> int:
        return self.messages.void_below

    @void_below.setter
    def void_below(self, physical_offset: int) -> None:
        for index in self.indexes:
            index.void_below = physical_offset

    @property
    def rolling_below(self) -> int:
        return self.messages.rolling_below

    @rolling_below.setter
    def rolling_below(self, physical_offset: int) -> None:
        for index in self.indexes:
            index.rolling_below = physical_offset

    @property
    def is_rereading(self) -> bool:
        """True while what is read next was read before a crash already."""
        return self.queue_offset < self.known_below

    def take_number(self) -> int:
        """Return a number for a new run."""
        self.next_number += 1
        return self.next_number - 1

    def encode(self, log_end: int) -> bytes:
        """Return the checkpoint's bytes. Only when nothing is being read again.

        They are those of the call before when nothing has happened but that the log has grown.

        Args:
            log_end: where the log ends now. It must reach there on the disk before this does.
        """
        state = {
            "queue_offset": self.queue_offset,
            "void_below": self.void_below,
            "rolling_below": self.rolling_below,
            "next_number": self.next_number,
            "forgotten": [self._forgotten_ms, self._forgotten_below],
            "messages": self.messages.state(),
            "cancels": self.cancels.state(),
        }
        if state != self._said:
            self._history.say(log_end, self.progress())
            self._said = state
        return _encode(state, self._history)

    def load(self, files: Files, folder: Path, queue_end: int, log_end: int) -> list[int]:
        """Take over what is in the folder. Blocks; before the loop serves.

        Args:
            queue_end: the queue offset after the last message of the timer topic.
            log_end: the place in the log after its last record.

        Returns:
            The numbers of files that are of no use.

        Raises:
            OSError: the disk failed.
        """
        files.make_folder(folder)
        path = folder / CHECKPOINT_NAME
        state = read_checkpoint(files, path)
        is_newest = state is not None
        if state is None:
            state = read_checkpoint(files, path.with_name(CHECKPOINT_NAME + BACKUP))
        numbers = [int(name) for name in files.list(folder) if name.isdigit()]
        self.next_number = max(numbers, default=0) + 1
        if state is None:
            if queue_end:
                log.warning(
                    "%s is not there: the %d messages of the timer topic count as not delivered, "
                    "and what was is delivered again",
                    path,
                    queue_end,
                )
            return numbers
        self.take_over(state)
        if self.known_below > queue_end or self._history.log_end > log_end:
            self._go_back(files, path, queue_end, log_end)
            return numbers
        try:
            if not is_newest:
                raise CorruptFileError(path, 0, "it cannot be read, the one before it is used")
            if self._lacks_cancels:
                raise CorruptFileError(path, 0, "the clock went back before it was written")
            for run in self.runs:
                check_run(files, run_path(folder, run.number), run.count)
        except (CorruptFileError, OSError) as error:
            log.warning("timed messages are read again from their queue: %s", error)
            self.rebuild()
        used = {run.number for run in self.runs}
        return [number for number in numbers if number not in used]

    def _go_back(self, files: Files, path: Path, queue_end: int, log_end: int) -> None:
        """Go on with what was said of a log that was as short as it is now."""
        history = self._history
        progress = history.go_back(log_end, lambda said: said.queue_offset <= queue_end)
        log.warning(
            "the log was cut to %d since %s was written: timed messages whose copies may have gone "
            "are delivered again, from what was known when the log ended at %d",
            log_end,
            path,
            history.log_end,
        )
        self.go_on(progress or NO_PROGRESS, queue_end)
        self._history = history
        # The log may be longer again when the next one is written. Without any, all comes again.
        for old in (path, path.with_name(CHECKPOINT_NAME + BACKUP)):
            if files.exists(old):
                files.unlink(old)
        files.sync_folder(path.parent)
        try:
            data = encode_progress(progress or NO_PROGRESS, history)
            files.replace(path, data, backup=False)
        except OSError as error:
            if refusal(error) is None:
                raise
            log.warning("%s is not there until the next one is written: %s", path, error)

    def take_over(self, state: State) -> None:
        """Know what the map of a checkpoint says."""
        self.known_below = self.queue_offset = state["queue_offset"]
        self.next_number = max(self.next_number, state["next_number"])
        self.void_below, rolling_below = state["void_below"], state["rolling_below"]
        self.messages.load(state["messages"])
        self.cancels.load(state["cancels"])
        self.rolling_below = rolling_below
        self.known_positions = _known(_position(state["messages"]), _position(state["cancels"]))
        self._forgotten_ms, self._forgotten_below = state.get("forgotten", (0, 0))
        self.known_bases = (self.messages.base, self.cancels.base)
        self.queue_offset = min(self.known_bases)
        self._history = LogHistory[TimerProgress](_said(*row) for row in state.get("history", ()))

    def rebuild(self) -> None:
        """Forget all runs; the queue is to be read again from its start."""
        self.messages.reset(0)
        self.cancels.reset(0)
        self.known_bases = (0, 0)
        self.queue_offset = 0

    def knows(
        self, entry: bytes, queue_offset: int, physical_offset: int, *, is_cancel: bool
    ) -> bool:
        """Return whether what is read from the queue waits already, or need not wait anymore."""
        if physical_offset < self.void_below or queue_offset < self.known_bases[is_cancel]:
            return True
        return queue_offset < self.known_below and entry < self.known_positions[is_cancel]

    def progress(self) -> TimerProgress:
        """Return how far everything is; while the queue is read again, how far it was before."""
        offset = self.queue_offset
        positions = _known(self.messages.position, self.cancels.position)
        if self.is_rereading:
            offset, positions = self.known_below, self.known_positions
        messages, cancels = (
            list(ENTRY.unpack(position.ljust(ENTRY.size, b"\0"))[:2]) for position in positions
        )
        return TimerProgress(offset, self.void_below, messages, cancels)

    def go_on(self, progress: TimerProgress, queue_end: int) -> None:
        """Forget all runs; read the queue from its start, and pass over what is done with."""
        self.rebuild()
        self.known_below = min(progress.queue_offset, queue_end)
        self.void_below = progress.void_below
        self.known_positions = _known(key(*progress.messages), key(*progress.cancels))
        self._forgotten_ms, self._forgotten_below = _UNTOLD_MS, self.known_below
        self._history = LogHistory[TimerProgress]()

    def know_positions(self) -> None:
        """Note what is delivered by now, before everything is read again."""
        if self.queue_offset >= self.known_below:
            self.known_below = self.queue_offset
            self.known_positions = _known(self.messages.position, self.cancels.position)

    def forgot(self, due_ms: int) -> None:
        """Note that what takes messages of a due time back is forgotten: none waits any more."""
        if self.messages.base >= self._forgotten_below:
            self._forgotten_ms = 0
        self._forgotten_ms = max(self._forgotten_ms, due_ms)
        self._forgotten_below = self.queue_offset

    @property
    def _lacks_cancels(self) -> bool:
        """Whether a message may be read again that was taken back by what is forgotten."""
        due_ms = int.from_bytes(self.known_positions[0][:DUE_SIZE], "big")
        is_past = self.known_bases[0] < self._forgotten_below and due_ms <= self._forgotten_ms
        return is_past and any(self.known_bases)  # else all is read


def _known(messages: bytes, cancels: bytes) -> tuple[bytes, bytes]:
    """Return before what everything is done with, by the positions of messages and cancels.

    What takes messages back is needed again with the messages of its due time.
    """
    return messages, min(cancels, messages[:DUE_SIZE])


def encode_progress(progress: TimerProgress, history: LogHistory[TimerProgress]) -> bytes:
    """Return a checkpoint without runs, of how far this or another broker has delivered."""
    empty: State = {"base": 0, "voided": 0, "runs": []}
    state: State = {
        "queue_offset": progress.queue_offset,
        "void_below": progress.void_below,
        "rolling_below": 0,
        "next_number": 1,
        "forgotten": [_UNTOLD_MS, progress.queue_offset],
        "messages": {**empty, "position": progress.messages},
        "cancels": {**empty, "position": progress.cancels},
    }
    return _encode(state, history)


def _encode(state: State, history: LogHistory[TimerProgress]) -> bytes:
    rows = [[log_end, *progress] for log_end, progress in history.rows]
    return encode_sidecar(Kind.TIMER_CHECKPOINT, {**state, "history": rows})


def read_checkpoint(files: Files, path: Path) -> State | None:
    """Return the map of a checkpoint, None when there is none that can be read. Blocks."""
    if not files.exists(path):
        return None
    try:
        state = decode_sidecar(path, Kind.TIMER_CHECKPOINT, files.read_all(path))
        _check(path, state)
    except CorruptFileError as error:
        log.warning("%s", error)
        return None
    return state


def _check(path: Path, state: State) -> None:
    """Check that a map has what `TimerState` will read.

    Raises:
        CorruptFileError: it is something else.
    """
    try:
        for name in ("queue_offset", "void_below", "rolling_below", "next_number"):
            if state[name] < 0:
                raise ValueError(name)
        TimerState().take_over(state)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFileError(path, 0, f"the map is not a checkpoint's: {error!r}") from error


def _said(
    log_end: int, queue_offset: int, void_below: int, messages: list[int], cancels: list[int]
) -> tuple[int, TimerProgress]:
    return log_end, TimerProgress(queue_offset, void_below, messages, cancels)


def _position(state: State) -> bytes:
    due_ms, queue_offset = state["position"]
    return key(due_ms, queue_offset)
