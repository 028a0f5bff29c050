"""What the machine refuses is not a broken disk: this place says who does what then.

No room, no descriptor, no memory: the call did nothing, so nothing is lost, and it may be made
again. Whatever else a write says, and all that a sync says of what is not written anew at the next
try (log, queue files, key index, the journal's frames), is final: `MessageStore.fail`.

    what is refused              meanwhile                                     asked again
    the next log file            messages are refused                          once a second
    queue files, checkpoint      messages are refused                          with the next write
    key index                    messages are refused                          once a second
    sync of the key index        the checkpoint stays as it is                 with the next one
    recovery point               a recovery would take longer                  with the next one
    flushed offset               what it says stays true                       never in this run
    journal of pop consumption   receives are refused                          at its next interval
    run of timed messages        its messages stay in memory                   after 10 s
    merge of runs                the runs stay as they are                     after 10 s
    read of delayed messages     they wait, they are not damaged               after 10 s
    table                        the request is refused, the old file stays    by who wants it
    a replica's terms and cut    it stores nothing                             every half second
    removal of a topic           the request is refused                        by who wants it
    removal of expired files     they stay                                     with the next round
    the lock, made anew          the old one is held                           with the next check
    cut of the log               the log stays as it is                        by the next start

Who ends: a start that has no descriptor or no memory; without room it goes on, so that cleaning can
make some. A stop, which then is not clean. The log's own write: its blocks were there before, so a
lack of room is a fault of the disk. A replica that cannot keep for a whole lease where its own term
begins, for another one may lead.
"""

from __future__ import annotations

import errno
from typing import Final, NamedTuple


class Refusal(NamedTuple):
    """What the machine is short of, for a human."""

    why: str
    cure: str


_FULL: Final = Refusal("the disk is full", "free some space")
_REFUSALS: Final = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EMFILE: Refusal(
        "this process has too many open files", "raise its limit (ulimit -n, LimitNOFILE)"
    ),
    errno.ENFILE: Refusal("the machine has too many open files", "raise fs.file-max"),
    errno.ENOMEM: Refusal("the machine has no memory left", "free some, or raise vm.max_map_count"),
}


def refusal(error: BaseException | None) -> Refusal | None:
    """Return what the machine has refused; None when the failure is final, or there is none."""
    number = error.errno if isinstance(error, OSError) else None
    return None if number is None else _REFUSALS.get(number)


def failed_sync(error: OSError) -> OSError:
    """Return the failure of a sync as one that is final, whatever the system says.

    The kernel may have dropped the pages, and report success next time.
    """
    return OSError(errno.EIO, f"the sync failed: {error.strerror}", error.filename)


def is_no_space(error: BaseException) -> bool:
    """Return whether a disk or a quota is full. A start goes on then; no open says it."""
    return refusal(error) is _FULL
