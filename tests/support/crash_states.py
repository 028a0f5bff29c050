"""Names, sizes and pages of a disk that are not durable yet, and the ways for a crash to end.

A name (create, rename, unlink) and a size are durable after

    STRICT    a sync of the folder (names), of the file (size); until then each change is kept
              or lost on its own, as POSIX allows
    ORDERED   any sync that has to commit the journal; until then a prefix of the changes is kept,
              as ext4 does
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from random import Random

from tests.support.crash_image import Inode


class Names(Enum):
    """When names and sizes become durable."""

    STRICT = auto()
    ORDERED = auto()


class Keep(Enum):
    """Which of the dirty pages reach the disk before the lights go out."""

    KILL = auto()  # the process alone dies: the page cache survives
    NONE = auto()
    ALL = auto()
    ONE = auto()
    ALL_BUT_ONE = auto()
    PREFIX = auto()  # in the order of their last touch
    RANDOM = auto()


@dataclass(frozen=True, slots=True)
class CrashState:
    """One way for a crash to end, together with the random source given to `crash`."""

    keep: Keep
    index: int = 0  # which page, or how many
    torn: bool = False
    names: Keep = Keep.RANDOM  # NONE, ALL or RANDOM of the pending names and sizes


@dataclass(slots=True, eq=False)
class Change:
    """A change of names in one folder, or of one file's size, that is not durable yet."""

    folder: str
    names: dict[str, Inode | None]
    inode: Inode | None = None  # the file whose size changed
    size: int = 0
    made: str = ""  # a new folder


class NameSpace:
    """All names of a disk: the live ones, the durable ones, and the changes between them.

    Paths are plain text here; a run asks for them a million times.
    """

    def __init__(self, mode: Names) -> None:
        self.mode = mode
        self.live: dict[str, Inode] = {}
        self.durable: dict[str, Inode] = {}
        self.folders = {""}  # durable ones; what lies in another is lost with it
        self._pending: list[Change] = []

    def change(self, names: dict[str, Inode | None]) -> None:
        """Change names of one folder in one step that a crash keeps or loses as a whole."""
        apply(names, self.live)
        self._pending.append(Change(folder_of(next(iter(names))), names))

    def resized(self, path: str, inode: Inode) -> None:
        """Note that a file's live size changed."""
        self._pending.append(Change(folder_of(path), {}, inode, len(inode.live)))

    def folder_made(self, path: str) -> None:
        """Note a new folder whose name is not durable yet."""
        self._pending.append(Change(folder_of(path), {}, made=path))

    def folder_removed(self, path: str) -> None:
        """Forget a folder; its files are gone for good."""
        self.folders.discard(path)
        self._pending = [change for change in self._pending if change.made != path]

    def folder_synced(self, folder: str) -> None:
        if self.mode is Names.ORDERED:
            self._commit(lambda change: True)
        else:
            self._commit(
                lambda change: bool(change.names or change.made) and change.folder == folder
            )

    def file_synced(self, inode: Inode) -> None:
        """Make the file's size durable, and in ORDERED mode whatever came before it."""
        if self.mode is Names.ORDERED:
            last = max((i for i, c in enumerate(self._pending) if c.inode is inode), default=-1)
            journal = set(self._pending[: last + 1])
            self._commit(lambda change: change in journal)
        else:
            self._commit(lambda change: change.inode is inode)

    def _commit(self, chosen: Callable[[Change], bool]) -> None:
        kept: list[Change] = []
        for change in self._pending:
            if not chosen(change):
                kept.append(change)
                continue
            apply(change.names, self.durable)
            if change.made:
                self.folders.add(change.made)
            if change.inode is not None:
                durable = change.inode.durable
                del durable[change.size :]
                durable += bytes(change.size - len(durable))
        self._pending = kept

    def copy(self) -> NameSpace:
        """An independent copy, the files' bytes included."""
        inodes = [*self.live.values(), *self.durable.values()]
        for change in self._pending:
            inodes += [inode for inode in (*change.names.values(), change.inode) if inode]
        copies = {id(inode): inode for inode in inodes}
        copies = {key: inode.copy() for key, inode in copies.items()}
        twin = NameSpace(self.mode)
        twin.live = {path: copies[id(inode)] for path, inode in self.live.items()}
        twin.durable = {path: copies[id(inode)] for path, inode in self.durable.items()}
        twin.folders = set(self.folders)
        for change in self._pending:
            names = {path: copies[id(i)] if i else None for path, i in change.names.items()}
            inode = copies[id(change.inode)] if change.inode else None
            twin._pending.append(Change(change.folder, names, inode, change.size, change.made))
        return twin

    def dirty_pages(self) -> list[tuple[Inode, int]]:
        """Pages that a power cut may lose, in the order of their last touch."""
        inodes = {id(inode): inode for inode in self.live.values()}
        for inode in inodes.values():
            inode.note_stores()
        found = [
            (dirty.touched, inode, page)
            for inode in inodes.values()
            for page, dirty in inode.dirty.items()
        ]
        return [(inode, page) for _, inode, page in sorted(found, key=lambda entry: entry[0])]

    def states(self, rng: Random, count: int) -> list[CrashState]:
        """`count` ways to end here: the plain ones first, then chosen by `rng`."""
        pages = len(self.dirty_pages())
        states = [
            CrashState(Keep.KILL),
            CrashState(Keep.NONE, names=Keep.NONE),
            CrashState(Keep.NONE, names=Keep.ALL),
            CrashState(Keep.ALL, names=Keep.ALL),
            CrashState(Keep.ALL, torn=True),
        ]
        choices = (Keep.ONE, Keep.ALL_BUT_ONE, Keep.PREFIX, Keep.RANDOM, Keep.RANDOM)
        for number in range(count - len(states)):
            keep = choices[number % len(choices)]
            names = rng.choice((Keep.NONE, Keep.ALL, Keep.RANDOM))
            index = rng.randrange(pages) if pages else 0
            states.append(CrashState(keep, index, rng.random() < 0.5, names))
        return states[:count]

    def after(self, state: CrashState, rng: Random) -> tuple[dict[str, bytes], set[str]]:
        """The files and folders that a crash leaves. Nothing is changed here."""
        if state.keep is Keep.KILL:
            folders = self.folders | {change.made for change in self._pending if change.made}
            return {path: bytes(inode.live) for path, inode in self.live.items()}, folders
        names, folders = dict(self.durable), set(self.folders)
        sizes: dict[int, list[int]] = {}
        for change in self._kept_changes(state.names, rng):
            apply(change.names, names)
            if change.made:
                folders.add(change.made)
            if change.inode is not None:
                sizes.setdefault(id(change.inode), []).append(change.size)
        kept: dict[int, set[int]] = {}
        for inode, page in self._kept_pages(state, rng):
            kept.setdefault(id(inode), set()).add(page)
        images: dict[int, bytes] = {}
        for inode in names.values():
            key = id(inode)
            if key not in images:
                image = inode.image(sizes.get(key, []), kept.get(key, set()), state.torn, rng)
                images[key] = bytes(image)
        folders = {path for path in folders if _is_reachable(path, folders)}
        return {
            path: images[id(inode)] for path, inode in names.items() if folder_of(path) in folders
        }, folders

    def _kept_changes(self, keep: Keep, rng: Random) -> list[Change]:
        if keep is Keep.NONE:
            return []
        if keep is Keep.ALL:
            return self._pending
        if self.mode is Names.ORDERED:
            return self._pending[: rng.randrange(len(self._pending) + 1)]
        return [change for change in self._pending if rng.random() < 0.5]

    def _kept_pages(self, state: CrashState, rng: Random) -> list[tuple[Inode, int]]:
        pages = self.dirty_pages()
        match state.keep:
            case Keep.NONE:
                return []
            case Keep.ONE:
                return pages[state.index : state.index + 1]
            case Keep.ALL_BUT_ONE:
                return pages[: state.index] + pages[state.index + 1 :]
            case Keep.PREFIX:
                return pages[: state.index]
            case Keep.RANDOM:
                share = rng.random()
                return [page for page in pages if rng.random() < share]
            case _:
                return pages


def _is_reachable(path: str, folders: set[str]) -> bool:
    while path:
        if path not in folders:
            return False
        path = folder_of(path)
    return True


def folder_of(path: str) -> str:
    """The folder that a path lies in."""
    return path.rpartition("/")[0]


def apply(changes: dict[str, Inode | None], names: dict[str, Inode]) -> None:
    """Do the changes to a set of names."""
    for path, inode in changes.items():
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode
