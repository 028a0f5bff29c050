"""What a power cut leaves of one file: pages that are old, new or in between, and sizes likewise.

    live      what the running process sees (page cache)
    durable   what the disk holds for certain; `datasync` brings it up to `live`

Between two syncs each 4 KiB page may reach the disk at any time and in any order, so after a cut a
touched page holds its durable bytes, its live bytes, or what it held at a moment between them; a
torn one mixes two of them by 512-byte sectors.
"""

from __future__ import annotations

from random import Random

PAGE_SIZE = 4096
SECTOR_SIZE = 512
MAX_VERSIONS = 4


class DirtyPage:
    """A page touched since the last sync."""

    __slots__ = ("touched", "versions")

    def __init__(self, touched: int) -> None:
        self.touched = touched  # order of the last touch over the whole disk
        self.versions: list[bytes] = []  # what it held between durable and live, oldest first


class Inode:
    """The bytes of one file, apart from its names."""

    __slots__ = ("blocks", "dirty", "durable", "live", "lost", "mapped", "mirrors", "modified_ms")

    def __init__(self) -> None:
        self.live = bytearray()
        self.mirrors: list[bytearray] = []  # older buffers that views still look at
        self.durable = bytearray()
        self.dirty: dict[int, DirtyPage] = {}
        self.lost: set[int] = set()  # pages that a failed sync gave up; later syncs pass them over
        self.blocks: set[int] = set()  # pages that have room on the disk
        self.mapped = False  # whether stores come through a mapping, unseen
        self.modified_ms = 0

    def copy(self) -> Inode:
        """An independent copy without the views' mirrors."""
        self.note_stores()
        twin = Inode()
        twin.mapped, twin.modified_ms = self.mapped, self.modified_ms
        twin.live = bytearray(self.live)
        twin.durable = bytearray(self.durable)
        for page, dirty in self.dirty.items():
            twin.dirty[page] = DirtyPage(dirty.touched)
            twin.dirty[page].versions = list(dirty.versions)
        twin.lost = set(self.lost)
        twin.blocks = set(self.blocks)
        return twin

    def write(self, data: bytes | bytearray | memoryview, position: int, touched: int) -> None:
        """Put bytes into the page cache, growing the file when needed."""
        end = position + len(data)
        for page in pages_of(position, len(data)):
            self.touch(page, touched)
        if end > len(self.live):
            self.resize(end)
        for buffer in (self.live, *self.mirrors):
            if position < len(buffer):
                part = data[: len(buffer) - position]
                buffer[position : position + len(part)] = part

    def touch(self, page: int, touched: int) -> None:
        """Note that a page is about to change."""
        dirty = self.dirty.get(page)
        if dirty is None:
            self.dirty[page] = DirtyPage(touched)
        else:
            dirty.touched = touched
            if len(dirty.versions) < MAX_VERSIONS:
                dirty.versions.append(page_of(self.live, page))

    def note_stores(self) -> None:
        """Find the pages that were stored to through a mapping.

        Raises:
            AssertionError: one has no block on the disk; a full one answers with a SIGBUS.
        """
        if not self.mapped:
            return
        durable = self.durable.ljust(len(self.live), b"\0")
        for page in pages_of(0, len(self.live)):
            start, end = page * PAGE_SIZE, (page + 1) * PAGE_SIZE
            if page in self.lost or self.live[start:end] == durable[start:end]:
                continue
            assert page in self.blocks, f"a store to page {page}, which has no block: SIGBUS"
            self.dirty.setdefault(page, DirtyPage(0))

    def resize(self, size: int) -> None:
        """Change the live size. A view keeps the range it was given, as a mapping does.

        Raises:
            AssertionError: the file shrinks under a view; touching a mapping there is a SIGBUS.
        """
        if size < len(self.live):
            try:
                del self.live[size:]
            except BufferError:
                raise AssertionError("a file shrinks while it is mapped: SIGBUS") from None
            self.mirrors.clear()
            return
        try:
            self.live += bytes(size - len(self.live))
        except BufferError:
            self.mirrors.append(self.live)
            self.live = self.live + bytes(size - len(self.live))

    def sync(self) -> None:
        """Bring the durable copy up to the live one, but for pages that a failed sync lost."""
        self.note_stores()
        size = len(self.live)
        del self.durable[size:]
        self.durable += bytes(size - len(self.durable))
        for page in self.dirty:
            self._put(self.durable, page, page_of(self.live, page))
        self.lost.difference_update(self.dirty)
        self.dirty.clear()

    def lose(self) -> None:
        """A sync failed: the kernel calls the pages clean and will not write them again."""
        self.note_stores()
        self.lost.update(self.dirty)
        self.dirty.clear()

    def image(self, sizes: list[int], kept: set[int], torn: bool, rng: Random) -> bytearray:
        """The bytes after a cut that kept the size changes `sizes` and the pages `kept`."""
        result = bytearray(self.durable)
        for size in sizes:
            del result[size:]
            result += bytes(size - len(result))
        for page in kept:
            if page * PAGE_SIZE < len(result):
                self._put(result, page, self._landed(page, torn, rng))
        return result

    def _landed(self, page: int, torn: bool, rng: Random) -> bytes:
        new = page_of(self.live, page)
        versions = self.dirty[page].versions
        if not torn:
            return new
        old = page_of(self.durable, page)
        first, second = rng.sample([old, *versions, new], 2)
        if versions and rng.random() < 0.25:
            return rng.choice(versions)
        cut = rng.randrange(1, PAGE_SIZE // SECTOR_SIZE) * SECTOR_SIZE
        if rng.random() < 0.5:
            return second[:cut] + first[cut:]
        sectors = range(0, PAGE_SIZE, SECTOR_SIZE)
        return b"".join(rng.choice((first, second))[at : at + SECTOR_SIZE] for at in sectors)

    @staticmethod
    def _put(target: bytearray, page: int, data: bytes) -> None:
        start = page * PAGE_SIZE
        part = data[: max(0, len(target) - start)]
        target[start : start + len(part)] = part


def pages_of(position: int, size: int) -> range:
    """Numbers of the pages that a range of bytes touches."""
    return range(position // PAGE_SIZE, (position + size + PAGE_SIZE - 1) // PAGE_SIZE)


def page_of(data: bytearray, page: int) -> bytes:
    """One page, filled up with zeros behind the end."""
    return bytes(data[page * PAGE_SIZE : (page + 1) * PAGE_SIZE]).ljust(PAGE_SIZE, b"\0")
