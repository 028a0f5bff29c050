"""What the rest of a broker may ask of its replica under a controller. No I/O."""

from __future__ import annotations

from typing import Protocol

from skylarkmq.protocol.bodies.replica import ReplicaStatusBody


class Replicated(Protocol):
    """A replica as the rest of the broker sees it. Loop thread."""

    def status(self) -> ReplicaStatusBody: ...

    async def switch_over(self, target: str) -> None:
        """Let another member of the set lead, without a failed send of a patient client.

        Args:
            target: replica id; empty: the member with the most of the log.

        Raises:
            RemoteProtocolError: this is not the master, `target` is not in sync, or it did not
                take over in time; this replica leads on then.
        """

    async def force(self) -> int:
        """Lead though others may know more; an operator accepts the loss.

        Returns:
            How many messages at the end of this log are not known to be on every replica that was
            in sync, or may be lost: those behind what was last known to be confirmed.

        Raises:
            RemoteProtocolError: there is a master, or the coordination engine is not reached.
        """
        ...
