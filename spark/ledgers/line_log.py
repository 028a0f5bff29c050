"""A log of lines that only grows: what a job has done, durable line by line.

    in a folder          one file; lines are appended and synced
    in an object store   objects 00000001.jsonl, 00000002.jsonl, ...; the last one is written anew
                         with more lines until it has PART_BYTES, then the next one begins

One process writes: it locks the file (flock), or holds the place (`hold`). In an object store every
write is on the condition that no other process wrote in between, and opening writes a line as well:
a run that was taken for dead, and is not, adds nothing any more.

A last line of a file that was cut was not synced: it goes.

Driver process, one thread.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from skylarkmq.client.errors import RocketMQError
from skylarkmq.spark.clock import BlockingClock
from skylarkmq.spark.ledgers.hold import Hold, InUseError
from skylarkmq.spark.ledgers.objects import ChangedError, objects_at, sync_path, take_lock
from skylarkmq.spark.storage import Location

PART_BYTES: Final = 128 * 1024
_ENDING: Final = ".jsonl"


class LineLog(ABC):
    """A log at a place; a context manager, for one writer. Lines have no line feed."""

    def __init__(self, place: Location) -> None:
        self.place = place

    @abstractmethod
    def read(self) -> list[bytes]:
        """Return all whole lines, without opening; none when there is no log."""

    @abstractmethod
    def __enter__(self) -> Self:
        """Take the log for this process, and make it if need be.

        Raises:
            InUseError: another process has it.
            StorageError, OSError: it cannot be used.
        """

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Give the log back."""

    @abstractmethod
    def append(self, lines: Iterable[bytes]) -> None:
        """Add lines; they are durable when it returns.

        Raises:
            RocketMQError, OSError: they may be there or not; nothing may be added any more.
        """


def line_log(place: Location, what: str, clock: BlockingClock | None = None) -> LineLog:
    """Return the log at a place.

    Args:
        what: the work, as another run is shown it.
    """
    return ObjectLineLog(place, what, clock) if place.path is None else FileLineLog(place)


class FileLineLog(LineLog):
    """A file of lines."""

    def __init__(self, place: Location) -> None:
        super().__init__(place)
        assert place.path is not None
        self._path: Path = place.path
        self._descriptor = -1

    def read(self) -> list[bytes]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        return data[: data.rfind(b"\n") + 1].splitlines()

    def __enter__(self) -> Self:
        new = not self._path.exists()
        descriptor = take_lock(self._path)
        if descriptor is None:
            raise InUseError(
                f"another run is at work with {self._path}", hint="Wait for its end, or end it"
            )
        self._descriptor = descriptor
        try:
            data = self._path.read_bytes()
            os.ftruncate(descriptor, data.rfind(b"\n") + 1)
            os.lseek(descriptor, 0, os.SEEK_END)
            if new:
                sync_path(self._path.parent)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def append(self, lines: Iterable[bytes]) -> None:
        data = memoryview(b"".join(line + b"\n" for line in lines))
        while data:
            data = data[os.write(self._descriptor, data) :]
        os.fsync(self._descriptor)


class ObjectLineLog(LineLog):
    """Lines in objects of a store."""

    def __init__(self, place: Location, what: str, clock: BlockingClock | None = None) -> None:
        super().__init__(place)
        self._objects = objects_at(place)
        self._hold = Hold(place, what, clock)
        self._number = 0
        self._part = b""
        """What the last object holds."""
        self._tag: str | None = None
        self._is_broken = False
        self._stack = ExitStack()

    def read(self) -> list[bytes]:
        parts = (self._objects.read(name) for name in self._parts())
        whole = b"".join(part.data for part in parts if part is not None)
        return [line for line in whole.splitlines() if not _is_mark(line)]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._hold)
            names = self._parts()
            if names:
                self._number = int(names[-1].removesuffix(_ENDING))
                found = self._objects.read(names[-1])
                self._part, self._tag = (b"", None) if found is None else found
            try:
                self._put(json.dumps({"run": self._hold.run_id}).encode() + b"\n")
            except ChangedError as error:
                raise InUseError(str(error)) from None
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def append(self, lines: Iterable[bytes]) -> None:
        self._hold.check()
        if self._is_broken:
            raise RocketMQError(f"{self.place} could not be written before: its end is not known")
        self._put(b"".join(line + b"\n" for line in lines))

    def _put(self, data: bytes) -> None:
        if self._tag is None or len(self._part) >= PART_BYTES:
            self._number, self._part, self._tag = self._number + 1, b"", None
        self._part += data
        try:
            name = f"{self._number:08d}{_ENDING}"
            self._tag = self._objects.write(name, self._part, self._tag)
        except BaseException:
            self._is_broken = True
            raise

    def _parts(self) -> list[str]:
        return [name for name in self._objects.names() if name.endswith(_ENDING)]


def _is_mark(line: bytes) -> bool:
    return line.startswith(b'{"run"')
