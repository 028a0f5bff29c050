"""Small objects of a job: read whole, written whole, changed only by who knows the last version.

    found = objects.read("state.json")              bytes and their version, or None
    objects.write("state.json", data, found.tag)    ChangedError: another one wrote in between
    objects.write("plan.json", data, None)          ChangedError: it is there already

So of two writers that saw the same version one wins, wherever the place is: in an object store by a
conditional put (If-Match, If-None-Match), in a folder by a lock held for the moment (flock). In a
folder a file is replaced whole, and it and its entry are synced before `write` returns.

Versions are told by content, as S3 does (ETag): who needs to be told from another writer of the
same thing puts an id of its own into the object. Any thread; each call by itself. Pickles.

Source: apache/arrow-rs-object-store src/lib.rs (PutMode); AWS S3 PutObject (If-Match, 409
ConditionalRequestConflict)
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from skylarkmq.client.errors import RocketMQError
from skylarkmq.spark.storage import Location, StorageError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

LOCK: Final = "lock"
"""The file of a folder that is locked, for a moment or for a run; never an object's name."""
_TRIES: Final = 3


class ChangedError(RocketMQError):
    """An object is not the version that was to be replaced: another writer was there before."""


class Stored(NamedTuple):
    """What an object holds."""

    data: bytes
    tag: str
    """Its version."""


class Objects(ABC):
    """The objects that lie directly at a place."""

    def __init__(self, place: Location) -> None:
        self.place = place

    @abstractmethod
    def read(self, name: str) -> Stored | None:
        """Return an object, None when there is none. StorageError, OSError: it cannot be read."""

    @abstractmethod
    def write(self, name: str, data: bytes, tag: str | None) -> str:
        """Put an object in the place of version `tag`, or of none; durable when it returns.

        Returns:
            The new version's tag.

        Raises:
            ChangedError: another version is there.
            StorageError, OSError: it cannot be written; it may have been all the same.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove an object if it is there."""

    def names(self) -> list[str]:
        """Return the names that lie there, sorted, folders' as well; none when it is not there."""
        return [name for name in self.place.names() if name != LOCK and not name.startswith(".")]

    def _changed(self, name: str) -> ChangedError:
        return ChangedError(f"{self.place.child(name)} was written by another run in the meantime")


def objects_at(place: Location) -> Objects:
    """Return the objects of a place. Nothing is asked of it yet."""
    return StoreObjects(place) if place.path is None else FolderObjects(place)


class FolderObjects(Objects):
    """The files of a folder, which `write` makes if need be."""

    def __init__(self, place: Location) -> None:
        super().__init__(place)
        assert place.path is not None
        self._folder = place.path

    def read(self, name: str) -> Stored | None:
        try:
            data = (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None
        return Stored(data, _tag(data))

    def write(self, name: str, data: bytes, tag: str | None) -> str:
        make_folder(self._folder)
        with self._sole_use():
            found = self.read(name)
            if (None if found is None else found.tag) != tag:
                raise self._changed(name)
            path, temporary = self._folder / name, self._folder / f".{name}.new"
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_path(self._folder)
        return _tag(data)

    def remove(self, name: str) -> None:
        if self._folder.is_dir():
            with self._sole_use():
                (self._folder / name).unlink(missing_ok=True)
                sync_path(self._folder)

    @contextmanager
    def _sole_use(self) -> Generator[None]:
        descriptor = os.open(
            self._folder / ".writing", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class StoreObjects(Objects):
    """The objects of an object store that have a name in common."""

    def __init__(self, place: Location) -> None:
        super().__init__(place)
        self._opened: ObjectStore | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self.place, "_opened": None}

    @property
    def _store(self) -> ObjectStore:
        if self._opened is None:
            self._opened = self.place.store()
        return self._opened

    def read(self, name: str) -> Stored | None:
        with self.place.errors():
            try:
                found = self._store.get(name)
                data = found.bytes().to_bytes()
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
                    raise
                return None
        return Stored(data, self._tag_of(found.meta.get("e_tag")))

    def write(self, name: str, data: bytes, tag: str | None) -> str:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: Any = "create" if tag is None else {"e_tag": tag}
        for _ in range(_TRIES):
            try:
                with self.place.errors():
                    return self._tag_of(self._store.put(name, data, mode=mode).get("e_tag"))
            except (AlreadyExistsError, PreconditionError, FileNotFoundError):
                # The library may have tried twice, after the first put had done it.
                found = self.read(name)
                if found is not None and found.data == data:
                    return found.tag
                if (None if found is None else found.tag) != tag:
                    break
        raise self._changed(name)

    def remove(self, name: str) -> None:
        with self.place.errors():
            try:
                self._store.delete(name)
            except FileNotFoundError:
                return

    def _tag_of(self, tag: str | None) -> str:
        if not tag:
            raise StorageError(
                f"{self.place}: the server gives objects no version (ETag)",
                hint="Use a store that has conditional writes (If-None-Match, If-Match)",
            )
        return tag


def _tag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, if need be; their entries are durable."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_path(folder.parent)


def sync_path(path: Path) -> None:
    """Make a file's content, or a folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def take_lock(path: Path) -> int | None:
    """Open a file, made if need be, and lock it (flock); None when another opener holds the lock.

    Closing the descriptor, or the end of the process, gives the lock back.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor
