"""One run at a time at a place: who holds it, and how others see that it is held.

    with Hold(place, "replay into orders") as hold:
        hold.run_id         in the object `run` while it lasts; a task reads it: `require_run`
        hold.check()        HoldLostError: another run has the place now

In a folder the file `lock` is locked (flock), which ends with the process. An object store has no
such lock. There the run writes the object `run` anew every KEEP_S. Another run that finds one
waits: when the object changes, its run is alive, and the other gives up; when it stays as it is for
LEASE_S, its run is dead, and the other puts its own in its place, on the condition that it is still
that version. So of two that start at once one wins. A run that could not write its object for
LEASE_S no longer believes that it holds the place. Durations alone are compared, each on one clock.

What a run writes is safe without that as well: each ledger is written on the condition that no
other run wrote it (`objects`). Holding keeps runs from doing work twice.

Driver process; the object is renewed by a thread of its own.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import uuid
from typing import Final, Self, cast

from skylarkmq.client.errors import RocketMQError
from skylarkmq.spark.clock import BlockingClock, SystemClock
from skylarkmq.spark.ledgers.objects import (
    LOCK,
    ChangedError,
    Objects,
    make_folder,
    objects_at,
    take_lock,
)
from skylarkmq.spark.storage import Location, StorageError

RUN: Final = "run"
LEASE_S: Final = 15.0
KEEP_S: Final = 3.0
_WHO_MAX: Final = 200
assert KEEP_S * 3 < LEASE_S, "a renewal or two may fail"

logger = logging.getLogger(__name__)


class InUseError(RocketMQError):
    """Another run is at work at the place."""


class HoldLostError(RocketMQError):
    """Another run has taken the place over, or may have, because the store did not answer."""


class RunEndedError(RocketMQError):
    """The run that a task belongs to has ended; seen by the task alone."""


class Hold:
    """A run's sole use of a place; a context manager, entered once."""

    def __init__(self, place: Location, what: str, clock: BlockingClock | None = None) -> None:
        """Hold nothing yet.

        Args:
            what: the work, as another run is shown it, beside this process and its host.
        """
        self.run_id = uuid.uuid4().hex
        self._place = place
        self._objects: Objects = objects_at(place)
        self._who = f"process {os.getpid()} on {socket.gethostname()}, {what}"
        self._clock: BlockingClock = clock or SystemClock()
        self._lock = -1
        self._beats = 0
        self._tag: str | None = None
        self._kept_at_s = 0.0
        self._lost = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Take the place.

        Raises:
            InUseError: another run has it.
            StorageError, OSError: it cannot be read or written.
        """
        if self._place.path is not None:
            self._take_lock()
        else:
            self._wait_for_another()
        self._kept_at_s = self._clock.monotonic()
        try:
            self._tag = self._objects.write(RUN, self._text(), self._tag)
        except ChangedError:
            self._give_lock_back()
            raise self._in_use() from None
        except BaseException:
            self._give_lock_back()
            raise
        if self._place.path is None:
            self._thread = threading.Thread(target=self._keep, name="skylarkmq-hold", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._give_lock_back()

    def end(self) -> None:
        """Let tasks of this run write nothing any longer; the place stays taken till the exit."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        try:
            if not self._is_lost():
                self._objects.remove(RUN)
        except (StorageError, OSError) as error:
            logger.warning("the next run waits %g s, because this one could not end: %s",
                           LEASE_S, error)  # fmt: skip

    def check(self) -> None:
        """Raise HoldLostError when this run does not hold the place any more. Any thread."""
        if self._is_lost():
            raise HoldLostError(
                f"another run may be at work at {self._place}: this one could not renew its mark "
                f"there for {LEASE_S:g} s, or found another one",
                hint="Look whether another run is at work, then run the same command again",
            )

    def renew(self) -> None:
        """Write the run's object anew. In an object store a thread does it every KEEP_S."""
        at_s = self._clock.monotonic()
        self._beats += 1
        try:
            self._tag = self._objects.write(RUN, self._text(), self._tag)
            self._kept_at_s = at_s
        except ChangedError:
            # A write before may have come to the server, and its answer not to us.
            found = self._objects.read(RUN)
            if found is not None and _document(found.data).get("run") == self.run_id:
                self._tag = found.tag
            else:
                self._lost = True
        except (StorageError, OSError) as error:
            logger.warning("%s", error)

    # Inside

    def _text(self) -> bytes:
        document = {"run": self.run_id, "who": self._who, "beat": self._beats}
        return json.dumps(document).encode()

    def _is_lost(self) -> bool:
        late = self._clock.monotonic() > self._kept_at_s + LEASE_S
        return self._lost or (late and self._place.path is None)

    def _keep(self) -> None:
        while not self._ended.wait(KEEP_S) and not self._lost:
            self.renew()

    def _take_lock(self) -> None:
        assert self._place.path is not None
        make_folder(self._place.path)
        lock = take_lock(self._place.path / LOCK)
        if lock is None:
            raise self._in_use()
        self._lock = lock
        found = self._objects.read(RUN)  # of a run that was killed
        self._tag = None if found is None else found.tag

    def _wait_for_another(self) -> None:
        """Return once the run whose object is there, if any, has not renewed it for LEASE_S."""
        found = self._objects.read(RUN)
        if found is not None:
            logger.warning(
                "an earlier run has not ended in order: %s; waiting %g s for a sign of it",
                _who_of(found.data), LEASE_S,
            )  # fmt: skip
        until_s = self._clock.monotonic() + LEASE_S
        while found is not None and self._clock.monotonic() < until_s:
            self._clock.sleep(KEEP_S)
            now = self._objects.read(RUN)
            if now is not None and now.tag != found.tag:
                raise self._in_use()
            found = now
        self._tag = None if found is None else found.tag

    def _in_use(self) -> InUseError:
        found = self._objects.read(RUN)
        who = "unknown" if found is None else _who_of(found.data)
        return InUseError(
            f"another run is at work at {self._place}: {who}", hint="Wait for its end, or end it"
        )

    def _give_lock_back(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def require_run(objects: Objects, run_id: str) -> None:
    """Check, in a task, that its run is still the one at work.

    Raises:
        RunEndedError: it has ended.
    """
    found = objects.read(RUN)
    if found is None or _document(found.data).get("run") != run_id:
        raise RunEndedError("the run that this task belongs to has ended")


def _document(data: bytes) -> dict[str, object]:
    try:
        found: object = json.loads(data)
    except ValueError:
        return {}
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def _who_of(data: bytes) -> str:
    return str(_document(data).get("who", "unknown"))[:_WHO_MAX]
