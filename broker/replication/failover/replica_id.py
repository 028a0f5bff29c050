"""Who a replica is: an id that is made once and lies beside its store.

A replica that may have lost what it confirmed must not count as who it was: it would lead, and lack
messages that were acknowledged with its help. So it takes a new id, which is a member of nothing,
and follows until it has everything again. That is so when

- the store is another one: the id went with the disk;
- under ASYNC_FLUSH the machine has gone down since the id was written, and the store was not
  stopped cleanly: its last writes may not have reached the disk. A process that is killed loses
  nothing, for the kernel keeps what it wrote; the kernel's boot id tells the two apart.

It also knows the set that its log belongs to. Terms of two sets have the same numbers, so a store
that was a replica of another set, or of this one before the engine was emptied, is refused.

`skylarkmq/replica` has the framing of `sidecar.py`, kind 8, {"id", "set", "boot": texts}.
"""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.files import Files
from skylarkmq.common.refusal import is_no_space
from skylarkmq.common.sidecar import Kind, decode_sidecar, encode_sidecar

log = logging.getLogger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return what differs after each start of the machine; empty where no system tells it."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


class ReplicaFile:
    """Who this replica is, on the disk. All calls block.

    Attributes:
        id: of this replica.
        set_id: of the set that its log belongs to; empty before it was let in.
    """

    def __init__(self, files: Files, path: Path, boot: str) -> None:
        """Make it; `boot` is of `boot_id`."""
        self.id = self.set_id = ""
        self._files = files
        self._path = path
        self._boot = boot

    def load(self, *, keeps_all: bool) -> None:
        """Read the file, or make a new id where this replica may have lost something.

        A full disk does not hold up the start of one that is who it was.

        Args:
            keeps_all: nothing of the store can be lost with the machine: it was stopped cleanly,
                or each record is synced before it counts.

        Raises:
            CorruptFileError: the file is damaged.
        """
        if self._files.exists(self._path):
            data = self._files.read_all(self._path)
            match decode_sidecar(self._path, Kind.REPLICA, data):
                case {"id": str(found), "set": str(of_set), "boot": str(then)}:
                    self.set_id = of_set
                    if keeps_all or (then != "" and then == self._boot):
                        self.id = found
                case _:
                    raise CorruptFileError(self._path, 0, "it does not say who this replica is")
            if not self.id:
                log.warning(
                    "the machine has gone down without a clean stop, and ASYNC_FLUSH may have lost "
                    "the last messages: this replica counts as a new one until it has all again"
                )
        is_new = not self.id
        self.id = self.id or secrets.token_hex(8)
        try:
            self._write(self.set_id)
        except OSError as error:
            # With another boot in it this one counts as new after the next crash, and no sooner.
            if is_new or not is_no_space(error):
                raise

    def join(self, set_id: str) -> None:
        """Note that the log belongs to a set."""
        if self.set_id != set_id:
            self._write(set_id)
            self.set_id = set_id

    def _write(self, set_id: str) -> None:
        self._files.make_folder(self._path.parent)
        content = {"id": self.id, "set": set_id, "boot": self._boot}
        data = encode_sidecar(Kind.REPLICA, content)
        self._files.replace(self._path, data, backup=False)
